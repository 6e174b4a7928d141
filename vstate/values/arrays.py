"""numpy's arrays, scalars and dtypes, read from their pickles without numpy."""

from __future__ import annotations

import codecs
import datetime
import math
import struct
from dataclasses import dataclass
from typing import Final

from vstate.values.budget import Budget
from vstate.values.instance import Instance

_SHOWN: Final = 100
_WIDEST_ITEM: Final = 1000  # bytes
_MOST_DIMENSIONS: Final = 64
# Source: numpy's array-interface type strings; struct's format characters.
_STRUCT_CODES: Final = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_WORDS: Final = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_TIMES: Final = {"M": "datetime64", "m": "timedelta64"}
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NOT_A_TIME: Final = -(2**63)
_EPOCH: Final = datetime.datetime(1970, 1, 1)


@dataclass(eq=False, slots=True, repr=False)
class Array(Instance):
    """A numpy array: fields `dtype`, `shape`, `order` (only if "F"), `data` (its first elements, in the order
    of memory) and `omitted` (the number of the others)."""

    raw: memoryview | None = None
    """All elements as bytes, where known; not a copy."""
    itemsize: int = 0
    """Bytes of one element in `raw`."""
    layout: Layout | None = None
    """How an element of `raw` is read, where known."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; () where it is unknown."""
        shape = self.fields.get("shape")
        known = isinstance(shape, tuple) and _size(shape) is not None
        return shape if known else ()  # type: ignore[return-value]  # _size has checked each part

    @property
    def count(self) -> int:
        """The number of elements that can be read."""
        if self.raw is not None:
            return len(self.raw) // self.itemsize if self.itemsize else 0
        data = self.fields.get("data")
        return len(data) if isinstance(data, list) else 0

    def elements(self, start: int, stop: int) -> list[object]:
        """These elements in the order of memory; empty where they cannot be read."""
        if self.raw is None:
            data = self.fields.get("data")
            return data[start:stop] if isinstance(data, list) else []
        if self.layout is None or self.itemsize > _WIDEST_ITEM:
            return []
        count = max(min(stop, self.count) - start, 0)
        return self.layout.decode(self.raw[start * self.itemsize :], count) or []

    def part(self, start: int, stop: int, step: int = 1) -> Array:
        """The array of one dimension of these elements. It shares their bytes where `step` is 1."""
        count = len(range(start, stop, step))
        found = Array(self.type, {"dtype": self.fields.get("dtype"), "shape": (count,)})
        found.itemsize, found.layout = self.itemsize, self.layout
        if self.raw is None:
            data = self.fields.get("data")
            found.fields["data"] = data[start:stop:step] if isinstance(data, list) else []
            return found
        raw, size = self.raw[start * self.itemsize : stop * self.itemsize], self.itemsize
        if step > 1:
            parts = [raw[at :: size * step].tobytes() for at in range(size)]
            joined = bytearray(count * size)
            for at, part in enumerate(parts):
                joined[at::size] = part
            raw = memoryview(joined)
        found.raw = raw
        found.fields["data"] = found.elements(0, min(count, _SHOWN))
        if count > _SHOWN:
            found.fields["omitted"] = count - _SHOWN
        return found

    def rows(self, start: int, stop: int) -> Array | None:
        """The array of these rows, elements of an array of one dimension. None for rows that lie apart."""
        if self._is_fortran and len(self.shape) > 1:
            return None
        size = math.prod(self.shape[1:])
        found = self.part(start * size, stop * size)
        found.fields["shape"] = (stop - start, *self.shape[1:])
        return found

    def index(self, at: int) -> tuple[int, ...]:
        """The index of the element at this place in memory."""
        return index_of(at, self.shape, is_fortran=self._is_fortran)

    def place(self, index: tuple[int, ...]) -> int:
        """The place in memory of the element at this index, which must be in the shape."""
        at = 0
        for step, size in [*zip(index, self.shape, strict=True)][:: -1 if self._is_fortran else 1]:
            at = at * size + step
        return at

    @property
    def _is_fortran(self) -> bool:
        # Objects are pickled row by row, for any order in memory.
        return self.fields.get("order") == "F" and self.raw is not None


