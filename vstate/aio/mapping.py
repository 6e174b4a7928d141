"""Mapping: the mappings whose values are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial, wraps
from itertools import islice
from threading import Lock
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

from vstate import state as sync
from vstate.aio.workers import Workers
from vstate.arguments import called, check_several
from vstate.errors import InvalidInput
from vstate.objects.commit import Commit, Event
from vstate.repo.compare.diff import Change
from vstate.repo.core import Revision
from vstate.state.base import ATTEMPTS, Message, ReadableState, State, handle_of
from vstate.state.handle import Handle
from vstate.state.moving import go_to_newest
from vstate.state.slots import ABSENT
from vstate.state.transactions import Transaction, run_update
from vstate.state.watching import Seen, Subscription, Watch

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound=ReadableState)
_T = TypeVar("_T")

_W = TypeVar("_W", bound="sync.Versioned | sync.Namespace")

_AT_ONCE = 256  # items that an iteration fetches at a time


def awaited(
    function: Callable[Concatenate[Any, _P], _R], *, turn: bool = False
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]:
    """An awaited form of a method of the sync handle. A method that moves the branch waits for its `turn`."""

    @wraps(function)
    async def method(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _R:
        handle = await self._opened()
        call = partial(getattr(handle, function.__name__), *args, **options)
        work = self._in_turn(handle, lambda outermost: call()) if turn else self._workers.run(call)
        result: _R = await work
        return result

    return method


def iterated(
    function: Callable[Concatenate[Any, _P], Iterable[_T]],
) -> Callable[Concatenate[Any, _P], AsyncIterator[_T]]:
    """The form of a method of the sync handle for `async for`."""

    @wraps(function)
    def method(self: Any, /, *args: _P.args, **options: _P.kwargs) -> AsyncIterator[_T]:
        found: AsyncIterator[_T] = self._iterated(
            lambda handle: iter(getattr(handle, function.__name__)(*args, **options))
        )
        return found

    return method


class Reading(Generic[_S]):
    """A mapping whose reads are awaited."""

    def __init__(self, workers: Workers, handle: _S | None) -> None:
        self._workers = workers
        self._handle = handle

    async def _opened(self) -> _S:
        return self.sync

    @property
    def sync(self) -> _S:
        """The handle that this one awaits, for use in a thread; InvalidInput before it is open."""
        if self._handle is None:
            raise InvalidInput("this state is not open yet: use `async with` it, or await it")
        return self._handle

    async def _run(self, function: Callable[[_S], _R]) -> _R:
        """Call the function with the sync handle, in a worker thread."""
        handle = await self._opened()
        return await self._workers.run(partial(function, handle))

    async def _in_turn(self, handle: State, function: Callable[[bool], _R]) -> _R:
        """Call the function in a thread, in the turn; its argument says whether this call took the turn."""
        turns, token = handle_of(handle).turns, Lock()
        with turns, token:
            outermost = await turns.take_async(token)
            return await self._workers.run(partial(function, outermost))

    async def _ready(self, key: object) -> Any:
        """The value of the key if it is in memory, else ABSENT. A thread would take longer than the read."""
        if self._handle is None or not self._workers.are_open:
            return ABSENT
        value = self._handle._ready(key, ABSENT)
        if value is not ABSENT:
            await self._workers.breathe()
        return value

    async def __getitem__(self, key: str) -> Any:
        """The value of the key: `await state["k"]`. Raises KeyNotFound."""
        value = await self._ready(key)
        return await self._run(lambda handle: handle[key]) if value is ABSENT else value

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of the key, or `default` if there is none."""
        value = await self._ready(key)
        return await self._run(lambda handle: handle.get(key, default)) if value is ABSENT else value

    async def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of those keys that are present, in the order given; the store is asked a few times."""
        keys = list(check_several(keys))
        found = {key: value for key in keys if (value := await self._ready(key)) is not ABSENT}
        if len(found) == len(set(keys)):
            return found
        return await self._run(lambda handle: handle.get_many(keys))

    async def contains(self, key: str) -> bool:
        """Whether the key is present."""
        return await self._ready(key) is not ABSENT or await self._run(lambda handle: key in handle)

    async def count(self, prefix: str = "") -> int:
        """How many keys begin with `prefix`."""
        return await self._run(lambda handle: len(handle.keys(prefix)))

    def __aiter__(self) -> AsyncIterator[str]:
        return self.keys()

    # Without these two, Python would call `state[0]`, `state[1]`, … without end: each is a coroutine, and
    # none raises IndexError.

    def __iter__(self) -> NoReturn:
        raise TypeError("the keys of this state are awaited: write `async for key in state`")

    def __contains__(self, key: object) -> NoReturn:
        raise TypeError("this test is awaited: write `await state.contains(key)`")

    keys = iterated(ReadableState.keys)
    values = iterated(ReadableState.values)
    items = iterated(ReadableState.items)

    async def _iterated(self, begin: Callable[[_S], Iterator[_T]]) -> AsyncIterator[_T]:
        items = await self._run(begin)
        at_once = 1  # the first item comes soon
        while batch := await self._workers.run(partial(list[_T], islice(items, at_once))):
            for item in batch:
                yield item
            at_once = min(at_once * 4, _AT_ONCE)

    def __repr__(self) -> str:
        return f"<aio {self._handle!r}>" if self._handle is not None else "<aio, not open>"


class Snapshot(Reading[sync.Snapshot]):
    """The state at one commit, read-only."""

    @property
    def commit(self) -> Commit:
        """The commit of this state."""
        return self.sync.commit

    inert = awaited(sync.Snapshot.inert)


class Watching:
    """The result of `watch`. `async for` gives the changes; awaited, it is the Watch."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Watch]]) -> None:
        self._begin = begin
        self._watch: Watch | None = None

    async def _begun(self) -> Watch:
        if self._watch is None:
            self._watch = await self._begin()
        return self._watch

    def __await__(self) -> Generator[Any, None, Watch]:
        return self._begun().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Seen:
        return await anext(await self._begun())


