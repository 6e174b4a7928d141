"""Clones: into an empty store, or one that a clone has begun, and into no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_files import chain, refs_of, whole

from vstate import Disk, KVStore, Memory, Versioned
from vstate.errors import AlreadyExists, InvalidInput, StoreUnavailable
from vstate.repo import Repository
from vstate.repo.clone import clone
from vstate.testing import Faulty


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A store of two branches and a tag."""
    with Disk(tmp_path / "there", durability="process") as store:
        chain(store, 2).tag("v1")
        chain(store, 1, "side")
    return tmp_path / "there"


def interrupted(store: KVStore, there: Path) -> None:
    calls = Faulty(Memory())
    clone(there, calls)
    with pytest.raises(StoreUnavailable):
        clone(there, Faulty(store, len(calls.calls) - 2))
    assert refs_of(store)


def origin(store: KVStore, there: Path) -> Repository:
    repo = Repository(store)
    repo.remotes.add("origin", str(there))
    return repo


def tags_only(store: KVStore) -> None:
    state = chain(store, 2)
    state.tag("v1")
    head = state.head and state.head.oid
    Repository(store).refs.compare_and_swap("heads/main", expected=head, new=None, action="gone")


USES: dict[str, Callable[[KVStore, Path], object]] = {
    "an own commit": lambda store, there: chain(store, 1, start=10),
    "and the remote": lambda store, there: (chain(store, 1, start=10), origin(store, there)),
    "a commit on what was pulled": lambda store, there: (
        origin(store, there),
        Versioned(store, branch="main").pull(),
        chain(store, 1, start=10),
    ),
    "fetched tags": lambda store, there: origin(store, there).fetch(tags=True),
    "another remote": lambda store, there: origin(store, Path("/elsewhere")),
    "tags only": lambda store, there: tags_only(store),
    "begun, and gone on": lambda store, there: (interrupted(store, there), chain(store, 1, start=10)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_store_in_use_is_left_as_it_is(there: Path, use: Callable[[KVStore, Path], object]) -> None:
    """Also one that was never checked out, and that has a remote of that URL: no branch is moved."""
    store = Memory()
    use(store, there)
    before = dict(store.items())
    with pytest.raises(AlreadyExists, match="in use already"):
        clone(there, store)
    assert dict(store.items()) == before


def test_a_clone_goes_on_where_the_original_has_moved(there: Path) -> None:
    """Branches of the original went ahead, back and away between the two calls."""
    store = Memory()
    interrupted(store, there)
    with Disk(there, durability="process") as original:
        chain(original, 1, start=20)
        Versioned(original, branch="side").reset("HEAD")
        right = refs_of(original)
    clone(there, store)
    found = refs_of(store)
    assert {name: found[name] for name in right} == right
    Repository(store).gc(keep_reflog="0")
    whole(store)


@pytest.mark.parametrize("url", ["memory:", "cache:memory:", "prefixed:memory:?name=a"])
def test_a_clone_that_would_be_gone_at_once_is_refused(there: Path, url: str) -> None:
    """Nobody could reach a store in memory that is made from a URL."""
    with pytest.raises(InvalidInput, match="memory: is gone with the process"):
        clone(there, url)
