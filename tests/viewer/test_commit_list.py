"""The list of commits: folded and unfolded, as far as it is known."""

from __future__ import annotations

from vstate import Memory, Versioned
from vstate.repo.repository import Repository
from vstate.viewer.listing import Listings, Query


def make(count: int) -> Repository:
    repo = Repository(Memory())
    for i in range(count):
        repo.commit("main", set={"k": i}, message=f"put {i}")
    return repo


def test_a_long_run_is_several_rows() -> None:
    """A row stands for 1,000 commits at most, so the first rows of a long run are known soon."""
    listings = Listings(make(2100))
    answer = listings.page(Query(), fold=True, count=True, first=0, limit=10)
    while not answer["complete"]:
        answer = listings.page(Query(), fold=True, count=True, first=0, limit=10, view=answer["view"])
    assert [row["folded"] for row in answer["rows"]] == [1000, 1000, 99, 0]
    assert [row["message"] for row in answer["rows"]] == ["put 2099", "put 1099", "put 99", "put 0"]


def test_a_row_is_found() -> None:
    """The row of a commit has its number, folded or not; a commit of another branch has none."""
    repo = make(30)
    with Versioned(repo.store) as state:
        other = state.fork("other", at="HEAD~5")
        other["k"] = -1
        elsewhere = other.commit("elsewhere")
    listings = Listings(repo)
    wanted = repo.resolve("main~20")
    assert listings.page(Query(), find=wanted, first=0, limit=1)["found"] == 20
    assert listings.page(Query(), fold=True, find=wanted, first=0, limit=1)["found"] == 0
    assert listings.page(Query(), find=elsewhere, first=0, limit=1)["found"] is None
    assert listings.page(Query(all=True), find=elsewhere, first=0, limit=1)["found"] == 0
