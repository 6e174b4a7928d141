"""Sequence: items in order, one key each, in a mapping."""

from __future__ import annotations

import copy
import os
from collections import abc
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

from vstate.arguments import check_count
from vstate.errors import InvalidInput, KeyNotFound
from vstate.objects.ids import ObjectId
from vstate.patterns.copies import deep_copy
from vstate.patterns.paths import Id, base_of, path_of
from vstate.state.base import ReadableState, State, handle_of
from vstate.state.versioned import Versioned

T = TypeVar("T")

_WIDTH = 12  # digits of a number; the first is always 0, and no other key of the sequence begins with 0
_ALL = "0"
_LIMIT = 10 ** (_WIDTH - 1)
_RANDOM_BYTES = 6
_EDITED = "edited/"
_FEW = 64  # as many keys are listed as fast as they are counted
_DIGITS = "0123456789"


class Sequence(abc.Sequence[T]):
    """Items in order in a state, a namespace, or a snapshot, each under the key `name/NUMBER-RANDOM`.

    - To append and commit an item costs the same after ten others and after a hundred thousand.
    - Items that two branches appended merge without a conflict. Items with the same number are in order of
      their random parts, which is the same order everywhere.
    - In `state.apply(function)` an append comes after all items that any process has committed.
    - Items go in and come out as copies: a change of one is stored by `sequence[3] = item`.
    - The position of an item is found in O(log n), by counting keys; no item is read.

    The sequence owns the keys that begin with `name/0`. Other keys under `name/` are free for other uses.
    """

    def __init__(self, state: ReadableState, name: Id) -> None:
        base, prefix = base_of(state)
        self._base = base
        self._outer = prefix
        self._name = path_of(name)
        self._prefix = f"{prefix}{self._name}/"

    # Reading

    def __len__(self) -> int:
        return self._count(_ALL)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        """The item at a position, or the items of a slice as a list. Raises IndexError."""
        if isinstance(index, slice):
            return list(self._items(self._keys_of(index)))
        item: T = deep_copy(self._base[self._key_at(index)])
        return item

    def __iter__(self) -> Iterator[T]:
        return self._items(self._base.keys(self._prefix + _ALL))

    def __reversed__(self) -> Iterator[T]:
        return self._items(self._base.keys(self._prefix + _ALL, reverse=True))

    def last(self, number: int) -> list[T]:
        """The last `number` items, or all if there are fewer, oldest first."""
        check_count("the number of the last items", number, 0)
        return self[max(0, len(self) - number) :]

    def keys(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """The keys in the state of the items between two positions, found as the iteration reaches them."""
        begin, end, _ = slice(start, stop).indices(len(self))
        return (key[len(self._outer) :] for key in self._walk(self._common_digits(), begin, end))

    def position(self, key: str) -> int:
        """The position of the item with this key in the state, in O(log n). Raises KeyNotFound."""
        full = self._outer + key
        digits = full[len(self._prefix) :][:_WIDTH]
        if not full.startswith(self._prefix + _ALL) or full not in self._base:
            raise KeyNotFound(key)
        before = 0
        for place in range(1, len(digits)):
            before += sum(self._count(digits[:place] + digit) for digit in _DIGITS[: int(digits[place])])
        return before + list(self._scan(digits)).index(full)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The position of the first item that equals `value`. Raises ValueError."""
        begin, end, _ = slice(start, stop).indices(len(self))
        for position, item in enumerate(self._items(self._walk(self._common_digits(), begin, end)), begin):
            if item is value or item == value:
                return position
        raise ValueError(f"{value!r} is not in {self!r}")

    def at(self, state: ReadableState) -> Sequence[T]:
        """The sequence under the same keys of another state, such as a snapshot."""
        other = copy.copy(self)
        other._base = base_of(state)[0]
        return other

    def is_part_of(self, state: State) -> bool:
        """Whether the items are in this state, or in the state of this namespace."""
        return self._base is state.root

    def may_have_changed(self) -> bool:
        """Whether items may have been added, deleted or changed since the last commit."""
        return isinstance(self._base, State) and handle_of(self._base).may_have_changed(self._prefix)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} in {self._base._title()}>"

    # Writing

    def append(self, item: T) -> str:
        """Append an item, and return its key in the state."""
        return self._append(deep_copy(item))

    def _append(self, own: T) -> str:
        state = self._writable()
        number = self._last_number(state) + 1
        if number >= _LIMIT:
            raise InvalidInput(f"the sequence {self._name!r} is full: its last number is {_LIMIT - 1}")
        key = f"{self._prefix}{number:0{_WIDTH}}-{os.urandom(_RANDOM_BYTES).hex()}"
        state[key] = own
        _staged.setdefault(state, {})[self._prefix] = key, _head(state)
        return key[len(self._outer) :]

    def extend(self, items: Iterable[T]) -> None:
        """Append items in their order: all of them, or none if the iteration raises."""
        self._writable()
        for item in [deep_copy(item) for item in items]:
            self._append(item)

    def __setitem__(self, index: int, item: T) -> None:
        """Replace an item."""
        state, key = self._writable(), self._key_at(index)
        state[key] = deep_copy(item)
        # The mark tells the folds over the items that this is another item.
        state[self._mark(key)] = os.urandom(_RANDOM_BYTES).hex()

    def __delitem__(self, index: int | slice) -> None:
        """Delete the item at a position, or the items of a slice. Raises IndexError."""
        state = self._writable()
        for key in self._keys_of(index) if isinstance(index, slice) else [self._key_at(index)]:
            del state[key]
            state.pop(self._mark(key), None)

    def clear(self) -> None:
        """Delete all items."""
        del self[:]

    # Keys

    def marked_keys(self) -> Iterator[tuple[str, object]]:
        """The keys of all items, each with None, or with a text that changes when the item is replaced."""
        marks = dict(self._base.items(self._prefix + _EDITED))
        for key in self._scan(_ALL):
            yield key[len(self._outer) :], marks.get(self._mark(key)) if marks else None

    def _mark(self, key: str) -> str:
        return f"{self._prefix}{_EDITED}{key[len(self._prefix) :]}"

    def _items(self, keys: Iterable[str]) -> Iterator[T]:
        for key in keys:
            try:
                value = self._base[key]
            except KeyNotFound:  # deleted meanwhile
                continue
            yield deep_copy(value)

    def _count(self, digits: str) -> int:
        return len(self._base.keys(self._prefix + digits))

    def _scan(self, digits: str) -> Iterator[str]:
        return iter(self._base.keys(self._prefix + digits))

    def _keys_of(self, index: slice) -> list[str]:
        start, stop, step = index.indices(len(self))
        if step == 1:
            return list(self._walk(self._common_digits(), start, stop))
        positions = range(start, stop, step)
        if not positions:
            return []
        first = min(positions[0], positions[-1])
        keys = list(self._walk(self._common_digits(), first, max(positions[0], positions[-1]) + 1))
        return [keys[position - first] for position in positions]

    def _key_at(self, index: int) -> str:
        size = len(self)
        position = index + size if index < 0 else index
        if 0 <= position < size:
            for key in self._walk(self._common_digits(), position, position + 1):
                return key
        raise IndexError(f"no item {index} in a sequence of {size}")

    def _common_digits(self) -> str:
        """Digits that all numbers begin with, as many as one count finds."""
        size = self._count(_ALL)
        guess = "0" * max(1, _WIDTH - len(str(size)))
        return guess if self._count(guess) == size else _ALL

    def _walk(self, digits: str, start: int, stop: int) -> Iterator[str]:
        """The keys between two positions among those whose numbers begin with these digits."""
        if start >= stop:
            return
        if start == 0 or len(digits) == _WIDTH or self._count(digits) <= _FEW:
            yield from islice(self._scan(digits), start, stop)
            return
        for digit in _DIGITS:
            size = self._count(digits + digit)
            if start < size:
                yield from self._walk(digits + digit, start, min(stop, size))
            start, stop = max(0, start - size), stop - size
            if stop <= 0:
                return

    def _last_number(self, state: State) -> int:
        """The number of the last item; -1 without any."""
        key, head = _staged.get(state, {}).get(self._prefix, ("", None))
        # An item staged on this commit is still the last one. To look in the state takes longer the more is
        # staged.
        if not key or head != _head(state) or key not in state:
            key = next(iter(state.keys(self._prefix + _ALL, reverse=True)), "")
        if not key:
            return -1
        digits = key[len(self._prefix) :][:_WIDTH]
        if not (digits.isascii() and digits.isdigit()):
            raise InvalidInput(
                f"the key {key!r} is in the way of the sequence {self._name!r}, which owns all keys that "
                f"begin with '{self._prefix}0': move it elsewhere"
            )
        return int(digits)

    def _writable(self) -> State:
        if not isinstance(self._base, State):
            raise InvalidInput(
                f"the sequence {self._name!r} is in a snapshot, which is read-only: use the state itself"
            )
        return self._base


_staged: WeakKeyDictionary[State, dict[str, tuple[str, ObjectId | None]]] = WeakKeyDictionary()
"""By sequence, the key that a handle appended last, and the commit at that time."""


def _head(state: State) -> ObjectId | None:
    head = state.head if isinstance(state, Versioned) else None
    return None if head is None else head.oid
