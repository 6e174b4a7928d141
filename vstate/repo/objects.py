"""Objects: immutable, verified content in a KVStore."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import zstandard
from blake3 import blake3
from zstandard import ZstdError, frame_content_size

from vstate.errors import CorruptObject, CorruptStore, InvalidInput
from vstate.kv.base import OBJECT_PREFIX, KVStore, batches
from vstate.objects.canonical import decode, decode_checked, encode, encode_checked
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, ID_BYTES, INDEX, KINDS, TREE, Kind, NewObjects, ObjectId
from vstate.objects.stream import BLOB_BYTES, INDEX_LIMIT, read_index
from vstate.objects.tree import Node
from vstate.plural import counted
from vstate.repo.rooms import Rooms
from vstate.values.entry import Reader

_Id = TypeVar("_Id", bound=bytes)
_T = TypeVar("_T")

IndexItems = Sequence[tuple[ObjectId, int]]
"""The items of an index node: ids, and the lengths in bytes of the streams below."""

DAMAGED = "damaged/"
"""`fsck` moves the stored form of damaged objects here, and puts an empty row for missing ones. An absent
object with such a row is known to be lost."""

INCONSISTENT = DAMAGED + OBJECT_PREFIX
"""`fsck` notes here, by id, objects that it leaves in place although a part of them cannot be true."""

TRASH = "trash/"
"""`gc` keeps garbage here for a while in a store without transactions: the seconds since 1970 in 8 bytes,
then the stored form. An object that proves reachable after all is read from here."""

REPLACED = "replaced/"
"""Rows that lead from old commits to the commits that `erase` made of them. The key ends with a hash."""

MAX_OBJECT_BYTES = 64 * 1024 * 1024
"""The longest object before compression. A stored object that claims to be longer is refused."""

MAX_NODE_BYTES = 16 * 1024 * 1024
"""The same for tree nodes, which take many times as much memory once decoded. A node has 32 keys on
average, of 4,096 bytes at most; a node of 1,000 keys does not occur by chance."""

BLOB_LEVEL = 1
NODE_LEVEL = -1
"""zstd's levels. Text shrinks by a third more at 1 than at -1; nodes, which are hashes and keys, do not."""

COMPRESS_FROM_BYTES = 128
LEAST_SAVED = 64
"""An object that would shrink by fewer bytes is stored as it is: decompressing takes longer than reading."""

_PAIRS = 4096  # in a row of REPLACED

_LONGEST_INDEX = 64 * INDEX_LIMIT  # bytes; an item takes 32 for its id and at most 9 for its length
_LONGEST = {**dict.fromkeys(KINDS, MAX_OBJECT_BYTES), TREE: MAX_NODE_BYTES, INDEX: _LONGEST_INDEX}

_COPIED = BLOB_BYTES + 1
"""A stored form of at most so many bytes is copied without its letter: a view takes longer."""

SAMPLE_AFTER = 8
SAMPLE_EVERY = 32
"""If 8 similar objects in a row did not shrink, one in 32 is tried, until one shrinks. Similar are objects of
one kind and of about one length: the root of a tree does not shrink where its leaves do."""

NODE_CACHE = 4096
COMMIT_CACHE = 4096
LONGEST_CACHED = 256 * 1024
"""How many nodes and commits stay in memory, and the longest body that does after a read, in bytes."""
_DROPPED_AT_ONCE = 16  # a sixteenth of them

MOST_KEPT = 64
"""Nodes that are read in a larger batch for one look do not stay in memory."""

_LETTERS: dict[Kind, tuple[bytes, bytes]] = {
    kind: (kind.code.encode(), kind.code.upper().encode()) for kind in KINDS
}
_KIND_OF = {ord(letter): kind for kind, letters in _LETTERS.items() for letter in letters}


def kind_of(stored: bytes) -> Kind | None:
    """The kind of an object by its stored form; None if it is no object."""
    return _KIND_OF.get(stored[0]) if stored else None


def longest(kind: Kind) -> int:
    """The most bytes that the body of an object of this kind may have."""
    return _LONGEST[kind]