def index_of(at: int, shape: tuple[int, ...], *, is_fortran: bool) -> tuple[int, ...]:
    """The index of the element at a place in the memory of an array of this shape."""
    steps = []
    for size in shape if is_fortran else shape[::-1]:
        at, step = divmod(at, size or 1)
        steps.append(step)
    return tuple(steps if is_fortran else steps[::-1])


@dataclass(frozen=True)
class Layout:
    """The layout of one element, as its dtype describes it."""

    name: str
    code: str
    """Kind and number of bytes, such as "f8"; the kind alone for "O", "S", "U", "V"."""
    itemsize: int
    order: str
    """"<" or ">"."""
    unit: str = ""

    @classmethod
    def of(cls, dtype: object) -> Layout | None:
        """The layout that a pickled `numpy.dtype` describes, or None."""
        if not isinstance(dtype, Instance) or dtype.type != "numpy.dtype" or not dtype.args:
            return None
        code = dtype.args[0]
        if not isinstance(code, str) or not code[1:].isdecimal() or len(code) > 8:
            return None
        state = dtype.state if isinstance(dtype.state, tuple) else ()
        order = ">" if len(state) > 1 and state[1] == ">" else "<"
        kind, count = code[0], int(code[1:])
        if kind in "SVU":
            size = count * 4 if kind == "U" else count
            return cls(f"{kind}{count}{_field_names(state)}", kind, size, order)
        if kind == "O":
            return cls("object", kind, count, order)
        if kind in _TIMES:
            unit = _unit(state)
            name = f"{_TIMES[kind]}[{unit}]" if unit else _TIMES[kind]
            return cls(name, f"i{count}", count, order, unit=f"{kind}{unit}")
        name = "bool" if code == "b1" else f"{_WORDS.get(kind, kind)}{count * 8}"
        return cls(f">{name}" if order == ">" else name, code, count, order)

    def decode(self, raw: memoryview, count: int) -> list[object] | None:
        """The first `count` elements in `raw`; None for an unknown kind."""
        size = self.itemsize
        pieces = (bytes(raw[at : at + size]) for at in range(0, count * size, size or 1))
        if self.code == "S":
            return [piece.rstrip(b"\0") for piece in pieces]
        if self.code == "V":
            return list(pieces)
        if self.code == "U":
            decode = codecs.utf_32_le_decode if self.order == "<" else codecs.utf_32_be_decode
            return [decode(piece, "replace", True)[0].rstrip("\0") for piece in pieces]
        if self.code in ("c8", "c16"):
            part = "f" if self.code == "c8" else "d"
            numbers = struct.unpack_from(f"{self.order}{2 * count}{part}", raw)
            return [complex(*numbers[at : at + 2]) for at in range(0, 2 * count, 2)]
        letter = _STRUCT_CODES.get(self.code)
        if letter is None:
            return None
        numbers = struct.unpack_from(f"{self.order}{count}{letter}", raw)
        return [_time(number, self.unit) for number in numbers] if self.unit else list(numbers)


def _field_names(state: tuple[object, ...]) -> str:
    names = state[3] if len(state) > 3 else None
    if not isinstance(names, tuple):
        return ""
    shown = [name for name in names[:20] if isinstance(name, str) and len(name) <= 50]
    return f"({', '.join(shown)}{', …' if len(shown) < len(names) else ''})"


def _unit(state: tuple[object, ...]) -> str:
    # The state of a dtype of times ends with (metadata, (unit, count, numerator, denominator)).
    match state[8:]:
        case ((_, (bytes(unit), int(count), *_)),) if len(unit) <= 4 and 0 < count < 10**6:
            text = unit.decode("ascii", "replace")
            return text if count == 1 else f"{count}{text}"
    return ""


