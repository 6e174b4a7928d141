"""Transactions: all the writes of a call to one table or none, if every expectation holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

import psycopg

from vstate.errors import StoreUnavailable
from vstate.kv.base import batches_by_bytes, check_value
from vstate.kv.postgres.connections import BOOL, INT8, Connection, Steps, array
from vstate.kv.postgres.session import Session
from vstate.kv.postgres.statements import MANY, WHOLE_TABLE, lock_number
from vstate.kv.servers import Attempts, Failed
from vstate.kv.stored_keys import is_stored_object, stored_keys, stored_writes

MAX_VALUE_BYTES: Final = 1_000_000_000 - 1024
"""The longest value. PostgreSQL's limit is 2^30 bytes, for a row and for a message with its overhead."""

MOST_LOCKS: Final = 64
"""With more keys, the whole table is locked: the server has room for so many locks a connection."""

STATEMENT_BYTES: Final = 4 * 1024 * 1024
STATEMENT_ROWS: Final = 5000
CHECKED_FROM: Final = 256 * 1024
"""Bytes from which on the expectations are checked before the values are sent."""

MARK_BYTES: Final = 8
LOOKS: Final = 5

Writes = Mapping[str, bytes | None]

Outcome = Literal["done", "undone", "overwritten", "unseen"]
"""The traces of a transaction whose answer was lost. "done": its mark. "undone": an older row, which it would
have changed. "overwritten": only rows that others have written since. "unseen": none of its rows."""


@dataclass(slots=True)
class Change:
    """The writes and the expectations of a transaction, by stored keys."""

    sets: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[bytes] = field(default_factory=list)
    expected: dict[bytes, bytes | None] = field(default_factory=dict)

    @classmethod
    def of(cls, writes: Writes, expected: Writes) -> Change:
        sets, deletes = stored_writes(writes, longest=MAX_VALUE_BYTES, store="PostgreSQL")
        values = [None if value is None else check_value(value) for value in expected.values()]
        return cls(sets, deletes, dict(zip(stored_keys(expected), values, strict=True)))

    @property
    def witnesses(self) -> list[bytes]:
        """The keys of the rows that bear the mark of the transaction."""
        return [key for key, _ in self.sets if not is_stored_object(key)]

    @property
    def touched(self) -> list[bytes]:
        """The keys of all writes but those of objects."""
        return self.witnesses + [key for key in self.deletes if not is_stored_object(key)]

    @property
    def size(self) -> int:
        return sum(len(value) for _, value in self.sets)

    def parts(self) -> list[list[tuple[bytes, bytes]]]:
        """The rows to set, for one statement each. Rows with an expectation come last: all compare them."""
        # Sorted, so that two writers of the same objects follow one another and do not wait in a circle.
        rows = sorted(self.sets)
        others = [row for row in rows if row[0] not in self.expected]
        limits = {"most_bytes": STATEMENT_BYTES, "most": STATEMENT_ROWS}
        parts = list(batches_by_bytes(others, lambda row: len(row[1]), **limits)) or [[]]
        parts[-1] += [row for row in rows if row[0] in self.expected]
        return parts


