"""Tasks: functions whose every call is one commit; the events recorded in them; and views of a state."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import date, timedelta
from datetime import time as time_of_day
from enum import Enum
from pathlib import PurePath
from reprlib import Repr
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast, overload
from uuid import UUID

from vstate.arguments import called, check_limit, require_plain, storable
from vstate.errors import CannotLoad, InvalidInput, VStateError, mark_lost
from vstate.objects.commit import Event
from vstate.repo.core import Revision
from vstate.state.base import ReadableState, State, Undoable, handle_of
from vstate.state.live import Live
from vstate.state.namespace import Namespace
from vstate.state.snapshot import Snapshot
from vstate.state.versioned import Versioned

OnError = Literal["discard", "commit", "keep"]

_F = TypeVar("_F", bound=Callable[..., Any])

_SHOWN = 200
_LINE = 72


@overload
def task(function: _F, /) -> _F: ...


@overload
def task(
    *,
    name: str | None = None,
    message: str | Callable[..., str] | None = None,
    on_error: OnError = "discard",
) -> Callable[[_F], _F]: ...


def task(
    function: _F | None = None,
    /,
    *,
    name: str | None = None,
    message: str | Callable[..., str] | None = None,
    on_error: OnError = "discard",
) -> _F | Callable[[_F], _F]:
    """Make each call of a function, `def` or `async def`, one commit of the `state` it is called with.

    Without a `state` the call gets a fresh `Live`. The outermost task commits, with `name`, `seconds` and
    `outcome` ("ok" or "error") as info. Tasks that it calls on the same state add to that commit. Changes
    from before the call are committed first, on their own. Each task records the events `task.start` and
    `task.end`, or `task.error`.

    The commit's message has the name and the arguments of the call, such as `turn(step=3)`, cut to a line.
    Give a `message` if an argument is a secret: a text, or a function. The function gets the arguments of the
    call, without the state, and `result=`. A call that raises has no result: its message has the call.

    If the function raises, the exception goes on to the caller. The changes since the call began depend on
    `on_error`. "discard" undoes them, and a commit without changes keeps the events; "commit" commits them;
    "keep" leaves them staged with the events. If the commit itself raises, Unpicklable or MergeConflict for
    example, the caller gets that error. "discard" and "commit" then undo the changes, so later tasks can run.

    A task is no step: each call calls the function. The steps of a run, `state.run(...)`, are done once, and
    give their recorded results after a crash or a rollback.

    Changes have no author: "discard" also undoes the changes that other threads, or other tasks on the same
    state, made meanwhile. Work that runs side by side needs states of its own, such as forks. A function
    without an argument `state` is a TypeError.
    """
    if on_error not in ("discard", "commit", "keep"):
        raise InvalidInput(f"on_error is 'discard', 'commit' or 'keep', not {on_error!r}")
    if message is not None and not isinstance(message, str):
        require_plain("the message of a task", message)

    def decorate(function: _F) -> _F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(
                f"{function.__qualname__} is a generator; a task is a def or async def that returns"
            )
        place = _place_of_state(function)
        title = name if name is not None else getattr(function, "__name__", type(function).__name__)

        if inspect.iscoroutinefunction(inspect.unwrap(function)):

            @functools.wraps(function)
            async def call_async(*args: Any, state: State | None = None, **options: Any) -> Any:
                state = _checked(state, by_name=len(args) <= place, title=title)
                turns, token = handle_of(state).turns, Lock()
                with turns, token:
                    outermost = await turns.take_async(token)
                    run = _Call(state, title, message, on_error, nested=not outermost)
                    run.begin(function, args, options)
                    try:
                        result = await cast(Awaitable[Any], function(*args, state=state, **options))
                        run.end(result)
                    except BaseException as error:
                        run.fail(error)
                        raise
                    return result

            return cast(_F, call_async)

        @functools.wraps(function)
        def call(*args: Any, state: State | None = None, **options: Any) -> Any:
            state = _checked(state, by_name=len(args) <= place, title=title)
            turns, token = handle_of(state).turns, Lock()
            with turns, token:
                outermost = turns.take(token)
                run = _Call(state, title, message, on_error, nested=not outermost)
                run.begin(function, args, options)
                try:
                    result = _finished(function(*args, state=state, **options))
                    run.end(result)
                except BaseException as error:
                    run.fail(error)
                    raise
                return result

        return cast(_F, call)

    return decorate if function is None else decorate(function)


def _finished(result: Any) -> Any:
    if inspect.iscoroutine(result):
        result.close()
        raise InvalidInput(
            "a task that is a def returned a coroutine, which would run after the commit; make the task an "
            "async def"
        )
    return result


def _place_of_state(function: object) -> float:
    """How many arguments by position come before `state`. TypeError unless it can be given by name."""
    if not callable(function):
        raise TypeError(
            f'a task is a function, not {type(function).__name__}; options have names: @task(name="…")'
        )
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a builtin without a signature
        parameters = MappingProxyType({})
    found = parameters.get("state")
    if found is not None and found.kind is found.POSITIONAL_OR_KEYWORD:
        return list(parameters).index("state")
    taken = found is not None and found.kind is found.KEYWORD_ONLY
    if not taken and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        title = getattr(function, "__name__", type(function).__name__)
        raise TypeError(f"the task {title} has no argument 'state': write def {title}(…, *, state)")
    return math.inf


def _checked(state: object, *, by_name: bool, title: str) -> State:
    if not by_name:
        raise TypeError(f"the task {title} takes its state by name: {title}(…, state=state)")
    if state is None:
        return Live()
    if not isinstance(state, State):
        raise TypeError(
            f"a task's state is a Versioned, a Live or a Namespace of one, not {type(state).__name__}"
        )
    return state


class _Call:
    """One call of a task on one state. If it is `nested` in another, the outer one commits."""

    def __init__(
        self,
        state: State,
        name: str,
        message: str | Callable[..., str] | None,
        on_error: OnError,
        *,
        nested: bool,
    ) -> None:
        self._state = state
        self._name = name
        self._message = message
        self._text = message if isinstance(message, str) else name
        self._on_error = on_error
        self.nested = nested
        self._savepoint: Undoable | None = None
        self._end: Event | None = None
        self._began = time.perf_counter()

    def begin(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Commit earlier changes, so that the next commit has those of the call alone."""
        self._given = args, options
        if not self.nested:
            self._state.commit(f"Before {self._name}")
            if not isinstance(self._message, str):  # now: the call may change its arguments
                self._text = _told(self._name, function, args, options)
        if self._on_error != "keep":
            self._savepoint = handle_of(self._state).savepoint()
        self._state.record("task.start", name=self._name)
        self._began = time.perf_counter()

    def end(self, result: object) -> None:
        """Commit the changes of the call."""
        self._end = self._state.record("task.end", name=self._name, seconds=self._seconds())
        if not self.nested:
            if callable(self._message):
                args, options = self._given
                text = called("the message of a task", self._message, *args, result=result, **options)
                self._commit("ok", text)
            else:
                self._commit("ok", self._text)
        self._release()

    def fail(self, error: BaseException) -> None:
        """Undo, commit or keep the changes of a call that raised, or whose commit did."""
        if self._end is not None:
            if self._savepoint is not None and isinstance(error, VStateError):
                mark_lost(error, "task")
                error.add_note(
                    f"vstate: the commit of the task {self._name!r} failed, and its changes are undone"
                )
            self._undo(error)
            if not handle_of(self._state).forget_event(self._end):
                return  # the commit turned out to be made
        elif self._on_error == "discard":
            self._undo(error)
        self._state.record(
            "task.error",
            name=self._name,
            seconds=self._seconds(),
            type=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
            message=_text(error),
        )
        if self._on_error != "keep" and not self.nested:
            failure = _noting(error, lambda: self._commit("error", self._text))
            if failure is not None and self._savepoint is not None:  # on_error="commit"
                self._undo(error)
                _noting(error, lambda: self._commit("error", self._text))
        self._release()

    def _undo(self, error: BaseException) -> None:
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None:
            _noting(error, savepoint.restore)

    def _release(self) -> None:
        if self._savepoint is not None:
            self._savepoint.release()

    def _seconds(self) -> float:
        return round(time.perf_counter() - self._began, 6)

    def _commit(self, outcome: str, message: str) -> None:
        self._state.commit(message, name=self._name, seconds=self._seconds(), outcome=outcome)


