"""Slots: one immutable record for each key in hand, and the steps from one record to the next.

Invariants:

- A key has one slot or none. Without a slot the key is as committed. One assignment replaces a slot.
- `open`, `dirty` and `timed` may name too many keys, never too few: a key joins a set before
  the slot that belongs there is assigned, and leaves it afterwards.
- A value in `cache` is the value of the key's slot or, without a slot, the committed value. A value that
  expires is never there, because readers take values from the cache without a look at the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

from vstate.objects import expiry
from vstate.objects.expiry import Expiry, moment_of
from vstate.objects.stream import Chunks


class Mark:
    """A value that no program can set, for the fields of a slot."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ABSENT: Final = Mark("ABSENT")
"""The value of a slot whose key was deleted since the last commit."""

UNREAD: Final = Mark("UNREAD")
"""The value of a slot that stages an expiry alone: the value itself is the committed one."""

UNASKED: Final = Mark("UNASKED")
"""The `wanted` of a slot for which nobody asked for another expiry since the last commit."""

FORGET: Final = Mark("FORGET")
"""The end of a step that drops the slot and the cached value: the key is as its new commit says."""

CLEAN: Final = Mark("CLEAN")
"""The end of a step that drops the slot and caches its value, because that value is committed now."""


NO_ENTRIES: Final[frozenset[bytes]] = frozenset()

KEEP_BYTES: Final = 64 * 1024 * 1024
KEEP_BYTES_EACH: Final = KEEP_BYTES // 100_000
"""How many bytes stay in memory that nothing needs, as they can be read again; and the least that one value
counts for."""

LOOK_BYTES: Final = KEEP_BYTES // 4
"""After so many bytes are read, a look finds out which of the values nobody can reach any more."""


class Record:
    """An immutable record. `__init__` takes the `FIELDS`; mypy finds assignments elsewhere.

    A named tuple takes twice as long to make, and three times as long to read.
    """

    __slots__: tuple[str, ...] = ()
    FIELDS: tuple[str, ...] = ()

    def replaced(self, **fields: Any) -> Self:
        """The record with other values for these fields."""
        for name in self.FIELDS:
            if name not in fields:
                fields[name] = getattr(self, name)
        return type(self)(**fields)


class Base(Record):
    """The committed form of a value in hand: its entry and chunks, and other entries that mean the same
    value.

    The entries are without `expiry`, the time at which the key expires. `loaded` says that the value was
    unpickled from `entry` and was not compared with a second copy yet. Pickling such a value again may give
    other bytes (shared strings, the order of a set, an address). So a difference counts as a change only if
    an untouched second copy gives other bytes too; `alternates` remembers the bytes of the copy. If two
    copies give different bytes, `alternates` has those that the value gave right after it was loaded.
    `plain` says that the value was loaded from a short pickle that names no class.
    """

    __slots__ = FIELDS = ("alternates", "chunks", "entry", "expiry", "loaded", "plain", "size")

    def __init__(
        self,
        entry: bytes,
        chunks: tuple[Chunks | None, ...],
        size: int,
        loaded: bool,
        alternates: frozenset[bytes] = NO_ENTRIES,
        expiry: Expiry | None = None,
        plain: bool = False,
    ) -> None:
        self.entry: Final = entry
        self.chunks: Final = chunks
        self.size: Final = size
        self.loaded: Final = loaded
        self.alternates: Final = alternates
        self.expiry: Final = expiry
        self.plain: Final = plain


class Slot(Record):
    """One key in hand.

    - `value`: the value, ABSENT or UNREAD.
    - `fixed`: no program can change the value in place.
    - `is_set`: whether the key was set or deleted since the last commit.
    - `base`: a cache of the committed form; None means that the tree knows.
    - `due`: when the key counts as absent, in microseconds since 1970-01-01 UTC; None for never.
    - `wanted`: the expiry that was asked for since the last commit, None to take an expiry away, else
      UNASKED.
    - `dirty`: whether something about the key is staged, apart from edits in place.
    """

    FIELDS = ("base", "due", "fixed", "is_set", "value", "wanted")
    __slots__ = (*FIELDS, "dirty")

    def __init__(
        self,
        value: Any,
        fixed: bool,
        is_set: bool = False,
        base: Base | None = None,
        due: int | None = None,
        wanted: Any = UNASKED,
    ) -> None:
        self.value: Final = value
        self.fixed: Final = fixed
        self.is_set: Final = is_set
        self.base: Final = base
        self.due: Final = due
        self.wanted: Final = wanted
        self.dirty: Final = is_set or wanted is not UNASKED

    def over(self, at: int) -> bool:
        """Whether the key counts as absent at this time, because it expired."""
        return self.due is not None and self.due <= at

    def hides(self, entry: bytes) -> bool:
        """Whether the committed entry counts as absent, by its own expiry or by a staged one."""
        due = moment_of(entry)
        return due is not None and self.hides_at(due)

    def hides_at(self, due: int) -> bool:
        """As `hides`, for an entry that expires at this time."""
        if self.wanted is not UNASKED:
            return self.over(expiry.now())
        return due <= expiry.now()

    def next_expiry(self, before: Expiry | None) -> Expiry | None:
        """The expiry that a commit gives the key, whose committed expiry is `before`."""
        if self.wanted is not UNASKED:
            return self.wanted  # type: ignore[no-any-return]  # an Expiry, or None
        return None if self.is_set else before


