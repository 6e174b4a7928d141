"""Serialized: the bytes of another serializer inside a value, read for display.

A pair `("msgpack", data)` or `("utf-8", data)` is data that a program got from the serializer of its
framework, and gives back to it. For display, the data is read here; no code of a class runs. An extension
is shown as its code means it in LangGraph's serializer: as an object, an array or a whole value.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import msgpack

from vstate.values.arrays import array_from_buffer
from vstate.values.budget import Budget, InertError, Limits
from vstate.values.instance import Instance

KINDS: Final = frozenset({"msgpack", "utf-8"})
_BYTES_OF_ONE: Final = 64  # of memory that one byte of MessagePack can take: an empty dict
_DEEPEST: Final = 20  # extensions inside each other
_SHORT: Final = 2048  # bytes of an extension whose object stays in memory

_ARRAYS: Final = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_NAMES: Final = {"utf-8": "str", "null": "NoneType", "bytes": "bytes", "bytearray": "bytes"}
_ARRAY_HEADS: Final = frozenset(bytes([head]) for head in _ARRAYS)
_LIST_OF_ONE: Final = b"\x91"
_MAPS: Final = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})

# The codes of LangGraph's serializer. The content of 0 to 5 is `[module, name, argument]`, or with a method.
_ARGUMENTS, _FIELDS, _ARRAY, _SNAPSHOT = 1, (2, 4, 5), 6, 7
_SNAPSHOT_HEAD: Final = re.compile(rb"(?:[\xd4-\xd8]|\xc7.|\xc8..|\xc9....)\x07", re.DOTALL)


class Serialized(NamedTuple):
    """Data of another serializer: the name of its form, and the data."""

    kind: str
    data: bytes

    @property
    def unwrapped(self) -> Serialized:
        """The value in a snapshot of a delta channel; itself if it is none."""
        head = _SNAPSHOT_HEAD.match(self.data) if self.kind == "msgpack" else None
        return self._replace(data=self.data[head.end() :]) if head else self

    @property
    def is_unknown(self) -> bool:
        """Whether the form is one that nothing here reads, such as an encrypted one."""
        return self.kind not in _NAMES and self.kind != "msgpack"

    @property
    def type(self) -> str:
        """The type of the value, as entries name types."""
        if self.kind == "msgpack" and self.data:
            if self.data[0] in _ARRAYS or self.data[0] in _MAPS:
                return "list" if self.data[0] in _ARRAYS else "dict"
            value = self.value
            return value.type if isinstance(value, Instance) else type(value).__name__
        return _NAMES.get(self.kind, "tuple")

    @property
    def value(self) -> object:
        """The value as it is shown. Data of an unknown form is bytes."""
        if self.kind == "null":
            return None
        return read_serialized(self.kind, self.data, Budget(Limits())) if self.kind in KINDS else self.data

    @property
    def last(self) -> Serialized | None:
        """A list of the last item alone; None if the data is no list, or an empty one."""
        if self.kind != "msgpack" or self.data[:1] not in _ARRAY_HEADS:
            return None
        unpacker = msgpack.Unpacker(max_buffer_size=len(self.data))
        unpacker.feed(self.data)
        try:
            for _ in range(unpacker.read_array_header() - 1):
                unpacker.skip()
        except (ValueError, msgpack.UnpackException):
            return None
        rest = self.data[unpacker.tell() :]
        return Serialized(self.kind, _LIST_OF_ONE + rest) if rest else None


def read_serialized(kind: str, data: bytes, budget: Budget) -> object:
    """The text or the value in the data, a list if there are several values.

    The data itself if it is malformed, or would cost more than the budget has.
    """
    if len(data) * _BYTES_OF_ONE > budget.bytes:
        return data
    budget.take_bytes(len(data) * _BYTES_OF_ONE)
    try:
        if kind == "utf-8":
            return data.decode()
        values = _values(data, budget, 0)
    except (ValueError, TypeError, RecursionError, InertError, msgpack.UnpackException):
        return data
    made = values[0] if len(values) == 1 else values
    # The object of a short content is shared, and a forged pickle may go on to change it.
    return replace(made, fields={**made.fields}) if isinstance(made, Instance) else made


def _values(data: bytes, budget: Budget, depth: int) -> list[object]:
    if depth > _DEEPEST:
        raise ValueError("extensions are nested too deep")

    def entries(pairs: list[tuple[object, object]]) -> dict[object, object]:
        found: dict[object, object] = {}
        budget.put(found, pairs)
        return found

    def extension(code: int, content: bytes) -> object:
        if depth == 0 and len(content) <= _SHORT and code != _SNAPSHOT:
            return _short(code, content)
        return _object(code, _values(content, budget, depth + 1), budget)

    # First without making anything: an array allocates room for as many items as it claims.
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    count = 0
    while unpacker.tell() < len(data):
        unpacker.skip()
        count += 1
    unpacker = msgpack.Unpacker(
        max_buffer_size=len(data), strict_map_key=False, object_pairs_hook=entries, ext_hook=extension
    )
    unpacker.feed(data)
    return [unpacker.unpack() for _ in range(count)]


def _object(code: int, inside: list[object], budget: Budget) -> object:
    """The value of an extension with these values inside; as it is, if its meaning is unknown."""
    match inside:
        case [[str(module), str(name), argument, *method]] if code in range(_ARRAY) and len(method) < 2:
            made = Instance(f"{module}.{name}", args=(argument,))
            if code == _ARGUMENTS and isinstance(argument, list):
                made.args = tuple(argument)
            elif code in _FIELDS and isinstance(argument, dict) and all(type(key) is str for key in argument):
                made.fields, made.args = argument, ()
            return made
        case [[str(dtype), list(shape), str(order), bytes(data)]] if code == _ARRAY:
            kind = Instance("numpy.dtype", args=(dtype[1:],), state=(3, dtype[:1]))
            if array := array_from_buffer((data, kind, tuple(shape), order), budget):
                return array
        case [value] if code == _SNAPSHOT:
            return value
    return Instance("msgpack.ExtType", args=(code, *inside))


@lru_cache(1024)  # of at most 130 KB each, if somebody forged them
def _short(code: int, content: bytes) -> object:
    """The same of a short content: the versions of a chat share their messages."""
    budget = Budget(Limits())
    return _object(code, _values(content, budget, 1), budget)
