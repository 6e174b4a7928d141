"""Bundle: commits and all their objects in one file. docs/format.md specifies the bytes.

The reader trusts nothing in the file. It checks lengths before it allocates memory, the hash at the end
before it reads anything else, and each object against its id.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NoReturn

import zstandard
from blake3 import blake3

from vstate.errors import InvalidInput, ReadOnly
from vstate.extras import UPGRADE
from vstate.kv.base import OBJECT_PREFIX, KVStore, TransactionalStore
from vstate.objects.canonical import decode, encode
from vstate.objects.ids import BLOB, COMMIT, ID_BYTES, INDEX, KINDS, TREE, Kind, ObjectId
from vstate.plural import counted
from vstate.recent import Recent
from vstate.repo.core import FORMAT_KEY, STAMP
from vstate.repo.exchange.difference import Needed, TransferProgress
from vstate.repo.history import SHALLOW, shallow_row
from vstate.repo.objects import longest, plain_form

MAGIC = b"vstate bundle\n"
NUMBER = 1
"""The format of the store whose objects it has."""
END = bytes(4)
TRAILER_BYTES = 32

FRAME_BYTES = 4 * 1024 * 1024
"""The most bytes of bodies in a frame; a frame with one object may hold more."""
FRAME_OBJECTS = 4096
HEADER_BYTES = 64 * 1024 * 1024

_HEAD_BYTES = 1024 * 1024
_PIECE = 1024 * 1024
_LEVEL = 3
_MOST_FRAMES = 1 << 24  # their numbers are the lower part of a place
_FRAMES_KEPT = 4  # in memory
KIND_OF_CODE = {ord(kind.code): kind for kind in KINDS}
_COUNTED = (BLOB, INDEX, TREE, COMMIT)

Outcome = Literal["exported", "created", "moved", "unchanged", "ahead", "diverged"]

Path = str | os.PathLike[str]
File = Path | BinaryIO


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of a bundle.

    `refs` have full names, such as `heads/main`. `prerequisites` are commits that the reader must have.
    `shallow` are commits whose history was cut off, with the parents that are left. `size` is the number of
    bytes of all bodies.
    """

    refs: Mapping[str, ObjectId]
    prerequisites: Sequence[ObjectId]
    shallow: Mapping[ObjectId, Sequence[ObjectId]]
    counts: Mapping[Kind, int]
    size: int

    @property
    def objects(self) -> int:
        """The number of objects."""
        return sum(self.counts.values())

    def encode(self) -> bytes:
        """The header's bytes in the file."""
        shallow = sorted((bytes(oid), [bytes(p) for p in left]) for oid, left in self.shallow.items())
        return encode(
            [
                sorted([name, oid] for name, oid in self.refs.items()),
                sorted(self.prerequisites),
                [list(item) for item in shallow],
                [self.counts[kind] for kind in _COUNTED],
                self.size,
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """The header that these bytes encode; ValueError if they encode none."""
        try:
            refs, prerequisites, shallow, counts, size = decode(data)
            header = cls(
                refs={_name(name): _id(oid) for name, oid in refs},
                prerequisites=[_id(oid) for oid in prerequisites],
                shallow={_id(oid): [_id(parent) for parent in left] for oid, left in shallow},
                counts=dict(zip(_COUNTED, counts, strict=True)),
                size=size,
            )
            numbers = (size, *counts)
            if any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError("a header with bad numbers")
            if header.encode() != data:
                raise ValueError("a header that is not canonical")
        except (TypeError, OverflowError) as error:
            raise ValueError(f"not a header: {error}") from error
        return header


@dataclass(frozen=True, slots=True)
class BundleRef:
    """A branch (`heads/…`) or tag (`tags/…`) of a bundle, its commit, and the outcome.

    An export: `exported`. An import: the ref was `created`; it `moved` ahead from `old`; it was at this
    commit already, `unchanged`; ours was `ahead`; or the two have `diverged`, and ours stays.
    """

    name: str
    commit: str
    outcome: Outcome
    old: str | None = None


@dataclass(frozen=True, slots=True)
class BundleReport:
    """The results of an export or an import.

    `objects` and `bytes` are totals of the bundle, in bytes of bodies. `written` counts the objects that were
    new to the store. `file_bytes` is the size of the file. `prerequisites` are commits that readers need.
    """

    refs: Sequence[BundleRef]
    objects: int
    written: int
    bytes: int
    file_bytes: int
    prerequisites: Sequence[str]
    seconds: float

    @property
    def diverged(self) -> Sequence[BundleRef]:
        """The refs that stay because the bundle's commit does not follow ours, or because they are tags."""
        return [ref for ref in self.refs if ref.outcome == "diverged"]

    def __str__(self) -> str:
        lines = [
            f"{counted(self.objects, 'object')} of {counted(self.bytes, 'byte')} in {self.file_bytes:,} "
            f"({self.seconds:.2f} s)"
        ]
        for ref in self.refs:
            was = f", was {ref.old[:10]}" if ref.old not in (None, ref.commit) else ""
            lines.append(f"{ref.name} {ref.commit[:10]}: {ref.outcome}{was}")
        return "\n".join(lines)


class Writer:
    """Writes a bundle: first the header, then frames, then the end by `finish`."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        self._file = file
        self._hash = blake3()
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL)
        self.bytes = 0
        data = header.encode()
        self._write(MAGIC + NUMBER.to_bytes(2, "big") + len(data).to_bytes(4, "big") + data)

    def frame(self, items: Sequence[Needed], bodies: Iterable[bytes]) -> None:
        """Write some objects, after those of the bundle that they refer to."""
        payload = self._zstd.compress(b"".join(bodies))
        kinds = b"".join(item.kind.code.encode() for item in items)
        ids = b"".join(item.oid for item in items)
        head = encode([kinds, ids, [item.length for item in items], len(payload)])
        self._write(len(head).to_bytes(4, "big") + head)
        self._write(payload)

    def finish(self) -> None:
        """Write the end."""
        self._write(END)
        self._file.write(self._hash.digest())
        self.bytes += TRAILER_BYTES

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)


class Bundle(TransactionalStore):
    """A bundle in a seekable file, as a store of its objects and of the ends of its histories.

    Objects that it lacks are those of the store `behind`, which it continues. Their readers check them, as
    those of any store. `name` is its name in messages. Opening reads the whole file: InvalidInput if it is
    damaged or cut short, or no bundle at all. An object takes 8 bytes of memory.
    """

    remote = False

    def __init__(self, file: BinaryIO, name: str, behind: KVStore, progress: TransferProgress) -> None:
        self._file = file
        self._name = name
        self._behind = behind
        self.bytes = file.seek(0, os.SEEK_END)
        self._check_whole(progress)
        start = len(MAGIC) + 2
        size = int.from_bytes(self._read_at(start, 4), "big")
        if size > HEADER_BYTES or start + 4 + size > self.bytes:
            self.refuse("its header is too long")
        try:
            self.header = Header.decode(self._read_at(start + 4, size))
        except ValueError as error:
            self.refuse(str(error))
        self._heads: list[int] = []
        """Where each frame begins."""
        self._places = array("Q", sorted(self._found_in_frames(start + 4 + size)))
        """For each object the first bytes of its id, and the number of its frame."""
        self._kept = Recent[int, dict[str, bytes]](_FRAMES_KEPT)
        self._rows = {FORMAT_KEY: STAMP, **self._ends()}

    @property
    def location(self) -> str:
        return self._name

    def _found_in_frames(self, at: int) -> Iterator[int]:
        """What `_places` is made of; InvalidInput unless the frames hold what the header says."""
        left, size_left = dict(self.header.counts), self.header.size
        while self._read_at(at, 4) != END:
            items, begin, packed = self._frame(at)
            for item in items:
                left[item.kind] -= 1
                size_left -= item.length
                yield _place(item.oid) | len(self._heads)
            self._heads.append(at)
            at = begin + packed
        if at + len(END) + TRAILER_BYTES != self.bytes or any(left.values()) or size_left:
            self.refuse("its objects are not those that its header says")

    def _ends(self) -> dict[str, bytes]:
        """The rows of the ends of histories: its own for its own commits, else those of the store behind."""
        own = dict(shallow_row(oid, left) for oid, left in self.header.shallow.items())
        if len(self._listed(map(_commit_of, own))) < len(own):
            self.refuse("it ends a history at a commit that is missing")
        others = dict(self._behind.items(SHALLOW))
        here = self._listed(map(_commit_of, others))
        return own | {key: row for key, row in others.items() if _commit_of(key) not in here}

    def get(self, key: str) -> bytes | None:
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        keys = list(keys)
        found = {key: self._rows[key] for key in keys if key in self._rows}
        objects = [key for key in keys if key.startswith(OBJECT_PREFIX)]
        found |= self._own(objects)
        missing = [key for key in objects if key not in found]
        return found | self._behind.get_many(missing) if missing else found

    def keys(self, prefix: str = "") -> Iterator[str]:
        return (key for key in self._rows if key.startswith(prefix))

    def present(self, keys: Iterable[str]) -> Set[str]:
        keys = list(keys)
        objects = [key for key in keys if key.startswith(OBJECT_PREFIX)]
        found = self._listed(objects).union(key for key in keys if key in self._rows)
        missing = [key for key in objects if key not in found]
        return found | self._behind.present(missing) if missing else found

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        raise ReadOnly(f"{self._name} is a bundle, which nobody writes to")

    def _own(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The stored forms of these objects, as far as the bundle has them. Each frame is read once."""
        found: dict[str, bytes] = {}
        for number, some in self._frames_of(keys):
            rows = self._kept.get(number)
            if rows is None:
                self._kept[number] = rows = self._rows_of_frame(number)
            found.update((key, rows[key]) for key in some if key in rows)
        return found

    def _listed(self, keys: Iterable[str]) -> set[str]:
        """Those of these objects that the bundle has, by the heads of its frames. Decompresses nothing."""
        found: set[str] = set()
        for number, some in self._frames_of(keys):
            items, _, _ = self._frame(self._heads[number])
            found |= {OBJECT_PREFIX + item.oid.hex() for item in items}.intersection(some)
        return found

    def _frames_of(self, keys: Iterable[str]) -> Iterable[tuple[int, Sequence[str]]]:
        """The frames that may have these objects, ascending, each with the keys to look for."""
        wanted: dict[int, list[str]] = defaultdict(list)
        for key in keys:
            begin = _place(bytes.fromhex(key.removeprefix(OBJECT_PREFIX)))
            at = bisect_left(self._places, begin)
            while at < len(self._places) and self._places[at] < begin + _MOST_FRAMES:
                wanted[self._places[at] - begin].append(key)
                at += 1
        return sorted(wanted.items())

    def _rows_of_frame(self, number: int) -> dict[str, bytes]:
        """The stored forms of all objects of a frame."""
        items, begin, size = self._frame(self._heads[number])
        payload = self._read_at(begin, size)
        total = sum(item.length for item in items)
        try:
            if zstandard.frame_content_size(payload) != total:
                self.refuse("a frame is not as long as it says")
            bodies = zstandard.ZstdDecompressor().decompress(payload)
        except zstandard.ZstdError as error:
            self.refuse(f"a frame cannot be decompressed: {error}")
        rows = {}
        at = 0
        for kind, oid, length, _ in items:
            rows[OBJECT_PREFIX + oid.hex()] = plain_form(kind, bodies[at : at + length])
            at += length
        return rows

    def _read_at(self, begin: int, size: int) -> bytes:
        """`size` bytes from `begin` on; InvalidInput if there are fewer."""
        self._file.seek(begin)
        data = self._file.read(size) if begin + size <= self.bytes else b""
        if len(data) != size:
            self.refuse("it is cut short")
        return data

    def refuse(self, reason: str) -> NoReturn:
        """Raise InvalidInput."""
        raise InvalidInput(f"{self._name} is not a whole bundle: {reason}; copy it or export it again")

    def _frame(self, at: int) -> tuple[Sequence[Needed], int, int]:
        """The objects of the frame there, and where its payload begins, with its length."""
        begin = at + 4 + int.from_bytes(self._read_at(at, 4), "big")
        if begin - at - 4 > _HEAD_BYTES:
            self.refuse("the head of a frame is too long")
        head = self._read_at(at + 4, begin - at - 4)
        try:
            kinds, ids, lengths, size = decode(head)
            count = len(lengths)
            items = [
                Needed(KIND_OF_CODE[kinds[i]], ObjectId(ids[i * ID_BYTES : (i + 1) * ID_BYTES]), length)
                for i, length in enumerate(lengths)
            ]
            shapes = (
                0 < count <= FRAME_OBJECTS
                and len(kinds) == count
                and type(ids) is bytes
                and len(ids) == ID_BYTES * count
                and all(type(length) is int for length in lengths)
                and all(0 <= item.length <= longest(item.kind) for item in items)
                and type(size) is int
                and encode([kinds, ids, lengths, size]) == head
            )
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            self.refuse(f"a frame is malformed: {error}")
        total = sum(lengths) if shapes else 0
        if not shapes or (count > 1 and total > FRAME_BYTES) or not 0 < size <= total + (total >> 7) + 1024:
            self.refuse("a frame is malformed")
        return items, begin, size

    def _check_whole(self, progress: TransferProgress) -> None:
        self._file.seek(0)
        begin = self._file.read(len(MAGIC) + 2)
        if not begin.startswith(MAGIC):
            raise InvalidInput(f"{self._name} is no bundle of vstate; make one with `vstate export`")
        number = int.from_bytes(begin[len(MAGIC) :], "big")
        if number != NUMBER or len(begin) < len(MAGIC) + 2:
            raise InvalidInput(
                f"{self._name} is a bundle of format {number}, this vstate reads {NUMBER}; upgrade it: "
                f"{UPGRADE}"
            )
        hasher = blake3(begin)
        left = self.bytes - len(begin) - TRAILER_BYTES
        while left > 0:
            piece = self._file.read(min(_PIECE, left))
            if not piece:
                self.refuse("it is cut short")
            hasher.update(piece)
            left -= len(piece)
            progress("checking", self.bytes - left, self.bytes)
        if left < 0 or self._file.read(TRAILER_BYTES + 1) != hasher.digest():
            self.refuse("it is damaged or cut short")


def _place(oid: bytes) -> int:
    """The first bytes of an id, as the upper part of a number."""
    return int.from_bytes(oid[:5], "big") * _MOST_FRAMES


def _commit_of(key: str) -> str:
    """The key of the commit whose history the row with this key ends."""
    return OBJECT_PREFIX + key.removeprefix(SHALLOW)


def _id(raw: Any) -> ObjectId:
    if not isinstance(raw, bytes) or len(raw) != ID_BYTES:
        raise ValueError("an id of 32 bytes is missing")
    return ObjectId(raw)


def _name(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("a name is missing")
    return raw
