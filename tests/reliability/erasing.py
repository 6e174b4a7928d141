"""Kill a process at each step of `erase`: `python erasing.py KILLS SEED DIRECTORY`.

A child erases a key from a copy of a store. It ends by SIGKILL at one of its SQL statements, or at a random
moment, and the script opens the store. All refs of a room are at the old commits, or all at the new ones, and
every state is whole. Then either gc runs, or the same call is made again: it leaves no byte of the key's
values in any file. It prints as JSON how many kills found what.
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

from vstate import BranchChanges, Disk, Event, Versioned
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.repo import Repository

MARKER = "MARKER-of-the-person"
KEY = "users/ann"
COMMITS = 12
LONGEST = 30  # seconds for a child


def fill(path: Path) -> None:
    """A store with a merge, a tag, a reset, packs, and a branch in a room of its own."""
    with Disk(path, durability="process") as disk:
        state = Versioned(disk)
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
        repo = Repository(disk)
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


def states(repo: Repository) -> dict[str, dict[str, bytes]]:
    """The state of each commit that the refs and reflogs lead to, by id."""
    starts = list(repo.refs.all().values())
    for key, row in repo.view.items("reflog/"):
        starts += [oid for oid in repo.refs.parse_line(key, row).commits if repo.objects.is_stored(oid)]
    return {
        each.id: dict(tree.scan(repo.objects.nodes, each.root)) for each in repo.history.ancestors(*starts)
    }


def child(path: Path, last: int | None) -> int:
    """Start a process that erases; its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        Dying.last = last
        erase(Repository(Dying(path, durability="process")))
    finally:
        os._exit(0)


def has_marker(path: Path) -> bool:
    return any(MARKER.encode() in file.read_bytes() for file in path.iterdir() if file.suffix != ".db-shm")


def check(path: Path, before: dict[str, Any], counts: Counter[str], again: bool) -> None:
    """The store is all old or all new, room by room, and the next call, or gc, finishes."""
    with Disk(path, durability="process") as disk:
        repo = Repository(disk)
        assert repo.fsck().ok, str(repo.fsck())
        refs = repo.refs.all()
        found = []
        for names in ([ref for ref in refs if ref != "heads/room"], ["heads/room"]):
            now = {ref: str(refs[ref]) for ref in names}
            is_new = now == {ref: before["new"][ref] for ref in names}
            assert is_new or now == {ref: before["old"][ref] for ref in names}, now
            found.append("new" if is_new else "old")
        counts[" and ".join(found)] += 1
        for digits, state in before["states"].items():
            commit = repo.resolve(ObjectId.parse(digits))
            now_there = dict(tree.scan(repo.objects.nodes, commit.root))
            without = {key: entry for key, entry in state.items() if key != KEY}
            assert now_there == (state if commit.id == digits else without)
        if not again:
            repo.gc(grace="0s")
            assert repo.fsck().ok
            if found == ["new", "new"]:
                assert all(KEY not in state for state in states(Repository(disk)).values())
        report = erase(Repository(disk))
        assert not report.traces, report
        assert {ref: str(oid) for ref, oid in repo.refs.all().items()} == before["new"]
        assert Repository(disk).fsck().ok
    assert not has_marker(path)


def main(kills: int, seed: int, directory: Path) -> None:
    chance, counts = random.Random(seed), Counter[str]()
    whole, path = directory / "whole", directory / "copy"
    fill(whole)
    with Disk(whole) as disk:
        repo = Repository(disk)
        before: dict[str, Any] = {
            "states": states(repo),
            "old": {ref: str(oid) for ref, oid in repo.refs.all().items()},
        }
    shutil.copytree(whole, path)
    began = time.monotonic()
    with Dying(path, durability="process") as dying:
        assert not erase(Repository(dying)).traces
        before["new"] = {ref: str(oid) for ref, oid in Repository(dying).refs.all().items()}
        steps = Dying.count
    took = time.monotonic() - began
    assert not has_marker(path)
    for number in range(kills):
        shutil.rmtree(path)
        shutil.copytree(whole, path)
        Dying.count = 0
        at = 1 + (number * steps // kills + chance.randrange(3)) % steps
        pid = child(path, at if number % 3 else None)
        if not number % 3:
            time.sleep(chance.random() * took)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        counts["killed" if os.WIFSIGNALED(status) else "done before"] += 1
        check(path, before, counts, again=bool(number % 2))
    print(json.dumps({"steps": steps, **counts}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
