"""Small stores, and a fixture that runs the command on them in this process."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stores
import transcripts
from click.testing import CliRunner, Result
from vstate_cli.app import cli

from vstate import Disk, Versioned
from vstate.repo import Repository


class Command:
    """Runs `vstate` on one store, in this process."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def run(self, *arguments: str, **environment: str) -> Result:
        """The result of `vstate -s STORE ARGUMENTS`, success or error."""
        runner = CliRunner(env={"VSTATE_STORE": None, "VSTATE_DEBUG": None, "TZ": "UTC", **environment})
        return runner.invoke(cli, ["-s", str(self.store), *arguments])

    def __call__(self, *arguments: str) -> str:
        """The output of a run that succeeds and writes nothing to standard error."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """The document that a run with --json prints."""
        return json.loads(self(*arguments, "--json"))

    def fails(self, *arguments: str) -> str:
        """The one line on standard error of a run that fails."""
        result = self.run(*arguments)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("vstate: ")
        assert result.stderr.count("\n") == 1
        return result.stderr.removeprefix("vstate: ").rstrip("\n")


OpenCommand = Callable[[Path], Command]


@pytest.fixture(autouse=True)
def _no_store_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove settings of the developer's environment that change the command."""
    for name in ("VSTATE_STORE", "VSTATE_DEBUG", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "PAGER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VSTATE_PAGER", "cat")


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / ".vstate"
    with Versioned(Disk(directory, durability="process")) as state:
        state["messages"] = ["hello"]
        state["plan"] = stores.Plan("win", ["look"])
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
def store(made_store: Path, tmp_path: Path) -> Path:
    """A store of four commits on main, the first of them tagged v1, and a branch what-if made at HEAD~1."""
    directory = tmp_path / "project" / ".vstate"
    shutil.copytree(made_store, directory)
    return directory


@pytest.fixture
def vstate(store: Path) -> Command:
    """The command, on that store."""
    return Command(store)


@pytest.fixture
def rows(vstate: Command, store: Path, tmp_path: Path) -> Callable[..., None]:
    """Runs rows of commands, as `transcripts` describes them, on that store or by another command."""
    names: dict[str, object] = {"store": store, "STORE": store, "TMP": tmp_path, "vstate": vstate}
    names |= {"Disk": Disk, "Versioned": Versioned, "Repository": Repository} | vars(stores)

    def check(text: str, command: Command = vstate, **more: object) -> None:
        transcripts.check(command, text, **{**names, **more})

    return check


@pytest.fixture
def merged(tmp_path: Path) -> Command:
    """The command, on a store with a merge of two writers: base, theirs, mine, merge."""
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
        disk.set("format", b"vstate 1")
    return Command(directory)


def environment(**more: str) -> dict[str, str]:
    """The environment of a real process that can import the command."""
    root = Path(__file__).parents[2]
    places = [str(root), str(root / "cli"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "TZ": "UTC", **more}


_WITHOUT_UNPICKLING = """
import os, pickle, _pickle
import vstate.values.inert  # it reads with a subclass of Python's unpickler, which finds and calls nothing
class Abort:
    dispatch = pickle._Unpickler.dispatch  # a subclass copies it
    def __init__(self, *arguments, **options):
        os.write(2, b"unpickled!")
        os._exit(99)
for module in (pickle, _pickle):
    for name in ("loads", "load", "_loads", "_load", "Unpickler", "_Unpickler"):
        if hasattr(module, name):
            setattr(module, name, Abort)
from click.testing import CliRunner
from vstate_cli.app import cli
for arguments in {commands!r}:
    result = CliRunner().invoke(cli, ["-s", {store!r}, *arguments])
    assert result.exit_code == 0, (arguments, result.output)
    assert result.stdout or arguments[0] == "tag", arguments
    assert "\\x1b" not in result.stdout, arguments
print("fine")
"""


@pytest.fixture
def run_without_unpickling(store: Path) -> Callable[[list[list[str]]], None]:
    """Runs commands that succeed, in a process in which any unpickling ends the process."""

    def run(commands: list[list[str]]) -> None:
        script = _WITHOUT_UNPICKLING.format(commands=commands, store=str(store))
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=200
        )
        assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr

    return run


@pytest.fixture(name="environment")
def _environment() -> Callable[..., dict[str, str]]:
    return environment
