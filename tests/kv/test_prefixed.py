"""Prefixed: tenants of one store, which never see each other."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vstate.repo
from vstate import Versioned
from vstate.errors import InvalidInput
from vstate.kv import Disk, KVStore, Memory, Prefixed
from vstate.kv.prefixed import RESERVED

KEY = "o/" + "ab" * 32


@pytest.fixture
def whole() -> Memory:
    return Memory()


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/b", "a/", "/a", ".", "..", " a", "a ", "a\nb", "a\0b", "\ud800", "x" * 201, "é" * 101]
    + [None, 7, b"a", *sorted(RESERVED)],
)
def test_names_that_are_refused(whole: Memory, name: Any) -> None:
    """A name is one segment that differs from all keys of a repository."""
    with pytest.raises(InvalidInput, match="part of a store"):
        Prefixed(whole, name)


@pytest.mark.parametrize(
    "name", ["a", "tenant-1", "x" * 200, "é" * 100, "a b", "a.b", "R", "heads", "a:b?c=%2F"]
)
def test_names_that_are_taken(whole: Memory, name: str) -> None:
    """Any other name is accepted, and shown."""
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
    below_a_root = {"heads", "tags", "remotes"}
    assert len(roots) > 6
    assert roots - below_a_root <= RESERVED
    with Versioned(Memory()) as state:
        state["a"] = "x" * 1000
        state.commit()
        keys = list(state.store.keys())
    assert {key.partition("/")[0] for key in keys if "/" in key} <= RESERVED


names = st.sampled_from(["a", "ab", "a b", "b", "A"])
texts = st.text(st.sampled_from("ab/o AB"), max_size=6)


@given(steps=st.lists(st.tuples(names, st.sampled_from("sdwbxtep"), texts, texts), max_size=30))
def test_parts_never_see_each_other(steps: list[tuple[str, str, str, str]]) -> None:
    """Whatever is done to the parts of one store, each is a store of its own."""
    whole = Memory()
    parts = {name: Prefixed(whole, name) for name in ("a", "ab", "a b", "b", "A")}
    models = {name: Memory() for name in parts}
    for number, (name, step, key, other) in enumerate(steps):
        old, new = models[name].get(key), str(number).encode()
        actions: dict[str, Callable[[KVStore], object]] = {
            "s": lambda s, key=key, new=new: s.set(key, new),
            "d": lambda s, key=key: s.delete(key),
            "w": lambda s, key=key, other=other, new=new: s.set_many({key: new, other: b"other"}),
            "b": lambda s, other=other: s.delete_many(list(s.keys(other))),
            "x": lambda s, key=key, old=old, new=new: s.compare_and_swap(key, old, new),
            "t": lambda s, key=key, other=other, old=old: s.transact({other: b"t", key: None}, {key: old}),
            "e": lambda s, key=key, other=other: s.exclusively(lambda: {other: s.get(key)}),
            "p": lambda s, key=key, other=other: (
                key in s,
                s.present([key, other]),
                s.get_many([key, other]),
            ),
        }
        assert actions[step](parts[name]) == actions[step](models[name])
        for each, part in parts.items():
            assert dict(part.items()) == dict(models[each].items())
            assert sorted(part.keys(key)) == sorted(models[each].keys(key))
    assert len(list(whole.keys())) == sum(len(list(model.keys())) for model in models.values())


def test_closing(tmp_path: Path) -> None:
    """The store stays open for its other parts, unless this part owns it."""
    whole = Disk(tmp_path / "store")
    with Prefixed(whole, "a") as part:
        part.set("k", b"1")
    assert Prefixed(whole, "a").get("k") == b"1"
    Prefixed(whole, "b", owns=True).close()
    with pytest.raises(InvalidInput, match="is closed"):
        whole.get("k")
