"""Handle: the values of one branch in hand, and where on the branch they are.

Two attributes hold all that lasts: `at`, an immutable position, and the slots of its hand. Every operation settles
what an earlier one left, makes a plan, assigns one new position, and then takes the steps of that position. So an
exception leaves the handle before the operation or after it, and the next call finds out where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from heapq import merge
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar
from weakref import ReferenceType, WeakSet, ref

from vstate.errors import (
    CannotLoad,
    Conflict,
    CorruptObject,
    DetachedHead,
    InvalidInput,
    MergeConflict,
    NotFound,
    RefMoved,
    StorageError,
    StoreFull,
    StoreUnavailable,
    UncommittedChanges,
    Unpicklable,
    VStateError,
)
from vstate.kv.base import KVStore
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit, Event, microseconds
from vstate.objects.expiry import EXPIRING, Expiry, is_expired, moment_of, split_expiry
from vstate.objects.ids import ObjectId
from vstate.objects.tree import KeyChange
from vstate.repo.compare.diff import Diff
from vstate.repo.core import Guard, Revision
from vstate.repo.names.refs import HEADS, Head
from vstate.repo.objects import Overlay
from vstate.repo.repository import Repository
from vstate.state.base import StateHandle, check_key, make_expiry, missing
from vstate.state.plan import Plan, edited_since, make_plan
from vstate.state.position import (
    NO_VALUES,
    Attempt,
    Landing,
    Notes,
    Pending,
    Position,
    Saved,
    Token,
    Unsettled,
    is_live,
)
from vstate.state.slots import (
    ABSENT,
    CLEAN,
    FORGET,
    UNASKED,
    UNREAD,
    UNTOUCHED,
    Base,
    Hand,
    Mark,
    Slot,
    Step,
)
from vstate.state.tracking import is_immutable
from vstate.state.turns import Turn
from vstate.values.entry import Encoded, encode_value
from vstate.values.inspection import describe
from vstate.values.pickling import culprit

KEEP_BYTES = 64 * 1024 * 1024
KEEP_COUNT = 100_000
"""How many bytes and values stay in memory that nothing needs: they can be read again."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Handle(StateHandle):
    """The working tree of one branch. Threads may share it: `lock` is held around everything but cached reads.

    `turns` says whose transaction may run. `follows_head` means that the handle goes where the store's HEAD goes.
    """

    def __init__(self, repo: Repository, head: Head, *, follows_head: bool) -> None:
        self.repo = repo
        self.follows_head = follows_head
        super().__init__()
        self.watches: WeakSet[Any] = WeakSet()
        self.update_seconds = 0.0
        """How long the function of the last update took."""
        self.created: tuple[str, ObjectId] | None = None
        """The branch that `switch` was about to create, and its commit: a repeated call may find it there."""
        commit = None if head.commit is None else self.trusted(repo.objects.commit(head.commit))
        hand = Hand()
        self.at = Position(hand.cache, hand, commit, head.branch)
        self._operation: ReferenceType[Token] | None = None
        self._comparing: ReferenceType[Token] | None = None

    @property
    def store(self) -> KVStore:
        """The store that the bytes are in."""
        return self.repo.store

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
        return None if head is None else head.tree

    def title(self) -> str:
        """The line that begins the readable form; it asks no store."""
        at = self.at
        where = f"branch {at.branch!r}" if at.branch else "detached HEAD"
        commit = f"at {at.head.short}" if at.head else "without a commit yet"
        return f"Versioned({self.store.location}) on {where} {commit}"

    def trusted(self, commit: Commit) -> Commit:
        """The commit; UntrustedCommit if its values may not be unpickled here."""
        self.repo.require_trusted(commit)
        return commit

    # Running operations

    def alone(self, operation: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
        """Call the operation with the lock held, when no other thread's transaction is open.

        Raises InvalidInput from inside another operation of this handle: from a signal handler, say.
        """
        if self.turns.nested:
            return self.operate(operation, *args, **options)
        turn = Turn()
        with turn.bell, turn.held:
            self.turns.take(turn)
            return self.operate(operation, *args, **options)

    def operate(self, operation: Callable[_P, _T], /, *args: _P.args, **options: _P.kwargs) -> _T:
        """As `alone`, for a caller that has the turn."""
        with self.lock:
            self.hooks.require_none()
            if self._operation is not None and is_live(self._operation):
                raise InvalidInput(
                    "another call on this state is under way in this thread; a signal handler, a finalizer or a "
                    "merge policy cannot commit or move the branch then: leave that out"
                )
            token = Token()
            with token.held:
                self._operation = ref(token)
                self.settle()
                return operation(*args, **options)

    def require_idle(self, done: str) -> None:
        """Raise InvalidInput while the values are compared: from the pickling of one of them."""
        if self._comparing is not None and is_live(self._comparing):
            raise InvalidInput(f"a state cannot be {done} by the pickling of one of its own values")

    # Settling what an operation left, whatever ended it

    def settle_after(self, error: BaseException) -> None:
        """Settle while an exception goes on to the caller, who gets that one. If it fails, the next call settles."""
        try:
            with self.lock:
                self.settle()
        except VStateError as failure:
            error.add_note(f"vstate, while it undid the changes: {failure}")

    def settle(self) -> Position:
        """Go where the handle turns out to be; the lock is held. Each step is one assignment, and can be repeated."""
        at = self.at
        return at if at.rest is None else self._settle(at.rest)

    def _settle(self, rest: Unsettled) -> Position:
        if rest.steps is not None:
            self._take_steps()
        if (pending := rest.pending) is not None:
            if is_live(pending.token):
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
        if (rest := self._rest).attempt is not None and not is_live(rest.attempt.token):
            self._undo(rest.attempt)
        open_now = self._rest.open
        for i, saved in enumerate(open_now):
            if not is_live(saved.token):
                # Inner savepoints now mean this one: their own would bring back changes made outside of them.
                inner = tuple(
                    each._replace(epoch=saved.epoch, staged=saved.staged) for each in open_now[i + 1 :]
                )
                self.at = self.at.moved(open=open_now[:i] + inner, owed=saved)
                break
        if (owed := self._rest.owed) is not None:
            self._restore(owed)
            if self._rest.open:
                return self.settle()
        return self.at

    @property
    def _rest(self) -> Unsettled:
        return self.at.rest or Unsettled()

    def _take_steps(self) -> None:
        at = self.at
        if at.rest is not None and at.rest.steps is not None:
            at.hand.apply(at.rest.steps)
            at.hand.tidy()
            self.at = self.at.moved(steps=None)

    def _settled(self) -> Position:
        """Where the handle is, without the lock unless an operation left that open."""
        rest = self.at.rest
        if rest is not None and rest.pending is not None and not is_live(rest.pending.token):
            with self.lock:
                return self._look()
        return self.at

    def _look(self) -> Position:
        """Settle before the mapping is used; the lock is held.

        Without the store the values in hand can still be used, unless some of them have to be undone first.
        """
        if self.at.rest is None:
            return self.at
        try:
            return self.settle()
        except StorageError:
            rest = self._rest
            if rest.owed is not None or (rest.attempt is not None and not is_live(rest.attempt.token)):
                raise
            return self.at

    def _undo(self, attempt: Attempt) -> None:
        """Take back an attempt of an update: the keys that it noted, and the events that came since."""
        plan = self._compare()
        known = set(map(id, attempt.events))
        events = tuple(event for event in self.at.events if id(event) in known)
        # A key that the attempt neither read nor wrote is another thread's, and stays.
        self._drop([key for key in plan.touched if key in attempt.notes], attempt=None, events=events)

    def _drop(self, keys: Iterable[str], **fields: Any) -> None:
        """Forget the slots of the keys."""
        slots = self.at.hand.slots
        steps: dict[str, Step] = {key: (slot, FORGET) for key in keys if (slot := slots.get(key)) is not None}
        self._go(self.at.moved(steps=steps, **fields))

    def _go(self, at: Position) -> None:
        """Be at another position, and take its steps. Until they are taken, every reader takes the lock."""
        self.at = at
        self._take_steps()

    # Forks

    def after_fork(self, *, child: bool) -> None:
        if child and not self.turns.nested:
            # The frames of other threads are not in this process, but their tokens never die here.
            rest = self._rest
            for each in (rest.pending, rest.attempt, *rest.open):
                found = None if each is None or each.token is None else each.token()
                if found is not None:
                    found.end()
        super().after_fork(child=child)

    # The mapping

    def read(self, key: str) -> Any:
        """The value of a key that is not in `hot`; KeyNotFound."""
        if not isinstance(key, str):
            raise missing(key)
        key = str.__str__(key)  # the text itself, whatever the __str__ of a subclass says
        with self.lock:
            at = self._look()
            self._note(key)
            hand = at.hand
            slot = hand.slots.get(key)
            if slot is None or slot.value is UNREAD:
                if slot is None and key in hand.cache:
                    return hand.cache[key]
                slot = self._read(hand, key, slot)
                if slot.fixed and slot.due is None and not slot.dirty:
                    hand.cache[key] = slot.value
                    return slot.value
                hand.slots[key] = slot
            elif slot.value is ABSENT or slot.over(expiry.now()):
                raise missing(key)
            if not slot.fixed:
                hand.open.add(key)
            if hand.handed is not None:
                hand.handed.add(key)
            if slot.due is None and at.hot is hand.cache:
                hand.cache[key] = slot.value
            return slot.value

    def _read(self, hand: Hand, key: str, slot: Slot | None) -> Slot:
        """The slot of a key whose value has to be read from the tree."""
        slot = slot or UNTOUCHED
        if slot.over(expiry.now()):
            raise missing(key)
        data = tree.lookup(self.repo.objects.node, self.tree, key)
        if data is None:
            raise missing(key)
        found: Expiry | None = None
        if data[:1] in EXPIRING:
            if slot.hides(data):
                raise missing(key)
            data, found = split_expiry(data)
        value, chunks, size, unordered = self.repo.load(key, data)
        fixed, base = is_immutable(value), None
        if fixed:
            hand.idle += size + KEEP_BYTES // KEEP_COUNT
        else:
            # The order of a set can change with each loading; in this one copy it stays as it is now.
            now = frozenset({encode_value(value, chunks).entry} if unordered else ())
            base = Base(data, chunks, size, loaded=True, alternates=now, expiry=found)
            hand.open.add(key)
        if slot.wanted is not UNASKED:
            return slot._replace(value=value, fixed=fixed, base=base)
        if found is not None:
            hand.timed.add(key)
        return Slot(value, fixed, 0, base, None if found is None else found.at)

    def write(self, key: str, value: Any) -> None:
        """Stage a value."""
        key, fixed = check_key(key), is_immutable(value)
        with self.lock:
            at = self._look()
            self.require_idle("written to")
            self._note(key)
            hand, now = at.hand, expiry.now()
            base: Base | None = None
            wanted: Expiry | Mark = UNASKED
            if (slot := hand.slots.get(key)) is not None and not slot.over(now):
                base = None if fixed else slot.base
                if isinstance(slot.wanted, Expiry) and slot.wanted.ttl > 0:
                    wanted = slot.wanted
            hand.dirty.add(key)
            hand.cache.pop(key, None)
            if not fixed:
                hand.open.add(key)
            hand.slots[key] = Slot(value, fixed, now, base, None, wanted)
            if hand.handed is not None:
                hand.handed.add(key)
            if at.hot is hand.cache:
                hand.cache[key] = value

    def delete(self, key: str) -> None:
        """Stage a deletion; KeyNotFound."""
        key = check_key(key)
        with self.lock:
            if not self.contains(key):
                raise missing(key)
            self.require_idle("written to")
            hand = self.at.hand
            hand.dirty.add(key)
            hand.cache.pop(key, None)
            hand.slots[key] = Slot(ABSENT, True, expiry.now())

    def contains(self, key: object) -> bool:
        """Whether the key is there, if it is not in `hot`."""
        if not isinstance(key, str):
            return False
        key = str.__str__(key)
        with self.lock:
            hand = self._look().hand
            self._note(key)
            slot = hand.slots.get(key, UNTOUCHED)
            if slot.value is ABSENT or slot.over(expiry.now()):
                return False
            if slot.value is not UNREAD or key in hand.cache:
                return True
            data = tree.lookup(self.repo.objects.node, self.tree, key)
            return data is not None and (data[:1] not in EXPIRING or not slot.hides(data))

    def scan(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted, read as they are asked for."""
        with self.lock:
            self._look()
            self._note_prefix(prefix)
            staged, here = self._staged(prefix)
            root = self.tree
        node = self.repo.objects.node
        entries = tree.scan(node, root, prefix)
        if tree.expires(node, root):
            entries = ((key, entry) for key, entry in entries if not is_expired(entry))
        return merge((key for key, _ in entries if key not in staged), here)

    def count(self, prefix: str) -> int:
        """How many keys begin with `prefix`."""
        with self.lock:
            self._look()
            self._note_prefix(prefix)
            node, root, over = self.repo.objects.node, self.tree, set[str]()
            if tree.expires(node, root):
                over.update(tree.expired(node, root, expiry.now(), prefix))
            staged, here = self._staged(prefix)
            known = sum(key not in over and tree.lookup(node, root, key) is not None for key in staged)
            return tree.count_prefix(node, root, prefix) - len(over) - known + len(here)

    def _staged(self, prefix: str) -> tuple[set[str], list[str]]:
        """The dirty keys with this prefix, for which the tree does not count; and, sorted, those that are there."""
        hand, now = self.at.hand, expiry.now()
        slots = {
            key: slot
            for key in hand.dirty
            if key.startswith(prefix) and (slot := hand.slots.get(key)) is not None and slot.dirty
        }
        here = [key for key, slot in slots.items() if slot.value is not ABSENT and not slot.over(now)]
        return set(slots), sorted(here)

    def describe(self, key: str) -> str:
        """Type and size of a value; loads it only if it is in hand and may differ from the committed one."""
        with self.lock:
            slot = self._look().hand.slots.get(key, UNTOUCHED)
        if (
            not isinstance(slot.value, Mark)
            and not slot.over(expiry.now())
            and (slot.dirty or not slot.fixed)
        ):
            return type(slot.value).__name__
        entry = self.repo.entry(self.tree, key)
        if entry is None or not self.contains(key):
            raise missing(key)
        return describe(entry)

    def may_have_changed(self, prefix: str) -> bool:
        """Whether a key with this prefix is staged, or its value is in hand and may have been edited."""
        with self.lock:
            hand = self._look().hand
            return any(key.startswith(prefix) for keys in (hand.dirty, hand.open) for key in keys)

    def expire(self, key: str, ttl: float | timedelta | None, *, sliding: bool) -> None:
        """Stage when a key expires, None for never; KeyNotFound, InvalidInput."""
        key, wanted = check_key(key), None if ttl is None else make_expiry(ttl, sliding=sliding)
        with self.lock:
            if not self.contains(key):
                raise missing(key)
            self.require_idle("written to")
            hand = self.at.hand
            slot = hand.slots.get(key, UNTOUCHED)
            if slot is UNTOUCHED and key in hand.cache:
                slot = Slot(hand.cache[key], True)
            hand.dirty.add(key)
            hand.timed.add(key)
            hand.cache.pop(key, None)
            hand.slots[key] = slot._replace(wanted=wanted, due=None if wanted is None else wanted.at)

    def expires(self, key: str) -> Expiry | None:
        """The expiry of a key, as a commit now would write it; KeyNotFound."""
        key = check_key(key)
        with self.lock:
            if not self.contains(key):
                raise missing(key)
            return self._expiry_of(key, self.at.hand.slots.get(key, UNTOUCHED))

    def _expiry_of(self, key: str, slot: Slot) -> Expiry | None:
        data = tree.lookup(self.repo.objects.node, self.tree, key)
        before = None if data is None or slot.hides(data) else split_expiry(data)[1]
        return slot.next_expiry(before, changed=True) if slot.dirty else before

    def _note(self, key: str) -> None:
        rest = self.at.rest
        if rest is not None and rest.attempt is not None and rest.attempt.running:
            rest.attempt.notes.keys.add(key)

    def _note_prefix(self, prefix: str) -> None:
        rest = self.at.rest
        if rest is not None and rest.attempt is not None and rest.attempt.running:
            rest.attempt.notes.prefixes.add(prefix)

    # Uncommitted changes

    def compare(self) -> Plan:
        """How the values in hand differ from the head, as the program asks it; Unpicklable names every culprit.

        The lock is held, and the handle is settled. An update depends on all that it compares.
        """
        self._note_prefix("")
        return self._picklable(self._compare())

    def _compare(self, root: ObjectId | Mark | None = UNASKED) -> Plan:
        self.require_idle("compared")
        token = Token()
        with token.held:
            self._comparing = ref(token)
            hand = self.at.hand
            hand.handed = set()
            return make_plan(self.repo, hand, self.tree if isinstance(root, Mark) else root)

    def _picklable(self, plan: Plan) -> Plan:
        if plan.unpicklable:
            slots = self.at.hand.slots
            raise Unpicklable(
                {
                    key: culprit(slots[key].value, f'state["{key}"]', error)
                    for key, error in sorted(plan.unpicklable.items())
                }
            )
        return plan

    def edited(self, plan: Plan, keys: Iterable[str]) -> list[str]:
        """The keys whose values were edited in place after the plan was made."""
        return edited_since(plan, self.repo, self.at.hand, keys)

    def has_uncommitted(self) -> bool:
        """Whether a commit would be made."""
        with self.lock:
            at = self.settle()
            if not at.events and not at.hand.dirty and not at.hand.open:
                return False
            return bool(at.events or self.compare().changes)

    def require_clean(self, operation: str) -> None:
        """Raise UncommittedChanges if a commit would be made."""
        if self.has_uncommitted():
            raise UncommittedChanges(operation)

    def discard(self, keys: Iterable[str]) -> None:
        """Forget the uncommitted changes, of these keys or of all. Recorded events stay."""
        chosen = set(map(check_key, keys))
        with self.lock:
            self._look()
            if not chosen and self._is_base_gone():
                self._clear()
                return
            self._note_prefix("")
            # A value that has not changed stays the same object: the program may be about to edit it.
            touched = self._compare().touched
            self._drop(touched & chosen if chosen else touched)

    def _clear(self, **fields: Any) -> None:
        """Have nothing in hand any more."""
        self._note_prefix("")
        self.at = self.at.moved(hand=Hand(), steps=None, **fields)

    def _is_base_gone(self) -> bool:
        head = self.at.head
        return head is not None and not self.repo.objects.is_stored(head.oid)

    def record_event(self, event: Event) -> None:
        """Keep an event for the next commit."""
        with self.lock:
            self._look()
            self.at = self.at._replace(events=(*self.at.events, event))

    def pending_events(self) -> list[Event]:
        """The events that no commit holds yet, oldest first."""
        with self.lock:
            return list(self._look().events)

    # Committing

    def commit(self, message: str, info: Mapping[str, Any], guard: Guard | None = None) -> Commit | None:
        """As `Versioned.commit` promises; only while the guard allows it, if there is one."""
        attempt = self._rest.attempt
        if attempt is not None and attempt.running and is_live(attempt.token) and self.turns.nested:
            raise InvalidInput(
                "an update commits by itself, once its function has returned; leave commit() out"
            )
        return self.alone(self.commit_now, message, info, guard)

    def commit_now(
        self,
        message: str,
        info: Mapping[str, Any],
        guard: Guard | None = None,
        depends_on: Callable[[str], bool] | None = None,
    ) -> Commit | None:
        """Commit in the turn of the caller; the lock is held, and the handle is settled.

        Conflict if somebody else changed a key for which `depends_on` is true.
        """
        branch = self.own_branch()
        self.require_idle("committed")
        self.hooks.run()
        if (attempt := self._rest.attempt) is not None:
            # The pickling of a value may read other keys: the update does not depend on those.
            self.at = self.at.moved(attempt=attempt._replace(running=False))
        while True:
            plan, at = self._picklable(self._compare()), self.at
            root, objects, nodes = tree.update(self.repo.objects.node, self.tree, plan.changes)
            if root == self.tree and not at.events:
                if plan.steps or at.rest is not None:
                    self._go(self.at.moved(steps=plan.steps, attempt=None))
                self._seal(plan)
                return None
            commit = self.repo.build_commit(
                root, () if at.head is None else (at.head,), message=message, info=info, events=at.events
            )
            landing, token = Landing(branch, commit, plan.steps, at.events), Token()
            for key, (_, new) in plan.steps.items():
                if isinstance(new, Slot) and new.due is not None:
                    at.hand.cache.pop(key, None)  # landed or not, its readers have to look at the clock
            pending = Pending(ref(token), partial(self._look_for, landing))
            self.at = at = self.at._replace(rest=self._rest._replace(pending=pending))
            try:
                with token.held:
                    head, moved = self._publish(landing, plan, objects, nodes, depends_on, guard)
                    self._land(landing, head, moved)
            except _LandedLate:
                continue
            except VStateError as error:
                self._explain(error, pending, landing)
                raise
            self._seal(plan)
            return head

    def _publish(
        self,
        landing: Landing,
        plan: Plan,
        objects: dict[ObjectId, Any],
        nodes: list[Any],
        depends_on: Callable[[str], bool] | None,
        guard: Guard | None,
    ) -> tuple[Commit, Iterable[str]]:
        """Put the commit on its branch: the commit where the branch is then, and the keys that others changed."""
        base, commit = self.at.head, landing.commit
        new = plan.objects | objects
        action = partial(_reflog_action, commit)
        if self.repo.publish(
            landing.branch,
            [commit],
            new,
            nodes,
            expected=None if base is None else base.oid,
            action=action("commit"),
            guard=guard,
        ):
            return commit, ()
        from vstate.state.merging import publish_merged  # late: most commits win their race

        return publish_merged(
            self.repo,
            landing,
            plan,
            new,
            nodes,
            base=base,
            action=action,
            guard=guard,
            on_race=partial(self._stop_at_doubt, landing.branch),
            edited=partial(self.edited, plan),
            depends_on=depends_on,
        )

    def _land(self, landing: Landing, head: Commit, moved: Iterable[str] = ()) -> None:
        """Be at a commit that is on the branch with our changes: one assignment, and then its steps."""
        at = self.at
        events: tuple[Event, ...] = ()
        if at.events is not landing.events:  # some came while the commit was made
            known = set(map(id, landing.events))
            events = tuple(event for event in at.events if id(event) not in known)
        steps: dict[str, Step] = dict(landing.steps)
        for key in moved:
            steps[key] = at.hand.slots.get(key), FORGET
        rest = self._rest._replace(steps=steps, pending=None, attempt=None, doubts=())
        hot = at.hot if not moved and at.hot is at.hand.cache else NO_VALUES
        self.at = Position(hot, at.hand, head, at.branch, events, at.epoch + 1, rest)
        self._take_steps()

    def _seal(self, plan: Plan) -> None:
        """Compare the values that nobody can reach no more until they are handed out again. It only saves time."""
        hand = self.at.hand
        for key in plan.unshared:
            if (
                hand.handed is not None
                and key not in hand.handed
                and (slot := hand.slots.get(key)) is not None
            ):
                if slot.dirty:
                    continue
                hand.open.discard(key)
                hand.idle += (slot.base.size if slot.base else 0) + KEEP_BYTES // KEEP_COUNT
        hand.handed = None
        if hand.idle > KEEP_BYTES:
            hand.drop_idle()

    def _look_for(self, landing: Landing, *, may_be_late: bool = True) -> None:
        """Find out whether a commit is on its branch, and be there if it is."""
        if self.repo.has_landed(landing.branch, landing.commit.oid):
            self._land(landing, landing.commit)
        else:
            doubts = (*self._rest.doubts, landing) if may_be_late else self._rest.doubts
            self.at = self.at.moved(pending=None, doubts=doubts)

    def _land_doubt(self, branch: str, head: ObjectId) -> bool:
        """Whether a commit that was not on the branch before is now behind `head`. If so, the handle is at it."""
        for landing in self._rest.doubts:
            if landing.branch == branch and self.repo.is_behind(landing.commit.oid, head):
                self._land(landing, landing.commit)
                return True
        return False

    def _stop_at_doubt(self, branch: str, head: ObjectId) -> None:
        """Raise _LandedLate if a commit whose outcome was unknown is why the race was lost."""
        if self._land_doubt(branch, head):
            raise _LandedLate

    def _explain(self, error: VStateError, pending: Pending, landing: Landing) -> None:
        """Drop the pending call if the error says that nothing was written; else say how to find out."""
        rest = self._rest
        if rest.pending is not pending:
            return
        if not _is_open(error):
            self.at = self.at.moved(pending=None)
        elif isinstance(error, StoreUnavailable) and error.outcome_unknown:
            error.message += (
                f"; whether commit {landing.commit.short} was made is not known: the next call on this state looks, "
                "and state.head tells then"
            )
        else:
            look = partial(self._look_for, landing, may_be_late=False)
            self.at = self.at._replace(rest=rest._replace(pending=pending._replace(look=look)))

    # Going to another commit

    def moving(self, move: Callable[[], _T], *, look: Callable[[], None] | None = None) -> _T:
        """The result of `move`, which moves the branch; `arrive` has to follow.

        If neither is seen to end, `look` goes where the branch turns out to be, by default to its newest commit.
        """
        self.require_idle("moved")
        token = Token()
        pending = Pending(ref(token), look or self.look_at_branch)
        self.at = self.at.moved(pending=pending)
        try:
            with token.held:
                return move()
        except VStateError as error:
            if self._rest.pending is pending and not _is_open(error):
                self.at = self.at.moved(pending=None)
            raise

    def look_at_branch(self) -> None:
        """Go where the branch is. A conflict is the next commit's, as if others had moved the branch."""
        try:
            self.go_to_newest()
        except Conflict:
            pass
        self.at = self.at.moved(pending=None)

    def arrive(
        self,
        commit: Commit | None,
        moved: Iterable[str],
        *,
        branch: str | None,
        agreed: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> None:
        """Be at a commit in which the keys `moved` have other values, and the entries `agreed` are those staged here."""
        slots = self.at.hand.slots
        steps: dict[str, Step] = {key: (slots.get(key), FORGET) for key in moved}
        for key, entry in agreed.items():
            if (slot := slots.get(key)) is None:
                continue
            due = None if entry is None else moment_of(entry)
            if isinstance(slot.value, Mark):
                steps[key] = slot, FORGET
            elif slot.fixed and due is None:
                steps[key] = slot, CLEAN
            else:
                steps[key] = slot, Slot(slot.value, slot.fixed, 0, None, due)
        self._go(self.at.moved(head=commit, branch=branch, steps=steps, pending=None, doubts=()))

    def begin_anew(self, commit: Commit) -> None:
        """Be at a commit of this branch with nothing in hand."""
        self._clear(head=commit, events=(), pending=None, doubts=())

    def refresh(self) -> Commit | None:
        """As `Versioned.refresh` promises."""
        head = self.repo.refs.head()
        if self.follows_head and head.branch != self.at.branch:
            self.require_clean("refresh")
            self._go_to(head)
        else:
            self.go_to_newest()
        return self.at.head

    def go_to_newest(self) -> None:
        """Go to the newest commit of the branch that this state is on, wherever HEAD is."""
        branch = self.at.branch
        if branch is None:
            self._go_to(self.repo.refs.head())
        else:
            self._go_to(Head(branch, self.repo.refs.read(HEADS + branch)))

    def _go_to(self, head: Head) -> None:
        at = self.at
        if at.head is not None and (head.commit, head.branch) == (at.head.oid, at.branch):
            return
        if head.commit is not None:
            if self._rest.doubts and head.branch is not None:
                self._land_doubt(head.branch, head.commit)
            self.move(self.trusted(self.repo.objects.commit(head.commit)), head.branch)
        elif at.head is not None:
            raise RefMoved(f"{HEADS}{head.branch}", expected=at.head.id, actual=None)
        else:
            self.at = at._replace(branch=head.branch)

    def move(self, commit: Commit, branch: str | None) -> None:
        """Go to another commit with what is staged; values that are the same there stay the same objects."""
        at = self.at
        try:
            plan = self._compare()
            changes = plan.changes | dict.fromkeys(plan.unpicklable, b"")
            foreign, agreed = self._foreign_changes(at.head, commit, changes, at.branch)
        except CorruptObject:
            if not self._is_base_gone():
                raise
            self._require_nothing_staged()
            self._clear(head=commit, branch=branch, pending=None, doubts=())
            return
        self.arrive(commit, foreign, branch=branch, agreed=agreed)

    def _foreign_changes(
        self, base: Commit | None, theirs: Commit, changes: Mapping[str, bytes | None], branch: str | None
    ) -> tuple[list[str], dict[str, bytes | None]]:
        """The keys that they alone changed since the base, and the entries of the keys that both changed alike.

        Raises MergeConflict naming the keys that both changed otherwise.
        """
        foreign: list[str] = []
        agreed: dict[str, bytes | None] = {}
        conflicts: list[str] = []
        at = microseconds(theirs.time)
        for key, old, new in tree.diff(self.repo.objects.nodes, base.tree if base else None, theirs.tree):
            if key in changes and new is None and is_expired(old, at):
                continue  # the removal of an expired key changed nothing
            if key not in changes:
                foreign.append(key)
            elif changes[key] == new:
                agreed[key] = new
            else:
                conflicts.append(key)
        if agreed and branch is not None:
            policies = self.repo.policies.read(branch)
            conflicts += [key for key in agreed if self.repo.policies.adds_up(policies, key)]
        if conflicts:
            raise MergeConflict(conflicts, branch=branch)
        return foreign, agreed

    def _require_nothing_staged(self) -> None:
        """Raise NotFound if something is staged on a commit that gc has removed."""
        at = self.at
        assert at.head is not None
        plan = self._compare(None)
        deleted = any(slot.value is ABSENT for slot in at.hand.slots.values())
        if plan.changes or plan.unpicklable or deleted or at.events:
            raise NotFound(
                f"gc has removed {at.head.short}, the commit under the uncommitted changes: copy the values that you "
                "need, then call discard() and refresh()",
                name=at.head.id,
            )

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

    def diff(self, old: Revision | None, new: Revision | None) -> Diff:
        """As `Versioned.diff` promises."""
        if new is not None:
            before = self.tree if old is None else self.trusted(self.resolve(old)).tree
            return self.repo.diff(before, self.trusted(self.resolve(new)).tree)
        with self.lock:
            self.settle()
            plan = self.compare()
            changes, reader = dict(plan.changes), plan.reader()
            node, at = self.repo.objects.node, expiry.now()
            pairs = []
            if old is None:
                for key, data in sorted(changes.items()):
                    entry = tree.lookup(node, self.tree, key)
                    pairs.append(KeyChange(key, None if is_expired(entry, at) else entry, data))
            else:
                root = self.trusted(self.resolve(old)).tree
                moved = {change.key: change for change in tree.diff(self.repo.objects.nodes, root, self.tree)}
                expired = dict.fromkeys(tree.expired(node, self.tree, at))
                for key, data in {**expired, **changes}.items():
                    moved[key] = KeyChange(key, tree.lookup(node, root, key), data)
                pairs = [change for _, change in sorted(moved.items())]
        return self.repo.make_diff([change for change in pairs if change.old != change.new], reader)

    # Savepoints

    def savepoint(self) -> Savepoint:
        """Where the values are now, to go back to."""
        with self.lock:
            at = self.settle()
            savepoint = Savepoint(self)
            plan = self._picklable(self._compare())
            saved = Saved(ref(savepoint), at.epoch, plan.staged)
            self.at = self.at.moved(open=(*self._rest.open, saved))
        return savepoint

    def release(self, savepoint: Savepoint) -> None:
        """Keep the values as they are now; the lock is held."""
        kept = tuple(
            saved for saved in self._rest.open if saved.token is None or saved.token() is not savepoint
        )
        self.at = self.at.moved(open=kept)

    def _restore(self, owed: Saved) -> None:
        """Have the values of a savepoint: everything is read first, and then one assignment follows."""
        at = self.at
        slots, saved = at.hand.slots, owed.staged if owed.epoch == at.epoch else {}
        plan = self._compare()
        now, moved = plan.staged, set(plan.unpicklable)
        for key in now.keys() | saved.keys():
            if key not in saved or key not in now or not _is_same(now[key], saved[key]):
                moved.add(key)
        steps: dict[str, Step] = {}
        failure: CannotLoad | None = None
        for key in moved:
            if key not in saved:
                steps[key] = slots.get(key), FORGET
                continue
            try:
                steps[key] = slots.get(key), self._saved_slot(key, saved[key])
            except CannotLoad as error:  # the others go back all the same, and this one stays in hand
                failure = failure or error
        self._go(self.at.moved(steps=steps, owed=None))
        if failure is not None:
            raise failure

    def _saved_slot(self, key: str, encoded: Encoded | None) -> Slot:
        now = expiry.now()
        if encoded is None:
            return Slot(ABSENT, True, now)
        value = self.repo.load(key, encoded.entry, Overlay(self.repo.objects, encoded.objects)).value
        slot, wanted = Slot(value, is_immutable(value), now), split_expiry(encoded.entry)[1]
        if wanted != self._expiry_of(key, slot):
            slot = slot._replace(wanted=wanted, due=None if wanted is None else wanted.at)
        return slot

    # Updates

    def begin_attempt(self, token: Token) -> Notes:
        """Go to the newest commit, and note what is read and written there until the token is over."""
        with self.lock:
            self.settle()
            self.go_to_newest()
            attempt = Attempt(ref(token), Notes(), self.at.events)
            self.at = self.at.moved(attempt=attempt)
        return attempt.notes


class Savepoint(Token):
    """Where the values of a handle were, for whoever may go back there.

    Dropped without `restore` or `release`, it is restored: whatever ended the frame that held it.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self.held.acquire()
        self._handle = handle

    def restore(self) -> None:
        """Have the values that were in hand then. Recorded events stay. CannotLoad, StorageError.

        If the store cannot be reached, the next call on the state restores them.
        """
        self.end()
        with self._handle.lock:
            self._handle.settle()

    def release(self) -> None:
        """Keep the values as they are."""
        with self._handle.lock:
            self._handle.release(self)


class _LandedLate(Exception):
    """A commit whose outcome was unknown turned out to be on the branch, and the handle is at it now."""


def _reflog_action(commit: Commit, operation: str) -> str:
    summary = commit.message.strip().split("\n", 1)[0][:80]
    return f"{operation}: {summary}" if summary else operation


def _is_open(error: VStateError) -> bool:
    """Whether the store call behind this error may have written something. A look tells, at the next call."""
    return isinstance(error, StorageError) and not isinstance(error, StoreFull)


def _is_same(one: Encoded | None, other: Encoded | None) -> bool:
    """Whether two staged entries are the same change. A sliding expiry begins anew each time that somebody looks."""
    if one is None or other is None:
        return one is other
    if one.entry == other.entry:
        return True
    (bare, due), (other_bare, other_due) = split_expiry(one.entry), split_expiry(other.entry)
    slides = due is not None and other_due is not None and 0 < due.ttl == other_due.ttl
    return bare == other_bare and (slides or due == other_due)
