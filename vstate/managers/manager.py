"""Manager: what all managers are: records in one part of a branch, and one update for each change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from vstate import aio
from vstate.arguments import called
from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.managers.backends import DIRECTORY, Persistence, open_persistence
from vstate.objects.commit import Commit
from vstate.state.namespace import Namespace

__all__ = ["Manager"]

X = TypeVar("X")
_T = TypeVar("_T")

_ATTEMPTS = 1000
"""How often a change is tried. On a server that has no turns, one of eight that all pull from one queue was seen to
need fifty."""

_LOOK_AGAIN = 0.001  # seconds


@dataclass(frozen=True)
class Subject(Generic[X]):
    """What a call is about: one of the things that a manager keeps, made of the newest records within each call."""

    manager: Manager
    name: str
    open: Callable[[Namespace], X]

    async def change(self, function: Callable[[X], _T], done: str | Callable[[_T], str]) -> _T:
        """As `Manager.change`; the message says what was done to what."""
        return await self.manager.change(
            lambda part: function(self.open(part)),
            lambda returned: f"{self.name}: {done(returned) if callable(done) else done}",
        )

    async def read(self, function: Callable[[X], _T]) -> _T:
        """As `Manager.read`."""
        return await self.manager.read(lambda part: function(self.open(part)))


class Manager:
    """Keeps its records in the namespace `part` of the branch `main`; every method that changes one is one commit.

    `persistence` is "memory", "file" (a FileBackend at `path`), "redis" (the one at `redis_url`), a path, a URL, or
    a store, which managers of all kinds, and of several processes, may share. It is opened by the first call, or
    by `async with`, which also closes it; a manager that is dropped leaves no thread behind. A store that is down
    raises StoreUnavailable from every call: nothing is taken for absent because it could not be read.
    """

    part: ClassVar[str]

    def __init__(
        self, persistence: Persistence = "memory", *, redis_url: str | None = None, path: str = DIRECTORY
    ) -> None:
        store = open_persistence(persistence, path=path, redis_url=redis_url)
        self._state = aio.Versioned(store, branch="main")
        self._own_store = store if isinstance(store, KVStore) and store is not persistence else None
        self._closed = False
        self._under_way = 0

    @property
    def state(self) -> aio.Versioned:
        """The state that the records are in, with all of its history."""
        return self._state

    async def change(
        self, function: Callable[[Namespace], _T], message: str | Callable[[_T], str], **info: Any
    ) -> _T:
        """Call the function with the newest records and commit what it changed; again if others were faster.

        Returns what the function returned, of which the message may be a function. Nothing has changed if it raises,
        nor if the commit does. What it sets and returns has to be nobody else's: an edit of it later would be one of
        the state (Records see to that).
        """
        return await self.change_and_tell(function, lambda: None, message, **info)

    async def change_and_tell(
        self,
        function: Callable[[Namespace], _T],
        told: Callable[[], object],
        message: str | Callable[[_T], str],
        **info: Any,
    ) -> _T:
        """As `change`; `told` is called once it is committed, in a thread, even when the caller is cancelled then."""
        returned: list[_T] = []

        def call(state: Any) -> _T:
            returned[:] = [called("the function of change", function, state.namespace(self.part))]
            return returned[0]

        await self._called(
            lambda: self._state.update_and_tell(
                call, lambda commit: told(), message=message, attempts=_ATTEMPTS, **info
            )
        )
        return returned[0]

    async def read(self, function: Callable[[Namespace], _T]) -> _T:
        """What the function returns for the newest records, whoever wrote them; a copy, as with `change`."""
        return await self._called(
            lambda: self._state.read(
                lambda state: called("the function of read", function, state.namespace(self.part))
            )
        )

    def about(self, name: str, open: Callable[[Namespace], X]) -> Subject[X]:
        """What calls are about, such as one team, by the name that begins the messages of its commits."""
        return Subject(self, name, open)

    async def history(self, key: str, *, limit: int | None = None) -> list[Commit]:
        """The commits that changed what is kept under a key of this manager's part, newest first.

        The key begins behind the part: "tasks/t/1" for what `vstate ls` shows as "teams/tasks/t/1". Of one that there
        never was there are none.
        """

        async def walk() -> list[Commit]:
            await self._state.read(lambda state: None)
            return [commit async for commit in self._state.log(key=f"{self.part}/{key}", limit=limit)]

        return await self._called(walk)

    async def close(self) -> None:
        """Close the manager, and the store, if it was made here, once the calls under way have ended.

        Closing twice is fine, and ends what a cancelled `close` has begun. Using it then raises InvalidInput.
        """
        self._closed = True
        # Before the try: where this is cancelled here, the calls under way still need the store.
        while self._under_way:  # in this event loop or another one
            await asyncio.sleep(_LOOK_AGAIN)
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

    async def _called(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """What a call returns, which `close` waits for; InvalidInput if the manager is closed."""
        self._require_open()
        self._under_way += 1
        try:
            await self._begin()
            return await call()
        finally:
            self._under_way -= 1

    async def _begin(self) -> None:
        """What a manager does at the beginning of each call."""

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidInput(f"this {type(self).__name__} is closed: make a new one")
