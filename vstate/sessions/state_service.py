"""StateService: the states of users' sessions, round by round, each round kept and found again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import Any, Self, TypeVar

from vstate import aio
from vstate.errors import InvalidInput, NotFound, VStateError
from vstate.kv.base import KVStore
from vstate.kv.memory import Memory
from vstate.kv.url import open_store
from vstate.objects.stream import BLOB_BYTES
from vstate.patterns.paths import join_path, split_path
from vstate.repo.details import Detail, details
from vstate.state.base import ReadableState
from vstate.state.versioned import Versioned

_T = TypeVar("_T")

_SESSIONS = "sessions"
_ROUNDS = "rounds"
_DIGITS = 12
_MOST_ROUNDS = 10**_DIGITS - 1
_DEFAULT = "default"
_ATTEMPTS = 1000
_WORTH_IT = 2048  # bytes
_FILLING = 4096  # bytes: the longest chunk, so that fillings are made of the same chunks
_RENEWED = 0.9  # of its ttl a session may have left without an export that renews it being a commit


class StateService:
    """States by user, session and round, on the branch `main` of a store, a path or a URL.

    - Every save is one commit. Rounds that share most of their contents are stored as what differs, so ten thousand
      rounds of a state that grows take little more than the last one.
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
        if seconds is not None and seconds <= 0:
            raise InvalidInput(f"ttl is a number of seconds above 0, or None for ever, not {ttl!r}")
        self._given = store
        self._ttl = seconds
        self._state: aio.Versioned | None = None
        self._own: KVStore | None = None

    def _open_store(self) -> KVStore:
        """The store to work on; one that was not given is closed by `stop`."""
        return open_store(self._given)

    # Its life

    async def start(self) -> None:
        """Open the store; started twice is once. Raises StoreUnavailable if it is down."""
        if self._state is not None:
            return
        store = self._open_store()
        state = aio.Versioned(store, branch="main")
        try:
            await state
        except BaseException:
            await state.close()
            if store is not self._given:
                store.close()
            raise
        self._state, self._own = state, None if store is self._given else store

    async def stop(self) -> None:
        """Close the store, if it was opened here; stopped twice is once."""
        state, self._state = self._state, None
        if state is not None:
            await state.close()
            if self._own is not None:
                self._own.close()

    async def health(self) -> bool:
        """Whether it is started and the store answers. Never raises."""
        try:
            await self._read(lambda state: None)
        except (VStateError, RuntimeError):
            return False
        return True

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
        path, asked = _path(user_id, session_id), _checked(round_id)
        saved = copy.deepcopy(state)
        filling = _filling(saved)
        number = 0

        def save(mapping: Versioned) -> None:
            nonlocal number
            if _session_key(path) not in mapping:
                for key in list(mapping.keys(_rounds(path))):  # what a session that expired has left
                    del mapping[key]
                mapping[_session_key(path)] = datetime.now(UTC)
            highest = _highest(mapping, path)
            number = asked if asked is not None else 1 if highest is None else highest + 1
            if number > _MOST_ROUNDS:
                raise InvalidInput(f"a round is a number up to {_MOST_ROUNDS}, not {number}")
            mapping[_round_key(path, number)] = {"state": saved, "filling": filling}
            if self._ttl is not None:
                mapping.expire(_session_key(path), self._ttl)

        await self._update(save, "save", user_id, session_id)
        return number

    async def export_state(
        self, user_id: str, session_id: str | None = None, round_id: int | None = None
    ) -> dict[str, Any] | None:
        """The state of a round, by default of the one with the highest number; None if there is none."""
        path, asked = _path(user_id, session_id), _checked(round_id)

        def read(mapping: ReadableState) -> tuple[dict[str, Any] | None, bool]:
            if _session_key(path) not in mapping:
                return None, False
            number = _highest(mapping, path) if asked is None else asked
            found = None if number is None else mapping.get(_round_key(path, number))
            return copy.deepcopy(found and found["state"]), found is not None and self._is_due(mapping, path)

        found, is_due = await self._read(read)
        if is_due:
            await self._update(lambda mapping: self._renew(mapping, path), "use", user_id, session_id)
        return found

    async def list_rounds(self, user_id: str, session_id: str | None = None) -> list[int]:
        """The numbers of a session's rounds, in their order."""
        path = _path(user_id, session_id)

        def read(mapping: ReadableState) -> list[int]:
            if _session_key(path) not in mapping:
                return []
            return [int(key.rpartition("/")[2]) for key in mapping.keys(_rounds(path))]

        return await self._read(read)

    async def diff_rounds(self, user_id: str, a: int, b: int, session_id: str | None = None) -> list[Detail]:
        """What changed from one round to another, by path; `print(*found, sep="\\n")` shows it. Raises NotFound."""
        states = []
        for number in (a, b):
            state = await self.export_state(user_id, session_id, number)
            if state is None:
                raise NotFound(
                    f"user {user_id!r} has no round {number} in the session {session_id or _DEFAULT!r}",
                    name=str(number),
                )
            states.append(state)
        return details(*states)

    # Sessions and users

    async def list_sessions(self, user_id: str) -> list[str]:
        """The ids of a user's sessions, sorted."""
        prefix = f"{join_path(_SESSIONS, _text('user_id', user_id))}/"
        return await self._read(lambda mapping: sorted(split_path(key)[2] for key in mapping.keys(prefix)))

    async def list_users(self) -> list[str]:
        """The ids of the users who have sessions, sorted."""
        prefix = f"{_SESSIONS}/"
        return await self._read(lambda mapping: sorted({split_path(key)[1] for key in mapping.keys(prefix)}))

    async def delete_state(
        self, user_id: str, session_id: str | None = None, round_id: int | None = None
    ) -> int:
        """Delete a round; without `round_id` a session; without either all of a user's. How many rounds went.

        Their history is kept. The next save goes by the rounds that are left.
        """
        asked = _checked(round_id)
        path = _path(user_id, session_id)
        everything = asked is None and session_id is None
        deleted = 0

        def delete(mapping: Versioned) -> None:
            nonlocal deleted
            if asked is not None:
                key = _round_key(path, asked)
                deleted = int(_session_key(path) in mapping and key in mapping)
                if deleted:
                    del mapping[key]
                return
            within = join_path(user_id) if everything else path
            rounds = list(mapping.keys(f"{_ROUNDS}/{within}/"))
            sessions = mapping.keys(f"{_SESSIONS}/{within}/") if everything else [_session_key(path)]
            for key in [*rounds, *sessions]:
                mapping.pop(key, None)
            deleted = len(rounds)

        await self._update(delete, "delete", user_id, session_id)
        return deleted

    async def purge(self) -> int:
        """Remove the rounds of sessions that have expired; how many there were."""
        purged = 0

        def remove(mapping: Versioned) -> None:
            nonlocal purged
            keys = list(mapping.keys(f"{_ROUNDS}/"))
            gone = [
                key for key in keys if _session_key(key.split("/", 1)[1].rpartition("/")[0]) not in mapping
            ]
            for key in gone:
                del mapping[key]
            purged = len(gone)

        await self.state.update(remove, message="purge sessions that have expired", attempts=_ATTEMPTS)
        return purged

    # Calls

    async def _read(self, function: Callable[[Versioned], _T]) -> _T:
        return await self.state.read(function)

    async def _update(
        self, function: Callable[[Versioned], None], what: str, user_id: str, session_id: str | None
    ) -> None:
        session = session_id or _DEFAULT
        message = f"{what}: {user_id}/{session}"
        await self.state.update(
            function, message=message, attempts=_ATTEMPTS, user_id=user_id, session_id=session
        )

    def _is_due(self, mapping: ReadableState, path: str) -> bool:
        """Whether a session has used up enough of its time for it to be worth a commit to begin it anew."""
        if self._ttl is None or not isinstance(mapping, Versioned):
            return False
        ends = mapping.expires(_session_key(path))
        return ends is None or (ends - datetime.now(UTC)).total_seconds() < _RENEWED * self._ttl

    def _renew(self, mapping: Versioned, path: str) -> None:
        if _session_key(path) in mapping and self._is_due(mapping, path):
            mapping.expire(_session_key(path), self._ttl)


