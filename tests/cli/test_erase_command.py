"""`vstate erase` prints the keys and commits to erase, asks, and erases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vstate import Disk, Event, SigningKey, Versioned
from vstate.repo import Repository

MARKER = "MARKER-of-ann"


class Priced:
    """A class of the values."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with a person's values on two branches."""
    with Disk(tmp_path / "store") as disk:
        state = Versioned(disk)
        for number in range(3):
            state["users/ann"] = {"name": MARKER, "n": number}
            state["users/ben"] = {"name": "ben", "n": number}
            state["object"] = [Priced(), number]
            state.commit(f"commit {number}")
        state.create_branch("other")
        Repository(disk).commit("main", set={"x": 1}, events=[Event.now("told", {"about": "users/ann"})])
    return tmp_path / "store"


@pytest.fixture
def vstate(empty: Any, place: Path) -> Any:
    """The command on that store."""
    return type(empty)(place)


def has_marker(place: Path) -> bool:
    return any(MARKER.encode() in file.read_bytes() for file in place.iterdir())


def test_a_dry_run_says_what_goes(vstate: Any, place: Path) -> None:
    """A dry run prints versions, bytes, commits, refs and who keeps the old commits, and changes nothing."""
    said = vstate("erase", "users/ann", "--dry-run")
    assert "would erase 3 versions" in said
    assert "would make 4 commits anew, and move heads/main" in said
    assert "still in other: name these branches too, or erase from all branches" in said
    assert "not erased: the copies in clones" in said
    assert has_marker(place)
    assert "no commit has anything of this to erase" in vstate("erase", "nothing", "--dry-run")


def test_it_refuses_without_yes(vstate: Any, place: Path) -> None:
    """Without a terminal the command needs --yes. It refuses options that exclude each other."""
    for arguments, said in ((["users/ann"], "give --yes"), (["--yes"], "Name the keys")):
        result = vstate.run("erase", *arguments)
        assert result.exit_code == 2
        assert said in result.output
    assert "all_branches" in vstate.fails("erase", "users/ann", "-b", "main", "--all-branches", "--yes")
    assert has_marker(place)


def test_it_erases(vstate: Any, place: Path) -> None:
    """With --yes the command removes the key and its events from all branches, and from the file."""
    old = vstate("log", "--oneline", "-n", "1").split()[0]
    said = vstate("erase", "users/ann", "--all-branches", "--events", "--yes")
    assert "erased 3 versions" in said
    assert "erased 1 event" in said
    assert said.rstrip().endswith("found none")
    assert not has_marker(place)
    assert "users/ann" not in vstate("ls")
    assert old not in vstate("log", "--oneline")
    assert "x" in vstate("ls", old)
    assert "nothing is damaged" in vstate("fsck")


def test_parts_conditions_and_branches(vstate: Any) -> None:
    """A part, the values of a condition, one branch of two: each alone is erased. A class is refused."""
    done = vstate.json("erase", "users/ann", "--path", "name", "--branch", "other", "--yes")
    assert (done["versions"], done["kept_by"]) == (3, ["main"])
    assert vstate.json("show", "other", "users/ann")["value"] == {"n": 2}
    done = vstate.json("erase", "--where", "value.n == `1`", "--yes")
    assert done["keys"] == ["users/ann", "users/ben"]
    said = vstate.fails("erase", "object", "--path", "[1]", "--yes")
    assert "state.erase('object', edit=function)" in said


def test_signed_again(vstate: Any, place: Path, tmp_path: Path) -> None:
    """With --sign the new commits are signed where the old ones were; without it they are unsigned."""
    key = SigningKey.generate()
    key.save(tmp_path / "key.pem")
    with Disk(place) as disk:
        state = Versioned(disk, sign=key)
        state["signed"] = 1
        state.commit("signed")
    done = vstate.json("erase", "users/ann", "--yes", "--sign", str(tmp_path / "key.pem"))
    assert (done["signed"], done["unsigned"]) == (1, 0)
    assert vstate.json("verify")["signers"] == {str(key.public): 1}
    assert vstate.json("erase", "users/ben", "--yes")["unsigned"] == 1
    assert vstate.json("verify")["signers"] == {}


def test_nothing_to_erase_asks_nobody(vstate: Any) -> None:
    """Without a terminal to ask, only what would be erased needs --yes."""
    assert vstate.run("erase", "absent").exit_code == 0
    assert "--yes" in vstate.run("erase", "users/ann").stderr


@pytest.mark.slow
@pytest.mark.parametrize("word", ["erase", "yes"])
def test_a_person_confirms(place: Path, word: str) -> None:
    """At a terminal the command prints the plan, and erases only after the person typed the word."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "vstate_cli",
        "-s",
        str(place),
        "erase",
        "users/ann",
        "--all-branches",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "cli")])}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    os.close(theirs)
    os.write(ours, f"{word}\n".encode())
    out, err = process.communicate(timeout=100)
    os.close(ours)
    assert "would erase 3 versions" in err
    assert "Type erase to go on" in err
    assert (process.returncode == 0) is (word == "erase")
    assert has_marker(place) is (word != "erase")
    assert not out if word == "yes" else json.loads(out)["versions"] == 3
