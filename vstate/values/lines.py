"""Three-way merge of the lines of a text, as diff3 does it."""

from __future__ import annotations

import io
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

__all__ = ["Overlap", "merge_lines"]

# What difflib may look at to align one side. How often it comes back to the same lines nobody knows before:
# of what was tried, 1,000 lines that are one of three, every second of them edited, took longest: 1.2
# seconds.
_MOST_STEPS: Final = 250_000
_DEEPEST: Final = 10  # ranges inside each other that are searched for lines that occur once


class Overlap(NamedTuple):
    """Both sides changed the base differently from line `first` up to, not including, line `last`.

    Lines are counted from 0. If the two are equal, both wrote something else in front of that line.
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


_Range = tuple[int, int, int, int]
"""From and up to which line of the base, from and up to which of the other text."""


def merge_lines(base: str, ours: str, theirs: str) -> str | Overlap:
    """The base with the changes of both sides, or the first place where these overlap or touch.

    A change that both made alike is taken once. Lines end with "\\n", and what ends them belongs to them:
    "\\r\\n" and a last line without an end stay as they are. The work is bounded: where too many lines
    repeat, a stretch of lines counts as one change. That may make an overlap, never a wrong line.
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
    """What the lines [start, stop) of the base are after these changes of one side."""
    lines: list[str] = []
    for change in changes:
        lines += base[start : change.start]
        lines += change.lines
        start = change.stop
    return [*lines, *base[start:stop]]


def _changes(base: Sequence[str], other: Sequence[str]) -> list[_Change]:
    """What turns `base` into `other`; no two changes touch."""
    changes = []
    at = to = 0
    for row, column in [*sorted(_matches(base, other)), (len(base), len(other))]:
        if at < row or to < column:
            changes.append(_Change(at, row, list(other[to:column])))
        at, to = row + 1, column + 1
    return changes


def _matches(base: Sequence[str], other: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The index pairs of a common subsequence, in any order.

    difflib takes quadratic time for a long text with many small edits, and more if lines repeat. So lines
    that occur once in both texts are aligned first, as patience diff does; difflib gets what lies between.
    """
    waiting: list[tuple[_Range, int]] = [((0, len(base), 0, len(other)), 0)]
    left = _MOST_STEPS
    while waiting:
        (row, bottom, column, right), depth = waiting.pop()
        while row < bottom and column < right and base[row] == other[column]:
            yield row, column
            row, column = row + 1, column + 1
        while row < bottom and column < right and base[bottom - 1] == other[right - 1]:
            bottom, right = bottom - 1, right - 1
            yield bottom, right
        here = row, bottom, column, right
        anchors = _anchors(base, other, here) if depth < _DEEPEST else []
        if not anchors:
            old, new = base[row:bottom], other[column:right]
            cost = _cost(old, new)
            if cost <= left:
                left -= cost
                for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
                    yield from ((row + block.a + step, column + block.b + step) for step in range(block.size))
            continue
        yield from anchors
        for anchor in [*anchors, (bottom, right)]:
            waiting.append(((row, anchor[0], column, anchor[1]), depth + 1))
            row, column = anchor[0] + 1, anchor[1] + 1


def _cost(old: Sequence[str], new: Sequence[str]) -> int:
    """About how many steps difflib takes: one for each pair of equal lines, and some for every line again."""
    counts = Counter(new)
    return sum(counts[line] for line in old) + len(old) * len(new) // 16


def _anchors(base: Sequence[str], other: Sequence[str], here: _Range) -> list[tuple[int, int]]:
    """The most lines that occur once in both ranges, in the same order in both."""
    row, bottom, column, right = here
    columns = _single(other, column, right)
    pairs = [(at, columns[line]) for line, at in _single(base, row, bottom).items() if line in columns]
    # The longest run of rising columns by patience sorting: `ends` has the last pair of a run of each length.
    ends: list[int] = []
    lowest: list[int] = []
    before: list[int] = []
    for number, (_, to) in enumerate(pairs):
        length = bisect_left(lowest, to)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [number]
        lowest[length : length + 1] = [to]
    run = []
    number = ends[-1] if ends else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    return run[::-1]


def _single(lines: Sequence[str], start: int, stop: int) -> dict[str, int]:
    """The index of every line that occurs only once in [start, stop), in ascending order."""
    found: dict[str, int] = {}
    repeated = set()
    for at in range(start, stop):
        if lines[at] in found:
            repeated.add(lines[at])
        found.setdefault(lines[at], at)
    for line in repeated:
        del found[line]
    return found
