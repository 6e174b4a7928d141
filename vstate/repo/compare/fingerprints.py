"""Fingerprints: the structural equality of values as the inert reader returns them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Hashable, Mapping
from struct import Struct
from typing import Any, Final

from blake3 import blake3

from vstate.errors import InvalidInput
from vstate.values.arrays import Array
from vstate.values.instance import Global, Instance

_LONG: Final = 1000  # characters, bytes or bits of an atom; a longer one is hashed, and once
_COST: Final = 11  # two kilobytes count as one part
_FLOAT: Final = Struct(">cd").pack
_NAN: Final = _FLOAT(b"f", math.nan)


def _content(kind: bytes, data: bytes) -> bytes:
    if len(data) > _LONG:
        return b"%b%d#" % (kind, len(data)) + blake3(data).digest(length=16)
    return b"%b%d:" % (kind, len(data)) + data


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"s%d:" % len(data) + data if len(data) <= _LONG else _content(b"s", data)


# Each fingerprint of an atom says where it ends.
_ATOM_PRINTS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: b"i%x:" % value if value.bit_length() <= _LONG else _content(b"i", b"%x" % value),
    float: lambda value: _FLOAT(b"f", value) if value == value else _NAN,
    complex: lambda value: f"c{value!r}:".encode(),
    str: _text,
    bytes: lambda value: _content(b"b", value),
}

_LENGTHS: Final[Mapping[type, Callable[[Any], int]]] = {str: len, bytes: len, int: int.bit_length}

ATOMS: Final = _ATOM_PRINTS.keys()
"""The types of values without parts, whose fingerprint is their content or, if long, a hash of it."""


class TooLargeError(InvalidInput):
    """The values have more parts than the fingerprints may visit."""

    def __init__(self) -> None:
        super().__init__("the value is too large to compare all of its parts: name one of them by its path")


class Fingerprints:
    """Hashes of values: equal for equal values, and only for those.

    Types count; the order of dicts and sets does not. The fingerprint of a value that contains itself
    depends on the way to it, so that such a value may get a new fingerprint without a change. Fingerprints
    of containers and long atoms are remembered by identity; the values live as long as this object.
    """

    def __init__(self) -> None:
        self.left = sys.maxsize
        """How many more parts may be visited. A caller may set a limit; past it, TooLargeError is raised."""
        self._done: dict[int, bytes] = {}
        self._kept: list[object] = []  # a value that is gone would leave its identity to another
        self._open: set[int] = set()

    def of(self, value: object) -> bytes:
        """The fingerprint of a value: 17 bytes for a container, the content for a short atom."""
        if type(value) in ATOMS:
            return self._token(value)
        if id(value) not in self._done:
            self._kept.append(value)
        # Without recursion: values are nested more deeply than Python can recurse.
        waiting = [value]
        while waiting:
            value = waiting[-1]
            name = id(value)
            if name in self._done:
                waiting.pop()
                continue
            if name not in self._open:
                children = _children(value)
                self._pay(1 + len(children) + (_length(value) >> _COST))
                inside = [child for child in children if type(child) not in ATOMS]
                if inside:
                    self._open.add(name)
                    waiting += [child for child in inside if not self._is_begun(id(child))]
                    continue
            waiting.pop()
            self._done[name] = b"#" + blake3(self._encoded(value)).digest(length=16)
            self._open.discard(name)
        return self._done[name]

    def place(self, key: object) -> Hashable:
        """A key or member by which it can be found: a text itself, the fingerprint of anything else."""
        return key if type(key) is str else self.of(key)

    def _is_begun(self, name: int) -> bool:
        return name in self._done or name in self._open

    def _pay(self, parts: int) -> None:
        self.left -= parts
        if self.left < 0:
            raise TooLargeError

    def _token(self, value: object) -> bytes:
        kind = type(value)
        if kind is str and len(value) <= _LONG:  # type: ignore[arg-type]  # mypy does not narrow by `is`
            return _text(value)  # type: ignore[arg-type]  # as above; most atoms are short texts
        make = _ATOM_PRINTS.get(kind)
        name = id(value)
        if make is None:
            return self._done.get(name, b"@")  # "@": inside itself
        measure = _LENGTHS.get(kind)
        if measure is None or (length := measure(value)) <= _LONG:
            return make(value)
        if name not in self._done:
            # A forged value may hold one long text in very many places.
            self._pay(length >> _COST)
            self._kept.append(value)
            self._done[name] = make(value)
        return self._done[name]

    def _encoded(self, value: object) -> bytes:
        # With the number of tokens in front of each run of them, no two values are written alike.
        token = self._token
        if isinstance(value, dict):
            return self._pairs(value)
        if isinstance(value, list | tuple):
            return b"%b%d:" % (type(value).__name__.encode(), len(value)) + b"".join(map(token, value))
        if isinstance(value, set | frozenset):
            members = sorted(map(token, value))
            return b"%b%d:" % (type(value).__name__.encode(), len(members)) + b"".join(members)
        if isinstance(value, Array) and value.raw is not None:
            shape = repr([value.fields.get(name) for name in ("dtype", "shape", "order")])
            return b"array" + _text(value.type) + _text(shape) + blake3(value.raw).digest()
        if isinstance(value, Instance):
            head = b"instance%d" % value.called + _text(value.type) + self._pairs(value.fields)
            arguments = (token(value.args) if value.args else b"-") + self._pairs(value.kwargs)
            items = b"-" if value.items is None else token(value.items)
            entries = b"-" if value.entries is None else token(value.entries)
            return head + arguments + items + entries + token(value.state)
        if isinstance(value, Global):
            return b"global" + _text(value.name) + self._pairs(value.fields)
        if isinstance(value, bytearray | memoryview):
            return type(value).__name__.encode() + b":" + bytes(value)
        return type(value).__name__.encode() + b":" + repr(value).encode("utf-8", "surrogatepass")

    def _pairs(self, pairs: Mapping[str, object] | Mapping[object, object]) -> bytes:
        if not pairs:
            return b"dict0:"
        token = self._token
        found = sorted(token(key) + token(item) for key, item in pairs.items())
        return b"dict%d:" % len(found) + b"".join(found)


def _length(value: object) -> int:
    """The bytes of a container that are hashed besides its parts."""
    if isinstance(value, Array) and value.raw is not None:
        return value.raw.nbytes
    if isinstance(value, memoryview):
        return value.nbytes
    return len(value) if isinstance(value, bytearray) else 0


def _children(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, Instance):
        inside = [*value.kwargs.values(), *value.fields.values(), value.state]
        if value.args:  # many instances may hold one tuple
            inside.append(value.args)
        if value.items is not None:
            inside.append(value.items)
        if value.entries is not None:
            inside.append(value.entries)
        return inside
    return value.fields.values() if isinstance(value, Global) else ()
