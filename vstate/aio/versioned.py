"""Versioned: a branch that a program with an event loop can write to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Self

from vstate import state as sync
from vstate.aio.lease import Lease, entered
from vstate.aio.reading import Snapshot, awaited
from vstate.aio.repository import Repository
from vstate.aio.workers import Workers
from vstate.aio.writing import Writing
from vstate.forks import new_lock
from vstate.kv.base import KVStore
from vstate.kv.url import location_of
from vstate.objects.commit import Commit
from vstate.repo.repository import Revision
from vstate.repo.rules.signing import KeyToSign, KeyToTrust


class Versioned(Writing[sync.Versioned]):
    """A branch that a program with an event loop can write to. `vstate.Versioned` explains the arguments.

    `async with` opens and closes it. It also opens when it is first awaited: `state = await
    Versioned(store)`.
    """

    def __init__(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        branch: str | None = None,
        sign: KeyToSign | None = None,
        trust: Iterable[KeyToTrust] | KeyToTrust | None = None,
        allow: Iterable[str] | None = None,
        ttl: float | timedelta | None = None,
        autocommit: bool = False,
    ) -> None:
        super().__init__(Workers(), None)
        options = {"branch": branch, "sign": sign, "trust": trust, "allow": allow, "ttl": ttl}
        options["autocommit"] = autocommit
        self._open = partial(sync.Versioned, store, **options)  # type: ignore[arg-type]  # as above
        self._place = store
        self._opening = new_lock()
        self._closed = False

    async def _opened(self) -> sync.Versioned:
        return self._handle if self._handle is not None else await self._workers.run(self._open_once)

    def _open_once(self) -> sync.Versioned:
        # Not an asyncio.Lock: tasks of several loops may share the handle.
        with self._opening:
            if self._handle is None:
                self._handle = self._open()
            return self._handle

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._opened().__await__()
        return self

    async def __aenter__(self) -> Self:
        try:
            await self._opened()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    async def close(self) -> None:
        """Close its watches, and the store if this handle opened it.

        With `autocommit`, commit first: if that raises, nothing is closed. Otherwise uncommitted changes are
        lost, with an UncommittedWarning.
        """
        await self._close(None)

    async def _close(self, error: BaseException | None) -> None:
        handle = self._handle
        if handle is not None and not self._closed:
            leftovers = handle._leftovers
            if error is None and leftovers.autocommit:
                await self._in_turn(handle, lambda outermost: leftovers.commit())
            self._closed = True
        else:
            handle = None
        try:
            if handle is not None:
                await self._workers.run(partial(handle._close, error), shielded=True)
        finally:
            self._workers.stop()

    @property
    def location(self) -> str:
        """Where the store is, open or not, for messages to people; never a secret."""
        return location_of(self._place) if self._handle is None else self._handle.store.location

    @property
    def repo(self) -> Repository:
        """The operations that need no working state, awaited; InvalidInput before this state is open."""
        return Repository(self._workers, self.sync.repo)

    @property
    def head(self) -> Commit | None:
        """The commit that the next one is made on; None before the first."""
        return self.sync.head

    @property
    def branch(self) -> str | None:
        """The branch that `commit` moves; None when HEAD is detached."""
        return self.sync.branch

    # Uncommitted changes

    status = awaited(sync.Versioned.status)
    diff = awaited(sync.Versioned.diff)
    discard = awaited(sync.Versioned.discard)
    refresh = awaited(sync.Versioned.refresh, turn=True)

    # History

    def log(
        self,
        rev: Revision = "HEAD",
        *,
        since: Revision | None = None,
        key: str | None = None,
        limit: int | None = None,
        first_parent: bool = False,
    ) -> AsyncIterator[Commit]:
        """The commits from `rev` back, newest first, as `vstate.Versioned.log` gives them."""
        return self._iterated(
            lambda handle: iter(handle.log(rev, since=since, key=key, limit=limit, first_parent=first_parent))
        )

    async def checkout(self, rev: Revision) -> Snapshot:
        """The state at a revision, to look at. This state does not move."""
        return Snapshot(self._workers, await self._run(lambda handle: handle.checkout(rev)))

    inert = awaited(sync.Versioned.inert)
    view = awaited(sync.Versioned.view)
    blame = awaited(sync.Versioned.blame)
    bisect = awaited(sync.Versioned.bisect)
    merge_base = awaited(sync.Versioned.merge_base)
    rollback = awaited(sync.Versioned.rollback, turn=True)
    reset = awaited(sync.Versioned.reset, turn=True)
    undo = awaited(sync.Versioned.undo, turn=True)
    redo = awaited(sync.Versioned.redo, turn=True)
    merge = awaited(sync.Versioned.merge, turn=True)
    cherry_pick = awaited(sync.Versioned.cherry_pick, turn=True)
    revert = awaited(sync.Versioned.revert, turn=True)
    purge = awaited(sync.Versioned.purge, turn=True)
    set_policy = awaited(sync.Versioned.set_policy)
    policies = awaited(sync.Versioned.policies)

    # Branches and tags

    create_branch = awaited(sync.Versioned.create_branch)
    switch = awaited(sync.Versioned.switch, turn=True)
    branches = awaited(sync.Versioned.branches)
    branch_names = awaited(sync.Versioned.branch_names)
    delete_branch = awaited(sync.Versioned.delete_branch)
    tag = awaited(sync.Versioned.tag)
    tags = awaited(sync.Versioned.tags)
    delete_tag = awaited(sync.Versioned.delete_tag)

    async def fork(self, name: str, at: Revision = "HEAD") -> Versioned:
        """A new state on a new branch."""
        other = Versioned()
        other._handle = await self._run(lambda handle: handle.fork(name, at))
        return other

    # Other stores, and other holders

    push = awaited(sync.Versioned.push)
    pull = awaited(sync.Versioned.pull, turn=True)

    @asynccontextmanager
    async def lease(
        self, name: str, ttl: float | timedelta = 30, *, wait: float | None = None
    ) -> AsyncIterator[Lease]:
        """Hold a lease in the `async with` block: nobody else in this store has one of that name."""
        handle = await self._opened()
        lease = handle.lease(name, ttl, wait=wait)
        try:
            await entered(lease)
            yield Lease(self, lease)
        finally:
            await self._workers.run(lease.__exit__, shielded=True)
