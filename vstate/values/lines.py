"""Three-way merge of the lines of a text, as diff3 does it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final, NamedTuple

from vstate.values.alignment import Aligner

__all__ = ["Overlap", "merge_lines"]

_MOST_STEPS: Final = 2_000_000  # to align one side: less than a second


class Overlap(NamedTuple):
    """Both sides changed the lines [first, last) of the base, differently; lines are counted from 0.

    If `first` equals `last`, both inserted different lines in front of that line.
    """

    first: int
    last: int

    def __str__(self) -> str:
        if self.last > self.first + 1:
            return f"both sides changed lines {self.first + 1} to {self.last} of the base"
        if self.last > self.first:
            return f"both sides changed line {self.last} of the base"
        where = f"after line {self.first} of the base" if self.first else "at the start"
        return f"both sides inserted different lines {where}"


class _Change(NamedTuple):
    """The lines [start, stop) of the base became `lines`."""

    start: int
    stop: int
    lines: list[str]


def merge_lines(base: str, ours: str, theirs: str) -> str | Overlap:
    """The base with the changes of both sides, or the first place where these overlap or touch.

    A change that both sides made alike is taken once. Lines end with "\\n", which is part of the line:
    "\\r\\n" and a last line without an end stay unchanged. The work is bounded: where too many lines
    differ, a range of lines counts as one change. That may make an overlap, never a wrong line.
    """
    old = _split(base)
    mine, other = _changes(old, _split(ours)), _changes(old, _split(theirs))
    merged: list[str] = []
    done = i = j = 0
    while i < len(mine) or j < len(other):
        start = stop = min(change.start for change in (*mine[i : i + 1], *other[j : j + 1]))
        first, second = i, j
        while True:
            if i < len(mine) and mine[i].start <= stop:
                stop = max(stop, mine[i].stop)
                i += 1
            elif j < len(other) and other[j].start <= stop:
                stop = max(stop, other[j].stop)
                j += 1
            else:
                break
        changed = _applied(old, start, stop, mine[first:i] or other[second:j])
        if first < i and second < j and changed != _applied(old, start, stop, other[second:j]):
            return Overlap(start, stop)
        merged += old[done:start] + changed
        done = stop
    return "".join(merged + old[done:])


def _split(text: str) -> list[str]:
    # str.splitlines would also split at form feeds and other characters that editors show inside a line.
    return list(io.StringIO(text, newline="\n"))


def _applied(base: Sequence[str], start: int, stop: int, changes: Sequence[_Change]) -> list[str]:
    """The lines [start, stop) of the base after these changes of one side."""
    lines: list[str] = []
    for change in changes:
        lines += base[start : change.start]
        lines += change.lines
        start = change.stop
    return [*lines, *base[start:stop]]


def _changes(base: Sequence[str], other: Sequence[str]) -> list[_Change]:
    """The changes that turn `base` into `other`; no two of them touch."""
    changes = []
    at = to = 0
    for row, column in [*Aligner(_MOST_STEPS).matches(base, other), (len(base), len(other))]:
        if at < row or to < column:
            changes.append(_Change(at, row, list(other[to:column])))
        at, to = row + 1, column + 1
    return changes