def _time(number: int, unit: str) -> object:
    if number == _NOT_A_TIME:
        return "NaT"
    kind, unit = unit[0], unit[1:]
    if kind == "M" and unit == "D" and abs(number) < 700_000:
        return (_EPOCH + datetime.timedelta(days=number)).date().isoformat()
    rate = _PER_SECOND.get(unit)
    if kind != "M" or rate is None or abs(number) // rate >= 60_000_000_000:
        return number
    seconds, rest = divmod(number, rate)
    text = (_EPOCH + datetime.timedelta(seconds=seconds)).isoformat()
    return f"{text}.{rest:0{len(str(rate)) - 1}}" if rate > 1 else text


def array_from_buffer(args: tuple[object, ...], budget: Budget) -> Array | None:
    """The array that `numpy._core.numeric._frombuffer(buffer, dtype, shape, order)` would make, or None."""
    match args:
        case (bytes() | bytearray() | memoryview() as buffer, dtype, tuple(shape), str(order)):
            array = Array("numpy.ndarray")
            return array if _describe(array, buffer, Layout.of(dtype), shape, order, budget) else None
    return None


def fill_array(array: Array, state: object, budget: Budget) -> bool:
    """Give a bare array the state (version, shape, dtype, is Fortran, data); False for any other state."""
    match state:
        case (_, tuple(shape), dtype, int(fortran), data):
            order = "F" if fortran else "C"
            layout = Layout.of(dtype)
            if isinstance(data, bytes | bytearray | memoryview):
                return _describe(array, data, layout, shape, order, budget)
            if isinstance(data, list) and layout and layout.code == "O" and _size(shape) == len(data):
                _give_fields(array, layout, shape, order, data)
                return True
    return False


def scalar(args: tuple[object, ...], budget: Budget) -> Instance | None:
    """The scalar that `numpy._core.multiarray.scalar(dtype, data)` would make, or None."""
    match args:
        case (dtype, bytes() | bytearray() | memoryview() as data):
            layout = Layout.of(dtype)
            raw = _bytes_of(data)
            if layout and raw is not None and 0 < layout.itemsize == len(raw) <= _WIDEST_ITEM:
                _pay(layout, 1, budget)
                decoded = layout.decode(raw, 1)
                if decoded is not None:
                    return Instance(f"numpy.{layout.name.split('[')[0]}", args=(decoded[0],))
    return None


def _describe(
    array: Array,
    data: bytes | bytearray | memoryview,
    layout: Layout | None,
    shape: tuple[object, ...],
    order: str,
    budget: Budget,
) -> bool:
    raw = _bytes_of(data)
    size = _size(shape)
    if layout is None or raw is None or size is None or layout.code == "O":
        return False
    if size * layout.itemsize != len(raw):
        return False
    array.raw = raw
    array.itemsize = layout.itemsize
    array.layout = layout
    shown = min(size, _SHOWN) if layout.itemsize <= _WIDEST_ITEM else 0
    _pay(layout, shown, budget)
    decoded = layout.decode(raw, shown) or []
    _give_fields(array, layout, shape, order, decoded)
    if size > len(decoded):
        array.fields["omitted"] = size - len(decoded)
    return True


def _give_fields(
    array: Array, layout: Layout, shape: tuple[object, ...], order: str, data: list[object]
) -> None:
    array.fields.update(dtype=layout.name, shape=shape)
    if order == "F":
        array.fields["order"] = order
    array.fields["data"] = data


def _pay(layout: Layout, count: int, budget: Budget) -> None:
    budget.take_bytes(500 + 4 * len(layout.name) + count * (2 * layout.itemsize + 50))


def _bytes_of(data: bytes | bytearray | memoryview) -> memoryview | None:
    view = memoryview(data)
    if not view.contiguous or 0 in (view.shape or ()):
        return memoryview(b"") if view.nbytes == 0 else None
    if view.format == "B" and view.ndim == 1:
        return view
    try:
        return view.cast("B")
    except (TypeError, ValueError):
        return None


def _size(shape: tuple[object, ...]) -> int | None:
    if len(shape) > _MOST_DIMENSIONS:
        return None
    sizes = [size for size in shape if isinstance(size, int) and 0 <= size < 2**62]
    return math.prod(sizes) if len(sizes) == len(shape) else None
