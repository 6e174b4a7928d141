"""Writing: a mapping that is changed at once, and committed by an await."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar, overload

from vstate import state as sync
from vstate.aio.reading import Reading, awaited
from vstate.aio.watching import Watching
from vstate.arguments import called
from vstate.objects.commit import Commit, Event
from vstate.repo.compare.diff import Change
from vstate.repo.repository import Revision
from vstate.state.base import Message, State, handle_of
from vstate.state.handle import Handle
from vstate.state.transactions import Transaction
from vstate.state.turns import Turn
from vstate.state.updates import run_update
from vstate.state.watching import Subscription, Watch

_T = TypeVar("_T")
_W = TypeVar("_W", bound="sync.Versioned | sync.Namespace")


class Writing(Reading[_W]):
    """A mapping to be read and written."""

    def __setitem__(self, key: str, value: Any) -> None:
        """Set the key, in memory, until the next commit. It waits for a commit of this handle that is under way:
        await `set` where that would hold up the loop for too long.
        """
        self.sync[key] = value

    async def set(self, key: str, value: Any) -> None:
        """Set the key, in memory, until the next commit."""
        handle = await self._opened()
        await self._workers.run(lambda: handle.__setitem__(key, value))

    async def delete(self, key: str) -> None:
        """Delete the key, in memory, until the next commit. Raises KeyNotFound."""
        handle = await self._opened()
        await self._workers.run(lambda: handle.__delitem__(key))

    async def pop(self, key: str, *default: Any) -> Any:
        """Delete the key and give its value; `default` if there is none."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.pop(key, *default))

    async def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of the key, set to `default` if there was none."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.setdefault(key, default))

    clear = awaited(State.clear)
    expire = awaited(State.expire)
    expires = awaited(State.expires)

    @overload
    async def update(
        self,
        function: Callable[[Any], object],
        /,
        *,
        attempts: int = 10,
        message: Message = "",
        **info: Any,
    ) -> Commit | None: ...

    @overload
    async def update(
        self, other: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **values: Any
    ) -> None: ...

    async def update(self, other: Any = (), /, **values: Any) -> Commit | None:
        """With a function: call it, in a worker thread, with the sync handle, and commit what it changed; again
        on the fresh state until nobody else has changed what it read or changed. With a mapping or pairs: set them.
        """
        if callable(other) and not hasattr(other, "keys"):
            return await self.update_and_tell(other, lambda commit: None, **values)
        handle = await self._opened()
        await self._workers.run(lambda: handle.update(other, **values))
        return None

    async def update_and_tell(
        self, function: Callable[[Any], object], told: Callable[[Commit | None], object], /, **options: Any
    ) -> Commit | None:
        """As `update` with a function; `told` hears what came of it, in the thread, even when the caller is cancelled.

        Where it has not been called by the end of this, nothing is committed.
        """
        handle = await self._opened()
        call, writer = partial(function, handle), _writer(handle)

        def update(outermost: bool) -> Commit | None:
            commit = run_update(writer, call, outermost, **options)
            told(commit)
            return commit

        return await self._in_turn(handle, update)

    async def read(self, function: Callable[[_W], _T]) -> _T:
        """Call the function, in a worker thread, with the sync handle at the newest commit, between other updates."""
        handle = await self._opened()
        root = handle.root
        assert isinstance(root, sync.Versioned)

        def call(outermost: bool) -> _T:
            root.refresh()
            return called("the function of read", function, handle)

        return await self._in_turn(handle, call)

    async def commit(self, message: str = "", **info: Any) -> Commit | None:
        """Commit what changed, in place or by key; None if nothing did. Cancelled, it is done or not done."""
        handle = await self._opened()
        return await self._in_turn(handle, lambda outermost: handle.commit(message, **info))

    @asynccontextmanager
    async def transaction(self, message: str = "", **info: Any) -> AsyncIterator[Self]:
        """Commit at the end of the `async with` block; discard what was changed inside on an exception.

        Inside another transaction, or a task, it leaves the commit to that one.
        """
        handle = await self._opened()
        writer = _writer(handle)
        turn, nested = Turn(), writer.turns.nested
        with turn.bell, turn.held:  # nobody waits for a turn that was not taken
            if not nested:
                await writer.turns.take_async(turn)
            inner = Transaction(writer, handle, message, info, in_turn=not nested)
            try:
                # Surely, all of it: what was begun is ended before the turn is.
                await self._workers.run(inner.__enter__, surely=True)
                yield self
            except BaseException as error:
                await self._workers.run(partial(_ended, inner, error), surely=True)
                raise
            await self._workers.run(lambda: inner.__exit__(None, None, None), surely=True)

    def watch(self, pattern: str = "*", *, since: Revision | None = None) -> Watching:
        """The changes of keys like `agent:*` as they are committed: `async for key, change, commit in state.watch(...)`.

        Awaited, it is the Watch itself, which can be asked what it has seen, and closed.
        """
        # Here, where nothing has to be read for it: what is committed from the call on is told, whenever it is gone through.
        made = self._handle.watch(pattern) if since is None and self._handle is not None else None

        async def begin() -> Watch:
            handle = await self._opened()
            # Not closed where this is cancelled: who goes through it may go on, and it listens from the first look on only.
            return await self._workers.run(
                lambda: handle.watch(pattern, since=since) if made is None else made
            )

        return Watching(begin)

    async def subscribe(
        self, pattern: str, function: Callable[[str, Change, Commit], object]
    ) -> Subscription:
        """Have `function(key, change, commit)` called, in a thread of its own, for each change of a watch."""
        handle = await self._opened()
        return await self._workers.run(lambda: handle.subscribe(pattern, function), undo=Subscription.close)

    def record(self, kind: str, **data: Any) -> Event:
        """Record that something happened; the next commit keeps it. `data` is plain data."""
        return self.sync.record(kind, **data)

    def namespace(self, name: str) -> Namespace:
        """The mapping of the keys under `name/`; it nests, and one commit covers all."""
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
