"""Manager: the base class of managers. It keeps records in one namespace of a branch, one update a change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from vstate import aio
from vstate.aio.workers import UnderWay
from vstate.arguments import called
from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.managers.backends import Persistence, Where, open_persistence
from vstate.objects.commit import Commit
from vstate.state.namespace import Namespace

__all__ = ["Manager"]

X = TypeVar("X")
_T = TypeVar("_T")

_ATTEMPTS = 1000
"""Attempts of one change. One of eight processes on one queue needed 50."""


class Manager:
    """Keeps records in the namespace `part` of a branch. Each method that changes one is one commit.

    The branch is `branch`, or else the branch that HEAD is on when the manager opens the store.

    `persistence` is "memory", "file" (a FileBackend in the directory `path`, or one that shows its values in
    the file `path`, if that ends with `.json`), "redis" (the server at `redis_url`, with `key_prefix`), a
    path, a URL, or a store. Managers of all kinds, in several processes, may share a store. The first call,
    or `async with`, opens it; `async with` also closes it. A manager that is dropped leaves no thread behind.
    While the store cannot be reached, every call raises StoreUnavailable; nothing counts as absent because it
    could not be read.
    """

    part: ClassVar[str]

    def __init__(self, persistence: Persistence = "memory", **where: Unpack[Where]) -> None:
        store = open_persistence(persistence, self.part, **where)
        self._state = aio.Versioned(store, branch=where.get("branch"))
        self._own_store = store if isinstance(store, KVStore) and store is not persistence else None
        self._closed = False
        self._under_way = UnderWay()

    @property
    def state(self) -> aio.Versioned:
        """The state with the records, and all of its history."""
        return self._state

    async def change(
        self, function: Callable[[Namespace], _T], message: str | Callable[[_T], str], **info: Any
    ) -> _T:
        """Call the function with the newest records, and commit its changes; again if others were faster.

        Returns the result of the function. The message may be a function of that result. Nothing changes if
        the function or the commit raises. Values that the function sets or returns must be copies: a later
        edit of one would be an edit of the state. Records copy by themselves.
        """
        return await self._change(function, lambda: None, message, **info)

    async def _change(
        self,
        function: Callable[[Namespace], _T],
        on_commit: Callable[[], object],
        message: str | Callable[[_T], str],
        **info: Any,
    ) -> _T:
        """As `change`. Calls `on_commit` after the commit, in a thread, even if the caller is cancelled."""
        returned: list[_T] = []

        def call(state: Any) -> _T:
            returned[:] = [called("the function of change", function, state.namespace(self.part))]
            return returned[0]

        await self._call(
            lambda: self._state.update_and_report(
                call, lambda commit: on_commit(), message=message, attempts=_ATTEMPTS, **info
            )
        )
        return returned[0]

    async def read(self, function: Callable[[Namespace], _T]) -> _T:
        """Call the function with the newest records. Returns its result: a copy, as for `change`."""
        return await self._call(
            lambda: self._state.read(
                lambda state: called("the function of read", function, state.namespace(self.part))
            )
        )

    async def history(self, key: str, *, limit: int | None = None) -> list[Commit]:
        """The commits that changed a key, newest first; none for a key that never existed.

        The key is relative to the part of this manager: "tasks/t/1" for "teams/tasks/t/1" in `vstate ls`.
        """
        own = f"{self.part}/{key}"
        return await self._call(lambda: self._state.read(lambda state: list(state.log(key=own, limit=limit))))

    async def close(self) -> None:
        """Wait for the calls under way, then close the manager, and the store if the manager made it.

        A second `close` does nothing, or finishes a cancelled one. Other calls then raise InvalidInput.
        """
        self._closed = True
        # Outside the try block: if this is cancelled here, the calls under way still need the store.
        await self._under_way.ended()
        try:
            await self._state.close()
        finally:
            if self._own_store is not None:
                self._own_store.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._state.location}{', closed' if self._closed else ''}>"

    async def __aenter__(self) -> Self:
        await self.read(lambda part: None)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Await the call; `close` waits for it. Raises InvalidInput if the manager is closed."""
        self._require_open()
        with self._under_way:
            await self._begin()
            return await call()

    async def _begin(self) -> None:
        """Called at the beginning of each call; for subclasses."""

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"this {type(self).__name__} is closed: make a new one")


@dataclass(frozen=True)
class Entity(Generic[X]):
    """One thing that a manager keeps, such as a team. Each call opens it on the newest records.

    Its `title` begins the messages of its commits.
    """

    manager: Manager
    title: str
    open: Callable[[Namespace], X]

    async def change(self, function: Callable[[X], _T], done: str | Callable[[_T], str]) -> _T:
        """As `Manager.change`; `done` ends the message of the commit."""
        return await self.manager.change(
            lambda part: function(self.open(part)),
            lambda returned: f"{self.title}: {done(returned) if callable(done) else done}",
        )

    async def read(self, function: Callable[[X], _T]) -> _T:
        """As `Manager.read`."""
        return await self.manager.read(lambda part: function(self.open(part)))


class Wait:
    """Work that is done, or goes on by itself. `await` waits for its end, and raises its error."""

    def __init__(self, until_done: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        # A function, not a coroutine: Python warns of a coroutine that is never awaited.
        self._until_done = until_done

    def __await__(self) -> Generator[Any, None, None]:
        if self._until_done is not None:
            yield from self._until_done().__await__()
