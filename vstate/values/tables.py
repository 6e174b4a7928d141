"""Tables: the columns and rows of stored data frames, read without pandas and pyarrow.

pandas stores a frame as blocks of columns, and pyarrow a table as chunks of columns. `table_of` finds the
columns in these. Nothing is copied before it is asked for.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from vstate.values.arrays import Array, Layout
from vstate.values.budget import Budget, InertError, Limits
from vstate.values.instance import Global, Instance

_MOST_COLUMNS: Final = 10_000
_FRAMES: Final = frozenset({"pandas.DataFrame", "pandas.core.frame.DataFrame"})
_SERIES: Final = frozenset({"pandas.Series", "pandas.core.series.Series"})
_ARROW: Final = frozenset({"pyarrow.lib._reconstruct_table", "pyarrow.lib._reconstruct_record_batch"})
# polars stores its frames in a binary form of its own, which nothing here reads.
_UNREAD: Final = frozenset({"polars.dataframe.frame.DataFrame", "polars.series.series.Series"})
_TABLES: Final = _FRAMES | _SERIES | _ARROW | _UNREAD

_MOST_CHUNKS: Final = 100_000  # of all columns of a table: a forged one may have the same chunks in each
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

Read = Callable[[int, int], list[object]]


@dataclass(eq=False, slots=True)
class Column:
    """A column of a table, or the labels of its rows."""

    name: object
    dtype: str
    rows: int
    read: Read | None
    """The cells [start, stop), None for a missing one; None if the cells cannot be read."""
    source: object = None
    """The stored part with the cells."""
    array: Array | None = None
    """The cells as one array, where they are one."""
    range: range | None = None
    """The cells, where they are a range: the labels that pandas gives to rows without labels."""

    def cells(self, start: int, stop: int) -> list[object]:
        """The cells [start, stop); empty if they cannot be read."""
        start, stop = max(start, 0), min(stop, self.rows)
        if self.read is None or stop <= start:
            return []
        found = self.read(start, stop)[: stop - start]
        return found + [None] * (stop - start - len(found))  # a forged table lacks some


@dataclass(eq=False, slots=True)
class Table:
    """A stored frame: its kind, its columns in order, and the labels of its rows.

    The kind is DataFrame, Series, Table or RecordBatch. A Series has one column.
    """

    type: str
    rows: int
    columns: list[Column]
    labels: list[Column]
    """The columns of the index: one, or one for each level. None for a table without labels."""
    rest: dict[str, object]
    """The fields of the frame that are not in its columns and labels, such as pandas' `attrs`."""

    def label(self, row: int) -> object:
        """The label of a row: a tuple with several levels, the number of the row without labels."""
        found = tuple(next(iter(level.cells(row, row + 1)), None) for level in self.labels)
        return found[0] if len(found) == 1 else found or row

    @property
    def is_labelled(self) -> bool:
        """Whether the program has named the rows; otherwise they have only their numbers."""
        return any(level.range is None for level in self.labels)


def is_table(value: object) -> bool:
    """Whether a value is of a class whose columns `table_of` looks for."""
    return isinstance(value, Instance) and value.type in _TABLES


def table_of(value: object) -> Table | None:
    """The table in `value`, as `inert.read` returns it; None for other values and for unknown forms of it."""
    try:
        return _known_table(value)
    except RecursionError:  # a forged index that is nested very deep, or holds itself
        return None


def _known_table(value: object) -> Table | None:
    if not isinstance(value, Instance) or value.type not in _TABLES - _UNREAD:
        return None
    if value.type in _SERIES:
        return _series(value)
    table = _arrow_table(value) if value.type in _ARROW else _frame(value)
    if table is not None:
        names = [column.name for column in table.columns]
        try:
            Budget(Limits()).add(set(), names)  # a forged name may be slow or impossible to hash
        except InertError:
            return None
    return table


# --- pandas


