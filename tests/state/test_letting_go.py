"""Letting go: a process that only reads keeps 64 MB, and never loses an edit for it."""

from __future__ import annotations

import gc
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

from vstate import Memory, UncommittedWarning, Versioned
from vstate.state import handle, slots, snapshot
from vstate.state.base import handle_of

SHARE = 16
"""The limits of these tests are a sixteenth of the real ones, and so are their megabytes."""

MB = 1024 * 1024 // SHARE
KEEP_BYTES, LOOK_BYTES = slots.KEEP_BYTES // SHARE, slots.LOOK_BYTES // SHARE


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("KEEP_BYTES", "LOOK_BYTES"):
        for module in (slots, handle, snapshot):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name) // SHARE)
    gc.freeze()  # the objects of other tests need not be counted
    yield
    gc.unfreeze()


class Part:
    """A part of a value, which the collector can count."""


@dataclass
class Page:
    part: Part
    body: bytes


VALUES: dict[str, Callable[[bytes], Any]] = {
    "dict": lambda body: {"part": Part(), "body": body},
    "object": lambda body: Page(Part(), body),
    "array": lambda body: [Part(), numpy.frombuffer(body, "u1").copy()],
    "nested": lambda body: (1, {"pages": [Page(Part(), body)]}),
}


def alive() -> int:
    gc.collect()
    return sum(type(each) is Part for each in gc.get_objects())


def filled(make: Callable[[bytes], Any], count: int = 90, size: int = MB) -> Versioned:
    body = random.Random(1).randbytes(size)
    state = Versioned()
    for i in range(count):
        state[f"k{i:05}"] = make(body[:-8] + i.to_bytes(8, "big"))
        if i % 50 == 49:
            state.commit()
    state.commit()
    return Versioned(state.store)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
def test_a_reader_keeps_64_mb(kind: str) -> None:
    """Reading 90 MB keeps 64 and 16 to look at. close releases all of it."""
    reader = filled(VALUES[kind])
    before = alive()
    for key in reader:
        assert reader[key] is not None
    assert 8 <= alive() - before <= 81
    reader.close()
    assert alive() == before
    assert len(reader) == 90


@pytest.mark.slow
def test_a_snapshot_keeps_64_mb() -> None:
    """A snapshot drops what it read, and reads it again."""
    snapshot = filled(VALUES["dict"]).checkout("HEAD")
    before = alive()
    for _ in range(2):
        for value in snapshot.values():
            assert len(value["body"]) == MB
        del value
        assert alive() - before <= 65


def test_many_small_values_are_looked_at_while_they_are_read() -> None:
    """However many were read, the next commit compares those of 16 MB at the most, and the one after none."""
    state = filled(lambda body: {"n": body}, count=3_000, size=8)
    for key in state:
        assert state[key]
    hand = handle_of(state).at.table
    assert len(hand.open) < LOOK_BYTES // slots.KEEP_BYTES_EACH + 100
    state["z"] = 1
    state.commit()
    assert not hand.open
    assert "z" not in hand.slots, "a committed value that nobody can edit takes no slot"


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Versioned], Versioned]:
    """Has a state look at its values after each read."""
    monkeypatch.setattr(handle, "LOOK_BYTES", 0)
    monkeypatch.setattr(handle, "KEEP_BYTES", 0)
    monkeypatch.setattr("vstate.state.slots.KEEP_BYTES", 0)

    def look(state: Versioned) -> Versioned:
        handle_of(state).at.table.limit = 0
        return state

    return look


def parts_of(value: Any) -> Iterator[list[Any]]:
    """The lists in a value, which a program may hold and edit."""
    if type(value) is list:
        yield value
    inside = (
        value.values()
        if isinstance(value, dict)
        else vars(value).values()
        if hasattr(value, "__dict__")
        else value
    )
    for part in () if isinstance(value, str | int) else inside:
        yield from parts_of(part)


@pytest.mark.parametrize("seed", range(8))
def test_no_edit_is_lost(seed: int, looking: Callable[[Versioned], Versioned]) -> None:
    """Values are read, held as a whole or in part, edited while held or at once, and committed: as a dict
    would have it, although the state lets go of all that it can after each read.
    """
    chance = random.Random(seed)
    store = Memory()
    model = {f"k{i}": [[i], {"a": [i]}, ([i],)] for i in range(12)}
    first = Versioned(store)
    first.update({key: [[i], {"a": [i]}, ([i],)] for i, key in enumerate(model)})
    first.commit()
    state = looking(Versioned(store))
    held: dict[tuple[str, int], list[Any]] = {}
    for step in range(150):
        key = chance.choice([*model])
        place = chance.randrange(4)
        match chance.randrange(6):
            case 0:
                held[key, place] = [*parts_of(state[key])][place]
            case 1:
                held.pop((key, place), None)
            case 2 if held:
                (key, place), part = chance.choice([*held.items()])
                part.append(step)
                [*parts_of(model[key])][place].append(step)
            case 3:
                [*parts_of(state[key])][place].append(step)
                [*parts_of(model[key])][place].append(step)
            case 4:
                chance.choice([state.commit, state.refresh, state.status, state.values])()
            case _:
                assert list(state.values()) == list(dict(sorted(model.items())).values())
    state.commit()
    assert dict(Versioned(store)) == model


def test_edits_in_a_transaction_that_is_undone(looking: Callable[[Versioned], Versioned]) -> None:
    """A transaction that reads and edits more than is kept is undone as a whole, and committed as a whole."""
    first = Versioned()
    first.update({f"k{i}": [i] for i in range(50)})
    first.commit()
    state = looking(Versioned(first.store))
    with pytest.raises(ZeroDivisionError), state.transaction():
        for key in state:
            state[key].append("x")
        raise ZeroDivisionError
    assert [*state.values()] == [[i] for i in sorted(range(50), key=lambda i: f"k{i}")]
    state.apply(lambda now: [now[key].append("y") for key in now])
    assert all(value[-1] == "y" for value in Versioned(first.store).values())


def test_a_value_that_reads_while_it_is_looked_at(looking: Callable[[Versioned], Versioned]) -> None:
    """The pickling of a value reads other keys of its state: nothing is lost, and nothing recurs."""
    first = Versioned()
    first.update(other=[1], asks=Asks())
    first.commit()
    state = looking(Versioned(first.store))
    Asks.state = state
    try:
        for _ in range(3):
            state["asks"].words.append("x")
            state["other"].append(2)
        assert state.status().modified == ["asks", "other"]
    finally:
        Asks.state = None


class Asks:
    """Its pickling reads another key."""

    state: Versioned | None = None

    def __init__(self) -> None:
        self.words: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        if self.state is not None:
            assert self.state["other"]
        return vars(self)


def test_closing_looks_for_5_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning at close names all keys that were set, and the edits in place that a short look finds. It
    looks at the last values first, and at none that would take longer.
    """
    state = filled(lambda body: [body.hex()], count=100, size=8)
    state["long"] = ["x" * 6_000_000]
    state.commit()
    reader = Versioned(state.store)
    now = iter(range(10**6))
    monkeypatch.setattr(time, "thread_time", lambda: next(now) / 1000)
    for key in reader:
        reader[key].append(1)
    reader["k00000"].append(1)
    reader.update({f"set{i}": i for i in range(3)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reader.close()
    [found] = [str(each.message) for each in caught if each.category is UncommittedWarning]
    assert all(f"'set{i}'" in found for i in range(3))
    assert "'k00099'" in found
    assert "'long'" not in found
    assert "'k00000'" not in found
