"""A path that begins with `~` is in the home directory, wherever a program or the command takes a path."""

from __future__ import annotations

import json
import shelve
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from vstate_cli.app import cli

from vstate import Cache, Disk, KVStore, Memory, Versioned, open_store
from vstate.integrations.opening import Opening
from vstate.kv.encrypted import Encrypted, generate_key, save_key
from vstate.managers import FileBackend
from vstate.repo.clone import clone
from vstate.repo.exchange.intake import json_files, shelve_file
from vstate.repo.repository import Repository
from vstate.sessions import JSONSession


def command(*arguments: str) -> None:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output


def used(store: KVStore) -> None:
    """Have something in the store, so a cache in front of it makes its directory."""
    repo = Repository(store)
    repo.commit("main", set={"a": 1})
    store.close()


def encrypted(_: Path) -> None:
    save_key("~/there", generate_key())
    Encrypted(Memory(), "~/there").close()
    command("key", "show", "~/there")


def bundle(_: Path) -> None:
    repo = Repository(Memory())
    repo.commit("main", set={"a": 1})
    repo.export("~/there", ["main"])
    Repository(Memory()).import_bundle("~/there")


def sources(home: Path) -> None:
    (home / "there").mkdir()
    (home / "there" / "a.json").write_text(json.dumps(1))
    with shelve.open(str(home / "there" / "shelf")) as shelf:
        shelf["a"] = 1
    assert [key for key, _ in json_files("~/there")] == ["a"]
    assert [key for key, _ in shelve_file("~/there/shelf")] == ["a"]


USES: dict[str, Callable[[Path], object]] = {
    "Disk": lambda home: Disk("~/there").close(),
    "Disk, a Path": lambda home: Disk(Path("~/there")).close(),
    "Versioned": lambda home: Versioned("~/there").close(),
    "open_store": lambda home: open_store("~/there").close(),
    "a URL": lambda home: open_store("disk:~/there").close(),
    "a cache": lambda home: used(Cache(Memory(), directory="~/there")),
    "a URL of a cache": lambda home: used(open_store("cache:memory:?directory=~/there")),
    "a clone": lambda home: clone(Memory(), "~/there"),
    "an adapter": lambda home: Opening("~/there").close(),
    "a backend": lambda home: FileBackend("~/there"),
    "sessions": lambda home: (home / "there").mkdir() or JSONSession("s", "~/there").save_dir,
    "a key": encrypted,
    "a bundle": bundle,
    "sources": sources,
}


@pytest.mark.parametrize("use", USES)
def test_a_path_at_home(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is made at home, and no directory named `~` is made where the program runs."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    USES[use](home)
    assert list(here.iterdir()) == []
    assert (home / "there").exists()