def in_trash(stored: bytes) -> bytes:
    """The row that keeps an object's stored form in the trash, dated now."""
    return int(time.time()).to_bytes(8, "big") + stored


def replaced_rows(new: Mapping[ObjectId, ObjectId]) -> dict[str, bytes]:
    """The rows that lead from old commits to the new ones."""
    rows = [encode_checked([*zip(*pairs, strict=True)]) for pairs in batches(sorted(new.items()), _PAIRS)]
    return {REPLACED + blake3(row).hexdigest(length=8): row for row in rows}


def parse_replaced(row: bytes) -> dict[ObjectId, ObjectId]:
    """The new commits by the old ones; ValueError if the row is damaged."""
    try:
        old, new = ([ObjectId(oid) for oid in ids] for ids in decode_checked(row))
    except TypeError as error:
        raise ValueError(f"it holds no ids: {error}") from error
    if {len(oid) for oid in (*old, *new)} != {ID_BYTES}:
        raise ValueError("it holds other data than ids")
    return dict(zip(old, new, strict=True))


class _Kept(dict[bytes, _T]):
    """The objects of one kind in memory, by their ids. One that is not there is read: CorruptObject."""

    def __init__(self, store: KVStore, kind: Kind, decode: Callable[..., _T], most: int) -> None:
        self._store = store
        self._kind = kind
        self.decode = decode
        """Makes an object of its body, and a commit of its id and its body; ValueError."""
        self._most = most
        self._follow = store.follow if kind is COMMIT and isinstance(store, Rooms) else None

    def read(self, oid: bytes, stored: bytes | None = None) -> _T:
        """The object, verified; a short one stays in memory. `stored` is its form, if that was read."""
        kind = self._kind
        if stored is None:
            stored = self._store.get(OBJECT_PREFIX + oid.hex())
        (raw,), (packed,) = _LETTERS[kind]
        body = b""
        if stored and stored[0] == raw:
            body = stored[1:]
        elif stored and stored[0] == packed:
            body = _zstd.unpack(memoryview(stored)[1:], _LONGEST[kind])
        if blake3(body, key=kind.key).digest() != oid:
            body = _checked(self._store, kind, oid, stored)
        try:
            made = self.decode(oid, body) if kind is COMMIT else self.decode(body)
        except ValueError as error:
            raise CorruptObject(oid.hex(), str(error)) from error
        if self._follow is not None:
            self._follow(made)  # type: ignore[arg-type]  # a commit
        if len(body) <= LONGEST_CACHED:
            self[oid] = made
            if len(self) > self._most:
                _trim(self, self._most)
        return made

    __missing__ = read

    def read_many(self, ids: Sequence[bytes]) -> list[_T]:
        """The objects in the order of the ids. Those that are not in memory are read in one batch."""
        found = [self.get(oid) for oid in ids]
        if all(found):
            return found  # type: ignore[return-value]  # an object is never false
        names = {oid: OBJECT_PREFIX + oid.hex() for oid, each in zip(ids, found, strict=True) if each is None}
        stored = self._store.get_many(list(names.values())) if len(names) > 1 else {}
        read = {oid: self.read(oid, stored.pop(name, None)) for oid, name in names.items()}
        return [read[oid] if each is None else each for oid, each in zip(ids, found, strict=True)]


def _checked(store: KVStore, kind: Kind, oid: bytes, stored: bytes | None) -> bytes:
    """The body of a stored form. A damaged one is read again past the cache, if there is a cache."""
    try:
        return bytes(verified(kind, oid, stored))
    except CorruptObject:
        key = OBJECT_PREFIX + oid.hex()
        store.forget(key)
        again = store.get(key)
        if again is None:
            # gc may bring the object back between the two reads: then a last read finds it.
            again = (store.get(TRASH + oid.hex()) or b"")[8:] or store.get(key)
        return bytes(verified(kind, oid, again))