def _frame(frame: Instance) -> Table | None:
    axes, blocks = _manager(frame.fields.get("_mgr"))
    if len(axes) != 2:
        return None
    names, labels = _labels(axes[0]), _labels(axes[1])
    if not names or not labels or names[0].rows > _MOST_COLUMNS:
        return None
    if sum(_chunk_count(values) for values, _ in blocks) > _MOST_CHUNKS:
        return None
    width, height = names[0].rows, labels[0].rows
    found: dict[int, Column] = {}
    for values, where in blocks:
        places = _places(where, width)
        if places is None:
            return None
        for number, place in enumerate(places):
            column = _column(values, height, number, len(places))
            if column is None or not 0 <= place < width or place in found:
                return None
            found[place] = column
    if len(found) != width:
        return None
    titles = [level.cells(0, width) for level in names]
    for place, column in found.items():
        title = tuple(level[place] if place < len(level) else None for level in titles)
        column.name = title[0] if len(title) == 1 else title
    rest = {name: part for name, part in frame.fields.items() if name not in ("_mgr", "_typ")}
    return Table("DataFrame", height, [found[place] for place in range(width)], labels, rest)


def _series(series: Instance) -> Table | None:
    axes, blocks = _manager(series.fields.get("_mgr"))
    labels = _labels(axes[0]) if len(axes) == 1 else []
    if not labels or len(blocks) != 1:
        return None
    column = _column(blocks[0][0], labels[0].rows, 0, 1)
    if column is None:
        return None
    column.name = series.fields.get("_name")
    rest = {name: part for name, part in series.fields.items() if name not in ("_mgr", "_typ", "_name")}
    return Table("Series", labels[0].rows, [column], labels, rest)


def _manager(manager: object) -> tuple[Sequence[object], list[tuple[object, object]]]:
    """The axes of a block manager, and its blocks: the values of each, and the places of its columns."""
    if not isinstance(manager, Instance) or not manager.type.startswith("pandas."):
        return (), []
    match manager.args:
        case (tuple() as blocks, list() as axes):
            parts = [block.args for block in blocks if isinstance(block, Instance) and len(block.args) >= 2]
            return axes, [(args[0], args[1]) for args in parts]
    match manager.state:
        case (*_, {"0.14.1": {"axes": list() as axes, "blocks": list() as older}}):
            known = [block for block in older if isinstance(block, dict)]
            return axes, [(block.get("values"), block.get("mgr_locs")) for block in known]
    return (), []


def _places(where: object, width: int) -> Sequence[int] | None:
    """The numbers of the columns of a block."""
    if isinstance(where, Array):
        count = where.count
        numbers = [n for n in where.elements(0, count) if isinstance(n, int)] if count <= width else []
        return numbers if len(numbers) == count else None
    match where:
        case Instance(type="builtins.slice", args=(int(start), int(stop), int() | None as step)) if step != 0:
            places = range(start, stop, step or 1)
            # A slice of a forged frame may have more numbers than there are.
            return places if abs(stop - start) <= width * abs(step or 1) else None
    return None


def _labels(index: object, *, levelled: bool = True) -> list[Column]:
    """The levels of an index; none if its form is unknown, or if it may have no levels and has."""
    if not isinstance(index, Instance) or not index.type.startswith("pandas."):
        return []
    fields = index.fields
    match index.args:
        case (_, dict(named)) if index.called:  # pandas.core.indexes.datetimes._new_DatetimeIndex
            fields = {name: part for name, part in named.items() if isinstance(name, str)}
    match fields:
        case {"start": int(start), "stop": int(stop), "step": int(step)} if step:
            numbers = range(start, stop, step)
            try:
                rows = len(numbers)
            except OverflowError:
                return []

            def read(start: int, stop: int) -> list[object]:
                return [*numbers[start:stop]]

            return [Column(fields.get("name"), "int64", rows, read, range=numbers)]
        case {"levels": list(levels), "codes": list(codes)} if 0 < len(levels) == len(codes) <= 100:
            if not levelled:
                return []
            names = fields.get("names")
            names = names if isinstance(names, list) and len(names) == len(levels) else [None] * len(levels)
            pairs = zip(levels, codes, strict=True)
            columns = [column for level, code in pairs if (column := _coded(level, code)) is not None]
            if len(columns) < len(levels) or len({column.rows for column in columns}) != 1:
                return []
            for column, name in zip(columns, names, strict=True):
                column.name = name
            return columns
        case {"data": data}:
            count = _rows(data)
            only = None if count is None else _column(data, count, 0, 1)
            if only is None or only.read is None:
                return []
            only.name = fields.get("name")
            return [only]
    return []


