"""Retention: frees the room of a StateService's expired sessions, a bounded part at each save."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from itertools import islice, takewhile

from vstate import aio
from vstate.aio.workers import UnderWay, in_thread
from vstate.errors import VStateError
from vstate.forks import renew_in_child
from vstate.objects import expiry, tree
from vstate.objects.commit import dated
from vstate.sessions.rounds import ROUNDS, SESSIONS, round_prefix
from vstate.state.versioned import Versioned

_log = logging.getLogger("vstate")

_SESSIONS_AT_ONCE = 20
_ROUNDS_AT_ONCE = 200
"""The most sessions that one save looks at, and the most rounds that it removes."""

_SHARE = 4
"""A gc is due once the removed rounds are this part of the rounds that stay, on average."""


_LONGEST_PAUSE = 5.0  # seconds
_LOOK = 0.02  # seconds between two looks for the end of the service


def sweep(mapping: Versioned, removed: int) -> tuple[int, bool]:
    """Remove rounds of expired sessions, inside an update that has `removed` some rounds already.

    Returns the number of removed rounds, and whether all rounds of expired sessions are gone, so the keys of
    these sessions can be purged. Costs nothing if no session has expired.
    """
    head = mapping.head
    if head is None:
        return removed, False
    found = tree.expired(mapping.repo.objects.node, head.root, expiry.now(), f"{SESSIONS}/")
    room = _ROUNDS_AT_ONCE
    for key in islice(found, _SESSIONS_AT_ONCE):
        if key in mapping:  # the save has just begun it anew
            continue
        prefix = round_prefix(key.removeprefix(f"{SESSIONS}/"))
        gone = list(islice(mapping.keys(prefix), room + 1))
        for round_key in gone[:room]:
            del mapping[round_key]
        removed += min(room, len(gone))
        room -= len(gone)
        if room < 0:
            return removed, False
    return removed, next(found, None) is None


class Retention:
    """Frees the room of the rounds that saves removed.

    - A save removes the rounds of expired sessions: at most 200, of 20 sessions, in its own commit.
    - Once none is left, the keys of these sessions are purged. Then the history of the branch, which still
      has the rounds, is cut off, and a gc removes the garbage. This goes on in the background, a moment
      later. It happens about as often as a quarter of all rounds have expired, so each removed round pays a
      constant part of it.
    - A commit stays for `pause` seconds after the next one came: another process may still be reading it.
    - A branch with keys of others keeps its history: give the service a branch, or a store, of its own.
    """

    def __init__(self, ttl: float) -> None:
        self._pause = min(ttl, _LONGEST_PAUSE)
        self._gc: asyncio.Task[None] | None = None
        self._is_ending = False
        renew_in_child(self, Retention._renew)

    def _renew(self) -> None:
        self._gc = None  # its task goes on in the parent alone

    def begin(self) -> None:
        """Called when the service starts."""
        self._is_ending = False

    def end(self) -> None:
        """Called when the service stops: a gc that is due begins now."""
        self._is_ending = True

    async def follow(
        self, state: aio.Versioned, removed: int, is_purge_due: bool, under_way: UnderWay
    ) -> None:
        """Go on after a save that swept. A failure is logged: the save itself is done."""
        try:
            if is_purge_due:
                await state.purge()
            is_due = await state.read(lambda mapping: _is_gc_due(mapping, removed))
            if is_due and (self._gc is None or self._gc.done()):
                self._gc = asyncio.get_running_loop().create_task(self._collect(state, under_way))
        except VStateError as error:
            _log.warning("expired sessions take up room until a later save: %s", error)

    async def _collect(self, state: aio.Versioned, under_way: UnderWay) -> None:
        with under_way:  # the service waits for its end
            due = time.monotonic() + self._pause
            while time.monotonic() < due and not self._is_ending:  # `end` may be called in another event loop
                await asyncio.sleep(_LOOK)
            try:
                await in_thread(lambda: self._cut(state.sync))
            except VStateError as error:
                _log.warning("the history of expired sessions takes up room until a later gc: %s", error)

    def _cut(self, state: Versioned) -> None:
        repo, branch = state.repo, state.branch
        if branch is None:
            return
        now = expiry.now()
        begin = now - round(self._pause * 1_000_000)
        young = sum(1 for _ in takewhile(lambda found: found[1] >= begin, dated(repo.log(branch), now)))
        repo.gc(branch=branch, keep_last=young + 1)


def _is_gc_due(mapping: Versioned, removed: int) -> bool:
    live = len(mapping.keys(f"{ROUNDS}/"))
    if live + len(mapping.keys(f"{SESSIONS}/")) != len(mapping):
        return False
    # By chance, so that processes need no common count: each removed round has an equal part in a gc.
    return random.random() * live < _SHARE * removed
