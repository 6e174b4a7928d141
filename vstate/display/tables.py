"""Tables: frames and lists of records as columns, with their first and last rows."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vstate.display.cells import cell_text
from vstate.values.inert import Instance
from vstate.values.tables import table_of

__all__ = ["ColumnView", "TableView", "records_view", "table_view"]

_MOST_COLUMNS: Final = 100
_ALL_ROWS: Final = 30  # up to so many rows are all shown
_FIRST: Final = 15
_LAST: Final = 5
_CHECKED: Final = 10_000  # records that are checked for having the same fields
_LONGEST_FIELD: Final = 60  # characters of a field that still reads well in a table
_MOST_FIELDS: Final = 30


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
    first: tuple[tuple[str, ...], ...]
    last: tuple[tuple[str, ...], ...]


def table_view(value: Instance) -> TableView | None:
    """The view of a frame; None if its form is not known."""
    table = table_of(value)
    if table is None:
        return None
    shown = table.columns[:_MOST_COLUMNS]
    rows: list[tuple[tuple[str, ...], ...]] = []
    for start, stop in _ranges(table.rows):
        cells = [[cell_text(label) for label in level.cells(start, stop)] for level in table.labels]
        cells = cells or [[str(row) for row in range(start, stop)]]
        for column in shown:
            known = [cell_text(cell) for cell in column.cells(start, stop)]
            cells.append(known if len(known) == stop - start else ["?"] * (stop - start))
        rows.append(tuple(zip(*cells, strict=True)))
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
    rows: list[tuple[tuple[str, ...], ...]] = []
    for start, stop in _ranges(len(value)):
        part: list[tuple[str, ...]] = []
        for number, record in enumerate(value[start:stop], start):
            if not isinstance(record, dict) or record.keys() != names:
                return None
            if not all(_is_short(record[name]) for name in names):
                return None
            part.append((f"[{number}]", *(cell_text(record[name]) for name in names)))
        rows.append(tuple(part))
    columns = tuple(ColumnView(cell_text(name), type(value[0][name]).__name__) for name in names)
    kind = f"{type(value).__name__} of dict"
    return TableView(kind, len(value), (ColumnView("", ""),), columns, 0, rows[0], rows[1])


def _ranges(rows: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return ((0, rows), (rows, rows)) if rows <= _ALL_ROWS else ((0, _FIRST), (rows - _LAST, rows))


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_FIELD and "\n" not in value
    return value is None or isinstance(value, int | float | complex | datetime.date | datetime.time)