def _rows(values: object) -> int | None:
    """The number of values in a pandas array of one dimension."""
    if isinstance(values, Array):
        return values.shape[0] if len(values.shape) == 1 else None
    if not isinstance(values, Instance):
        return None
    if isinstance(values.state, tuple) and len(values.state) > 1:
        return _rows(values.state[1])
    for name in ("_data", "_left", "_ndarray", "_pa_array"):
        part = values.fields.get(name)
        if part is not None:
            arrow = _arrow(part)
            return arrow.rows if arrow is not None else _rows(part)
    return None


def _column(values: object, rows: int, number: int, width: int) -> Column | None:
    """Column `number` of the `width` columns in a block; None if the block has another form."""
    if isinstance(values, Array):
        shape = values.shape
        if shape == (rows,) and width == 1:
            return _of_array(values)
        if shape != (width, rows):
            return None
        if width == 1:
            return _of_array(values.part(0, rows))
        if values.fields.get("order") == "F" and values.raw is not None:
            return _of_strided(values, rows, number, width)
        return _of_array(values.part(number * rows, (number + 1) * rows))
    if not isinstance(values, Instance):
        return None
    # A class with a reducer of its own is the first argument of a call.
    maker = values.args[0] if values.called and values.args else None
    kind = (maker.name if isinstance(maker, Global) else values.type).rpartition(".")[2]
    unread = Column(None, kind, rows, None, values)
    match values.state:
        case (Instance() as dtype, Array() as inner, *_):
            if kind == "Categorical":
                coded = _coded(dtype.fields.get("categories"), inner)
                if coded is None or coded.rows != rows:
                    return unread
                coded.dtype, coded.source = "category", values
                return coded
            column = _column(inner, rows, number, width)
            if column is None:
                return unread
            column.dtype = _dtype_name(dtype, column.dtype)
            if kind == "PeriodArray":  # numbers, whose meaning depends on the frequency
                column.array = column.read = None
            elif ", " in column.dtype and column.read is not None:
                column.read = _in_utc(column.read)
            return column
    if "_data" in values.fields and "_mask" in values.fields:
        return _masked(values, rows, kind) or unread
    arrow = _arrow(values.fields.get("_pa_array"))
    if arrow is not None and arrow.rows == rows:
        named = values.fields.get("_dtype")
        is_text = isinstance(named, Instance) and named.type.endswith("StringDtype")
        arrow.dtype, arrow.source = "str" if is_text else f"{arrow.dtype}[pyarrow]", values
        return arrow
    return unread


def _in_utc(read: Read) -> Read:
    """Times of a column with a time zone, which are stored in UTC."""

    def times(start: int, stop: int) -> list[object]:
        cells = read(start, stop)
        return [f"{cell}Z" if isinstance(cell, str) and cell != "NaT" else cell for cell in cells]

    return times


def _of_array(array: Array) -> Column:
    dtype = array.fields.get("dtype")
    rows = array.shape[0] if array.shape else 0
    readable = array.count == rows and (array.layout is None or bool(array.elements(0, 1)) or not rows)
    read = array.elements if readable else None
    return Column(None, str(dtype), rows, read, array, array if array.raw is not None else None)


def _of_strided(block: Array, rows: int, number: int, width: int) -> Column:
    """A column whose cells lie apart in memory."""

    def read(start: int, stop: int) -> list[object]:
        last = (stop - 1) * width + number
        return block.part(start * width + number, last + 1, width).elements(0, stop - start)

    dtype = str(block.fields.get("dtype"))
    readable = block.layout is not None and (not rows or bool(block.elements(0, 1)))
    return Column(None, dtype, rows, read if readable else None, block)


def _coded(categories: object, codes: object) -> Column | None:
    """The cells that are numbers of categories, -1 for a missing one."""
    found = _labels(categories, levelled=False)  # levels of levels would multiply
    if len(found) != 1 or not isinstance(codes, Array) or codes.raw is None or len(codes.shape) > 2:
        return None
    (level,) = found

    def read(start: int, stop: int) -> list[object]:
        numbers = codes.elements(start, stop)
        if level.rows <= 2 * len(numbers):
            every = level.cells(0, level.rows)
            return [every[n] if isinstance(n, int) and 0 <= n < len(every) else None for n in numbers]
        known = ((n if isinstance(n, int) and n >= 0 else level.rows) for n in numbers)
        return [next(iter(level.cells(n, n + 1)), None) for n in known]

    return Column(None, level.dtype, codes.count, read, codes)


