"""Segment: many commits in one row, each proved by its own id.

The row holds the bodies of commits. It leaves out the ids of parents that stand in the row themselves: a
reader computes each id from the body before it. So a segment cannot claim a link that no commit has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from blake3 import blake3
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

from vstate.objects.canonical import decode, encode
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ID_BYTES, ObjectId

MOST_BYTES = 4 * 1024 * 1024
"""The commits of a segment together are no longer than this."""

EDGE = -1

_LONGEST = MOST_BYTES + MOST_BYTES // 4  # MessagePack adds some bytes to each commit
_LEVEL = 1

# The layout of a commit: an array's first byte, the root, the array of parents, a time of eight bytes.
_ID = b"\xc4" + bytes([ID_BYTES])
_NIL = b"\xc0"
_SIX_FIELDS, _PARENTS = 0x96, 0x90  # a clock and a signature are one field more each
_MOST_PARENTS = 15
_TIME = 0xCF
_USUAL, _ONE_PARENT = bytes([_SIX_FIELDS]) + _ID, bytes([_PARENTS + 1]) + _ID
_KEY = COMMIT.key

_BEGINS = {
    bytes([array]) + root + bytes([_PARENTS + count]): count
    for array in range(_SIX_FIELDS, _SIX_FIELDS + 3)
    for root in (_ID, _NIL)
    for count in range(_MOST_PARENTS + 1)
}
"""The bytes before the first parent, without the root's id, and the number of parents that follow."""


def _parent_count(begin: bytes) -> int | None:
    """How many parents follow these first bytes of a commit; None if they are not laid out as usual."""
    if len(begin) == len(_USUAL) + ID_BYTES + 1:
        return _BEGINS.get(begin[:3] + begin[-1:])
    return _BEGINS.get(begin) if len(begin) == 1 + len(_NIL) + 1 else None


def _parts(commit: Commit) -> tuple[bytes, bytes]:
    """The body of a commit before its parents, and behind them."""
    begin = 1 + (len(_NIL) if commit.root is None else len(_ID) + ID_BYTES) + 1
    return commit.body[:begin], commit.body[begin + len(commit.parent_ids) * (len(_ID) + ID_BYTES) :]


def encode_segment(commits: Iterable[Commit]) -> tuple[bytes, bytes]:
    """The row of those of the commits that fit, each after its parents; before it, the id of the last one."""
    begins: list[bytes] = []
    ends: list[bytes] = []
    links: list[list[int | ObjectId]] = []
    places: dict[ObjectId, int] = {}
    last = b""
    for commit in commits:
        begin, end = _parts(commit)
        if _parent_count(begin) != len(commit.parent_ids) or end[0] != _TIME:
            continue
        place = len(places)
        if commit.parent_ids == (last,) and begin.startswith(_USUAL):
            begin = begin[len(_USUAL) : -1]
        else:
            links.append([place - places[oid] if oid in places else oid for oid in commit.parent_ids])
        begins.append(begin)
        ends.append(end)
        last = commit.oid
        places[last] = place
    return last, ZstdCompressor(level=_LEVEL).compress(encode([begins, ends, links]))


class Segment:
    """The commits of a row, each after its parents. ValueError if the row is damaged.

    A *run* is a part of the segment in which each commit has one parent, the commit before it, and a later
    time.
    """

    def __init__(self, row: bytes) -> None:
        self._begins, self._ends, links = _unpacked(row)
        self._parents: dict[int, list[ObjectId]] = {}  # by the place where a run begins
        self.times: list[int] = []
        """The times of the commits, in microseconds."""
        self.ids: list[bytes] = []
        ids, times = self.ids, self.times
        oid: Any = None
        latest = -1
        try:
            links.reverse()
            for begin, end in zip(self._begins, self._ends, strict=True):
                time = int.from_bytes(end[1:9])
                if len(begin) == ID_BYTES:
                    body = _USUAL + begin + _ONE_PARENT + oid + end
                    if time <= latest:
                        self._parents[len(ids)] = [ObjectId(oid)]
                else:
                    parents = self._parents[len(ids)] = self._named(links.pop())
                    body = self._body(len(ids))
                    if _parent_count(begin) != len(parents):
                        raise ValueError("it holds other data than commits")
                if end[0] != _TIME:
                    raise ValueError("it holds a commit without a time")
                oid = blake3(body, key=_KEY).digest()
                ids.append(oid)
                times.append(time)
                latest = time
        except (TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"it is no segment: {error}") from error
        self._starts = list(self._parents)
        self.places: dict[bytes, int] = {oid: EDGE for named in self._parents.values() for oid in named}
        """The places of the commits by id, and EDGE for each parent that is not in the segment."""
        self.places.update(zip(ids, range(len(ids)), strict=True))

    def edges(self) -> list[bytes]:
        """The parents that are not in the segment."""
        return [oid for oid, place in self.places.items() if place == EDGE]

    def commit(self, place: int) -> Commit:
        """The commit at this place; ValueError if it is malformed, though its id is right."""
        return Commit.decode(ObjectId(self.ids[place]), self._body(place))

    def parents(self, place: int) -> list[ObjectId]:
        """The parents of the commit at this place."""
        named = self._parents.get(place)
        return [ObjectId(self.ids[place - 1])] if named is None else named

    def back(self, place: int, most: int) -> int:
        """The place of the commit so many steps back at most, within the run of this commit."""
        return max(place - most, self._start(place))

    def oldest_after(self, place: int, time: int) -> int:
        """The place of the oldest commit later than `time` in the run of this commit, or this one."""
        return min(bisect_right(self.times, time, self._start(place), place), place)

    def _start(self, place: int) -> int:
        return self._starts[bisect_right(self._starts, place) - 1]

    def _named(self, links: list[int | bytes]) -> list[ObjectId]:
        """The parents of the next commit, given as ids, or as numbers of places before it."""
        named = []
        for link in links:
            oid = link if isinstance(link, bytes) else self.ids[-link] if link > 0 else b""
            if len(oid) != ID_BYTES:
                raise ValueError("the id of a parent is missing")
            named.append(ObjectId(oid))
        return named

    def _body(self, place: int) -> bytes:
        begin, parents = self._begins[place], self.parents(place)
        if len(begin) == ID_BYTES:
            begin = _USUAL + begin + _ONE_PARENT[:1]
        return b"".join([begin, *(_ID + oid for oid in parents), self._ends[place]])


def _unpacked(row: bytes) -> tuple[list[Any], list[Any], list[Any]]:
    try:
        if not 0 <= frame_content_size(row) <= _LONGEST:
            raise ValueError(f"it claims {frame_content_size(row)} bytes")
        begins, ends, links = decode(ZstdDecompressor().decompress(row))
    except ZstdError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    return begins, ends, links
