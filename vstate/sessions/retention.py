"""Retention: gives back the room of a StateService's expired sessions, in the course of its calls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TypeVar

from vstate import aio
from vstate.aio.workers import UnderWay, in_thread
from vstate.errors import LeaseHeld, RefMoved, VStateError
from vstate.forks import renew_in_child
from vstate.objects import expiry, tree
from vstate.objects.ids import ObjectId
from vstate.repo.merge.apply import purge
from vstate.sessions.rounds import ROUNDS, SESSIONS, round_prefix, session_key
from vstate.state.versioned import Versioned

_T = TypeVar("_T")

_log = logging.getLogger("vstate")

_PREFIX = f"{SESSIONS}/"

_SHARE = 10
"""Expired sessions go once all others are at most this many times as many."""

_REST = 10
"""Looks and work rest this many times as long as they took."""

_REST_AFTER_FAILURE = 60.0  # seconds

_LEASE = "retention"
_LEASE_SECONDS = 10.0

ATTEMPTS = 1000
"""At a commit: with many processes, somebody loses many races."""

_SESSIONS_AT_ONCE = 200
_ROUNDS_AT_ONCE = 200
"""The most sessions that one commit looks at, and the most rounds that it removes."""

Find = Callable[[Versioned, int], list[str]]
"""Given a state and a moment, the paths of the sessions whose rounds go."""


class Retention:
    """Gives back the room of expired sessions and of their history. A call that finds it due begins it.

    - It is due once at least a tenth as many sessions have expired as live. So its cost, which grows with
      the sessions that live, is a constant for each session that goes.
    - Commits remove the rounds, 200 at most each. Then the history of the branch is cut off, which still has
      them, and a gc removes the garbage. At last the keys of the expired sessions go. Until then these keys
      tell every process that the work is due. So if a process is killed, another one does all of it.
    - It goes on beside the calls, and then rests ten times as long as it took. Of several processes, one does
      it at a time: the one with a lease.
    - A branch with keys of others keeps its history: give the service a branch, or a store, of its own.
    """

    def __init__(self) -> None:
        self._rests_until = 0.0
        self._work: asyncio.Task[None] | None = None
        renew_in_child(self, Retention._renew)

    def _renew(self) -> None:
        self._work = None  # its task goes on in the parent alone

    def is_due(self, mapping: Versioned) -> bool:
        """Whether enough sessions have expired in the commit that the state is at."""
        began, head = time.monotonic(), mapping.head
        if head is None or not self._may_begin():
            return False
        try:
            found = _are_many(mapping, head.root)
        except VStateError:  # damage, or another process cuts the history: the call itself tells
            found = False
        if not found:
            self._rest(_REST * (time.monotonic() - began))
        return found

    def begin(self, state: aio.Versioned, under_way: UnderWay) -> None:
        """Begin the work, unless it is under way or rests. A failure is logged: the call itself is done."""
        if self._may_begin():
            self._work = asyncio.get_running_loop().create_task(self._carry_out(state, under_way))

    async def _carry_out(self, state: aio.Versioned, under_way: UnderWay) -> None:
        began = time.monotonic()
        with under_way:  # the service waits for its end
            try:
                async with state.lease(_LEASE, _LEASE_SECONDS, wait=0):
                    await give_back(state, expired_sessions, history=True)
            except LeaseHeld:
                pass  # another process does it
            except VStateError as error:
                _log.warning("expired sessions take up room until a later call: %s", error)
                self._rest(_REST_AFTER_FAILURE)
            self._rest(_REST * (time.monotonic() - began))

    def _may_begin(self) -> bool:
        return time.monotonic() >= self._rests_until and (self._work is None or self._work.done())

    def _rest(self, seconds: float) -> None:
        # A look in another thread may end behind the work, and must not shorten its rest.
        self._rests_until = max(self._rests_until, time.monotonic() + seconds)


def expired_sessions(mapping: Versioned, now: int) -> list[str]:
    """The paths of the sessions whose keys have expired."""
    head = mapping.head
    found = () if head is None else tree.expired(mapping.repo.objects.node, head.root, now, _PREFIX)
    return [key.removeprefix(_PREFIX) for key in found]


def ended_sessions(mapping: Versioned, now: int) -> list[str]:
    """The paths under which there are rounds, but no session."""
    rounds = mapping.keys(f"{ROUNDS}/")
    paths = dict.fromkeys(key.split("/", 1)[1].rpartition("/")[0] for key in rounds)
    return [path for path in paths if session_key(path) not in mapping]


async def give_back(state: aio.Versioned, find: Find, *, history: bool) -> int:
    """Remove the rounds of the sessions found, and the keys of expired sessions; the number of rounds.

    With `history`, the history that still has them is cut off, and their room is free. A session that is
    saved meanwhile stays.
    """
    now, begin, removed = expiry.now(), 0, 0
    paths = await again(lambda: state.read(lambda mapping: find(mapping, now)))
    while begin < len(paths):
        sessions, rounds = await _remove_some(state, paths[begin : begin + _SESSIONS_AT_ONCE])
        begin, removed = begin + sessions, removed + rounds
    cuts = history and await again(lambda: state.read(_is_alone))
    await in_thread(lambda: _forget(state.sync, now, cuts))
    return removed


async def again(call: Callable[[], Awaitable[_T]]) -> _T:
    """The result of a call. It is made again if its commit was cut off, by another process perhaps."""
    while True:
        try:
            return await call()
        except RefMoved as error:
            if not error.rewritten:
                raise


def _are_many(mapping: Versioned, root: ObjectId | None) -> bool:
    node, now = mapping.repo.objects.node, expiry.now()
    found = tree.expired(node, root, now, _PREFIX)
    if next(found, None) is None:
        return False
    stored = tree.count_prefix(node, root, _PREFIX)
    more = (stored - 1) // (_SHARE + 1)  # besides the first one
    return sum(1 for _ in islice(found, more)) == more


async def _remove_some(state: aio.Versioned, paths: Sequence[str]) -> tuple[int, int]:
    """Remove as many rounds as one commit may; the number of sessions that are done, and of rounds."""
    done = removed = 0

    def remove(mapping: Versioned) -> None:
        nonlocal done, removed
        done = removed = 0
        for path in paths:
            # Somebody may have begun it anew.
            rounds = () if session_key(path) in mapping else mapping.keys(round_prefix(path))
            for key in list(islice(rounds, _ROUNDS_AT_ONCE - removed)):
                del mapping[key]
                removed += 1
            if removed == _ROUNDS_AT_ONCE:
                return
            done += 1

    message = "purge sessions that have expired"
    await again(lambda: state.apply(remove, message=message, attempts=ATTEMPTS))
    return done, removed


def _is_alone(mapping: Versioned) -> bool:
    """Whether the branch has no keys of others."""
    return len(mapping.keys(f"{ROUNDS}/")) + len(mapping.keys(_PREFIX)) == len(mapping)


def _forget(state: Versioned, now: int, cuts: bool) -> None:
    """Cut the history off, and then remove the keys of the sessions that had expired by `now`."""
    repo, branch = state.repo, state.branch
    if branch is None:
        return
    if cuts:
        repo.gc(branch=branch, keep_last=1)
    purge(repo, branch, at=now, prefix=_PREFIX)
