"""Small stores made by a program, and the command run on them in this process."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from vstate_cli.app import cli

from vstate import Disk, Versioned


@dataclasses.dataclass
class Plan:
    """A class of the program, which the command never imports."""

    goal: str
    steps: list[str]


class Command:
    """`vstate`, run in this process on one store."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def run(self, *arguments: str, **environment: str) -> Result:
        """The result of `vstate -s STORE ARGUMENTS`, whatever it is."""
        runner = CliRunner(env={"VSTATE_STORE": None, "VSTATE_DEBUG": None, "TZ": "UTC", **environment})
        return runner.invoke(cli, ["-s", str(self.store), *arguments])

    def __call__(self, *arguments: str) -> str:
        """What it prints; it has to succeed, and to say nothing on standard error."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """The document that it prints with --json."""
        return json.loads(self(*arguments, "--json"))

    def fails(self, *arguments: str) -> str:
        """The one line on standard error with which it fails."""
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("vstate: ")
        assert result.stderr.count("\n") == 1
        return result.stderr.removeprefix("vstate: ").rstrip("\n")


OpenCommand = Callable[[Path], Command]


@pytest.fixture(autouse=True)
def _no_store_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have a store or options of their own in the environment."""
    for name in ("VSTATE_STORE", "VSTATE_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of four commits on main, the first of them tagged v1, and a branch what-if made at HEAD~1."""
    directory = tmp_path / "project" / ".vstate"
    with Versioned(Disk(directory, durability="process")) as state:
        state["messages"] = ["hello"]
        state["plan"] = Plan("win", ["look"])
        state["text"] = "one\ntwo\nthree\n"
        state["old"] = None
        state.commit("start", model="small")
        state.tag("v1")
        state["plan"].steps.append("think")
        state["notes/a"] = {"lines": 3}
        state.commit("read", name="read", seconds=0.25, outcome="ok")
        state["messages"].append("bye")
        state["text"] = state["text"].replace("two", "2")
        del state["old"]
        state.record("note", why="tidy")
        state.commit("tidy up\n\nfor good")
        state["notes/b"] = {"lines": 5}
        state.commit("more")
        what_if = state.fork("what-if", "HEAD~1")
        what_if["plan"].goal = "draw"
        what_if.commit("another goal")
    return directory


@pytest.fixture
def vstate(store: Path) -> Command:
    """The command, on that store."""
    return Command(store)


@pytest.fixture
def merged(tmp_path: Path) -> Command:
    """The command, on a store in which two writers got in each other's way: base, theirs, mine, merge."""
    directory = tmp_path / "merged"
    with Versioned(Disk(directory, durability="process")) as first:
        first["k"] = 0
        first.commit("base")
        with Versioned(Disk(directory, durability="process")) as second:
            first["a"] = 1
            first.commit("theirs")
            second["b"] = 2
            second.commit("mine")
    return Command(directory)


@pytest.fixture
def empty(tmp_path: Path) -> Command:
    """The command, on a store without commits."""
    directory = tmp_path / "empty"
    with Disk(directory) as disk:
        disk.set("format", b"1")
    return Command(directory)


def environment(**more: str) -> dict[str, str]:
    """The environment of a real process that can import the command."""
    root = Path(__file__).parents[2]
    places = [str(root), str(root / "cli"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "TZ": "UTC", **more}


@pytest.fixture(name="environment")
def _environment() -> Callable[..., dict[str, str]]:
    return environment
