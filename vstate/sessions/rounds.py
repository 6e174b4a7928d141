"""Rounds: the keys of the sessions of a StateService and of their rounds, and the removal of expired ones."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TypeVar

from vstate import aio
from vstate.aio.workers import UnderWay, in_thread
from vstate.arguments import check_text
from vstate.errors import InvalidRecord, LeaseHeld, RefMoved, VStateError
from vstate.forks import renew_in_child
from vstate.objects import expiry, tree
from vstate.patterns.paths import join_path, split_path
from vstate.repo.merge.apply import purge
from vstate.state.base import ReadableState
from vstate.state.versioned import Versioned

_T = TypeVar("_T")

_log = logging.getLogger("vstate")

SESSIONS = "users"  # not "sessions": a VersionedSession on the same store uses that
ROUNDS = "rounds"
DEFAULT = "default"
MOST_ROUNDS = 10**12 - 1

ATTEMPTS = 1000
"""At a commit: with many processes, somebody loses many races."""

_DIGITS = 12

_SHARE = 10
"""Expired sessions go once all others are at most this many times as many."""

_REST = 10
"""The work rests this many times as long as it took, and for the ttl divided by this."""

_LEASE = "retention"
_LEASE_SECONDS = 10.0

_SESSIONS_AT_ONCE = 20
"""The most sessions whose rounds one commit removes."""


def highest_round(mapping: ReadableState, path: str) -> int | None:
    """The highest number of a round; None without rounds."""
    key = next(iter(mapping.keys(round_prefix(path), reverse=True)), None)
    return None if key is None else number_of(key)


def number_of(round_key: str) -> int:
    """The number of the round under a key. Raises InvalidRecord for a key of something else."""
    digits = round_key.rpartition("/")[2]
    if not re.fullmatch(f"[0-9]{{{_DIGITS}}}", digits):
        raise InvalidRecord(round_key, f"the key of a round ends with a number of {_DIGITS} digits")
    return int(digits)


def ids_of(session_key: str) -> tuple[str, str]:
    """The ids of the user and the session of a key. Raises InvalidRecord for a key of something else."""
    parts = split_path(session_key)
    if len(parts) != 3:
        raise InvalidRecord(session_key, "the key of a session has the ids of a user and a session")
    return parts[1], parts[2]


def path_of(user_id: str, session_id: str | None) -> str:
    """The part of the keys with the user and the session. Raises TypeError unless both are str."""
    session = DEFAULT if session_id is None else check_text("session_id", session_id) or DEFAULT
    return join_path(check_text("user_id", user_id), session)


def session_key(path: str) -> str:
    """The key that exists as long as the session."""
    return f"{SESSIONS}/{path}"


def round_prefix(path: str) -> str:
    """The prefix of the keys of the rounds of a session."""
    return f"{ROUNDS}/{path}/"


def round_key(path: str, number: int) -> str:
    """The key of a round."""
    return f"{round_prefix(path)}{number:0{_DIGITS}}"


class Retention:
    """Gives back the room of expired sessions and of their history, beside the calls of a service.

    - It looks ten times in a `ttl`. The work is due once at least a tenth as many sessions have expired as
      live. So its cost, which grows with the sessions that live, is a constant for each session that goes.
    - Commits remove the rounds, of 20 sessions each. Then the history of the branch is cut off, which still
      has them, and a gc removes the garbage. At last the keys of the expired sessions go. Until then these
      keys tell every process that the work is due. So if a process is killed, another one does all of it.
    - Then it rests ten times as long as it took. Of several processes, one does it at a time: the one with a
      lease.
    - A branch with keys of others keeps its history: give the service a branch, or a store, of its own.
    """

    def __init__(self, ttl: float | None) -> None:
        self._ttl = ttl
        self._looked = 0  # microseconds since 1970, by the clock of expiries
        self._pause = 0.0
        self._work: asyncio.Task[None] | None = None
        renew_in_child(self, Retention._renew)

    def _renew(self) -> None:
        self._work = None  # its task goes on in the parent alone

    def begin(self, state: aio.Versioned, under_way: UnderWay) -> None:
        """Begin to look, unless that is under way or rests. A failure is logged: the call itself is done."""
        is_free = self._work is None or self._work.done()
        rests = 0 <= expiry.now() - self._looked < self._pause  # a clock that was set back ends it
        if self._ttl is not None and is_free and not rests:
            self._work = asyncio.get_running_loop().create_task(self._carry_out(state, under_way, self._ttl))

    async def _carry_out(self, state: aio.Versioned, under_way: UnderWay, ttl: float) -> None:
        began = time.monotonic()
        with under_way:  # the service waits for its end
            try:
                if await again(lambda: state.read(_are_many)):
                    async with state.lease(_LEASE, _LEASE_SECONDS, wait=0):
                        await give_back(state, expired_sessions, history=True)
            except LeaseHeld:
                pass  # another process does it
            except VStateError as error:
                _log.warning("expired sessions take up room until a later call: %s", error)
            seconds = max(ttl / _REST, (time.monotonic() - began) * _REST)
            self._looked, self._pause = expiry.now(), seconds * 1_000_000


def expired_sessions(mapping: Versioned, now: int) -> list[str]:
    """The paths of the sessions whose keys have expired."""
    head = mapping.head
    found = () if head is None else tree.expired(mapping.repo.objects.node, head.root, now, f"{SESSIONS}/")
    return [key.partition("/")[2] for key in found]


def ended_sessions(mapping: Versioned, now: int) -> list[str]:
    """The paths under which there are rounds, but no session."""
    rounds = mapping.keys(f"{ROUNDS}/")
    paths = dict.fromkeys(key.split("/", 1)[1].rpartition("/")[0] for key in rounds)
    return [path for path in paths if session_key(path) not in mapping]


async def give_back(
    state: aio.Versioned, find: Callable[[Versioned, int], list[str]], *, history: bool
) -> int:
    """Remove the rounds of the sessions found, and the keys of expired sessions; the number of rounds.

    With `history`, the history that still has them is cut off, and their room is free. A session that is
    saved meanwhile stays.
    """
    now, removed = expiry.now(), 0
    paths = await again(lambda: state.read(lambda mapping: find(mapping, now)))
    for begin in range(0, len(paths), _SESSIONS_AT_ONCE):
        removed += await _remove_rounds(state, paths[begin : begin + _SESSIONS_AT_ONCE])
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


def _are_many(mapping: Versioned) -> bool:
    """Whether enough sessions have expired."""
    if mapping.head is None:
        return False
    node, root, prefix = mapping.repo.objects.node, mapping.head.root, f"{SESSIONS}/"
    found = tree.expired(node, root, expiry.now(), prefix)
    if next(found, None) is None:
        return False
    more = (tree.count_prefix(node, root, prefix) - 1) // (_SHARE + 1)  # besides the first one
    return sum(1 for _ in islice(found, more)) == more


async def _remove_rounds(state: aio.Versioned, paths: Sequence[str]) -> int:
    """Remove the rounds of these sessions by one commit; the number of rounds."""
    removed = 0

    def remove(mapping: Versioned) -> None:
        nonlocal removed
        ended = [path for path in paths if session_key(path) not in mapping]  # not begun anew
        rounds = [key for path in ended for key in mapping.keys(round_prefix(path))]
        for key in rounds:
            del mapping[key]
        removed = len(rounds)

    message = "purge sessions that have expired"
    await again(lambda: state.apply(remove, message=message, attempts=ATTEMPTS))
    return removed


def _is_alone(mapping: Versioned) -> bool:
    """Whether the branch has no keys of others."""
    return len(mapping.keys(f"{ROUNDS}/")) + len(mapping.keys(f"{SESSIONS}/")) == len(mapping)


def _forget(state: Versioned, now: int, cuts: bool) -> None:
    """Cut the history off, and then remove the keys of the sessions that had expired by `now`."""
    repo, branch = state.repo, state.branch
    if branch is None:
        return
    if cuts:
        repo.gc(branch=branch, keep_last=1)
    purge(repo, branch, at=now, prefix=f"{SESSIONS}/")