class Writing(Reading[_W]):
    """A mapping whose reads and commits are awaited."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Set the key, in memory, until the next commit. This waits while a commit of the handle is under
        way: await `set` where the event loop must not wait that long.
        """
        self.sync[key] = value

    async def set(self, key: str, value: Any) -> None:
        """Set the key, in memory, until the next commit."""
        await self._run(lambda handle: handle.__setitem__(key, value))

    async def delete(self, key: str) -> None:
        """Delete the key, in memory, until the next commit. Raises KeyNotFound."""
        await self._run(lambda handle: handle.__delitem__(key))

    async def pop(self, key: str, *default: Any) -> Any:
        """Delete the key and return its value, or `default` if there is none."""
        return await self._run(lambda handle: handle.pop(key, *default))

    setdefault = awaited(State.setdefault)
    clear = awaited(State.clear)
    expire = awaited(State.expire)
    expires = awaited(State.expires)

    async def apply(
        self,
        function: Callable[[Any], object],
        /,
        *,
        attempts: int = ATTEMPTS,
        message: Message = "",
        **info: Any,
    ) -> Commit | None:
        """Call the function, in a worker thread, with the sync handle, and commit its changes. If somebody
        else changed a key that it read or changed, call it again on the newest state.
        """
        return await self.update_and_report(
            function, lambda commit: None, attempts=attempts, message=message, **info
        )

    async def update(self, other: Any = (), /, **values: Any) -> None:
        """Set the items of a mapping or of pairs, as a dict does."""
        await self._run(lambda handle: handle.update(other, **values))

    async def update_and_report(
        self, function: Callable[[Any], object], report: Callable[[Commit | None], object], /, **options: Any
    ) -> Commit | None:
        """As `apply`. `report` gets the commit, in the thread, even if this is cancelled.

        If `report` has not been called when this ends, nothing is committed.
        """
        handle = await self._opened()
        writer = _writer(handle)

        def call(outermost: bool) -> Commit | None:
            commit = run_update(writer, partial(function, handle), outermost, **options)
            report(commit)
            return commit

        return await self._in_turn(handle, call)

    async def read(self, function: Callable[[_W], _T]) -> _T:
        """Call the function, in a worker thread, with the sync handle at the newest commit, in its turn.

        The commit is the newest of the branch that this state is on, as for `apply`, wherever HEAD is.
        """
        handle = await self._opened()
        writer = _writer(handle)

        def call(outermost: bool) -> _T:
            go_to_newest(writer)
            return called("the function of read", function, handle)

        return await self._in_turn(handle, call)

    commit = awaited(sync.Versioned.commit, turn=True)

    @asynccontextmanager
    async def transaction(self, message: str = "", **info: Any) -> AsyncIterator[Self]:
        """Commit at the end of the `async with` block; on an exception undo the changes made inside.

        Inside another transaction, or a task, the outer one commits.
        """
        handle = await self._opened()
        writer = _writer(handle)
        token = Lock()
        with writer.turns, token:
            outermost = await writer.turns.take_async(token)
            inner = Transaction(writer, handle, message, info, in_turn=outermost)
            try:
                # Shielded: a transaction that has begun ends before the turn does.
                await self._workers.run(inner.__enter__, shielded=True)
                yield self
            except BaseException as error:
                await self._workers.run(partial(_ended, inner, error), shielded=True)
                raise
            await self._workers.run(lambda: inner.__exit__(None, None, None), shielded=True)

    def watch(self, pattern: str = "*", *, since: Revision | None = None) -> Watching:
        """The changes of keys like `agent:*` as they are committed; `async for key, change, commit in` it.

        Awaited, it is the Watch itself, which knows the last commit that it saw, and can be closed.
        """
        # Made now if that needs no read: the watch then covers every commit from this call on.
        made = self._handle.watch(pattern) if since is None and self._handle is not None else None

        async def begin() -> Watch:
            handle = await self._opened()
            # Not closed if this is cancelled: the caller may go on with it, and it listens only from the
            # first look on.
            return await self._workers.run(
                lambda: handle.watch(pattern, since=since) if made is None else made
            )

        return Watching(begin)

    async def subscribe(
        self, pattern: str, function: Callable[[str, Change, Commit], object]
    ) -> Subscription:
        """Call `function(key, change, commit)`, in a thread of its own, for each change of a watch."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.subscribe(pattern, function), undo=Subscription.close)

    def record(self, kind: str, **data: Any) -> Event:
        """Record an event, which the next commit keeps. `data` is plain data."""
        return self.sync.record(kind, **data)

    def namespace(self, name: str) -> Namespace:
        """The mapping of the keys under `name/`. Namespaces nest, and one commit covers all."""
        return Namespace(self._workers, self.sync.namespace(name))


def _writer(state: sync.Versioned | sync.Namespace) -> Handle:
    handle = handle_of(state)
    assert isinstance(handle, Handle), "a Versioned, or a namespace of one"
    return handle


def _ended(inner: AbstractContextManager[Any], error: BaseException) -> None:
    try:
        inner.__exit__(type(error), error, error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise


class Namespace(Writing[sync.Namespace]):
    """The keys of a state under one prefix."""
