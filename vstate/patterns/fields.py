"""Fields: a record on a branch, with a key for each field, of which a commit sets those that changed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgpack

from vstate.errors import InvalidInput, quoted
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path
from vstate.recent import Recent
from vstate.state.base import ReadableState
from vstate.state.snapshot import Snapshot
from vstate.values.pickling import loads

STEP: Final = "step"
"""The key with the facts about a commit: the names of the fields, in order, and what the caller adds."""

_DIGITS: Final = 12
_MOST: Final = 64  # branches whose digests stay in memory
_LONGEST_PATH: Final = 200

Form = Callable[[Any], Any]
"""Plain data that stands for an object. Raises TypeError or another error if there is none."""

_INT, _TUPLE, _PICKLE = range(3)
_SETS: Final = {set: 3, frozenset: 4}
_PLAIN: Final = frozenset({int, float, bytes, dict, list})
_WHOLE: Final = frozenset({date, datetime, time, timedelta, timezone, Decimal, UUID, complex})


class Packed(NamedTuple):
    """A record that is ready to be stored, and that nobody changes any more."""

    names: list[tuple[str, bool]]
    """The names of the fields, in order, and whether each item of the field has a key."""
    data: dict[str, bytes]
    """The values by key."""
    digests: dict[str, bytes]
    """A digest of each value."""


class Fields:
    """Records of plain data, one on each branch, under the keys `NAME/FIELD`.

    - A list of dicts or texts, such as the messages of a chat, has a key for each item: `NAME/FIELD/NUMBER`.
    - A value that the branch has already is not stored again, however the record is passed on.
    - The caller commits the changes, together with its own keys. The key `step` has its facts about them.

    Threads may share it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # By branch: its newest commit here, and a digest of each value. A commit sets the others only.
        self._known = Recent[str, tuple[Commit, dict[str, bytes]]](_MOST)

    def pack(self, record: Mapping[str, Any]) -> Packed:
        """A copy of the record; InvalidInput, which names the field, for a value that is no plain data."""
        names: list[tuple[str, bool]] = []
        data: dict[str, bytes] = {}
        for name, value in record.items():
            key = join_path(self._name, name)
            names.append((name, _has_items(value)))
            try:
                if _has_items(value):
                    data |= {f"{key}/{place:0{_DIGITS}}": _pack(item) for place, item in enumerate(value)}
                else:
                    data[key] = _pack(value)
            except Exception:  # a cycle recurs
                exact(value, f"the field {name!r} of the {self._name}")
                raise
        return Packed(
            names, data, {key: blake2b(value, digest_size=16).digest() for key, value in data.items()}
        )

    def changes(
        self, branch: str, state: ReadableState, packed: Packed, facts: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """The keys to set and to delete, on top of a state of the branch, for it to have this record."""
        known = self._digests(branch, state)
        new: dict[str, Any] = {STEP: {**facts, "fields": packed.names}}
        for key, digest in packed.digests.items():
            if known.get(key) != digest:
                new[key] = _unpack(packed.data[key])
        return new, [key for key in known if key not in packed.digests]

    def landed(self, branch: str, commit: Commit | None, packed: Packed) -> None:
        """Note that the branch has this record at a commit. The next commit is spared its values."""
        if commit is not None:
            self._known[branch] = commit, packed.digests

    def load(self, state: ReadableState) -> dict[str, Any]:
        """The record of a state."""
        record: dict[str, Any] = {}
        for name, has_items in state[STEP]["fields"]:
            key = join_path(self._name, name)
            record[name] = [state[item] for item in state.keys(f"{key}/")] if has_items else state[key]
        return record

    def is_same(self, state: ReadableState, packed: Packed) -> bool:
        """Does the state have these values? They must be under the same keys."""
        # Packed again: 1, 1.0 and True are equal in Python.
        return all(_pack(state[key]) == data for key, data in packed.data.items())

    def _digests(self, branch: str, state: ReadableState) -> Mapping[str, bytes]:
        known = self._known.get(branch)
        if known is not None and isinstance(state, Snapshot) and known[0].id == state.commit.id:
            return known[1]
        # The keys alone: each of them is set or deleted, and nothing is loaded.
        return dict.fromkeys(state.keys(f"{self._name}/"), b"")


def _has_items(value: Any) -> bool:
    """Is each item of the value stored on its own? The numbers of a vector are not."""
    return type(value) is list and all(isinstance(item, dict | str) for item in value)


def exact(value: Any, path: str, form: Form | None = None) -> Any:
    """A copy of plain data: None, bool, numbers, str, bytes, dates, UUIDs, and lists, tuples, dicts and sets.

    It equals the value; one of a subclass becomes plain. `form` makes plain data of any other object. Raises
    InvalidInput for a value that would not come back, with its path.
    """
    try:
        return _unpack(_pack(value, form))
    except Exception as error:  # `form` runs code of the program, and a cycle recurs
        is_deep = isinstance(error, RecursionError) or "recursion" in str(error)
        reason = "it contains itself, or is nested too deep" if is_deep else str(error)
        where = path + path_to(value, lambda part: _pack(part, form))
        raise InvalidInput(f"{where} cannot be stored: {reason}") from error


def path_to(value: Any, check: Callable[[Any], object]) -> str:
    """The path to the innermost part of a value for which the check raises an exception."""
    path, around = "", [value]
    while len(path) < _LONGEST_PATH:
        for step, part in _parts(value):
            if any(part is other for other in around):
                continue  # a cycle
            try:
                check(part)
            except Exception:  # the check may run code of the program
                path, value = path + step, part
                around.append(part)
                break
        else:
            break
    return path


def _pack(value: Any, form: Form | None = None) -> bytes:
    """The value as MessagePack, which is the same for equal values of the same types."""

    def other(value: Any) -> Any:
        kind = type(value)
        if kind is int:  # more than 64 bits
            return msgpack.ExtType(_INT, f"{value:x}".encode())
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, _pack(list(value), form))
        if kind in (set, frozenset):
            return msgpack.ExtType(_SETS[kind], _pack(sorted(_pack(item, form) for item in value)))
        if kind in _WHOLE:
            return msgpack.ExtType(_PICKLE, pickle.dumps(value, 5))
        if isinstance(value, str):  # the text of a member of an enum, whatever its own __str__ returns
            return str.__str__(value)
        if isinstance(value, int | float | bytes | dict | list):
            plain: Any = next(each for each in kind.__mro__ if each in _PLAIN)
            return plain(value)
        if form is None:
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no plain data")
        return form(value)

    packed: bytes = msgpack.packb(value, default=other, strict_types=True, unicode_errors="surrogatepass")
    return packed


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(
        data, ext_hook=_read, strict_map_key=False, unicode_errors="surrogatepass", object_pairs_hook=_mapping
    )


def _read(kind: int, data: bytes) -> Any:
    if kind == _INT:
        return int(data, 16)
    if kind == _PICKLE:  # this process made it a moment ago
        return loads(data)
    found = _unpack(data)
    if kind == _TUPLE:
        return tuple(found)
    return (set if kind == _SETS[set] else frozenset)(map(_unpack, found))


def _mapping(pairs: Any) -> dict[Any, Any]:
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("two of its keys are one key as plain data")
    return found


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container, with the steps that lead to them."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{quoted(key)}]", part
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield f"[{place}]", part
    elif isinstance(value, set | frozenset):
        yield from (("{...}", part) for part in value)
