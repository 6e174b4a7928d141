"""Importing a bundle: interrupted, beside gc, and into a store that is damaged or cut short."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from bundle_files import (
    chain,
    equal,
    exported,
    imported,
    large,
    outcomes,
    refs_of,
    save,
    store_of,
    values_at,
    whole,
)
from sync_stores import Counted, Hooked, Once

from vstate import Memory, Versioned
from vstate.errors import InvalidInput
from vstate.repo import Repository
from vstate.repo.upkeep import gc
from vstate.testing import Faulty

pytestmark = pytest.mark.slow

CUT: dict[str, Any] = {"branch": "main", "keep_last": 2}


@pytest.fixture
def many_frames(small_batches: None) -> tuple[Memory, bytes]:
    """A store, and a bundle of it in many small frames."""
    store = Memory()
    chain(store, 4)
    return store, exported(store)


def test_what_is_there_is_not_written_again(many_frames: tuple[Memory, bytes]) -> None:
    """A second import writes nothing, and one that finds one object gone writes that one."""
    store, data = many_frames
    target = Memory()
    imported(target, data)
    faulty = Faulty(target)
    assert imported(faulty, data).written == 0
    assert not {"set_many", "transact", "set"} & set(faulty.calls)
    target.delete_many(list(target.keys("o/"))[:1])
    assert imported(target, data).written == 1
    equal(store, target)


def test_an_import_costs_what_is_new() -> None:
    """The values that it wrote are not read again, nor are those that our refs lead to."""
    store, target = Memory(), Memory()
    state = chain(store, 3)
    save(state, "large", block=large(1, 1_000_000))
    there = Counted(target)
    imported(there, exported(store))
    assert there.read < 200_000
    since = state.head
    assert since is not None
    save(state, "little", n=2)
    there.read = 0
    imported(there, exported(store, since=[since.id]))
    assert there.read < 200_000
    equal(store, target)


# Beside gc


def test_a_writer_moves_the_branch_meanwhile(many_frames: tuple[Memory, bytes]) -> None:
    """The import looks at the ref again, which has diverged by now."""
    memory = Memory()
    overtaken = Hooked(memory, Once(lambda: chain(memory, 1), "r/heads/main"))
    assert outcomes(imported(overtaken, many_frames[1])) == {"heads/main": "diverged"}
    assert [commit.message for commit in Versioned(memory).log()] == ["c0"]


# With a damaged store


def test_a_bundle_brings_back_what_was_lost() -> None:
    """After fsck has moved damage aside, importing a bundle that has the objects heals it."""
    store = Memory()
    chain(store, 4)
    data = exported(store)
    for key, value in list(store.items("o/"))[::3]:
        store.set(key, value[:-1])
    repo = Repository(store)
    assert not repo.fsck(repair=True).ok
    report = imported(store, data)
    assert report.written > 0
    assert Repository(store).fsck(repair=True).ok
    fresh = Memory()
    imported(fresh, data)
    assert not list(store.keys("shallow/"))
    assert values_at(store) == values_at(fresh)


def test_what_is_there_and_damaged_is_written_again() -> None:
    """A ref moves to whole objects only, whatever the kind of the damaged one."""
    store = Memory()
    chain(store, 2)
    data, rows = exported(store), dict(store.items("o/"))
    assert {value[:1].lower() for value in rows.values()} == set(map(str.encode, "bitc"))
    for key, value in rows.items():
        target = store_of({**rows, key: value[:-1] + bytes([value[-1] ^ 1])})
        assert imported(target, data).written == 1
        equal(store, target)
        whole(target)


@pytest.mark.parametrize("lose", [lambda row: None, lambda row: row[:-1] + bytes([row[-1] ^ 1])])
def test_what_is_damaged_and_in_no_bundle_keeps_one_out(lose: Callable[[bytes], bytes | None]) -> None:
    """The bundle relies on a tree that is damaged here: the error names it, and no ref moves."""
    store, target = Memory(), Memory()
    chain(store, 3)
    imported(target, exported(store))
    later, before = chain(store, 2, start=3), refs_of(target)
    head = Repository(target).branch("main")
    target.transact({f"o/{head.root}": lose(target.get(f"o/{head.root}") or b"")}, {})
    later.rollback("HEAD~2")
    with pytest.raises(InvalidInput, match=f"object {head.root}"):
        imported(target, exported(store, since=[head.id]))
    assert refs_of(target) == before


def test_damage_elsewhere_does_not_keep_a_bundle_out() -> None:
    """A broken tag has nothing to do with the branch that goes on; a branch that lost its commit diverged."""
    store, target = Memory(), Memory()
    chain(store, 3)
    imported(target, exported(store))
    tag = Repository(target).create_tag("broken", "main~2")
    target.delete(f"o/{tag.root}")
    since = Repository(store).branch("main").id
    chain(store, 2, start=3)
    assert outcomes(imported(target, exported(store, since=[since]))) == {"heads/main": "moved"}
    assert Versioned(target)["small"] == 4
    assert Repository(target).fsck().broken == ("tags/broken",)
    other = Memory()
    chain(other, 1)
    other.delete(f"o/{refs_of(other)['heads/main']}")
    assert outcomes(imported(other, exported(store))) == {"heads/main": "diverged"}


@pytest.mark.parametrize(
    ("stage", "cut"), [("marking", {}), ("finding garbage", {}), ("removing", {}), ("finding garbage", CUT)]
)
def test_a_history_goes_on_while_gc_is_at_work(
    stage: str, cut: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc keeps commits that an import brings back while it looks at the shortened history."""
    monkeypatch.setattr(gc, "MOST_DELETED", 2)
    store = Memory()
    chain(store, 5)
    data = exported(store)
    if not cut:
        Repository(store).gc(keep_reflog="0", **CUT)
    chain(store, 3, "dead")
    Repository(store).delete_branch("dead")
    bring_back = Once(lambda: imported(store, data), stage)
    Repository(store).gc(keep_reflog="0", progress=bring_back, **cut)
    assert bring_back.done
    assert len(list(Versioned(store).log())) == 5
    whole(store)


