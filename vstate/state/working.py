"""Working values: what a program has in hand, and how it differs from what is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vstate.errors import InvalidInput, Unpicklable
from vstate.objects import tree
from vstate.objects.expiry import EXPIRING, Expiry, moment_of, split_expiry, with_expiry
from vstate.objects.ids import ObjectId
from vstate.repo.objects import Overlay
from vstate.repo.repository import Repository
from vstate.state.base import missing
from vstate.state.baselines import Baseline, Baselines
from vstate.state.staged import Staged
from vstate.state.timed import Asked, Timed
from vstate.state.tracking import is_immutable, is_unshared
from vstate.values.entry import Encoded, encode_value
from vstate.values.pickling import culprit

KEEP_BYTES = 64 * 1024 * 1024
KEEP_COUNT = 100_000
"""How many bytes and values are kept in memory that nothing needs: they can be read again."""


class WorkingValues:
    """The values of one state in hand. Its owner holds a lock around every call but reading `values`.

    - `values` are those that the program may be using: read, set, maybe edited since.
    - `staged` are the keys that were set, `deleted` those that were deleted, since the last commit.
    - `_watched` are the keys of values that may be edited in place: all mutable ones in `values`.
    - `_sealed` are values that nothing outside could reach when they were last compared. They cannot
      change until they are handed out again, so a commit does not look at them.
    - `_held` are the values while they are held still, from `collect` to `let_go`.
    - `timed` has the values of keys that expire, which are not in `values`.

    An interruption may come between any two calls: what belongs together is changed without one in between.
    """

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self.values: dict[str, Any] = {}
        self.staged: set[str] = set()
        self.deleted: set[str] = set()
        self.timed = Timed()
        self._watched: set[str] = set()
        self._sealed: dict[str, Any] = {}
        self._baselines = Baselines(repo)
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
        timed = self.timed
        if timed.due:
            if timed.is_over(key):
                raise missing(key)
            if key in timed.values:
                return timed.values[key]
        if key in self._sealed:
            value = self._sealed[key]
            self._watched |= {key}
            if key in timed.due:
                timed.values[key] = value
            else:
                self.values[key] = value
            del self._sealed[key]
            return value
        data = None if key in self.deleted else tree.lookup(self._repo.objects.node, root, key)
        if data is None:
            raise missing(key)
        expiry = None
        if data[:1] in EXPIRING:
            if timed.hides(key, data):
                raise missing(key)
            data, expiry = split_expiry(data)
            if expiry is not None and key not in timed.wanted:
                timed.due[key] = expiry.at
        value, chunks, size, unordered = self._repo.load(key, data)
        if is_immutable(value):
            self._keep(size)
            if key in timed.due:
                timed.values[key] = value
            else:
                self.values[key] = value
        else:
            # The order of a set can change with each loading; in this one copy it stays what it is now.
            now = frozenset({encode_value(value, chunks).entry} if unordered else ())
            baseline = Baseline(data, chunks, size, loaded=True, alternates=now, expiry=expiry)
            self._baselines.known[key] = baseline
            self._watched |= {key}
            if key in timed.due:
                timed.values[key] = value
            else:
                self.values[key] = value
        return value

    def contains(self, key: str, root: ObjectId | None) -> bool:
        """Whether the key is there."""
        if key in self.values:
            return True
        if self._noticed is not None:
            self._noticed.keys.add(key)
            if key in self._noticed.values:
                return True
        if self.timed.is_over(key):
            return False
        if key in self._sealed or key in self.timed.values:
            return True
        data = None if key in self.deleted else tree.lookup(self._repo.objects.node, root, key)
        return data is not None and (data[:1] not in EXPIRING or not self.timed.hides(key, data))

    def holds(self, key: str) -> bool:
        """Whether the key's value is in hand and may differ from the committed one."""
        return key in self.values or (key in self.timed.values and not self.timed.is_over(key))

    def may_have_changed(self, prefix: str) -> bool:
        """Whether a key with this prefix is staged, or has a value in hand that may have been edited."""
        touched = (self.staged, self.deleted, self.timed.wanted, self._watched)
        return any(key.startswith(prefix) for keys in touched for key in keys)

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
            # In place, and not a dict of both: what is in hand may be a hundred thousand values.
            values = noticed.values
            values |= self.values
            self.values, noticed.values, self._noticed = values, {}, None

    def set(self, key: str, value: Any) -> None:
        """Stage a value."""
        self.require_free("written to")
        timed, immutable = self.timed, is_immutable(value)
        at, is_over, slides = timed.before_set(key)
        if is_over:  # what is set now has nothing to do with what was there
            self._drop(key, deleted=self._is_touched(key))
        if self._noticed is not None:
            self._noticed.keys |= {key}
            if key in self._noticed.values:
                del self._noticed.values[key]
        if key in self._sealed:
            del self._sealed[key]
        if key in timed.values:
            del timed.values[key]
        if key in timed.due:
            del timed.due[key]
        if key in timed.wanted and not slides:
            del timed.wanted[key]
        timed.set_at[key] = at
        self.deleted -= {key}
        self.staged |= {key}
        if immutable:
            self._watched -= {key}
        else:
            self._watched |= {key}
        self.values[key] = value

    def expire(self, key: str, wanted: Expiry | None) -> None:
        """Stage when a key that is there expires, None for never."""
        self.require_free("written to")
        timed = self.timed
        if self._noticed is not None:
            self._noticed.keys |= {key}
            if key in self._noticed.values:
                self.values[key] = self._noticed.values[key]
                del self._noticed.values[key]
        timed.wanted[key] = wanted
        if wanted is not None:
            timed.due[key] = wanted.at
            if key in self.values:
                timed.values[key] = self.values[key]
                del self.values[key]
        else:
            if key in timed.due:
                del timed.due[key]
            if key in timed.values:
                self.values[key] = timed.values[key]
                del timed.values[key]

    def expiry(self, key: str, root: ObjectId | None) -> Expiry | None:
        """The expiry of a key that is there, as a commit now would write it."""
        data = tree.lookup(self._repo.objects.node, root, key)
        before = None if data is None or self.timed.hides(key, data) else split_expiry(data)[1]
        if key not in self.staged and key not in self.timed.wanted:
            return before
        return self.timed.next(key, before, changed=True, staged=key in self.staged)

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
        timed = self.timed
        if key in self.values:
            del self.values[key]
        if self._held is not None and key in self._held:
            del self._held[key]
        if key in self._sealed:
            del self._sealed[key]
        if key in self._baselines.known:
            del self._baselines.known[key]
        if self._noticed is not None and key in self._noticed.values:
            del self._noticed.values[key]
        if key in timed.values:
            del timed.values[key]
        if key in timed.due:
            del timed.due[key]
        if key in timed.wanted:
            del timed.wanted[key]
        if key in timed.set_at:
            del timed.set_at[key]
        self._watched -= {key}
        self.staged -= {key}
        if deleted:
            self.deleted |= {key}
        else:
            self.deleted -= {key}

    def agree(self, entries: Mapping[str, bytes | None]) -> None:
        """Take what is held for these keys as what another writer committed, since that is the same."""
        for key, entry in entries.items():
            self.staged.discard(key)
            self.deleted.discard(key)
            self.timed.wanted.pop(key, None)
            self.timed.set_at.pop(key, None)
            self._baselines.known.pop(key, None)
            due = None if entry is None else moment_of(entry)
            if due is not None:
                self.timed.due[key] = due
        self._set_apart(entries)

    def landed(self, asked: Asked, keys: Iterable[str]) -> None:
        """Compare what is held for the keys with the tree itself the next time, since a commit has changed them there.

        What was asked for until then is done, and what was asked for since is not. May be done again.
        """
        for key in keys:
            self._baselines.known.pop(key, None)
        for key, at in asked.set_at.items():
            if self.timed.set_at.get(key) == at:
                self.staged.discard(key)
        self.timed.settle(asked)
        self._set_apart(asked.expiries)

    def _set_apart(self, keys: Iterable[str]) -> None:
        """See to it that none of the keys that expire is in `values`, which are handed out whatever the time is."""
        for key in keys:
            if key in self.timed.due and key in self.values:
                self.timed.values[key] = self.values[key]
                del self.values[key]

    def clear(self) -> None:
        """Drop everything."""
        timed = Timed()
        if self._noticed is not None:
            self._noticed.prefixes = {""}
            self._noticed.values = {}
        self.values = {}
        self.timed = timed
        self._sealed = {}
        self._baselines.known = {}
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
        self._drop_expired()
        # Readers now wait for the lock, so that none takes a value being looked at.
        held = self._held = self.values | self.timed.values if self.timed.values else self.values
        self.values, self.timed.values = {}, {}
        staged = Staged(self._repo, held, self.timed.asked())
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
            now = self.values | self.timed.values
            loaded = {key: value for key, value in now.items() if key not in held}
            held |= loaded
            timed = {key: held[key] for key in self.timed.due if key in held}
            plain = {key: value for key, value in held.items() if key not in timed} if timed else held
            self.values, self.timed.values, self._held, self._lent = plain, timed, None, set()

    def _drop_expired(self) -> None:
        """Let go of what has expired, and delete it, if anything was changed about it since the last commit."""
        if self.timed.due:
            for key in self.timed.over():
                self._drop(key, deleted=self._is_touched(key))

    def _is_touched(self, key: str) -> bool:
        return key in self.staged or key in self.timed.wanted

    def _compare(self, staged: Staged, root: ObjectId | None) -> None:
        held = staged.held
        for key in sorted(self._watched | self.staged | self.timed.wanted.keys()):
            if key not in held:
                # All that was asked for is another expiry, or an interruption kept it from being loaded.
                if key in self.timed.wanted:
                    self._compare_expiry(staged, key, root)
                continue
            unshared = key in self._watched and is_unshared(held, key)
            baseline = self._baselines.known.get(key)
            if baseline is None:
                data = tree.lookup(self._repo.objects.node, root, key)
                if data is not None and not self.timed.hides(key, data):
                    baseline = self._baselines.read(key, data, held[key], keep=key in self._watched)
            try:
                encoded = encode_value(held[key], baseline.chunks if baseline else ())
            except Exception as error:  # pickling runs the classes' own code, which may raise anything
                staged.unpicklable[key] = error
                continue
            changed = baseline is None or not self._baselines.is_same(key, held[key], baseline, encoded)
            before = None if baseline is None else baseline.expiry
            expiry = before
            if before is not None or key in self.timed.wanted:
                # It was set while it was there: what has become of it since is not what it was set to.
                changed = changed or (key in self.staged and before is not None and before.is_over)
                expiry = self.timed.next(key, before, changed=changed, staged=key in self.staged)
                staged.asked.expiries[key] = expiry
            if changed or expiry != before:
                if expiry is not None:
                    encoded = encoded._replace(entry=with_expiry(encoded.entry, expiry))
                staged.changes[key] = encoded.entry
                staged.encoded[key] = encoded
                staged.objects.update(encoded.objects)
            elif expiry is not None and key in self.staged:
                staged.set_alike[key] = encoded._replace(entry=with_expiry(encoded.entry, expiry))
            if unshared:
                staged.unshared.append(key)
        for key in self.deleted:
            if tree.lookup(self._repo.objects.node, root, key) is not None:
                staged.changes[key] = None
                staged.encoded[key] = None

    def _compare_expiry(self, staged: Staged, key: str, root: ObjectId | None) -> None:
        data = tree.lookup(self._repo.objects.node, root, key)
        if data is None:  # gone with a commit that the state has moved from since
            return
        bare, before = split_expiry(data)
        expiry = self.timed.next(key, before, changed=False, staged=False)
        if expiry == before:
            return
        staged.only_expiry.add(key)
        staged.asked.expiries[key] = expiry
        staged.changes[key] = with_expiry(bare, expiry)
        staged.encoded[key] = Encoded(with_expiry(bare, expiry), {}, (), 0)

    def edited_meanwhile(self, staged: Staged, keys: Iterable[str]) -> list[str]:
        """Which of the keys' values were edited in place after they were compared."""
        edited = []
        for key in self._watched.intersection(keys):
            baseline = self._baselines.known.get(key)
            encoded = encode_value(staged.held[key], baseline.chunks if baseline else ())
            if key in staged.changes:
                if encoded.entry != split_expiry(staged.changes[key] or b"")[0]:
                    edited.append(key)
            elif baseline is None or not self._baselines.is_same(key, staged.held[key], baseline, encoded):
                edited.append(key)
        return edited

    def settle(self, staged: Staged) -> None:
        """Take what was collected as committed now; may be done again, if it was interrupted."""
        self.timed.settle(staged.asked)
        for key, encoded in staged.encoded.items():
            if encoded is not None and key in staged.only_expiry:
                baseline = self._baselines.known.get(key)
                if baseline is not None:
                    self._baselines.known[key] = baseline._replace(expiry=staged.asked.expiries[key])
            elif encoded is not None and (key in self._watched or key in self._sealed):
                bare, expiry = split_expiry(encoded.entry)
                now = Baseline(bare, encoded.chunks, encoded.size, loaded=False, expiry=expiry)
                self._baselines.known[key] = now
            else:
                self._baselines.known.pop(key, None)
            if encoded is not None and key not in self._watched:
                self._keep(encoded.size)
        self.staged, self.deleted = set(), set()
        for key in staged.unshared:
            if key in self._lent or key not in staged.held:
                continue
            baseline = self._baselines.known.get(key)
            self._keep(baseline.size if baseline else 0)
            self._sealed[key] = staged.held[key]
            del staged.held[key]
            self._watched -= {key}
        # A set that was emptied keeps the size it had, and each commit goes through all of that.
        self._watched = set(self._watched)
        if self._idle_bytes > KEEP_BYTES:
            self._drop_idle(staged.held)

    def _keep(self, size: int) -> None:
        self._idle_bytes += size + KEEP_BYTES // KEEP_COUNT

    def _drop_idle(self, held: dict[str, Any]) -> None:
        """Let go of everything that can be read again and that nobody can be waiting to see change."""
        for key in [key for key in held if key not in self._watched and key not in self.staged]:
            del held[key]
        for key in self._sealed:
            self._baselines.known.pop(key, None)
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
