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

_LONGEST = MOST_BYTES + MOST_BYTES // 4  # MessagePack adds some bytes to each commit
_LEVEL = 1

# The layout of a commit: an array's first byte, the root, the array of parents, a time of eight bytes.
_ID = b"\xc4" + bytes([ID_BYTES])
_PARENTS_AT = 1 + len(_ID) + ID_BYTES
_PARENTS_AT_WITHOUT_ROOT = 2
_USUAL, _ONE = b"\x96" + _ID, b"\x91"
_TIME = 0xCF
_ONE_BEFORE = 1  # in place of `[1]`: the one parent is the commit before
_KEY = COMMIT.key

_BEGINS = {
    bytes([array]) + root + bytes([0x90 + count]): count
    for array in (0x96, 0x97)
    for root in (_ID, b"\xc0")
    for count in range(16)
}
"""The bytes before the first parent, without the root, and the number of parents that follow."""


def _times_begin(commit: Commit) -> int:
    return _parents_begin(commit) + len(commit.parent_ids) * (len(_ID) + ID_BYTES)


def _parents_begin(commit: Commit) -> int:
    return 1 + (_PARENTS_AT_WITHOUT_ROOT if commit.root is None else _PARENTS_AT)


def fits(commit: Commit) -> bool:
    """Whether a segment can hold the commit: it is encoded as usual, and has 15 parents at most."""
    return (
        _parent_count(commit.body[: _parents_begin(commit)]) == len(commit.parent_ids)
        and commit.body[_times_begin(commit)] == _TIME
    )


def _parent_count(begin: bytes) -> int | None:
    """How many parents follow these first bytes of a commit; None if they are not laid out as usual."""
    if len(begin) == _PARENTS_AT + 1:
        return _BEGINS.get(begin[:3] + begin[_PARENTS_AT:])
    return _BEGINS.get(begin) if len(begin) == _PARENTS_AT_WITHOUT_ROOT + 1 else None


def encode_segment(commits: Iterable[Commit]) -> bytes:
    """The row of these commits. Each of them `fits`, and stands after its parents."""
    begins: list[bytes] = []
    ends: list[bytes] = []
    links: list[int | list[int | ObjectId]] = []
    places: dict[ObjectId, int] = {}
    for i, commit in enumerate(commits):
        begins.append(commit.body[: _parents_begin(commit)])
        named = [i - places[oid] if oid in places else oid for oid in commit.parent_ids]
        links.append(_ONE_BEFORE if named == [_ONE_BEFORE] else named)
        ends.append(commit.body[_times_begin(commit) :])
        places[commit.oid] = i
    return ZstdCompressor(level=_LEVEL).compress(encode([begins, links, ends]))


class Segment:
    """The commits of a row, each after its parents. ValueError if the row is damaged.

    A *run* is a part of the segment in which each commit has one parent, the commit before it, and a later
    time.
    """

    def __init__(self, row: bytes) -> None:
        self._begins, self._links, self._ends = _unpacked(row)
        self._starts: list[int] = []  # for each commit, the place where its run begins
        self.times: list[int] = []
        """The times of the commits, in microseconds."""
        self.ids: list[bytes] = []
        self.edges: set[bytes] = set()
        """The parents that are not in the segment."""
        ids, times, starts = self.ids, self.times, self._starts
        start = time = 0
        oid = b""
        try:
            for begin, links, end in zip(self._begins, self._links, self._ends, strict=True):
                earlier, time = time, int.from_bytes(end[1:9])
                if links == _ONE_BEFORE and time > earlier and begin[:3] == _USUAL and begin[35:] == _ONE:
                    body = begin + _ID + oid + end
                else:
                    start = len(ids)
                    body = self._body(start)
                    named = self._named(start)
                    self.edges.update(link for link in named if isinstance(link, bytes))
                    if _parent_count(begin) != len(named):
                        raise ValueError("it holds other data than commits")
                if end[0] != _TIME:
                    raise ValueError("it holds a commit without a time")
                oid = blake3(body, key=_KEY).digest()
                ids.append(oid)
                times.append(time)
                starts.append(start)
        except (TypeError, IndexError) as error:
            raise ValueError(f"it is no segment: {error}") from error
        self.places = {oid: place for place, oid in enumerate(ids)}

    def commit(self, place: int) -> Commit:
        """The commit at this place; ValueError if it is malformed, though its id is right."""
        return Commit.decode(ObjectId(self.ids[place]), self._body(place))

    def parents(self, place: int) -> list[ObjectId]:
        """The parents of the commit at this place."""
        found = []
        for link in self._named(place):
            if isinstance(link, int):
                if not 0 < link <= place:
                    raise ValueError("a commit stands before its parent")
                link = self.ids[place - link]
            elif len(link) != ID_BYTES:
                raise ValueError("an id of 32 bytes is missing")
            found.append(ObjectId(link))
        return found

    def back(self, place: int, most: int) -> int:
        """The place of the commit so many steps back at most, within the run of this commit."""
        return max(place - most, self._starts[place])

    def oldest_after(self, place: int, time: int) -> int:
        """The place of the oldest commit later than `time` in the run of this commit, or this one."""
        return min(bisect_right(self.times, time, self._starts[place], place), place)

    def _named(self, place: int) -> list[int | bytes]:
        links = self._links[place]
        return [1] if links == _ONE_BEFORE else links

    def _body(self, place: int) -> bytes:
        return b"".join([self._begins[place], *(_ID + oid for oid in self.parents(place)), self._ends[place]])


def _unpacked(row: bytes) -> tuple[list[Any], list[Any], list[Any]]:
    try:
        if not 0 <= frame_content_size(row) <= _LONGEST:
            raise ValueError(f"it claims {frame_content_size(row)} bytes")
        begins, links, ends = decode(ZstdDecompressor().decompress(row))
    except ZstdError as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    return begins, links, ends
