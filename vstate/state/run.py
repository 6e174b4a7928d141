"""Run: steps that are done once, however often the program that calls them begins anew.

The records of a run are commits of a branch of its own, so a move of the state's branch does not touch them.
The record of a step and the edits of the state land in one transaction.
"""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, Self

from vstate.arguments import called, check_count, check_flag, check_text, require_plain, storable
from vstate.backoff import Backoff
from vstate.errors import (
    EffectUnknown,
    ForkedRunWarning,
    InvalidInput,
    NotFound,
    RunChanged,
    Unpicklable,
    VStateError,
    mark_lost,
)
from vstate.forks import Uncopied
from vstate.objects import tree
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import BLOB, Object, ObjectId
from vstate.readers.stored import marks
from vstate.repo.core import Advance
from vstate.repo.names.refs import HEADS, reflog_action
from vstate.repo.objects import Overlay
from vstate.repo.repository import Repository
from vstate.repo.runs import (
    ARGUMENTS,
    DONE,
    FAILED,
    INFO,
    OPEN,
    RECORD,
    RESULT,
    RUNS,
    STEP,
    RunInfo,
    Step,
    branch_of_run,
    in_order,
    steps_of,
)
from vstate.state.committing import commit_now
from vstate.state.course import END, Course, Landed
from vstate.state.handle import Handle
from vstate.state.lease import Lease
from vstate.state.moving import go_to_newest
from vstate.state.position import Savepoint
from vstate.values.absent import ABSENT
from vstate.values.entry import Encoded, OneBlobEntry, Reader, encode_value
from vstate.values.pickle_errors import culprit
from vstate.values.same_value import are_alike

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0  # seconds between the attempts of a step
_LONGEST_ERROR = 2000
_KEY: Final = "idempotency_key"
_FORKED: Final = (
    "run {0!r} began on another branch, so on branch {1!r} this is another run, {2!r}; to go on with the "
    "first one, name the branch that it began on: state.run({0!r}, of=BRANCH)"
)
NESTED: Final = "a step is a transaction of its own: call it outside of transactions, tasks and other steps"

Do = Callable[[bool, Callable[[], Any]], Awaitable[Any]]
"""Make one call of a step. True: of a function of the program's. False: of one that may wait for the store,
and runs in the turn of the state."""


class Intent(NamedTuple):
    """A step with `once=True` that was begun: its id, its idempotency key, (args, kwargs), and the time."""

    step: str
    key: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    time: datetime


class How(NamedTuple):
    """The options of a step, as `Run.step` explains them."""

    key: str | None = None
    name: str | None = None
    once: bool = False
    retries: int = 0
    check: Callable[[Intent], Any] | None = None
    not_done: type[BaseException] | tuple[type[BaseException], ...] = ()


class Call(NamedTuple):
    """A call of a step. `arguments` is a copy, for the function may change its arguments."""

    id: str
    title: str
    position: int
    function: Callable[..., Any]
    named: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Encoded
    how: How


