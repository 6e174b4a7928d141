"""Operations: everything that vstate does to a store, each ready to be interrupted.

All operations begin with the store that `prepared` makes. A new handle on HEAD runs the operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from io import BytesIO
from typing import Any

from vstate import KVStore, Memory, Versioned
from vstate.errors import CorruptObject
from vstate.repo import Repository
from vstate.repo.names.refs import HEAD, HEADS, REMOTES, TAGS

Picture = dict[str, Any]
"""The view that a program has of a store: each ref with its history and its values."""

BLOB = bytes(range(256)) * 2


@dataclass(frozen=True)
class Operation:
    """An operation that a test can interrupt.

    `steps` is the number of different pictures that a program may see after the first. `keeps` means that no
    object and no line of a reflog is deleted: True for all but `gc` and repair. `cleans` means that only
    reachable objects are left. `writes` is False for an operation that only reads. `mends` means that the
    store is damaged before the operation.
    """

    run: Callable[[Versioned], object]
    steps: int = 1
    prepare: Callable[[Versioned], object] | None = None
    keeps: bool = True
    cleans: bool = False
    writes: bool = True
    mends: bool = False


def edit(state: Versioned) -> None:
    """Only once: after a failure the change is still staged."""
    if 2 not in state["list"]:
        state["list"].append(2)


def commit(state: Versioned) -> None:
    edit(state)
    state["new"] = BLOB + b"new"
    state.pop("gone", None)
    state.commit("two")


def first_commit(state: Versioned) -> None:
    """Commit into the store of `prepared`, which is emptied first."""
    state["list"] = [0]
    state["blob"] = BLOB
    state.commit("zero")


def commit_beside_another(state: Versioned) -> None:
    other = Versioned(state.store, branch="main")
    if "theirs" not in other:
        other["theirs"] = BLOB + b"theirs"
        other.commit("theirs")
    commit(state)


def rollback(state: Versioned) -> None:
    state.rollback("v0")


def rollback_with_changes(state: Versioned) -> None:
    edit(state)
    state.rollback("v0")


def merge(state: Versioned) -> None:
    state.merge("side")


def merge_by_policies(state: Versioned) -> None:
    state.merge("diverged", policy={"": "newest", "count": "counter"})


def diverge(state: Versioned) -> None:
    """Make a branch that changes the same keys as main."""
    state["count"] = 1
    state.commit("two")
    other = state.fork("diverged")
    for handle, step in ((state, 10), (other, 100)):
        handle["count"] += step
        handle["list"].append(step)
        handle.commit(f"step {step}")


def fast_forward(state: Versioned) -> None:
    state.merge("ahead")


def go_ahead(state: Versioned) -> None:
    ahead = state.fork("ahead")
    ahead["list"].append(2)
    ahead.commit("ahead")


def update(state: Versioned) -> None:
    def change(fresh: Versioned) -> None:
        if 2 not in fresh["list"]:
            fresh["list"].append(2)

    state.apply(change, message="two")


def undo(state: Versioned) -> None:
    state.undo()


def redo(state: Versioned) -> None:
    state.redo()


def fsck(state: Versioned) -> None:
    assert state.repo.fsck().ok


def repair(state: Versioned) -> None:
    state.repo.fsck(repair=True)


def damage(state: Versioned) -> None:
    """Damage the store: a branch whose state is lost, a lost commit, an object, a reflog line, and the
    format.
    """
    side = state.repo.branch("side")
    for number in (2, 3):
        state["list"].append(number)
        state.commit(f"{number}")
    lost = state.repo.resolve("main~1")
    junk = state.fork("junk")
    junk["junk"] = BLOB + b"junk"
    junk.commit("junk")
    state.delete_branch("junk")
    (blob,) = state.repo.entry(junk.repo.objects.commit(junk.head.oid).root, "junk").links
    state.store.set(f"o/{blob.id}", b"b?")
    state.store.set("reflog/heads/main:?", b"?")
    state.store.delete_many([f"o/{side.root}", f"o/{lost.oid}", "format"])


def export(state: Versioned) -> None:
    state.repo.export(BytesIO(), ["main", "side", "v0"])


def import_bundle(state: Versioned) -> None:
    state.repo.import_bundle(BytesIO(_bundle[0]))


_bundle: list[bytes] = []


def make_a_bundle(state: Versioned) -> None:
    """Change a copy of the store: a branch moves ahead, and a branch and a tag are new."""
    copy = Memory()
    copy.set_many(dict(state.store.items()))
    ahead = Versioned(copy)
    ahead["new"] = BLOB + b"new"
    ahead.commit("two")
    ahead.tag("v2")
    ahead.create_branch("other", "v0")
    file = BytesIO()
    ahead.repo.export(file, ["main", "other", "v2"])
    _bundle[:] = [file.getvalue()]


_elsewhere: dict[
    str, Mapping[str, bytes]
] = {}  # by the tagged commit, because each prepared store has made its own


def go_on_elsewhere(state: Versioned) -> None:
    """A copy of the store with a branch that is ahead, and a new branch and a new tag."""
    copy = Memory()
    copy.set_many(dict(state.store.items()))
    ahead = Versioned(copy)
    ahead["new"] = BLOB + b"new"
    ahead.commit("two")
    ahead["new"] = BLOB + b"newer"
    ahead.commit("three")
    ahead.tag("v2")
    ahead.create_branch("other", "v0")
    _elsewhere[state.tags()["v0"].id] = dict(copy.items())


def go_on_here(state: Versioned) -> None:
    """A copy of the store from before a commit."""
    _elsewhere[state.tags()["v0"].id] = dict(state.store.items())
    edit(state)
    state.commit("two")


def elsewhere(state: Versioned) -> Memory:
    """The copy from before the commit."""
    copy = Memory()
    copy.set_many(_elsewhere[state.tags()["v0"].id])
    return copy


def be_pushed_to(state: Versioned) -> None:
    Repository(elsewhere(state)).push(state.store, ["main", "other"], tags=True)


def gc(state: Versioned) -> None:
    state.repo.gc(keep_reflog="0s", grace="0s")


def gc_that_keeps_garbage(state: Versioned) -> None:
    state.repo.gc(keep_reflog="0s", grace="1h")


def shallow_gc(state: Versioned) -> None:
    state.repo.gc(keep_reflog="0s", grace="0s", branch="main", keep_last=1)


def thinning_gc(state: Versioned) -> None:
    state.repo.gc(keep_reflog="0s", grace="0s")


def make_gap(state: Versioned) -> None:
    """The newest commit stays, and the oldest, which has a tag."""
    *_, first = state.log()
    for number in range(3):
        state["gap"] = BLOB + str(number).encode()
        state.commit()
    state.tag("first", first)
    state.repo.keep("main", weekly=1)
    state.delete_branch("side")


def make_garbage(state: Versioned) -> None:
    junk = state.fork("junk")
    junk["junk"] = BLOB + b"junk"
    junk.commit("junk")
    state.delete_branch("junk")


def make_an_idle_branch(state: Versioned) -> None:
    make_garbage(state)
    state.create_branch("idle", "v0")
    state.repo.keep("idle", idle=timedelta(microseconds=1))


OPERATIONS: dict[str, Operation] = {
    "commit": Operation(commit),
    "first commit": Operation(first_commit),
    "commit beside another": Operation(commit_beside_another, steps=2),
    "rollback": Operation(rollback),
    "rollback with changes": Operation(rollback_with_changes, steps=2),
    "reset": Operation(lambda state: state.reset("HEAD~1")),
    "merge": Operation(merge),
    "merge by policies": Operation(merge_by_policies, prepare=diverge),
    "fast forward": Operation(fast_forward, prepare=go_ahead),
    "cherry-pick": Operation(lambda state: state.cherry_pick("side")),
    "revert": Operation(lambda state: state.revert("HEAD")),
    "update": Operation(update),
    "undo": Operation(undo),
    "redo": Operation(redo, prepare=undo),
    "set a policy": Operation(lambda state: state.set_policy("list", "append"), steps=0),
    "fsck": Operation(fsck, steps=0, writes=False),
    "fsck that repairs": Operation(repair, steps=3, prepare=damage, keeps=False, mends=True),
    "create a branch": Operation(lambda state: state.create_branch("made", "v0")),
    "delete a branch": Operation(lambda state: state.delete_branch("side")),
    "forget a branch": Operation(lambda state: state.delete_branch("side", forget=True), keeps=False),
    "squash": Operation(lambda state: state.repo.squash("main")),
    "rename a branch": Operation(lambda state: state.repo.rename_branch("side", "renamed"), steps=2),
    "rename the branch of HEAD": Operation(lambda state: state.repo.rename_branch("main", "master"), steps=3),
    "fork": Operation(lambda state: state.fork("forked")),
    "switch": Operation(lambda state: state.switch("side")),
    "switch to a new branch": Operation(lambda state: state.switch("made", create=True), steps=2),
    "create a tag": Operation(lambda state: state.tag("v1")),
    "delete a tag": Operation(lambda state: state.delete_tag("v0")),
    "checkout a branch": Operation(lambda state: state.repo.checkout("side")),
    "checkout a commit": Operation(lambda state: state.repo.checkout("v0")),
    "export": Operation(export, steps=0, writes=False),
    "import": Operation(import_bundle, steps=3, prepare=make_a_bundle),
    "be pushed to": Operation(be_pushed_to, steps=3, prepare=go_on_elsewhere),
    "push": Operation(lambda state: state.push(elsewhere(state)), steps=0, prepare=go_on_here, writes=False),
    "fetch": Operation(
        lambda state: state.repo.fetch(elsewhere(state), remote="other"), steps=3, prepare=go_on_elsewhere
    ),
    "pull": Operation(lambda state: state.pull(elsewhere(state)), prepare=go_on_elsewhere),
    "gc": Operation(gc, steps=0, prepare=make_garbage, keeps=False, cleans=True),
    "gc with grace": Operation(gc_that_keeps_garbage, steps=0, prepare=make_garbage, keeps=False),
    "gc of an idle branch": Operation(gc, prepare=make_an_idle_branch, keeps=False, cleans=True),
    "thinning gc": Operation(thinning_gc, prepare=make_gap, keeps=False, cleans=True),
    "shallow gc": Operation(shallow_gc, prepare=make_garbage, keeps=False, cleans=True),
}


def _fill(state: Versioned) -> None:
    state["list"], state["gone"], state["blob"] = [0], [1], BLOB
    state.commit("zero")
    state.tag("v0")
    side = state.fork("side")
    side["side"] = {"of": "side"}
    side.commit("side")
    state["list"].append(1)
    state.commit("one")


@cache
def _prepared(name: str) -> Mapping[str, bytes]:
    store = Memory()
    if name != "first commit":
        state = Versioned(store)
        _fill(state)
        prepare = OPERATIONS[name].prepare
        if prepare is not None:
            prepare(state)
    return dict(store.items())


def prepared(name: str) -> Memory:
    """A new store, prepared for the operation of this name."""
    store = Memory()
    store.set_many(_prepared(name))
    return store


def picture(store: KVStore) -> Picture:
    """The view that a program has of the store; equal for stores with the same histories."""
    repo = Repository(store)
    head = repo.refs.head()
    refs = repo.refs.all()
    seen: Picture = {HEAD: head.branch}
    for ref, oid in refs.items():
        try:
            log = [(_without_ids(commit.message), commit.root) for commit in repo.history.ancestors(oid)]
            seen[ref] = (log, dict(Versioned(store).checkout(repo.objects.commit(oid))))
        except CorruptObject as error:
            seen[ref] = error.id
    assert all(ref == HEAD or ref.startswith((HEADS, TAGS, REMOTES)) for ref in refs)
    return seen


def _without_ids(message: str) -> str:
    # The id of a commit depends on its time.
    return re.sub(r"\b[0-9a-f]{10}\b", "ID", message)
