"""Prefixed: tenants of one store, which never see each other."""

import re
from pathlib import Path
from typing import Any

import pytest

import vstate.repo
from vstate import Versioned
from vstate.errors import InvalidInput
from vstate.kv import Disk, Memory, Prefixed
from vstate.kv.prefixed import RESERVED
from vstate.repo import rooms

KEY = "o/" + "ab" * 32


WRONG: list[Any] = ["", "/", "a/b", "a/", "/a", ".", "..", " a", "a ", "a\nb", "a\0b", "\ud800", "x" * 201]
WRONG += ["é" * 101, None, 7, b"a", *sorted(RESERVED)]


def test_names() -> None:
    """A name is one segment that differs from all keys of a repository. Any other name is accepted, and
    shown.
    """
    for wrong in WRONG:
        with pytest.raises(InvalidInput, match="part of a store"):
            Prefixed(Memory(), wrong)
    for name in ("a", "tenant-1", "x" * 200, "é" * 100, "a b", "a.b", "R", "heads", "a:b?c=%2F"):
        whole = Memory()
        store = Prefixed(whole, name)
        store.set("a", b"1")
        assert store.name == name
        assert list(whole.keys()) == [f"{name}/a"]
        assert store.location == f"{whole.location} ({name}/)"
        assert repr(store) == f"Prefixed({whole!r}, {name!r})"


def test_the_keys_of_a_repository_are_reserved() -> None:
    """Whatever the keys of a repository begin with is no name of a part."""
    roots = set()
    for source in Path(vstate.repo.__file__).parent.rglob("*.py"):
        roots |= set(
            re.findall(r'^[A-Z_]+(?:: \w+)? = "([a-z-]+)/"$', source.read_text("utf-8"), re.MULTILINE)
        )
    below_a_root = {"heads", "tags", "remotes", "runs", "step"}
    assert len(roots) > 6
    assert roots - below_a_root <= RESERVED
    with Versioned(Memory()) as state:
        state["a"] = "x" * 1000
        state.commit()
        keys = list(state.store.keys())
    assert {key.partition("/")[0] for key in keys if "/" in key} <= RESERVED


def test_each_reserved_key_is_the_rooms_or_the_stores() -> None:
    """A row that both took for theirs would be read in one place and written in another."""
    in_no_room = {"room"}
    for name in RESERVED - in_no_room:
        of_a_room = rooms._own(name if name == "gc" else f"{name}/heads/x")
        of_the_store = any(key.startswith(f"{name}/") for key in rooms._SHARED)
        assert bool(of_a_room) != of_the_store or name == "r", name


def test_parts_never_see_each_other() -> None:
    """Each is a store of its own, also if the name of one begins with that of another."""
    whole = Memory()
    parts = {name: Prefixed(whole, name) for name in ("a", "ab", "a b", "A")}
    rows = {name: {key: name.encode() for key in (KEY, "r/x", "b/r/x", "")} for name in parts}
    for name, part in parts.items():
        part.set_many(rows[name])
    parts["a"].delete_many([*parts["a"].keys("r")])
    assert parts["a"].transact({KEY: None, "b/r/x": b"new"}, {"b/r/x": b"a", "r/x": None})
    rows["a"] = {"": b"a", "b/r/x": b"new"}
    for name, part in parts.items():
        assert dict(part.items()) == part.get_many([KEY, "r/x", "b/r/x", ""]) == rows[name]
        assert set(part.keys()) == part.present([KEY, "r/x", "b/r/x", "", "x"]) == rows[name].keys()


def test_closing(tmp_path: Path) -> None:
    """The store stays open for its other parts, unless this part owns it."""
    whole = Disk(tmp_path / "store")
    with Prefixed(whole, "a") as part:
        part.set("k", b"1")
    assert Prefixed(whole, "a").get("k") == b"1"
    Prefixed(whole, "b", owns=True).close()
    with pytest.raises(InvalidInput, match="is closed"):
        whole.get("k")