def _masked(values: Instance, rows: int, kind: str) -> Column | None:
    """The cells of which a second array says which are missing."""
    data, mask = values.fields["_data"], values.fields["_mask"]
    if not isinstance(data, Array) or not isinstance(mask, Array):
        return None
    if data.shape != (rows,) or mask.shape != (rows,) or data.layout is None:
        return None

    def read(start: int, stop: int) -> list[object]:
        cells, gone = data.elements(start, stop), mask.elements(start, stop)
        return [None if hole else cell for cell, hole in zip(cells, gone, strict=False)]

    dtype = str(data.fields.get("dtype"))
    return Column(None, dtype.capitalize() if kind != "BooleanArray" else "boolean", rows, read, values)


def _dtype_name(dtype: Instance, otherwise: str) -> str:
    """The name of a dtype that pandas stores beside the values."""
    kind = dtype.type.rpartition(".")[2]
    match kind, dtype.fields, dtype.args:
        case "DatetimeTZDtype", {"unit": str(unit), "tz": zone}, _:
            name = zone.args[0] if isinstance(zone, Instance) and zone.args else "UTC"
            return f"datetime64[{unit}, {name}]"
        case "PeriodDtype", _, (str(name), *_):
            return name
        case "StringDtype", _, _:
            return "str"
    layout = Layout.of(dtype)
    return otherwise if layout is None else layout.name


# --- pyarrow
#
# A pickled array is a type, a length, an offset and the buffers of the Arrow columnar format: a bitmap of the
# cells that are present, then the cells; for texts the offsets of their ends, then the bytes of all.


def _arrow_table(value: Instance) -> Table | None:
    match value.args:
        case (list(parts), Instance(args=(list(fields), *_))) if len(parts) == len(fields) <= _MOST_COLUMNS:
            if sum(map(_chunk_count, parts)) > _MOST_CHUNKS:
                return None
            columns = [column for part in parts if (column := _arrow(part)) is not None]
            rows = columns[0].rows if columns else 0
            if len(columns) < len(parts) or any(column.rows != rows for column in columns):
                return None
            for column, field in zip(columns, fields, strict=True):
                column.name = field.args[0] if isinstance(field, Instance) and field.args else None
            kind = "RecordBatch" if value.type.endswith("batch") else "Table"
            return Table(kind, rows, columns, [], {})
    return None


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


def _chunk_count(value: object) -> int:
    """The number of chunks in a pickled array, also in one that pandas holds; 1 for other values."""
    inner = value.fields.get("_pa_array", value) if isinstance(value, Instance) else value
    match inner:
        case Instance(type="pyarrow.lib.chunked_array", args=(list(parts), _)):
            return len(parts)
    return 1


def _arrow(value: object) -> Column | None:
    """The cells of a pickled pyarrow array or chunked array; None for other values and malformed arrays."""
    match value:
        case Instance(type="pyarrow.lib._restore_array"):
            parts: list[object] = [value]
            kind = None
        case Instance(type="pyarrow.lib.chunked_array", args=(list(parts), kind)):
            if len(parts) > _MOST_CHUNKS:
                return None
        case _:
            return None
    chunks = [chunk for part in parts if (chunk := _chunk(part)) is not None]
    if len(chunks) < len(parts) or len({chunk.dtype for chunk in chunks}) > 1:
        return None
    dtype = chunks[0].dtype if chunks else _type(kind)[0]
    ends = [*accumulate(chunk.rows for chunk in chunks)]

    def read(start: int, stop: int) -> list[object]:
        found: list[object] = []
        number = bisect_right(ends, start)
        while start < stop and number < len(chunks):
            chunk, end = chunks[number], ends[number]
            first = end - chunk.rows
            found += chunk.cells(start - first, min(stop, end) - first)
            start, number = end, number + 1
        return found

    readable = all(chunk.is_readable for chunk in chunks)
    return Column(None, dtype, ends[-1] if ends else 0, read if readable else None, value)


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
