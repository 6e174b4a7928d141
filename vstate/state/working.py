"""Working values: what a program has in hand, and how it differs from what is committed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from vstate.errors import CorruptObject, InvalidInput, Unpicklable
from vstate.objects import tree
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.stream import BLOB_BYTES, Chunks
from vstate.repo.overlay import Overlay
from vstate.repo.repository import Repository
from vstate.state.base import missing
from vstate.state.tracking import is_immutable, is_unshared
from vstate.values.entry import ATOM, BYTES, TEXT, Encoded, Entry, Reader, encode_value, entry_chunks
from vstate.values.pickling import culprit

KEEP_BYTES = 64 * 1024 * 1024
KEEP_COUNT = 100_000
"""How many bytes and values are kept in memory that nothing needs: they can be read again."""


class Baseline(NamedTuple):
    """The committed form of a value in hand: its entry and chunks, and other entries that mean the same.

    `loaded` says that the value was unpickled from the entry and not compared with a second copy yet.
    Pickling it again may give other bytes (shared strings, the order of a set), so a difference is compared
    with what a second, untouched copy gives before it counts as a change; `alternates` remembers that.
    """

    entry: bytes
    chunks: tuple[Chunks | None, ...]
    size: int
    loaded: bool
    alternates: frozenset[bytes] = frozenset()


class WorkingValues:
    """The values of one state in hand. Its owner holds a lock around every call but reading `values`.

    - `values` are those that the program may be using: read, set, maybe edited since.
    - `staged` are the keys that were set, `deleted` those that were deleted, since the last commit.
    - `_watched` are the keys of values that may be edited in place: all mutable ones in `values`.
    - `_sealed` are values that nothing outside could reach when they were last compared. They cannot
      change until they are handed out again, so a commit does not look at them.
    - `_held` are the values while they are held still, from `collect` to `let_go`.

    An interruption may come between any two calls: what belongs together is changed without one in between.
    """

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self.values: dict[str, Any] = {}
        self.staged: set[str] = set()
        self.deleted: set[str] = set()
        self._watched: set[str] = set()
        self._sealed: dict[str, Any] = {}
        self._baselines: dict[str, Baseline] = {}
        self._idle_bytes = 0
        self._held: dict[str, Any] | None = None
        self._lent: set[str] = set()
        self._noticed: Noticed | None = None

    # Reading and writing

    def load(self, key: str, root: ObjectId | None) -> Any:
        """The value of a key that is not in `values`, from here or from the tree; KeyNotFound."""
        if self._held is not None and key in self._held:
            self._lent.add(key)  # pickling a value reads the state it is in, and may keep what it got
            return self._held[key]
        if key in self.values:
            return self.values[key]
        if self._noticed is not None:
            self._noticed.keys.add(key)
            if key in self._noticed.values:
                value = self.values[key] = self._noticed.values[key]
                del self._noticed.values[key]
                return value
        if key in self._sealed:
            value = self._sealed[key]
            self._watched |= {key}
            self.values[key] = value
            del self._sealed[key]
            return value
        data = None if key in self.deleted else tree.lookup(self._repo.objects.node, root, key)
        if data is None:
            raise missing(key)
        value, chunks, size, unordered = self._repo.load(key, data)
        if is_immutable(value):
            self._keep(size)
            self.values[key] = value
        else:
            # The order of a set can change with each loading; in this one copy it stays what it is now.
            now = frozenset({encode_value(value, chunks).entry} if unordered else ())
            baseline = Baseline(data, chunks, size, loaded=True, alternates=now)
            self._baselines[key] = baseline
            self._watched |= {key}
            self.values[key] = value
        return value

    def contains(self, key: str, root: ObjectId | None) -> bool:
        """Whether the key is there."""
        if key in self.values or key in self._sealed:
            return True
        if self._noticed is not None:
            self._noticed.keys.add(key)
            if key in self._noticed.values:
                return True
        return key not in self.deleted and tree.lookup(self._repo.objects.node, root, key) is not None

    def notice_scan(self, prefix: str) -> None:
        """Take note that the keys with this prefix were listed or counted."""
        if self._noticed is not None:
            self._noticed.prefixes.add(prefix)

    def notice(self) -> Noticed:
        """Take note, until `end_notice`, of the keys that are read and written."""
        # Readers find nothing in `values`, and so come to `load`.
        self._noticed = noticed = Noticed(self.values)
        self.values = {}
        return noticed

    def end_notice(self) -> None:
        """Take no more notes; those that were taken stay."""
        noticed = self._noticed
        if noticed is not None:
            self.values, noticed.values, self._noticed = noticed.values | self.values, {}, None

    def set(self, key: str, value: Any) -> None:
        """Stage a value."""
        self.require_free("written to")
        immutable = is_immutable(value)
        if self._noticed is not None:
            self._noticed.keys |= {key}
            if key in self._noticed.values:
                del self._noticed.values[key]
        if key in self._sealed:
            del self._sealed[key]
        self.deleted -= {key}
        self.staged |= {key}
        if immutable:
            self._watched -= {key}
        else:
            self._watched |= {key}
        self.values[key] = value

    def delete(self, key: str) -> None:
        """Stage a deletion."""
        self.require_free("written to")
        if self._noticed is not None:
            self._noticed.keys.add(key)
        self._drop(key, deleted=True)

    def require_free(self, done: str) -> None:
        """Raise InvalidInput while the values are held still."""
        if self._held is not None:
            raise InvalidInput(f"a state cannot be {done} by the pickling of one of its own values")

    def decoded(self, key: str, encoded: Encoded) -> Any:
        """A new copy of a value that may not be stored yet; CannotLoad."""
        return self._repo.load(key, encoded.entry, Overlay(self._repo.objects, encoded.objects)).value

    def forget(self, keys: Iterable[str]) -> None:
        """Drop all that is held for the keys, changes included."""
        for key in list(keys):
            self._drop(key)

    def _drop(self, key: str, *, deleted: bool = False) -> None:
        # Without a call or a loop: a key that is half dropped would show what was committed, and not be staged.
        if key in self.values:
            del self.values[key]
        if self._held is not None and key in self._held:
            del self._held[key]
        if key in self._sealed:
            del self._sealed[key]
        if key in self._baselines:
            del self._baselines[key]
        if self._noticed is not None and key in self._noticed.values:
            del self._noticed.values[key]
        self._watched -= {key}
        self.staged -= {key}
        if deleted:
            self.deleted |= {key}
        else:
            self.deleted -= {key}

    def agree(self, keys: Iterable[str]) -> None:
        """Take what is held for the keys as what another writer committed, since that is the same."""
        for key in keys:
            self.staged.discard(key)
            self.deleted.discard(key)
            self._baselines.pop(key, None)

    def compare_anew(self, keys: Iterable[str]) -> None:
        """Compare what is held for the keys with the tree itself, which has changed, the next time."""
        for key in keys:
            self._baselines.pop(key, None)

    def clear(self) -> None:
        """Drop everything."""
        if self._noticed is not None:
            self._noticed.prefixes = {""}
            self._noticed.values = {}
        self.values = {}
        self._sealed = {}
        self._baselines = {}
        self._watched = set()
        self.staged = set()
        self.deleted = set()
        self._idle_bytes = 0

    # Comparing

    def collect(self, root: ObjectId | None, *, tolerant: bool = False) -> Staged:
        """What differs from the tree now, with every value held still from now on, until `let_go`.

        Raises Unpicklable, naming all culprits; `tolerant` lists their keys in `unpicklable` instead.
        """
        noticed = self._noticed
        if noticed is not None:  # all is read from now on
            noticed.prefixes = {""}
            self.values = noticed.values | self.values
            noticed.values = {}
        # Readers now wait for the lock, so that none takes a value being looked at.
        held = self._held = self.values
        self.values = {}
        staged = Staged(self._repo, held)
        self._compare(staged, root)
        if staged.unpicklable and not tolerant:
            raise Unpicklable(
                {
                    key: culprit(held[key], f'state["{key}"]', error)
                    for key, error in sorted(staged.unpicklable.items())
                }
            )
        return staged

    def let_go(self) -> None:
        """Hand the values out again, if they are held still."""
        held = self._held
        if held is not None:
            # What pickling itself made the state load, if a class's code does that.
            loaded = {key: value for key, value in self.values.items() if key not in held}
            held |= loaded
            self.values, self._held, self._lent = held, None, set()

    def _compare(self, staged: Staged, root: ObjectId | None) -> None:
        held = staged.held
        for key in sorted(self._watched | self.staged):
            if key not in held:
                continue  # an interruption kept it from being loaded
            unshared = key in self._watched and is_unshared(held, key)
            baseline = self._baselines.get(key)
            if baseline is None:
                baseline = self._read_baseline(key, held[key], root)
            try:
                encoded = encode_value(held[key], baseline.chunks if baseline else ())
            except Exception as error:  # pickling runs the classes' own code, which may raise anything
                staged.unpicklable[key] = error
                continue
            if baseline is None or not self._means_the_same(key, held[key], baseline, encoded):
                staged.changes[key] = encoded.entry
                staged.encoded[key] = encoded
                staged.objects.update(encoded.objects)
            if unshared:
                staged.unshared.append(key)
        for key in self.deleted:
            if tree.lookup(self._repo.objects.node, root, key) is not None:
                staged.changes[key] = None
                staged.encoded[key] = None

    def _read_baseline(self, key: str, value: Any, root: ObjectId | None) -> Baseline | None:
        """The committed form of a key that was set without being read; None if there is none."""
        data = tree.lookup(self._repo.objects.node, root, key)
        if data is None:
            return None
        if key not in self._watched and not (type(value) in (bytes, str) and len(value) > BLOB_BYTES):
            return Baseline(data, (), 0, loaded=False)  # a short value gains nothing from the old chunks
        try:
            entry = self._repo.parse_entry(key, data)
            baseline = Baseline(data, entry_chunks(entry, self._repo.objects), entry.size, loaded=False)
        except CorruptObject:  # the old chunks only save time, and what is damaged may be replaced
            return Baseline(data, (), 0, loaded=False)
        if key in self._watched:
            self._baselines[key] = baseline
        return baseline

    def _means_the_same(self, key: str, value: Any, baseline: Baseline, encoded: Encoded) -> bool:
        if encoded.entry == baseline.entry or encoded.entry in baseline.alternates:
            return True
        if not baseline.loaded:
            return False
        if Entry.decode(encoded.entry).codec in (ATOM, BYTES, TEXT):
            return False
        try:
            again = encode_value(self._repo.load(key, baseline.entry).value, baseline.chunks)
        except Exception:  # the stored value loads no more: what is in hand is new then
            return False
        self._baselines[key] = baseline._replace(loaded=False, alternates=baseline.alternates | {again.entry})
        if again.entry == encoded.entry:
            return True
        # The first pickling of a class may leave something in it, which then is pickled with it.
        return encode_value(value, baseline.chunks).entry == again.entry

    def edited_meanwhile(self, staged: Staged, keys: Iterable[str]) -> list[str]:
        """Which of the keys' values were edited in place after they were compared."""
        edited = []
        for key in self._watched.intersection(keys):
            baseline = self._baselines.get(key)
            encoded = encode_value(staged.held[key], baseline.chunks if baseline else ())
            if key in staged.changes:
                if encoded.entry != staged.changes[key]:
                    edited.append(key)
            elif baseline is None or not self._means_the_same(key, staged.held[key], baseline, encoded):
                edited.append(key)
        return edited

    def settle(self, staged: Staged) -> None:
        """Take what was collected as committed now; may be done again, if it was interrupted."""
        for key, encoded in staged.encoded.items():
            if encoded is not None and (key in self._watched or key in self._sealed):
                self._baselines[key] = Baseline(encoded.entry, encoded.chunks, encoded.size, loaded=False)
            else:
                self._baselines.pop(key, None)
            if encoded is not None and key not in self._watched:
                self._keep(encoded.size)
        self.staged, self.deleted = set(), set()
        for key in staged.unshared:
            if key in self._lent or key not in staged.held:
                continue
            baseline = self._baselines.get(key)
            self._keep(baseline.size if baseline else 0)
            self._sealed[key] = staged.held[key]
            del staged.held[key]
            self._watched -= {key}
        if self._idle_bytes > KEEP_BYTES:
            self._drop_idle(staged.held)

    def _keep(self, size: int) -> None:
        self._idle_bytes += size + KEEP_BYTES // KEEP_COUNT

    def _drop_idle(self, held: dict[str, Any]) -> None:
        """Let go of everything that can be read again and that nobody can be waiting to see change."""
        for key in [key for key in held if key not in self._watched and key not in self.staged]:
            del held[key]
        for key in self._sealed:
            self._baselines.pop(key, None)
        self._sealed = {}
        self._idle_bytes = 0


class Noticed:
    """What was read or written: keys, and prefixes of listed keys; and the `values` in hand that were not, so far."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.keys: set[str] = set()
        self.prefixes: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.keys or any(key.startswith(prefix) for prefix in self.prefixes)


class Staged:
    """What `collect` found: entries by key (None: deleted), their objects, and what nobody else holds."""

    def __init__(self, repo: Repository, held: dict[str, Any]) -> None:
        self._repo = repo
        self.held = held
        self.changes: dict[str, bytes | None] = {}
        self.encoded: dict[str, Encoded | None] = {}
        self.objects: NewObjects = {}
        self.unshared: list[str] = []
        self.unpicklable: dict[str, Exception] = {}

    def reader(self) -> Reader:
        """A reader that finds these objects besides the stored ones."""
        return Overlay(self._repo.objects, dict(self.objects))
