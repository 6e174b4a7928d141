"""Writing: a mapping that is changed at once, and committed by an await."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from threading import Lock
from typing import Any, Self, TypeVar
from warnings import warn

from vstate import state as sync
from vstate.aio.reading import Reading, awaited
from vstate.arguments import called
from vstate.objects.commit import Commit, Event
from vstate.repo.compare.diff import Change
from vstate.repo.core import Revision
from vstate.state.base import ATTEMPTS, FUNCTION_TO_UPDATE, Message, State, handle_of
from vstate.state.committing import OnRace
from vstate.state.handle import Handle
from vstate.state.moving import go_to_newest
from vstate.state.transactions import Transaction, run_update
from vstate.state.watching import Seen, Subscription, Watch

_T = TypeVar("_T")
_W = TypeVar("_W", bound="sync.Versioned | sync.Namespace")


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

    async def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of the key. If there is none, set it to `default`."""
        return await self._run(lambda handle: handle.setdefault(key, default))

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
        """Set the items of a mapping or of pairs, as a dict does.

        For one release a function works as in `apply`, with a DeprecationWarning.
        """
        if callable(other) and not hasattr(other, "keys"):
            warn(FUNCTION_TO_UPDATE, DeprecationWarning, stacklevel=2)
            return await self.apply(other, **values)  # type: ignore[return-value]
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

    async def commit(
        self,
        message: str = "",
        *,
        keys: Iterable[str] | None = None,
        on_race: OnRace = "merge",
        **info: Any,
    ) -> Commit | None:
        """Commit the changes, in place or by key, or those of some keys; None without any. Cancelled, it is
        done or not done.
        """
        handle = await self._opened()
        commit = partial(handle.commit, message, keys=keys, on_race=on_race, **info)
        return await self._in_turn(handle, lambda outermost: commit())

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
