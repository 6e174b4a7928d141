"""Lease: the right of one process to do something, for as long as it shows that it lives."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from vstate.errors import InvalidInput, LeaseLost, VStateError
from vstate.kv.forks import ForkAware, survive_forks
from vstate.objects.commit import Commit
from vstate.repo.leases import LeaseRow, clock, lease_key

if TYPE_CHECKING:
    from vstate.state.worktree import Worktree

_RENEWALS = 3  # in the time that a lease runs
_RETRIES = 20  # so many more, when the store fails


class Lease(ForkAware):
    """What `Versioned.lease` returns; to be entered by `with`, once. It is for the process that took it, not its forks.

    A thread renews it while the with block runs. `held` turns false once, when that has not worked for `ttl`
    seconds or somebody else has it, and never true again.
    """

    fork_order = (
        1  # a state holds its lock while it commits under a lease, a lease its own while it asks the store
    )

    def __init__(self, state: Worktree, name: str, *, ttl: float, wait: float | None) -> None:
        self.name = name
        self.ttl = ttl
        self._state = state
        self._store = state.store
        self._key = lease_key(name)
        self._wait = wait
        self._lock = threading.RLock()  # around the row, while it is changed and while it is relied upon
        self._row: LeaseRow | None = None
        self._until = 0.0
        self._lost = "it has not been taken"
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def fence(self) -> int:
        """How many holders this lease has had, this one included. What is told this number, and refuses a lower one
        than it was told before, is safe from a holder that does not know yet that it has lost the lease.
        """
        if self._row is None:
            raise InvalidInput(f"lease {self.name!r} has not been taken: enter it by `with`")
        return self._row.fence

    @property
    def held(self) -> bool:
        """Whether nobody else can have the lease yet, by the clock of this process alone; asks no store."""
        return not self._lost and clock() < self._until

    def check(self) -> None:
        """Raise LeaseLost unless the lease is held, and the store says so."""
        with self._lock:
            self._require_held()
            self._look()

    def commit(self, message: str = "", **info: Any) -> Commit | None:
        """Commit the state, as its own `commit` does, unless the lease is lost: LeaseLost then, with nothing committed.

        In a store with transactions the lease is compared in the very transaction that moves the branch. In
        any other it is read right before. The commit's info says under which lease it was made, and its fence.
        """
        if "lease" in info:
            raise InvalidInput("a lease's commit has its own info called 'lease': choose another name")
        with self._lock:
            self._require_held()
        return self._state.commit_guarded(
            self, message, {**info, "lease": {"name": self.name, "fence": self.fence}}
        )

    @contextmanager
    def rows(self) -> Iterator[Mapping[str, bytes | None]]:
        """As a Guard promises: the lease's own row, which is not renewed meanwhile."""
        with self._lock:
            yield {self._key: self._require_held().encode()}

    def __enter__(self) -> Self:
        if self._row is not None:
            raise InvalidInput(f"lease {self.name!r} has been used: ask for a new one")
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._row, began = self._state.repo.leases.take(
            self.name, owner=secrets.token_hex(16), holder=holder, ttl=self.ttl, wait=self._wait
        )
        try:
            self._until, self._lost = began + self.ttl, ""
            survive_forks(self)
            name = f"vstate lease {self.name}"
            self._thread = threading.Thread(target=self._keep_renewing, name=name, daemon=True)
            self._thread.start()
        except BaseException:  # an interruption: nobody would ever end the thread
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        with self._lock:
            if self._row is not None and not self._lost:
                self._lost = "it was released"
                try:
                    self._store.compare_and_swap(self._key, self._row.encode(), self._row.released().encode())
                except VStateError:
                    pass  # then it runs out by itself
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()

    # Renewing

    def _keep_renewing(self) -> None:
        pause = self.ttl / _RENEWALS
        while not self._over.wait(pause):
            pause = self.ttl / _RENEWALS
            with self._lock:
                try:
                    if self._over.is_set():
                        return
                    if not self._renew(self._require_held()):
                        pause = 0.0
                except LeaseLost:
                    return
                except Exception:  # whatever a store raises: it may work again before the time is over
                    pause = self.ttl / _RENEWALS / _RETRIES

    def _renew(self, row: LeaseRow) -> bool:
        """Renew the lease; False if it has to be tried again, with the row that turned out to be there."""
        began = clock()
        if not self._store.compare_and_swap(self._key, row.encode(), row.renewed().encode()):
            self._look()
            return False
        self._row, self._until = row.renewed(), began + self.ttl
        return True

    def _look(self) -> None:
        """Read the row; LeaseLost if it is not this holder's."""
        mine = self._require_held()
        raw = self._store.get(self._key)
        row = None if raw is None else self._state.repo.leases.parse(self.name, raw)
        if row is not None and (row.owner, row.fence) == (mine.owner, mine.fence):
            # Perhaps with a renewal whose answer was lost. It may be older than it looks: the time is not begun anew.
            self._row = row
            return
        if row is None:
            self._lost = "its row is gone"
        elif row.owner:
            self._lost = f"{row.holder} has it now (fence {row.fence})"
        else:
            self._lost = f"another had it meanwhile (fence {row.fence})"
        self._require_held()

    def _require_held(self) -> LeaseRow:
        if not self._lost and clock() >= self._until:
            self._lost = f"it was not renewed for {self.ttl:g} s"
        if self._row is None or self._lost:
            fence = 0 if self._row is None else self._row.fence
            raise LeaseLost(self.name, fence=fence, reason=self._lost)
        return self._row

    # Forks

    def before_fork(self) -> None:
        """Wait until no renewal is under way."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Go on in the parent; the child has no lease, and releases none."""
        if not child:
            self._lock.release()
            return
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = None
        self._lost = self._lost or f"process {os.getppid()} has it, of which this is a fork"
