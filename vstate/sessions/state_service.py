"""StateService: the states of users' sessions, round by round, each round kept and found again."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import Any, Self, TypeVar

from vstate import aio
from vstate.arguments import check_seconds
from vstate.errors import InvalidInput, InvalidRecord, NotFound, Unpicklable
from vstate.kv.base import KVStore
from vstate.kv.url import check_store
from vstate.objects import expiry
from vstate.objects.commit import moment
from vstate.objects.stream import BLOB_BYTES
from vstate.patterns.paths import join_path, split_path
from vstate.repo.compare.details import Detail, details
from vstate.sessions.rounds import (
    DEFAULT,
    MOST_ROUNDS,
    ROUNDS,
    SESSIONS,
    checked_number,
    checked_round,
    highest_round,
    number_of,
    path_of,
    round_key,
    rounds,
    session_key,
    session_of,
    text,
)
from vstate.sessions.settling import to_the_end
from vstate.state.base import ReadableState
from vstate.state.versioned import Versioned
from vstate.values.pickling import culprit

_T = TypeVar("_T")

_ATTEMPTS = 1000
_WORTH_IT = 2048  # bytes
_FILLING = 4096  # bytes: the longest chunk, so that fillings are made of the same chunks
_LOOK_AGAIN = 0.001  # seconds
_RENEWED = 0.9  # of its ttl a session may have left without an export that renews it being a commit


class StateService:
    """States by user, session and round, on the branch `main` of a store, a path or a URL.

    - Every save is one commit. Rounds that share most of their contents are stored as what differs: on Disk a round
      of a conversation takes 5 to 7 KB, commit and keys included, whether the state has 13 KB or 400.
    - In the state a session is `users/<user>/<session>`, a round `rounds/<user>/<session>/<number>`; managers and
      VersionedSessions may share the store.
    - Any number of savers, in any number of processes, get a round each.
    - States are dicts of anything that can be pickled; what goes in and what comes out are copies.
    - `ttl`, in seconds: a session is gone so long after it was last saved or exported; None: never. `purge` makes
      room of what is gone; its history goes with the store's next gc.

    `start` opens the store, and `stop` closes it; `async with` does both. Before that, and afterwards, all but
    `health` raises RuntimeError. A store that is down raises StoreUnavailable, and data that is damaged
    CorruptObject: neither is taken for a state that is not there.
    """

    def __init__(
        self, store: KVStore | str | PathLike[str] | None = None, ttl: float | timedelta | None = None
    ) -> None:
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        check_seconds("ttl", seconds, none="None for ever")
        self._given = check_store(store)
        self._ttl = seconds
        self._state: aio.Versioned | None = None
        self._changing = asyncio.Lock()
        self._under_way = 0

    def _make_store(self) -> KVStore | str | PathLike[str] | None:
        """The store to work on, or what says which."""
        return self._given

    def _close_store(self) -> None:
        """Close what `_make_store` made."""

    # Its life

    async def start(self) -> None:
        """Open the store; started twice is once. Raises StoreUnavailable if it is down."""
        async with self._changing:
            if self._state is not None:
                return
            state = aio.Versioned(self._make_store(), branch="main")
            try:
                await state
            except BaseException:
                await to_the_end(self._end(state))
                raise
            self._state = state

    async def stop(self) -> None:
        """Close the store, if it was opened here, once the calls under way have ended; stopped twice is once."""
        async with self._changing:
            state, self._state = self._state, None
            if state is not None:
                await to_the_end(self._end(state))

    async def _end(self, state: aio.Versioned) -> None:
        try:
            while self._under_way:  # in this event loop or another one
                await asyncio.sleep(_LOOK_AGAIN)
            await state.close()
        finally:
            self._close_store()

    async def health(self) -> bool:
        """Whether it is started and the store answers. Never raises."""
        try:
            await self._read(lambda state: None)
        except Exception:
            return False
        return True

    def __repr__(self) -> str:
        where = ", not started" if self._state is None else f" on {self._state.location}"
        return f"<{type(self).__name__}{where}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    @property
    def state(self) -> aio.Versioned:
        """The state that all is in, with its history. RuntimeError before `start`."""
        if self._state is None:
            raise RuntimeError(f"{type(self).__name__} is not started: await start(), or use `async with`")
        return self._state

    # Rounds

    async def save_state(
        self,
        user_id: str,
        state: dict[str, Any],
        session_id: str | None = None,
        round_id: int | None = None,
    ) -> int:
        """Save the state of a round, by default of the one after the highest that there was, and return its number.

        A round that is there is replaced, and its history keeps what it was. `session_id` is "default" by default.
        Raises TypeError for a state that is no dict, Unpicklable, StoreUnavailable, StoreFull.
        """
        if not isinstance(state, dict):
            raise TypeError(f"a state is a dict, not {type(state).__name__}")
        path, asked = path_of(user_id, session_id), checked_round(round_id)
        copied, filling = _kept(state)
        number = 0

        def save(mapping: Versioned) -> None:
            nonlocal number
            if session_key(path) not in mapping:
                for key in list(mapping.keys(rounds(path))):  # what a session that expired has left
                    del mapping[key]
                mapping[session_key(path)] = datetime.now(UTC)
            highest = highest_round(mapping, path)
            number = asked if asked is not None else 1 if highest is None else highest + 1
            if number > MOST_ROUNDS:
                raise InvalidInput(f"a round is a number up to {MOST_ROUNDS}, not {number}")
            # A copy that is the mapping's alone: the next commit need not ask whether it was edited.
            mapping[round_key(path, number)] = {"state": copied(), "filling": filling}
            if self._ttl is not None:
                mapping.expire(session_key(path), self._ttl)

        await self._update(save, "save", user_id, session_id or DEFAULT)
        return number

    async def export_state(
        self, user_id: str, session_id: str | None = None, round_id: int | None = None
    ) -> dict[str, Any] | None:
        """The state of a round, by default of the one with the highest number; None if there is none."""
        path, asked = path_of(user_id, session_id), checked_round(round_id)

        def read(mapping: Versioned) -> tuple[dict[str, Any] | None, bool]:
            found = _stored(mapping, path, asked)
            return found, found is not None and self._is_due(mapping, path)

        async with self._call() as state:
            found, is_due = await state.read(read)
            if is_due:
                await _commit(
                    state, lambda mapping: self._renew(mapping, path), "use", user_id, session_id or DEFAULT
                )
        return found

    async def list_rounds(self, user_id: str, session_id: str | None = None) -> list[int]:
        """The numbers of a session's rounds, in their order."""
        path = path_of(user_id, session_id)

        def read(mapping: ReadableState) -> list[int]:
            if session_key(path) not in mapping:
                return []
            return [number_of(key) for key in mapping.keys(rounds(path))]

        return await self._read(read)

    async def diff_rounds(self, user_id: str, a: int, b: int, session_id: str | None = None) -> list[Detail]:
        """What changed from one round to another, by path; `print(*found, sep="\\n")` shows it. Raises NotFound."""
        path, numbers = path_of(user_id, session_id), (checked_number(a), checked_number(b))

        def read(mapping: ReadableState) -> list[Detail]:
            states = []
            for number in numbers:
                state = _stored(mapping, path, number)
                if state is None:
                    raise NotFound(
                        f"user {user_id!r} has no round {number} in the session {session_id or DEFAULT!r}",
                        name=str(number),
                    )
                states.append(state)
            return details(*states)

        return await self._read(read)

    # Sessions and users

    async def list_sessions(self, user_id: str) -> list[str]:
        """The ids of a user's sessions, sorted."""
        prefix = f"{join_path(SESSIONS, text('user_id', user_id))}/"
        return await self._read(lambda mapping: sorted(session_of(key) for key in mapping.keys(prefix)))

    async def list_users(self) -> list[str]:
        """The ids of the users who have sessions, sorted."""
        prefix = f"{SESSIONS}/"
        return await self._read(lambda mapping: sorted({split_path(key)[1] for key in mapping.keys(prefix)}))

    async def delete_state(
        self, user_id: str, session_id: str | None = None, round_id: int | None = None
    ) -> int:
        """Delete a round; without `round_id` a session; without either all of a user's. How many rounds went.

        Their history is kept. The next save goes by the rounds that are left; a session goes with its last one.
        """
        asked = checked_round(round_id)
        path = path_of(user_id, session_id)
        everything = asked is None and session_id is None
        deleted = 0

        def delete(mapping: Versioned) -> None:
            nonlocal deleted
            if asked is not None:
                key = round_key(path, asked)
                deleted = int(session_key(path) in mapping and key in mapping)
                if deleted:
                    del mapping[key]
                    if not mapping.keys(rounds(path)):
                        del mapping[session_key(path)]
                return
            within = join_path(user_id) if everything else path
            states = list(mapping.keys(f"{ROUNDS}/{within}/"))
            sessions = mapping.keys(f"{SESSIONS}/{within}/") if everything else [session_key(path)]
            for key in [*states, *sessions]:
                mapping.pop(key, None)
            deleted = len(states)

        await self._update(delete, "delete", user_id, None if everything else session_id or DEFAULT)
        return deleted

    async def purge(self) -> int:
        """Remove the rounds of sessions that have expired; how many there were."""
        purged = 0

        def remove(mapping: Versioned) -> None:
            nonlocal purged
            keys = list(mapping.keys(f"{ROUNDS}/"))
            gone = [
                key for key in keys if session_key(key.split("/", 1)[1].rpartition("/")[0]) not in mapping
            ]
            for key in gone:
                del mapping[key]
            purged = len(gone)

        async with self._call() as state:
            await state.update(remove, message="purge sessions that have expired", attempts=_ATTEMPTS)
            await state.purge()  # what is left of the sessions themselves
        return purged

    # Calls

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[aio.Versioned]:
        """The state, which stays open for as long as a call takes."""
        state = self.state
        self._under_way += 1
        try:
            yield state
        finally:
            self._under_way -= 1

    async def _read(self, function: Callable[[Versioned], _T]) -> _T:
        async with self._call() as state:
            return await state.read(function)

    async def _update(
        self, function: Callable[[Versioned], None], what: str, user_id: str, session_id: str | None
    ) -> None:
        async with self._call() as state:
            await _commit(state, function, what, user_id, session_id)

    def _is_due(self, mapping: Versioned, path: str) -> bool:
        """Whether a session has used up enough of its time for it to be worth a commit to begin it anew."""
        if self._ttl is None:
            return False
        ends = mapping.expires(session_key(path))
        return ends is None or (ends - moment(expiry.now())).total_seconds() < _RENEWED * self._ttl

    def _renew(self, mapping: Versioned, path: str) -> None:
        if session_key(path) in mapping and self._is_due(mapping, path):
            mapping.expire(session_key(path), self._ttl)