def verified(kind: Kind, oid: bytes, stored: bytes | None) -> bytes | memoryview:
    """The body in this stored form, not copied unless compressed; CorruptObject if it is damaged."""
    if stored is None:
        raise CorruptObject(oid.hex(), "it is missing")
    raw, packed = _LETTERS[kind]
    letter = stored[:1]
    body: bytes | memoryview
    if letter == raw:
        body = memoryview(stored)[1:]
    elif letter == packed:
        body = _zstd.decompress(oid, stored, longest(kind))
    else:
        raise CorruptObject(oid.hex(), f"it is no {kind.name}")
    if blake3(body, key=kind.key).digest() != oid:
        raise CorruptObject(oid.hex(), "its content does not match its id")
    return body


class Objects:
    """The objects of one store. Threads may share it."""

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self._nodes = _Kept(store, TREE, Node.decode, NODE_CACHE)
        self.node: Callable[[bytes], Node] = self._nodes.__getitem__
        """A tree node, by its id, from memory if it was read or written recently."""
        self.nodes = self._nodes.read_many
        """Tree nodes in the order of their ids."""
        self._commits = _Kept(store, COMMIT, Commit.decode, COMMIT_CACHE)
        self.commit: Callable[[ObjectId], Commit] = self._commits.__getitem__
        """A commit, from memory if it was read or written recently."""
        self.commits: Callable[[Sequence[ObjectId]], list[Commit]] = self._commits.read_many
        """Commits in the order of their ids."""
        self._misses: dict[tuple[Kind, int], int] = {}
        """How many objects in a row did not shrink, by kind and by the bits of the length."""

    # Reading

    def read(self, kind: Kind, oid: bytes) -> bytes:
        """The body of the object of this kind; CorruptObject if it is missing or damaged."""
        return _checked(self.store, kind, oid, self.store.get(OBJECT_PREFIX + oid.hex()))

    def read_many(
        self, kind: Kind, ids: Iterable[_Id], *, longest: Mapping[_Id, int] | None = None
    ) -> dict[_Id, bytes]:
        """The bodies of objects of one kind, in one batch; CorruptObject as for `read`.

        `longest` is the most bytes that each may have. A longer one is corrupt, and is not decompressed.
        """
        ids = dict.fromkeys(ids) if longest is None else longest
        return {oid: bytes(body) for oid, body in self._each(kind, list(ids), longest)}

    def each_node(self, ids: Sequence[_Id]) -> Iterator[tuple[_Id, Node, bytes]]:
        """Tree nodes with their bodies, in one batch; CorruptObject as for `read`. None stays in memory."""
        for oid, body in self._each(TREE, ids):
            try:
                yield oid, Node.decode(body), body
            except ValueError as error:
                raise CorruptObject(oid.hex(), str(error)) from error

    def each_index(self, ids: Sequence[ObjectId]) -> Iterator[tuple[ObjectId, int, IndexItems, bytes]]:
        """Index nodes with their heights, items and bodies, in one batch; CorruptObject as for `read`."""
        for oid, body in self._each(INDEX, ids):
            try:
                height, ids_below, lengths = read_index(body)
                yield oid, height, [*zip(ids_below, lengths, strict=True)], body
            except ValueError as error:
                raise CorruptObject(str(oid), str(error)) from error

    def _each(
        self, kind: Kind, ids: Sequence[_Id], longest: Mapping[_Id, int] | None = None
    ) -> Iterator[tuple[_Id, Any]]:
        """The bodies as bytes, in one batch; that of a long blob is a view, not copied unless compressed."""
        # One at a time: a made-up store may compress many bytes into few.
        names = [OBJECT_PREFIX + oid.hex() for oid in ids]
        found = self.store.get_many(names)
        (raw,), (packed,) = _LETTERS[kind]
        key, most, unpack = kind.key, _LONGEST[kind], _zstd.unpack
        copied = _COPIED if kind is BLOB else sys.maxsize
        for oid, name in zip(ids, names, strict=True):
            stored = found.pop(name, None)
            if longest is not None:
                most = longest[oid]
            if stored:
                letter = stored[0]
                body: bytes | memoryview = stored[1:] if len(stored) <= copied else memoryview(stored)[1:]
                if letter == packed:
                    body = unpack(body, most)
                if letter in (raw, packed) and len(body) <= most and blake3(body, key=key).digest() == oid:
                    yield oid, body
                    continue
                if longest is not None and letter in (raw, packed) and (size := _body_size(stored)) > most:
                    said = f"a {kind.name} of {counted(size, 'byte')}; the link to it says {most}"
                    raise CorruptObject(oid.hex(), said)
            # A body that is not right goes the long way, which says why, or reads it again.
            yield oid, _checked(self.store, kind, oid, stored)

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""
        return self.read(BLOB, oid)

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        """The bodies of these blobs, each of at most the given bytes, and not copied where that can be."""
        return dict(self._each(BLOB, list(sizes), sizes))

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""
        return self.read_many(INDEX, ids)

    def nodes_once(self, ids: Sequence[bytes]) -> Iterator[Node]:
        """As `nodes`, for nodes that are looked at once: of many that are read, none stays in memory."""
        known = [self._nodes.get(oid) for oid in ids]
        if known.count(None) < MOST_KEPT:
            yield from self.nodes(ids)
            return
        read = self.each_node([oid for oid, node in zip(ids, known, strict=True) if node is None])
        for node in known:
            yield next(read)[1] if node is None else node

    def prefetch(self, ids: Sequence[ObjectId]) -> list[Commit]:
        """Read those of the ids into memory that name commits and are not there yet; the commits.

        No error for any other object, or for a damaged one. A commit that is too long to stay in memory
        is left out.
        """
        keys = {OBJECT_PREFIX + oid.hex(): oid for oid in ids if oid not in self._commits}
        commits = []
        for key, stored in self.store.get_many(list(keys)).items():
            if kind_of(stored) is COMMIT and _body_size(stored) <= LONGEST_CACHED:
                try:
                    commits.append(self._commits.read(keys[key], stored))
                except CorruptObject:
                    pass
        return commits

    def remember(self, nodes: Iterable[tuple[bytes, Node]], commits: Iterable[Commit] = ()) -> None:
        """Keep nodes and commits in memory that were just written."""
        self._nodes.update(nodes)
        for commit in commits:
            self._commits[commit.oid] = commit
        if len(self._nodes) > NODE_CACHE or len(self._commits) > COMMIT_CACHE:
            _trim(self._nodes, NODE_CACHE)
            _trim(self._commits, COMMIT_CACHE)

    def drop(self) -> None:
        """Keep no object in memory: some were deleted."""
        self._nodes.clear()
        self._commits.clear()

    def commit_ids(self, prefix: str) -> Iterator[ObjectId]:
        """The ids of commits that begin with these hex digits."""
        for key in self.store.keys(OBJECT_PREFIX + prefix):
            oid = ObjectId.parse(key.removeprefix(OBJECT_PREFIX))
            stored = self.store.get(key)
            if stored and _KIND_OF.get(stored[0]) is COMMIT:
                yield oid

    def replaced(self) -> dict[ObjectId, ObjectId]:
        """The commits that `erase` made, by the old ones."""
        found: dict[ObjectId, ObjectId] = {}
        for key, row in self.store.items(REPLACED):
            try:
                found |= parse_replaced(row)
            except ValueError as error:
                raise CorruptStore(self.store.location, f"{key}: {error}", repairable=True) from error
        return found

    def replacements(self, prefix: str) -> set[ObjectId]:
        """The commits that `erase` made of those whose ids began with these hex digits."""
        replaced, found = self.replaced(), set[ObjectId]()
        for old in replaced:
            if old.hex().startswith(prefix):
                chain = dict[ObjectId, None]()  # a forged row may lead back
                while old in replaced and old not in chain:
                    chain[old] = None
                    old = replaced[old]
                found.add(old)
        return {oid for oid in found if self.find_commit(oid) is not None}

    def replacement(self, oid: ObjectId) -> Commit | None:
        """The commit that `erase` made of this one, None if it made none."""
        return next(map(self.commit, self.replacements(oid.hex())), None)

    def find_current(self, oid: ObjectId) -> Commit | None:
        """The commit of this id, or the one that `erase` made of it; None if there is neither."""
        if oid in self._commits and not self.is_stored(oid):
            return self.replacement(oid) or self.commit(oid)
        return self.find_commit(oid) or self.replacement(oid)

    def is_in_memory(self, oid: ObjectId) -> bool:
        """Whether this commit is in memory, so that `commit` does not read the store."""
        return oid in self._commits

    def is_stored(self, oid: ObjectId) -> bool:
        """Whether the store itself, not only a cache in front of it, has an object of this id."""
        key = OBJECT_PREFIX + oid.hex()
        self.store.forget(key)
        return self.store.get(key) is not None

    def find_commit(self, oid: ObjectId) -> Commit | None:
        """The commit of this id, None if the store holds no such commit; CorruptObject if it is damaged."""
        if oid in self._commits:
            return self._commits[oid]
        key = OBJECT_PREFIX + oid.hex()
        stored = self.store.get(key)
        if stored and _KIND_OF.get(stored[0]) is not COMMIT:
            self.store.forget(key)  # perhaps only the cache in front is damaged
            stored = self.store.get(key)
        if not stored or _KIND_OF.get(stored[0]) is not COMMIT:
            return None
        return self.decoded_commit(oid, stored)

    def decoded_commit(self, oid: ObjectId, stored: bytes | None) -> Commit:
        """The commit in this stored form; CorruptObject if it is damaged, here and in the store."""
        return self._commits.read(oid, stored)

    def plain(self, key: str, stored: bytes) -> bytes | None:
        """The form of an object without compression; None if it is damaged."""
        kind = kind_of(stored)
        try:
            oid = bytes.fromhex(key.removeprefix(OBJECT_PREFIX))
            return None if kind is None else plain_form(kind, verified(kind, oid, stored))
        except (CorruptObject, ValueError):
            return None

    # Writing

    def stored(self, objects: NewObjects) -> dict[str, bytes]:
        """The rows to write for new objects, by key. Ids do not depend on compression."""
        rows: dict[str, bytes] = {}
        compress, compress_blob = _zstd.compress_node, _zstd.compress_blob
        misses = self._misses
        for oid, (kind, body) in objects.items():
            key, size = OBJECT_PREFIX + oid.hex(), len(body)
            if size > _LONGEST[kind]:
                raise _too_large(kind, body)
            raw, packed = _LETTERS[kind]
            if size >= COMPRESS_FROM_BYTES:
                alike = kind, size.bit_length()
                missed = misses.get(alike, 0)
                if missed < SAMPLE_AFTER or missed % SAMPLE_EVERY == 0:
                    shrunk = compress_blob(body) if kind is BLOB else compress(body)
                    shrunk_size = len(shrunk)
                    if shrunk_size <= size * 0.9 and shrunk_size <= size - LEAST_SAVED:
                        misses[alike] = 0
                        rows[key] = packed + shrunk
                        continue
                misses[alike] = missed + 1
            rows[key] = raw + body if type(body) is bytes else plain_form(kind, body)
        return rows


