"""Opening: the store behind an adapter, which the adapter closes if it opened the store."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import NamedTuple, Self

from vstate.kv.base import KVStore
from vstate.kv.url import open_store
from vstate.repo.repository import Repository
from vstate.repo.rules.security import Security
from vstate.sessions.shielding import in_thread

StoreLike = KVStore | str | PathLike[str] | None
"""A store for an adapter: a KVStore, a path, a URL, or None for memory."""


class Opening(NamedTuple):
    """The repository of an adapter, and the store that is closed with the adapter, if any."""

    repo: Repository
    owned: KVStore | None

    @classmethod
    def of(cls, store: StoreLike, *, allow: Iterable[str] = ()) -> Self:
        """Open a store. Its values load without classes, apart from those that `allow` names."""
        opened = open_store(store)
        return cls(Repository(opened, Security(allow=allow)), None if opened is store else opened)

    def close(self) -> None:
        """Close the store if it was opened here."""
        if self.owned is not None:
            self.owned.close()


class Opened:
    """An adapter that is closed by a call, or at the end of a `with` or `async with` block."""

    _opening: Opening

    @property
    def repo(self) -> Repository:
        """The repository of the adapter's branches."""
        return self._opening.repo

    def close(self) -> None:
        """Close the store if it was opened here."""
        self._opening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await in_thread(self.close)


class AsyncOpened:
    """An adapter that is closed by a call that is awaited, or at the end of an `async with` block."""

    _opening: Opening

    @property
    def repo(self) -> Repository:
        """The repository of the adapter's branches."""
        return self._opening.repo

    async def close(self) -> None:
        """Close the store if it was opened here."""
        await in_thread(self._opening.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()
