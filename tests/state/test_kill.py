"""SIGKILL in the middle of commits: every acknowledged commit is there, and whole."""

from __future__ import annotations

import os
import random
import select
import signal
from pathlib import Path

import pytest
from soak import SOAK

from vstate import Disk, Versioned

KILLS = 200 if SOAK else 60

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def commit_for_ever(directory: Path, pipe: int) -> None:
    """Commit in a loop, and write each number to the pipe once its commit is acknowledged."""
    with Versioned(Disk(directory, durability="process")) as state:
        number = state.get("number", 0)
        while True:
            number += 1
            state["number"] = number
            state.setdefault("list", []).append(number)
            state[f"keys/{number % 50}"] = {"number": number, "text": "x" * (number % 7 * 3000)}
            state["log"] = state.get("log", "")[-20_000:] + f" {number}" * 50
            state.commit(f"{number}")
            os.write(pipe, b"%d\n" % number)


def verify(directory: Path) -> int:
    """Read every value of the newest state, and that all agree; the number of its commit."""
    with Disk(directory, durability="process") as disk:
        state = Versioned(disk)
        values = dict(state)
        number = values.get("number", 0)
        assert values.get("list", []) == list(range(1, number + 1))
        for key, value in values.items():
            if key.startswith("keys/"):
                last = value["number"]
                assert number - 50 < last <= number
                assert value["text"] == "x" * (last % 7 * 3000)
        if number:
            assert values["log"].endswith(f" {number}" * 50)
            assert state.head is not None
            assert state.head.message == str(number)
    return number


@pytest.mark.slow
def test_many_kills(tmp_path: Path) -> None:
    """A process killed at a random moment of its commits, 200 times, loses no acknowledged commit."""
    directory = tmp_path / "store"
    chance = random.Random(7)
    acknowledged = 0
    verify(directory)
    for kill in range(KILLS):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                commit_for_ever(directory, writing)
            finally:
                os._exit(1)
        os.close(writing)
        # Make some commits first, then kill at a random moment of the next ones.
        wanted, heard = chance.randrange(0, 4), b""
        while heard.count(b"\n") < wanted:
            part = os.read(reading, 4096)
            assert part, "the child ended by itself"
            heard += part
        select.select([], [], [], chance.uniform(0, 0.012))
        os.kill(child, signal.SIGKILL)
        while part := os.read(reading, 4096):
            heard += part
        os.close(reading)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        whole = heard[: heard.rfind(b"\n") + 1].split()
        acknowledged = int(whole[-1]) if whole else acknowledged
        found = verify(directory)
        assert acknowledged <= found <= acknowledged + 1, f"after kill {kill}"
        acknowledged = found
    assert acknowledged > KILLS
    with Versioned(Disk(directory)) as state:
        numbers = [int(commit.message) for commit in state.log()]
        assert numbers == list(range(acknowledged, 0, -1))
        for commit in list(state.log())[::37]:
            assert state.checkout(commit)["list"] == list(range(1, int(commit.message) + 1))