class _Short(Repr):
    """Plain data as it is written in Python, cut short; of other objects the class alone."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 2, 40, 40, 40
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 3

    def repr_instance(self, x: Any, level: int) -> str:
        is_plain = isinstance(
            x, (bool, bytes, complex, date, float, time_of_day, timedelta, Enum, UUID, PurePath)
        )
        return super().repr_instance(x, level) if is_plain or x is None else f"<{type(x).__name__}>"


def _told(name: str, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """A call in words: its name, and the arguments that it was given, by name."""
    short = _Short().repr
    try:
        given: list[tuple[str, Any]] = []
        signature = inspect.signature(function)
        bound = signature.bind_partial(*args, **options).arguments
        bound.pop("self", None)
        for key, value in bound.items():
            kind = signature.parameters[key].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                given += (("", each) for each in value)
            else:
                given += value.items() if kind is inspect.Parameter.VAR_KEYWORD else [(key, value)]
        text = ", ".join(f"{key}={short(each)}" if key else short(each) for key, each in given)
    except (TypeError, ValueError):  # the call raises the better error, or a builtin has no signature
        text = "…"
    told = storable(f"{name}({text})")
    return told if len(told) <= _LINE else told[: _LINE - 1] + "…"


def _noting(error: BaseException, action: Callable[[], None]) -> VStateError | None:
    """Carry out the action. If it fails too, add a note to the error that goes to the caller."""
    try:
        action()
    except VStateError as failure:
        error.add_note(f"vstate, while it dealt with this error: {failure}")
        return failure
    return None


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # an exception class of the user's whose __str__ fails
        text = ""
    return text[:2000].encode("utf-8", "backslashreplace").decode()


def events(
    state: State, *, kind: str | None = None, rev: Revision = "HEAD", limit: int | None = None
) -> list[Event]:
    """The events of a state up to a revision, oldest first; the newest `limit` of them.

    `event.commit` is the id of the commit that holds the event and its effects, which
    `state.checkout(event.commit)` shows. It is None for an event that is not committed yet; "HEAD" includes
    those. With `kind`, only events of that kind. A namespace has its own events and those of the namespaces
    below.
    """
    most = check_limit(limit)
    if not isinstance(state, State):
        raise TypeError(f"events are of a Versioned, a Live or a Namespace, not of {type(state).__name__}")
    root = state.root
    namespace = state.prefix.removesuffix("/")
    found: list[Event] = []

    def take(batch: list[Event]) -> bool:
        for event in reversed(batch):
            if most is not None and len(found) >= most:
                return False
            inside = (
                not namespace or event.namespace == namespace or event.namespace.startswith(namespace + "/")
            )
            if inside and (kind is None or event.kind == kind):
                found.append(event)
        return True

    more = take(handle_of(root).pending_events()) if rev == "HEAD" else True
    if more and isinstance(root, Versioned):
        for commit in root.log(rev):
            batch = [replace(event, commit=commit.id) for event in commit.events]
            if not take(batch):
                break
    return found[::-1]


class View(dict[str, Any]):
    """A dict that prints as a table."""

    def __init__(self, title: str, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self._title = title

    def __str__(self) -> str:
        width = max((len(key) for key in self), default=0)
        lines = [f"  {key:<{width}}  {_shortened(value)}" for key, value in self.items()]
        return "\n".join([self._title, *(lines or ["  (nothing)"])])

    def _repr_html_(self) -> str:
        from html import escape  # only a notebook asks

        rows = "".join(
            f"<tr><th>{escape(key)}</th><td>{escape(_shortened(value))}</td></tr>"
            for key, value in self.items()
        )
        return f"<table><caption>{escape(self._title)}</caption>{rows}</table>"


def _shortened(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        return f"{_shortened(value[0])} -> {_shortened(value[1])}"
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _value_or_error(state: ReadableState, key: str) -> Any:
    try:
        return state[key]
    except CannotLoad as error:
        return error


def view(state: ReadableState, focus: Literal["full", "recent"] = "full") -> View:
    """The contents of a state or snapshot, as a dict that prints as a table.

    "full": every key with its value, or with the CannotLoad error of a value that cannot be loaded. "recent":
    each key that the newest commit changed, with the pair of its old and new value; None stands for absent. A
    `Live` has no history, so "recent" raises NotVersioned.
    """
    if not isinstance(state, ReadableState):
        raise TypeError(f"a view is of a state or a snapshot, not of {type(state).__name__}")
    if focus == "full":
        return View(str(state._title()), {key: _value_or_error(state, key) for key in state})
    if focus != "recent":
        raise InvalidInput(f"focus is 'full' or 'recent', not {focus!r}")
    prefix = ""
    if isinstance(state, Namespace):
        prefix, state = state.prefix, state.root
    if isinstance(state, Snapshot):
        repo, commit = state.repo, state.commit
    elif isinstance(state, Versioned):
        if state.head is None:
            return View("no commit yet", {})
        repo, commit = state.repo, state.head
    else:
        state.log()  # type: ignore[attr-defined]  # Live's raises NotVersioned
        raise AssertionError("unreachable")
    changes = repo.changes(commit)
    pairs = {
        key.removeprefix(prefix): (change.old, change.new)
        for key, change in changes.items()
        if key.startswith(prefix)
    }
    return View(str(commit), pairs)
