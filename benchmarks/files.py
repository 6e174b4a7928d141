"""Files: a directory of 10,000 files that goes with a state, beside git."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from benchmarks.harness import Row, Sides, Target, seconds, workload
from vstate import Versioned, Workspace

FIRST = "first commit of 10,000 files of 4 KB"
SAME = "a commit of 10,000 files of which none changed, and `git status`"
ONE = "a commit of 10,000 files of which one changed"
SWITCH = "switch to a branch with other contents of 1,000 files"
BYTES = "bytes of the store after gc, 10,000 files and 1,000 changes"

FILES, DIRECTORIES, LENGTH, CHANGED = 10_000, 100, 4096, 1_000
_GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "gc.auto=0")


def fill(place: Path) -> None:
    """Write the files: words, lines and numbers, as sources and notes have them."""
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]
    for number in range(FILES):
        file = path_of(place, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(rng.choice(words) + rng.choice("       \n") for _ in range(LENGTH // 5))
        file.write_text(text[:LENGTH])


def path_of(place: Path, number: int) -> Path:
    return place / f"d{number % DIRECTORIES:02}" / f"f{number:05}.txt"


def edit(place: Path, first: int, last: int) -> None:
    for number in range(first, last):
        with path_of(place, number).open("a") as file:
            file.write("one more line\n")


def git(place: Path, *command: str) -> None:
    subprocess.run([*_GIT, *command], cwd=place, check=True, capture_output=True)


def on_vstate(place: Path, store: Path) -> dict[str, float]:
    with Versioned(store) as state:
        Workspace(state, place)
        found = {FIRST: seconds(state.commit, "first")}
        found[SAME] = min(seconds(state.commit, "nothing") for _ in range(5))
        edit(place, 5000, 5001)
        found[ONE] = seconds(state.commit, "one")
        state.switch("side", create=True)
        edit(place, 0, CHANGED)
        state.commit("side")
        found[SWITCH] = min(seconds(state.switch, "main"), seconds(state.switch, "side"))
        state.repo.gc()
        found[BYTES] = float(state.store.size() or 0)
    return found


def on_git(place: Path) -> dict[str, float]:
    git(place, "init", "--quiet", "--initial-branch=main")
    found = {FIRST: seconds(git, place, "add", ".") + seconds(git, place, "commit", "--quiet", "-m", "first")}
    found[SAME] = min(seconds(git, place, "status") for _ in range(5))
    edit(place, 5000, 5001)
    found[ONE] = seconds(git, place, "commit", "--quiet", "-am", "one")
    git(place, "checkout", "--quiet", "-b", "side")
    edit(place, 0, CHANGED)
    git(place, "commit", "--quiet", "-am", "side")
    switches = [seconds(git, place, "checkout", "--quiet", branch) for branch in ("main", "side")]
    found[SWITCH] = min(switches)
    git(place, "gc", "--quiet")
    found[BYTES] = float(sum(file.stat().st_size for file in (place / ".git").rglob("*") if file.is_file()))
    return found


@workload(
    Row(FIRST, "seconds", (Target(1.5, side="git"),)),
    Row(SAME, "seconds", (Target(1.5, side="git"),)),
    Row(ONE, "seconds", (Target(1.2, side="git"),)),
    Row(SWITCH, "seconds", (Target(1.5, side="git"),)),
    Row(BYTES, "bytes", (Target(1.2, side="git"),)),
    rounds=2,
)
def files_beside_git(scratch: Path) -> Iterator[Sides]:
    fill(scratch / "files")
    turns = count()

    def fresh(side: str) -> Path:
        """A new copy of the files; the ones before are deleted, so the disk does not fill."""
        shutil.rmtree(scratch / side, ignore_errors=True)
        place = scratch / side / str(next(turns))
        shutil.copytree(scratch / "files", place / "files")
        return place

    def once_on_vstate() -> dict[str, float]:
        place = fresh("vstate")
        return on_vstate(place / "files", place / "store")

    yield {"vstate": once_on_vstate, "git": lambda: on_git(fresh("git") / "files")}
