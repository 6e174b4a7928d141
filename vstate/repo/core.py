"""Core: open, resolve, load, build, publish; and the verbs of branches, tags and HEAD."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from itertools import dropwhile, islice
from math import inf
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self
from weakref import WeakMethod

from vstate.arguments import check_count, check_flag, check_limit, check_several, check_text
from vstate.backoff import Backoff
from vstate.errors import (
    AlreadyExists,
    CorruptObject,
    CorruptStore,
    InvalidInput,
    NotFound,
    RefMoved,
    StorageError,
    StoreUnavailable,
    UnsupportedFormat,
)
from vstate.forks import Uncopied, cached_property
from vstate.kv.base import OBJECT_PREFIX, KVStore
from vstate.kv.encrypted import MARK as ENCRYPTION_MARK
from vstate.objects import tree
from vstate.objects.canonical import plain
from vstate.objects.commit import LATEST, ONE_SECOND, Commit, Event, microseconds, moment
from vstate.objects.ids import COMMIT, NewObjects, Object, ObjectId
from vstate.objects.tree import KeyChange, Node
from vstate.plural import counted
from vstate.repo.ahead import ItemsAhead
from vstate.repo.compare.diff import Diff
from vstate.repo.history import ROLLED_BACK, History, Log, rolled_back
from vstate.repo.names.refs import (
    HEADS,
    REFLOG,
    SWEEP,
    TAGS,
    Head,
    Move,
    Refs,
    absent,
    check_ref_name,
    rows_of_head,
)
from vstate.repo.names.revisions import Revisions, previous_checkout
from vstate.repo.objects import TRASH, Objects
from vstate.repo.packer import Packer
from vstate.repo.reflog_prefetch import ReflogPrefetch
from vstate.repo.rooms import Room, Rooms, mark_of, new_room, prefix_of
from vstate.repo.rules.labels import Atom, BranchIndex, Label
from vstate.repo.rules.leases import Leases
from vstate.repo.rules.policies import Policies
from vstate.repo.rules.security import Security
from vstate.repo.sweeps import retries_after_sweep, retry_after_sweep
from vstate.spans import Attributes, spanned, trace_id
from vstate.values.entry import (
    Decoded,
    Encoded,
    Entry,
    OneBlobEntry,
    Reader,
    decode_value,
    encode_value,
    parse_entry,
)
from vstate.values.inspection import shown_value

FORMAT = 1
"""The format that this version reads and writes."""
FORMAT_KEY = "format"
STAMP: Final = f"vstate {FORMAT}".encode()
"""The row of a store of this format. Before the first release it was a number alone."""
_a_format = re.compile(rb"(vstate )?([1-9][0-9]{0,7})\Z").match

TRACE = "trace"
"""In a commit's info: the id of the trace that the commit was made in."""

_PATIENCE = 0.5  # seconds for `gc` to bring a commit back from the trash
_SEGMENT_SECONDS = 0.1  # how long a commit may take to read an old history for the graph
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.05  # seconds

Revision = str | Commit | ObjectId

_NOTHING: Mapping[str, bytes | None] = MappingProxyType({})
_NO_LABELS: Mapping[str, Atom] = MappingProxyType({})


class Guard(Protocol):
    """A condition, besides the branch's position, under which a commit may land: a lease, for one.

    A store with transactions compares the guard's rows in the transaction that moves the branch. Any other
    store compares them right before.
    """

    @property
    def along(self) -> Sequence[Advance]:
        """Commits of other branches that land with the commit, or not at all."""

    def rows(self) -> AbstractContextManager[Mapping[str, bytes | None]]:
        """The values that the rows must have. This process changes them only after the with block.

        Raises if the commit is known to be forbidden.
        """

    def check(self) -> None:
        """Read the rows again; raise if the commit may not land."""


class Advance(NamedTuple):
    """New commits for a branch that is at `expected`, oldest first, and the objects and nodes in them."""

    branch: str
    commits: Sequence[Commit]
    objects: NewObjects
    nodes: Sequence[tuple[ObjectId, Node]]
    expected: ObjectId | None
    action: str
    rows: Mapping[str, bytes | None] = _NOTHING
    """Rows of the branch that change with it."""
    in_new_room: bool = False
    """Whether the branch, if it is new and has no history elsewhere, gets a room of its own."""


