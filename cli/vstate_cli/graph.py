"""Graph: the lines that a log draws beside commits, as git draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vstate.objects.ids import ObjectId


@dataclass(frozen=True)
class Row:
    """What stands beside one commit: `head` at its first line, `forks` at the next, then `beside`.

    `before` are whole lines above it, where lanes come together. All but those have the same width.
    """

    before: tuple[str, ...]
    head: str
    forks: tuple[str, ...]
    beside: str


class Graph:
    """Lanes from each commit down to its parents. Commits are added newest first, children before parents.

    A lane is the id of the commit that it leads to; two lanes never lead to the same one.
    """

    def __init__(self) -> None:
        self._lanes: list[ObjectId] = []
        self._closing: list[str] = []

    @property
    def between(self) -> str:
        """The lanes as they go down from the last commit to the next."""
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
        # Nothing goes on below a first commit.
        beside = _row({column: "|" for column in range(len(lanes)) if parents or column != at}, {})
        if parents and parents[0] not in lanes:
            lanes[at] = parents[0]
        else:
            self._close(at, lanes.index(parents[0]) if parents else None)
        return Row(before, head.ljust(width), tuple(row.ljust(width) for row in forks), beside.ljust(width))

    def _cross(self, start: int, end: int) -> list[str]:
        """An edge from one lane to another, over those between."""
        lanes = dict.fromkeys(range(len(self._lanes)), "|")
        if end > start:
            return [_row(lanes, {gap: "\\"}) for gap in range(start, end)]
        return [_row(lanes, {gap: "/"}) for gap in range(start - 1, end - 1, -1)]

    def _close(self, at: int, into: int | None) -> None:
        """End a lane, which goes on in another one or ends with the first commit."""
        count = len(self._lanes)
        if into is not None and into > at:
            # The other one comes here instead, as if it had been the one on the right.
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
    """Marks in lanes, and in the gaps behind them."""
    length = max([2 * lane + 1 for lane in lanes] + [2 * gap + 2 for gap in gaps], default=0)
    cells = [" "] * length
    for lane, mark in lanes.items():
        cells[2 * lane] = mark
    for gap, mark in gaps.items():
        cells[2 * gap + 1] = mark
    return "".join(cells)
