"""Tables: frames and lists of records as columns, with their first and last rows."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vstate.display.cells import cell_text
from vstate.plural import counted
from vstate.values.instance import Instance
from vstate.values.tables import Table, table_of

_MOST_COLUMNS: Final = 100
_ALL_ROWS: Final = 30  # up to so many rows are all shown
_FIRST: Final = 15
_LAST: Final = 5
_CHECKED: Final = 10_000  # records that are checked for having the same fields
_LONGEST_FIELD: Final = 60  # characters of a field that still reads well in a table
_MOST_FIELDS: Final = 30
_CELLS_TOLD: Final = 5


Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class ColumnView:
    """A column: its name and dtype; `is_readable` is false if its cells cannot be read."""

    name: str
    dtype: str
    is_readable: bool = True


@dataclass(frozen=True, slots=True)
class TableView:
    """A table. `first` and `last` are rows of texts: the labels of the row, then its cells."""

    type: str
    rows: int
    labels: tuple[ColumnView, ...]
    columns: tuple[ColumnView, ...]
    more_columns: int
    """The number of columns behind those that are described."""
    first: Rows
    last: Rows


def table_view(value: Instance) -> TableView | None:
    """The view of a frame; None if its form is not known."""
    table = table_of(value)
    if table is None:
        return None
    shown = table.columns[:_MOST_COLUMNS]
    rows = [_frame_rows(table, start, stop) for start, stop in _ranges(table.rows)]
    columns = tuple(ColumnView(cell_text(c.name), c.dtype, c.read is not None) for c in shown)
    levels = tuple(ColumnView(cell_text(level.name), level.dtype) for level in table.labels)
    more = len(table.columns) - len(shown)
    return TableView(table.type, table.rows, levels or (ColumnView("", ""),), columns, more, rows[0], rows[1])


def records_view(value: Sequence[object]) -> TableView | None:
    """The view of a list of dicts of the same fields; None for others, and where a table reads worse."""
    if len(value) < 2 or not isinstance(value[0], dict) or not 1 < len(value[0]) <= _MOST_FIELDS:
        return None
    names = value[0].keys()
    if not all(type(name) is str for name in names):
        return None
    for record in value[:_CHECKED]:
        if not isinstance(record, dict) or record.keys() != names:
            return None
    rows: list[Rows] = []
    for start, stop in _ranges(len(value)):
        for record in value[start:stop]:
            if not isinstance(record, dict) or record.keys() != names:
                return None
            if not all(_is_short(record[name]) for name in names):
                return None
        rows.append(_record_rows(value, start, stop))
    columns = tuple(ColumnView(cell_text(name), type(value[0][name]).__name__) for name in names)
    kind = f"{type(value).__name__} of dict"
    return TableView(kind, len(value), (ColumnView("", ""),), columns, 0, rows[0], rows[1])


def column_text(value: object) -> str | None:
    """A column as a line: `float64, 2,000 cells: 0.0, 1.5, …`; None for another value."""
    if not isinstance(value, Instance) or value.type != "column":
        return None
    data, left_out = value.fields.get("data"), value.fields.get("omitted", 0)
    cells = [*value.entries.values()] if value.entries is not None else data
    if not isinstance(cells, list) or not isinstance(left_out, int):
        return None
    count = len(cells) + left_out
    shown = [cell_text(cell) for cell in cells[:_CELLS_TOLD]] + ["…"] * (count > _CELLS_TOLD)
    return f"{value.fields.get('dtype')}, {counted(count, 'cell')}: {', '.join(shown)}"


def table_rows(value: object, start: int, stop: int) -> Rows:
    """The rows [start, stop) of a value whose view is a TableView, as `first` and `last` of it have them."""
    start, stop = max(start, 0), max(stop, 0)
    if isinstance(value, list | tuple):
        return _record_rows(value, start, min(stop, len(value)))
    table = table_of(value)
    return () if table is None else _frame_rows(table, start, min(stop, table.rows))


def _frame_rows(table: Table, start: int, stop: int) -> Rows:
    if stop <= start:
        return ()
    cells = [[cell_text(label) for label in level.cells(start, stop)] for level in table.labels]
    cells = cells or [[str(row) for row in range(start, stop)]]
    for column in table.columns[:_MOST_COLUMNS]:
        known = [cell_text(cell) for cell in column.cells(start, stop)]
        cells.append(known if len(known) == stop - start else ["?"] * (stop - start))
    return tuple(zip(*cells, strict=True))


def _record_rows(records: Sequence[object], start: int, stop: int) -> Rows:
    """A record that differs from the first in its fields, which the view did not look at, has empty cells."""
    first = records[0]
    assert isinstance(first, dict)
    rows = []
    for number, record in enumerate(records[start:stop], start):
        found = record if isinstance(record, dict) else {}
        rows.append((f"[{number}]", *(cell_text(found.get(name)) for name in first)))
    return tuple(rows)


def _ranges(rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return ((0, rows), (rows, rows)) if rows <= _ALL_ROWS else ((0, _FIRST), (rows - _LAST, rows))


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_FIELD and "\n" not in value
    return value is None or isinstance(value, int | float | complex | datetime.date | datetime.time)
