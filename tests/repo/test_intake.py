"""Intake: shelve files and JSON files become commits, without loading a value."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import pickle
import shelve
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bundle_files import save

from vstate import CorruptObject, Memory, Versioned
from vstate.errors import InvalidInput, NotFound
from vstate.repo import Repository
from vstate.repo.exchange import intake


@dataclass
class Point:
    """A class of a program."""

    x: int
    y: int


VALUES: dict[str, Any] = {
    "plan": {"goal": "x", "steps": [1, 2.5, None, True]},
    "text": "é" * 100_000,
    "bytes": b"x" * 200_000,
    "long": list(range(50_000)),
    "point": Point(1, 2),
    "points": [Point(1, 2), Point(3, 4)],
    "when": datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC),
    "price": decimal.Decimal("1.50"),
    "ordered": OrderedDict(b=1, a=2),
    "counter": Counter("hello"),
    "set": {1, "x"},
}


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def write(path: Path, values: Mapping[str, Any], protocol: int = 4) -> Path:
    with shelve.open(str(path), protocol=protocol) as shelf:
        shelf.update(values)
    return path


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.slow
def test_a_shelve_file_is_moved_without_loading(tmp_path: Path, protocol: int) -> None:
    """Objects load as they did, and reading them is no change. Nothing runs while they are moved."""
    mark = tmp_path / "mark"
    file = write(tmp_path / "old", {**VALUES, "evil": Evil(mark)}, protocol)
    repo = Repository(Memory())
    report = intake.take(repo, "main", intake.shelve_file(file), name="shelve", prefix="old/")
    assert (report.keys, report.written, report.left_out) == (len(VALUES) + 1, len(VALUES) + 1, ())
    assert not mark.exists()
    with Versioned(repo.store) as state:
        assert f"old/point  ({Point.__module__}.Point" in str(state)
        assert {key: state[f"old/{key}"] for key in VALUES} == VALUES
        assert not state.has_uncommitted
        assert state.inert("old/evil").type == f"{os.mkdir.__module__}.{os.mkdir.__qualname__}"
    assert intake.take(repo, "main", intake.shelve_file(file), name="shelve", prefix="old/").written == 0
    assert len([*repo.log()]) == 1


def test_values_that_cannot_be_moved_are_named(tmp_path: Path) -> None:
    """A damaged pickle, protocol 0, objects of protocol 2 and a key that is too long are left out."""
    file = tmp_path / "old"
    with shelve.open(str(file)) as shelf:
        shelf.dict[b"plain"] = pickle.dumps([1, {"a": "b"}], 2)
        shelf.dict[b"text"] = pickle.dumps([1], 0)
        shelf.dict[b"object"] = pickle.dumps(Point(1, 2), 2)
        shelf.dict[b"damaged"] = pickle.dumps(["x"] * 10)[:-5]
        shelf.dict[b"empty"] = b""
        shelf["x" * 5000] = 1
    repo = Repository(Memory())
    report = intake.take(repo, "new", intake.shelve_file(file), name="shelve")
    assert report.written == 1
    assert {key[:9] for key, _ in report.left_out} == {"object", "damaged", "empty", "text", "x" * 9}
    assert "protocol 2" in dict(report.left_out)["object"]
    assert dict(Versioned(repo.store, branch="new")) == {"plain": [1, {"a": "b"}]}


@pytest.mark.parametrize("name", ["none", "text", "dumb"])
def test_files_that_are_no_shelve_files_are_refused(tmp_path: Path, name: str) -> None:
    """An absent file, another file and an index that is damaged are told as such."""
    (tmp_path / "text").write_text("hello")
    (tmp_path / "dumb.dir").write_text("'key', (0, 5\nopen('x')\n")
    (tmp_path / "dumb.dat").write_bytes(b"")
    with pytest.raises((InvalidInput, NotFound) if name == "dumb" else NotFound):
        list(intake.shelve_file(tmp_path / name))


def test_json_files_have_their_paths_as_keys(tmp_path: Path) -> None:
    """Each file is a value; files that hold no JSON are left out."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    values = {"top": [1, 2], "a/one.two": {"x": "é"}, "a/b/deep": None}
    for key, value in values.items():
        (tmp_path / f"{key}.json").write_text(json.dumps(value), "utf-8")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "notes.txt").write_text("no")
    repo = Repository(Memory())
    report = intake.take(repo, "main", intake.json_files(tmp_path), name="json")
    assert dict(Versioned(repo.store)) == values
    assert {key for key, _ in report.left_out} == {"bad", "deep"}
    with pytest.raises(NotFound):
        list(intake.json_files(tmp_path / "none"))


def test_an_interrupted_intake_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call makes commits for the rest alone, and keys of others stay."""
    monkeypatch.setattr(intake, "BATCH_KEYS", 10)
    state = Versioned(Memory())
    save(state, mine=1)
    values = {f"{i:02}": i for i in range(35)}

    def source(until: int) -> intake.Source:
        for number, (key, value) in enumerate(values.items()):
            if number == until:
                raise KeyboardInterrupt
            yield key, lambda value=value: intake.moved(pickle.dumps(value))

    with pytest.raises(KeyboardInterrupt):
        intake.take(state.repo, "main", source(25), name="test")
    assert len([*state.repo.log()]) == 3
    report = intake.take(state.repo, "main", source(99), name="test")
    assert (report.keys, report.written) == (35, 15)
    assert len([*state.repo.log()]) == 5
    state.refresh()
    assert dict(state) == {**values, "mine": 1}


def test_values_are_read_back() -> None:
    """A store that lost a value is told at once."""

    class Forgetful(Memory):
        def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
            kept = {key: value for key, value in writes.items() if value is None or len(value) < 1000}
            return super().transact(kept, expected)

    source = [("k", lambda: intake.moved(pickle.dumps(os.urandom(5000))))]
    with pytest.raises(CorruptObject):
        intake.take(Repository(Forgetful()), "main", source, name="test")
