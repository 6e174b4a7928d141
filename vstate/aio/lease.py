"""Lease: the right to work, for tasks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from vstate.aio.workers import settled
from vstate.objects.commit import Commit
from vstate.state.lease import Lease as HeldLease

if TYPE_CHECKING:
    from vstate.aio.versioned import Versioned


class Lease:
    """What `Versioned.lease` gives: the right to work, for as long as `held`."""

    def __init__(self, state: Versioned, lease: HeldLease) -> None:
        self._state = state
        self._lease = lease

    @property
    def name(self) -> str:
        """What the lease is on."""
        return self._lease.name

    @property
    def ttl(self) -> float:
        """Seconds after which another may have it if it is not renewed."""
        return self._lease.ttl

    @property
    def fence(self) -> int:
        """A number that grows with each holder."""
        return self._lease.fence

    @property
    def held(self) -> bool:
        """Whether nobody else can have the lease yet, by the clock of this process alone."""
        return self._lease.held

    async def check(self) -> None:
        """Raise LeaseLost unless the lease is held, and the store says so."""
        await self._state._workers.run(self._lease.check)

    async def commit(self, message: str = "", **info: Any) -> Commit | None:
        """Commit the state unless the lease is lost: LeaseLost then, with nothing committed."""
        return await self._state._in_turn(
            self._state.sync, lambda outermost: self._lease.commit(message, **info)
        )

    def __repr__(self) -> str:
        return repr(self._lease)


async def entered(lease: HeldLease) -> None:
    """Wait for a lease, in a thread of its own, which may be long; cancelled, when it is certain that nobody has it."""
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
    except asyncio.CancelledError:
        lease.stop_waiting()
        await settled(future)
        raise
