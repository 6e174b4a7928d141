"""Kill a process at the steps by which it moves the files of a workspace: `python workspace_kills.py VERB
ROUNDS SEED DIRECTORY`.

A step is a COMMIT of the store, or a call that changes files, such as a rename, which Python tells its audit
hooks. A child dies of SIGKILL before its n-th step, for each n; of some verbs, outside a soak, for each third
n. Then every file is as before or as after the move, or as the edit that was there; the next Workspace has
the files where the branch is, and every edit. It prints the number of kills as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from folders import found_in, put
from soak import sized

from vstate import Disk, File, Versioned, Workspace

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.utime", "os.chmod")

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
"""The flags of an open that may change a file. After a kill before a read, the files are as before the next
change.
"""

VERBS: dict[str, Callable[[Versioned], object]] = {
    "switch": lambda state: state.switch("side"),
    "rollback": lambda state: state.rollback("side"),
    "reset": lambda state: state.reset("side"),
    "merge": lambda state: state.merge("ahead"),
    "commit": lambda state: state.commit("edits"),
}


SOME = {"rollback": (3, 0), "reset": (3, 1), "merge": (3, 2)}
"""Of these, every third step, and the first: they move files as `switch` does."""


def make(place: Path, rng: random.Random) -> None:
    """A store with two commits whose files differ in every way, and its workspace at the first."""
    state = Versioned(Disk(place / "store"))
    Workspace(state, place / "files")
    first = {f"d{n}/f{n}": rng.randbytes(rng.choice((0, 10, 5000))) for n in range(6)}
    put(place / "files", first | {"gone/a": b"a", "was/dir": b"d", "is": b"file", "l": File(b"x", "link")})
    state.commit("first")
    state.create_branch("side")
    state.switch("side")
    put(place / "files", {f"d{n}/f{n}": rng.randbytes(5000) for n in range(0, 6, 2)})
    put(
        place / "files", {"gone/a": None, "was/dir": None, "is": None, "l": File(b"now a file", "executable")}
    )
    os.rmdir(place / "files" / "was")
    put(place / "files", {"was": b"now a file", "is/dir": b"d", "n/e/w": File(b"../..", "link")})
    state.commit("second")
    state.create_branch("ahead")
    state.switch("main")
    state.switch("third", create=True)
    put(place / "files", {f"d{n}/f{n}": rng.randbytes(100) for n in range(0, 6, 2)})
    put(place / "files", {"l": None, "gone/a": b"A"})
    state.commit("third")
    state.switch("main")
    state.close()


class Told(Disk):
    """A Disk that tells each of its COMMITs."""

    committing: Callable[[], None] = staticmethod(lambda: None)

    def _open(self, handle: Any) -> sqlite3.Connection:
        connection = super()._open(handle)
        connection.set_trace_callback(lambda statement: self.committing() if statement == "COMMIT" else None)
        return connection


def act(place: Path, verb: str, step: int) -> None:
    """Do the verb, and die before this step."""
    disk = Told(place / "store")
    state = Versioned(disk)
    Workspace(state, place / "files")
    if verb == "commit":
        put(place / "files", {"d0/f0": b"edit", "new/file": b"n", "gone/a": None})
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & WRITING):
            count()

    sys.addaudithook(hook)
    disk.committing = count
    VERBS[verb](state)
    os._exit(0)


def look(place: Path, verb: str, before: dict[str, File], kill: int) -> None:
    """Check the directory that a kill left, and what the next Workspace makes of it."""
    now = found_in(place / "files")
    edit = kill % 2 == 1
    with Versioned(Disk(place / "store")) as state:
        versions = [before, *(dict(_files(state, branch)) for branch in ("main", "side", "ahead"))]
        if verb == "commit":
            versions.append(before | {"d0/f0": File(b"edit"), "new/file": File(b"n")})
        for path, file in now.items():
            whole = any(version.get(path) == file for version in versions)
            assert whole or ".vstate-new-" in path, f"{path} is neither old nor new"
        edits = {"d1/f1": File(b"edited after the kill")}
        if verb == "commit":
            edits["d0/f0"] = File(b"edited once more")  # the commit has the first edit of it, or not
        if edit:
            put(place / "files", edits)
        elif verb != "commit" and kill % 4 == 0:  # the branch goes on before anybody finishes the move
            state.rollback("third")
        files = Workspace(state, place / "files")
        expected = dict(files.at("HEAD"))
        if verb == "commit":
            for path in ("d0/f0", "new/file", "gone/a"):
                expected.pop(path, None)
                expected |= {path: now[path]} if path in now else {}
        if edit:
            expected |= edits
        assert bool(files.status()) == (expected != dict(files.at("HEAD")))
        assert found_in(place / "files") == expected, "the next call finishes"


def _files(state: Versioned, branch: str) -> dict[str, File]:
    snapshot = state.checkout(branch)
    return {key.removeprefix("files/"): value for key, value in snapshot.items("files/")}


def main(verb: str, rounds: int, seed: int, directory: Path) -> None:
    rng, kills = random.Random(seed), 0
    stride, first = sized(SOME.get(verb, (1, 0)), (1, 0))
    for round in range(rounds):
        made = directory / f"made{round}"
        make(made, rng)
        before = found_in(made / "files")
        step = first
        while True:
            place = directory / "now"
            shutil.copytree(made, place, symlinks=True)
            child = os.fork()
            if child == 0:
                act(place, verb, step)
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert killed or status == 0, f"the child ended with {status}"
            look(place, verb, before, step)
            shutil.rmtree(place)
            kills += killed
            step += stride
            if not killed:
                break
        shutil.rmtree(made)
    print(json.dumps({"kills": kills}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
