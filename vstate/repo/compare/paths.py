"""Paths: the parts inside a value, and the paths by which `details` names them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from vstate.errors import InvalidInput, NotFound
from vstate.plural import counted
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.steps import member_step, step_of
from vstate.repo.compare.tables import by_label, row_value
from vstate.similar import similar
from vstate.values.arrays import Array
from vstate.values.instance import Global, Instance
from vstate.values.tables import Column, Table, is_table, table_of

_EXAMPLE: Final = 'such as messages[3].content or ["odd key"][0]'
_IDENTIFIER: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)")
_PLAIN_KEY: Final = re.compile(r'\["([^"\\…]{,60})"\]')
_INDEX: Final = re.compile(r"\[(0|[1-9][0-9]{,17})\]")
_ROWS_OF_ARRAY: Final = re.compile(r"\[(0|[1-9][0-9]{,17})(?::([1-9][0-9]{,17}))?\]")
_ROWS: Final = ".rows"
_ANY_STEP: Final = re.compile(
    r'\.[A-Za-z_][A-Za-z0-9_]*|\["(?:[^"\\]|\\.)*"\]|\[[^\[\]"]+\]|\[.+?\](?=[.\[{]|$)|\{.+?\}(?=[.\[{]|$)',
    re.DOTALL,
)
_LONGEST_IDENTIFIER: Final = 60
_BLOCK: Final = 1000  # elements of an array that are decoded together
_COMPARED: Final = 1000  # steps that are searched for a similar one
_SHOWN: Final = 80
_MOST_CELLS: Final = 1_000_000  # of a table, that are found by the labels of their rows: some seconds

SEQUENCES: Final = frozenset({"items", "args"})
"""The groups of parts whose places are indices: an insertion moves the parts behind it."""


class Part(NamedTuple):
    """Something directly inside a value.

    `group` is the kind of place: "items", "args", "entries", "kwargs", "fields", "members", "columns",
    "rows", "elements" or "state".
    `place` is unique in its group: an index, a name, or the fingerprint of a key that is not a text. `step`
    is its step in a path: `[3]`, `.content`, `["odd key"]`.
    """

    group: str
    place: Hashable
    step: str
    value: object


def kind_of(value: object) -> object:
    """The type of a value, and the class of an Instance: equal for values whose parts can be compared."""
    if isinstance(value, Array):
        # Elements are found by their places in memory: in a row of another length they are others.
        form = (value.fields.get("dtype"), value.fields.get("order"), value.shape[1:])
        return (Array, value.type, *form)
    if isinstance(value, Instance):
        return (type(value), value.type, value.called)
    return (Global, value.name) if isinstance(value, Global) else type(value)


def parts_of(value: object, prints: Fingerprints) -> Iterator[Part]:
    """The parts directly inside the value, in the order of `details`; none for an atom or a text."""
    value, table = _opened(value)
    if table is not None:
        _check_size(
            table, sum(1 for each in table.columns if each.read and not _is_numbered_array(table, each))
        )
        yield from (_column_part(table, column, prints) for column in table.columns)
    elif isinstance(value, Array) and value.layout is not None:
        yield from _elements(value)
    else:
        for group in _groups(value):
            yield from group.parts(prints)


def sequence_of(value: object, group: str) -> Sequence[object]:
    """The list or tuple inside `value` with the parts of this group, one of SEQUENCES."""
    found = getattr(value, group) if isinstance(value, Instance) else value
    return found if isinstance(found, list | tuple) else ()


def part_like(part: Part, value: object, prints: Fingerprints) -> Part | None:
    """The part of `value` in the place of `part`, from a value of the same kind; not for SEQUENCES."""
    alike = _candidates(value, part.step, prints)
    return next((each for each in alike if each[:3] == part[:3]), None)


class _Group(NamedTuple):
    """The parts of one kind in a value: a sequence, a dict, a set, or a state.

    `prefix` begins the steps of a sequence. None for the one item that needs no step.
    """

    name: str
    inside: Any
    prefix: str | None = ""

    def parts(self, prints: Fingerprints) -> Iterator[Part]:
        """All parts."""
        name, inside = self.name, self.inside
        if name in SEQUENCES:
            for index, item in enumerate(inside):
                yield Part(name, index, "" if self.prefix is None else f"{self.prefix}[{index}]", item)
        elif name == "state":
            yield Part(name, "", ".state", inside)
        else:
            show = member_step if name == "members" else step_of
            for key in inside:
                yield Part(name, prints.place(key), show(key), key if name == "members" else inside[key])

    def starting(self, rest: str, prints: Fingerprints) -> Iterator[Part]:
        """The parts whose step `rest` begins with, without a look at all keys where that can be."""
        name, inside = self.name, self.inside
        if name == "state" or self.prefix is None:
            yield from _beginning(rest, self.parts(prints))
        elif name in SEQUENCES:
            match = _INDEX.match(rest, len(self.prefix)) if rest.startswith(self.prefix) else None
            if match is not None and (index := int(match[1])) < len(inside):
                yield Part(name, index, f"{self.prefix}[{index}]", inside[index])
        elif isinstance(inside, dict) and (plain := _plain_name(inside, rest)) is not None:
            key, step = plain
            yield Part(name, key, step, inside[key])
        elif rest.startswith("{" if name == "members" else "["):
            yield from _beginning(rest, self.parts(prints))


def _groups(value: object) -> Iterator[_Group]:
    """The groups of the parts of a value, in the order of `details`; none for a table, or an element."""
    if isinstance(value, dict):
        yield _Group("entries", value)
    elif isinstance(value, list | tuple):
        yield _Group("items", value)
    elif isinstance(value, set | frozenset):
        yield _Group("members", value)
    elif isinstance(value, Instance):
        # As in `details`: `Decimal('1')` has only its argument, which needs no step.
        is_wrapper = len(value.args) == 1 and not value.fields
        yield _Group("args", value.args, None if is_wrapper else ".args")
        yield _Group("kwargs", value.kwargs)
        yield _Group("fields", value.fields)
        yield _Group("items", value.items or ())
        yield _Group("entries", value.entries or {})
        if value.state is not None:
            yield _Group("state", value.state)
    elif isinstance(value, Global):
        yield _Group("fields", value.fields)


def _column_part(table: Table, column: Column, prints: Fingerprints) -> Part:
    return Part("columns", prints.place(column.name), step_of(column.name), _cells(table, column))


def _cells(table: Table, column: Column) -> object:
    """A column as a value with its cells by the labels of their rows; by number where labels repeat.

    InvalidInput if they are too many. A long column of numbered rows is its array, whose steps are the same.
    """
    if column.read is None:
        return column.source
    if _is_numbered_array(table, column):
        return column.array
    _check_size(table, 1)
    entries = by_label(table, column.cells(0, column.rows))
    return Instance("column", {"dtype": column.dtype}, entries=entries)


def _is_numbered(table: Table) -> bool:
    """Whether the rows have no labels but their numbers."""
    return all(level.range == range(table.rows) for level in table.labels)


def _is_numbered_array(table: Table, column: Column) -> bool:
    """Whether this is a long column of numbered rows, in one array."""
    return column.rows > _MOST_CELLS and column.array is not None and _is_numbered(table)


def _check_size(table: Table, columns: int) -> None:
    """Raise InvalidInput if so many columns have too many cells to find them by labels."""
    if columns * table.rows * max(len(table.labels), 1) > _MOST_CELLS:
        raise InvalidInput(
            f"it has {counted(columns, 'column')} of {table.rows:,} cells, and this finds at most "
            f"{_MOST_CELLS:,} cells by the labels of their rows; "
            + ("name one column by its path" if columns > 1 else "read it in Python")
        )


def _opened(value: object) -> tuple[object, Table | None]:
    """A Series as its one column, and the table in any other frame."""
    table = table_of(value) if is_table(value) else None
    if table is not None and table.type == "Series":
        return _cells(table, table.columns[0]), None
    return value, table


# Finding a part by its path


def find_part(value: object, path: str, prints: Fingerprints) -> list[Part]:
    """The parts that lead to `path`; the last one is at the path. None for the path "", the value itself.

    A path is written as `details` prints it: `.name` for a key or field that is an identifier (the first
    without the dot), `["text"]` for any other text, `[7]` for an index or a key that is not a text, `{'a'}`
    for a member of a set, `[2][5]` for an element of an array, `[2]` and `[10:20]` for rows of one,
    `price[3]` for a cell of a table, `rows[3]` for a row of a table, and `.args[0]` and `.state` for the
    parts of an Instance without names. Long keys end in "…", as printed. Raises NotFound with the step that
    leads nowhere, and InvalidInput for a malformed path or a step that several keys print as.
    """
    if not path:
        return []
    rest = path if path[0] in ".[{" else f".{path}"
    length = len(rest)
    trail: list[Part] = []
    # A step can mean several parts of an Instance, so the search goes back from a dead end.
    waiting = [_choices(value, rest, prints)]
    seen: set[tuple[int, int]] = set()
    furthest: tuple[int, object] = (length, value)
    while waiting:
        part = next(waiting[-1], None)
        if part is None:
            waiting.pop()
            if trail:
                rest = trail.pop().step + rest
            continue
        left = rest[len(part.step) :]
        if not left:
            return [*trail, part]
        if left[0] not in ".[{" or (id(part.value), len(left)) in seen:
            continue
        seen.add((id(part.value), len(left)))
        if len(left) <= furthest[0]:
            furthest = (len(left), part.value)
        trail.append(part)
        rest = left
        waiting.append(_choices(part.value, rest, prints))
    at, where = furthest
    raise _nowhere(path, rest[length - at :], where, prints)


def part_at(value: object, path: str) -> object:
    """The part at `path`, with the errors of `find_part`."""
    trail = find_part(value, path, Fingerprints())
    return trail[-1].value if trail else value


def _candidates(value: object, rest: str, prints: Fingerprints) -> Iterator[Part]:
    """The parts of the value whose step `rest` begins with."""
    if is_table(value) and (rows := table_of(value)) is not None:
        yield from _row(rows, rest, prints)
    value, table = _opened(value)
    if table is not None:
        yield from _named_column(table, rest, prints)
    else:
        if isinstance(value, Array):
            yield from _element(value, rest)
            yield from _array_rows(value, rest)
            if value.raw is not None and rest.startswith(".data"):
                yield Part("fields", "data", ".data", value.part(0, value.count))
                return
        for group in _groups(value):
            yield from group.starting(rest, prints)


def _elements(array: Array) -> Iterator[Part]:
    """All elements of an array by their indices."""
    for start in range(0, array.count, _BLOCK):
        found = array.elements(start, min(start + _BLOCK, array.count))
        for place, element in enumerate(found, start):
            step = "".join(f"[{index}]" for index in array.index(place))
            yield Part("elements", place, step, element)


def _element(array: Array, rest: str) -> Iterator[Part]:
    """The element of an array, by as many indices as the array has dimensions."""
    index: list[int] = []
    at = 0
    while len(index) < len(array.shape) and (match := _INDEX.match(rest, at)) is not None:
        index.append(int(match[1]))
        at = match.end()
    fits = bool(index) and len(index) == len(array.shape)
    if fits and all(step < size for step, size in zip(index, array.shape, strict=True)):
        place = array.place(tuple(index))
        for element in array.elements(place, place + 1):
            yield Part("elements", place, rest[:at], element)


def _array_rows(array: Array, rest: str) -> Iterator[Part]:
    """A row of an array of several dimensions, or the rows of any array from one up to another."""
    match = _ROWS_OF_ARRAY.match(rest)
    if match is None or (match[2] is None and len(array.shape) < 2):
        return
    start = int(match[1])
    stop = start + 1 if match[2] is None else int(match[2])
    if start < stop <= (array.shape or (0,))[0] and (found := array.rows(start, stop)) is not None:
        if match[2] is None:
            found.fields["shape"] = array.shape[1:]
        yield Part("rows", match[0], match[0], found)


def _row(table: Table, rest: str, prints: Fingerprints) -> Iterator[Part]:
    """The row of a table whose step `rest` begins with."""
    match = _INDEX.match(rest, len(_ROWS)) if rest.startswith(_ROWS) and _is_numbered(table) else None
    if match is not None:
        if (row := int(match[1])) < table.rows:
            yield Part("rows", prints.place(row), f"{_ROWS}{match[0]}", row_value(table, row))
    elif rest.startswith((f"{_ROWS}[", f"{_ROWS}.")):
        _check_size(table, 1)
        rows = _Group("rows", by_label(table, range(table.rows)))
        for found in rows.starting(rest.removeprefix(_ROWS), prints):
            assert isinstance(found.value, int)
            yield Part("rows", found.place, f"{_ROWS}{found.step}", row_value(table, found.value))


def _named_column(table: Table, rest: str, prints: Fingerprints) -> Iterator[Part]:
    """The columns of a table whose steps `rest` begins with; only these are read."""
    columns = (column for column in table.columns if rest.startswith(step_of(column.name)))
    yield from _beginning(rest, (_column_part(table, column, prints) for column in columns))


def _plain_name(named: Mapping[str, object] | Mapping[object, object], rest: str) -> tuple[str, str] | None:
    """The key that `rest` begins with, and its step, if no other key can print as the same step."""
    match = _IDENTIFIER.match(rest) or _PLAIN_KEY.match(rest)
    if match is None or len(match[1]) > _LONGEST_IDENTIFIER or match[1] not in named:
        return None
    return match[1], match[0]


def _beginning(rest: str, parts: Iterable[Part]) -> list[Part]:
    """The parts whose step `rest` begins with, the longest step first."""
    return sorted((part for part in parts if rest.startswith(part.step)), key=lambda part: -len(part.step))


def _choices(value: object, rest: str, prints: Fingerprints) -> Iterator[Part]:
    """The parts of the value whose step `rest` begins with; InvalidInput if two of a group print alike."""
    found = [*_candidates(value, rest, prints)]
    for part, count in Counter((part.group, part.step) for part in found).items():
        if count > 1:
            raise InvalidInput(f"several keys print as {part[1]}: choose a path that ends before it")
    return iter(found)


def _nowhere(path: str, rest: str, value: object, prints: Fingerprints) -> NotFound | InvalidInput:
    match = _ANY_STEP.match(rest)
    before = path[: max(len(path) - len(rest), 0)]
    if match is None or rest[match.end() :][:1] not in ("", ".", "[", "{"):
        return InvalidInput(f"{_cut(path)!r} is no path at {_cut(rest)!r}: a path is written {_EXAMPLE}")
    step = match[0]
    where = f"in {_cut(before)}" if before else "in the value"
    near: list[str] = []
    if isinstance(value, list | tuple):
        has = f"which is a {type(value).__name__} of {counted(len(value), 'item')}"
    elif isinstance(value, str):
        has = "which is a text: a path ends there"
    else:
        table = table_of(value) if is_table(value) else None
        if table is None or table.type == "Series":
            steps = [part.step for part in islice(parts_of(value, prints), _COMPARED)]
        else:  # no cell is read for a suggestion
            steps = [step_of(column.name) for column in islice(table.columns, _COMPARED)]
        near = similar(step, steps)
        name = value.type if isinstance(value, Instance) else type(value).__name__
        article = "an" if name[:1] in "aeiou" else "a"
        has = f"which is {article} {name}" + ("" if steps else " without parts")
    return NotFound(f"no {_cut(step)} {where}, {has}", name=path, candidates=near)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
