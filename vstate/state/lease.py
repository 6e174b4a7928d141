"""Lease: the right of one process to do something alone, for as long as the process renews it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from vstate.arguments import check_seconds
from vstate.errors import InvalidInput, LeaseLost, VStateError
from vstate.forks import Uncopied, new_lock, renew_in_child
from vstate.objects.commit import Commit
from vstate.repo.rules.leases import SHORTEST_TTL, LeaseRow, clock, lease_key
from vstate.state.committing import OnRace, commit

if TYPE_CHECKING:
    from vstate.repo.repository import Repository
    from vstate.state.handle import Handle

_RENEWALS = 3  # in the time that a lease runs
_RETRIES = 20  # so many more, when the store fails


class Lease(Uncopied):
    """A lease, to be entered by `with`, once. It belongs to the process that took it, not to its forks.

    A thread renews the lease while the with block runs. `held` turns false when no renewal has worked for
    `ttl` seconds, or when somebody else has the lease, and never turns true again. If an exception keeps the
    end of the with block from giving the lease back, the thread gives it back once the exception is let go
    of.
    """

    along = ()
    """As a Guard promises: nothing lands with a commit."""

    def __init__(self, handle: Handle, name: str, *, ttl: float, wait: float | None) -> None:
        if ttl < SHORTEST_TTL:
            raise InvalidInput(
                f"the ttl of a lease is {SHORTEST_TTL:g} s or more, so that it can be renewed in time, not "
                f"{ttl:g} s"
            )
        check_seconds("wait", wait, zero=True, none="None to wait for ever")
        self.name = name
        self.ttl = ttl
        self._handle = handle
        self._wait = wait
        self._tenure = LeaseKeeper(handle.repo, name, ttl)

    @property
    def fence(self) -> int:
        """The fencing token: how many holders this lease has had, this one included.

        A service that is told this number, and refuses a lower one than before, is safe from a holder that
        does not know yet that it has lost the lease.
        """
        return self._tenure.fence

    @property
    def held(self) -> bool:
        """Whether nobody else can have the lease yet, by the clock of this process alone.

        It asks no store.
        """
        return self._tenure.held

    def check(self) -> None:
        """Raise LeaseLost unless the lease is held, and the store says so."""
        with self._tenure.lock:
            self._tenure.require_held()
            self._tenure.look()

    def commit(
        self,
        /,
        message: str = "",
        *,
        keys: Iterable[str] | None = None,
        on_race: OnRace = "merge",
        **info: Any,
    ) -> Commit | None:
        """Commit the state, as its own `commit` does. If the lease is lost, raise LeaseLost and commit
        nothing.

        A store with transactions compares the lease in the transaction that moves the branch. Any other store
        reads the lease right before. The commit's info has the name of the lease and its fence.
        """
        if "lease" in info:
            raise InvalidInput(
                "the commit of a lease has an info called 'lease' already: choose another name"
            )
        with self._tenure.lock:
            self._tenure.require_held()
        info["lease"] = {"name": self.name, "fence": self.fence}
        return commit(self._handle, message, info, guard=self, on_race=on_race, keys=keys)

    @contextmanager
    def rows(self) -> Iterator[Mapping[str, bytes | None]]:
        """As a Guard promises: the lease's own row. It is not renewed meanwhile."""
        with self._tenure.lock:
            yield {lease_key(self.name): self._tenure.require_held().encode()}

    def stop_waiting(self) -> None:
        """Make a thread that waits to enter the lease raise LeaseHeld, within a second or so."""
        self._tenure.left = True

    def __repr__(self) -> str:
        return f"<Lease {self.name!r}, ttl {self.ttl:g} s: {self._tenure.standing()}>"

    def __enter__(self) -> Self:
        self._tenure.begin(self._wait)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._tenure.end()

    def __del__(self) -> None:
        # Without the lock: the collector may call this in a thread that holds it.
        if "_tenure" in self.__dict__:
            self._tenure.left = True