class Run(Uncopied):
    """A run, to be entered by `with`, once. `Versioned.run` makes it.

    A lease sees to it that one process at a time is in a run. The same id entered again goes on: a step that
    is recorded gives its result, and is not called. An exception that leaves the with block discards the
    edits since the last step, which the program makes again at the next entry.
    """

    _instead = "each process enters the run by itself"

    def __init__(self, handle: Handle, name: str, *, of: str | None, ttl: float, wait: float | None) -> None:
        self.name = self.id = check_text("the name of a run", name, empty=False)
        self.branch = handle.own_branch()
        """The branch of the state."""
        self._handle = handle
        self._is_forked = of is None
        self._of = self.branch if of is None else check_text("of", of, empty=False)
        self._lease_of: Callable[[str], Lease] = partial(Lease, handle, ttl=ttl, wait=wait)
        self._lease = self._lease_of(RUNS + name)
        self._is_entered = self._is_inside = self._stops_waiting = False
        self._left_open: dict[str, list[Call]] = {}
        """By the names of their steps: the calls of this entry with `once` that raised."""
        self._counts: Counter[str] = Counter()
        self._live: set[str] = set()
        """The ids of the steps whose functions are under way: more than one in an event loop only."""
        self._course = Course(Landed(), ())
        self._is_known = False
        """Whether the records here are those in the store."""
        self._records = ""
        """The branch with the records."""
        self._commit: Commit | None = None
        self._info: RunInfo | None = None
        self._steps: dict[str, Step] = {}
        self._rows: dict[str, bytes] = {}
        self._reader: Reader = handle.repo.objects

    @property
    def steps(self) -> list[Step]:
        """The records of the steps, in the order in which they were begun."""
        return in_order(self._steps.values())

    def __repr__(self) -> str:
        standing = "" if self._is_inside else ", not entered"
        return f"<Run {self.id!r} on branch {self.branch!r}, {len(self._steps)} steps{standing}>"

    # Entering and leaving

    def __enter__(self) -> Self:
        if self._is_entered:
            raise InvalidInput(f"run {self.name!r} has been entered: make a new one with state.run()")
        self._is_entered = True
        while not self._is_inside:
            self.id = self._find_id()
            self._records = branch_of_run(self.id)
            self._lease = self._lease_of(RUNS + self.id)
            if self._stops_waiting:
                self._lease.stop_waiting()
            self._lease.__enter__()
            try:
                self._handle.alone(self._begin)
            finally:
                if not self._is_inside:
                    self._lease.__exit__()
        if self._is_forked and self.id != self.name:
            warnings.warn(_FORKED.format(self.name, self.branch, self.id), ForkedRunWarning, stacklevel=2)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._handle.alone(self._end if error is None else self._drop)
        except VStateError as failure:
            if error is None:
                raise
            error.add_note(f"vstate, while it discarded the edits since the last step: {failure}")
        finally:
            self._is_inside = False
            self._lease.__exit__()

    def _require_inside(self) -> None:
        if not self._is_inside:
            raise InvalidInput(f"run {self.name!r} is not entered: use it in `with state.run(…) as run:`")

    def stop_waiting(self) -> None:
        """Make a thread that waits to enter the run raise LeaseHeld, within a second or so."""
        self._stops_waiting = True  # first: the thread may be about to take another lease
        self._lease.stop_waiting()

    def _find_id(self) -> str:
        """The name; with the branch after it if another branch has the run of that name."""
        id = self.name
        while (newest := self._handle.repo.newest(branch_of_run(id))) and _run_of(newest).branch != self._of:
            id = f"{id}@{self._of}"
        return id

    def _begin(self) -> None:
        self._handle.require_clean("a run")
        go_to_newest(self._handle)
        self._read()
        # On another branch, a run of this id may have begun before the lease was free.
        if self._info is None or self._info.branch == self._of:
            self._course = Course(self._find_landed(), self.steps)
            self._is_inside = True

    def _end(self) -> None:
        """Commit the edits since the last step, and record that the run has come to its end."""
        try:
            self._course.call(END)
            self._drop_known(END)
            if self._may_have_edits() or (self._info is not None and not self._info.ended):
                self._publish("ended", {}, self._next_info()._replace(ended=True), END)
        except BaseException:
            self._drop()
            raise

    # Steps

    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        name: str | None = None,
        once: bool = False,
        retries: int = 0,
        check: Callable[[Intent], Any] | None = None,
        not_done: type[BaseException] | tuple[type[BaseException], ...] = (),
        **kwargs: Any,
    ) -> Any:
        """Call the function, and commit its result together with the edits of the state; the result.

        A recorded result comes back, and the function is not called. A step is known as `name#n`, the n-th
        call of that name in the run, or as `name[key]`. RunChanged if the record is of another function, or
        of other arguments.

        If the function raises an Exception, the edits of the state made in the call are undone, the function
        is called up to `retries` times more, and the failure is recorded. The caller gets the exception, and
        the next run calls the function again.

        With `once`, the intent is committed before the call. The function gets its key, if it has a parameter
        `idempotency_key`. An intent without a result raises EffectUnknown: see `resolve` and `retry`. Or
        `check` finds out: it gets the Intent, and returns the result, or ABSENT if the effect was not had. An
        exception leaves the intent open, unless its class is in `not_done`: those say that nothing was done.

        Raises Unpicklable for an argument or a result that cannot be stored, LeaseLost, MergeConflict, and
        StorageError. If the last one says `outcome_unknown`, the next entry tells.
        """
        if once:  # before there is an intent
            require_plain("a step", function)
        turns, token = self._handle.turns, Lock()
        with turns, token:
            if not turns.take(token):
                raise InvalidInput(NESTED)
            how = How(key, name, once, retries, check, not_done)
            return _ended(self.work(self.call_of(function, args, kwargs, how), self._do))

    def call_of(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], how: How
    ) -> Call:
        """The next step of the run, or again the step of the same arguments that was left open."""
        check_flag("once", how.once)
        check_count("retries", how.retries, 0)
        if not how.once and (how.check is not None or how.not_done):
            raise InvalidInput("check= and not_done= are for a step with once=True")
        self._require_inside()
        title = how.name or str(getattr(function, "__name__", type(function).__name__))
        named = f"{function.__module__}.{getattr(function, '__qualname__', title)}"
        arguments = _encoded((args, kwargs), f"the arguments of step {title}")
        opened = self._left_open.get(title)
        left = opened and next((e for e in opened if self._are_same(arguments, e.arguments.entry)), None)
        if how.key is not None:
            id = f"{title}[{check_text('key', how.key)}]"
        elif opened and left:
            opened.remove(left)
            id = left.id
        else:
            self._counts[title] += 1
            id = f"{title}#{self._counts[title]}"
        return Call(id, title, self._course.call(id), function, named, args, kwargs, arguments, how)

    async def work(self, call: Call, do: Do) -> Any:
        """Carry out the step; its result. With an event loop, `do` awaits what it calls."""
        try:
            return await self._work(call, do)
        except BaseException as error:
            if call.how.once and not isinstance(error, call.how.not_done):
                self._left_open.setdefault(call.title, []).append(call)
            raise
        finally:
            self._live.discard(call.id)

    async def _work(self, call: Call, do: Do) -> Any:
        step: Step | None
        step, recorded = await do(False, partial(self._find, call))
        if step is not None and step.status == DONE:
            return recorded
        if step is not None and step.status == OPEN and call.how.check is not None:
            found = await do(True, partial(call.how.check, self._intent(step)))
            if found is not ABSENT:
                await do(False, partial(self._land, call, step, found))
                return found
            await do(False, self._lease.check)  # another process may have taken it over meanwhile
        handle, is_intent = self._handle, False
        if step is None or step.status == FAILED:
            step, is_intent = _begun(call, step), call.how.once
        function = partial(call.function, *call.args, **_with_key(call, step))
        backoff: Backoff | None = None
        for left in range(call.how.retries, -1, -1):
            savepoint = await do(False, partial(self._intend, call, step) if is_intent else handle.savepoint)
            is_intent, step = False, step._replace(attempts=step.attempts + 1)
            try:
                result = await do(True, function)
            except BaseException as error:
                self._undo(savepoint)
                is_open = call.how.once and not isinstance(error, call.how.not_done)
                if isinstance(error, Exception):
                    if left and not is_open:
                        backoff = backoff or Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                        await do(True, backoff.pause)
                        await do(False, self._lease.check)
                        continue
                    await do(False, partial(self._fail, call, step, error, OPEN if is_open else FAILED))
                raise
            try:
                await do(False, partial(self._land, call, step, result))
            except BaseException:
                self._undo(savepoint)
                raise
            savepoint.release()
            return result
        raise AssertionError("the last attempt returns or raises")

    async def _do(self, is_users: bool, function: Callable[[], Any]) -> Any:
        return called("a step", function) if is_users else self._handle.operate(function)

    def _require_branch(self) -> None:
        if self._handle.at.branch != self.branch:
            raise InvalidInput(
                f"run {self.id!r} is on branch {self.branch!r}, and the state on {self._handle.at.branch!r}: "
                "go back before the next step"
            )

    def _find(self, call: Call) -> tuple[Step | None, Any]:
        """The record of the step, if there is one, and the result of one that is done.

        The edits before the step are dropped if the state has them.
        """
        self._require_branch()
        if not self._lease.held:
            self._lease.check()  # which raises: another holder may call the function by now
        if not self._is_known:
            self._read()
        step = self._steps.get(call.id)
        self._drop_known(call.id)
        if step is None or step.status != DONE:
            self._live.add(call.id)
        if step is None or step.status == FAILED:
            return step, None
        recorded = self._row(STEP + step.id + ARGUMENTS)
        if step.function != call.named or not self._are_same(call.arguments, recorded):
            then, now = self._intent(step).arguments, (call.args, call.kwargs)
            raise RunChanged(self.id, step.id, recorded=(step.function, *then), now=(call.named, *now))
        if step.status == OPEN and call.how.check is None:
            raise EffectUnknown(self.id, *self._intent(step), reason=step.error)
        return step, self._load(STEP + step.id + RESULT) if step.status == DONE else None

    def _intend(self, call: Call, step: Step) -> Savepoint:
        """Commit the intent of a step; the savepoint before it. An error of the savepoint comes first."""
        savepoint = self._handle.savepoint()
        try:
            self._put(step, {ARGUMENTS: call.arguments})
        except BaseException:
            savepoint.release()
            raise
        return savepoint

    def _land(self, call: Call, step: Step, result: Any) -> None:
        """Record the result, and commit the edits of the state with it."""
        values = {ARGUMENTS: call.arguments, RESULT: _encoded(result, f"the result of step {step.id}")}
        self._put(step._replace(status=DONE, ended=time.time(), error=""), values, with_edits=True)

    def _fail(self, call: Call, step: Step, error: BaseException, status: str) -> None:
        """Record why the call failed. If that fails too, the error tells."""
        step = step._replace(status=status, ended=time.time(), error=_said(error))
        try:
            self._put(step, {ARGUMENTS: call.arguments})
        except VStateError as failure:
            error.add_note(f"vstate, while it recorded that step {step.id} failed: {failure}")

    # What nobody knows

    def resolve(self, step: str, result: Any) -> Any:
        """Record the result of a step that is open, because its effect was had; the result.

        `step` is its id, which EffectUnknown has. InvalidInput for a step that is not open.
        """
        self._handle.alone(self._settle, step, DONE, {RESULT: _encoded(result, f"the result of step {step}")})
        return result

    def retry(self, step: str) -> None:
        """Have a step that is open called again, with its idempotency key, because its effect was not had.

        InvalidInput for a step that is not open.
        """
        self._handle.alone(self._settle, step, FAILED, {})

    def _settle(self, id: str, status: str, values: Mapping[str, Encoded]) -> None:
        self._require_inside()
        if not self._is_known:
            self._read()
        step = self._steps.get(id)
        if step is None or step.status != OPEN:
            candidates = () if self._info is None else self._info.open
            raise InvalidInput(f"run {self.id!r} has no open step {id!r}", candidates=candidates)
        self._put(step._replace(status=status, ended=time.time()), values)

    # The records

    def _read(self) -> None:
        """Read the records, in one round."""
        repo = self._handle.repo
        self._commit = newest = repo.newest(self._records)
        self._info, self._rows, self._steps = None, {}, {}
        if newest is not None:
            repo.require_trusted(newest)
            self._info = _run_of(newest)
            self._rows = dict(tree.scan(repo.objects.nodes, newest.root))
            short = filter(None, map(OneBlobEntry.find, self._rows.values()))
            bodies = repo.objects.blobs({entry.id: entry.size for entry in short})
            self._reader = Overlay(repo.objects, {oid: Object(BLOB, body) for oid, body in bodies.items()})
            steps = steps_of(self._rows.items(), lambda key, _: self._load(key))
            self._steps = {step.id: step for step in steps}
        self._is_known = True

    def _find_landed(self) -> Landed:
        """What the state has from earlier entries. A rollback takes edits back, a merge brings some."""
        head, info, history = self._handle.at.head, self._info, self._handle.repo.history
        landed, seen = Landed(), set[ObjectId]()
        ways = [] if head is None or info is None else [head]
        while ways and info is not None:
            for made, _ in history.going_back(ways.pop()):
                if made.order <= info.after or made.oid in seen:
                    break
                seen.add(made.oid)
                told = made.info.get(INFO)
                if isinstance(told, dict) and told.get("id") == self.id:
                    landed = landed.join(Landed.of(told))
                    break
                ways += history.before(made)[1:]
        return landed

    def _row(self, key: str) -> bytes:
        if key not in self._rows:
            raise NotFound(
                f"{key!r} of run {self.id!r} is gone, perhaps erased: begin another run, or give the step "
                "another key=; both call its function again",
                name=key,
            )
        return self._rows[key]

    def _load(self, key: str) -> Any:
        return self._handle.repo.load(key, self._row(key), self._reader).value

    def _intent(self, step: Step) -> Intent:
        return Intent(
            step.id, step.key, self._load(STEP + step.id + ARGUMENTS), datetime.fromtimestamp(step.began, UTC)
        )

    def _are_same(self, arguments: Encoded, recorded: bytes) -> bool:
        """Whether arguments are those of a record. Pickles of equal values may differ."""
        if arguments.entry == recorded:
            return True
        repo = self._handle.repo
        now = repo.load(ARGUMENTS, arguments.entry, Overlay(repo.objects, arguments.objects)).value
        then = repo.load(ARGUMENTS, recorded, self._reader).value
        with suppress(Exception):  # of the classes' own code; arrays have no one answer
            if now == then:
                return True
        return are_alike(now, then)

    def _put(self, step: Step, values: Mapping[str, Encoded], *, with_edits: bool = False) -> None:
        """Commit the record of a step, and the values that go with it by the ends of their keys."""
        if step.status == DONE and step.position * 2 < self._course.found.reached:
            step = step._replace(went_on=self._course.move_on(step))
        values = {**values, RECORD: encode_value(step.stored())}
        entries = {STEP + step.id + end: value for end, value in values.items()}
        info = self._next_info()
        left = [id for id in info.open if id != step.id] + [step.id] * (step.status == OPEN)
        number = info.steps + (step.id not in self._steps)
        message = f"{step.id}: {step.status}"
        info = info._replace(open=left, steps=number)
        self._publish(message, entries, info, step.id if with_edits else None)
        self._steps[step.id] = step
        self._course.flying.pop(step.id, None)

    def _next_info(self) -> RunInfo:
        if self._info is not None:
            return self._info._replace(ended=False)
        head, now = self._handle.at.head, datetime.now(UTC)
        # A clock that was ahead may have dated the head, and a reset leads behind it.
        after = 0 if head is None else min(head.order, microseconds(now))
        return RunInfo(self.id, self._of, now, now, 0, (), False, after)

    def _publish(
        self, message: str, values: Mapping[str, Encoded], info: RunInfo, edits_of: str | None
    ) -> None:
        """Commit values to the branch of the run; with a step's id, together with the edits of the state."""
        repo, before = self._handle.repo, self._commit
        if before is None:
            values = {**values, **{key: encode_value(name) for key, name in marks("run").items()}}
        rows = {key: value.entry for key, value in values.items()}
        root, expected = (None, None) if before is None else (before.root, before.oid)
        root, objects, nodes = tree.update(repo.objects.node, root, rows)
        for value in values.values():
            objects |= value.objects
        parents = () if before is None else (before,)
        commit = repo.build_commit(root, parents, message=message, info={INFO: info.stored()})
        line = reflog_action("run", commit)
        advance = Advance(self._records, (commit,), objects, tuple(nodes), expected, line)
        try:
            landed = edits_of is not None and self._commit_edits(advance, edits_of)
            if not landed and not repo.publish_all([advance], guard=self._lease):
                raise repo.ref_moved(HEADS + self._records, expected)
        except BaseException as error:
            self._is_known = False
            if isinstance(error, VStateError):
                mark_lost(error, "run")
            raise
        self._commit, self._info = commit, info
        self._rows |= rows

    # The edits of the state

    def _may_have_edits(self) -> bool:
        at = self._handle.at
        return bool(at.table.dirty or at.table.open or at.events)

    def _commit_edits(self, advance: Advance, id: str) -> bool:
        """Commit the edits of the state, and the record with them; False if there are no edits."""
        if not self._may_have_edits():
            return False
        self._require_branch()  # a step's function may have switched
        message = f"{self.id}: {advance.commits[-1].message}"
        guard = _Together(self._lease, self._handle.repo, advance)
        landing = self._course.landing(id)
        if commit_now(self._handle, message, {INFO: {"id": self.id, **landing.stored()}}, guard) is None:
            return False
        self._course.landed(landing)
        return True

    def _drop_known(self, id: str) -> None:
        """Discard the edits before this call if the state has them; RunChanged if nobody can tell."""
        if id not in self._course.unsettled:
            return
        if not self._live:  # beside other steps, the edits may be theirs
            known = self._course.has_edits_before(id)
            if known is None and self._may_have_edits() and self._handle.has_uncommitted():
                raise RunChanged(self.id, id)
            if known:
                self._drop()
        del self._course.unsettled[id]

    def _undo(self, savepoint: Savepoint) -> None:
        """Have the next call on the state undo the edits of a step; beside other steps, keep all edits."""
        if len(self._live) > 1:
            savepoint.release()
        else:
            savepoint.end()

    def _drop(self) -> None:
        """Discard the edits, and the events, since the last step."""
        if self._may_have_edits():
            self._handle.discard(())
            for event in self._handle.pending_events():
                self._handle.forget_event(event)


