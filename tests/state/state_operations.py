"""Operations on a state, each with its preparation, and the checks after a failure at any place."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vstate import Disk, KVStore, Live, Memory, Versioned, task
from vstate.state.base import ReadableState

PATIENCE = 60  # seconds; a call that takes longer never ends

Contents = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """`prepare` a handle, then `run`.

    - `staged`: an operation that failed leaves everything that it was to commit.
    - `repeats`: calling it again after it took effect changes nothing more.
    - `in_a_block`: the operation has a with block, whose objects live until the exception is let go of.
    """

    run: Callable[[Versioned], object]
    prepare: Callable[[Versioned], object] = lambda state: None
    staged: bool = False
    repeats: bool = False
    in_a_block: bool = False


def edit(state: Versioned) -> None:
    state["list"].append(2)
    state["count"] += 10
    state["new"] = {"of": ["main"]}
    del state["gone"]
    state["slides"].append(1)
    state.expire("list", 3600)
    state.record("edited")


def edit_beside_another(state: Versioned) -> None:
    other = Versioned(state.store, branch="main")
    other["theirs"] = 1
    other["count"] += 100
    other.commit("theirs")
    edit(state)


def count(state: Versioned) -> None:
    state["count"] += 10
    state["list"].append(2)
    state["new"] = [1]


def in_a_transaction(state: Versioned) -> None:
    with state.transaction("two"):
        count(state)


def failing_transaction(state: Versioned) -> None:
    try:
        with state.transaction("two"):
            count(state)
            with state.transaction("inner"):
                state["inner"] = [1]
            raise RuntimeError
    except RuntimeError:
        pass


def failing_update(state: Versioned) -> None:
    def function(fresh: Versioned) -> None:
        count(fresh)
        raise RuntimeError

    try:
        state.apply(function)
    except RuntimeError:
        pass


@task
def failing_task(*, state: Versioned | Live) -> None:
    state["count"] += 10
    state["list"].append(2)
    raise RuntimeError


def run_failing_task(state: Versioned) -> None:
    try:
        failing_task(state=state)
    except RuntimeError:
        pass


def others_commit(state: Versioned) -> None:
    other = Versioned(state.store, branch="main")
    other["theirs"] = [1]
    other["list"].append(3)
    other.commit("theirs")
    state["count"] += 10


def expiries(state: Versioned) -> None:
    """Change in every way when something expires."""
    state.expire("list", 3600)
    state["list"].append(2)
    state.expire("slides", None)
    state["new"] = [1]
    state.expire("new", 3600)
    state["over"] = [1]  # committed, but expired
    state.expire("count", 1e-6)
    state["count"] = 7
    state["briefly"] = 1
    state.expire("briefly", 1e-6)


def commit_under_a_lease(state: Versioned) -> None:
    with state.lease("work", ttl=2, wait=60) as lease:
        lease.commit("two")


def undo_it(state: Versioned) -> None:
    state.undo()


REMOTES: dict[int, Memory] = {}
"""The store that each prepared state pushes to and pulls from."""


def another_store(state: Versioned) -> None:
    there = REMOTES[id(state)] = Memory()
    state.push(there, create=True)
    other = Versioned(there, branch="main")
    other["theirs"] = [1]
    other["count"] += 100
    other.commit("theirs")


def push(state: Versioned) -> None:
    state.push(REMOTES[id(state)], create=True)


OPERATIONS = {
    "commit": Operation(lambda state: state.commit("two"), edit, staged=True, repeats=True),
    "commit beside another": Operation(
        lambda state: state.commit("two"), edit_beside_another, staged=True, repeats=True
    ),
    "commit under a lease": Operation(commit_under_a_lease, edit, staged=True, repeats=True, in_a_block=True),
    "update": Operation(lambda state: state.apply(count)),
    "failing update": Operation(failing_update, repeats=True),
    "transaction": Operation(in_a_transaction, in_a_block=True),
    "failing transaction": Operation(
        failing_transaction, lambda state: state.update({"kept": [1]}), in_a_block=True, repeats=True
    ),
    "failing task": Operation(run_failing_task, repeats=True, in_a_block=True),
    "set": Operation(lambda state: state.update({"list": [9]}), repeats=True),
    "delete": Operation(lambda state: state.pop("list", None), repeats=True),
    "discard": Operation(lambda state: state.discard(), edit, repeats=True),
    "rollback": Operation(lambda state: state.rollback("v0"), repeats=True),
    "rollback with changes": Operation(lambda state: state.rollback("v0"), edit, repeats=True),
    "merge": Operation(lambda state: state.merge("side"), repeats=True),
    "refresh": Operation(lambda state: state.refresh(), others_commit, staged=True, repeats=True),
    "reset": Operation(lambda state: state.reset("v0"), edit, repeats=True),
    "undo": Operation(undo_it),
    "redo": Operation(lambda state: state.redo(), undo_it),
    "cherry-pick": Operation(lambda state: state.cherry_pick("side")),
    "revert": Operation(lambda state: state.revert("HEAD")),
    "refresh to another branch": Operation(
        lambda state: state.refresh(), lambda state: state.repo.checkout("side"), repeats=True
    ),
    "tag": Operation(lambda state: "t1" in state.tags() or state.tag("t1"), repeats=True),
    "fork": Operation(lambda state: "f1" in state.branches() or state.fork("f1"), repeats=True),
    "switch": Operation(lambda state: state.switch("side"), repeats=True),
    "switch to a new branch": Operation(lambda state: state.switch("made", create=True), repeats=True),
    "commit of expiries": Operation(lambda state: state.commit("two"), expiries, staged=True, repeats=True),
    "update of expiries": Operation(lambda state: state.apply(expiries)),
    "discard of expiries": Operation(lambda state: state.discard(), expiries, repeats=True),
    "expire": Operation(lambda state: state.expire("list", 3600), lambda state: state["list"], repeats=True),
    "expire no more": Operation(
        lambda state: state.expire("slides", None), lambda state: state["slides"], repeats=True
    ),
    "set an expired key": Operation(lambda state: state.__setitem__("over", [1]), repeats=True),
    "purge": Operation(lambda state: state.purge(), repeats=True),
    "push": Operation(push, lambda state: REMOTES.__setitem__(id(state), Memory()), repeats=True),
    "pull": Operation(lambda state: state.pull(REMOTES[id(state)]), another_store, repeats=True),
}


def fill(store: KVStore) -> None:
    """Two commits on main, one on a side branch."""
    state = Versioned(store)
    state.set_policy("count", "counter")
    state["list"], state["count"], state["gone"] = [0], 0, "gone"
    state["slides"], state["over"] = [0], [0]
    state.expire("slides", 3600)
    state.expire("over", 1e-6)
    state.commit("zero")
    state.tag("v0")
    side = state.fork("side")
    side["side"] = {"of": "side"}
    side["count"] = 1000
    side.commit("side")
    state["list"].append(1)
    state["count"] = 1
    state.commit("one")


class Stores:
    """New stores that `fill` has filled."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._directory = directory if kind == "Disk" else None
        self._number = 0
        self._rows: dict[str, bytes] = {}
        if self._directory is not None:
            with Disk(self._directory / "filled") as store:
                fill(store)
        else:
            memory = Memory()
            fill(memory)
            self._rows = dict(memory.items())

    @contextmanager
    def new(self) -> Iterator[KVStore]:
        if self._directory is None:
            memory = Memory()
            memory.set_many(self._rows)
            yield memory
            return
        self._number += 1
        copy = shutil.copytree(self._directory / "filled", self._directory / str(self._number))
        with Disk(copy, durability="process", create=False) as store:
            yield store
        shutil.rmtree(copy)


