"""Graph: the links of commits, many in one row, for walks that need no more of a commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from vstate.errors import CorruptObject, CorruptStore
from vstate.kv.base import KVStore
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.objects.segment import EDGE, MOST_BYTES, Segment, encode_segment

GRAPH = "commit-graph/"
"""Under this prefix, by the id of its newest commit, lies a row with a segment of the history before it."""

_RANKS = 1, 4, 16
"""Of 256 commits, so many may be the newest of a segment, by chance: one. A store that takes a request for
each key also has segments of two later ranks, at 4 and 16 of 256. A segment goes back to the next tip of the
rank before its own, so a walk needs few requests."""

_MOST = 4096
"""A segment has so many commits at the most."""

Ends = Callable[[], Collection[bytes]]

_KEPT = 8  # segments in memory
_ABSENT = 10_000  # rows that are known to be absent


def graph_key(oid: bytes) -> str:
    """The key of the segment whose newest commit this is."""
    return GRAPH + oid.hex()


class Graph:
    """The segments of one store. Threads may share it.

    A segment proves its links by the ids of its commits, and a commit never changes. So a row may be missing,
    stale or forged, and costs time only. `Ends` are the commits whose parents were cut off: a segment that
    has one is left out, because some of its commits are gone.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self.has_ranks = store.remote and not store.transactional
        """Whether there are later ranks: a store without transactions takes a request for each key."""
        self._ranks = _RANKS if self.has_ranks else _RANKS[:1]
        self._segments: tuple[Segment, ...] = ()
        self._absent: set[bytes] = set()

    def is_tip(self, oid: bytes, *, first: bool = False) -> bool:
        """Whether the commit may be the newest of a segment; with `first`, of the first rank.

        The id decides, so every program agrees.
        """
        return oid[-1] < self._ranks[0 if first else -1]

    def ends_before(self, tip: bytes, oid: bytes) -> bool:
        """Whether a segment at `tip`, of a later rank than the first, ends before the commit `oid`."""
        return any(oid[-1] < rank <= tip[-1] for rank in self._ranks)

    def forget(self) -> None:
        """Read all rows again at the next need."""
        self._segments, self._absent = (), set()

    def find(self, oid: bytes, ends: Ends, *, first: bool = False) -> tuple[Segment, int] | None:
        """The segment that has the commit, and the commit's place in it; None if no segment is known.

        With `first`, a segment of the first rank.
        """
        edges: list[bytes] = []
        for segment in self._segments:
            place = segment.places.get(oid)
            if place is not None and (not first or self.is_tip(segment.ids[-1], first=True)):
                if place != EDGE:
                    return segment, place
                edges += segment.edges()
        # A first parent may lie beside the next segment's tip, and still in that segment.
        tips = [tip for tip in ([oid] if self.is_tip(oid) else edges) if self.is_tip(tip, first=first)]
        for segment in self._load(tips, ends) if tips else ():
            place = segment.places.get(oid, EDGE)
            if place != EDGE:
                return segment, place
        return None

    def lacking(self, ids: Sequence[ObjectId], ends: Ends) -> list[ObjectId]:
        """Those of these commits, newest first, that no segment has, after a look for all their segments.

        All of them from a store that reads many keys in one request: that is faster than their segments.
        """
        if not self.has_ranks:
            return list(ids)
        self._load([oid for oid in ids if self.is_tip(oid)], ends)
        return [
            oid for oid in ids if all(segment.places.get(oid, EDGE) == EDGE for segment in self._segments)
        ]

    def _load(self, tips: Sequence[bytes], ends: Ends) -> tuple[Segment, ...]:
        loaded = {segment.ids[-1] for segment in self._segments}
        keys = {graph_key(tip): tip for tip in tips if tip not in loaded and tip not in self._absent}
        try:
            rows = self._store.get_many(keys) if keys else {}
        except (CorruptObject, CorruptStore):
            rows = {}
        segments: tuple[Segment, ...] = ()
        if len(self._absent) > _ABSENT:
            self._absent = set()
        for key, tip in keys.items():
            if any(segment.places.get(tip, EDGE) != EDGE for segment in segments):
                continue  # the rest of a newer one
            try:
                segment = read_segment(key, rows[key])
            except (KeyError, ValueError):  # absent or damaged: the commits themselves are read
                self._absent.add(tip)
                continue
            if all(segment.places.get(oid, EDGE) == EDGE for oid in ends()):
                segments += (segment,)
            else:
                self._absent.add(tip)
        self._segments = (*segments, *self._segments)[:_KEPT]
        return segments

    # Writing

    def without_row(self, tips: Iterable[Commit]) -> list[Commit]:
        """Those of these tips that have no row, in their order."""
        keys = {graph_key(tip.oid): tip for tip in tips}
        present = self._store.present(keys)
        return [tip for key, tip in keys.items() if key not in present]

    def write(self, rows: Mapping[str, bytes]) -> None:
        """Write segments."""
        if rows:
            self._store.set_many(rows)
            self._absent = set()


def read_segment(key: str, row: bytes) -> Segment:
    """The segment in a row; ValueError if the row is damaged, or is another commit's."""
    segment = Segment(row)
    if not segment.ids or key != graph_key(segment.ids[-1]):
        raise ValueError("it is the segment of another commit")
    return segment


def is_segment(key: str, row: bytes) -> bool:
    """Whether a row is as it should be."""
    try:
        return bool(read_segment(key, row).ids)
    except ValueError:
        return False


def segment_row(newest_first: Iterable[Commit]) -> dict[str, bytes]:
    """The row of a tip and the commits before it, none if the tip fits none. Reads as many as fit a row."""
    commits: list[Commit] = []
    size = 0
    for commit in islice(newest_first, _MOST):
        size += len(commit.body)
        if size > MOST_BYTES:
            break
        commits.append(commit)
    newest, row = encode_segment(reversed(commits))
    return {graph_key(newest): row} if newest == commits[0].oid else {}