class _Together:
    """The guard of a commit of the state: the lease, and the record of a step that lands with the commit."""

    def __init__(self, lease: Lease, repo: Repository, record: Advance) -> None:
        self.rows = lease.rows
        self.along = (record,)
        self._lease = lease
        self._repo = repo

    def check(self) -> None:
        self._lease.check()
        (record,) = self.along
        ref = HEADS + record.branch
        if self._repo.refs.read(ref) != record.expected:
            raise self._repo.ref_moved(ref, record.expected)


def _ended(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


def _begun(call: Call, known: Step | None) -> Step:
    """The record of a step that begins, perhaps once more."""
    step = known or Step(call.id, call.position, call.named, OPEN, 0.0)
    key = step.key or (os.urandom(16).hex() if call.how.once else "")
    began = time.time()
    return step._replace(function=call.named, status=OPEN, began=began, ended=None, key=key, error="")


def _run_of(commit: Commit) -> RunInfo:
    """The run of a commit of its branch."""
    found = RunInfo.of(commit)
    if found is None:
        raise InvalidInput(
            f"commit {commit.short} is on the branch of a run, and is no record of one: delete the branch, "
            "or choose another name for the run"
        )
    return found


def _encoded(value: Any, what: str) -> Encoded:
    try:
        return encode_value(value)
    except Exception as error:  # pickling runs the classes' own code, which may raise anything
        raise Unpicklable({what: culprit(value, what, error)}, staged=False) from error


def _with_key(call: Call, step: Step) -> Mapping[str, Any]:
    """The arguments by name, with the idempotency key if the function has a parameter for it."""
    with suppress(TypeError, ValueError):  # a builtin without a signature
        if call.how.once and _KEY in inspect.signature(call.function).parameters:
            return {_KEY: step.key, **call.kwargs}
    return call.kwargs


def _said(error: BaseException) -> str:
    with suppress(Exception):  # of an exception class of the program's, whose __str__ fails
        return storable(f"{type(error).__qualname__}: {error}"[:_LONGEST_ERROR])
    return type(error).__qualname__
