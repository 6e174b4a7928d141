"""Tables: the columns, rows and cells in which two stored data frames differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from vstate.plural import counted
from vstate.repo.compare.arrays import Found, runs
from vstate.repo.compare.matching import Matching, same_atom
from vstate.repo.compare.steps import step_of
from vstate.values.alignment import Aligner
from vstate.values.budget import Budget, InertError, Limits
from vstate.values.instance import Instance
from vstate.values.tables import Column, Table

_MOST_CELLS: Final = 10  # of a column, that are named one by one
_MOST_ROWS: Final = 10  # added or removed
_BLOCK: Final = 4096  # rows of a column that are read together
_SHOWN: Final = 100  # cells of a column, in its description
_MOST_ALIGNED: Final = 200_000  # cells of rows without labels that are compared to align the rows
_ALIGN_STEPS: Final = 1_000_000
_SHORT: Final = 20  # characters of a label
_MISSING: Final = "became missing"
_RETYPED: Final = "changed their type"

_Pairs = list[tuple[Column | None, Column | None]]


class _Rows(NamedTuple):
    """The rows that two tables share, as runs (old, new, length), and the numbers of all others."""

    shared: list[tuple[int, int, int]]
    removed: Sequence[int]
    added: Sequence[int]


def column_value(column: Column) -> Instance:
    """A column as a value to show: its dtype, its first cells and the number of the others."""
    found = Instance("column", {"dtype": column.dtype, "data": column.cells(0, _SHOWN)})
    if column.rows > _SHOWN:
        found.fields["omitted"] = column.rows - _SHOWN
    return found


def row_value(table: Table, row: int) -> dict[str, object]:
    """A row as a value to show: its first cells, by the names of their columns."""
    columns = table.columns[:_SHOWN]
    return {_name(column.name): next(iter(column.cells(row, row + 1)), None) for column in columns}


def by_label(table: Table, cells: Sequence[object]) -> dict[object, object]:
    """One thing for each row, by the labels of the rows; by number where labels repeat, or print alike."""
    levels = [level.cells(0, level.rows) for level in table.labels]
    labels = levels[0] if len(levels) == 1 else [*zip(*levels, strict=True)] or range(len(cells))
    entries: dict[object, object] = {}
    try:
        Budget(Limits()).put(entries, zip(labels, cells, strict=True))
    except InertError:  # labels that cannot be keys, or whose hashes a forger chose
        entries = {}
    shown = [step_of(label) for label in entries if not _prints_alone(label)]
    if len(entries) < len(cells) or len(set(shown)) < len(shown):
        entries = dict(enumerate(cells))
    return entries


def _prints_alone(label: object) -> bool:
    """Whether no other label prints as this one. To print each of a million would take seconds."""
    if isinstance(label, tuple):
        return len(label) < 3 and all(map(_prints_alone, label))
    if isinstance(label, str):
        return len(label) <= _SHORT and label.isprintable()
    return label == label and (isinstance(label, float) or (isinstance(label, int) and label < 2**63))


class TableComparison:
    """Compares two tables. `matching.left` bounds the work; `is_spent` says that the work ended early."""

    def __init__(self, old: Table, new: Table, matching: Matching) -> None:
        self.old = old
        self.new = new
        self.matching = matching
        self._steps: dict[int, Sequence[object]] = {}

    @property
    def is_spent(self) -> bool:
        """Whether the tables were too large to compare all of them."""
        return self.matching.left < 0

    def run(self) -> Iterator[Found]:
        """The differences: columns, then the cells of shared columns in shared rows, then rows."""
        old, new = self.old, self.new
        if new.type == "Series":
            columns: _Pairs = [(old.columns[0], new.columns[0])]
            yield Found(("name",), "pair", old.columns[0].name, new.columns[0].name)
        else:
            columns = self._pairs()
            yield from self._whole_columns(columns)
        levels, others = ([(level.name, level.dtype) for level in table.labels] for table in (old, new))
        if levels != others:
            yield Found(("index",), "modified", levels, others)
        rows = self._rows()
        for before, after in columns:
            if before is not None and after is not None and not self.is_spent:
                yield from self._cells(before, after, rows)
        starts = [start for start, _, _ in rows.shared]
        if starts != sorted(starts):
            first = [[*map(table.label, range(min(table.rows, _MOST_ROWS)))] for table in (old, new)]
            yield Found(("index",), "modified", first[0], first[1], "the rows are in another order")
        yield from self._whole_rows(old, rows.removed, "removed")
        yield from self._whole_rows(new, rows.added, "added")
        yield Found((), "pair", old.rest, new.rest)

    def _whole_columns(self, pairs: _Pairs) -> Iterator[Found]:
        """The added and removed columns, and a change of the order of the others."""
        for before, after in pairs:
            if after is None:
                assert before is not None
                yield Found((before.name,), "removed", column_value(before), None)
            elif before is None:
                yield Found((after.name,), "added", None, column_value(after))
        order = [after.name for before, after in pairs if before is not None and after is not None]
        kept = {id(before) for before, after in pairs if after is not None}
        former = [column.name for column in self.old.columns if id(column) in kept]
        if [*map(self.matching.token, former)] != [*map(self.matching.token, order)]:
            yield Found(("columns",), "modified", former, order)

    def _pairs(self) -> _Pairs:
        """Each column of the new table beside the old one of its name; then the removed ones."""
        former = _by_token(self.matching, [column.name for column in self.old.columns])
        later = _by_token(self.matching, [column.name for column in self.new.columns])
        pairs: _Pairs = []
        for token, place in later.items():
            before = former.pop(token, None)
            pairs.append((None if before is None else self.old.columns[before], self.new.columns[place]))
        return [*pairs, *((self.old.columns[place], None) for place in former.values())]

    # --- rows

    def _rows(self) -> _Rows:
        old, new = self.old, self.new
        if not old.is_labelled and not new.is_labelled:
            if old.rows == new.rows:
                return _Rows([(0, 0, old.rows)], (), ())
            tokens = self._contents()
            if tokens is None:
                shared = min(old.rows, new.rows)
                return _Rows([(0, 0, shared)], range(shared, old.rows), range(shared, new.rows))
            return _runs_of(Aligner(_ALIGN_STEPS).pairs(*tokens))
        if self._costly(old.rows + new.rows):
            return _Rows([], (), ())
        before, after = ([*_zip_levels(table)] for table in (old, new))
        former, later = _by_token(self.matching, before), _by_token(self.matching, after)
        added = [row for token, row in later.items() if token not in former]
        pairs = [(former[token], row) for token, row in later.items() if token in former]
        removed = [row for token, row in former.items() if token not in later]
        shared_runs: list[tuple[int, int, int]] = []
        for first, second in pairs:
            _extend(shared_runs, first, second)
        return _Rows(shared_runs, removed, added)

    def _contents(self) -> tuple[list[Hashable], list[Hashable]] | None:
        """A token for each row of both tables; None if the cells are too many or cannot be read."""
        pairs = [pair for pair in self._pairs() if pair[0] is not None and pair[1] is not None]
        if (self.old.rows + self.new.rows) * len(pairs) > _MOST_ALIGNED or not pairs:
            return None
        sides: list[list[Hashable]] = []
        for side in (0, 1):
            columns = [pair[side] for pair in pairs]
            cells = [column.cells(0, column.rows) for column in columns if column is not None and column.read]
            if len(cells) < len(columns):
                return None
            token = self.matching.token
            sides.append([tuple(map(token, row)) for row in zip(*cells, strict=True)])
        return (sides[0], sides[1]) if not self.is_spent else None

    def _whole_rows(
        self, table: Table, rows: Sequence[int], kind: Literal["added", "removed"]
    ) -> Iterator[Found]:
        for row in rows[:_MOST_ROWS]:
            cells = row_value(table, row)
            old, new = (cells, None) if kind == "removed" else (None, cells)
            yield Found(("rows", self._step(table, row)), kind, old, new)
        if len(rows) > _MOST_ROWS:
            labels = [self._step(table, row) for row in rows[_MOST_ROWS : 2 * _MOST_ROWS]]
            old_labels, new_labels = (labels, None) if kind == "removed" else (None, labels)
            yield Found(("rows",), kind, old_labels, new_labels, counted(len(rows) - _MOST_ROWS, "more row"))

    def _step(self, table: Table, row: int) -> object:
        """The step that finds this row in a path: its label, or its number where labels repeat."""
        if not table.is_labelled:
            return table.label(row)
        steps = self._steps.get(id(table))
        if steps is None:
            self._steps[id(table)] = steps = [*by_label(table, range(table.rows))]
        return steps[row]

    # --- cells

    def _cells(self, old: Column, new: Column, rows: _Rows) -> Iterator[Found]:
        # The column of a Series needs no step.
        name = () if self.new.type == "Series" else (new.name,)
        if old.dtype != new.dtype:
            yield Found((*name, "dtype"), "modified", old.dtype, new.dtype)
        if old.read is None or new.read is None:
            yield Found(name, "pair", old.source, new.source)
            return
        tally: Counter[str] = Counter()
        cells = nlargest(_MOST_CELLS, self._weighed(old, new, rows, tally), key=itemgetter(0))
        if tally.total() <= _MOST_CELLS:
            cells.sort(key=itemgetter(1))
        for _, row, before, after in cells:
            has_parts = type(before) is type(after) and isinstance(after, list | tuple | dict | Instance)
            kind: Literal["modified", "pair"] = "pair" if has_parts else "modified"
            yield Found((*name, self._step(self.new, row)), kind, before, after)
        if (more := tally.total() - len(cells)) > 0:
            counts = [f"{tally[each]:,} {each}" for each in (_MISSING, _RETYPED) if tally[each]]
            note = ", ".join([f"{more:,} more of {new.rows:,} cells differ", *counts])
            yield Found(name, "modified", column_value(old), column_value(new), note)

    def _weighed(
        self, old: Column, new: Column, rows: _Rows, tally: Counter[str]
    ) -> Iterator[tuple[tuple[float, float, int], int, object, object]]:
        """The cells that differ, each behind a weight that is larger for an odder change; counts them."""
        for before, after, row in self._differing(old, new, rows):
            rank, size = 0.0, 0.0
            told = ""
            if _is_missing(after):
                rank, told = 3, _MISSING
            elif _is_missing(before):
                rank = 1
            elif isinstance(before, int | float) and isinstance(after, int | float):
                with suppress(OverflowError):  # an int that no float can hold
                    size = abs(float(after) - float(before))
                size = size if size == size else 0.0  # inf - inf
            elif type(before) is not type(after):
                rank, told = 2, _RETYPED
            tally[told] += 1
            yield (rank, size, -row), row, before, after

    def _differing(self, old: Column, new: Column, rows: _Rows) -> Iterator[tuple[object, object, int]]:
        """The cells that differ, and the number of the row in the new table."""
        for first, second, length in rows.shared:
            for start, stop in self._unlike(old, new, first, second, length):
                if self._costly((stop - start) * 2):
                    return
                pairs = zip(
                    old.cells(first + start, first + stop),
                    new.cells(second + start, second + stop),
                    strict=True,
                )
                for at, (before, after) in enumerate(pairs, second + start):
                    if not self._same(before, after):
                        yield before, after, at

    def _unlike(
        self, old: Column, new: Column, first: int, second: int, length: int
    ) -> Iterator[tuple[int, int]]:
        """Ranges of shared rows in which the cells may differ, counted from the first of these rows."""
        a, b = old.array, new.array
        if a is None or b is None or a.raw is None or b.raw is None or old.dtype != new.dtype:
            yield from ((at, min(at + _BLOCK, length)) for at in range(0, length, _BLOCK))
            return
        size = a.itemsize
        before = a.raw[first * size : (first + length) * size]
        after = b.raw[second * size : (second + length) * size]
        self.matching.left -= len(before) >> 6
        for start, stop, _ in runs(before, after, size):
            yield from ((at, min(at + _BLOCK, stop)) for at in range(start, stop, _BLOCK))

    def _same(self, old: object, new: object) -> bool:
        if old is new or same_atom(old, new):
            return True
        if type(old) is not type(new):
            numbers = (int, float)
            return isinstance(old, numbers) and isinstance(new, numbers) and old == new
        if isinstance(old, str | bytes | int | float | bool):
            return False
        return self.matching.token(old) == self.matching.token(new)

    def _costly(self, work: int) -> bool:
        self.matching.left -= work
        return self.is_spent


def _is_missing(cell: object) -> bool:
    return cell is None or cell != cell


def _by_token(matching: Matching, names: Sequence[object]) -> dict[object, int]:
    """The places of names by their tokens; the n-th of several equal ones has a token of its own."""
    counts: dict[object, int] = {}
    found: dict[object, int] = {}
    for place, name in enumerate(names):
        token = matching.token(name)
        counts[token] = count = counts.get(token, 0) + 1
        found[token if count == 1 else (token, count)] = place
    return found


def _zip_levels(table: Table) -> Iterator[object]:
    levels = [level.cells(0, level.rows) for level in table.labels]
    return iter(levels[0]) if len(levels) == 1 else zip(*levels, strict=True)


def _runs_of(pairs: Iterator[tuple[int | None, int | None]]) -> _Rows:
    rows = _Rows([], [], [])
    removed: list[int] = []
    added: list[int] = []
    for old, new in pairs:
        if old is None:
            assert new is not None
            added.append(new)
        elif new is None:
            removed.append(old)
        else:
            _extend(rows.shared, old, new)
    return _Rows(rows.shared, removed, added)


def _extend(found: list[tuple[int, int, int]], old: int, new: int) -> None:
    """Add a pair of rows to the last run if it goes on there, or begin a run."""
    if found:
        first, second, length = found[-1]
        if (old, new) == (first + length, second + length):
            found[-1] = (first, second, length + 1)
            return
    found.append((old, new, 1))


def _name(name: object) -> str:
    return name if isinstance(name, str) else str(name) if isinstance(name, int) else repr(name)[:60]
