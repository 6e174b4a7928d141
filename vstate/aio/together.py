"""Together: updates of tasks that wait for one turn, carried out in one hop to a thread.

One task leads: it takes the turn, and the updates of all that wait. The others sleep until theirs are done,
or until it is their turn to lead. Nobody waits for company.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial

from vstate.aio.workers import Workers
from vstate.forks import renew_in_child
from vstate.objects.commit import Commit
from vstate.state.handle import Handle
from vstate.state.turns import Turn
from vstate.state.updates import Update, run_updates

MOST = 64
"""Updates that go together. Other tasks wait for the turn too."""

_LOOK_AGAIN_SECONDS = 1.0
_PAUSE_SECONDS = 0.002


class _Call:
    """The update of one task, which waits."""

    __slots__ = ("_loop", "_woken", "group", "over", "update")

    def __init__(self, update: Update) -> None:
        self.update = update
        self.group: list[_Call] = []
        """The other calls that this one led."""
        self.over = False
        """Whether another call led this one, and has ended."""
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()

    async def wait(self) -> None:
        """Wait for `wake`. It is a hint, which an exception may lose, so a waiter also looks by itself."""
        timer = self._loop.call_later(_LOOK_AGAIN_SECONDS, self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            if self._woken.done():
                self._woken = self._loop.create_future()

    def wake(self) -> None:
        """Let the task look, in its loop."""
        if self._loop is asyncio.get_running_loop():
            self._wake()
            return
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


class Together:
    """The updates of tasks on one handle. Tasks of several event loops may share it."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._waiting: deque[_Call] = deque()
        self._leader: _Call | None = None
        """The call that makes the next group. A hint: the turn keeps groups apart."""
        renew_in_child(self, Together._renew)

    def _renew(self) -> None:
        self._waiting.clear()  # their tasks do not go on in a forked child
        self._leader = None

    async def run(self, handle: Handle, update: Update) -> Commit | None:
        """Carry out the update. If this is cancelled, the update has happened or it has not."""
        call = _Call(update)
        self._waiting.append(call)
        try:
            if self._leader is None:
                self._leader = call
            else:
                await call.wait()
            if not update.done:
                self._leader = call  # mostly so already; but the loop of the last leader may have ended
                await self._lead(handle, call)
        except BaseException:
            await self._leave(handle, call)
            raise
        finally:
            self._pass_on(call)
        return update.result()

    async def _lead(self, handle: Handle, call: _Call) -> None:
        turn = Turn()
        with turn.bell, turn.held:
            await handle.turns.take_async(turn)
            if not call.update.done:  # another group may have had it
                await self.workers.run(partial(self._carry_out, handle, call, turn))

    def _carry_out(self, handle: Handle, first: _Call, turn: Turn) -> None:
        """In a thread: carry out the first update, and those that wait."""
        # Without itself: a cycle would keep all that the calls hold until the next collection.
        others: list[_Call] = []
        first.group = others
        try:
            self._waiting.remove(first)
            while len(others) < MOST - 1:
                others.append(self._waiting.popleft())
        except (IndexError, ValueError):  # no more; or an earlier group took the first and did not end it
            pass
        try:
            run_updates(handle, [call.update for call in (first, *others)], turn)
        finally:
            first.group = [call for call in others if call.update.done]
            for call in (first, *first.group):
                call.over = True
            self._waiting.extendleft(call for call in reversed(others) if not call.over)

    async def _leave(self, handle: Handle, call: _Call) -> None:
        """Give up a call. If a group has it, wait until the group has ended it, or left it."""
        while not (call.over or call.update.done):
            try:
                self._waiting.remove(call)
                return
            except ValueError:
                if not handle.turns.is_taken:
                    return
            with suppress(asyncio.CancelledError):  # the caller raises the first cancellation again
                await asyncio.sleep(_PAUSE_SECONDS)

    def _pass_on(self, call: _Call) -> None:
        """Wake the calls that this one led, and let another lead if this one did."""
        for other in call.group:
            other.wake()
        if self._leader is call:
            # First: a call that comes now leads by itself, or it is in the list already.
            self._leader = None
            for following in tuple(self._waiting):
                self._leader = following
                following.wake()
                break
