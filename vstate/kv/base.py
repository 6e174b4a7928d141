"""KVStore: the contract of a store. A backend writes five methods and inherits the others."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar

from vstate.errors import InvalidInput
from vstate.plural import counted

T = TypeVar("T")

OBJECT_PREFIX = "o/"
"""Keys with this prefix hold objects: content-addressed, so never changed once written."""

ROOM_PREFIX = "room/"
"""Keys with this prefix, 16 lower-case hex digits and "/" are in the room of that number.

A room is a part of a store, and what follows is the key within it. Rooms do not nest. Any other key with this
prefix is an ordinary one.
"""

_ROOM = re.compile(ROOM_PREFIX + "[0-9a-f]{16}/")

RELEASE_SECONDS = 30.0
"""How long to give room back to the system."""

ITEMS_TOGETHER = 128
"""Values in memory at a time while `items` lists them: 8 MB of the chunks of long values."""

POLL_SECONDS = 0.1
"""How long to wait before looking at a key again, where no store reports its changes."""


def check_key(key: object) -> str:
    """Return `key`; InvalidInput unless it is a str without NUL that UTF-8 can encode."""
    if not isinstance(key, str):
        raise InvalidInput(f"a store's keys are str, not {type(key).__name__}: {key!r}")
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"key {key!r} holds a lone surrogate, which UTF-8 cannot encode") from None
    if "\0" in key:
        raise InvalidInput(f"key {key!r} holds a NUL character")
    return key


def check_keys(keys: Iterable[object]) -> None:
    """InvalidInput unless each is a key."""
    for key in keys:
        if type(key) is not str or not key.isascii() or "\0" in key:  # most keys pass, and need no call
            check_key(key)


def room_prefix(number: int) -> str:
    """What the keys in a room begin with. The number is from 0 to 2^64 - 1."""
    return f"{ROOM_PREFIX}{number:016x}/"


def split_room(key: str) -> tuple[str, str]:
    """The prefix of the key's room, empty if it is in none, and the key within."""
    if key.startswith(ROOM_PREFIX) and (found := _ROOM.match(key)):
        return found[0], key[found.end() :]
    return "", key


def is_object(key: object) -> bool:
    """Whether the key is that of an object, in a room or not; InvalidInput if it is no key."""
    text = check_key(key)
    return text.startswith(OBJECT_PREFIX) or (
        text.startswith(ROOM_PREFIX) and split_room(text)[1].startswith(OBJECT_PREFIX)
    )


