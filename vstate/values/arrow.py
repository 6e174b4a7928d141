"""Arrow: the cells of pyarrow's arrays, read from their buffers without pyarrow.

A pickled array is a type, a length, an offset and the buffers of the Arrow columnar format: a bitmap of the
cells that are present, then the cells; for texts the offsets of their ends, then the bytes of all.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from vstate.values.arrays import Layout
from vstate.values.instance import Instance

__all__ = ["MOST_CHUNKS", "ArrowCells", "chunk_count", "read_arrow"]

MOST_CHUNKS: Final = 100_000
"""Of all columns of a table: a forged one may have the same chunks in each."""

_MOST_BUFFERS: Final = 3  # of an array that is read
_LAYOUTS: Final = {
    **{f"int{bits}": Layout(f"int{bits}", f"i{bits // 8}", bits // 8, "<") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": Layout(f"uint{bits}", f"u{bits // 8}", bits // 8, "<") for bits in (8, 16, 32, 64)},
    "halffloat": Layout("float16", "f2", 2, "<"),
    "float": Layout("float32", "f4", 4, "<"),
    "double": Layout("float64", "f8", 8, "<"),
    "date32[day]": Layout("date", "i4", 4, "<", unit="MD"),
    "date64[ms]": Layout("date", "i8", 8, "<", unit="Mms"),
}
_TEXTS: Final = {"string": "i", "large_string": "q", "binary": "i", "large_binary": "q"}


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One stored array. `present` is None when no cell is missing."""

    dtype: str
    rows: int
    offset: int
    present: memoryview | None
    layout: Layout | None
    ends: str
    """The format of the offsets of texts and bytes; "" for numbers."""
    buffers: tuple[memoryview, ...]

    @property
    def is_readable(self) -> bool:
        return bool(self.layout or self.ends or self.dtype == "bool")

    def cells(self, start: int, stop: int) -> list[object]:
        start, stop = start + self.offset, stop + self.offset
        found: list[object]
        data = self.buffers[0]
        if self.dtype == "bool":
            found = [bool(data[at >> 3] >> (at & 7) & 1) for at in range(start, stop)]
        elif self.ends:
            size = struct.calcsize(self.ends)
            ends = struct.unpack_from(f"<{stop - start + 1}{self.ends}", data, start * size)
            texts = self.buffers[1]
            if any(first > last or first < 0 for first, last in pairwise(ends)):
                return [None] * (stop - start)  # forged: such texts could be one long text, many times
            pieces = [bytes(texts[first:last]) for first, last in pairwise(ends)]
            is_text = "string" in self.dtype
            found = [piece.decode("utf-8", "replace") for piece in pieces] if is_text else [*pieces]
        else:
            assert self.layout is not None
            found = self.layout.decode(data[start * self.layout.itemsize :], stop - start) or []
        present = self.present
        if present is None:
            return found
        return [cell if present[at >> 3] >> (at & 7) & 1 else None for at, cell in enumerate(found, start)]


@dataclass(frozen=True, slots=True)
class ArrowCells:
    """The cells of one array, or of several chunks."""

    dtype: str
    rows: int
    is_readable: bool
    """Whether `cells` can read this type."""
    chunks: tuple[_Chunk, ...]
    ends: tuple[int, ...]
    """The number of rows up to the end of each chunk."""

    def cells(self, start: int, stop: int) -> list[object]:
        """The cells [start, stop), None for a missing one."""
        found: list[object] = []
        number = bisect_right(self.ends, start)
        while start < stop and number < len(self.chunks):
            chunk, end = self.chunks[number], self.ends[number]
            first = end - chunk.rows
            found += chunk.cells(start - first, min(stop, end) - first)
            start, number = end, number + 1
        return found


def chunk_count(value: object) -> int:
    """The number of chunks in a pickled array, also in one that pandas holds; 1 for other values."""
    inner = value.fields.get("_pa_array", value) if isinstance(value, Instance) else value
    match inner:
        case Instance(type="pyarrow.lib.chunked_array", args=(list(parts), _)):
            return len(parts)
    return 1


def read_arrow(value: object) -> ArrowCells | None:
    """The cells of a pickled pyarrow array or chunked array; None for other values and malformed arrays."""
    match value:
        case Instance(type="pyarrow.lib._restore_array"):
            parts: list[object] = [value]
            kind = None
        case Instance(type="pyarrow.lib.chunked_array", args=(list(parts), kind)):
            if len(parts) > MOST_CHUNKS:
                return None
        case _:
            return None
    chunks = [chunk for part in parts if (chunk := _chunk(part)) is not None]
    if len(chunks) < len(parts) or len({chunk.dtype for chunk in chunks}) > 1:
        return None
    dtype = chunks[0].dtype if chunks else _type(kind)[0]
    ends = tuple(accumulate(chunk.rows for chunk in chunks))
    readable = all(chunk.is_readable for chunk in chunks)
    return ArrowCells(dtype, ends[-1] if ends else 0, readable, tuple(chunks), ends)


def _chunk(part: object) -> _Chunk | None:
    match part:
        case Instance(
            type="pyarrow.lib._restore_array",
            args=((kind, int(rows), int(), int(offset), list(buffers), *_),),
        ) if rows >= 0 <= offset and buffers:
            dtype, layout = _type(kind)
            views = [_buffer(buffer) for buffer in buffers[:_MOST_BUFFERS]]
            ends = _TEXTS.get(dtype, "")
            known = [view for view in views[1:] if view is not None]
            chunk = _Chunk(dtype, rows, offset, views[0], layout, ends, tuple(known))
            if not chunk.is_readable:
                return chunk
            return chunk if len(known) == (2 if ends else 1) and _is_whole(chunk) else None
    return None


def _is_whole(chunk: _Chunk) -> bool:
    """Whether the buffers of a readable chunk are as long as its rows need."""
    rows = chunk.rows + chunk.offset
    if chunk.present is not None and len(chunk.present) * 8 < rows:
        return False
    data = chunk.buffers[0]
    if chunk.ends:
        return len(data) >= (rows + 1) * struct.calcsize(chunk.ends)
    return len(data) * 8 >= rows if chunk.layout is None else len(data) >= rows * chunk.layout.itemsize


def _buffer(buffer: object) -> memoryview | None:
    match buffer:
        case Instance(type="pyarrow.lib.py_buffer", args=(bytes() | bytearray() | memoryview() as data,)):
            view = memoryview(data)
            return view.cast("B") if view.contiguous and view.nbytes else memoryview(b"")
    return None


def _type(kind: object) -> tuple[str, Layout | None]:
    """The name of an Arrow type, and the layout of its cells if they are numbers or times."""
    match kind:
        case Instance(type="pyarrow.lib.type_for_alias", args=(str(name),)):
            layout = _LAYOUTS.get(name)
            return (name if layout is None else layout.name), layout
        case Instance(type="pyarrow.lib.timestamp", args=(str(unit), str() | None as zone)):
            name = f"timestamp[{unit}]" if zone is None else f"timestamp[{unit}, {zone}]"
            return name, Layout(name, "i8", 8, "<", unit=f"M{unit}")
        case Instance(type=name):
            return name.removeprefix("pyarrow.lib.").rstrip("_"), None
    return "unknown", None
