"""Alignment: which items of two sequences belong together.

A range of items with few differences is aligned by its longest common subsequence (E. Myers, "An O(ND)
difference algorithm and its variations", 1986). In other ranges, the items that occur once on both sides are
aligned first, as patience diff does.
"""

from __future__ import annotations

import io
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

_FEW: Final = 50  # edits up to which no anchors are searched
_MANY: Final = 700  # edits at the most: a quarter of a million steps
_DEEPEST: Final = 10  # nested ranges that are searched for items that occur once

Pair = tuple[int, int]
"""An index in the old sequence, and one in the new."""


class Aligner:
    """Aligns sequences of hashable items, with a bounded number of steps for all of them.

    `left` is the number of steps that are left; three million take about a second. If a range differs
    too much, or no steps are left, it counts as one change: some equal items are then not matched.
    """

    def __init__(self, steps: int) -> None:
        self.left = steps

    def matches(self, old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
        """The pairs of equal items of a common subsequence, ascending; usually of a longest one."""
        found: list[Pair] = []
        waiting = [(0, len(old), 0, len(new), 0)]
        while waiting:
            row, bottom, column, right, depth = waiting.pop()
            start, end = common_ends(old[row:bottom], new[column:right])
            found += zip(range(row, row + start), range(column, column + start), strict=True)
            row, bottom, column, right = row + start, bottom - end, column + start, right - end
            found += zip(range(bottom, bottom + end), range(right, right + end), strict=True)
            before, after = old[row:bottom], new[column:right]
            if len(before) * len(after) < 2:
                continue  # one side is empty, or two items differ
            common, anchors = self._longest(before, after, _FEW), []
            if common is None:
                # Items of one side only belong to no common subsequence.
                rows, columns = _positions(before, after), _positions(after, before)
                before, after = [before[at] for at in rows], [after[at] for at in columns]
                anchors = _anchors(before, after) if depth < _DEEPEST else []
                common = anchors or self._longest(before, after, _MANY) or []
                common = [(rows[a], columns[b]) for a, b in common]
            common = [(row + a, column + b) for a, b in common]
            found += common
            for a, b in [*common, (bottom, right)] if anchors else []:
                waiting.append((row, a, column, b, depth + 1))
                row, column = a + 1, b + 1
        return sorted(found)

    def changes(
        self, old: Sequence[Hashable], new: Sequence[Hashable]
    ) -> Iterator[tuple[int, int, int, int]]:
        """The ranges that differ, ascending: old[a:b] became new[c:d]. No two of them touch."""
        row = column = 0
        for a, b in [*self.matches(old, new), (len(old), len(new))]:
            if row < a or column < b:
                yield row, a, column, b
            row, column = a + 1, b + 1

    def pairs(
        self, old: Sequence[Hashable], new: Sequence[Hashable]
    ) -> Iterator[tuple[int | None, int | None]]:
        """Index pairs for all items: equal ones, and between them those that took each other's place.

        An index is None where the other item was added or removed.
        """
        row = column = 0
        for a, b in [*self.matches(old, new), (len(old), len(new))]:
            both = min(a - row, b - column)
            yield from ((row + step, column + step) for step in range(both))
            yield from ((index, None) for index in range(row + both, a))
            yield from ((None, index) for index in range(column + both, b))
            if a < len(old):
                yield a, b
            row, column = a + 1, b + 1

    def _longest(self, old: Sequence[Hashable], new: Sequence[Hashable], most: int) -> list[Pair] | None:
        """The pairs of a longest common subsequence; None if it takes more than `most` edits or all steps."""
        height, breadth = len(old), len(new)
        # The furthest row on each diagonal (row - column); index -1 is diagonal -1, and so on.
        reached = [0] * (2 * most + 3)
        history: list[array[int]] = []  # memory grows by its square: arrays, and only diagonals in use
        for edits in range(most + 1):
            for diagonal in range(-edits, edits + 1, 2):
                if diagonal == -edits or (
                    diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1]
                ):
                    start = row = reached[diagonal + 1]
                else:
                    start = row = reached[diagonal - 1] + 1
                column = row - diagonal
                while row < height and column < breadth and old[row] == new[column]:
                    row += 1
                    column += 1
                reached[diagonal] = row
                self.left -= row - start + 1
                if row >= height and column >= breadth:
                    return _retraced(history, height, breadth)
            if self.left < 0:
                break
            history.append(array("q", [reached[diagonal] for diagonal in range(-edits, edits + 1, 2)]))
        return None


def _positions(items: Sequence[Hashable], others: Sequence[Hashable]) -> list[int]:
    """The positions of the items that the others have too."""
    known = set(others)
    return [at for at, item in enumerate(items) if item in known]


def split_lines(text: str) -> list[str]:
    """The lines of a text with their ends. Only "\\n" ends a line; the last one may have no end."""
    # str.splitlines would also split at form feeds and other characters that editors show inside a line.
    return list(io.StringIO(text, newline="\n"))


def common_ends(old: Sequence[Hashable], new: Sequence[Hashable]) -> Pair:
    """The number of equal items at the beginning, and of others at the end."""
    shorter = min(len(old), len(new))
    # By halves: a comparison of each character of a long text would take as long as reading it.
    steps = [1 << power for power in reversed(range(shorter.bit_length()))]
    start = end = 0
    for step in steps:
        if start + step <= shorter and old[start : start + step] == new[start : start + step]:
            start += step
    for step in steps:
        a, b = len(old) - end, len(new) - end
        if start + end + step <= shorter and old[a - step : a] == new[b - step : b]:
            end += step
    return start, end


def _retraced(history: Sequence[array[int]], row: int, column: int) -> list[Pair]:
    """The pairs on the way to this place; `history` has the rows after each number of edits."""
    matches: list[Pair] = []
    for edits in range(len(history), 0, -1):
        before = history[edits - 1]  # diagonal d is at (d + edits - 1) / 2
        at = (row - column + edits - 2) // 2
        down = row - column == -edits or (row - column != edits and before[at] < before[at + 1])
        earlier = before[at + 1] if down else before[at]
        diagonal = row - column + (1 if down else -1)
        start = earlier if down else earlier + 1
        while row > start:
            row, column = row - 1, column - 1
            matches.append((row, column))
        row, column = earlier, earlier - diagonal
    matches += ((step, step) for step in range(row))
    return matches


def _anchors(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
    """The most items that occur once in both sequences, and in the same order."""
    columns = _single(new)
    pairs = [(row, columns[item]) for item, row in _single(old).items() if item in columns]
    # The longest run of rising columns by patience sorting: `ends` has the last pair of a run of each length.
    ends: list[int] = []
    lowest: list[int] = []
    before: list[int] = []
    for number, (_, column) in enumerate(pairs):
        length = bisect_left(lowest, column)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [number]
        lowest[length : length + 1] = [column]
    run: list[Pair] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    return run[::-1]


def _single(items: Sequence[Hashable]) -> dict[Hashable, int]:
    """The index of every item that occurs only once, in ascending order."""
    found: dict[Hashable, int] = {}
    repeated = set()
    for at, item in enumerate(items):
        if item in found:
            repeated.add(item)
        found.setdefault(item, at)
    for item in repeated:
        del found[item]
    return found
