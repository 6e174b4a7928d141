"""StateService: the states of sessions of users, round by round, each round kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import Any, Self, TypeVar

from vstate import aio
from vstate.aio.workers import LoopLock, UnderWay, shielded
from vstate.arguments import check_count, check_seconds, check_text
from vstate.errors import InvalidInput, InvalidRecord, KeyNotFound, NotFound
from vstate.kv.base import KVStore
from vstate.kv.url import check_store
from vstate.objects import expiry
from vstate.objects.commit import moment
from vstate.patterns.copies import Frozen, deep_copy
from vstate.patterns.paths import join_path, split_path
from vstate.repo.compare.details import Detail, details
from vstate.sessions.rounds import (
    ATTEMPTS,
    DEFAULT,
    MOST_ROUNDS,
    ROUNDS,
    SESSIONS,
    Retention,
    again,
    ended_sessions,
    give_back,
    highest_round,
    ids_of,
    number_of,
    path_of,
    round_key,
    round_prefix,
    session_key,
)
from vstate.state.base import ReadableState
from vstate.state.versioned import Versioned

_T = TypeVar("_T")

_RENEWED = 0.9  # an export renews a session, by a commit, once less than this part of its ttl is left


class StateService:
    """States by user, session and round, on a branch of a store, a path or a URL.

    - The branch is `branch`, or else the branch that HEAD is on at `start`.
    - Each save is one commit. Rounds share their common parts in the store. On Disk a round of a conversation
      of up to 16 KB takes 1.5 KB, with its commit and keys; of 400 KB, 4 KB.
    - A session is the key `users/<user>/<session>`, a round the key `rounds/<user>/<session>/<number>`.
      Managers and VersionedSessions may share the store.
    - Any number of processes may save; each save gets its own round.
    - States are dicts of values that can be pickled. They go in and come out as copies.
    - `ttl`: a session expires this many seconds after its last save or export; None: never. Later calls, of
      any session, give back the room of expired sessions and of the history: see `Retention`.
    - A save after a deletion begins the session anew, at round 1, even if the service had not heard of it.

    `start` opens the store, `stop` closes it, and `async with` does both. Before `start` and after `stop`,
    all methods but `health` raise RuntimeError. While the store cannot be reached they raise
    StoreUnavailable, and for damaged data CorruptObject: no error counts as an absent state.
    """

    def __init__(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        ttl: float | timedelta | None = None,
        *,
        branch: str | None = None,
    ) -> None:
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        check_seconds("ttl", seconds, none="None for ever")
        self._store = check_store(store)
        self._own: KVStore | None = None
        self._ttl = seconds
        self._branch = branch
        self._starts_when_used = False
        self._retention = Retention(seconds)
        self._state: aio.Versioned | None = None
        self._changing = LoopLock()
        self._under_way = UnderWay()

    def _make_store(self) -> KVStore | str | PathLike[str] | None:
        """The store, or its path or URL."""
        return self._store

    # Start and stop

    async def start(self) -> None:
        """Open the store; nothing if it is open. Raises StoreUnavailable."""
        async with self._changing.here():
            if self._state is not None:
                return
            store = self._make_store()
            self._own = store if isinstance(store, KVStore) and store is not self._store else None
            state = aio.Versioned(store, branch=self._branch)
            try:
                await state
            except BaseException:
                await shielded(self._end(state))
                raise
            self._state = state

    def start_when_used(self) -> Self:
        """Let the first call start the service, if the program does not. Returns the service."""
        self._starts_when_used = True
        return self

    async def stop(self) -> None:
        """Wait for the calls under way, then close the store if the service opened it."""
        async with self._changing.here():
            self._starts_when_used = False
            state, self._state = self._state, None
            if state is not None:
                await shielded(self._end(state))

    async def _end(self, state: aio.Versioned) -> None:
        try:
            await self._under_way.ended()
            await state.close()
        finally:
            if self._own is not None:
                self._own.close()

    async def health(self) -> bool:
        """Whether the service is started and the store answers. Never raises."""
        try:
            await self._read(lambda state: None)
        except Exception:  # a store of the program may raise anything
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
        """The state with all sessions, and its history. Raises RuntimeError before `start`."""
        if self._state is None:
            raise RuntimeError(f"{type(self).__name__} is not started: await start(), or use `async with`")
        return self._state

    # Rounds

    async def save_state(
        self, user_id: str, state: dict[str, Any], session_id: str | None = None, round_id: int | None = None
    ) -> int:
        """Save the state of a round, by default the next one, and return its number.

        An existing round is replaced; history keeps the old state. The default session is "default". Raises
        TypeError for a state that is no dict, Unpicklable, StoreUnavailable, StoreFull.
        """
        if not isinstance(state, dict):
            raise TypeError(f"a state is a dict, not {type(state).__name__}")
        path = path_of(user_id, session_id)
        _check_round(round_id)
        frozen = Frozen(state, "state", "state")
        number = 0

        def save(mapping: Versioned) -> None:
            nonlocal number
            if session_key(path) not in mapping:
                for key in list(mapping.keys(round_prefix(path))):  # the rounds of an expired session
                    del mapping[key]
                mapping[session_key(path)] = datetime.now(UTC)
            highest = highest_round(mapping, path)
            number = round_id if round_id is not None else 1 if highest is None else highest + 1
            if number > MOST_ROUNDS:
                raise InvalidInput(f"a round is a number up to {MOST_ROUNDS}, not {number}")
            # Thawed for each attempt: the mapping alone refers to it, so no later commit looks for edits of
            # it.
            mapping[round_key(path, number)] = {"state": frozen.thaw()}
            if self._ttl is not None:
                mapping.expire(session_key(path), self._ttl)

        async with self._call() as used:
            await _commit(used, save, "save", user_id, session_id or DEFAULT)
        return number

    async def export_state(
        self, user_id: str, session_id: str | None = None, round_id: int | None = None
    ) -> dict[str, Any] | None:
        """The state of a round, by default the highest; None if there is none."""
        path = path_of(user_id, session_id)
        _check_round(round_id)

        def read(mapping: Versioned) -> tuple[dict[str, Any] | None, bool]:
            found = _load(mapping, path, round_id)
            return found, found is not None and self._is_due(mapping, path)

        def renew(mapping: Versioned) -> None:
            if self._is_due(mapping, path):
                with suppress(KeyNotFound):  # it has expired just now
                    mapping.expire(session_key(path), self._ttl)

        async with self._call() as state:
            found, is_due = await again(lambda: state.read(read))
            if is_due:
                await _commit(state, renew, "use", user_id, session_id or DEFAULT)
        return found

    async def list_rounds(self, user_id: str, session_id: str | None = None) -> list[int]:
        """The numbers of the rounds of a session, in order."""
        path = path_of(user_id, session_id)

        def read(mapping: ReadableState) -> list[int]:
            if session_key(path) not in mapping:
                return []
            return [number_of(key) for key in mapping.keys(round_prefix(path))]

        return await self._read(read)

    async def diff_rounds(self, user_id: str, a: int, b: int, session_id: str | None = None) -> list[Detail]:
        """The changes from round `a` to `b`; `print(*changes, sep="\\n")` shows them. Raises NotFound."""
        path = path_of(user_id, session_id)
        for number in (a, b):
            check_count("a round", number, 0)

        def read(mapping: ReadableState) -> list[Detail]:
            states = []
            for number in (a, b):
                state = _load(mapping, path, number)
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
        """The sorted ids of the sessions of a user."""
        prefix = f"{join_path(SESSIONS, check_text('user_id', user_id))}/"
        return await self._read(lambda mapping: sorted(ids_of(key)[1] for key in mapping.keys(prefix)))

    async def list_users(self) -> list[str]:
        """The sorted ids of the users with sessions."""
        prefix = f"{SESSIONS}/"
        return await self._read(lambda mapping: sorted({split_path(key)[1] for key in mapping.keys(prefix)}))

    async def delete_state(
        self, user_id: str, session_id: str | None = None, round_id: int | None = None
    ) -> int:
        """Delete a round, and return the number of deleted rounds.

        Without `round_id` it deletes a session; without both ids, all sessions of the user.
        History keeps them until it is squashed. The next save follows the rounds that are left. A session
        without rounds is gone.
        """
        path = path_of(user_id, session_id)
        _check_round(round_id)
        everything = round_id is None and session_id is None
        within = join_path(user_id) if everything else path
        deleted = 0

        def delete(mapping: Versioned) -> None:
            nonlocal deleted
            rounds = list(mapping.keys(f"{ROUNDS}/{within}/"))
            sessions = list(mapping.keys(f"{SESSIONS}/{within}/")) if everything else [session_key(path)]
            if round_id is not None:
                left = [key for key in rounds if key != round_key(path, round_id)]
                rounds = [key for key in rounds if key not in left and session_key(path) in mapping]
                sessions = sessions if rounds and not left else []
            for key in [*rounds, *sessions]:
                mapping.pop(key, None)
            deleted = len(rounds)

        async with self._call() as state:
            await _commit(state, delete, "delete", user_id, None if everything else session_id or DEFAULT)
        return deleted

    async def purge(self) -> int:
        """Delete the rounds of expired sessions, and return their number.

        With a `ttl`, their room is given back when this returns, and so is that of the history. A branch with
        keys of others keeps its history.
        """
        async with self._call() as state:
            return await give_back(state, ended_sessions, history=self._ttl is not None)

    # Calls

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[aio.Versioned]:
        """The state; `stop` waits until the call ends."""
        if self._state is None and self._starts_when_used:
            await self.start()
        state = self.state
        with self._under_way:
            yield state
            self._retention.begin(state, self._under_way)

    async def _read(self, function: Callable[[Versioned], _T]) -> _T:
        async with self._call() as state:
            return await again(lambda: state.read(function))

    def _is_due(self, mapping: Versioned, path: str) -> bool:
        """Whether so little of the ttl is left that a renewal is worth a commit."""
        if self._ttl is None:
            return False
        try:
            ends = mapping.expires(session_key(path))
        except KeyNotFound:  # it has expired since it was read
            return False
        return ends is None or (ends - moment(expiry.now())).total_seconds() < _RENEWED * self._ttl


class InMemoryStateService(StateService):
    """A StateService in memory. `stop` deletes all states."""

    def __init__(self) -> None:
        super().__init__()


async def _commit(
    state: aio.Versioned,
    function: Callable[[Versioned], None],
    verb: str,
    user_id: str,
    session_id: str | None,
) -> None:
    info = {"user_id": user_id} if session_id is None else {"user_id": user_id, "session_id": session_id}
    message = f"{verb}: {'/'.join(info.values())}"
    await again(lambda: state.apply(function, message=message, attempts=ATTEMPTS, **info))


def _check_round(round_id: int | None) -> None:
    check_count("round_id", round_id, 0, none="None for the newest")


def _load(mapping: ReadableState, path: str, round_id: int | None) -> dict[str, Any] | None:
    """A copy of the state of a round, by default the highest; None if there is none."""
    if session_key(path) not in mapping:
        return None
    number = highest_round(mapping, path) if round_id is None else round_id
    found = None if number is None else mapping.get(round_key(path, number))
    if found is None or number is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("state"), dict):
        raise InvalidRecord(round_key(path, number), "it is no round of a StateService")
    state: dict[str, Any] = deep_copy(found["state"])
    return state
