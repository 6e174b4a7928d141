"""Commits: reading, building and publishing them, over one KVStore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import sleep
from types import MappingProxyType
from typing import Any

from vstate.arguments import check_limit
from vstate.errors import (
    CannotLoad,
    CorruptObject,
    CorruptStore,
    InvalidInput,
    NotFound,
    RefMoved,
    StoreUnavailable,
    UnsupportedFormat,
)
from vstate.kv.base import KVStore
from vstate.kv.encrypted import MARK as ENCRYPTION_MARK
from vstate.objects import tree
from vstate.objects.canonical import plain
from vstate.objects.commit import Commit, Event
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.tree import KeyChange, Node
from vstate.repo.compare.diff import Diff
from vstate.repo.history import History, Log
from vstate.repo.names import revisions
from vstate.repo.names.refs import HEADS, Head, Refs, Sweep
from vstate.repo.objects import TRASH, Objects
from vstate.repo.rules.guard import Guard
from vstate.repo.rules.leases import Leases
from vstate.repo.rules.policies import Policies
from vstate.repo.rules.security import Security
from vstate.values.entry import Decoded, Entry, Reader, decode_value
from vstate.values.inspection import inspect_value

FORMAT = 3
"""The newest format that is read. What is written says 1 as long as it holds nothing of a later one."""
SIGNED_COMMITS = 2
EXPIRY_FORMAT = 3

FORMAT_KEY = "format"

_PATIENCE = 0.5  # seconds for `gc` to put back what it should not have put aside
_LOOKS = 25
_MICROSECOND = timedelta(microseconds=1)

Revision = str | Commit | ObjectId

_NOTHING: Mapping[str, bytes | None] = MappingProxyType({})
_NO_ROWS = nullcontext(_NOTHING)


class Commits:
    """What a store holds, by commit: what a `Repository` is apart from its operations on branches and tags.

    Opening reads one key and writes nothing. Raises UnsupportedFormat for a store of a newer vstate.
    """

    def __init__(self, store: KVStore, security: Security | None = None) -> None:
        self.store = store
        self.security = security or Security()
        self.objects = Objects(store)
        self.refs = Refs(store)
        self.history = History(self.objects)
        self.policies = Policies(store, self.security.find_policy)
        self.leases = Leases(store)
        self._format = self._read_format()

    def _read_format(self) -> int:
        """The store's format; 0 for a new one."""
        stamp = self.store.get(FORMAT_KEY)
        if stamp is None:
            if self.store.get(ENCRYPTION_MARK) is not None:
                raise InvalidInput(
                    f"the store at {self.store.location} is encrypted: open it through Encrypted(store, key), "
                    f"or as encrypted:{self.store.location}?key_file=PATH"
                )
            return 0
        if not stamp.isdigit():
            raise CorruptStore(self.store.location, f"its format is no number but {stamp[:20]!r}")
        if len(stamp) > 9 or int(stamp) > FORMAT:
            raise UnsupportedFormat(stamp[:20].decode("ascii", "replace"), FORMAT)
        return int(stamp)

    def require_format(self, needed: int) -> None:
        """See to it that older programs, which would misread what is to be written, refuse the store."""
        while self._format < needed:
            seen = self.store.get(FORMAT_KEY)
            self._format = self._read_format()
            if self._format < needed and self.store.compare_and_swap(FORMAT_KEY, seen, str(needed).encode()):
                self._format = needed

    def require_trusted(self, commit: Commit) -> None:
        """Raise UntrustedCommit unless what the commit holds may be unpickled here, and built upon."""
        self.security.require_trusted(commit, self.history, self.refs)

    # Reading

    def resolve(self, rev: Revision, *, head: Head | None = None) -> Commit:
        """The commit that a revision names; NotFound or InvalidInput with the candidates otherwise.

        `head` is what HEAD stands for, the store's own by default.
        """
        if isinstance(rev, Commit):
            rev = rev.oid
        if isinstance(rev, ObjectId):
            found = self.objects.find_commit(rev)
            if found is None:
                raise NotFound(f"no commit {rev}", name=str(rev))
            return found
        if not isinstance(rev, str):
            raise TypeError(f"a revision is a str or a Commit, not {type(rev).__name__}")
        oid = revisions.resolve(self.objects, self.refs, self.history, rev, head or self.refs.head())
        return self.objects.commit(oid)

    def log(
        self,
        rev: Revision = "HEAD",
        *,
        key: str | None = None,
        limit: int | None = None,
        head: Head | None = None,
    ) -> Log:
        """The commits from `rev` back, newest first; with `key`, those that changed it."""
        most = check_limit(limit)
        start = self.resolve(rev, head=head).oid

        def walk() -> Iterator[Commit]:
            if key is None:
                return islice(self.history.ancestors(start), most)
            return islice(self.history.touching(start, key), most)

        return Log(walk)

    def entry(self, root: ObjectId | None, key: str) -> Entry | None:
        """The entry of a key in a tree, None if absent; CorruptObject if it makes no sense."""
        data = tree.lookup(self.objects.node, root, key)
        return None if data is None else self.parse_entry(key, data)

    def entries(self, root: ObjectId | None, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        """The entries of the keys that begin with `prefix`, sorted, read as they are asked for."""
        for key, data in tree.scan(self.objects.node, root, prefix):
            yield key, self.parse_entry(key, data)

    def parse_entry(self, key: str, data: bytes) -> Entry:
        """The decoded entry; CorruptObject, naming the key, if it makes no sense."""
        try:
            return Entry.decode(data)
        except ValueError as error:
            raise CorruptObject(data.hex()[:64], f"the entry of {key!r}: {error}") from error

    def load(self, key: str, data: bytes, reader: Reader | None = None) -> Decoded:
        """The value of an entry, unpickled, and its chunks; CannotLoad names the key and the class."""
        try:
            return decode_value(
                self.parse_entry(key, data), reader or self.objects, allow=self.security.allow
            )
        except CannotLoad as error:
            raise CannotLoad(error.name, error.reason, key=key) from error

    def inspect(self, key: str, data: bytes, reader: Reader | None = None) -> object:
        """The value of an entry as plain data and records; runs nothing that is stored."""
        return inspect_value(self.parse_entry(key, data), reader or self.objects)

    def diff(self, old: ObjectId | None, new: ObjectId | None) -> Diff:
        """The keys in which two trees differ; values are unpickled when asked for, details never."""
        return self.make_diff(tree.diff(self.objects.nodes, old, new))

    def make_diff(self, changes: Iterable[KeyChange], reader: Reader | None = None) -> Diff:
        """A Diff of these changes, whose values are read from `reader`."""
        return Diff(
            changes,
            load=lambda key, data: self.load(key, data, reader).value,
            inspect=lambda key, data: self.inspect(key, data, reader),
        )

    def changes(self, commit: Commit) -> Diff:
        """What the commit changed, against its first parent; against nothing where gc cut that off."""
        self.require_trusted(commit)
        before = self.history.before(commit)
        return self.diff(before[0].tree if before else None, commit.tree)

    # Writing

    def build_commit(
        self,
        root: ObjectId | None,
        parents: Sequence[Commit],
        *,
        message: str = "",
        info: Mapping[str, Any] | None = None,
        events: Iterable[Event] = (),
    ) -> Commit:
        """A commit that is not stored yet, dated now, and after its parents whatever the clock says.

        It is signed if this program signs; ReadOnly if it trusts signed commits only, and signs none.
        """
        if not isinstance(message, str):
            raise TypeError(f"a commit message is a str, not {type(message).__name__}")
        time = datetime.now(UTC)
        for parent in parents:
            time = max(time, parent.time + _MICROSECOND)
        commit = Commit(
            tree=root,
            parents=tuple(parent.oid for parent in parents),
            time=time,
            message=plain(message, "message"),
            info=plain(dict(info or {}), "info"),
            events=tuple(events),
        )
        return self.security.signed(commit)

    def publish(
        self,
        branch: str,
        commits: Iterable[Commit],
        objects: NewObjects,
        nodes: Iterable[tuple[ObjectId, Node]],
        *,
        expected: ObjectId | None,
        action: str,
        needs: Sequence[ObjectId] = (),
        guard: Guard | None = None,
    ) -> bool:
        """Write the objects and the commits, and move the branch to the last of them, in one step.

        False if the branch was not at `expected`; nothing has moved then. `needs` are commits that are not
        known to be `expected` or before it, though the new objects rely on what they hold: NotFound if `gc`
        has removed one. With a `guard`, the branch moves only while that allows it, and it raises otherwise.
        """
        commits, nodes = list(commits), list(nodes)
        ref, last, needed = HEADS + branch, commits[-1], 1
        if self.refs.lifetimes.is_wanted(ref):
            needed = EXPIRY_FORMAT
        for _, node in nodes:
            if node.expiries is not None:
                needed = EXPIRY_FORMAT
        made = dict(objects)
        for commit in commits:
            made[commit.oid] = commit.as_object()
            if commit.signature:
                needed = max(needed, SIGNED_COMMITS)
        self.require_format(needed)
        rows: Mapping[str, bytes] = self.objects.stored(made)
        if not self.store.transactional:
            # All of it before anything names the commits: interrupted, this may leave any part of it.
            self.store.set_many(rows)
            rows = {}

        def move(sweep: Sweep | None) -> bool:
            with guard.rows() if guard is not None else _NO_ROWS as expecting:
                return self.refs.publish(
                    ref,
                    rows,
                    expected=expected,
                    new=last.oid,
                    action=action,
                    not_before=last.time,
                    sweep=sweep,
                    expecting=expecting,
                )

        try:
            done = self._keeping(needs, move)
        except StoreUnavailable as error:
            if not (error.outcome_unknown and self.has_landed(branch, last.oid)):
                raise
            done = True
        if not done and guard is not None:
            guard.check()
        if done:
            self.objects.remember(nodes, commits)
        return done

    def _prepare_lifetime(self, ref: str) -> None:
        """See to it that older programs, which would not know that the branch expires, refuse the store."""
        if self.refs.lifetimes.is_wanted(ref):
            self.require_format(EXPIRY_FORMAT)

    def _keeping(self, needs: Sequence[ObjectId], move: Callable[[Sweep | None], bool]) -> bool:
        """Move a ref, and see to it that `gc` removes nothing that the commits `needs` hold before it is
        done.

        No ref may lead to them yet, so they could be swept at any time. What a commit holds is swept after
        the commit itself: while it is there, and no sweep has come between, all of it is there.
        """
        if not needs:
            return move(None)
        while True:
            sweep = self.refs.sweep()
            for oid in needs:
                if not self._is_kept(oid):
                    raise NotFound(f"no commit {oid}: gc has removed it", name=str(oid))
            if move(sweep):
                return True
            if self.refs.sweep() == sweep:
                return False

    def _is_kept(self, oid: ObjectId) -> bool:
        """Whether the store has the commit, or gets it back: `gc` may have put it aside just as a ref came to
        it.
        """
        for _ in range(_LOOKS):
            if self.objects.is_stored(oid):
                return True
            if TRASH + oid.hex() not in self.store:
                break
            sleep(_PATIENCE / _LOOKS)
        return self.objects.is_stored(oid)

    def _move(
        self,
        ref: str,
        *,
        expected: ObjectId | None,
        to: ObjectId,
        action: str,
        rows: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Put a ref on a commit that may be reached from no other; False if it was not at `expected`."""
        self._prepare_lifetime(ref)
        return self._keeping(
            [to],
            lambda sweep: self.refs.publish(ref, rows, expected=expected, new=to, action=action, sweep=sweep),
        )

    def has_landed(self, branch: str, commit: ObjectId) -> bool:
        """Whether the branch holds the commit, though the write that put it there reported an error."""
        now = self.refs.read(HEADS + branch)
        return now is not None and (
            now == commit
            or (self.objects.find_commit(commit) is not None and self.history.is_ancestor(commit, now))
        )

    def _raise_moved(self, ref: str, expected: ObjectId | None) -> None:
        actual = self.refs.read(ref)
        raise RefMoved(
            ref,
            expected=None if expected is None else str(expected),
            actual=None if actual is None else str(actual),
        )
