"""Manager: what all managers are: records in one part of a branch, and one update for each change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

from vstate import aio
from vstate.managers.persistence import DIRECTORY, Persistence, open_persistence
from vstate.objects.commit import Commit
from vstate.state.namespace import Namespace

_T = TypeVar("_T")


class Manager:
    """Keeps its records in the namespace `part` of the branch `main`; every method that changes one is one commit.

    Opened by the first call, or by `async with`, which also closes it. Managers of several processes may share a
    store, and so may managers of several kinds. A store that is down raises StoreUnavailable from every call: nothing
    is taken for absent because it could not be read.
    """

    part: ClassVar[str]

    def __init__(
        self, persistence: Persistence = "memory", *, redis_url: str | None = None, path: str = DIRECTORY
    ) -> None:
        store = open_persistence(persistence, path=path, redis_url=redis_url)
        self._state = aio.Versioned(store, branch="main")
        self._own_store = store if store is not persistence else None

    @property
    def state(self) -> aio.Versioned:
        """The state that the records are in, with all of its history."""
        return self._state

    async def change(self, function: Callable[[Namespace], _T], message: str, **info: Any) -> _T:
        """Call the function with the newest records and commit what it changed; again if others were faster.

        Returns what the function returned. Nothing has changed if it raises.
        """
        returned: list[_T] = []

        def call(state: Any) -> None:
            returned[:] = [function(state.namespace(self.part))]

        await self._state.update(call, message=message, attempts=_ATTEMPTS, **info)
        return returned[0]

    async def read(self, function: Callable[[Namespace], _T]) -> _T:
        """What the function returns for the newest records, whoever wrote them."""
        return await self._state.read(lambda state: function(state.namespace(self.part)))

    async def history(self, key: str, *, limit: int | None = None) -> list[Commit]:
        """The commits that changed a record, newest first."""
        return [commit async for commit in self._state.log(key=f"{self.part}/{key}", limit=limit)]

    async def close(self) -> None:
        """Close the manager, and the store, if it was made here."""
        await self._state.close()
        if self._own_store is not None:
            self._own_store.close()

    async def __aenter__(self) -> Self:
        await self._state.read(lambda state: None)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


_ATTEMPTS = 100
