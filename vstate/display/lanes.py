"""Lanes: the places of commits side by side, and the edges between them, for a drawing of a history."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from vstate.objects.ids import ObjectId

MOST_LANES: Final = 24
"""Lanes further right are not drawn."""

Edge = tuple[int, int, int]
"""The lane at this commit's row, the lane at the next row, and the number of the colour."""


class Placed(NamedTuple):
    """The lane of a commit, and the edges from its row to the next row."""

    lane: int
    edges: tuple[Edge, ...]


class Lanes:
    """Gives each commit a lane. Add commits newest first, children before parents.

    A lane leads to one commit, and no two lanes lead to the same. A free lane is used again, leftmost first.
    """

    def __init__(self) -> None:
        self._to: list[ObjectId | None] = []
        self._colours: list[int] = []
        self._at: dict[ObjectId, int] = {}
        self._free: list[int] = []
        self._next_colour = 0

    def add(self, commit: ObjectId, parents: Sequence[ObjectId]) -> Placed:
        """The lane of the next commit, and the edges that lead down from its row."""
        lane = self._at.pop(commit, None)
        if lane is None:
            lane = self._take(commit)
            del self._at[commit]
        colour = self._colours[lane]
        before = self._to[:MOST_LANES]
        self._to[lane] = None
        edges: list[Edge] = []
        moved: dict[int, int] = {}
        for number, parent in enumerate(dict.fromkeys(parents)):
            at = self._at.get(parent)
            if number == 0 and (at is None or at > lane):
                if at is not None:  # the lane further right joins this one
                    moved[at] = lane
                    self._to[at] = None
                    heappush(self._free, at)
                at = lane
                self._to[lane] = parent
                self._at[parent] = lane
            elif at is None:
                at = self._take(parent)
            edges.append((lane, at, colour if number == 0 else self._colours[at]))
        if self._to[lane] is None:
            heappush(self._free, lane)
        through = [
            (at, moved.get(at, at), self._colours[at])
            for at, to in enumerate(before)
            if to is not None and at != lane
        ]
        drawn = (edge for edge in edges if max(edge[:2]) < MOST_LANES)
        return Placed(lane, (*through, *drawn))

    def _take(self, commit: ObjectId) -> int:
        """Lead a free lane, in a new colour, to the commit."""
        if self._free:
            at = heappop(self._free)
        else:
            at = len(self._to)
            self._to.append(None)
            self._colours.append(0)
        self._to[at] = commit
        self._colours[at] = self._next_colour
        self._next_colour += 1
        self._at[commit] = at
        return at
