"""The list of commits: folded and unfolded, as far as it is known."""

from __future__ import annotations

from typing import Any

import pytest

from vstate import CorruptObject, Memory, StoreUnavailable, Versioned
from vstate.kv.base import OBJECT_PREFIX
from vstate.repo.repository import Repository
from vstate.testing import Faulty
from vstate.viewer import listing
from vstate.viewer.keys import key_page
from vstate.viewer.listing import Gone, Listings, Query


def make(count: int) -> Repository:
    repo = Repository(Memory())
    for i in range(count):
        repo.commit("main", set={"k": i}, message=f"put {i}")
    return repo


def whole(listings: Listings, query: Query, **given: Any) -> tuple[dict[str, Any], int]:
    """The first page once the list is complete, and the number of requests until then."""
    answer, requests = listings.page(query, first=0, **given), 1
    while not answer["complete"]:
        answer, requests = listings.page(query, first=0, view=answer["view"], **given), requests + 1
    return answer, requests


def test_runs_of_alike_commits_are_folded() -> None:
    """A row stands for 1,000 commits at most, and for none with a branch or a tag but its first."""
    repo = make(2100)
    repo.create_tag("v1", "main~2010")
    rows = whole(Listings(repo), Query(), fold=True, count=True, limit=10)[0]["rows"]
    assert [(row["folded"], row["message"]) for row in rows] == [
        *((1000, "put 2099"), (1000, "put 1099"), (10, "put 99"), (89, "put 89"), (0, "put 0"))
    ]


def test_a_row_is_found() -> None:
    """The row of a commit has its number, folded or not, also in a run that goes on behind the rows that are
    made; a commit of another branch has none.
    """
    repo = make(30)
    with Versioned(repo.store) as state:
        other = state.fork("other", at="HEAD~5")
        other["k"] = -1
        elsewhere = other.commit("elsewhere")
    listings = Listings(repo)
    for query, fold, commit, found in (
        (Query(), False, repo.resolve("main~20"), 20),
        (Query(), True, repo.resolve("main~20"), 0),
        (Query(), False, elsewhere, None),
        (Query(all=True), False, elsewhere, 0),
    ):
        assert listings.page(query, fold=fold, find=commit, first=0, limit=1)["found"] == found
    repo = make(600)
    for i in range(120):
        repo.commit("main", set={"k": -i}, message=f"step {'x' * i}")
    listings = Listings(repo)
    view = listings.page(Query(), fold=True, first=0, limit=80)["view"]
    wanted = repo.resolve("main~300")
    assert listings.page(Query(), fold=True, find=wanted, first=0, limit=80, view=view)["found"] == 120


def test_a_filter_that_finds_little_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request ends though few commits meet the conditions; the next one goes on."""
    monkeypatch.setattr(listing, "_LONGEST_SEARCH", 0.0)
    answer, requests = whole(Listings(make(50)), Query(grep="put 0"), limit=5)
    assert [row["message"] for row in answer["rows"]] == ["put 0"]
    assert requests > 1


def test_an_error_of_the_store_is_no_end() -> None:
    """A list during which the store failed begins anew with the next request."""
    store = Faulty(make(300).store)
    listings = Listings(Repository(store))
    view = listings.page(Query(), first=0, limit=20)["view"]
    store.fail_at = len(store.calls) + 1
    with pytest.raises(StoreUnavailable):
        listings.page(Query(), first=0, limit=1000, view=view)
    answer = listings.page(Query(), first=0, limit=1000)
    assert (answer["known"], answer["complete"]) == (300, True)


def test_damage_is_in_one_row() -> None:
    """A commit whose keys are lost is a row that says so; those around it have theirs."""
    repo = Repository(Memory())
    for i in range(3):
        repo.commit("main", set={"k": "long " * 50 + str(i)}, message=f"put {i}")
    lost = repo.resolve("main~1").root
    assert lost is not None
    repo.store.delete(OBJECT_PREFIX + lost.hex())
    rows = Listings(Repository(repo.store)).page(Query(), first=0, limit=10)["rows"]
    assert [(row["message"], bool(row["damage"])) for row in rows] == [
        *(("put 2", True), ("put 1", True), ("put 0", False))
    ]
    old, new = repo.resolve("main~1"), repo.resolve("main")
    answer = key_page(Repository(repo.store), new, old, "", after="", limit=9, changed=False)
    assert [item["key"] for item in answer["items"]] == ["k"]
    assert "not marked" in answer["note"]


def test_damage_is_no_end() -> None:
    """A list that meets a missing commit is dropped: no later answer says that it is complete."""
    repo = make(30)
    lost = repo.resolve("main~20")
    repo.store.delete(OBJECT_PREFIX + lost.oid.hex())
    listings = Listings(Repository(repo.store))
    for _ in range(2):
        with pytest.raises(CorruptObject):
            listings.page(Query(), first=0, limit=100)
    answer = listings.page(Query(), first=0, limit=5)
    with pytest.raises(Gone):
        listings.page(Query(), first=5, limit=100, view=answer["view"])
