"""Sequences: a list in a mapping, through all changes of the mapping."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from agent_stores import AgentStore
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from vstate import Live, Versioned, aio
from vstate.errors import InvalidInput, KeyNotFound, MergeConflict
from vstate.kv import Memory
from vstate.patterns import EventStream, Sequence, scope
from vstate.values.entry import decode_value


def numbers(sequence: Sequence[Any]) -> list[int]:
    """The keys of the items of a sequence called log."""
    return [int(key[4:16]) for key in list(sequence.keys())]


def test_it_is_a_list_with_a_key_an_item(agent_store: AgentStore) -> None:
    """Append, positions, slices, both directions and deletion work as for a list, on any store."""
    state = Versioned(agent_store(), branch="main")
    sequence: Sequence[Any] = Sequence(state, "log")
    expected = [{"number": number} for number in range(250)]
    first = sequence.append(expected[0])
    sequence.extend(expected[1:])
    assert re.fullmatch(r"log/000000000000-[0-9a-f]{12}", first)
    assert state[first] == {"number": 0}
    state.commit()
    again: Sequence[Any] = Sequence(Versioned(agent_store(), branch="main"), "log")
    assert len(again) == 250
    assert list(again) == expected
    assert list(reversed(again)) == expected[::-1]
    assert again[10:20] == expected[10:20]
    assert again.last(3) == expected[-3:]
    assert again.last(0) == []
    assert again.last(1000) == expected
    keys = list(again.keys(100, 103))
    assert [again.position(key) for key in keys] == [100, 101, 102]
    assert again.index({"number": 7}) == 7
    del again[10:240]
    del again[0]
    expected = [*expected[1:10], *expected[240:]]
    assert list(again) == expected
    assert [again[index] for index in range(len(again))] == expected
    again.append("last")
    assert numbers(again)[-2:] == [249, 250]


def test_missing_positions_and_keys() -> None:
    """Missing positions and keys raise as those of lists and mappings."""
    sequence: Sequence[int] = Sequence(Live(), "log")
    for index in (0, -1, 5):
        with pytest.raises(IndexError):
            sequence[index]
    with pytest.raises(IndexError):
        del sequence[0]
    with pytest.raises(KeyNotFound):
        sequence.position("log/000000000000-000000000000")
    with pytest.raises(KeyNotFound):
        sequence.position("other")
    with pytest.raises(ValueError, match="not in"):
        sequence.index(3)
    with pytest.raises(InvalidInput):
        sequence.last(-1)
    assert list(sequence) == list(reversed(sequence)) == sequence[:] == []
    assert not sequence
    state = Versioned()
    state["log/0x"] = 1
    with pytest.raises(InvalidInput, match="'log/0x' is in the way of the sequence 'log'"):
        Sequence(state, "log").append(1)
    for wrong in (aio.Versioned(), {}):
        for kind in (Sequence, EventStream):
            with pytest.raises(TypeError, match="is not a state"):
                kind(wrong, "log")  # type: ignore[arg-type]


def test_copies_go_in_and_come_out() -> None:
    """A change of an appended or read item changes nothing and leaves nothing to commit."""
    state = Versioned()
    sequence: Sequence[dict[str, list[int]]] = Sequence(state, "log")
    item = {"a": [1]}
    sequence.append(item)
    item["a"].append(2)
    state.commit()
    sequence[0]["a"].append(3)
    for each in sequence:
        each["a"].append(4)
    sequence.last(1)[0].clear()
    assert not state.has_uncommitted
    assert sequence[0] == {"a": [1]}
    sequence[0] = {"a": [5]}
    assert list(sequence) == [{"a": [5]}]
    assert len(sequence) == 1
    del sequence[0]
    assert list(state) == []  # the mark of a replaced item goes too


def test_in_namespaces_snapshots_and_live() -> None:
    """A sequence is in its state; in a snapshot it is read-only; similar names do not mix."""
    state = Versioned()
    inner = scope(state, "user/1", "")
    one: Sequence[int] = Sequence(inner, ("log", "a"))
    other: Sequence[int] = Sequence(inner, "log/a")
    one.extend([1, 2])
    other.append(3)
    commit = present(state.commit())
    assert list(state) == [f"user%2f1/%/{key}" for key in [*other.keys(), *one.keys()]]
    one.append(4)
    past: Sequence[int] = Sequence(scope(state.checkout(commit), "user/1", ""), ("log", "a"))
    assert (list(past), past[-1], past.position(next(past.keys()))) == ([1, 2], 2, 0)
    assert list(one.at(state.checkout(commit))) == [1, 2]
    with pytest.raises(InvalidInput, match="read-only"):
        past.append(3)
    assert list(other) == [3]
    live: Sequence[object] = Sequence(Live(), "log")
    live.extend(range(1000))
    assert (live[500], live.last(2), len(live)) == (500, [998, 999], 1000)
    live.clear()
    live.append("again")
    assert list(live) == ["again"]


def test_two_branches_that_appended_merge() -> None:
    """Both keep their items, in the same order whichever branch merges the other."""
    one = Versioned(branch="main")
    Sequence(one, "log").extend(["a", "b"])
    one.commit()
    other = one.fork("other")
    Sequence(one, "log").extend(["c1", "d1"])
    Sequence(other, "log").extend(["c2", "d2", "e2"])
    one.commit()
    other.commit()
    one.fork("third")
    one.merge("other")
    other.merge("third")
    merged = list(Sequence(one, "log"))
    assert merged == list(Sequence(other, "log"))
    assert (merged[:2], set(merged[2:4]), set(merged[4:6]), merged[6]) == (
        ["a", "b"],
        {"c1", "c2"},
        {"d1", "d2"},
        "e2",
    )
    Sequence(one, "log").append("f")
    assert Sequence(one, "log")[-1] == "f"
    one.commit()
    assert numbers(Sequence(one, "log"))[-1] == 5
    other = Versioned(one.store, branch="main")
    Sequence(one, "log")[0], Sequence(other, "log")[0] = "b", "c"
    one.commit()
    with pytest.raises(MergeConflict, match="log/000000000000"):
        other.commit()


@pytest.mark.slow
@settings(max_examples=25)
@given(
    used=st.lists(st.integers(0, 3000), max_size=40),
    begin=st.integers(-50, 50),
    end=st.integers(-50, 50),
    step=st.sampled_from([1, 1, 2, -1, -3]),
)
def test_positions_for_any_numbers(used: list[int], begin: int, end: int, step: int) -> None:
    """With gaps and equal numbers, as merges and deletions leave them, positions follow the sorted keys."""
    state = Versioned(Memory())
    keys = [f"log/{number:012}-{index:012x}" for index, number in enumerate(sorted(used) * 3)]
    for key in keys:
        state[key] = key
    keys.sort()
    sequence: Sequence[str] = Sequence(state, "log")
    assert (list(sequence), list(reversed(sequence)), len(sequence)) == (keys, keys[::-1], len(keys))
    assert sequence[begin:end:step] == keys[begin:end:step]
    for index in range(-len(keys), len(keys)):
        assert sequence[index] == keys[index]
        assert sequence.position(keys[index]) == index % len(keys)
    assert int(sequence.append("end")[4:16]) == max(used, default=-1) + 1


def test_reading_one_item_reads_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two thousand items, one by its position and the last five load no others."""
    store = Memory()
    state = Versioned(store, branch="main")
    Sequence(state, "log").extend([{"number": number, "text": "x" * 40} for number in range(2_000)])
    state.commit()
    loaded: list[int] = []
    again = Versioned(store, branch="main")

    def counted(*arguments: Any, **options: Any) -> Any:
        loaded.append(1)
        return decode_value(*arguments, **options)

    monkeypatch.setattr("vstate.state.handle.decode_value", counted)
    sequence: Sequence[dict[str, Any]] = Sequence(again, "log")
    assert sequence[random.Random(1).randrange(2_000)]["text"] == "x" * 40
    assert len(loaded) == 1
    assert [item["number"] for item in sequence.last(5)] == list(range(1995, 2_000))
    assert len(loaded) <= 6


