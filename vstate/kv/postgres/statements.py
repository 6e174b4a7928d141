"""The SQL of a store, for one table."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from psycopg import sql

from vstate.errors import InvalidInput

FORMAT: Final = 1
COLUMNS: Final = {"key bytea", "value bytea", "swap uuid"}

WHOLE_TABLE: Final = 0
LISTENERS: Final = 2
CREATION: Final = 0x7673_7461_7465_0000
"""Advisory locks: of a table, of its listeners, and of the making of any table."""

MANY: Final = "*"
"""The message to listeners in place of the keys, if they are many."""

_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,62}"

# Locks come in a statement of their own: the next one sees all that was committed before they were granted.
# The first setting ends a wait. By the second the server notices within a second that its client is gone.
_LOCK = """
SELECT set_config('lock_timeout', $1, true), set_config('client_connection_check_interval', $2, true),
    CASE WHEN shared THEN pg_advisory_xact_lock_shared(number # {base})::text
    ELSE pg_advisory_xact_lock(number # {base})::text END
FROM unnest($3::int8[], $4::bool[]) AS wanted (number, shared)
"""

# The mark of a row: its time, in microseconds by the server's clock, and the id of the transaction.
_MARK = """
encode(int8send((extract(epoch FROM clock_timestamp()) * 1000000)::int8) || $3::bytea, 'hex')::uuid
"""
_MARKED_AT = "('x' || left(encode(uuid_send(kept.swap), 'hex'), 16))::bit(64)::int8"

# An unchanged value is not written again, so it leaves no dead row behind. Objects have no mark: nobody has
# expectations of them, and 16 bytes each would add up. The first byte of their stored keys is 255; in a room
# the tenth is.
_PLACE = f"""
INSERT INTO {{table}} AS kept (key, value, swap)
SELECT key, value, CASE WHEN '\\xff' NOT IN (substr(key, 1, 1), substr(key, 10, 1)) THEN {_MARK} END
FROM unnest($4::bytea[], $5::bytea[]) AS given (key, value) WHERE (SELECT met FROM expecting)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, swap = excluded.swap
WHERE kept.value IS DISTINCT FROM excluded.value
"""

_REMOVE = "DELETE FROM {table} WHERE key = ANY($6::bytea[]) AND (SELECT met FROM expecting)"

# Two facts about the rows that a transaction was to change: whether one bears its mark; and, of the rows with
# other values than it would have set, the age of the oldest write in seconds, or NULL without such rows.
_TRACES = f"""
SELECT coalesce(bool_or(substring(uuid_send(kept.swap) FROM 9) = $1::bytea), false),
    max(extract(epoch FROM clock_timestamp()) - {_MARKED_AT} / 1e6)
        FILTER (WHERE kept.value IS DISTINCT FROM given.value)::float8
FROM unnest($2::bytea[], $3::bytea[]) AS given (key, value) JOIN {{table}} AS kept USING (key)
"""

# The index answers the subquery for each row. As a join, planning alone takes 30 us more.
_EXPECTED = """
SELECT NOT EXISTS (
    SELECT FROM unnest($1::bytea[], $2::bytea[]) AS expected (key, value)
    WHERE (SELECT kept.value FROM {table} AS kept WHERE kept.key = expected.key)
        IS DISTINCT FROM expected.value
) AS met
"""

# Whether anybody listens: a listener holds a shared lock. This lock is released at once. Two that ask at a
# time both get "yes", and send a message in vain.
_LISTENED = """
(SELECT CASE WHEN pg_try_advisory_lock({listeners}) THEN NOT pg_advisory_unlock({listeners}) ELSE true END)
"""

# Writes if every expectation holds. Its row: whether it did; whether to notify.
_WRITE = f"""
WITH expecting AS ({_EXPECTED}), placed AS ({_PLACE}), removed AS ({_REMOVE})
SELECT met, met AND {_LISTENED} FROM expecting
"""

_CREATE = """
CREATE TABLE {table} (key bytea NOT NULL PRIMARY KEY, value bytea NOT NULL, swap uuid)
"""


def check_table(table: object) -> str:
    """Return the name; InvalidInput unless it is an identifier, or two with a dot between."""
    if not isinstance(table, str) or not re.fullmatch(rf"(?:{_NAME}\.)?{_NAME}", table):
        raise InvalidInput(
            f"{table!r} is not a table's name: give letters, digits and _, 63 at most, with the schema and a "
            "dot before it if it has one"
        )
    return table


def lock_number(key: bytes) -> int:
    """The number of the advisory lock of a stored key, before the table is mixed in."""
    # Odd, and so none of the numbers above.
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big", signed=True) | 1


class Statements:
    """The statements about `table`."""

    def __init__(self, table: str) -> None:
        self._table = sql.Identifier(*check_table(table).split("."))
        self._name = sql.Literal(self._table.as_string(None))
        # The oid of a table is the same with and without a schema before its name.
        base = sql.SQL("({}::regclass::oid::int8 << 32)").format(self._name)
        self._parts = {
            "table": self._table,
            "name": self._name,
            "base": base,
            "listeners": sql.SQL("({} # {})").format(sql.Literal(LISTENERS), base),
        }

        # Explicit, since the database may have another default: a statement must see the writes that the one
        # before it waited for.
        self.begin = b"BEGIN ISOLATION LEVEL READ COMMITTED"
        self.commit = b"COMMIT"
        self.lock = self._made(_LOCK)
        # For a transaction of several round trips: if this machine vanishes in between, the server notices in
        # half a minute rather than two hours, and gives its locks to others.
        self.stay = (
            b"SELECT set_config('tcp_keepalives_idle', '15', true), "
            b"set_config('tcp_keepalives_interval', '5', true), set_config('tcp_keepalives_count', '3', true)"
        )

        self.get = self._made("SELECT value FROM {table} WHERE key = $1")
        self.get_many = self._made("SELECT key, value FROM {table} WHERE key = ANY($1::bytea[])")
        self.present = self._made("SELECT key FROM {table} WHERE key = ANY($1::bytea[])")
        self.keys = self._made(
            "SELECT key FROM {table} WHERE key >= $1 AND key <= $2 ORDER BY key LIMIT $3::int8"
        )

        self.write = self._made(_WRITE)
        self.traces = self._made(_TRACES)
        self.notify = self._made("SELECT pg_notify('vstate_' || {name}::regclass::oid, $1)")
        self.channel = self._made("SELECT 'vstate_' || {name}::regclass::oid, pg_backend_pid()")
        self.note_listener = self._made("SELECT pg_advisory_lock_shared({listeners})")

        self.look = self._made("""
            SELECT array_agg(attname || ' ' || format_type(atttypid, NULL)),
                obj_description(to_regclass({name}), 'pg_class'), version(), pg_backend_pid()
            FROM pg_attribute WHERE attrelid = to_regclass({name}) AND attnum > 0 AND NOT attisdropped
        """)
        self.create = [
            self._made(_CREATE),
            # Values are compressed already, or do not shrink: 4,000 bytes take 29 us, and 36 with a try.
            self._made("ALTER TABLE {table} ALTER value SET STORAGE EXTERNAL"),
            self._made(f"COMMENT ON TABLE {{table}} IS 'vstate {FORMAT}'"),
        ]

    def _made(self, text: str) -> bytes:
        return sql.SQL(text).format(**self._parts).as_bytes(None)
