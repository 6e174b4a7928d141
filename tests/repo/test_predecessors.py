"""Predecessors: which earlier object a new one is a later version of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from vstate import Disk, Versioned
from vstate.kv.base import OBJECT_PREFIX, Revised
from vstate.objects.ids import BLOB, ObjectId
from vstate.repo import predecessors
from vstate.values.entry import Entry


class Watched(Disk):
    """A Disk that notes the hints of the last transaction, by key."""

    hints: Mapping[str, str] = {}

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.hints = {key: value.before for key, value in writes.items() if type(value) is Revised}
        return super().transact(writes, expected)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Versioned]:
    with Watched(tmp_path) as store:
        yield Versioned(store)


def text(letter: str, length: int) -> str:
    return letter * length


def name(value: str) -> str:
    return OBJECT_PREFIX + ObjectId.of(BLOB, value.encode()).hex()


def test_a_value_comes_after_that_of_its_key_or_of_the_key_before(state: Versioned) -> None:
    """A changed key leads to its earlier value, a new one to the value of the key before it."""
    assert isinstance(state.store, Watched)
    for letter in "abc":
        state["one"] = text(letter, 600)
        state.commit()
    assert state.store.hints[name(text("c", 600))] == name(text("b", 600))
    state["one more"] = text("d", 600)
    state.commit()
    assert state.store.hints[name(text("d", 600))] == name(text("c", 600))


def test_no_entry_is_decoded_for_short_values(state: Versioned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most values are short: nodes get their hints, values none, and no entry of the leaf is looked into."""
    assert isinstance(state.store, Watched)
    decoded: list[bytes] = []

    class Counted(Entry):
        @classmethod
        def decode(cls, data: bytes) -> Entry:
            decoded.append(data)
            return Entry.decode(data)

    monkeypatch.setattr(predecessors, "Entry", Counted)
    for i in range(4):
        state.update({f"key {number}": text("a", 150) + str(number * i) for number in range(10)})
        state.commit()
    assert len(state.store.hints) == 1
    assert not decoded
