"""Lease: a lease on a name, for tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from vstate.aio.workers import settled
from vstate.objects.commit import Commit
from vstate.state.committing import OnRace
from vstate.state.lease import Lease as HeldLease

if TYPE_CHECKING:
    from vstate.aio.versioned import Versioned


class Lease:
    """A lease on a name, from `Versioned.lease`: its holder may work while it is `held`."""

    def __init__(self, state: Versioned, lease: HeldLease) -> None:
        self._state = state
        self._lease = lease

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

    async def check(self) -> None:
        """Raise LeaseLost unless the store says that the lease is held."""
        await self._state._workers.run(self._lease.check)

    async def commit(
        self,
        message: str = "",
        *,
        keys: Iterable[str] | None = None,
        on_race: OnRace = "merge",
        **info: Any,
    ) -> Commit | None:
        """Commit the state. If the lease is lost, raise LeaseLost and commit nothing."""
        commit = partial(self._lease.commit, message, keys=keys, on_race=on_race, **info)
        return await self._state._in_turn(self._state.sync, lambda outermost: commit())

    def __repr__(self) -> str:
        return repr(self._lease)


async def entered(lease: HeldLease) -> None:
    """Wait for a lease, in a thread of its own. Cancelled, it ends once the lease is surely not held."""
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
