"""Workspace: a directory that goes with an awaited state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from functools import partial
from os import PathLike
from typing import Any, Final, Self

from vstate import workspace as sync
from vstate.aio.mapping import awaited
from vstate.aio.versioned import Versioned
from vstate.forks import new_lock
from vstate.repo.core import Revision


class Workspace:
    """A directory of files that goes with an awaited state: `await Workspace(state, "project")`.

    `vstate.Workspace` explains the arguments. It opens when it is first awaited; `async with` also closes it.
    """

    def __init__(
        self,
        state: Versioned,
        directory: str | PathLike[str],
        prefix: str = sync.PREFIX,
        *,
        force: bool = False,
    ) -> None:
        self.state: Final = state
        self.prefix: Final = prefix
        self._workers = state._workers
        self._open = partial(sync.Workspace, directory=directory, prefix=prefix, force=force)
        self._opening = new_lock()
        self._workspace: sync.Workspace | None = None

    async def _opened(self) -> sync.Workspace:
        if self._workspace is not None:
            return self._workspace
        state = await self.state._opened()
        return await self._workers.run(partial(self._open_once, state))

    def _open_once(self, state: Any) -> sync.Workspace:
        with self._opening:
            if self._workspace is None:
                self._workspace = self._open(state)
            return self._workspace

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._opened().__await__()
        return self

    async def __aenter__(self) -> Self:
        try:
            return await self
        except BaseException:
            if self._workspace is not None:  # it was opened as the task was cancelled
                await self.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def fork(
        self, name: str, directory: str | PathLike[str], at: Revision = "HEAD"
    ) -> AsyncIterator[Workspace]:
        """A new branch at a revision, as a state and a directory of its own, for the `async with` block."""
        async with await self.state.fork(name, at) as state:
            async with Workspace(state, directory, self.prefix) as other:
                yield other

    status = awaited(sync.Workspace.status)
    diff = awaited(sync.Workspace.diff)
    at = awaited(sync.Workspace.at)
    restore = awaited(sync.Workspace.restore)
    close = awaited(sync.Workspace.close)