@pytest.mark.parametrize("work", ["gc", "gc without transactions", "fsck"])
def test_a_history_that_ends_arrives_while_others_work(work: str) -> None:
    """gc and fsck walk no further than the end of the bundle's history."""
    store, memory = Memory(), Memory()
    chain(store, 5)
    Repository(store).gc(keep_reflog="0", **CUT)
    data, target = exported(store), Faulty(memory, atomic=work != "gc without transactions")
    for branch in ("mine", "dead"):
        chain(memory, 1, branch)
    Repository(memory).delete_branch("dead")
    bring = Once(lambda: imported(target, data), "" if work == "fsck" else "finding garbage")
    if work == "fsck":
        assert Repository(target).fsck(progress=bring).ok
    else:
        Repository(target).gc(keep_reflog="0", grace="0", progress=bring)
    assert bring.done
    assert [commit.message for commit in Versioned(memory, branch="main").log()] == ["c4", "c3"]
    assert Repository(target).fsck().ok


def test_progress_is_told(many_frames: tuple[Memory, bytes]) -> None:
    """The callback gets the step, the count, and the total; the report has a line for each ref."""
    store, data = many_frames
    told: list[tuple[str, int, int | None]] = []
    Repository(store).export(io.BytesIO(), ["main"], progress=lambda *step: told.append(step))
    report = Repository(Memory()).import_bundle(io.BytesIO(data), progress=lambda *step: told.append(step))
    assert [*dict.fromkeys(step for step, _, _ in told)] == [
        "collecting", "writing", "checking", "finding commits", "copying",
    ]  # fmt: skip
    for step in ("writing", "checking"):
        counts = [(count, total) for name, count, total in told if name == step]
        assert counts == sorted(counts)
        assert all(total is not None and count <= total for count, total in counts)
    assert str(report).splitlines()[1].endswith(": created")
    assert f"{report.objects:,} objects" in str(report)