class Transactions:
    """Writes through `session`.

    Every transaction holds a shared lock of the whole table, or an exclusive one to be alone. It also holds a
    lock of each key that it writes or has an expectation of, except keys of objects. These are advisory locks
    of the transaction. It gets them before the statement that compares, so the statement sees all writes of
    earlier holders.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def write(self, writes: Writes, expected: Writes) -> bool:
        """Carry out the writes if every expectation holds; whether it did."""
        change = Change.of(writes, expected)
        # A race that is lost already sends only the keys, not the values.
        if expected and (change.size > CHECKED_FROM or not writes) and not self._is_met(change):
            return False
        if not writes:
            return True
        mark = os.urandom(MARK_BYTES)
        begin: Steps = [(self._session.statements.begin, ()), self._lock(_locks_of(change))]

        def work(connection: Connection, attempts: Attempts) -> bool:
            head: Steps = begin
            unsure = attempts.unsure
            if unsure and change.expected:
                self._session.send(connection, begin)
                outcome = self._outcome(connection, change, mark, attempts)
                if outcome == "done":
                    return True
                if outcome == "overwritten":
                    raise self._unknown()
                unsure = outcome != "undone"
                head = []
            done = self._finish(connection, change, mark, attempts, head)
            if not done and unsure:
                raise self._unknown()
            return done

        return self._session.run(work, writing=True)

    def _is_met(self, change: Change) -> bool:
        """Whether every expectation holds now."""
        statement, wanted = self._session.statements.get_many, list(change.expected)
        found: dict[bytes, bytes] = dict(self._session.read(statement, (wanted,)))
        return all(found.get(key) == value for key, value in change.expected.items())

    def write_alone(self, plan: Callable[[], Writes]) -> None:
        """Call `plan` while nobody else writes, and carry out the writes that it returns."""
        statements = self._session.statements
        mark = os.urandom(MARK_BYTES)
        change = Change()
        failed: list[BaseException] = []
        # Advisory locks and not LOCK TABLE: that would also wait for a VACUUM of the table, with all writers
        # behind it.
        begin: Steps = [(statements.begin, ()), self._lock(None), (statements.stay, ())]

        def work(connection: Connection, attempts: Attempts) -> bool:
            nonlocal change
            self._session.send(connection, begin)
            # Deletions and objects may be written twice. A value may be a sum, which must not.
            if attempts.unsure and change.witnesses:
                outcome = self._outcome(connection, change, mark, attempts)
                if outcome == "done":
                    return True
                if outcome != "undone":
                    raise self._unknown()
            try:
                with self._session.holding(connection):
                    change = Change.of(plan(), {})
            except Failed:
                raise
            except BaseException as error:
                failed.append(error)
                return False
            return self._finish(connection, change, mark, attempts, [])

        self._session.run(work, writing=True)
        if failed:
            raise failed[0]

    def _finish(
        self, connection: Connection, change: Change, mark: bytes, attempts: Attempts, head: Steps
    ) -> bool:
        """Write and commit if every expectation holds, and notify listeners. `head` is sent along."""
        statements = self._session.statements
        parts = change.parts()
        steps = list(head)
        expected = list(change.expected), list(change.expected.values())
        if len(parts) > 1:
            steps.append((statements.stay, ()))
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            keys, values = [key for key, _ in part], [value for _, value in part]
            removed = change.deletes if last else []
            steps.append((statements.write, (*expected, mark, keys, values, removed)))
            if last:
                # Sent together, so that a commit is one round trip. A decision of the client would take two.
                steps.append((statements.commit, ()))
                attempts.sending = True
            connection.sending = sum(map(len, values))
            results = self._session.send(connection, steps)
            connection.sending = 0
            ((met, listened),) = results[-2 if last else -1]
            if not met:
                break
            steps = []
        attempts.sending = False
        if met and listened and change.touched:
            # After the commit, not within: NOTIFY makes all commits of the server follow one another. With a
            # disk that takes 5 ms to sync, 8 writers did 94 to 125 commits a second with it inside, 439 to
            # 530 this way.
            with suppress(psycopg.Error):
                self._session.send(connection, [(statements.notify, [_message(change).encode()])])
        return bool(met)

    def _outcome(self, connection: Connection, change: Change, mark: bytes, attempts: Attempts) -> Outcome:
        """The outcome of an earlier attempt. This transaction holds its locks, so it is over."""
        left: dict[bytes, bytes | None] = dict.fromkeys(change.touched)
        left.update(row for row in change.sets if row[0] in left)
        traces = self._session.statements.traces, (mark, list(left), list(left.values()))
        # The client's clock gives the age of the call, the server's clock the age of the row. So it does not
        # matter whether the clocks agree. If a row is hardly older than the call, a quick answer shows it.
        for _ in range(LOOKS):
            (((done, age),),) = self._session.send(connection, [traces])
            if done:
                return "done"
            if age is None:
                return "unseen"
            if age > time.monotonic() - attempts.began:
                return "undone"
        return "overwritten"

    def _lock(self, locks: dict[int, bool] | None) -> tuple[bytes, tuple[bytes, ...]]:
        # In order, so that nobody waits in a circle. The lock of the table comes first.
        numbers = sorted(locks or ())
        shared = [locks is not None, *((locks or {})[number] for number in numbers)]
        patience = str(max(1, int(self._session.timeout * 1000))).encode()
        wanted = array([number.to_bytes(8, signed=True) for number in (WHOLE_TABLE, *numbers)], INT8)
        flags = array([flag.to_bytes(1) for flag in shared], BOOL)
        return self._session.statements.lock, (patience, self._session.check_interval, wanted, flags)

    def _unknown(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the connection to {self._session.location} broke while a transaction was being committed, and "
            "others have written since: it may or may not have happened; read the ref again before you "
            "retry",
            outcome_unknown=True,
        )


def _locks_of(change: Change) -> dict[int, bool] | None:
    """The locks that separate the change from others, each True if it is shared. None for the whole table."""
    # Writers take no locks for objects, which would be too many. Only the lock of the table keeps them out.
    if any(map(is_stored_object, change.expected)):
        return None
    locks = {lock_number(key): True for key in change.expected}
    locks.update((lock_number(key), False) for key in change.touched)
    return locks if len(locks) <= MOST_LOCKS else None


def _message(change: Change) -> str:
    """The message to listeners: lock numbers, since a key may be longer than a message."""
    keys = change.touched
    return MANY if len(keys) > MOST_LOCKS else " ".join(f"{lock_number(key):x}" for key in keys)
