"""Sequence: an ordered run of items in a mapping, one key an item."""

from __future__ import annotations

import copy
import os
from collections import abc
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

from vstate.arguments import check_count
from vstate.errors import InvalidInput, KeyNotFound
from vstate.objects.ids import ObjectId
from vstate.patterns.copies import copied
from vstate.patterns.paths import Id, base_of, path_of
from vstate.state.base import ReadableState, State
from vstate.state.worktree import Worktree

T = TypeVar("T")

_WIDTH = 12  # digits of a number, the first of which is always 0: all items, and nothing else, begin with it
_ALL = "0"
_LIMIT = 10 ** (_WIDTH - 1)
_RANDOM_BYTES = 6
_EDITED = "edited/"
_FEW = 64  # keys, which are listed as fast as they are counted
_DIGITS = "0123456789"


class Sequence(abc.Sequence[T]):
    """An ordered run of items, each under a key of its own in a state, a namespace, or a snapshot: `name/NUMBER-RANDOM`.

    - An item costs the same to append, and to commit, after ten others and after a hundred thousand.
    - Items that two branches appended merge without a conflict; those with the same number follow one another in the
      order of their random parts, which is the same wherever they meet.
    - In `state.update(function)` an append is one above the highest of whatever was committed before, whoever did.
    - What goes in and what comes out are copies: changing one changes nothing until it is set, `sequence[3] = item`.
    - The position of an item is found by counting keys, not by reading any: in O(log n).

    Its keys are its own: what else is under `name/` begins with something else than a "0".
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
        """The item at a position, IndexError if there is none; or those of a slice, as a list."""
        if isinstance(index, slice):
            return list(self._items(self._keys_of(index)))
        return copied(self._base[self._key_at(index)])  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        return self._items(self._base.scan_keys(self._prefix + _ALL))

    def __reversed__(self) -> Iterator[T]:
        return self._items(self._downwards(self._start()))

    def last(self, number: int) -> list[T]:
        """The last items, oldest first: as many as are asked for, or all if there are fewer."""
        check_count("the number of the last items", number, 0)
        return self[max(0, len(self) - number) :]

    def keys(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """The keys in the state of the items from one position to another, as they are asked for."""
        begin, end, _ = slice(start, stop).indices(len(self))
        return (key[len(self._outer) :] for key in self._walk(self._start(), begin, end))

    def position(self, key: str) -> int:
        """The position of the item that has this key in the state, in O(log n); KeyNotFound."""
        full = self._outer + key
        digits = full[len(self._prefix) :][:_WIDTH]
        if not full.startswith(self._prefix + _ALL) or full not in self._base:
            raise KeyNotFound(key)
        before = 0
        for place in range(1, len(digits)):
            before += sum(self._count(digits[:place] + digit) for digit in _DIGITS[: int(digits[place])])
        return before + list(self._scan(digits)).index(full)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The position of the first item that equals `value`; ValueError if there is none."""
        begin, end, _ = slice(start, stop).indices(len(self))
        for position, item in enumerate(self._items(self._walk(self._start(), begin, end)), begin):
            if item is value or item == value:
                return position
        raise ValueError(f"{value!r} is not in {self!r}")

    def at(self, state: ReadableState) -> Sequence[T]:
        """The same sequence in another state of the same keys, such as a snapshot of this one."""
        other = copy.copy(self)
        other._base = base_of(state)[0]
        return other

    def is_part_of(self, state: State) -> bool:
        """Whether the items are in this very state, or in the one that it is a namespace of."""
        return self._base is state.root

    def may_have_changed(self) -> bool:
        """Whether items may have come, gone or been changed since the last commit."""
        return isinstance(self._base, State) and self._base.may_have_changed(self._prefix)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}, {len(self)} items>"

    # Writing

    def append(self, item: T) -> str:
        """Put an item behind all others, and give back its key in the state."""
        return self._append(copied(item))

    def _append(self, item: T) -> str:
        state = self._writable()
        hint = _hint(state, self._prefix)
        if hint is None or not self._is_last(state, hint):
            hint = _Hint(self._highest() + 1)
        number = next(hint.numbers)
        key = self._new_key(number)
        state[key] = item
        hint.key, hint.head = key, _head(state)
        _remember(state, self._prefix, hint)
        return key[len(self._outer) :]

    def extend(self, items: Iterable[T]) -> None:
        """Put items behind all others, in their order: all of them, or none if going through them raises."""
        self._writable()
        for item in [copied(item) for item in items]:
            self._append(item)

    def __setitem__(self, index: int, item: T) -> None:
        """Put another item in the place of one."""
        state, key = self._writable(), self._key_at(index)
        state[key] = copied(item)
        # Folds of the items know by this that it is another one.
        state[self._mark(key)] = os.urandom(_RANDOM_BYTES).hex()

    def __delitem__(self, index: int | slice) -> None:
        """Delete the item at a position, IndexError if there is none; or those of a slice."""
        state = self._writable()
        for key in self._keys_of(index) if isinstance(index, slice) else [self._key_at(index)]:
            del state[key]
            state.pop(self._mark(key), None)

    def clear(self) -> None:
        """Delete all items."""
        del self[:]

    # Keys

    def marked_keys(self) -> Iterator[tuple[str, object]]:
        """The keys of all items, each with its mark, None unless another item was put there: what identifies the items."""
        marks = dict(self._base.items(self._prefix + _EDITED))
        for key in self._scan(_ALL):
            yield key[len(self._outer) :], marks.get(self._mark(key)) if marks else None

    def _mark(self, key: str) -> str:
        return f"{self._prefix}{_EDITED}{key[len(self._prefix) :]}"

    def _items(self, keys: Iterable[str]) -> Iterator[T]:
        for key in keys:
            try:
                value = self._base[key]
            except KeyNotFound:  # deleted while we looked
                continue
            yield copied(value)

    def _count(self, digits: str) -> int:
        return self._base.count_keys(self._prefix + digits)

    def _scan(self, digits: str) -> Iterator[str]:
        return self._base.scan_keys(self._prefix + digits)

    def _keys_of(self, index: slice) -> list[str]:
        start, stop, step = index.indices(len(self))
        if step == 1:
            return list(self._walk(self._start(), start, stop))
        positions = range(start, stop, step)
        if not positions:
            return []
        first = min(positions[0], positions[-1])
        keys = list(self._walk(self._start(), first, max(positions[0], positions[-1]) + 1))
        return [keys[position - first] for position in positions]

    def _key_at(self, index: int) -> str:
        size = len(self)
        position = index + size if index < 0 else index
        if 0 <= position < size:
            for key in self._walk(self._start(), position, position + 1):
                return key
        raise IndexError(f"no item {index} in a sequence of {size}")

    def _start(self) -> str:
        """The digits that all the numbers begin with, as far as that is found at once."""
        size = self._count(_ALL)
        guess = "0" * max(1, _WIDTH - len(str(size)))
        return guess if self._count(guess) == size else _ALL

    def _walk(self, digits: str, start: int, stop: int) -> Iterator[str]:
        """The keys from one position to another among those that begin with these digits."""
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

    def _downwards(self, digits: str) -> Iterator[str]:
        size = self._count(digits)
        if size <= _FEW or len(digits) == _WIDTH:
            yield from reversed(list(self._scan(digits)) if size else [])
            return
        for digit in reversed(_DIGITS):
            yield from self._downwards(digits + digit)

    # Numbers

    def _highest(self) -> int:
        """The highest number there is, -1 without any."""
        for key in self._downwards(self._start()):
            digits = key[len(self._prefix) :][:_WIDTH]
            if not (digits.isascii() and digits.isdigit()):
                raise InvalidInput(
                    f"the key {key!r} is none of a sequence's, and in the way of {self._name!r}: what begins with "
                    f"'{self._prefix}0' belongs to that alone"
                )
            return int(digits)
        return -1

    def _new_key(self, number: int) -> str:
        if number >= _LIMIT:
            raise InvalidInput(f"a sequence has numbers up to {_LIMIT - 1}")
        return f"{self._prefix}{number:0{_WIDTH}}-{os.urandom(_RANDOM_BYTES).hex()}"

    def _is_last(self, state: State, hint: _Hint) -> bool:
        """Whether the item that this handle appended last is still there, and still the last one."""
        if hint.key not in state:
            return False
        head = _head(state)
        if head == hint.head:
            return True
        if not isinstance(state, Worktree) or state.head is None:
            return False
        # What this handle alone has committed on top of where it was does not hold anything of others.
        if state.head.parents != (() if hint.head is None else (hint.head,)):
            return False
        if state.repo.entry(state.head.tree, hint.key) is None:
            return False
        # An update must know that it depends on what is the last: others who append have it called again.
        self._count(_ALL)
        return True

    def _writable(self) -> State:
        if not isinstance(self._base, State):
            raise InvalidInput(f"the sequence {self._name!r} is of a snapshot, which is read-only")
        return self._base


class _Hint:
    """What this process knows about the end of a sequence: the key it appended last, and at which commit."""

    def __init__(self, number: int) -> None:
        # Threads that share the handle each get another number from it, without a lock.
        self.numbers = count(number)
        self.key = ""
        self.head: ObjectId | None = None


_hints: WeakKeyDictionary[ReadableState, dict[str, _Hint]] = WeakKeyDictionary()


def _hint(state: State, prefix: str) -> _Hint | None:
    return _hints.get(state, {}).get(prefix)


def _remember(state: State, prefix: str, hint: _Hint) -> None:
    _hints.setdefault(state, {})[prefix] = hint


def _head(state: State) -> ObjectId | None:
    head = state.head if isinstance(state, Worktree) else None
    return None if head is None else head.oid