UNTOUCHED: Final = Slot(UNREAD, True)
"""The slot that a key without a slot would have."""

Step = tuple[Slot | None, Slot | Mark]
"""The slot of a key that a plan was made for, and its successor: a slot, FORGET or CLEAN."""

Steps = dict[str, Step]


class SlotTable:
    """The slots of one handle, with hints and caches. The handle's lock is held around every change.

    - `slots` is the truth.
    - `cache`: values that readers take without the lock.
    - `open`: keys whose value somebody outside may hold, and so may edit in place.
    - `dirty`, `timed`: keys whose slots are dirty, or have a time at which they expire.
    - `handed`: the keys handed out or set since the commit under way made its plan; None without a commit.
    - `idle`: bytes kept in memory that can be read again.
    - `read`: bytes of open values that were read; a look at them is due when it is more than `limit`.
    """

    __slots__ = ("cache", "dirty", "handed", "idle", "limit", "open", "read", "slots", "timed")

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.cache: dict[str, Any] = {}
        self.open: set[str] = set()
        self.dirty: set[str] = set()
        self.timed: set[str] = set()
        self.handed: set[str] | None = None
        self.idle = 0
        self.read = 0
        self.limit = LOOK_BYTES

    # A signal handler or a finalizer may set a key in the middle of these two. So the hints come first, and
    # nothing is called from the test whether the slot is still the same to its assignment.

    def put(self, key: str, old: Slot | None, new: Slot, hot: bool) -> bool:
        """Assign the slot of a key, and cache its value if that is `hot`; False if the slot changed since."""
        slots, cache, clean = self.slots, self.cache, new.fixed and not new.dirty and new.due is None
        hot = clean or (hot and new.due is None and not isinstance(new.value, Mark))
        if new.dirty:
            self.dirty.add(key)
        if not new.fixed:
            self.open.add(key)
        if new.due is not None:
            self.timed.add(key)
        if self.handed is not None and not clean:
            self.handed.add(key)
        if (slots[key] if key in slots else None) is not old:  # noqa: SIM401
            return False
        if key in cache:
            del cache[key]
        if not clean:  # a clean value needs no slot
            slots[key] = new
        if hot:
            cache[key] = new.value
        return True

    def apply(self, steps: Steps) -> None:
        """Take each step whose slot is still the one it was made for, and make the hints exact.

        Applying again changes nothing. A slot that was set after the plan keeps its value and loses its base.
        """
        slots, cache = self.slots, self.cache
        for key, (old, new) in steps.items():
            now = slots.get(key)
            if now is not old and now is not new:
                new = FORGET if now is None else now.replaced(base=None)
            if isinstance(new, Slot):
                if new.dirty:
                    self.dirty.add(key)
                if not new.fixed:
                    self.open.add(key)
                if new.due is not None:
                    self.timed.add(key)
                if new.due is not None or now is None or new.value is not now.value:
                    cache.pop(key, None)
                if (slots[key] if key in slots else None) is now:  # noqa: SIM401
                    slots[key] = new
            else:
                if new is FORGET:
                    cache.pop(key, None)
                if now is not None and key in slots and slots[key] is now:
                    if new is CLEAN:
                        cache[key] = now.value
                    del slots[key]
            slot = slots[key] if key in slots else UNTOUCHED  # noqa: SIM401
            if not slot.dirty and key in self.dirty:
                self.dirty -= {key}
            if slot.fixed and key in self.open:
                self.open -= {key}
            if slot.due is None and key in self.timed:
                self.timed -= {key}
        # An emptied set keeps its size; `set()` would be a call.
        if not self.dirty:
            self.dirty = {*()}
        if not self.open:
            self.open = {*()}
        if not self.timed:
            self.timed = {*()}

    def forget(self, keys: Iterable[str], planned: Steps) -> Steps:
        """Steps that drop the slots of the keys. `planned` are the steps of a plan that was made before.

        The plan has a step for each slot that was dirty then. A slot that was set since stays.
        """
        steps: Steps = {}
        for key in keys:
            slot = self.slots.get(key)
            if key in planned:
                slot = planned[key][0]
            elif slot is not None and slot.dirty:
                slot = None
            steps[key] = slot, FORGET
        return steps

    def seal(self, keys: Iterable[str]) -> None:
        """Compare the values of these keys no more until they are handed out again; they are as committed,
        and nobody outside could reach them when `handed` began. It only saves time and memory.
        """
        if self.handed is None:
            return
        for key in keys:
            slot = self.slots.get(key)
            if slot is not None and not slot.dirty and key not in self.handed:
                self.open.discard(key)
                size = KEEP_BYTES_EACH + (0 if slot.base is None else slot.base.size)
                self.idle += size
                self.read = max(self.read - size, 0)  # the program had set some of them
        self.handed = None
        if self.idle > KEEP_BYTES:
            self.drop_idle()

    def drop_idle(self) -> None:
        """Let go of every value that can be read again and that no program can be about to edit."""
        slots = self.slots
        for key in [key for key in self.cache if key not in slots]:
            del self.cache[key]
        for key in [key for key, slot in slots.items() if key not in self.open and not slot.dirty]:
            if key in slots and not slots[key].dirty:
                del slots[key]
            self.cache.pop(key, None)
        self.timed.intersection_update(slots)
        self.idle = 0
