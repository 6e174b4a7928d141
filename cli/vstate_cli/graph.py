"""Graph: the lines that a log draws beside commits, as git draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vstate.objects.ids import ObjectId


@dataclass(frozen=True)
class Row:
    """The lanes beside the lines of one commit: `head` at the first line, `forks` at the next, then `beside`.

    `before` are whole lines above the commit, in which lanes join. All others have the same width.
    """

    before: tuple[str, ...]
    head: str
    forks: tuple[str, ...]
    beside: str


class Graph:
    """Lanes from each commit down to its parents. Add commits newest first, children before parents.

    A lane holds the id of the commit at its lower end. No two lanes hold the same id.
    """

    def __init__(self) -> None:
        self._lanes: list[ObjectId] = []
        self._closing: list[str] = []

    @property
    def between(self) -> str:
        """The lanes between the last commit and the next."""
        return _row(dict.fromkeys(range(len(self._lanes)), "|"), {})

    def add(self, commit: ObjectId, parents: Sequence[ObjectId]) -> Row:
        """The lines for the next commit."""
        before, self._closing = tuple(self._closing), []
        lanes = self._lanes
        if commit not in lanes:
            lanes.append(commit)
        at = lanes.index(commit)
        head = _row({column: "*" if column == at else "|" for column in range(len(lanes))}, {})
        forks: list[str] = []
        for parent in parents[1:]:
            if parent in lanes:
                forks += self._cross(at, lanes.index(parent))
            elif parent != parents[0]:
                lanes.insert(at + 1, parent)
                right = dict.fromkeys(range(at, len(lanes) - 1), "\\")
                forks.append(_row(dict.fromkeys(range(at + 1), "|"), right))
        width = max(len(head), 2 * len(lanes) - 1, *map(len, forks), 0)
        # The lane of a first commit ends.
        beside = _row({column: "|" for column in range(len(lanes)) if parents or column != at}, {})
        if parents and parents[0] not in lanes:
            lanes[at] = parents[0]
        else:
            self._close(at, lanes.index(parents[0]) if parents else None)
        return Row(before, head.ljust(width), tuple(row.ljust(width) for row in forks), beside.ljust(width))

    def _cross(self, start: int, end: int) -> list[str]:
        """An edge from one lane to another, across the lanes in between."""
        lanes = dict.fromkeys(range(len(self._lanes)), "|")
        if end > start:
            return [_row(lanes, {gap: "\\"}) for gap in range(start, end)]
        return [_row(lanes, {gap: "/"}) for gap in range(start - 1, end - 1, -1)]

    def _close(self, at: int, into: int | None) -> None:
        """End a lane: join it with another lane, or stop at a first commit."""
        count = len(self._lanes)
        if into is not None and into > at:
            # Join towards the left: swap the two, so that the lane on the right ends.
            self._lanes[at] = self._lanes[into]
            at, into = into, at
        del self._lanes[at]
        right = {column - 1: "/" for column in range(at + 1, count)}
        left = dict.fromkeys(range(at), "|")
        if into is None:
            if right:
                self._closing.append(_row(left, right))
            return
        self._closing.append(_row(left, right | {at - 1: "/"}))
        rest = dict.fromkeys(range(count - 1), "|")
        self._closing += [_row(rest, {gap: "/"}) for gap in range(at - 2, into - 1, -1)]


def _row(lanes: dict[int, str], gaps: dict[int, str]) -> str:
    """A line with marks in the lanes and in the gaps between them."""
    length = max([2 * lane + 1 for lane in lanes] + [2 * gap + 2 for gap in gaps], default=0)
    cells = [" "] * length
    for lane, mark in lanes.items():
        cells[2 * lane] = mark
    for gap, mark in gaps.items():
        cells[2 * gap + 1] = mark
    return "".join(cells)
