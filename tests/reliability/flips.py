"""Damage a store's file, one byte at a time: `python flips.py FILE FIRST STEP MASK EVERY DIRECTORY`.

FILE is vstate.db or vstate.db-wal. From byte FIRST on, the script takes every STEP-th byte, inverts the bits
of MASK in this byte of a copy of a small store, and reads the whole store. If the values differ, it also runs
fsck. It prints as JSON the number of bytes with each outcome:

- read: reading raised an error of vstate;
- fsck: a value was missing or different, or other data was damaged, and fsck reports this;
- harmless: all values are there and right, because SQLite does not use the byte;
- older: all values are right but the newest commits are missing, and nothing reports this;
- unnoticed: the store holds something else than before, and nothing reports this;
- wrong: a commit has a wrong value; crashed: the process died or raised another error; hung.

After every EVERY-th of these bytes fsck repairs the store:

- refused: the store cannot be opened;
- silent: reading raised an error or returned other values, and fsck found no damage;
- mended: the store has no damage any more; left: it has some, and the report says so;
- wrong, crashed: as above, by the values of the commits after the repair, key by key.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from running import Fork, run_forked

from vstate import Disk, Versioned
from vstate.errors import KeyNotFound, VStateError
from vstate.repo import Repository

SECONDS = 20
BATCH = 500

Contents = dict[str, Any]

left_open: list[Disk] = []
"""A store that a process leaves open at its end."""


def fill(directory: Path) -> None:
    """A few commits on two branches and a tag, with objects of every kind."""
    with Disk(directory, durability="process") as disk:
        state = Versioned(disk)
        state["list"], state["bytes"], state["text"] = [0], bytes(range(200)), "text " * 50
        state["noise"] = bytes(i * i % 251 for i in range(17_000))
        state.commit("zero", author="a")
        state.tag("v0")
        state["list"].append(1)
        state["more"] = {"a": (1, 2.5, None)}
        state.commit("one")
        side = state.fork("side")
        side["list"].append(2)
        side.commit("two")
        state.switch("side")
        state.switch("main")
        state.set_policy("list", "append")
        state.repo.gc(branch="side", keep_last=2)


def contents(disk: Disk) -> Contents:
    """All that can be read: values by commit, refs with their histories, reflogs and policies."""
    repo = Repository(disk)
    values: dict[str, Any] = {}
    refs: dict[str, Any] = {"HEAD": repo.refs.head().branch}
    for ref, oid in repo.refs.all().items():
        refs[ref] = [str(commit.oid) for commit in repo.history.ancestors(oid)]
        for commit in repo.history.ancestors(oid):
            if str(commit.oid) not in values:
                snapshot = Versioned(disk, branch="main").checkout(commit)
                values[str(commit.oid)] = (dict(snapshot), commit.message, commit.info, commit.time)
    logs = {
        ref: [(line.old, line.new, line.time, line.action) for line in repo.refs.reflog(ref)]
        for ref in ("heads/main", "heads/side", "tags/v0", "HEAD")
    }
    policies = {branch: repo.policies.read(branch) for branch in ("main", "side")}
    return {"values": values, "refs": refs, "logs": logs, "policies": policies}


def outcome(directory: Path, expected: Contents) -> str:
    """The outcome of reading the store in this directory."""
    try:
        with Disk(directory, create=False, timeout=2) as disk:
            found = contents(disk)
            if found == expected:
                return "harmless"
            if any(value != expected["values"].get(commit) for commit, value in found["values"].items()):
                return "wrong"
            if not Repository(disk).fsck().ok:
                return "fsck"
    except VStateError:
        return "read"
    history, left = expected["refs"]["heads/main"], found["refs"].get("heads/main", [])
    return "older" if left == history[len(history) - len(left) :] else "unnoticed"


def repaired(directory: Path, expected: Contents, found: str) -> str:
    """The outcome of repairing the store in this directory."""
    try:
        disk = Disk(directory, create=False, timeout=2)
        repo = Repository(disk)
    except VStateError:
        return "refused"
    with disk:
        report = repo.fsck(repair=True)
        if found in ("read", "fsck") and not report.damaged:
            return "silent"
        for commit, (values, message, info, time) in expected["values"].items():
            try:
                read = repo.resolve(commit)
                snapshot = Versioned(disk, branch="main").checkout(read)
            except VStateError:
                continue
            if (read.message, read.info, read.time) != (message, info, time):
                return "wrong"
            for key, value in values.items():
                try:
                    if snapshot[key] != value:
                        return "wrong"
                except KeyNotFound:
                    return "wrong"
                except VStateError:
                    continue
        return "mended" if report.ok else "left"


def batch(offsets: Iterable[int], original: Path, file: str, mask: int, every: int, directory: Path) -> None:
    """Damage these bytes in turn, and print a line for each."""
    stored = {path.name: path.read_bytes() for path in original.iterdir() if path.suffix != ".lock"}
    stored.pop("vstate.db-shm", None)
    lay_out(stored, directory)
    with Disk(directory, create=False) as disk:
        expected = contents(disk)
    for offset in offsets:
        whole = stored[file]
        flipped = whole[:offset] + bytes([whole[offset] ^ mask]) + whole[offset + 1 :]
        lay_out({**stored, file: flipped}, directory)
        signal.alarm(SECONDS)
        after = ""
        try:
            found = outcome(directory, expected)
            # so the repaired bytes lie at different places of SQLite's words
            if offset // every % every == offset % every:
                lay_out({**stored, file: flipped}, directory)
                after = repaired(directory, expected, found)
        except Exception as error:
            found = f"crashed: {type(error).__name__}: {error}"
        signal.alarm(0)
        print(offset, found, after, sep="\t")


def lay_out(files: Mapping[str, bytes], directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)


def run(file: str, first: int, step: int, mask: int, every: int, directory: Path) -> dict[str, object]:
    original, damaged = directory / "original", directory / "damaged"
    damaged.mkdir()
    prepare(original, with_log=file.endswith("-wal"))
    size = (original / file).stat().st_size
    todo = list(range(first, size, step))
    outcomes: dict[str, list[int]] = defaultdict(list)
    repairs: dict[str, list[int]] = defaultdict(list)
    while todo:
        part, todo = todo[:BATCH], todo[BATCH:]
        child = Fork(partial(batch, part, original, file, mask, every, damaged))
        for line in child.output:
            offset, found, after = line.rstrip("\n").split("\t")
            outcomes[found].append(int(offset))
            if after:
                repairs[after].append(int(offset))
            part.remove(int(offset))
        status, _ = child.end()
        if status:
            name = "hung" if status == -signal.SIGALRM else f"crashed: status {status}"
            outcomes[name].append(part[0])
            todo = part[1:] + todo
    return {
        "bytes": size,
        "flipped": sum(map(len, outcomes.values())),
        "outcomes": {name: len(offsets) for name, offsets in outcomes.items()},
        "repairs": {name: len(offsets) for name, offsets in repairs.items()},
        "first": {name: offsets[:20] for name, offsets in (outcomes | repairs).items()},
    }


def prepare(directory: Path, *, with_log: bool) -> None:
    """Make the store in one file, or leave its commits in the log, as a killed process does."""

    def work() -> None:
        fill(directory)
        if with_log:
            left_open.append(Disk(directory, durability="process"))
            state = Versioned(left_open[0])
            for number in range(3):
                state["list"].append(number)
                state.commit(f"in the log {number}")

    run_forked(work)


if __name__ == "__main__":
    name, *numbers, place = sys.argv[1:]
    start, stride, bits, each = map(int, numbers)
    print(json.dumps(run(name, start, stride, bits, each, Path(place))))
