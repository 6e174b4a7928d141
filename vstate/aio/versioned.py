"""Versioned: a branch that a program with an event loop can write to, its leases, and its repository."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from vstate import state as sync
from vstate.aio.mapping import Snapshot, Writing, awaited, iterated
from vstate.aio.workers import Workers, in_thread, settled
from vstate.forks import new_lock
from vstate.kv.base import KVStore
from vstate.kv.url import location_of
from vstate.objects.commit import Commit
from vstate.repo.core import Revision
from vstate.repo.repository import Repository as SyncRepository
from vstate.repo.rules.signing import KeyToSign, KeyToTrust
from vstate.state.lease import Lease as HeldLease

if TYPE_CHECKING:
    from vstate.aio.run import Run
    from vstate.repo.runs import RunInfo
    from vstate.state.run import Run as HeldRun


class Lease:
    """A lease on a name, from `Versioned.lease`: its holder may work while it is `held`."""

    def __init__(self, state: Versioned, lease: HeldLease) -> None:
        self._workers = state._workers
        self._in_turn = state._in_turn
        self._lease = lease

    async def _opened(self) -> HeldLease:
        return self._lease

    @property
    def name(self) -> str:
        """The name."""
        return self._lease.name

    @property
    def ttl(self) -> float:
        """Seconds after which another holder may take a lease that is not renewed."""
        return self._lease.ttl

    @property
    def fence(self) -> int:
        """A number that grows with each holder."""
        return self._lease.fence

    @property
    def held(self) -> bool:
        """Whether nobody else can have the lease yet, by the clock of this process alone."""
        return self._lease.held

    check = awaited(HeldLease.check)
    commit = awaited(HeldLease.commit, turn=True)

    def __repr__(self) -> str:
        return repr(self._lease)


async def _entered(lease: HeldLease | HeldRun) -> None:
    """Wait for a lease or a run, in a thread of its own. Cancelled, it ends once that is surely not held."""
    work = Future[None]()
    work.set_running_or_notify_cancel()

    def enter() -> None:
        try:
            lease.__enter__()
        except BaseException as error:
            work.set_exception(error)
        else:
            work.set_result(None)

    threading.Thread(target=enter, name=f"vstate lease {lease.name}", daemon=True).start()
    future = asyncio.wrap_future(work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError as error:
        lease.stop_waiting()
        await settled(future)
        if not future.exception():  # it was entered at the same moment
            await in_thread(partial(lease.__exit__, type(error), error, None))
        raise


class Repository:
    """The repository of an open state, `state.repo`. It moves branches without the state's working tree.

    A call that is cancelled has happened or has not: the cancellation is raised once that is settled.
    """

    def __init__(self, workers: Workers, repo: SyncRepository) -> None:
        self._workers = workers
        self.sync: Final = repo
        """The `vstate.repo.Repository` behind it, for the names that are not here."""

    async def _opened(self) -> SyncRepository:
        return self.sync

    commit = awaited(SyncRepository.commit)
    commit_many = awaited(SyncRepository.commit_many)
    newest = awaited(SyncRepository.newest)
    branches = awaited(SyncRepository.branches)
    branch_ids = awaited(SyncRepository.branch_ids)
    branch_names = awaited(SyncRepository.branch_names)
    labels = awaited(SyncRepository.labels)
    possible_branches = awaited(SyncRepository.possible_branches)
    create_branch = awaited(SyncRepository.create_branch)
    delete_branch = awaited(SyncRepository.delete_branch)
    rename_branch = awaited(SyncRepository.rename_branch)
    keep = awaited(SyncRepository.keep)
    keeps = awaited(SyncRepository.keeps)
    gc = awaited(SyncRepository.gc)
    erase = awaited(SyncRepository.erase)


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
        autocommit: bool = False,
    ) -> None:
        super().__init__(Workers(), None)
        options: dict[str, Any] = {"branch": branch, "sign": sign, "trust": trust, "allow": allow}
        self._open = partial(sync.Versioned, store, autocommit=autocommit, **options)
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

    log = iterated(sync.Versioned.log)

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
    erase = awaited(sync.Versioned.erase, turn=True)
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
        await _entered(lease)
        try:
            yield Lease(self, lease)
        finally:
            await self._workers.run(lease.__exit__, shielded=True)

    # Runs

    def run(
        self, name: str, *, of: str | None = None, ttl: float | timedelta = 30, wait: float | None = None
    ) -> Run:
        """A run, to be entered by `async with`: steps that are done once. See `vstate.Versioned.run`."""
        from vstate.aio.run import Run  # late, as `vstate.state.run`

        return Run(self, lambda: self.sync.run(name, of=of, ttl=ttl, wait=wait), _entered)

    async def runs(self) -> list[RunInfo]:
        """The runs of the store, the newest first."""
        return await self._run(sync.Versioned.runs)