class Core(Uncopied):
    """The commits, branches, tags and HEAD of one store. Every operation stands on it.

    Opening reads one key and writes nothing. Raises UnsupportedFormat for a store of a newer vstate.
    """

    _instead = "open another one, over a store at the same path or URL"
    _objects_of: Callable[[KVStore], Objects] = Objects

    def __init__(
        self,
        store: KVStore,
        security: Security | None = None,
        *,
        stamp: bytes | None = None,
        all_rooms: bool = True,
        rooms: Rooms | None = None,
    ) -> None:
        """`stamp` is the row of the format, if it has been read, and `rooms` the view through which.

        Without `all_rooms` it has the refs and objects of room 0 only, and over a `Room` those of that room.
        """
        if not isinstance(store, KVStore):
            raise InvalidInput(
                f"a {type(self).__name__} is over a KVStore, not over a {type(store).__name__}: open the "
                "store first, with open_store(...)"
            )
        self.store = store
        self.rooms = rooms or (Rooms(store) if all_rooms and not isinstance(store, Room) else None)
        self.view: KVStore = self.rooms or store
        """The store with the refs and the objects of all rooms that this repository has."""
        self.security = security or Security()
        self.objects = self._objects_of(self.view)
        self.index = BranchIndex(store, self.objects)
        self.refs = Refs(self.view, self.index if self.index.kept else None)
        if self.rooms is not None:
            self.rooms.learner = WeakMethod(self._learn_ends)  # no part of it refers to itself
        self.beside: Callable[[float], None] | None = None
        """Called after a commit, with the seconds that it took."""
        self._is_stamped = stamp == STAMP or self._has_format(stamp)

    @classmethod
    def opened(cls, store: KVStore, security: Security, branch: str | None) -> tuple[Self, Head]:
        """The repository, and the position of a branch, or of HEAD, in one round trip."""
        rooms = Rooms(store)
        rows = rows_of_head(rooms, branch, FORMAT_KEY)
        core = cls(store, security, stamp=rows.get(FORMAT_KEY), rooms=rooms)
        return core, core.refs.head_in(rows, branch)

    def _has_format(self, stamp: bytes | None = None) -> bool:
        """Whether the store has this format; False for a new one. UnsupportedFormat for another."""
        stamp = stamp or self.store.get(FORMAT_KEY)
        if stamp is None:
            if self.store.get(ENCRYPTION_MARK) is not None:
                raise InvalidInput(
                    f"the store at {self.store.location} is encrypted: open it through "
                    f"Encrypted(store, key), or as encrypted:{self.store.location}?key_file=PATH"
                )
            return False
        if stamp == STAMP:
            return True
        found = _a_format(stamp)
        if found is None:
            reason = f"its format is no number but {stamp[:20]!r}"
            raise CorruptStore(self.store.location, reason, repairable=True)
        raise UnsupportedFormat(found[2].decode(), FORMAT, is_released=found[1] is not None)

    @cached_property
    def policies(self) -> Policies:
        """The merge policies of the branches."""
        return Policies(self.store, self.security.find_policy)

    @cached_property
    def _packer(self) -> Packer | None:
        return Packer(self.store) if self.store.keeps_packs else None

    @cached_property
    def history(self) -> History:
        """The commits as a graph: many programs need no more than the newest ones."""
        # Read ahead from a server only: on a disk, reading the reflog takes longer than reading one by one.
        trail = ReflogPrefetch(self.objects, self.refs).commits if self.store.remote else None
        return History(self.objects, trail, exact=self.security.trust is not None)

    def _learn_ends(self, rows: Iterable[tuple[str, bytes]]) -> None:
        self.history.learn_ends(rows)

    @property
    def leases(self) -> Leases:
        """The leases of the store."""
        return Leases(self.store)

    def stamp(self) -> None:
        """Write the format into a new store, so that programs of another format refuse it."""
        while not self._is_stamped:
            stamped = self.store.compare_and_swap(FORMAT_KEY, None, STAMP)
            self._is_stamped = stamped or self._has_format()

    def require_trusted(self, commit: Commit) -> None:
        """Raise UntrustedCommit unless this program may unpickle the commit's values and build upon them."""
        if self.security.trust is not None:
            self.security.require_trusted(commit, self.history, self.refs)

    # Reading

    @retries_after_sweep
    def resolve(self, rev: Revision, *, head: Head | None = None) -> Commit:
        """The commit that a revision names; NotFound or InvalidInput, with candidates, if it names none.

        `head` is the meaning of HEAD, by default the store's own.
        """
        if isinstance(rev, Commit):
            rev = rev.oid
        if isinstance(rev, ObjectId):
            found = self.objects.find_current(rev)
            if found is None:
                raise NotFound(f"no commit {rev}", name=str(rev))
            return found
        if not isinstance(rev, str):
            raise TypeError(f"a revision is a str or a Commit, not {type(rev).__name__}")
        revisions = Revisions(self.objects, self.refs, self.history)
        return self.objects.commit(revisions.resolve(rev, head or self.refs.head()))

    def log(
        self,
        rev: Revision = "HEAD",
        *,
        since: Revision | None = None,
        key: str | None = None,
        limit: int | None = None,
        first_parent: bool = False,
        head: Head | None = None,
    ) -> Log:
        """The commits from `rev` back, newest first; with `key`, those that changed the key.

        Without the commit `since` and its ancestors. With `first_parent`, those along first parents only.
        """
        most = check_limit(limit)
        start = self.resolve(rev, head=head).oid
        ends = [] if since is None else [self.resolve(since, head=head).oid]

        def walk() -> Iterator[Commit]:
            found = self._outside(start, ends, first_parent)
            if key is not None:
                found = filter(partial(self._changes_key, key, first_parent), found)
            try:
                yield from islice(found, most)
            except CorruptObject:
                for named in (rev, since or rev):
                    self.require_stored(self.resolve(named, head=head).oid)
                raise

        return Log(walk)

    def _outside(self, start: ObjectId, ends: Sequence[ObjectId], first_parent: bool) -> Iterator[Commit]:
        """As `History.outside`. If gc shortens the history meanwhile, it goes on with what stays."""
        missing, order = "", inf
        same: set[ObjectId] = set()  # those of that order that were given
        while True:
            try:
                for commit in self.history.outside([start], ends, first_parent=first_parent):
                    if commit.order < order:
                        order, same = commit.order, set()
                    elif commit.order > order or commit.oid in same:
                        continue
                    same.add(commit.oid)
                    yield commit
                return
            except CorruptObject as error:
                # Links in memory may lead to commits that were removed long ago.
                if error.id == missing:
                    raise
                missing = error.id
                self.history.reload()

    def _changes_key(self, key: str, first_parent: bool, commit: Commit) -> bool:
        changes = partial(self.history.changes_key, commit, key, first_parent=first_parent)
        return retry_after_sweep(self, changes, [commit])

    @retries_after_sweep
    def merge_base(self, one: Revision, other: Revision, head: Head | None = None) -> Commit | None:
        """The newest common ancestor that a merge of the two would begin at; None for unrelated histories."""
        commits = [self.resolve(rev, head=head).oid for rev in (one, other)]
        bases = self.history.merge_bases(*commits)
        return self.objects.commit(bases[0]) if bases else None

    def entry(self, root: ObjectId | None, key: str) -> Entry | None:
        """The entry of a key in a tree, None if absent; CorruptObject if it cannot be decoded."""
        data = tree.lookup(self.objects.node, root, key)
        return None if data is None else self.parse_entry(key, data)

    def entries(self, root: ObjectId | None, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        """The entries of the keys that begin with `prefix`, sorted, read as the iterator reaches them."""
        for key, data in tree.scan(self.objects.nodes, root, prefix):
            yield key, self.parse_entry(key, data)

    parse_entry = staticmethod(parse_entry)

    def load(self, key: str, data: bytes, reader: Reader | None = None) -> Decoded:
        """The value of an entry, unpickled, and its chunks; CannotLoad names the key and the class."""
        entry = OneBlobEntry.find(data) or self.parse_entry(key, data)
        return decode_value(entry, reader or self.objects, allow=self.security.allow, key=key)

    def encode(self, value: Any) -> Encoded:
        """The merged value of a key as an entry, and its objects."""
        return encode_value(value)

    def inspect(self, key: str, data: bytes, reader: Reader | None = None) -> object:
        """The value of an entry as plain data and records, a File as text or bytes; runs no stored code."""
        return shown_value(self.parse_entry(key, data), reader or self.objects)

    def diff(self, old: ObjectId | None, new: ObjectId | None, of: Collection[Commit] = ()) -> Diff:
        """The keys in which two trees differ. `old` and `new` of a change unpickle; `details` does not.

        `of` are the commits of the trees. If gc has removed one, a value that is missing raises NotFound.
        """
        return self.make_diff(tree.diff(self.objects.nodes_once, old, new), of=of)

    def make_diff(
        self, changes: Iterable[KeyChange], reader: Reader | None = None, of: Collection[Commit] = ()
    ) -> Diff:
        """A Diff of these changes, whose values come from `reader`; `of` as for `diff`."""
        found = {change.key: change for change in changes}
        reader = reader or self.objects
        old = ItemsAhead(((key, c.old) for key, c in found.items() if c.old is not None), reader)
        new = ItemsAhead(((key, c.new) for key, c in found.items() if c.new is not None), reader)

        def read(how: Callable[[str, bytes, Reader], Any], key: str, data: bytes) -> Any:
            reader = new if found[key].new is data else old
            return retry_after_sweep(self, lambda: how(key, data, reader.of(key)), of)

        return Diff(
            found.values(),
            load=lambda key, data: read(self.load, key, data).value,
            inspect=partial(read, self.inspect),
        )

    @retries_after_sweep
    def changes(self, commit: Commit) -> Diff:
        """The commit's changes against its first parent; against nothing where gc cut the history off."""
        self.require_trusted(commit)
        self.history.read_changes_ahead(commit)
        before, root = self.history.before(commit), commit.root  # the newer first: a reader then knows both
        return self.diff(before[0].root if before else None, root, [*before[:1], commit])

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
        """A commit that is not stored yet, dated now, and in order after its parents.

        It is signed if this program signs. Inside a trace of OpenTelemetry, its info gets the id of the
        trace. Raises ReadOnly if the program trusts signed commits only and has no key.
        """
        if not isinstance(message, str):
            raise TypeError(f"a commit message is a str, not {type(message).__name__}")
        time, ids = datetime.now(UTC), []
        clock = order = microseconds(time)
        if clock > LATEST:
            raise InvalidInput(f"the clock of this machine says {time:%Y-%m-%d}: set it, and commit again")
        for parent in parents:
            order = max(order, parent.order + 1)
            ids.append(parent.oid)
        if 0 < order - clock < ONE_SECOND:  # commits in quick succession, and clocks that almost agree
            time = moment(order)
        if (trace := trace_id()) is not None:
            info = {TRACE: trace, **(info or {})}
        commit = Commit(
            root=root,
            parent_ids=tuple(ids),
            time=time,
            message=message if message.isascii() else plain(message, "message"),
            info=plain(dict(info), "info") if info else {},
            events=tuple(events),
            order=order,
        )
        is_unsigned = self.security.key is None and self.security.trust is None  # nearly every program's
        return commit if is_unsigned else self.security.signed(commit)

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
        """Write the objects and the commits, and move the branch to the last commit, in one step.

        False, and the branch has not moved, if it was not at `expected`. `needs` are commits outside the
        history of `expected` whose contents the new objects rely on: NotFound if `gc` has removed one. With
        a `guard`, the branch moves only while the guard allows it; otherwise the guard raises.
        """
        advance = Advance(branch, list(commits), objects, list(nodes), expected, action)
        return self.publish_all([advance], needs=needs, guard=guard)

    @spanned("publish", lambda done, core, advances, **_: _commit_attributes(done, advances))
    def publish_all(
        self,
        advances: Sequence[Advance],
        *,
        expecting: Mapping[str, bytes | None] = _NOTHING,
        needs: Sequence[ObjectId] = (),
        guard: Guard | None = None,
    ) -> bool:
        """As `publish`, for several branches: all of them move, or none.

        False also if a row differs from its value in `expecting`. Several branches take a store with
        transactions: InvalidInput for any other, with nothing written.
        """
        if guard is not None:
            advances = [*advances, *guard.along]
        if len(advances) > 1:
            self._require_transactions(advances)
        began = monotonic()
        rows: dict[str, bytes | None] = {}
        moves, made = [], []
        for branch, commits, _, _, expected, action, own, in_new_room in advances:
            room = None if expected is None or self.rooms is None else self.rooms.known.get(HEADS + branch)
            if room is None:
                room = self._room_for(HEADS + branch, expected, commits[0].parent_ids[:1], in_new_room)
            rows |= own
            moves.append(Move(HEADS + branch, expected, commits[-1].oid, action, commits[-1].order, room))
        are_apart = len(moves) > 1 and len({move.room for move in moves}) > 1
        for advance, move in zip(advances, moves, strict=True):
            objects, new = self._rows_of(advance)
            made.append(new)
            if are_apart or not self.store.transactional:
                objects = {prefix_of(move.room or 0) + key: row for key, row in objects.items()}
            if self.store.transactional:
                rows |= objects
            else:
                # Before the ref: an interrupted write leaves only objects that nothing names.
                self.store.set_many(objects)
        try:
            done = self._move_refs(moves, rows, expecting, needs, guard)
        except StoreUnavailable as error:
            self._require_landed(advances[0], error)
            done = True
        if not done and guard is not None:
            guard.check()
        if done:
            for advance, move, objects_made in zip(advances, moves, made, strict=True):
                self.objects.remember(advance.nodes, advance.commits)
                if self._packer is not None:
                    self._packer.note(move.room or 0, objects_made, advance.branch, advance.commits[-1])
            if self.beside is not None:
                self.beside(monotonic() - began)
        return done

    def _require_transactions(self, advances: Sequence[Advance]) -> None:
        if not self.store.transactional:
            raise InvalidInput(
                f"{self.store.location} has no transactions, so it cannot move several branches as one "
                f"({', '.join(advance.branch for advance in advances)}): commit to one branch at a time, or "
                "use a store such as Disk, PostgreSQL or Redis"
            )

    def _require_landed(self, advance: Advance, error: StoreUnavailable) -> None:
        """Raise the error of a move, unless its outcome was unknown and the branch has moved.

        One branch that has moved says that all have.
        """
        try:
            landed = error.outcome_unknown and self.has_landed(advance.branch, advance.commits[-1].oid)
        except StorageError as failure:
            raise error from failure  # the outcome stays unknown
        if not landed:
            raise error

    def _room_for(
        self, ref: str, expected: ObjectId | None, before: Sequence[ObjectId], in_new_room: bool = False
    ) -> int:
        """The number of the room of a ref, or of its reflog if it was deleted.

        Any other new ref gets that of the commit `before` it, or a new one.
        """
        if self.rooms is None:
            return 0
        if in_new_room and not before and self.rooms.is_new(ref):
            return new_room()
        number = self.rooms.room_of(ref)
        if number or expected is not None:
            return number
        for oid in before:
            number = self.rooms.room_of_object(OBJECT_PREFIX + oid.hex())
            # No row names a reflog that a deleted ref left in room 0. To find it, keys must have an order.
            lines = self.store.keys(f"{REFLOG}{ref}:") if number and self.store.ordered else ()
            return 0 if any(True for _ in lines) else number
        # Without transactions the two rows of a ref could not be written as one.
        return new_room() if in_new_room and self.store.transactional else 0

    def _rows_of(self, advance: Advance) -> tuple[dict[str, bytes], NewObjects]:
        """The rows of new objects and commits, and the objects.

        The store is stamped before it gets any. Where each key takes a request, the segments of the graph
        that end at these commits go with them; elsewhere `gc` writes all segments.
        """
        if not self._is_stamped:
            self.stamp()
        made = dict(advance.objects)
        for commit in advance.commits:
            made[commit.oid] = Object(COMMIT, commit.body)
        rows = self.objects.stored(made)
        for commit in advance.commits if self.history.has_ranks else ():
            if self.history.is_tip(commit.oid):
                rows |= self._segment(advance.commits, commit)
        return rows, made

    def _move_refs(
        self,
        moves: Sequence[Move],
        rows: Mapping[str, bytes | None],
        expecting: Mapping[str, bytes | None],
        needs: Sequence[ObjectId],
        guard: Guard | None = None,
    ) -> bool:
        """Move the refs only if `gc` has removed nothing that the commits `needs` hold.

        No ref may reach these commits yet, so `gc` may sweep them at any time. It sweeps a commit before
        the commit's contents. So if the commit is stored, and no sweep comes in between, its contents are
        stored too.
        """
        rooms = {move.room or 0 for move in moves} if needs else ()
        sweep = dict[str, bytes | None]()
        while True:
            brought: Mapping[str, bytes | None] = _NOTHING
            if needs:
                sweep = self._sweeps_in(rooms)
                for oid in needs:
                    brought = {**brought, **self._require_in(rooms, oid)}
            conditions = {**expecting, **sweep}
            rows = {**rows, **brought}
            if guard is None:
                done = self.refs.publish_all(moves, rows, conditions)
            else:
                with guard.rows() as guarded:
                    done = self.refs.publish_all(moves, rows, {**conditions, **guarded})
            if done or not needs or all(self.store.get(key) == mark for key, mark in sweep.items()):
                return done

    def _sweeps_in(self, rooms: Iterable[int]) -> dict[str, bytes | None]:
        """The marks of the last sweeps of rooms, as conditions of a transaction."""
        return {
            prefix_of(room) + SWEEP: mark_of(Room(self.store, room) if room else self.store) for room in rooms
        }

    def _require_in(self, rooms: Collection[int], oid: ObjectId) -> Mapping[str, bytes | None]:
        """As `require_stored`, in one of these rooms. A commit of another one is copied, as a push does.

        The rows to write with the ref.
        """
        names = [prefix_of(room) + OBJECT_PREFIX + oid.hex() for room in rooms]
        for name in names:
            self.store.forget(name)  # only the store itself counts, not a cache in front of it
        if self.store.present(names):
            return _NOTHING
        self.require_stored(oid)
        if self.rooms is None or self.store.present(names):
            return _NOTHING
        return self._bring(next(iter(rooms)), oid)

    def _bring(self, room: int, oid: ObjectId) -> Mapping[str, bytes | None]:
        """Copy a commit, with all that it needs, into a room; the rows to write with the ref."""
        raise NotFound(f"no commit {oid} in room {room}", name=str(oid))

    def home(self, ref: str) -> Core:
        """The room of a ref as a repository of its own; this one, if it is one room itself."""
        if self.rooms is None:
            return self
        return self.room(self.rooms.room_of(ref))

    def room(self, number: int, copy: KVStore | None = None) -> Core:
        """One room as a repository of its own: it has its refs and objects, and none of other rooms.

        With a `copy` of the room, it is over the copy.
        """
        stamp = STAMP if self._is_stamped or copy is not None else None
        store = copy or (Room(self.store, number) if number else self.store)
        return Core(store, self.security, stamp=stamp, all_rooms=False)

    def _segment(self, made: Sequence[Commit], commit: Commit) -> Mapping[str, bytes]:
        """The row of the segment of the graph that ends at a commit, one of those that were made."""
        self.objects.remember((), made[:-1])  # those below a merge are not stored yet
        try:
            return self.history.segment(commit, seconds=_SEGMENT_SECONDS)
        except StorageError:
            return {}  # old damage far back in the history is no reason to refuse a commit

    def has_landed(self, branch: str, commit: ObjectId) -> bool:
        """Whether the branch holds the commit, although the write reported an error."""
        now = self.refs.read(HEADS + branch)
        return now is not None and self.is_behind(commit, now)

    def is_behind(self, commit: ObjectId, head: ObjectId) -> bool:
        """Whether a commit, which may not be stored, is `head` or one of its ancestors."""
        return commit == head or (
            self.objects.find_commit(commit) is not None and self.history.is_ancestor(commit, head)
        )

    def swap_branch(self, branch: str, old: Commit | None, new: Commit, *, action: str) -> None:
        """Move a branch from one commit to another, without a new commit; RefMoved if it is not at `old`."""
        expected = None if old is None else old.oid
        if not self.move(HEADS + branch, expected=expected, to=new.oid, action=action):
            raise self.ref_moved(HEADS + branch, expected)

    def require_at(self, branch: str, seen: Commit | None) -> None:
        """Raise RefMoved if another writer moved the branch since it was at `seen`."""
        expected = None if seen is None else seen.oid
        if self.refs.read(HEADS + branch) != expected:
            raise self.ref_moved(HEADS + branch, expected)

    def ref_moved(self, ref: str, expected: ObjectId | None, *, rewritten: bool = False) -> RefMoved:
        """The error for a ref that another writer moved."""
        actual = self.refs.read(ref)
        return RefMoved(
            ref,
            expected=None if expected is None else str(expected),
            actual=None if actual is None else str(actual),
            rewritten=rewritten,
        )

    def move(
        self,
        ref: str,
        *,
        expected: ObjectId | None,
        to: ObjectId,
        action: str,
        rows: Mapping[str, bytes | None] = _NOTHING,
    ) -> bool:
        """Put a ref on a commit that perhaps no other ref reaches; False if the ref was not at `expected`."""
        room = self._room_for(ref, expected, [to])
        return self._move_refs([Move(ref, expected, to, action, None, room)], rows, _NOTHING, [to])

    def require_stored(self, oid: ObjectId) -> None:
        """Raise NotFound if the store has no such commit.

        Waits a moment if `gc`, having met a ref to it, may bring it back.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, seconds=_PATIENCE)
        while not self.objects.is_stored(oid):
            if TRASH + oid.hex() not in self.view or not backoff.pause():
                if self.objects.is_stored(oid):  # gc may have brought it back in between
                    return
                raise NotFound(f"no commit {oid}: gc has removed it", name=str(oid))

    # Branches

    def newest(self, branch: str, known: Commit | None = None) -> Commit | None:
        """The newest commit of a branch, None if there is no such branch; `known` itself, if it is that."""
        ref = HEADS + (check_ref_name(branch) if known is None else branch)
        at = None if known is None else known.oid
        while (oid := self.refs.read(ref, at)) is not None:
            try:
                return known if oid is at else self.objects.commit(oid)
            except CorruptObject:
                if self.refs.read(ref) == oid:
                    raise
        return None

    def commit_at(self, head: Head) -> Commit | None:
        """The commit of a head that was just read; the newest one of its branch if the branch has moved."""
        try:
            return None if head.commit is None else self.objects.commit(head.commit)
        except CorruptObject:
            if head.branch is None or self.refs.read(HEADS + head.branch) == head.commit:
                raise
            return self.newest(head.branch)

    def branch(self, name: str) -> Commit:
        """The newest commit of a branch; NotFound, with similar names, if there is no such branch."""
        commit = self.newest(name)
        if commit is None:
            no = "no commit yet on" if self.refs.head().branch == name else "no"
            raise absent(f"{no} branch {name!r}", name, self.refs.names(HEADS), "branch", "vstate branch")
        return commit

    def branch_at(self, name: str, seen: Commit | None) -> Commit:
        """As `branch`; RefMoved if it is not at `seen`."""
        commit = self.branch(name)
        if seen is not None and commit.oid != seen.oid:
            raise self.ref_moved(HEADS + name, seen.oid)
        return commit

    def branches(self, names: Iterable[str] | None = None) -> dict[str, Commit]:
        """The newest commit of each branch, or of those of `names` that exist, by name."""
        if names is not None and not isinstance(names, str):
            names = list(names)  # they may be read twice
        return self._commits_of(lambda: self._ids(names))

    def _commits_of(self, refs: Callable[[], Mapping[str, ObjectId]]) -> dict[str, Commit]:
        """The commits of refs. A ref may move on, and its commit be forgotten, before the commit is read."""
        while True:
            ids = refs()
            try:
                return dict(zip(ids, self.objects.commits(list(ids.values())), strict=True))
            except CorruptObject as error:
                if error.id in map(str, refs().values()):
                    raise

    def branch_ids(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """As `branches`, with the ids of the commits only: no commit is read."""
        return {name: str(oid) for name, oid in self._ids(names).items()}

    def _ids(self, names: Iterable[str] | None) -> dict[str, ObjectId]:
        if names is None:
            return self.refs.list(HEADS)
        asked = list(dict.fromkeys(check_several(names, "the call", "names")))
        found = self.refs.read_many([HEADS + name for name in asked])
        return {name: oid for name, oid in zip(asked, found, strict=True) if oid is not None}

    def branch_names(
        self,
        prefix: str = "",
        *,
        labels: Mapping[str, Atom] = _NO_LABELS,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[str]:
        """The names of the branches that begin with `prefix`, sorted; reads neither refs nor commits.

        Only those that have all of `labels`. At most `limit` names, from the last one back if `reverse`.
        `after` is the last name of the page before, and need not exist. With `branches(names)` or
        `branch_ids(names)` a page gets its commits.
        """
        check_flag("reverse", reverse)
        most = check_limit(limit)
        check_text("prefix", prefix)
        check_text("after", after or "")
        found = self.index.find(labels, prefix) if labels else self.refs.each_name(HEADS, prefix)
        if reverse:
            names = list(found)
            return names[: None if after is None else bisect_left(names, after)][::-1][:most]
        return list(islice(found if after is None else dropwhile(after.__ge__, found), most))

    def newest_branches(self, prefix: str = "") -> Iterator[tuple[str, Commit]]:
        """The branches that begin with `prefix`, with their newest commits; the newest of these first.

        Each is read when the iterator comes near it, in a store that has transactions and ordered keys.
        """
        if not self.index.kept:
            yield from _newest_first(self.branches(self.refs.names(HEADS, prefix)))
            return
        seen = set[str]()
        for least in self.index.newest(check_text("prefix", prefix)):
            for name, commit in _newest_first(self.branches(least)):
                # One that got a commit meanwhile comes late; one that went back comes again.
                if name not in seen and least[name] <= commit.order:
                    seen.add(name)
                    yield name, commit

    def labels(self, names: Iterable[str] | None = None) -> dict[str, dict[str, Label]]:
        """The labels of all branches, or of those of `names`; of those that have some, by name.

        `commit(branch, labels={...})` sets them, and `branch_names(labels={...})` finds branches by them.
        """
        there = self._ids(names) if names is not None else self.refs.names(HEADS)
        return {name: row.labels for name, row in self.index.read(there).items()}

    def labels_at(self, branch: str, head: ObjectId | None = None) -> dict[str, Label] | None:
        """The labels of a branch; with `head`, only those that this very commit set as it became the head."""
        row = self.index.read([branch]).get(branch)
        return row.labels if row is not None and head in (None, row.at) else None

    def possible_branches(self, labels: Mapping[str, str], prefix: str = "") -> list[str]:
        """The names of the branches that begin with `prefix`, without those that lack one of the labels.

        A branch whose newest commit set no labels may have any. So labels that a program sets with each of
        its commits are an index that is never behind: a branch that something else has moved, a pull or a
        reset, is a possible one. A label True stands for any text, and under the empty name for any text of
        any name.
        """
        return self.index.possible(labels, prefix) if labels else self.branch_names(prefix)

    def create_branch(
        self, name: str, at: Revision = "HEAD", *, head: Head | None = None, like: str | None = None
    ) -> Commit:
        """A new branch at a revision, with the policies and labels of the branch `like`; AlreadyExists."""
        commit = self.resolve(at, head=head)
        check_ref_name(name)
        rows = {} if like is None else self.rows_like(name, like)
        action = f"branch: created from {at if isinstance(at, str) else commit.short}"
        if not self.move(HEADS + name, expected=None, to=commit.oid, action=action, rows=rows):
            raise _name_taken(name)
        return commit

    def rows_like(self, new: str, like: str) -> dict[str, bytes | None]:
        """The rows that give the branch `new` the merge policies and labels of the branch `like`."""
        return self.policies.rows_for(new, like) | self.index.rows_for(new, like)

    def delete_branch(self, name: str, *, seen: Commit | None = None) -> Commit:
        """Delete a branch other than HEAD's; its newest commit, which the reflog keeps."""
        commit = self.branch_at(name, seen)
        if self.refs.head().branch == name:
            raise InvalidInput(f"HEAD is on branch {name!r}; switch to another branch before deleting it")
        self._delete_branch(name, commit, "branch: deleted")
        return commit

    def _delete_branch(self, name: str, commit: Commit, action: str) -> None:
        """Delete a branch with its policies; RefMoved if it is not at the commit."""
        rows = self.policies.rows_without(name)
        if not self.refs.compare_and_swap(
            HEADS + name, expected=commit.oid, new=None, action=action, rows=rows
        ):
            raise self.ref_moved(HEADS + name, commit.oid)

    def rename_branch(self, old: str, new: str) -> Commit:
        """Rename a branch, and move HEAD along; AlreadyExists if the name is taken.

        Raises RefMoved, and leaves both branches, if a commit reached the old one meanwhile. A rename that
        was cut short, or whose answer was lost, goes on where it was when it is called again.
        """
        commit = self.branch(old)
        rows = self.rows_like(check_ref_name(new), old)
        created = f"branch: renamed from {old}"
        if not self.move(HEADS + new, expected=None, to=commit.oid, action=created, rows=rows):
            last = next(self.refs.reflog(HEADS + new), None)
            if last is None or (last.new, last.action) != (commit.oid, created):
                raise _name_taken(new)
        follows = self.refs.head().branch == old
        if follows:
            self.refs.set_head(branch=new, action=f"branch: renamed {old} to {new}")
        try:
            self._delete_branch(old, commit, f"branch: renamed to {new}")
        except RefMoved:
            if follows:
                self.refs.set_head(branch=old, action=f"branch: not renamed to {new}")
            raise
        return commit

    def move_branch(self, name: str, rev: Revision, *, seen: Commit | None = None) -> Commit:
        """Put an existing branch on another commit; the reflog keeps the old one.

        Raises RefMoved if another writer moved the branch meanwhile, or since it was at `seen`.
        """
        old, target = seen or self.branch(name), self.resolve(rev)
        self.swap_branch(name, old, target, action=f"reset: to {target.short}")
        return target

    def steps_back(self, start: Commit, steps: int) -> Commit:
        """The commit so many steps before `start`; NotFound if there is none.

        A rollback counts as the commit that it went back to.
        """
        check_count("steps", steps, 0)
        count, at = 0, start
        for _, before in islice(self.history.going_back(start), steps):
            if before is None:
                break
            count, at = count + 1, before
        if count < steps:
            raise NotFound(
                f"{start.short} has {counted(count, 'step')} before it, which is fewer than {steps}",
                name=f"{start.short}~{steps}",
            )
        return at

    @retries_after_sweep
    def rollback(
        self, branch: str, rev: Revision, *, message: str = "", seen: Commit | None = None
    ) -> Commit:
        """A new commit on the branch with the state of `rev`; the commits between stay in history.

        Raises RefMoved if another writer moved the branch meanwhile, or since it was at `seen`.
        """
        old = seen or self.branch(branch)
        target = self.resolve(rev)
        self.require_trusted(old)
        self.require_trusted(target)
        info = {ROLLED_BACK: rolled_back(target)}
        message = message or _rollback_message(target)
        commit = self.build_commit(target.root, (old,), message=message, info=info)
        action = f"rollback: to {target.short}"
        if not self.publish(branch, [commit], {}, [], expected=old.oid, action=action, needs=[target.oid]):
            raise self.ref_moved(HEADS + branch, old.oid)
        return commit

    # Tags and HEAD

    def tags(self) -> dict[str, Commit]:
        """The commit of each tag, by name."""
        return self._commits_of(lambda: self.refs.list(TAGS))

    def create_tag(self, name: str, rev: Revision = "HEAD", *, head: Head | None = None) -> Commit:
        """A new tag at a revision; AlreadyExists if the name is taken."""
        commit = self.resolve(rev, head=head)
        ref = TAGS + check_ref_name(name, "tag")
        if not self.move(ref, expected=None, to=commit.oid, action="tag: created"):
            raise AlreadyExists(f"there is a tag {name!r} already; delete it first to move it", name=name)
        return commit

    def delete_tag(self, name: str) -> Commit:
        """Delete a tag; the commit it named."""
        ref = TAGS + check_ref_name(name, "tag")
        oid = self.refs.read(ref)
        if oid is None:
            raise absent(f"no tag {name!r}", name, self.refs.names(TAGS), "tag", "vstate tag")
        if not self.refs.compare_and_swap(ref, expected=oid, new=None, action="tag: deleted"):
            raise self.ref_moved(ref, oid)
        return self.objects.commit(oid)

    def checkout(self, target: str) -> Head:
        """Put HEAD on the branch of that name, or else detach it at the commit that the revision names.

        As in git, `-` is the branch or commit that HEAD was on before.
        """
        head = self.refs.head()
        if target == "-":
            target = previous_checkout(self.refs)
        is_there = self.refs.read(HEADS + target) is not None
        if is_there or target == head.branch:
            self.take_head(check_ref_name(target), "checkout", existing=is_there)
        else:
            commit = self.resolve(target)
            action = f"checkout: to {commit.short}"
            while True:
                # HEAD belongs to the whole store, and no room but 0 may be needed from outside.
                sweep, rows = self._sweeps_in([0]), self._require_in([0], commit.oid)
                if self.refs.set_head(commit=commit.oid, action=action, expecting=sweep, rows=rows):
                    break
        return self.refs.head()

    def take_head(self, branch: str, verb: str, *, existing: bool = True) -> None:
        """Put HEAD on a branch; NotFound if it has to be an `existing` one and is gone by now."""
        if not self.refs.set_head(branch=branch, action=f"{verb}: to {branch}", existing=existing):
            raise NotFound(f"no branch {branch!r}: it was deleted meanwhile", name=branch)


def _commit_attributes(done: bool, advances: Sequence[Advance]) -> Attributes:
    bodies = [made.body for advance in advances for made in advance.objects.values()]
    bodies += [commit.body for advance in advances for commit in advance.commits]
    size = sum(map(len, bodies))
    return {"done": done, "branches": len(advances), "objects": len(bodies), "bytes": size}


def _rollback_message(target: Commit) -> str:
    nested = target.message.startswith("Rollback to ")
    return f"Rollback to {target.short}" + ("" if nested or not target.message else f" {target.message}")


def _name_taken(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"there is a branch {name!r} already; choose another name or delete it first", name=name
    )


def _newest_first(branches: Mapping[str, Commit]) -> list[tuple[str, Commit]]:
    return sorted(branches.items(), key=lambda item: (item[1].order, item[0]), reverse=True)
