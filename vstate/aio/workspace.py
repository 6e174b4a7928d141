"""Workspace: a directory that goes with an awaited state."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from os import PathLike
from typing import Any, Self

from vstate import workspace as sync
from vstate.aio.mapping import awaited
from vstate.aio.versioned import Versioned
from vstate.forks import new_lock


class Workspace:
    """A directory of files that goes with an awaited state: `await Workspace(state, "project")`.

    `vstate.Workspace` explains the arguments. It opens when it is first awaited.
    """

    def __init__(
        self,
        state: Versioned,
        directory: str | PathLike[str],
        prefix: str = sync.PREFIX,
        *,
        force: bool = False,
    ) -> None:
        self._state = state
        self._workers = state._workers
        self._open = partial(sync.Workspace, directory=directory, prefix=prefix, force=force)
        self._opening = new_lock()
        self._workspace: sync.Workspace | None = None

    async def _opened(self) -> sync.Workspace:
        if self._workspace is not None:
            return self._workspace
        state = await self._state._opened()
        return await self._workers.run(partial(self._open_once, state))

    def _open_once(self, state: Any) -> sync.Workspace:
        with self._opening:
            if self._workspace is None:
                self._workspace = self._open(state)
            return self._workspace

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._opened().__await__()
        return self

    status = awaited(sync.Workspace.status)
    diff = awaited(sync.Workspace.diff)
    at = awaited(sync.Workspace.at)
    restore = awaited(sync.Workspace.restore)
    close = awaited(sync.Workspace.close)
