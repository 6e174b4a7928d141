"""Growth: values that grow and change in parts, whose bytes are kept once."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from vstate.errors import InvalidInput
from vstate.values.growth import MOST_RANGES, Grown, Heap, Unread, grow


class Value:
    """One value with its heap."""

    def __init__(self) -> None:
        self.heap = Heap()
        self.before: tuple[Grown, bytes] | None = None

    def set(self, data: bytes) -> int:
        """Keep the value, check that it comes back, and return how many bytes the heap got."""
        grown, new = grow(data, self.heap.end, self.before)
        self.heap.add(new)
        assert self.heap.value(grown) == data
        assert grown.length == len(data)
        self.before = grown, data
        return len(new)


def messages(*numbers: int) -> list[Any]:
    return [{"id": number, "content": f"message {number} " * 5} for number in numbers]


@pytest.mark.parametrize(
    ("name", "edit", "new_items"),
    [
        ("nothing", lambda old: old, 0),
        ("an append", lambda old: old + messages(300), 1),
        ("a trim", lambda old: old[100:], 0),
        ("a trim and an append", lambda old: old[100:] + messages(300), 1),
        ("an edit in the middle", lambda old: [*old[:90], *messages(300), *old[91:]], 1),
        ("an edit and an append", lambda old: [*old[:90], *messages(300), *old[91:], *messages(301)], 2),
        ("a new head", lambda old: messages(300) + old, 1),
        ("a removal", lambda old: old[:50] + old[51:], 0),
        ("an item twice", lambda old: messages(300) + old[5:] + messages(300), 1),
    ],
)
def test_items_that_stay_are_kept_once(name: str, edit: Any, new_items: int) -> None:
    """After each kind of edit the heap gets the new items alone; later edits reuse these in turn."""
    value, items = Value(), messages(*range(200))
    value.set(msgpack.packb(items))
    added = value.set(msgpack.packb(edit(items)))
    assert added == sum(len(msgpack.packb(item)) for item in messages(300, 301)[:new_items])
    assert value.set(msgpack.packb(edit(items) + messages(999))) == len(msgpack.packb(messages(999)[0]))


@settings(max_examples=60)
@given(st.integers(0), st.binary(max_size=40))
def test_any_value_comes_back(seed: int, other: bytes) -> None:
    """Lists, maps, texts and other bytes come back through any edits, in few pieces."""
    chance, value, items = random.Random(seed), Value(), messages(1, 2, 3)
    for step in range(40):
        start = chance.randint(0, len(items))
        new = messages(*(chance.randint(0, 30) for _ in range(chance.randint(0, 3))))
        items = items[:start] + new + items[start + chance.randint(0, 2) :]
        shape = chance.choice([items, items, items, dict.fromkeys(range(step), "x" * 9), "text" * step])
        value.set(chance.choice([other, b""]) + msgpack.packb(shape))
        assert len(present(value.before)[0].ranges) <= 2 * MOST_RANGES + 2


@pytest.mark.slow
def test_a_value_in_too_many_pieces_is_kept_anew() -> None:
    """A list that is edited all over is put on the heap as a whole from time to time, and stays in order."""
    value, items, added = Value(), messages(*range(600)), []
    value.set(msgpack.packb(items))
    for number in range(0, 600, 3):
        items[number] = messages(5000 + number)[0]
        added.append(value.set(msgpack.packb(items)))
    assert sum(size > 10_000 for size in added) == 1
    assert len(present(value.before)[0].ranges) <= 2 * MOST_RANGES


def test_a_description_of_another_heap_is_refused() -> None:
    """A range behind the end of the heap raises an error, and gives no short value."""
    with pytest.raises(InvalidInput, match="heap lacks"):
        Heap().value(Grown(b"", (0, 5)))


def test_a_gap_of_the_heap_is_read_before_a_value_goes_over_it() -> None:
    """The part behind the gap is not taken for what follows the part before it."""
    heap = Heap(10)
    heap.add(b"c" * 8)
    heap.fill(0, b"a" * 4)
    with pytest.raises(Unread) as raised:
        heap.value(Grown(b"", (0, 14)))
    assert raised.value.spans == ((4, 14),)
    heap.fill(4, b"b" * 6)
    assert heap.value(Grown(b"", (0, 14))) == b"aaaabbbbbbcccc"
