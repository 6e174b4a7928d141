"""Closing: the changes that are not committed when a state is closed or dropped, or when its program ends."""

from __future__ import annotations

import atexit
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, Protocol
from weakref import WeakSet

from vstate.errors import UncommittedWarning, VStateError, mark_lost
from vstate.plural import counted
from vstate.state.committing import commit
from vstate.state.handle import Handle
from vstate.state.slots import SlotTable

_SHOWN: Final = 10
_WAIT_SECONDS: Final = 1.0
"""How long the end of the program waits for a thread that is in the middle of a call."""

_LOOK_SECONDS: Final = 0.005
_LOOK_BYTES: Final = 5_000_000
"""How long closing looks for edits in place, and how many bytes it looks at in that time."""

_NO_FRAME: Final = 1_000_000
"""A stacklevel above every frame: the end of a program is at no line of it."""


class Closable(Protocol):
    """A state, or another holder of changes, that can be left open."""

    def _at_exit(self) -> None:
        """Called once when the program ends, unless the state is closed or collected before."""


class Leftovers:
    """The uncommitted changes of one handle, as the state that owns it ends."""

    _told = True
    """Whether nothing is left to report; so it is before all is there."""

    def __init__(self, handle: Handle, state: Closable, *, autocommit: bool, in_memory: bool) -> None:
        """`state._at_exit` is called at the end of the program. With autocommit the state lives until then,
        or until it is closed: a collector cannot commit.
        """
        self.autocommit = autocommit
        self.in_memory = in_memory
        """Whether the store ends with its state, and its commits too: then no loss is reported."""
        self._handle = handle
        self._process = os.getpid()
        _open.add(state)
        if autocommit:
            _kept.add(state)
        self._told = False

    def settle(self, state: Closable, *, failed: bool, stacklevel: int) -> None:
        """Commit or report the changes of a state that is being closed; neither if its block has `failed`.

        If a commit raises, nothing is closed and everything is still staged.
        """
        if not self._told and not failed:
            at = self._handle.at
            if self.autocommit:
                self.commit()
            elif not at.settled or at.events or at.table.dirty or at.table.open:
                self._warn("was closed", self._changed(), stacklevel + 1)
        self._told = True
        _kept.discard(state)

    def commit(self) -> None:
        """Commit the changes, if there are any."""
        if self._handle.has_uncommitted():
            commit(self._handle, "autocommit", {})

    def at_exit(self) -> None:
        """Commit or report the changes when the program ends. A fork leaves them to its parent."""
        if self._told or self._process != os.getpid():
            return
        if not self._handle.lock.acquire(timeout=_WAIT_SECONDS):
            self.dropped()
            return
        self._handle.lock.release()
        event = "was open when the program ended,"
        if self.autocommit and not self._handle.turns.is_taken:  # a thread's open transaction is half done
            try:
                self.commit()
            except VStateError as error:
                mark_lost(error, "autocommit")
                event = f"could not commit when the program ended ({error}), and ended"
        self._told = True
        self._warn(event, self._changed(), _NO_FRAME)

    def dropped(self) -> None:
        """Report the staged keys of a state that is collected. A collector can run anywhere, so this asks no
        store, waits for no lock, and pickles no value: edits in place stay unseen.
        """
        if self._told or self._process != os.getpid():
            return
        at = self._handle.at
        if not (at.table.dirty or at.events):
            return
        self._told = True
        if not at.open:  # the next call would undo those changes
            self._warn("was dropped", self._staged(), 2)

    __del__ = dropped

    def _changed(self) -> list[str]:
        """The keys that a commit would change; the staged keys if the store cannot tell."""
        handle = self._handle
        try:
            with handle.lock:
                table = handle.settle().table
                if not table.dirty and not table.open:
                    return []
                plan = handle.plan(keys=[*sorted(table.dirty)])
                read = handle.plan(keys=_while_short(table))
                return self._lost([*plan.changes, *plan.unpicklable, *read.changes, *read.unpicklable])
        except Exception:  # the store is closed or gone, or a class fails to pickle
            return self._staged()

    def _staged(self) -> list[str]:
        table = self._handle.at.table
        return self._lost([key for key in table.dirty if key in table.slots and table.slots[key].dirty])

    def _lost(self, keys: list[str]) -> list[str]:
        """The keys whose changes are nowhere else, sorted."""
        companions = self._handle.companions
        return sorted({key for key in keys if not any(each.keeps(key) for each in companions)})

    def _warn(self, event: str, keys: list[str], stacklevel: int) -> None:
        lost = [repr(key) for key in keys[:_SHOWN]]
        if len(keys) > _SHOWN:
            lost.append(f"{len(keys) - _SHOWN} more keys")
        at = self._handle.at
        if at.events:
            lost.append(counted(len(at.events), "recorded event"))
        if lost and not self.in_memory:
            gone = "may be lost" if at.pending or at.doubts else "are lost"  # or a commit may have landed
            message = (
                f"{self._handle.title()} {event} with uncommitted changes, which {gone}: {', '.join(lost)}"
            )
            if not self.autocommit:
                message += "; call commit() before, discard() them, or open the state with autocommit=True"
            warnings.warn(message, UncommittedWarning, stacklevel=stacklevel + 1)


def _while_short(table: SlotTable) -> Iterator[str]:
    """The keys of values that were read, the last one first, as long as looking at them is short."""
    end = time.thread_time() + _LOOK_SECONDS
    for key in reversed(list(table.slots)):
        slot = table.slots.get(key)
        if slot is None or slot.dirty or key not in table.open:
            continue
        left = end - time.thread_time()
        if left <= 0:
            return
        if slot.base is None or slot.base.size * _LOOK_SECONDS < left * _LOOK_BYTES:
            yield key


def call_at_exit(thing: Closable) -> None:
    """Call `thing._at_exit` at the end of the program, if the thing lives until then."""
    _open.add(thing)


_open: Final[WeakSet[Closable]] = WeakSet()
_kept: Final[set[Closable]] = set()


@atexit.register
def _at_exit() -> None:
    with ExitStack() as stack:  # calls all of them, even if a warning is an error
        for state in list(_open):
            stack.callback(state._at_exit)