class InMemoryStateService(StateService):
    """A StateService in memory: what it holds is gone when it is stopped."""

    def __init__(self) -> None:
        super().__init__()

    def _open_store(self) -> KVStore:
        return Memory()


def _filling(state: dict[str, Any]) -> bytes:
    """What makes a state of some kilobytes large enough to be cut into chunks. It is stored once for all rounds."""
    try:
        size = len(pickle.dumps(state, 5))
    except Exception:  # the commit tells what cannot be pickled, and where it is
        return b""
    missing = BLOB_BYTES + 1 - size if size > _WORTH_IT else 0
    return bytes(-(-missing // _FILLING) * _FILLING) if missing > 0 else b""


def _highest(mapping: ReadableState, path: str) -> int | None:
    """The highest number of a round there is, found by counting keys, digit by digit."""
    prefix = _rounds(path)
    count = mapping.count_keys(prefix)
    if not count:
        return None
    digits = "0" * max(0, _DIGITS - len(str(count)))
    if mapping.count_keys(prefix + digits) != count:  # there are gaps
        digits = ""
    while len(digits) < _DIGITS:
        digits += next(digit for digit in "9876543210" if mapping.count_keys(prefix + digits + digit))
    return int(digits)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return value


def _checked(round_id: object) -> int | None:
    if round_id is None:
        return None
    if isinstance(round_id, bool) or not isinstance(round_id, int):
        raise TypeError(f"a round is an int, not {type(round_id).__name__}")
    if not 0 <= round_id <= _MOST_ROUNDS:
        raise InvalidInput(f"a round is a number from 0 to {_MOST_ROUNDS}, not {round_id}")
    return round_id


def _path(user_id: str, session_id: str | None) -> str:
    return join_path(_text("user_id", user_id), _text("session_id", session_id or _DEFAULT))


def _session_key(path: str) -> str:
    return f"{_SESSIONS}/{path}"


def _rounds(path: str) -> str:
    return f"{_ROUNDS}/{path}/"


def _round_key(path: str, number: int) -> str:
    return f"{_rounds(path)}{number:0{_DIGITS}}"
