"""Shown: a repository whose commits have the keys that their readers give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pickle import PicklingError
from typing import Any, Final

from vstate.errors import CorruptObject, InvalidInput, StorageError
from vstate.forks import new_lock
from vstate.kv.base import OBJECT_PREFIX, KVStore, split_room
from vstate.kv.wrapper import ReadOnly
from vstate.objects import tree
from vstate.objects.canonical import decode, encode
from vstate.objects.commit import Commit
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.tree import Node
from vstate.readers.stored import READER, Kept, Stored, Values, find_reader
from vstate.recent import Recent
from vstate.repo.objects import Objects
from vstate.repo.repository import Repository
from vstate.values.budget import InertError
from vstate.values.entry import ATOM, Encoded, encode_value
from vstate.values.serialized import Serialized

_MADE_BYTES: Final = 64 * 2**20  # of the made objects of one generation; there are two
_MOST_ROOTS: Final = 4096
_MOST_PLAIN: Final = 100_000  # commits
_MOST_LAST: Final = 4  # commits
_MOST_MADE: Final = 10_000  # keys of a commit
_MOST_BYTES: Final = 256 * 2**20  # of all values of a commit

UNREADABLE: Final = (
    CorruptObject,
    InvalidInput,
    InertError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    PicklingError,
)
"""A reader raises these for a record that is damaged, malformed, too deep, or of a later version."""


class Shown(Repository):
    """The repository, read only, whose commits have the keys and the subjects that their readers give.

    So every verb that reads shows a thread as its state: diff, log, blame, search. A commit of a branch
    without a reader is as it is stored. Threads may share it.
    """

    def __init__(self, repo: Repository) -> None:
        self._made = _Made(repo.store)
        self._values = Values(self)
        self._roots = Recent[ObjectId, tuple[ObjectId | None, int]](_MOST_ROOTS)
        self._plain: set[ObjectId] = set()
        self._last = Recent[ObjectId | None, Stored](_MOST_LAST)
        self._chunks: dict[str, tuple[int, tuple[Any, ...]]] = {}
        self._lock = new_lock()
        self.unread: dict[str, str] = {}
        """Why a reader could not read a commit, by the name of the reader."""
        super().__init__(self._made, repo.security)

    def _objects_of(self, store: KVStore) -> Objects:
        return _Objects(store, self)

    def root_of(self, commit: _Commit) -> ObjectId | None:
        """The root of the keys that the commit shows."""
        name = self._reader_of(commit)
        if name is None:
            return commit.stored
        found = self._roots.get(commit.oid)
        if found is not None and self._made.has(found[1]):
            return found[0]
        reader = find_reader(name)
        try:
            if reader is None:
                raise InvalidInput("this version has no such reader")
            state = reader.state(self._keys(commit.stored))
            with self._lock:
                root, age = self._make(None, state)
        except UNREADABLE as error:
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, InvalidInput) else str(error)
            self.unread[str(name)] = reason
            note = f"{name}; the stored keys are shown, because the reader failed: {reason}"
            with self._lock:
                root, age = self._make(commit.stored, {READER: note})
        self._roots[commit.oid] = root, age
        return root

    def is_read(self, commit: Commit) -> bool:
        """Whether the commit shows keys that its reader gives."""
        return isinstance(commit, _Commit) and self._reader_of(commit) is not None

    def message_of(self, commit: _Commit) -> str:
        """The message, or the subject that the reader gives the commit."""
        told: str = commit.__dict__["message"]
        try:
            name = self._reader_of(commit)
            reader = None if name is None else find_reader(name)
            if reader is None:
                return told
            before = next(iter(self.history.before(commit)), None)
            old = None if before is None else self._keys(_stored(before))
            return reader.title(self._keys(commit.stored), old) or told
        except (*UNREADABLE, StorageError):
            return told

    def _keys(self, root: ObjectId | None) -> Stored:
        """The stored keys of a commit. The last ones stay in memory, with their parts."""
        return self._last.get(root) or self._last.setdefault(root, Stored(self, root, self._values))

    def _reader_of(self, commit: _Commit) -> object:
        """The name of the reader, None if the commit has none."""
        if "reader" in commit.__dict__:
            return commit.__dict__["reader"]
        name = None
        with self._lock:
            is_plain = commit.oid in self._plain
            self._plain.discard(commit.oid)
        if not is_plain:
            data = tree.lookup(self.objects.node, commit.stored, READER)
            entry = None if data is None else self.parse_entry(READER, data)
            name = entry.value if entry is not None and entry.codec == ATOM else None
        if name is None and commit.stored is not None:
            # The first commit of a branch names its reader. So the commits before this one have none.
            with self._lock:
                if len(self._plain) > _MOST_PLAIN:
                    self._plain.clear()
                self._plain.update(commit.parent_ids)
        commit.__dict__["reader"] = name
        return name

    def _make(self, root: ObjectId | None, values: Mapping[str, Any]) -> tuple[ObjectId | None, int]:
        """The root of a tree in memory with these values, and when it was made."""
        if len(values) > _MOST_MADE:
            raise InvalidInput(f"it has {len(values):,} keys, and {_MOST_MADE:,} are shown at most")
        entries: dict[str, bytes | None] = {}
        objects: NewObjects = {}
        long: dict[str, tuple[Any, ...]] = {}
        size = 0
        for key, value in values.items():
            if isinstance(value, Kept):
                entries[key] = value.data
                continue
            age, known = self._chunks.get(key, (-1, ()))
            encoded = _encoded(value, known if self._made.has(age) else ())
            entries[key] = encoded.entry
            objects |= encoded.objects
            size += encoded.size
            if size > _MOST_BYTES:
                raise InvalidInput(f"it has more than {_MOST_BYTES:,} bytes, which are too many to show")
            if any(encoded.chunks):
                long[key] = encoded.chunks
        root, made, nodes = tree.update(self.objects.node, root, entries)
        age = self._made.add(objects | made)
        self.objects.remember(nodes)
        # The next commit that is shown has most of the chunks too.
        self._chunks = {key: (age, chunks) for key, chunks in long.items()}
        return root, age


class _Commit(Commit):
    """A commit with the keys and the message that its reader gives. Its id, body and tree are the stored."""

    @property
    def stored(self) -> ObjectId | None:
        """The root of the stored keys."""
        root: ObjectId | None = self.__dict__["root"]
        return root

    @property
    def root(self) -> ObjectId | None:
        """The root of the keys that it shows."""
        shown: Shown = self.__dict__["shown"]
        return shown.root_of(self)

    @property
    def message(self) -> str:
        """The message, or the subject that the reader gives."""
        title: str | None = self.__dict__.get("title")
        if title is None:
            title = self.__dict__["title"] = self.__dict__["shown"].message_of(self)
        return title

    @property
    def tree(self) -> str | None:
        return None if self.stored is None else str(self.stored)


def _stored(commit: Commit) -> ObjectId | None:
    return commit.stored if isinstance(commit, _Commit) else commit.root


class _Objects(Objects):
    """The objects of a store, with its commits as `Shown` shows them."""

    def __init__(self, store: KVStore, shown: Shown) -> None:
        super().__init__(store)
        self._shown = shown
        self._commits.decode = self._decoded

    def remember(self, nodes: Iterable[tuple[bytes, Node]], commits: Iterable[Commit] = ()) -> None:
        super().remember(nodes, [self._as_shown(commit) for commit in commits])

    def _decoded(self, oid: ObjectId, body: bytes) -> Commit:
        return self._as_shown(Commit.decode(oid, body))

    def _as_shown(self, commit: Commit) -> Commit:
        if isinstance(commit, _Commit):
            return commit
        shown = _Commit.__new__(_Commit)
        shown.__dict__.update(commit.__dict__, shown=self._shown)
        return shown


class _Made(ReadOnly):
    """The store, and beside it objects in memory: those that were made last."""

    def __init__(self, store: KVStore) -> None:
        super().__init__(store)
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._bytes = 0
        self._age = 0

    def get(self, key: str) -> bytes | None:
        found = self._find(key)
        return self._store.get(key) if found is None else found

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        names = [*keys]
        found = {key: made for key in names if (made := self._find(key))}
        return found | self._store.get_many([key for key in names if key not in found])

    def _find(self, key: str) -> bytes | None:
        """An object that was made: it is in every room."""
        key = split_room(key)[1]
        return self._young.get(key) or self._old.get(key)

    def add(self, objects: NewObjects) -> int:
        """Keep objects, and return their age."""
        if self._bytes > _MADE_BYTES:
            self._young, self._old, self._bytes = {}, self._young, 0
            self._age += 1
        for oid, (kind, body) in objects.items():
            key = OBJECT_PREFIX + oid.hex()
            if key not in self._young:
                self._young[key] = kind.code.encode() + body
                self._bytes += len(body)
        return self._age

    def has(self, age: int) -> bool:
        """Whether objects of this age are here, and stay for a while."""
        return age == self._age


def _encoded(value: Any, known: tuple[Any, ...]) -> Encoded:
    """The value as an entry, and its objects but for those in the `known` chunks."""
    name = value.type if isinstance(value, Serialized) else None
    if name is None or name in _SIMPLE:
        return encode_value(value if name is None else value.value, known)
    encoded = encode_value((value.kind, value.data), known)
    codec, payload, size, _ = decode(encoded.entry)
    return encoded._replace(entry=encode([codec, payload, size, name]))


_SIMPLE: Final = frozenset({"NoneType", "bool", "int", "float", "str", "bytes"})
