"""Sweeps: a branch is forgotten beside each step of an operation on it, and nothing looks like damage."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bundle_files import save
from histories import opened
from sync_stores import Beside

from vstate import (
    CorruptObject,
    InvalidInput,
    KVStore,
    Memory,
    MergeConflict,
    NotFound,
    RefMoved,
    StorageError,
    Versioned,
)
from vstate.objects.ids import ObjectId
from vstate.repo import Repository


def fill(store: KVStore) -> None:
    with Versioned(store) as state:
        state.update({f"k{i}": f"m{i}" * 40 for i in range(40)})
        state.commit("one")
        state.create_branch("side")
        state.switch("side")
        for turn in range(3):
            state.update({f"k{i}": f"s{turn} {i}" * 40 for i in range(40)})
            state.commit(f"side {turn}")
        state.switch("main")
        save(state, "two", b=2)


OPERATIONS: dict[str, Callable[[KVStore], Any]] = {
    "merge": lambda store: Versioned(store).merge("side", policy="theirs"),
    "cherry_pick": lambda store: Versioned(store).cherry_pick("side", policy="theirs"),
    "revert": lambda store: Versioned(store, branch="side").revert("side~1", policy="theirs"),
    "rollback": lambda store: Versioned(store, branch="side").rollback("side~2"),
    "switch": lambda store: Versioned(store).switch("side"),
    "checkout": lambda store: dict(Versioned(store).checkout("side")),
    "diff": lambda store: str(Versioned(store).diff("main", "side")),
    "log": lambda store: list(Repository(store).log("side")),
    "log of a key": lambda store: list(Repository(store).log("side", key="k3")),
    "blame": lambda store: Repository(store).blame("side", "k3"),
    "merge_base": lambda store: Repository(store).merge_base("main", "side"),
    "squash": lambda store: Repository(store).squash("side", keep=1),
    "export": lambda store: Repository(store).export(io.BytesIO(), ["side"]),
    "push": lambda store: Repository(store).push(Memory(), ["side"]),
    "gc": lambda store: Repository(store).gc(),
    "fsck": lambda store: Repository(store).fsck(),
}


MANY_CALLS = ("checkout", "export", "fsck", "gc", "push")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "memory") for name in OPERATIONS),
        *((name, "disk") for name in ("merge", "log", "gc", "fsck")),
    ],
)
def test_a_branch_that_is_forgotten_beside_an_operation_is_no_damage(
    name: str, kind: str, tmp_path: Path
) -> None:
    """Before each call of the store, `delete_branch(forget=True)` removes the branch and its objects."""
    # Most calls of the store come early. Disk has the same ones as Memory.
    step = 11 if name in MANY_CALLS or kind == "disk" else 5
    ended = []
    for at in count(1, step):
        with opened(kind, tmp_path / f"{at}") as store:
            fill(store)

            calls = count(1)

            def forget(store: KVStore = store, at: int = at, calls: count[int] = calls) -> None:
                if next(calls) == at:
                    # A switch has moved HEAD there.
                    with suppress(InvalidInput) if name == "switch" else nullcontext():
                        Repository(store).delete_branch("side", forget=True)

            try:
                OPERATIONS[name](Beside(store, forget))
            except (NotFound, RefMoved, MergeConflict, InvalidInput, StorageError) as error:
                ended.append(type(error))
            assert Repository(store).fsck().ok
            if next(calls) <= at:
                break
    assert CorruptObject not in ended
    assert ended or name in ("gc", "fsck")


NEEDS_NO_TREE = ("fsck", "gc", "merge_base", "squash")


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in NEEDS_NO_TREE])
def test_an_object_that_no_sweep_removed_is_damage(name: str) -> None:
    """Without a sweep, an object that is missing is told as damage, as before."""
    store = Memory()
    fill(store)
    head = Repository(store).branch("side")
    gone = head.parent_ids[0] if name == "log" else head.root
    assert isinstance(gone, ObjectId)
    store.delete(f"o/{gone.hex()}")
    with pytest.raises(CorruptObject, match="missing"):
        OPERATIONS[name](store)
