"""Kill a process at each step of `erase`: `python erasing.py KILLS SEED PLACE`.

PLACE is an empty directory, or the URL of a store. A child erases a key from a copy of a store. It ends by
SIGKILL at one of its SQL statements, or at a random moment, and the script opens the store. All refs of a
room are at the old commits, or all at the new ones; in a store without transactions, each ref is. Every state
is whole. Then either gc runs, or the same call is made again: it leaves no byte of the key's values in any
file. It prints as JSON how many kills found what.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from vstate import BranchChanges, Disk, Event, KVStore, Versioned, open_store
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.repo import Repository

MARKER = "MARKER-of-the-person"
KEY = "users/ann"
COMMITS = 12
LONGEST = 30  # seconds for a child


def fill(store: KVStore) -> None:
    """A store with a merge, a tag, a reset, packs, and a branch in a room of its own."""
    with Versioned(store) as state:
        for number in range(COMMITS):
            state["count"] = number
            state[f"other/{number % 3}"] = {"text": f"text {number}" * 20}
            if number % 3 == 1:
                state[KEY] = {"name": MARKER, "number": number, "long": MARKER * (number * 40)}
            state.commit(f"commit {number}")
        state.tag("before", "HEAD~2")
        side = state.fork("side", "HEAD~4")
        side["side"] = 1
        side.commit("aside")
        state.merge("side")
        state["count"] = 100
        state.commit("taken back")
        state.reset("HEAD~1")
        repo = Repository(store)
        for number in range(4):
            told = Event.now("told", {"about": KEY, "text": MARKER})
            change = BranchChanges("room", set={KEY: [MARKER, number]}, events=[told], room=True)
            repo.commit_many([change])
        repo.gc()


def erase(repo: Repository) -> Any:
    return repo.erase(KEY, all_branches=True, events=True)


class Dying(Disk):
    """A Disk that counts the statements of its connections, and dies at the one of this number."""

    last: int | None = None
    count = 0

    def _open(self, handle: Any) -> sqlite3.Connection:
        connection = super()._open(handle)
        connection.set_trace_callback(self._step)
        return connection

    def _step(self, statement: str) -> None:
        if not statement.startswith("SELECT"):
            Dying.count += 1
            if Dying.count == Dying.last:
                os.kill(os.getpid(), signal.SIGKILL)


def states(repo: Repository, *, logs: bool = True) -> dict[str, dict[str, bytes]]:
    """The state of each commit that the refs, and the reflogs, lead to, by id."""
    starts = list(repo.refs.all().values())
    for key, row in repo.view.items("reflog/") if logs else ():
        starts += [oid for oid in repo.refs.parse_line(key, row).commits if repo.objects.is_stored(oid)]
    return {
        each.id: dict(tree.scan(repo.objects.nodes, each.root)) for each in repo.history.ancestors(*starts)
    }


def refs_of(repo: Repository) -> dict[str, str]:
    return {ref: str(oid) for ref, oid in repo.refs.all().items()}


class Place:
    """Where the copies of the store are: a directory, or a server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = None if "://" in name else Path(name) / "store" / "vstate.db"
        with self.open() as store:
            fill(store)
            self._rows = {} if self._file else dict(store.items())
        self._whole = self._file.read_bytes() if self._file else b""

    def open(self) -> KVStore:
        if self._file is None:
            return open_store(self.name, create=True)
        return Dying(self._file.parent, durability="process")

    def restore(self) -> None:
        """Have the store as it was filled."""
        if self._file is not None:
            shutil.rmtree(self._file.parent)
            self._file.parent.mkdir()
            self._file.write_bytes(self._whole)
            return
        with self.open() as store:
            store.delete_many(list(store.keys()))
            store.set_many(self._rows)

    def require_no_marker(self) -> None:
        if self._file is not None:
            assert not any(MARKER.encode() in path.read_bytes() for path in self._file.parent.glob("*.db*"))

    def child(self, last: int | None) -> int:
        """Start a process that erases; its id."""
        pid = os.fork()
        if pid:
            return pid
        try:
            Dying.last, Dying.count = last, 0
            erase(Repository(self.open()))
        finally:
            os._exit(0)


def check(store: KVStore, before: dict[str, Any], counts: Counter[str], again: bool) -> None:
    """The store is all old or all new, room by room, and the next call, or gc, finishes."""
    repo = Repository(store)
    assert repo.fsck().ok, str(repo.fsck())
    refs, found = refs_of(repo), []
    rooms = [[ref for ref in refs if ref != "heads/room"], ["heads/room"]]
    for names in rooms if store.transactional else [[ref] for ref in refs]:
        now = {ref: refs[ref] for ref in names}
        is_new = now == {ref: before["new"][ref] for ref in names}
        assert is_new or now == {ref: before["old"][ref] for ref in names}, now
        found.append("new" if is_new else "old")
    counts[" and ".join(dict.fromkeys(found) if len(found) > 2 else found)] += 1
    for digits, state in before["states"].items():
        commit = repo.resolve(ObjectId.parse(digits))
        now_there = dict(tree.scan(repo.objects.nodes, commit.root))
        without = {key: entry for key, entry in state.items() if key != KEY}
        assert now_there == (state if commit.id == digits else without)
    if not again:
        repo.gc(grace="0s")
        assert repo.fsck().ok
        if "old" not in found:
            # Without transactions a reflog may still lead to the old commits.
            left = states(Repository(store), logs=store.transactional)
            assert all(KEY not in state for state in left.values())
    report = erase(Repository(store))
    assert not report.traces, report
    assert refs_of(repo) == before["new"]
    assert Repository(store).fsck().ok


def main(kills: int, seed: int, place: Place) -> None:
    chance, counts = random.Random(seed), Counter[str]()
    with place.open() as store:
        repo = Repository(store)
        before: dict[str, Any] = {"states": states(repo), "old": refs_of(repo)}
        Dying.count, began = 0, time.monotonic()
        assert not erase(repo).traces
        steps, took = Dying.count, time.monotonic() - began
        before["new"] = refs_of(Repository(store))
    place.require_no_marker()
    for number in range(kills):
        place.restore()
        at = (
            None
            if number % 3 == 0 or not steps
            else 1 + (number * steps // kills + chance.randrange(3)) % steps
        )
        pid = place.child(at)
        if at is None:
            time.sleep(chance.random() * took)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        counts["killed" if os.WIFSIGNALED(status) else "done before"] += 1
        with place.open() as store:
            check(store, before, counts, again=bool(number % 2))
        place.require_no_marker()
    print(json.dumps(({"steps": steps} if steps else {}) | counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Place(sys.argv[3]))