def in_a_thread(function: Callable[[], object]) -> None:
    """Call the function in a thread that holds none of this thread's locks; fail if the call never ends."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


def picture(state: ReadableState) -> Contents:
    """A copy of the values of a state now, its branch, and which keys expire."""
    found = deepcopy(dict(state))
    if isinstance(state, Versioned):
        found |= {f"{key} expires": True for key in found if state.expires(key) is not None}
        found["its branch"] = state.branch
        found["its tags"] = sorted(state.tags())
    return found


def stored(store: KVStore, branch: str | None) -> Contents:
    return picture(Versioned(store, branch=branch))


def edits(state: Versioned) -> int:
    return sum(event.kind == "edited" for commit in state.log() for event in commit.events)


@dataclass
class Undisturbed:
    """The picture of an undisturbed operation: of the handle before and after, and of the store."""

    before: Contents
    after: Contents
    stored: list[Contents]
    final: Contents
    edits: int


def undisturbed(operation: Operation, stores: Stores) -> Undisturbed:
    with stores.new() as store:
        state = Versioned(store)
        operation.prepare(state)
        before, found = picture(state), [stored(store, "main")]
        operation.run(state)
        commits = [commit for commit in state.log() if commit.message == "Before rollback"]
        found += [
            {**picture(state.fork(f"at-{n}", commit)), "its branch": "main"}
            for n, commit in enumerate(commits)
        ]
        found.append(stored(store, state.branch))
        after = picture(state)
        state.commit("rest")
        return Undisturbed(before, after, found, picture(state), edits(state))


def check_after(operation: Operation, state: Versioned, seen: Undisturbed) -> None:
    """The operation happened or did not, for the handle too.

    A repeated call takes effect once, and work goes on.
    """
    store = state.store
    now = picture(state)
    assert now in (seen.before, seen.after)
    if isinstance(store, Disk):
        with Disk(store.location, durability="process", timeout=20) as other:
            other.set("another process", b"writes")
    uncommitted: list[bool] = []
    in_a_thread(lambda: uncommitted.append(state.has_uncommitted))
    now = picture(state)
    assert now in (seen.before, seen.after)
    there = stored(store, state.branch)
    assert there in seen.stored
    if operation.staged and there == seen.stored[-1] != seen.stored[0]:
        assert uncommitted == [False]
    if operation.repeats or now != seen.after:
        in_a_thread(partial(operation.run, state))
    in_a_thread(lambda: state.commit("rest"))
    in_a_thread(state.refresh)
    final = stored(store, state.branch)
    assert picture(state) == final == seen.final
    assert edits(state) == seen.edits
    assert state.repo.fsck().ok
    state["more"] = ["more"]
    in_a_thread(lambda: state.commit("more"))
    with state.transaction():
        state["most"] = 1
    assert stored(store, state.branch) == final | {"more": ["more"], "most": 1}
