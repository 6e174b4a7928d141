"""Transactions: all the writes of a call or none, as one script on the server."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from vstate.backoff import Backoff
from vstate.errors import InvalidInput, StorageError, StoreUnavailable
from vstate.kv.base import check_value
from vstate.kv.redis.link import Link
from vstate.kv.redis.scripts import BUSY, DONE, HOLD, LOCK, WRITE, Answer, Command, Keys
from vstate.kv.servers import Attempts
from vstate.kv.stored_keys import is_stored_object, stored_key, stored_writes

MAX_VALUE_BYTES = 512 * 1024 * 1024  # the default of proto-max-bulk-len
MOST_BYTES = 512 * 1024 * 1024  # half of what a server takes in one command
MOST_ARGUMENTS = 500_000  # of a million that a server takes in one command, before Redis 7

LOCK_SECONDS = 5.0
LOCK_ATTEMPTS = 5
FIRST_BUSY_PAUSE = 0.001
LONGEST_BUSY_PAUSE = 0.02


@dataclass(frozen=True)
class Change:
    """The writes of a transaction and their conditions, by stored keys."""

    sets: Sequence[tuple[bytes, bytes]] = ()
    deletes: Sequence[bytes] = ()
    absent: Sequence[bytes] = ()
    equal: Sequence[tuple[bytes, bytes]] = ()
    lock: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(12))

    @classmethod
    def of(
        cls,
        writes: Mapping[str, bytes | None],
        expected: Mapping[str, bytes | None] | None = None,
        *,
        lock: str = "",
    ) -> Change:
        absent, equal = [], []
        for key, value in (expected or {}).items():
            if value is None:
                absent.append(stored_key(key))
            else:
                equal.append((stored_key(key), check_value(value)))
        sets, deletes = stored_writes(writes, longest=MAX_VALUE_BYTES, store="Redis")
        return cls(sets, deletes, absent, equal, lock)

    def needs_token(self) -> bool:
        """Whether a repeated or late write would do harm. To set an object is harmless at any time."""
        if self.lock or self.absent or self.equal or self.deletes:
            return True
        return not all(is_stored_object(key) for key, _ in self.sets)


class Transactions:
    """Writes through `link`. A `timeout` bounds the wait for the end of another's lock."""

    def __init__(self, link: Link, keys: Keys, *, ttl: float | None, timeout: float, location: str) -> None:
        self._link = link
        self._keys = keys
        self._ttl = ttl
        self._timeout = timeout
        self._location = location

    def write(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Carry out the writes if every expectation holds; whether it did."""
        return self._carry_out(Change.of(writes, expected)) == DONE

    def write_alone(self, plan: Callable[[], Mapping[str, bytes | None]]) -> None:
        """Call `plan` while a lock keeps other writers out, and carry out the writes that it returns."""
        for _ in range(LOCK_ATTEMPTS):
            token = secrets.token_hex(12)
            self._take_lock(token)
            try:
                # The lock is renewed until all is written: a large write takes longer than the lock lasts.
                with self._renewed(token):
                    answer = self._carry_out(Change.of(plan(), lock=token))
            except BaseException:
                with suppress(StorageError):
                    self._link.exchange(
                        [HOLD.call([self._keys.lock], token, 0)], self._link.attempts(patient=False)
                    )
                raise
            if answer == DONE:
                return
        raise StoreUnavailable(
            f"{self._location} lost its lock {LOCK_ATTEMPTS} times while it was needed; nothing was written: "
            "see whether the server, or this process, stands still for seconds at a time, and retry"
        )

    def _take_lock(self, token: str) -> None:
        backoff = self._busy_backoff()
        command = LOCK.call([self._keys.lock, self._keys.waiting], token, int(LOCK_SECONDS * 1000))
        while self._link.exchange([command]) != [1]:
            self._wait_for_others(backoff, self._link.attempts())

    @contextmanager
    def _renewed(self, token: str) -> Iterator[None]:
        """Keep the lock from ending during the with block."""
        over = threading.Event()
        command = HOLD.call([self._keys.lock], token, int(LOCK_SECONDS * 1000))

        def renew() -> None:
            while not over.wait(LOCK_SECONDS / 4):
                # The next renewal may succeed. If all fail, the last script finds that the lock is gone.
                with suppress(StorageError):
                    self._link.exchange([command], self._link.attempts(patient=False))

        threading.Thread(target=renew, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _busy_backoff(self) -> Backoff:
        return Backoff(FIRST_BUSY_PAUSE, LONGEST_BUSY_PAUSE, seconds=self._timeout)

    def _wait_for_others(self, backoff: Backoff, attempts: Attempts) -> None:
        if not backoff.pause():
            # A try whose connection broke may still be on its way: the server has not refused it for good.
            raise attempts.verdict(
                StoreUnavailable(
                    f"{self._location} was locked by another for {self._timeout:g} s; nothing was written: "
                    "retry"
                )
            )

    def _carry_out(self, change: Change) -> Answer:
        """Carry out a transaction, and wait while another has the lock."""
        arguments = len(change.deletes) + len(change.absent) + 2 * (len(change.equal) + len(change.sets))
        if arguments > MOST_ARGUMENTS or sum(len(value) for _, value in change.sets) > MOST_BYTES:
            raise InvalidInput(
                f"one transaction on Redis has {MOST_BYTES // 2**20} MiB at most, and deletes "
                f"{MOST_ARGUMENTS:,} keys or sets half as many: make several of it"
            )
        backoff, attempts = self._busy_backoff(), self._link.attempts()
        again = False

        def command() -> Sequence[Command]:
            nonlocal again
            made, again = [self._command(change, again=again)], True
            return made

        while True:
            answer: Answer
            (answer,) = self._link.exchange(command, attempts)
            if answer != BUSY:
                return answer
            self._wait_for_others(backoff, attempts)

    def _command(self, change: Change, *, again: bool) -> Command:
        return WRITE.call(
            self._keys.written,
            change.token if change.needs_token() else "",
            "1" if again else "",
            change.lock,
            # Longer than any try can be on its way when the last one is answered.
            int(self._timeout * 4 + 60) * 1000,
            0 if self._ttl is None else int(self._ttl * 1000),
            self._keys.channel,
            len(change.absent),
            len(change.equal),
            len(change.deletes),
            len(change.sets),
            *change.absent,
            *(text for row in change.equal for text in row),
            *change.deletes,
            *(text for row in change.sets for text in row),
        )
