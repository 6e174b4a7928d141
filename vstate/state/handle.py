"""Handle: the values of one branch in hand, and where on the branch they are.

Two attributes hold all that lasts: `at`, an immutable position, and the slots of its hand. Every operation
settles the rest of an earlier one, makes a plan, assigns one new position, and then takes the steps of that
position. So an exception leaves the handle before the operation or after it, and the next call finds out
where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from heapq import merge
from threading import Lock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet, ref

from vstate.arguments import check_new_key, check_state_key
from vstate.errors import (
    CorruptObject,
    DetachedHead,
    InvalidInput,
    RefMoved,
    StoreUnavailable,
    UncommittedChanges,
    Unpicklable,
    VStateError,
)
from vstate.forks import is_mine, renew_in_child
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit, Event
from vstate.objects.expiry import EXPIRING, Expiry, split_expiry
from vstate.objects.ids import ObjectId
from vstate.objects.stream import Chunks
from vstate.objects.tree import KeyChange
from vstate.repo.ahead import EntryPrefetch
from vstate.repo.compare.diff import Diff
from vstate.repo.core import Revision
from vstate.repo.names.refs import HEAD, HEADS, Head
from vstate.repo.repository import Repository
from vstate.repo.sweeps import retry_after_sweep
from vstate.state.base import Companion, StateHandle, make_expiry, missing
from vstate.state.plan import Plan, make_plan, out_of_reach
from vstate.state.position import Position, Savepoint, restore
from vstate.state.slots import (
    ABSENT,
    FORGET,
    KEEP_BYTES,
    KEEP_BYTES_EACH,
    LOOK_BYTES,
    NO_ENTRIES,
    UNASKED,
    UNREAD,
    UNTOUCHED,
    Base,
    Mark,
    Slot,
    SlotTable,
)
from vstate.state.tracking import CONTAINERS, IMMUTABLE, is_immutable
from vstate.state.turns import OVER, end, is_live
from vstate.values.entry import ONE_BLOB, SHORT_PLAIN, OneBlobEntry, decode_value, encode_unchecked
from vstate.values.inspection import describe
from vstate.values.pickle_errors import own_error
from vstate.values.same_value import copies_are_alike

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Handle(StateHandle):
    """The working tree of one branch. Threads may share it: `lock` is held around everything but cached
    reads.

    `turns` says whose transaction may run. `follows_head` means that the handle goes where the store's HEAD
    goes.
    """

    def __init__(self, repo: Repository, head: Head, *, follows_head: bool) -> None:
        self.repo = repo
        self.follows_head = follows_head
        super().__init__()
        # As `is_mine`, without a call of Python for each commit.
        self._is_inside: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.watches: WeakSet[Any] = WeakSet()
        self.companions: tuple[Companion, ...] = ()
        """What goes with this state outside of it. Each is asked before changes are looked for."""
        self.contended = (0.0, 0.0)
        """Until when updates begin with a pause, by the monotonic clock, and the pause's most seconds."""
        self.created: tuple[str, ObjectId] | None = None
        """The branch that `switch` was about to create, and its commit: a repeated call may find it there."""
        commit = repo.commit_at(head)
        if commit is not None:
            repo.require_trusted(commit)
        table = SlotTable()
        self.at = Position(table.cache, table, commit, head.branch)
        self.ahead = EntryPrefetch(repo.objects, loads=repo.security.allow is None)
        self.operation = OVER
        self._comparing = OVER
        renew_in_child(self, Handle.renew)

    @property
    def head(self) -> Commit | None:
        """The commit that the next one is made on; None before the first."""
        return self._settled().head

    @property
    def branch(self) -> str | None:
        """The branch that a commit moves; None when HEAD is detached."""
        return self._settled().branch

    @property
    def tree(self) -> ObjectId | None:
        """The root of the tree that the slots differ from."""
        head = self.at.head
        return None if head is None else head.root

    def title(self) -> str:
        """The line that begins the readable form; it asks no store."""
        at = self.at
        where = f"branch {at.branch!r}" if at.branch else "detached HEAD"
        commit = f"at {at.head.short}" if at.head else "without a commit yet"
        return f"Versioned({self.repo.store.location}) on {where} {commit}"

    def trusted(self, commit: Commit) -> Commit:
        """The commit; UntrustedCommit if its values may not be unpickled here."""
        self.repo.require_trusted(commit)
        return commit

    # Running operations

    def alone(self, operation: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
        """Call the operation with the lock held, when no other thread's transaction is open.

        Raises InvalidInput from inside another call on this handle: from a signal handler, say.
        """
        token = Lock()
        try:
            with token:
                self.turns.take(token)
                return self.operate(operation, *args, **options)
        finally:
            self.turns.ring()

    def operate(self, operation: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
        """As `alone`, for a caller that has the turn."""
        if self._is_inside():
            self.hooks.require_none()
            raise InvalidInput(
                "this call came from inside another call on the same state; do not commit or move the "
                "branch from a signal handler, a finalizer or a merge policy"
            )
        with self.lock:
            try:
                return self._operate(operation, *args, **options)
            except CorruptObject:
                self.require_base()
            # Perhaps a sweep removed the other commits of the operation, after it had found them.
            return retry_after_sweep(self.repo, partial(self._operate, operation, *args, **options))

    def _operate(self, operation: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
        token = Lock()
        with token:
            self.operation = ref(token)
            if not self.at.settled:
                self.settle()
            with self.outside_held() if self.companions else self.lock:
                return operation(*args, **options)

    def require_idle(self, done: str) -> None:
        """Raise InvalidInput while the values are compared: from the pickling of one of them."""
        if self._comparing() is not None and is_live(self._comparing):
            raise InvalidInput(f"a state cannot be {done} by the pickling of one of its own values")

    # Settling the rest of an operation that did not end

    def settle_after(self, error: BaseException) -> None:
        """Settle while an exception goes on to the caller, who gets that one.

        If it fails, the next call settles.
        """
        try:
            with self.lock:
                self.settle()
        except VStateError as failure:
            error.add_note(f"vstate, while it undid the changes: {failure}")

    def settle(self) -> Position:
        """Go where the handle turns out to be; the lock is held. Each step is one repeatable assignment."""
        if self.at.steps is not None:
            self.take_steps()
        if (pending := self.at.pending) is not None:
            if is_live(pending.operation):
                return self.at
            try:
                pending.look()
            except StoreUnavailable as error:
                error.outcome_unknown = True
                error.message += (
                    "; whether the last call on this state took effect is not known yet: the next call looks "
                    "again, and state.head tells then"
                )
                raise
        for number, saved in enumerate(self.at.open):
            if not is_live(saved.token):
                restore(self, number)
                return self.settle()
        return self.at

    def take_steps(self) -> None:
        """Take the steps of this position, if it has any."""
        at = self.at
        if at.steps is not None:
            at.table.apply(at.steps)
            self.at = self.at.moved(steps=None)

    def _settled(self) -> Position:
        """Where the handle is, without the lock unless an operation left that open."""
        pending = self.at.pending
        if pending is not None and not is_live(pending.operation):
            with self.lock:
                return self.settle()
        return self.at

    def look(self) -> Position:
        """Settle before the mapping is used, if its values may be wrong; the lock is held."""
        at = self.at
        return at if at.settled or at.is_usable else self.settle()

    def go(self, **fields: Any) -> None:
        """Change fields of the position, and take its steps. Until then every reader takes the lock."""
        self.at = self.at.moved(**fields)
        self.take_steps()

    # Forks

    def renew(self) -> None:
        if not is_mine(self.lock):
            end(self.operation)
            end(self._comparing)
        if not self.turns.nested:
            for each in self.at.open:
                end(each.token)
        super().renew()

    # The mapping

    def read(self, key: str) -> Any:
        """The value of a key that is not in `hot`; KeyNotFound."""
        if type(key) is not str:
            if not isinstance(key, str):
                raise missing(key)
            key = str.__str__(key)  # the text itself, not the __str__ of a subclass
        with self.lock:
            while True:
                if not (at := self.at).settled:
                    at = self.look()
                    self._note(key)
                table = at.table
                old = slot = table.slots.get(key)
                if slot is None or slot.value is UNREAD:
                    if slot is None and key in table.cache:
                        return table.cache[key]
                    root = None if at.head is None else at.head.root
                    try:
                        slot = self._read(table, root, key, slot or UNTOUCHED)
                        if key in self.ahead.batch.places and at.settled:
                            self._hold_following(table, self.ahead.following(root, key))
                    except CorruptObject:
                        self.require_base()
                        raise
                elif slot.value is ABSENT or slot.over(expiry.now()):
                    raise missing(key)
                # The code of a value, or a finalizer, may use the state while a value is read.
                if self.at is at and table.put(key, old, slot, at.hot is table.cache):
                    value = slot.value  # so that it counts as reachable
                    if table.read > table.limit or table.idle > KEEP_BYTES:
                        self._let_go()
                    return value

    def in_batches(self, keys: Iterable[str]) -> Iterator[Iterable[str]]:
        """The keys, a batch at a time, each ready to be read in order."""
        with self.lock:
            table, root = self.look().table, self.tree
        found = self.ahead.in_batches(
            root, map(check_state_key, keys), known=lambda key: key in table.cache or key in table.slots
        )
        return self._from_base(found)

    def _read(self, table: SlotTable, root: ObjectId | None, key: str, slot: Slot) -> Slot:
        """The slot of a key whose value has to be read from the tree."""
        if slot.due is not None and slot.over(expiry.now()):
            raise missing(key)
        entry = self.ahead.find(root, key)
        if entry is None:
            raise missing(key)
        data, found = entry.raw, None if isinstance(entry, OneBlobEntry) else entry.expiry
        if found is not None and slot.hides_at(found.at):
            raise missing(key)
        allow = self.repo.security.allow
        value, chunks, size, unordered, names = decode_value(entry, self.ahead, allow=allow, key=key)
        fixed, base = type(value) not in CONTAINERS and is_immutable(value), None
        if fixed:
            table.idle += size + KEEP_BYTES_EACH
        else:
            now = NO_ENTRIES
            if unordered or (
                names and not copies_are_alike(names, value, lambda: self.repo.load(key, data).value)
            ):
                # The order of a set, say, can change with each loading; in this one copy it stays as it is.
                now = self._entry_now(value, chunks)
            base = Base(data, chunks, size, True, now, found, not names and size <= SHORT_PLAIN)
            table.read += size + KEEP_BYTES_EACH
        if slot.wanted is not UNASKED:
            return slot.replaced(value=value, fixed=fixed, base=base)
        return Slot(value, fixed, False, base, None if found is None else found.at)

    def _hold_following(self, table: SlotTable, found: Iterable[tuple[str, Any, OneBlobEntry]]) -> None:
        """Put values into the table that were loaded ahead, as if they had been read."""
        for key, value, entry in found:
            size = entry.size + KEEP_BYTES_EACH
            fixed = type(value) not in CONTAINERS and is_immutable(value)
            base = Base(entry.raw, ONE_BLOB, entry.size, True, NO_ENTRIES, None, entry.size <= SHORT_PLAIN)
            slot = Slot(value, fixed, False, None if fixed else base)
            if key not in table.cache and table.put(key, None, slot, True):
                if fixed:
                    table.idle += size
                else:
                    table.read += size

    def _entry_now(self, value: Any, chunks: tuple[Chunks | None, ...]) -> frozenset[bytes]:
        """The entry of a value as it is; none if the value loads, and does not pickle again."""
        try:
            return frozenset({encode_unchecked(value, chunks).entry})
        except Exception as error:  # pickling runs the classes' own code, which may raise anything
            own_error(partial(encode_unchecked, value), error)
            return NO_ENTRIES

    def write(self, key: str, value: Any) -> None:
        """Stage a value."""
        key, kind = check_new_key(key), type(value)
        # Most values are of these types, and need no call.
        fixed = kind in IMMUTABLE or (kind not in CONTAINERS and is_immutable(value))
        with self.lock:
            while True:
                if not (at := self.at).settled:
                    at = self.look()
                    self._note(key)
                if self._comparing is not OVER:
                    self.require_idle("written to")
                table = at.table
                slot = table.slots.get(key)
                new = Slot(value, fixed, True, None if fixed or slot is None else slot.base)
                if self.at is at and table.put(key, slot, new, at.hot is table.cache):
                    return

    def delete(self, key: str) -> None:
        """Stage a deletion; KeyNotFound."""
        self._replace(check_state_key(key), lambda slot: Slot(ABSENT, True, True))

    def expire(self, key: str, ttl: float | timedelta | None) -> None:
        """Stage when a key expires, None for never; KeyNotFound, InvalidInput."""
        key, wanted = check_state_key(key), None if ttl is None else make_expiry(ttl)
        due = None if wanted is None else wanted.at
        self._replace(key, lambda slot: slot.replaced(wanted=wanted, due=due))

    def _replace(self, key: str, make: Callable[[Slot], Slot]) -> None:
        """Put another slot in the place of that of a key; KeyNotFound."""
        with self.lock:
            while True:
                at = self.look()
                table, old = at.table, at.table.slots.get(key)
                if not self.contains(key):
                    raise missing(key)
                self.require_idle("written to")
                slot = Slot(table.cache[key], True) if old is None and key in table.cache else old
                new = make(slot or UNTOUCHED)
                if self.at is at and table.put(key, old, new, at.hot is table.cache):
                    return

    def contains(self, key: object) -> bool:
        """Whether the key is there, if it is not in `hot`."""
        if not isinstance(key, str):
            return False
        key = str.__str__(key)
        with self.lock:
            table = self.look().table
            self._note(key)
            slot = table.slots.get(key, UNTOUCHED)
            if slot.value is ABSENT or slot.over(expiry.now()):
                return False
            if slot.value is not UNREAD or key in table.cache:
                return True
            data = self._entry(key)
            return data is not None and (data[:1] not in EXPIRING or not slot.hides(data))

    def _entry(self, key: str) -> bytes | None:
        """The committed entry of a key."""
        with self.base_needed():
            return tree.lookup(self.repo.objects.node, self.tree, key)

    def scan(self, prefix: str, *, reverse: bool = False) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted, read as they are asked for."""
        with self.lock:
            self.look()
            self.note_prefix(prefix)
            staged, here = self._staged(prefix)
            read, now = self.repo.objects.nodes, expiry.now()
            keys = tree.scan_keys(read, self.tree, prefix, at=now, reverse=reverse)
        if not staged:
            return self._from_base(keys)
        here.sort(reverse=reverse)
        committed = (key for key in keys if key not in staged)
        return self._from_base(merge(committed, here, reverse=reverse))

    def count(self, prefix: str) -> int:
        """How many keys begin with `prefix`."""
        with self.lock:
            self.look()
            self.note_prefix(prefix)
            node, root, at = self.repo.objects.node, self.tree, expiry.now()
            staged, here = self._staged(prefix)
            with self.base_needed():
                committed = sum(tree.lookup(node, root, key, at=at) is not None for key in staged)
                return tree.count_prefix(node, root, prefix, at=at) - committed + len(here)

    def _staged(self, prefix: str) -> tuple[set[str], list[str]]:
        """The dirty keys with this prefix, which the tree does not decide; and the present ones."""
        table, now = self.at.table, expiry.now()
        slots = {
            key: slot
            for key in table.dirty
            if key.startswith(prefix) and (slot := table.slots.get(key)) is not None and slot.dirty
        }
        here = [key for key, slot in slots.items() if slot.value is not ABSENT and not slot.over(now)]
        return set(slots), here

    def describe(self, key: str) -> str:
        """Type and size of a value; loads it only if it is in hand and may differ from the committed one."""
        with self.lock:
            slot = self.look().table.slots.get(key, UNTOUCHED)
        if (
            not isinstance(slot.value, Mark)
            and not slot.over(expiry.now())
            and (slot.dirty or not slot.fixed)
        ):
            return type(slot.value).__name__
        with self.base_needed():
            entry = self.repo.entry(self.tree, key)
        if entry is None or not self.contains(key):
            raise missing(key)
        return describe(entry)

    def may_have_changed(self, prefix: str) -> bool:
        """Whether a key with this prefix is staged, or its value is in hand and may have been edited."""
        with self.lock:
            table = self.look().table
            return any(key.startswith(prefix) for keys in (table.dirty, table.open) for key in keys)

    def expires(self, key: str) -> Expiry | None:
        """The expiry of a key, as a commit now would write it; KeyNotFound."""
        key = check_state_key(key)
        with self.lock:
            if not self.contains(key):
                raise missing(key)
            slot = self.at.table.slots.get(key, UNTOUCHED)
            data = self._entry(key)
            return slot.next_expiry(None if data is None or slot.hides(data) else split_expiry(data)[1])

    def _note(self, key: str) -> None:
        open_now = self.at.open
        if open_now and (notes := open_now[0].notes) is not None and notes.open:
            notes.keys.add(key)

    def note_prefix(self, prefix: str) -> None:
        if (notes := self.at.notes) is not None and notes.open:
            notes.prefixes.add(prefix)

    # Uncommitted changes

    def compare(self) -> Plan:
        """How the values in hand differ from the head, as the program asks it; Unpicklable names every
        culprit.

        The lock is held, and the handle is settled. An update depends on all that it compares.
        """
        self.note_prefix("")
        with self.base_needed():
            return self.require_picklable(self.plan())

    def plan(self, keys: Iterable[str] | None = None, table: SlotTable | None = None) -> Plan:
        """How the slots, or those of the keys, differ from the tree."""
        if self._comparing is not OVER:
            self.require_idle("compared")
        at = self.at
        token = Lock()
        with token:
            self._comparing = ref(token)
            plan = make_plan(self.repo, table or at.table, None if at.head is None else at.head.root, keys)
        self._comparing = OVER  # only to save time: the token is over
        return plan

    def _let_go(self) -> None:
        """Seal the values that were only read and that nobody can reach; the lock is held.

        Not inside another call: a hook of it, or the pickling of a value, may read too.
        """
        at, table = self.at, self.at.table
        if at.pending or at.steps is not None or is_live(self.operation) or is_live(self._comparing):
            return
        table.handed = set()
        table.seal(self.plan(keys=out_of_reach(table)).only_read)
        table.limit = max(LOOK_BYTES, 2 * table.read)

    def close(self) -> None:
        """Have nothing in hand any more, committed or not."""
        with self.lock:
            if self.at.table.slots or self.at.table.cache:
                self.clear()
                self.ahead.drop()

    def require_picklable(self, plan: Plan) -> Plan:
        if plan.unpicklable:
            raise Unpicklable(plan.unpicklable)
        return plan

    def edited(self, plan: Plan, keys: Iterable[str]) -> list[str]:
        """The keys whose values were set, or edited in place, after the plan was made."""
        slots, table = self.at.table.slots, SlotTable()  # another table: a plan may replace slots
        table.slots = {key: slots[key] for key in keys if key in slots}
        now = self.plan(keys=table.slots, table=table)
        return [
            key
            for key in table.slots
            if key in now.unpicklable or now.changes.get(key, UNASKED) != plan.changes.get(key, UNASKED)
        ]

    def savepoint(self) -> Savepoint:
        return Savepoint(self)

    def has_uncommitted(self, *, is_leaving: bool = False) -> bool:
        """Whether a commit would be made."""
        with self.lock:
            self.look_outside(is_leaving=is_leaving)
            at = self.at
            if not at.events and not at.table.dirty and not at.table.open:
                return False
            return bool(at.events or self.compare().changes)

    def require_clean(self, operation: str, *, is_leaving: bool = False) -> None:
        """Raise UncommittedChanges if a commit would be made."""
        if self.has_uncommitted(is_leaving=is_leaving):
            with self.lock:
                raise UncommittedChanges(operation, self.compare().changes)

    def look_outside(self, *, is_leaving: bool = False) -> None:
        """Settle, and stage what was changed outside; the lock is held."""
        self.settle()
        for each in self.companions:
            each.look(is_leaving=is_leaving)

    @contextmanager
    def outside_held(self, *joining: Companion) -> Iterator[None]:
        """Keep other programs from moving what is outside, in one order of places for all programs.

        Else one could commit and delete a file that was found here, and this state bring the file back.
        """
        with ExitStack() as held:
            for each in sorted((*self.companions, *joining), key=lambda each: each.place):
                held.enter_context(each.held())
            yield

    def require_unedited(self, operation: str, keys: Iterable[str] = ()) -> None:
        """Raise UncommittedChanges if something outside, or one of the keys there, was edited.

        A program cannot discard such edits with the state.
        """
        chosen = set(keys)
        with self.lock:
            edited = [key for each in self.companions for key in each.edited()]
        if chosen:
            edited = [key for key in edited if key in chosen]
        if edited:
            advice = "commit() them first, or throw them away by restore(force=True) of their Workspace"
            raise UncommittedChanges(operation, edited, advice=advice)

    def discard(self, keys: Iterable[str]) -> None:
        """Forget the uncommitted changes, of these keys or of all. Recorded events stay."""
        chosen = set(map(check_state_key, keys))
        with self.lock:
            table = self.settle().table
            self.note_prefix("")
            # A value that has not changed stays the same object: the program may be about to edit it.
            table.handed = set()
            try:
                plan = self.plan()
            except CorruptObject:
                if chosen or not self.is_base_gone():
                    raise
                self.clear()
                return
            dropped = plan.touched & chosen if chosen else plan.touched
            self.go(steps={key: (table.slots.get(key), FORGET) for key in dropped})
            table.seal(plan.only_read)

    def clear(self, **fields: Any) -> None:
        """Have nothing in hand any more."""
        self.note_prefix("")
        self.at = self.at.moved(table=SlotTable(), steps=None, **fields)

    def is_base_gone(self) -> bool:
        head = self.at.head
        return head is not None and not self.repo.objects.is_stored(head.oid)

    def require_base(self) -> None:
        """Raise RefMoved if gc has removed the commit that the uncommitted changes are on."""
        at = self.at
        if at.head is None or not self.is_base_gone():
            return
        if at.branch is not None:
            raise self.repo.ref_moved(HEADS + at.branch, at.head.oid, rewritten=True)
        now = self.repo.refs.head().commit
        raise RefMoved(HEAD, expected=at.head.id, actual=None if now is None else str(now), rewritten=True)

    @contextmanager
    def base_needed(self) -> Iterator[None]:
        """Tell an object that gc removed with the base as RefMoved, and no longer as damage."""
        try:
            yield
        except CorruptObject:
            self.require_base()
            raise

    def _from_base(self, found: Iterable[_T]) -> Iterator[_T]:
        with self.base_needed():
            yield from found

    def record_event(self, event: Event) -> None:
        """Keep an event for the next commit."""
        with self.lock:
            self.look()
            self.at = self.at.moved(events=(*self.at.events, event))

    def forget_event(self, event: Event) -> bool:
        """Drop a recorded event. False if a commit holds it by now."""
        with self.lock:
            found = any(each is event for each in self.at.events)
            self.at = self.at.moved(events=tuple(e for e in self.at.events if e is not event))
        return found

    def pending_events(self) -> list[Event]:
        """The events that no commit holds yet, oldest first."""
        with self.lock:
            return list(self.look().events)

    def own_branch(self) -> str:
        """The branch that this state is on; DetachedHead."""
        at = self.at
        if at.branch is None:
            raise DetachedHead(at.head.id if at.head else None)
        return at.branch

    def own_head(self) -> Head:
        """Where this state is, as its HEAD."""
        at = self._settled()
        return Head(at.branch, None if at.head is None else at.head.oid)

    def resolve(self, rev: Revision) -> Commit:
        """The commit of a revision, as this state sees HEAD."""
        return self.repo.resolve(rev, head=self.own_head())

    def _diff_commits(self, old: Revision | None, new: Revision) -> Diff:
        commits = [self.trusted(self.resolve(rev)) for rev in (old, new) if rev is not None]
        before = self.tree if old is None else commits[0].root
        return self.repo.diff(before, commits[-1].root, commits)

    def _diff_staged(self, old: Revision | None) -> Diff:
        with self.lock:
            self.look_outside()
            plan = self.compare()
            changes, reader = dict(plan.changes), plan.reader()
            node, at = self.repo.objects.node, expiry.now()
            pairs = []
            commits = [self.at.head] if self.at.head else []
            if old is None:
                for key, data in sorted(changes.items()):
                    pairs.append(KeyChange(key, tree.lookup(node, self.tree, key, at=at), data))
            else:
                commits.append(self.trusted(self.resolve(old)))
                root = commits[-1].root
                moved = {change.key: change for change in tree.diff(self.repo.objects.nodes, root, self.tree)}
                expired = dict.fromkeys(tree.expired(node, self.tree, at))
                for key, data in {**expired, **changes}.items():
                    moved[key] = KeyChange(key, tree.lookup(node, root, key), data)
                pairs = [change for _, change in sorted(moved.items())]
        return self.repo.make_diff([change for change in pairs if change.old != change.new], reader, commits)

    def diff(self, old: Revision | None, new: Revision | None) -> Diff:
        """As `Versioned.diff` promises."""
        compare = partial(self._diff_staged, old) if new is None else partial(self._diff_commits, old, new)
        with self.base_needed():
            return retry_after_sweep(self.repo, compare, (old, new))