def check_value(value: object) -> bytes:
    """Return `value` as bytes that nobody else can change; TypeError unless it is bytes-like."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a store's values are bytes, not {type(value).__name__}")


def batches(things: Iterable[T], count: int) -> Iterator[list[T]]:
    """Lists of so many things; the last one may be shorter."""
    left = iter(things)
    while batch := list(islice(left, count)):
        yield batch


def batches_by_bytes(
    things: Iterable[T], size: Callable[[T], int], *, most_bytes: int, most: int
) -> Iterator[list[T]]:
    """Lists of so many things and bytes at most. A thing of more bytes is alone in its list."""
    batch: list[T] = []
    total = 0
    for thing in things:
        length = size(thing)
        if batch and (total + length > most_bytes or len(batch) == most):
            yield batch
            batch, total = [], 0
        batch.append(thing)
        total += length
    if batch:
        yield batch


Plain = Callable[[str, bytes], bytes | None]
"""The form of an object's value that compresses best beside others, by its key and the value. None leaves the
value as it is."""


class KVStore(AbstractContextManager["KVStore"], ABC):
    """Bytes by key.

    A subclass writes `get`, `set`, `delete`, `keys` and `compare_and_swap`. It may override the rest for
    speed, or to promise more. `vstate.testing.KVStoreTests` tests all the promises.

    Keys are str without NUL that UTF-8 can encode, otherwise InvalidInput. Values are bytes, otherwise
    TypeError. `check_key` and `check_value` check them. `is_object` knows the keys of objects, such as
    `o/…`, or in a room `room/00000000000000a1/o/…`. A store that cannot be reached
    or used raises StoreUnavailable, a full one StoreFull, a damaged one CorruptStore. Any number of threads
    may share a store.
    """

    @property
    def transactional(self) -> bool:
        """Whether `transact` is one transaction: all the writes or none, whatever interrupts it."""
        return False

    @property
    def remote(self) -> bool:
        """Whether a call takes as long as a message over a network, so that reading ahead saves time."""
        return True

    @property
    def ordered(self) -> bool:
        """Whether `keys(prefix)` finds the keys by an index, without a look at all the others.

        A store with transactions then lists them in ascending order, those of objects aside, and the keys of
        a room one after the other.
        """
        return False

    @property
    def keeps_packs(self) -> bool:
        """Whether `pack` makes the values of objects take less room."""
        return False

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The value last set, or None if the key is absent."""

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Make `value` the key's value. It is durable when this returns, as far as the store is durable."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Make the key absent. It may be absent already."""

    @abstractmethod
    def keys(self, prefix: str = "") -> Iterator[str]:
        """Every key that starts with `prefix`, each once, in any order.

        A key set or deleted meanwhile may or may not be listed; all others are. A damaged store lists as many
        keys as it can, and then raises CorruptStore.
        """

    @abstractmethod
    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        """If the value is `expected`, make it `new` and return True; otherwise change nothing, return False.

        None means absent, on either side. Atomic among all threads and processes that use the store.
        """

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that are present."""
        found = {}
        for key in keys:
            value = self.get(key)
            if value is not None:
                found[key] = value
        return found

    def set_many(self, items: Mapping[str, bytes]) -> None:
        """Set every key of `items`. If it raises, some may be set and others not."""
        for key, value in items.items():
            self.set(key, value)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete every one of the keys. If it raises, some may be deleted and others not."""
        for key in keys:
            self.delete(key)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Every key that starts with `prefix` and its value, under the promise of `keys`."""
        for some in batches(self.keys(prefix), ITEMS_TOGETHER):
            found = self.get_many(some)
            yield from ((key, found[key]) for key in some if key in found)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def present(self, keys: Iterable[str]) -> Set[str]:
        """Those of the keys that are present. A store that can do so answers without reading the values."""
        return {key for key in keys if key in self}

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """If every key of `expected` has that value, carry out `writes` and return True. Otherwise swap
        nothing and return False. None means absent in `expected`, and "delete" in `writes`.

        A store with transactions makes this one, and says so in `transactional`. This default promises an
        order that keeps a store consistent whenever it is interrupted:

        1. Compare every expected key with its value. A key that is not written is only read, not locked.
        2. Set the keys without an expectation: objects first, then the rest.
        3. Swap the one expected key that is written, the ref. If another writer was faster, return False: the
           keys of step 2 stay set.
        4. Delete.

        It raises InvalidInput and writes nothing if two expected keys are to be written: that takes a store
        with transactions.
        """
        swapped = [key for key in expected if key in writes]
        if len(swapped) > 1:
            raise InvalidInput(
                f"{type(self).__name__} cannot swap several keys as one ({', '.join(map(repr, swapped))}): "
                "swap one at a time, or use a store with transactions, such as Disk"
            )
        for key in writes:
            check_key(key)
        # The key to be swapped is compared too: mostly that keeps a lost race from writing at all.
        for key, value in expected.items():
            if self.get(key) != value:
                return False
        others = {key: value for key, value in writes.items() if key not in expected}
        sets = {key: value for key, value in others.items() if value is not None}
        # Not all at once: an interrupted set_many leaves any part behind, and a reflog line that names a
        # commit without its tree would look like damage.
        for objects_now in (True, False):
            part = {key: value for key, value in sets.items() if is_object(key) is objects_now}
            if part:
                self.set_many(part)
        for key in swapped:
            if not self.compare_and_swap(key, expected[key], writes[key]):
                return False
        if len(sets) < len(others):
            self.delete_many([key for key, value in others.items() if value is None])
        return True

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """Call `plan` while no other thread or process writes. Carry out the writes that it returns (None
        deletes) as one transaction with its reads, and return True.

        `plan` may read the store and must not write to it. It may be called again if the store has to begin
        anew. Its exceptions come out, and then nothing is written. A store that cannot keep others out calls
        nothing and returns False, as this default does.
        """
        return False

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        """Listen for changes of `key`. The with block gets a function that waits for one, with a timeout.

        The function may return early, and for nothing: read the key again after it. A store that hears of
        changes returns soon after each one made since the block began. This default hears of none, and waits
        POLL_SECONDS.
        """
        return nullcontext(lambda timeout: time.sleep(min(timeout, POLL_SECONDS)))

    def forget(self, key: str) -> None:
        """Drop any cached copy of `key`, because it is damaged. The store itself keeps its own."""

    def uncached(self) -> KVStore:
        """The same contents without cached copies: the store behind a cache, and any other store itself."""
        return self

    def check(self) -> Iterator[str]:
        """Look for damage in the store's own files that no read would show. Yields a sentence for each find.

        Other threads may use the store meanwhile. A store without files of its own finds nothing, as this
        default does.
        """
        return iter(())

    def size(self) -> int | None:
        """The bytes that the store's own files take. None for a store without, as in this default."""
        return None

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        """Compress the values of objects together, of `keys` or of all outside rooms: they are seldom read.

        A read of one of them decompresses all that was packed with it. So the keys are those of one room.
        Reads give the form that `plain` returned from now on. No object comes or goes by this. A store that
        keeps each value by itself does nothing, as this default does, and says so in `keeps_packs`.
        """

    def release(self, seconds: float = RELEASE_SECONDS) -> None:
        """Give the room of deleted rows back to the system, beside other users of the store, for about so
        many seconds at the most. The next call goes on. A store that does so by itself does nothing, as in
        this default.
        """

    def scrub(self, keys: Sequence[str] = ()) -> tuple[str, list[str]]:
        """Remove the bytes of deleted rows from the store's own files, and search these for keys of objects.

        Returns the name of the files or the store, and a sentence for each find. Writers wait meanwhile.
        This default, for a store without files of its own, looks whether the store has the keys.
        """
        there = self.present(keys)
        return self.location, [f"the store still has {counted(len(there), 'object')}"] if there else []

    @property
    def directory(self) -> str | None:
        """The directory of a store on a disk of this machine; None for any other store."""
        return None

    @property
    def location(self) -> str:
        """Where the store is, for messages to people; never a secret."""
        return repr(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def close(self) -> None:
        """Release connections and files. Closing twice is fine; using a closed store is not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TransactionalStore(KVStore):
    """A store whose every write is a transaction. A subclass writes `get`, `keys` and `transact`."""

    transactional = True

    @abstractmethod
    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As promised by KVStore, and as one transaction: all the writes or none, any number of swaps."""

    def set(self, key: str, value: bytes) -> None:
        self.transact({key: check_value(value)}, {})

    def delete(self, key: str) -> None:
        self.transact({key: None}, {})

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        return self.transact({key: new}, {key: expected})

    def set_many(self, items: Mapping[str, bytes]) -> None:
        """Set every key of `items`, or raise and set none."""
        self.transact({key: check_value(value) for key, value in items.items()}, {})

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete every one of the keys, or raise and delete none."""
        self.transact(dict.fromkeys(keys), {})