class LeaseKeeper(Uncopied):
    """The time of one holder, and the thread that renews the lease.

    It outlives a `Lease` that nobody left.
    """

    def __init__(self, repo: Repository, name: str, ttl: float) -> None:
        self._repo = repo
        self._name = name
        self._ttl = ttl
        self._key = lease_key(name)
        self._owner = os.urandom(16).hex()
        self.lock = new_lock()  # held while the row is changed or relied upon
        self._row: LeaseRow | None = None
        self._until = 0.0
        self._lost = "it has not been taken"
        self._used = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.left = False
        """Whether the thread has to give the lease back."""
        renew_in_child(self, LeaseKeeper._renew_in_child)

    @property
    def fence(self) -> int:
        if self._row is None:
            raise InvalidInput(f"lease {self._name!r} has not been taken: enter it by `with`")
        return self._row.fence

    @property
    def held(self) -> bool:
        return not self._lost and clock() < self._until

    def standing(self) -> str:
        """The state of the lease in words, as far as this process knows.

        It takes no lock and asks no store.
        """
        row = self._row
        if row is None:
            return "given up" if self._used and self.left else "not taken"
        how = "held" if self.held else self._lost or f"not renewed for {self._ttl:g} s"
        return f"{how}, fence {row.fence}"

    def begin(self, wait: float | None) -> None:
        """Take the lease, and begin to renew it."""
        if self._used:
            raise InvalidInput(f"lease {self._name!r} has been used: make a new one with state.lease()")
        self._used = True
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            row, began = self._repo.leases.take(
                self._name,
                owner=self._owner,
                holder=holder,
                ttl=self._ttl,
                wait=wait,
                given_up=lambda: self.left,
            )
            self._row, self._until, self._lost = row, began + self._ttl, ""
            self._thread = threading.Thread(
                target=self._keep_renewing, name=f"vstate lease {self._name}", daemon=True
            )
            self._thread.start()
        except BaseException:  # after an interruption or a lost answer, the lease may be taken all the same
            self.left = True
            with suppress(VStateError):
                self._repo.leases.give_back(self._name, self._owner)
            self._lost = self._lost or "it was given back at once"
            raise

    def end(self) -> None:
        """Let the thread give the lease back, because no signal interrupts it, and wait for that."""
        self.left = True
        self._wake.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()

    # Renewing

    def _keep_renewing(self) -> None:
        regular = min(self._ttl / _RENEWALS, threading.TIMEOUT_MAX)
        pause = regular
        # Both conditions: an exception may have kept `end` from waking this thread.
        while not self._wake.wait(pause) and not self.left:
            pause = regular
            with self.lock:
                try:
                    if not self._renew(self.require_held()):
                        pause = 0.0
                except LeaseLost:
                    return  # the holder sees it in `held`, and at its next commit
                except Exception:  # of whatever store: it may work again before the time is over
                    pause = regular / _RETRIES
        with self.lock:
            if not self._lost:
                self._lost = "it was released"
                with suppress(Exception):  # a lease that is not given back runs out by itself
                    self._repo.leases.give_back(self._name, self._owner)

    def _renew(self, row: LeaseRow) -> bool:
        """Renew the lease. False if the row had changed and is still ours: try again."""
        began = clock()
        if not self._repo.store.compare_and_swap(self._key, row.encode(), row.renewed().encode()):
            self.look()
            return False
        self.require_held()  # `held` is false by now if the renewal took too long, and stays so
        self._row, self._until = row.renewed(), began + self._ttl
        return True

    def look(self) -> None:
        """Read the row; LeaseLost if it is not this holder's."""
        mine = self.require_held()
        row = self._repo.leases.read(self._name)
        if row is not None and (row.owner, row.fence) == (mine.owner, mine.fence):
            # A renewal whose answer was lost may be in it. Its time is unknown, so `_until` stays.
            self._row = row
            return
        if row is None:
            self._lost = "its row is gone"
        elif row.owner:
            self._lost = f"{row.holder} has it now (fence {row.fence})"
        else:
            self._lost = f"another had it meanwhile (fence {row.fence})"
        self.require_held()

    def require_held(self) -> LeaseRow:
        """The row in the store, if this holder has the lease; LeaseLost if it certainly has not."""
        if not self._lost and clock() >= self._until:
            self._lost = f"it was not renewed for {self._ttl:g} s"
        if self._row is None or self._lost:
            fence = 0 if self._row is None else self._row.fence
            raise LeaseLost(self._name, fence=fence, reason=self._lost)
        return self._row

    # Forks

    def _renew_in_child(self) -> None:
        # The child has no lease, and gives none back.
        self._wake = threading.Event()
        self._thread = None
        self._lost = self._lost or f"process {os.getppid()} has it, and this process is its fork"