class Overlay:
    """Stored objects together with new ones: reads new objects from memory, the others from `stored`."""

    def __init__(self, stored: Reader, objects: NewObjects) -> None:
        self._stored = stored
        self._objects = objects

    def blob(self, oid: ObjectId) -> bytes:
        """The body of this blob."""
        return bytes(self._objects[oid].body) if oid in self._objects else self._stored.blob(oid)

    def blobs(self, sizes: Mapping[ObjectId, int]) -> Mapping[ObjectId, bytes | memoryview]:
        """The bodies of these blobs."""
        here = {oid: self._objects[oid].body for oid in sizes if oid in self._objects}
        rest = {oid: size for oid, size in sizes.items() if oid not in here}
        return {**here, **self._stored.blobs(rest)} if rest else here

    def indexes(self, ids: Sequence[ObjectId]) -> Mapping[ObjectId, bytes]:
        """The bodies of these index nodes."""
        here = {oid: bytes(self._objects[oid].body) for oid in ids if oid in self._objects}
        rest = [oid for oid in ids if oid not in here]
        return {**here, **self._stored.indexes(rest)} if rest else here


class _Zstd(threading.local):
    """Compressors and a decompressor for each thread: those of zstandard are not thread-safe.

    All stores share them. To make them took most of the time of opening a store, and a megabyte.
    """

    def __init__(self) -> None:
        self.compress_blob = zstandard.ZstdCompressor(level=BLOB_LEVEL).compress
        self.compress_node = zstandard.ZstdCompressor(level=NODE_LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def unpack(self, packed: bytes | memoryview, most: int) -> bytes:
        """The body that is compressed here, empty if it is damaged or has more than `most` bytes."""
        try:
            return self._decompress(packed) if 0 < frame_content_size(packed) <= most else b""
        except ZstdError:
            return b""

    def decompress(self, oid: bytes, stored: bytes, most: int) -> bytes:
        packed = memoryview(stored)[1:]
        try:
            size = frame_content_size(packed)
            if not 0 <= size <= most:
                raise CorruptObject(oid.hex(), f"it claims {size} bytes")
            return self._decompress(packed)
        except ZstdError as error:
            raise CorruptObject(oid.hex(), f"it cannot be decompressed: {error}") from error


_zstd: Final = _Zstd()


def _body_size(stored: bytes) -> int:
    """The length in bytes that a stored form claims for its body; 0 if that cannot be read."""
    if not stored[:1].isupper():
        return len(stored) - 1
    try:
        return frame_content_size(memoryview(stored)[1:])
    except ZstdError:
        return 0


def _trim(cache: dict[Any, Any], limit: int) -> None:
    """Drop the oldest of a cache that has more than `limit` entries."""
    if len(cache) > limit:
        # Many at once: a dict finds its first key by going over all that were deleted before.
        try:
            oldest = list(islice(cache, len(cache) - limit + limit // _DROPPED_AT_ONCE))
        except RuntimeError:  # another thread was there first
            return
        for key in oldest:
            cache.pop(key, None)


def plain_form(kind: Kind, body: bytes | memoryview) -> bytes:
    """The stored form without compression; not a copy if the body is the rest of such a form."""
    letter = _LETTERS[kind][0]
    if type(body) is memoryview and type(body.obj) is bytes and len(body.obj) == len(body) + 1:
        form = body.obj
        if form[:1] == letter and form.endswith(body):
            return form
    return letter + body


def _too_large(kind: Kind, body: bytes | memoryview) -> InvalidInput:
    """The error for an object above its limit; it names the part of a commit, or the keys, that take most."""
    size, limit = f"{len(body):,}", f"{_LONGEST[kind]:,}"
    if kind is TREE:
        keys = sorted(Node.decode(bytes(body)).keys, key=len, reverse=True)
        shown = ", ".join(f"{key[:_SHOWN]!r}{'…' if len(key) > _SHOWN else ''}" for key in keys[:_MOST_SHOWN])
        return InvalidInput(
            f"{counted(len(keys), 'key')} lie in a node of the tree, of {size} bytes; the limit is {limit}. "
            f"Nothing was stored: shorten or rename these keys. The longest are {shown}"
        )
    if kind is COMMIT:
        _, _, _, message, info, events, *_ = decode(bytes(body))
        parts = {"message": len(message.encode()), "info": len(encode(info)), "events": len(encode(events))}
        largest = max(parts, key=lambda name: parts[name])
        return InvalidInput(
            f"the commit would have {size} bytes, {parts[largest]:,} of them in its {largest}: {limit} are "
            f"the most. Nothing was stored: keep large data in values, not in the {largest} of a commit"
        )
    return InvalidInput(f"a {kind.name} of {size} bytes is too large: {limit} are the most")


_SHOWN = 40  # characters of a key
_MOST_SHOWN = 3
