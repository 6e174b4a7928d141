"""Parts: a value and each thing inside it as one line with a kind."""

from __future__ import annotations

import datetime
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from vstate.display.cells import cut_text
from vstate.display.views import part_text
from vstate.repo.compare.details import Detail
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import parts_of
from vstate.values.alignment import common_ends
from vstate.values.arrays import Array
from vstate.values.instance import Global, Instance
from vstate.values.preview import preview
from vstate.values.tables import is_table

_LONGEST: Final = 200  # characters
_LONGEST_LABEL: Final = 100
_COMPARED_NODES: Final = 2000  # of values that are compared as texts
_SHARED: Final = 20  # characters that they share
_STEP_ENDS: Final = ".[{"


class Marks:
    """The paths at which a value has changed, to mark the parts that lead to them.

    `whole` is the mark of all parts, where the value is new; `note` tells why marks are missing.
    """

    def __init__(self, details: Iterable[Detail], *, whole: str | None = None, note: str = "") -> None:
        self._kinds = {detail.path: detail.kind for detail in details}
        self._paths = sorted(self._kinds)
        self._whole = whole
        self.note = note

    def inside(self, path: str) -> list[str]:
        """The paths of the changes inside the part at the path, without it, each with its `.` or bracket."""
        return [
            each[len(path) :] if path or each[:1] in _STEP_ENDS else f".{each}"
            for each in self._kinds
            if each.startswith(path)
        ]

    def at(self, path: str) -> str | None:
        """`added`, `modified` or `removed` if the part at the path has changed as a whole."""
        return self._whole or self._kinds.get(path)

    def of(self, path: str) -> str | None:
        """`added`, `modified` or `removed` if the part at the path, or one inside it, has changed."""
        found = self.at(path)
        if found is not None or not path:
            return found or ("modified" if self._paths else None)
        for end in _STEP_ENDS:
            at = bisect_left(self._paths, path + end)
            if at < len(self._paths) and self._paths[at].startswith(path + end):
                return "modified"
        return None


_KINDS: Final[tuple[tuple[Any, str], ...]] = (
    (type(None), "none"),
    (bool, "bool"),
    (int | float | complex, "number"),
    (str, "text"),
    (bytes | bytearray | memoryview, "bytes"),
    (datetime.date | datetime.time | datetime.timedelta | datetime.tzinfo, "time"),
    (list | tuple, "list"),
    (dict, "dict"),
    (set | frozenset, "set"),
    (Array, "array"),
    (Global, "class"),
)


def kind_of(value: object) -> str:
    """The kind of a value for a reader: none, number, list, object, …"""
    for types, kind in _KINDS:
        if isinstance(value, types):
            return kind
    return "table" if is_table(value) else "object"


def type_of(value: object) -> str:
    """The name of the type, in full for an object."""
    if isinstance(value, Instance):
        return cut_text(value.type, _LONGEST_LABEL)
    return "class" if isinstance(value, Global) else type(value).__name__


def count_of(value: object) -> int:
    """The number of parts that `part_documents` finds; 0 for a leaf."""
    if isinstance(value, list | tuple | dict | set | frozenset):
        return len(value)
    if isinstance(value, Array):
        return value.count
    if isinstance(value, Instance):
        groups: Sequence[Any] = (
            value.args,
            value.kwargs,
            value.fields,
            value.items or (),
            value.entries or (),
        )
        return sum(map(len, groups)) + (value.state is not None)
    return len(value.fields) if isinstance(value, Global) else 0


def text_of(value: object) -> str:
    """The value in one line of at most 200 characters; a text without quotes, its line ends as ↵."""
    text = value if isinstance(value, str) else part_text(value, _LONGEST)
    if text is None:
        text = preview(value, width=None, max_depth=2, max_items=8, max_nodes=60)
    return cut_text(text[: _LONGEST + 1].replace("\n", "↵"), _LONGEST)


def texts_apart(values: Sequence[object]) -> list[str]:
    """The values in one line each, as `text_of`; long ones begin shortly before they differ."""
    lines = [
        value if isinstance(value, str) else preview(value, width=None, max_nodes=_COMPARED_NODES)
        for value in values
    ]
    start = min((common_ends(lines[0], line)[0] for line in lines if line != lines[0]), default=0) - _SHARED
    return [
        text_of(value if start <= 0 else f"…{line[start:]}")
        for value, line in zip(values, lines, strict=True)
    ]


def part_document(value: object, path: str, label: str = "", marks: Marks | None = None) -> dict[str, Any]:
    """A part as `{label, path, type, kind, text, count, change}`."""
    return {
        "label": cut_text(label or path, _LONGEST_LABEL),
        "path": path,
        "type": type_of(value),
        "kind": kind_of(value),
        "text": text_of(value),
        "count": count_of(value),
        "change": None if marks is None else marks.of(path),
    }


def part_documents(
    value: object, path: str, first: int, limit: int, marks: Marks
) -> Iterator[dict[str, Any]]:
    """The parts [first, first + limit) directly inside the value, which is at `path`."""
    for part in islice(parts_of(value, Fingerprints()), first, first + limit):
        if not part.step:  # the only argument of a wrapper, such as Decimal('1'), has its path
            yield part_document(part.value, path, "value", marks)
            continue
        step = part.step if path else part.step.removeprefix(".")
        label = re.sub(r'^\["(.*)"\]$', r"\1", part.step.removeprefix("."), flags=re.DOTALL)
        yield part_document(part.value, path + step, label, marks)