def test_an_update_depends_on_the_last_item() -> None:
    """It holds for a handle that knows the end from its last commit too: if others append, it runs again."""
    one = Versioned(branch="main")
    other = Versioned(one.store, branch="main")
    one.apply(lambda inner: Sequence(inner, "log").append("first"))
    runs: list[int] = []

    def append(inner: Any) -> None:
        runs.append(1)
        Sequence(inner, "log").append("mine")
        if len(runs) == 1:
            other.apply(lambda theirs: Sequence(theirs, "log").append("theirs"))

    one.apply(append)
    log: Sequence[str] = Sequence(one, "log")
    assert (len(runs), list(log), numbers(log)) == (2, ["first", "theirs", "mine"], [0, 1, 2])


@pytest.mark.parametrize("kind", [Sequence, EventStream])
def test_extend_puts_all_items_or_none(kind: type[Sequence[int] | EventStream[int]]) -> None:
    """A generator that raises midway leaves nothing staged, nor does an item that cannot be copied."""
    state = Versioned()
    items = kind(state, "s")

    def broken() -> Iterator[int]:
        yield 1
        yield 1 // 0

    for those, error in ((broken(), ZeroDivisionError), ([1, (n for n in [2])], TypeError)):
        with pytest.raises(error):
            items.extend(those)  # type: ignore[arg-type]
        assert not len(items)
        assert not state.status()
    items.extend(number for number in (1, 2))
    assert list(items) == [1, 2]
