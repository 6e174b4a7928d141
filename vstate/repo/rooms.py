"""Rooms: parts of a store, each with branches that share objects, and with everything that these need.

A store has room 0, which is the store itself, and any number of others. A branch, a tag or a tracking ref
lies in one room, with its reflog and its objects. If that is not room 0, the row `room-of/<ref>` in the store
says which, in 16 hex digits. Nothing in a room refers to an object of another one. So each room is swept or
deleted by itself, at a cost of what it holds, and its rows lie side by side.

HEAD, labels, the index of the branches, policies, leases and what else is about names are the store's, for
all rooms. A commit that HEAD is detached at is copied into room 0. HEAD's reflog keeps nothing in other
rooms.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import lru_cache
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Final

from vstate.kv.base import OBJECT_PREFIX, ROOM_PREFIX, KVStore, batches, check_key, room_prefix, split_room
from vstate.kv.wrapper import Rows, StoreWrapper, Translated
from vstate.objects.commit import Commit

ROOM_OF: Final = "room-of/"
"""The row `room-of/<ref>` says in which room a ref lies that is not in room 0."""
GONE: Final = "gone/"
"""The row `gone/<ref>` says the same of a deleted ref: its reflog is there."""

_DIGITS: Final = 16
_START: Final = slice(len(ROOM_PREFIX) + _DIGITS + 1)  # of a key: what names the room
_REF: Final = "r/"
_SHALLOW: Final = "shallow/"
_SWEEP: Final = "gc"
_FORMAT: Final = "format"
_SHARED: Final = (
    _FORMAT,
    "r/labels/",
    "r/with/",
    "r/newest/",
    "keep/",
    "policy/",
    "remote/",
    "lease/",
    "lease-seen/",
    "replaced/",
    "workspace/",
    ROOM_OF,
    GONE,
)
"""The keys, or beginnings of keys, that a room has in common with the store. It has no HEAD."""

_WITH_ENTRIES: Final = ("r/heads/", "r/tags/", "r/remotes/")

_own = re.compile(
    r"(?:o|shallow|commit-graph|arrived|trash|damaged|(?:r|reflog)/(?:heads|tags|remotes))/|gc\Z"
).match
_names_room = re.compile(rb"[0-9a-f]{%d}\Z" % _DIGITS).match
_of_ref = re.compile(r"(?:r|reflog)/((?:heads|tags|remotes)/[^:]+)(:?)").match

_MOST_RECENT: Final = 64
_MOST_KNOWN: Final = 8192
_PAGE: Final = 500
_STEPS: Final = 3  # to the room where a ref was, to the store, and to the room that it names


def new_room() -> int:
    """The number of a new room: later ones are greater, and lie behind the others in an ordered store.

    It is the time in milliseconds and 20 random bits. If two rooms got one number, they would be one room,
    which holds the branches of both: that costs time, and breaks nothing.
    """
    return (time.time_ns() // 1_000_000) << 20 | int.from_bytes(os.urandom(3), "big") >> 4


def entry(number: int) -> bytes:
    """The row that names a room."""
    return f"{number:0{_DIGITS}x}".encode()


def room_in(row: bytes | None) -> int | None:
    """The number of the room that a row names; None for any other row."""
    return None if row is None or not _names_room(row) else int(row, 16) or None


@lru_cache(1024)
def prefix_of(number: int) -> str:
    """What the keys of a room begin with in the store."""
    return room_prefix(number) if number else ""


def new_mark() -> bytes:
    """A value for the key `gc` that it never had."""
    return os.urandom(8).hex().encode()


def mark_of(store: KVStore) -> bytes | None:
    """The mark of the last sweep, as a condition for a ref that is about to be made; None before the first.

    A room is deleted with its mark. So it gets one here if it has none: then the condition fails.
    """
    mark = store.get(_SWEEP)
    if mark is None and isinstance(store, Room):
        mark = new_mark()
        if not store.compare_and_swap(_SWEEP, None, mark):
            mark = store.get(_SWEEP) or mark  # of a room that is gone by now, this one fails too
    return mark


def _beginnings(number: int) -> Iterator[str]:
    """What the keys begin with of the rooms from this one on, ascending, in as few parts as can be."""
    digits = f"{number:0{_DIGITS}x}"
    if not number:
        yield ROOM_PREFIX
        return
    yield ROOM_PREFIX + digits
    for at in reversed(range(_DIGITS)):
        for digit in range(int(digits[at], 16) + 1, 16):
            yield f"{ROOM_PREFIX}{digits[:at]}{digit:x}"


def _note(notes: dict[str, int], name: str, number: int) -> None:
    if len(notes) >= _MOST_KNOWN:
        for old in [*notes][: _MOST_KNOWN // 2]:  # of a walk through many rooms, the others are still needed
            notes.pop(old, None)
    notes[name] = number


def number_of(start: str) -> int:
    """The number of the room whose keys begin so in the store."""
    return int(start.split("/")[1], 16) if start else 0


class Room(Translated):
    """One room of a store, as a store of its own: without HEAD, and with the names that the whole has."""

    def __init__(self, store: KVStore, number: int) -> None:
        super().__init__(store)
        self.number = number
        self.prefix = prefix_of(number)

    def whole(self) -> KVStore:
        """The store that the room is in."""
        return self._store

    def own_keys(self) -> Iterator[str]:
        """The keys in the room, without those that it has in common with the store."""
        return (name[len(self.prefix) :] for name in self._store.keys(self.prefix))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it."""
        return self._store.transact(*self._translated(writes, expected))

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it."""
        return self._store.exclusively(lambda: self._translated(plan(), {})[0])

    def _translated(
        self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]
    ) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
        return _translated(writes, expected, lambda ref: self.number, self.number)

    def check(self) -> Iterator[str]:
        """Finds nothing: the files are those of the whole store."""
        return iter(())

    def pack(self, plain: Callable[[str, bytes], bytes | None], keys: Sequence[str] | None = None) -> None:
        """As the store does it, for the objects of this room."""
        wanted = self._store.keys(self._name(OBJECT_PREFIX)) if keys is None else map(self._name, keys)
        self._store.pack(lambda key, value: plain(split_room(key)[1], value), list(wanted))

    def _name(self, key: str) -> str:
        return key if check_key(key).startswith(_SHARED) else self.prefix + key

    def _listed(self, prefix: str, rows: Rows) -> Iterator[tuple[str, str, bytes]]:
        if _FORMAT.startswith(prefix):
            yield from ((name, name, row) for name, row in rows(_FORMAT))
        for name, row in rows(self.prefix + prefix):
            yield name[len(self.prefix) :], name, row


class Rooms(StoreWrapper):
    """A store, with the refs and the objects of all its rooms under the keys that they have in a room.

    - A ref, with its reflog, is read and written in its room. A new ref is in room 0, or where a caller says.
    - An object is read from any room that has it. It is written into the room of the ref that moves to it.
    - Other rows of a room, such as the ends of histories, are those of the rooms that were used lately.

    Threads may share it.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store  # `Core` has checked it
        self._has_transactions = store.transactional  # otherwise there are no rooms
        self.known: dict[str, int] = {}
        """By ref, the number of the room where it was last; another dict after each exclusive transaction."""
        self._hints: dict[str, int] = {}
        """By the key of an object, the room where it is, because what leads to it is there."""
        self._recent: tuple[int, ...] = (0,)
        self._start = ""
        """What the keys of the room begin with that was used last."""
        self._absent = ""
        """The ref that was looked for last and is in no room, nor was before it was deleted."""
        self.learner: Callable[[], Callable[[Iterable[tuple[str, bytes]]], None] | None] = lambda: None
        """Gives what to call with the ends of histories of a room that is used, if it has some."""

    # Where things are

    def room_of(self, ref: str) -> int:
        """The number of the room of a ref, or of one that was deleted and has a reflog; 0 for a new one."""
        known = self.known
        number = known.get(ref)
        if number is None:
            if not self._has_transactions:
                return 0
            rows = self._store.get_many([_REF + ref, ROOM_OF + ref, GONE + ref])
            named = None if _REF + ref in rows else rows.get(ROOM_OF + ref, rows.get(GONE + ref))
            number = room_in(named) or 0
            if rows:
                _note(known, ref, number)
        return number

    def is_new(self, ref: str) -> bool:
        """Whether the ref was just looked for, and is in no room, nor was. True once for each look."""
        found, self._absent = ref == self._absent, ""
        return found

    def room_of_object(self, key: str) -> int:
        """The number of a room that has the object with this key; 0 if none has."""
        for names in self._names([key], {}):
            for name in self._store.present(names):
                return names[name][0]
        return 0

    def follow(self, commit: Commit) -> None:
        """Note that the parents and the tree of a commit are in its room."""
        if len(self._recent) == 1:
            return  # no room but 0 was used
        number = self._hints.get(OBJECT_PREFIX + commit.oid.hex(), self._recent[0])
        root = vars(commit)["root"]  # as it is stored: `Shown` makes another one, of all values, when asked
        for oid in (*commit.parent_ids, *([] if root is None else [root])):
            _note(self._hints, OBJECT_PREFIX + oid.hex(), number)

    def numbers(self) -> Iterator[int]:
        """The numbers of the rooms that refs lie in, without 0."""
        seen = {0}
        for _, row in chain(self._store.items(ROOM_OF), self._store.items(GONE)):
            number = room_in(row)
            if number is not None and number not in seen:
                seen.add(number)
                yield number

    def listed(self, begin: int = 0, most: int = _PAGE) -> Iterator[tuple[int, list[str]]]:
        """The numbers from `begin` on of all rooms but 0 that hold something, whether a ref leads there or
        not, ascending; each with its keys, of a room with more than `most` some.
        """
        if not self._store.ordered:
            rooms = {number_of(split_room(key)[0]) for key in self._store.keys(ROOM_PREFIX)} - {0}
            for number in sorted(room for room in rooms if room >= begin):
                yield number, list(islice(Room(self._store, number).own_keys(), most + 1))
            return
        for beginning in _beginnings(begin):
            for start, keys in groupby(self._store.keys(beginning), key=itemgetter(_START)):
                if number := number_of(split_room(start)[0]):
                    yield number, [key[len(start) :] for key in islice(keys, most + 1)]

    def _has_rooms(self) -> bool:
        return next(iter(self._store.keys(ROOM_PREFIX)), None) is not None

    def _use(self, number: int) -> None:
        """Look into this room first from now on."""
        recent = self._recent
        if recent[0] != number:
            self._start = prefix_of(number)
            place = recent.index(number) if number in recent else _MOST_RECENT - 1
            self._recent = number, *recent[:place], *recent[place + 1 :]
            if number not in recent and (learn := self.learner()) is not None:
                learn(self._rows_of([number], _SHALLOW))

    # Reading

    def get(self, key: str) -> bytes | None:
        found = None
        if not key.startswith(OBJECT_PREFIX):  # most keys are of objects, and need no other look
            if not _own(key) or key == _SWEEP:
                return self._store.get(key)
            found = _of_ref(key)
        if found is None:
            hint = self._hints.get(key)
            value = self._store.get((self._start if hint is None else prefix_of(hint)) + key)
            if value is None:
                return self._objects([key]).get(key)
            if hint is not None and hint != self._recent[0]:
                self._use(hint)  # what the object leads to is there
            return value
        known = self.known
        number = known.get(found[1])
        if found[2]:  # a line of a reflog
            return self._store.get(prefix_of(self.room_of(found[1]) if number is None else number) + key)
        if number is not None:
            start = prefix_of(number)
            value = self._store.get(start + key)
            if value is not None:
                if start != self._start:
                    self._met(known, key, value, number)
                return value
        return self._rows_of_refs({key: number}, {}).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        direct: dict[str, str] = {}
        refs: dict[str, int | None] = {}
        objects: list[str] = []
        for key in keys:
            if key.startswith(OBJECT_PREFIX):
                objects.append(key)
            elif not _own(key) or key == _SWEEP:
                direct[key] = key
            elif (found := _of_ref(key)) is None:
                objects.append(key)
            elif found[2]:  # a line of a reflog
                direct[prefix_of(self.room_of(found[1])) + key] = key
            else:
                refs[key] = self.known.get(found[1])
        if not (refs or direct):
            return self._objects(objects) if objects else {}
        # Refs of room 0, which are most, and other rows of the store are read together.
        rows = self._rows_of_refs(refs, direct)
        return rows | self._objects(objects) if objects else rows

    def _rows_of_refs(self, rooms: dict[str, int | None], direct: Mapping[str, str]) -> dict[str, bytes]:
        """The rows of refs from the rooms where they may lie, and other rows by their names."""
        known, self._absent = self.known, ""
        found: dict[str, bytes] = {}
        for _ in range(_STEPS):
            names = [*direct]
            for key, number in rooms.items():
                names.append(prefix_of(number or 0) + key)
                if number is None and self._has_transactions:
                    names += ROOM_OF + key.removeprefix(_REF), GONE + key.removeprefix(_REF)
            read = self._store.get_many(names)
            for name, key in direct.items():
                if name in read:
                    found[key] = read[name]
            again: dict[str, int | None] = {}
            for key, number in rooms.items():
                row = read.get(prefix_of(number or 0) + key)
                if row is not None:
                    found[key] = row
                    self._met(known, key, row, number or 0)
                elif number is not None:  # deleted, and perhaps made anew in another room
                    known.pop(key.removeprefix(_REF), None)
                    again[key] = None
                elif (named := room_in(read.get(ROOM_OF + key.removeprefix(_REF)))) is not None:
                    again[key] = named
                elif self._has_transactions and GONE + key.removeprefix(_REF) not in read:
                    self._absent = key.removeprefix(_REF)
            if not again:
                break
            rooms, direct = again, {}
        return found

    def _met(self, known: dict[str, int], key: str, row: bytes, number: int) -> None:
        """Note where a ref is, in the dict that `known` was before the row was read, and its commit."""
        _note(known, key.removeprefix(_REF), number)
        if number or len(self._recent) > 1:
            _note(self._hints, OBJECT_PREFIX + row.decode("ascii", "replace"), number)
            self._use(number)

    def _objects(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The rows of these objects, or of others that belong to rooms, from the first room that has them."""
        found: dict[str, bytes] = {}
        for names in self._names(keys, found):
            rows = self._store.get_many(list(names))
            for name, row in rows.items():
                found[names[name][1]] = row
            if rows:
                self._use(names[next(iter(rows))][0])
        return found

    def _names(
        self, keys: Sequence[str], found: Mapping[str, object]
    ) -> Iterator[dict[str, tuple[int, str]]]:
        """The names, each with the room and the key, to look for; after each step for those not found yet."""
        first, *others = self._recent
        yield {prefix_of(n := self._hints.get(key, first)) + key: (n, key) for key in keys}
        if len(found) == len(keys):
            return
        # The room before, and then many at once: mostly the first look has found all.
        some = [others[:1], *batches(others[1:], max(1, _PAGE // len(keys)))]
        for numbers in ([first], *some) if self._hints else some:
            left = [key for key in keys if key not in found]
            if left and numbers:
                yield {prefix_of(number) + key: (number, key) for number in numbers for key in left}
        left = [key for key in keys if key not in found and key.startswith(OBJECT_PREFIX)]
        if not left or not self._has_rooms():
            return
        for numbers in batches(chain([0], self.numbers()), max(1, _PAGE // len(left))):
            left = [key for key in left if key not in found]
            yield {prefix_of(number) + key: (number, key) for number in numbers for key in left}

    def __contains__(self, key: str) -> bool:
        return bool(self.present([key]))

    def present(self, keys: Iterable[str]) -> Set[str]:
        keys = list(keys)
        objects = [key for key in keys if _own(key) and not _of_ref(key)]
        others = [key for key in keys if not _own(key) or _of_ref(key)]
        found: dict[str, bytes] = {}
        for names in self._names(objects, found) if objects else ():
            found |= {names[name][1]: b"" for name in self._store.present(names)}
        return found.keys() | (self.get_many(others).keys() if others else set())

    def marks(self) -> bytes | None:
        """The marks of the last sweeps of the rooms that were used lately, in one: it changes with each."""
        names = [prefix_of(number) + _SWEEP for number in sorted(self._recent)]
        marks = self._store.get_many(names)
        return b"|".join(marks.get(name, b"") for name in names) if marks else None

    def keys(self, prefix: str = "") -> Iterator[str]:
        listed = self._listing(prefix, self._names_of)
        return (key for key, _ in self._with_entries(prefix, listed, self._names_of))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        if not prefix.startswith(_REF):
            yield from self._listing(prefix, self._store.items)
            return
        both = self._with_entries(prefix, self._store.items(prefix), self._store.items)
        for rows in batches(both, _PAGE):
            named = {key: number for key, row in rows if (number := room_in(row)) is not None}
            names = {room_prefix(number) + key: key for key, number in named.items()}
            read = self._store.get_many(list(names)) if names else {}
            found = {names[name]: row for name, row in read.items()}
            for key, row in rows:
                if key not in named:
                    yield key, row
                elif key in found:
                    _note(self._hints, OBJECT_PREFIX + found[key].decode("ascii", "replace"), named[key])
                    yield key, found[key]

    def _names_of(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        return ((name, b"") for name in self._store.keys(prefix))

    def _with_entries(
        self, prefix: str, listed: Iterator[tuple[str, bytes]], rows: Rows
    ) -> Iterator[tuple[str, bytes]]:
        """What is listed, in its order, with the rows that name rooms, by the keys of their refs."""
        if not (self._has_transactions and prefix.startswith(_WITH_ENTRIES)):
            return listed
        named = (
            (_REF + key.removeprefix(ROOM_OF), row) for key, row in rows(ROOM_OF + prefix.removeprefix(_REF))
        )
        return merge(listed, named) if self._store.ordered else chain(listed, named)

    def _listing(self, prefix: str, rows: Rows) -> Iterator[tuple[str, bytes]]:
        if (found := _of_ref(prefix)) is not None and found[2]:
            return self._rows_of([self.room_of(found[1])], prefix, rows)
        if prefix.startswith(_SHALLOW):
            return self._rows_of(self._recent, prefix, rows)
        if prefix.startswith(OBJECT_PREFIX):
            rooms = self.numbers() if self._has_rooms() else ()
            return self._rows_of(chain([0], rooms), prefix, rows)
        return ((name, row) for name, row in rows(prefix) if not split_room(name)[0])

    def _rows_of(
        self, numbers: Iterable[int], prefix: str, rows: Rows | None = None
    ) -> Iterator[tuple[str, bytes]]:
        seen: set[str] = set()
        for number in numbers:
            start = prefix_of(number)
            for name, row in (rows or self._store.items)(start + prefix):
                key = name[len(start) :]
                if key not in seen:
                    seen.add(key)
                    yield key, row

    # Writing

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As the store does it, each row in the room of its ref."""
        return self.transact_in({}, writes, expected)

    def transact_in(
        self,
        numbers: Mapping[str, int],
        writes: Mapping[str, bytes | None],
        expected: Mapping[str, bytes | None],
    ) -> bool:
        """As `transact`; these refs lie in the rooms of these numbers, or are to be made there."""
        start = self._home_of(numbers, writes, expected)
        if start == "":
            return self._store.transact(writes, expected)
        if start is not None:
            rows = {start + key if _own(key) else key: row for key, row in writes.items()}
            old = {start + key if _of_ref(key) else key: row for key, row in expected.items()}
            return self._store.transact(rows, old)

        def room_of(ref: str) -> int:
            return numbers[ref] if ref in numbers else self.room_of(ref)

        known = self.known
        done = self._store.transact(*_translated(writes, expected, room_of))
        for ref, number in numbers.items() if done else ():
            if (row := writes.get(_REF + ref)) is not None:
                self._met(known, _REF + ref, row, number)
        return done

    def _home_of(
        self,
        numbers: Mapping[str, int],
        writes: Mapping[str, bytes | None],
        expected: Mapping[str, bytes | None],
    ) -> str | None:
        """What the keys begin with in the only room where refs move; None if it is not as simple as that."""
        number: int | None = None
        for key in (*writes, *expected):
            if (found := _of_ref(key)) is not None:
                own = numbers.get(found[1], self.known.get(found[1]))
                if own is None or number not in (None, own):
                    return None
                number = own
                if not found[2] and (writes.get(key, b"") is None or expected.get(key, b"") is None):
                    return None  # it is made or deleted
        return prefix_of(number) if number else ""

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As the store does it, each row in the room of its ref."""

        def alone() -> Mapping[str, bytes | None]:
            self.known = {}  # a thread that read a ref before notes its room in the old one
            return _translated(plan(), {}, self.room_of)[0]

        return self._store.exclusively(alone)

    def delete_many(self, keys: Iterable[str]) -> None:
        self._store.delete_many([self._name(key) for key in keys])

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        return self._store.listening(self._name(key))

    def forget(self, key: str) -> None:
        for number in {self._hints.get(key, 0), *self._recent} if _own(key) else (0,):
            self._store.forget(prefix_of(number) + key)

    def _name(self, key: str) -> str:
        found = _of_ref(key)
        return key if found is None else prefix_of(self.room_of(found[1])) + key


def _translated(
    writes: Mapping[str, bytes | None],
    expected: Mapping[str, bytes | None],
    room_of: Callable[[str], int],
    home: int = 0,
) -> tuple[dict[str, bytes | None], dict[str, bytes | None]]:
    """The same writes and expectations by the keys of the store.

    What belongs to a room goes into that of the refs that move, or without one into `home`. Where refs of
    several rooms move, such keys are those of the store: no commit may be in a room without what it needs. A
    ref that is made or deleted in a room gets, or loses, its row in the store in the same transaction.
    """
    numbers = {found[1]: room_of(found[1]) for key in (*writes, *expected) if (found := _of_ref(key))}
    starts = {ref: prefix_of(number) for ref, number in numbers.items()}
    moved = {starts[ref] for ref in numbers if _REF + ref in writes} or {prefix_of(home)}
    rows: dict[str, bytes | None] = {}
    old: dict[str, bytes | None] = {}
    for key, row in writes.items():
        if (found := _of_ref(key)) is not None:
            rows[starts[found[1]] + key] = row
        elif _own(key) and len(moved) == 1:
            rows[next(iter(moved)) + key] = row
        else:
            rows[key] = row
    for key, row in expected.items():
        if (found := _of_ref(key)) is not None:
            old[starts[found[1]] + key] = row
        else:
            old[prefix_of(home) + key if _own(key) else key] = row
    for ref, number in numbers.items():
        if _REF + ref in writes:
            _see_to_entry(ref, number, writes, expected, rows, old)
    return rows, old


def _see_to_entry(
    ref: str,
    number: int,
    writes: Mapping[str, bytes | None],
    expected: Mapping[str, bytes | None],
    rows: dict[str, bytes | None],
    old: dict[str, bytes | None],
) -> None:
    """Let the store know in the same transaction that a ref is made or deleted in a room."""
    key = _REF + ref
    if writes[key] is None and number:
        is_logged = any(row is not None for line, row in writes.items() if line.startswith(f"reflog/{ref}:"))
        rows |= {ROOM_OF + ref: None, GONE + ref: entry(number) if is_logged else None}
    elif writes[key] is not None and expected.get(key, b"") is None:
        rows[GONE + ref] = None
        if number:
            rows[ROOM_OF + ref] = entry(number)
            old[key] = None