class InMemoryStateService(StateService):
    """A StateService in memory: what it holds is gone when it is stopped."""

    def __init__(self) -> None:
        super().__init__()


async def _commit(
    state: aio.Versioned,
    function: Callable[[Versioned], None],
    what: str,
    user_id: str,
    session_id: str | None,
) -> None:
    info = {"user_id": user_id} if session_id is None else {"user_id": user_id, "session_id": session_id}
    message = f"{what}: {'/'.join(info.values())}"
    await state.update(function, message=message, attempts=_ATTEMPTS, **info)


def _kept(state: dict[str, Any]) -> tuple[Callable[[], dict[str, Any]], bytes]:
    """What gives a copy of a state, as it is now, to whoever asks; and its filling.

    A filling makes a state of some kilobytes large enough to be cut into chunks. It is stored once for all rounds.
    """
    try:
        pickled = pickle.dumps(state, 5)  # loaded again below, in this process; it goes into no store
    except Exception:  # a class that only a commit can pickle; or nobody can, and it tells where that is
        kept = _copied(state)
        return lambda: copy.deepcopy(kept), b""
    missing = BLOB_BYTES + 1 - len(pickled) if len(pickled) > _WORTH_IT else 0
    return lambda: pickle.loads(pickled), bytes(-(-max(0, missing) // _FILLING) * _FILLING)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of what pickle does not take; Unpicklable, with the path, for what nothing copies."""
    try:
        return copy.deepcopy(state)
    except Exception as error:
        raise Unpicklable({"state": culprit(state, "state", error)}, staged=False) from error


def _stored(mapping: ReadableState, path: str, asked: int | None) -> dict[str, Any] | None:
    """A copy of the state of a round, by default of the highest; None if there is none."""
    if session_key(path) not in mapping:
        return None
    number = highest_round(mapping, path) if asked is None else asked
    found = None if number is None else mapping.get(round_key(path, number))
    if found is None or number is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("state"), dict):
        raise InvalidRecord(round_key(path, number), "it is not what a StateService keeps of a round")
    state: dict[str, Any] = copy.deepcopy(found["state"])
    return state
