"""Names of branches: listed in pages, without a look at their commits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sync_stores import Counted

from vstate import Memory
from vstate.errors import InvalidInput
from vstate.repo.repository import Repository

NAMES = ["a", "a/b", "a/c", "ab", "b", "é", "\U0001f600", "\uffff"]


_made = Memory()
for _name in NAMES:
    Repository(_made).commit(_name, set={"name": _name})


@given(
    st.sampled_from(["", "a", "a/", "é", "zz"]),
    st.none() | st.sampled_from([*NAMES, "", "a/bb", "zz"]),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_a_page_is_a_part_of_the_sorted_names(
    prefix: str, after: str | None, limit: int | None, reverse: bool
) -> None:
    """A page is the model's: sorted, filtered, cut off."""
    names = sorted((name for name in NAMES if name.startswith(prefix)), reverse=reverse)
    if after is not None:
        names = [name for name in names if (name < after if reverse else name > after)]
    found = Repository(_made).branch_names(prefix, after=after, limit=limit, reverse=reverse)
    assert found == names[:limit]


def test_names_cost_no_commit_and_no_ref() -> None:
    """Listing reads no row of a ref and no object; ids read no object; a page of commits reads its own."""
    store = Counted(Memory())
    for name in NAMES:
        Repository(store).commit(name, set={"name": name})
    repo = Repository(store)
    store.read = 0
    page = repo.branch_names(limit=2)
    assert page == ["a", "a/b"]
    assert store.read <= sum(len(f"r/heads/{name}") for name in NAMES)
    store.read = 0
    ids = repo.branch_ids(page)
    assert store.read == 2 * 64
    store.read = 0
    found = repo.branches(page)
    assert {name: commit.id for name, commit in found.items()} == ids
    commits = [store.store.get(f"o/{oid}") or b"" for oid in ids.values()]
    assert store.read == 2 * 64 + sum(map(len, commits))
    assert repo.branch_ids() == {name: commit.id for name, commit in repo.branches().items()}


def test_wrong_arguments_are_refused() -> None:
    """A limit that is none, or text where names belong, is refused before a listing."""
    repo = Repository(Memory())
    for wrong in ({"limit": -1}, {"reverse": 1}, {"prefix": "\ud800"}):
        with pytest.raises(InvalidInput):
            repo.branch_names(**wrong)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError):
        repo.branch_names(after=b"a")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match="not a str"):
        repo.branch_ids("main")
