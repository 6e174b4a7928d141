"""Redis: a store on a Redis or Valkey server, or on a cluster of them, for many machines."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from vstate.errors import InvalidInput, StorageError, StoreUnavailable
from vstate.kv.base import OBJECT_PREFIX, KVStore, check_key, check_value
from vstate.kv.packing import OBJECT_MARK, pack, unpack
from vstate.kv.redis.link import Doubt, Link, Patience
from vstate.kv.redis.listener import Listener
from vstate.kv.redis.scripts import (
    BUSY,
    DONE,
    FIELDS,
    HOLD,
    LOCK,
    MEMORY,
    OBJECT_HASHES,
    OTHERWISE,
    PRESENT,
    STAGE,
    STAGE_LOST,
    WRITE,
    Answer,
    Command,
)

if TYPE_CHECKING:
    import redis

T = TypeVar("T")

MAX_VALUE_BYTES = 512 * 1024 * 1024  # what a server takes unless its proto-max-bulk-len says otherwise
MOST_SECONDS = 10**9
KEYS_PER_PAGE = 1000
FIELDS_PER_PAGE = 500
ITEMS_PER_PAGE = 64
KEYS_PER_COMMAND = 500
KEYS_PER_EXCHANGE = 5000
BYTES_PER_COMMAND = 4 * 1024 * 1024
BYTES_PER_EXCHANGE = 32 * 1024 * 1024
STAGED_FROM = 32 * 1024 * 1024
STAGED_ROWS = 100_000
MOST_ARGUMENTS = 500_000  # of a million that a server takes in one command, before Redis 7
STAGE_SECONDS = 600

LOCK_SECONDS = 5.0
LOCK_ATTEMPTS = 5
FIRST_BUSY_PAUSE = 0.001
LONGEST_BUSY_PAUSE = 0.02

_DIGITS = "0123456789abcdef"


@dataclass(frozen=True)
class _Writes:
    """What is to be written, by packed keys, and under which conditions."""

    sets: Sequence[tuple[bytes, bytes]] = ()
    deletes: Sequence[bytes] = ()
    absent: Sequence[bytes] = ()
    equal: Sequence[tuple[bytes, bytes]] = ()
    lock: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(12))

    def needs_token(self) -> bool:
        """Whether it would matter if it were done twice, or late: to set an object is the same at any
        time.
        """
        if self.lock or self.absent or self.equal or self.deletes:
            return True
        return any(key[:1] != OBJECT_MARK for key, _ in self.sets)


class Redis(KVStore):
    """A store on the server at `url`, or reached by a `client` of redis-py: Redis 6.2 or later, Valkey, a
    cluster.

    URLs: `redis://user:password@host:port/database`, `rediss://` for TLS, `unix:///path/of/the/socket?db=0`,
    and `redis+cluster://host:port` or `rediss+cluster://` for a cluster, of which any node will do; behind a
    "?" the options of redis-py. A `client` is a redis.Redis (also one that a Sentinel gave) or a
    redis.RedisCluster; it keeps its own timeouts, and stays open when the store is closed.

    **Promise.** `transact` is one script on the server, and one round trip: all the writes or none, any
    number of swaps. If the connection dies before the answer came, the same transaction is sent again under
    the same token, by which the server knows whether it has done it, and tells so. If it cannot be asked any
    more, StoreUnavailable has `outcome_unknown`. Threads, forks and machines may share a store.

    **Durability** is the server's. With `appendonly yes` and `appendfsync always`, what was written survives
    a power cut; with `everysec`, the default of `appendonly yes`, the last second or two may be lost; with
    snapshots alone, all since the last one. What is lost is lost from the end: a branch is where it was some
    transactions ago.

    **Consistency.** Everything is read from the primary, and so is what was last written. But a primary hands
    its writes to its replicas after it has confirmed them: a failover may lose the last ones, and a primary
    that is cut off from the others may confirm writes that are lost when it comes back
    (`min-replicas-to-write` bounds that).

    **Memory.** Redis keeps everything in memory. It must not make room by itself: if it has a `maxmemory` and
    a `maxmemory-policy` that could evict what is stored, the first use raises InvalidInput; with `noeviction`
    a full server raises StoreFull, having written nothing, and deleting still works.

    - `prefix` sets stores on one server apart. All keys of one begin with "{prefix}:", braces included, so
      that a cluster has them on one node, whose memory they have to fit in; while the cluster moves them to
      another, calls wait. A user of the server's needs all commands on these keys; without publishing, only
      `listening` is slower.
    - `ttl`, in seconds: the whole store expires so long after the last write, and never a part of it. None:
      never. All who write to a store must give the same.
    - `timeout`, in seconds, is how long a call waits for the server to answer or to come back, and for the
      end of another's `exclusively`; then StoreUnavailable. A server that was not there to begin with is not
      waited for.

    A store is pickled as its URL, and not if that holds a password or if it was made of a `client`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "vstate",
        ttl: float | None = None,
        client: redis.Redis | redis.RedisCluster | None = None,
        timeout: float = 30.0,
    ) -> None:
        check_key(prefix)
        if not prefix or "{" in prefix or "}" in prefix:
            raise InvalidInput(f"a prefix is some text without braces, not {prefix!r}")
        # A number that the server could not take would stop a script halfway.
        if ttl is not None and not (_is_number(ttl) and 0.001 <= ttl <= MOST_SECONDS):
            raise InvalidInput(f"ttl is a number of seconds above 0, or None for ever, not {ttl!r}")
        if not (_is_number(timeout) and 0 < timeout <= MOST_SECONDS):
            raise InvalidInput(f"timeout is a number of seconds above 0, not {timeout!r}")
        self._url = url
        self._prefix = prefix
        self._ttl = ttl
        self._timeout = timeout
        self._base = f"{{{prefix}}}"
        self._objects = [f"{self._base}:o{digit}" for digit in _DIGITS]
        self._values = f"{self._base}:v"
        self._index = f"{self._base}:k"
        self._lock = f"{self._base}:lock"
        self._waiting = f"{self._base}:waiting"
        self._rows = [*self._objects, self._values, self._index]
        self._written = [*self._rows, f"{self._base}:done", self._lock, self._waiting]
        self._channel = f"{self._base}:changes"
        self._checked = False
        self._link = Link(url, client, timeout, self._values)

    # Reading

    def get(self, key: str) -> bytes | None:
        hash_name, name = self._place(pack(key))
        value: bytes | None = self._exchange([("HGET", hash_name, name)])[0]
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that are present, of up to 5,000 keys in one round trip."""
        found = {}
        wanted = dict.fromkeys(pack(key) for key in keys)
        for some in _batches(wanted, KEYS_PER_EXCHANGE):
            by_hash: dict[str, list[bytes]] = {}
            for packed in some:
                by_hash.setdefault(self._place(packed)[0], []).append(packed)
            parts = [
                (hash_name, part)
                for hash_name, packed in by_hash.items()
                for part in _batches(packed, KEYS_PER_COMMAND)
            ]
            commands = [
                ("HMGET", hash_name, *(self._place(packed)[1] for packed in part))
                for hash_name, part in parts
            ]
            for (_, part), values in zip(parts, self._exchange(commands), strict=True):
                for packed, value in zip(part, values, strict=True):
                    if value is not None:
                        found[unpack(packed)] = value
        return found

    def __contains__(self, key: str) -> bool:
        return bool(self.present([key]))

    def present(self, keys: Iterable[str]) -> Set[str]:
        found: set[str] = set()
        wanted = dict.fromkeys(pack(key) for key in keys)
        for some in _batches(wanted, KEYS_PER_EXCHANGE):
            (digits,) = self._exchange([PRESENT.call(self._rows, *some)])
            found.update(
                unpack(packed) for packed, digit in zip(some, digits, strict=True) if digit == ord("1")
            )
        return found

    def keys(self, prefix: str = "") -> Iterator[str]:
        """As promised by KVStore. Objects come hash by hash; the names of a sixteenth of them are in
        memory.
        """
        text = check_key(prefix).encode()
        return (unpack(packed) for packed in self._listed(prefix, text))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        for some in _batches(self.keys(prefix), ITEMS_PER_PAGE):
            yield from self.get_many(some).items()

    def _listed(self, prefix: str, text: bytes) -> Iterator[bytes]:
        first = b"[" + text
        while True:
            command = ("ZRANGEBYLEX", self._index, first, b"(" + text + b"\xff", "LIMIT", 0, KEYS_PER_PAGE)
            (page,) = self._exchange([command])
            yield from page
            if len(page) < KEYS_PER_PAGE:
                break
            first = b"(" + page[-1]
        if OBJECT_PREFIX.startswith(prefix[:2]):
            digits = prefix[2:]
            if len(digits) <= 64 and not digits.strip(_DIGITS):
                for at, hash_name in enumerate(self._objects):
                    if not digits or digits[0] == _DIGITS[at]:
                        yield from self._listed_objects(hash_name, digits)

    def _listed_objects(self, hash_name: str, digits: str) -> Iterator[bytes]:
        """The packed keys of the objects of one hash whose ids begin with these digits."""
        whole = bytes.fromhex(digits[: len(digits) // 2 * 2])
        # A hash that shrinks meanwhile gives some fields again, and a server that was started anew all of
        # them.
        seen: set[bytes] = set()
        cursor, run = b"0", None
        while True:
            ((now, cursor, fields),) = self._exchange(
                [FIELDS.call([hash_name], cursor, FIELDS_PER_PAGE, whole)]
            )
            if run not in (None, now):
                cursor, run = b"0", None
                continue
            run = now
            for name in fields:
                if name not in seen:
                    seen.add(name)
                    if name.hex().startswith(digits):
                        yield OBJECT_MARK + name
            if cursor == b"0":
                return

    # Writing

    def set(self, key: str, value: bytes) -> None:
        self.set_many({key: value})

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        return self.transact({key: new}, {key: expected})

    def set_many(self, items: Mapping[str, bytes]) -> None:
        """Set every key of `items`, some megabytes at a time. If it raises, some may be set and others
        not.
        """
        rows = [(pack(key), _storable(key, value)) for key, value in items.items()]
        self._write_parts([_Writes(sets=part) for part in _by_bytes(rows)])

    def delete_many(self, keys: Iterable[str]) -> None:
        packed = [pack(key) for key in keys]
        self._write_parts([_Writes(deletes=part) for part in _batches(packed, KEYS_PER_EXCHANGE)])

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As promised by KVStore, and as one transaction: all the writes or none, any number of swaps.

        More than 32 MB are brought to the server in pieces, beside the store, and put into it by one script;
        the server does nothing else while that runs, which takes seconds for each gigabyte.
        """
        absent, equal = [], []
        for key, value in expected.items():
            if value is None:
                absent.append(pack(key))
            else:
                equal.append((pack(key), check_value(value)))
        return self._write(self._split(writes, absent=absent, equal=equal)) == DONE

    @property
    def transactional(self) -> bool:
        return True

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As promised by KVStore. While `plan` runs, in this process, a lock on the server has all other
        writers wait, for as long as their timeout; `plan` must not write, for it would wait for itself.

        The lock is renewed until `plan` is done, and ends by itself a few seconds after a process that died.
        """
        for _ in range(LOCK_ATTEMPTS):
            token = secrets.token_hex(12)
            self._take_lock(token)
            try:
                # Until it is written: to bring a lot to the server takes longer than the lock lasts.
                with self._held(token):
                    answer = self._write(self._split(plan(), lock=token))
            except BaseException:
                with suppress(StorageError):
                    self._exchange([HOLD.call([self._lock], token, 0)], patient=False)
                raise
            if answer == DONE:
                return True
        raise StoreUnavailable(
            f"{self.location} lost its lock {LOCK_ATTEMPTS} times while it was needed; nothing was written: "
            "see whether the server, or this process, stands still for seconds at a time, and retry"
        )

    def _take_lock(self, token: str) -> None:
        patience = Patience(self._timeout, FIRST_BUSY_PAUSE, LONGEST_BUSY_PAUSE)
        command = LOCK.call([self._lock, self._waiting], token, int(LOCK_SECONDS * 1000))
        while self._exchange([command]) != [1]:
            self._pause_for_others(patience, Doubt())

    @contextmanager
    def _held(self, token: str) -> Iterator[None]:
        """Keep the lock from ending meanwhile."""
        over = threading.Event()
        command = HOLD.call([self._lock], token, int(LOCK_SECONDS * 1000))

        def renew() -> None:
            while not over.wait(LOCK_SECONDS / 4):
                # If one fails, the next may not; and if all do, the last script finds that the lock is gone.
                with suppress(StorageError):
                    self._exchange([command], patient=False)

        threading.Thread(target=renew, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _pause_for_others(self, patience: Patience, doubt: Doubt) -> None:
        if not patience.pause():
            # What was sent on a connection that broke may still be under way: the server has not denied it
            # for good.
            written = (
                "it may yet be written: read it again before you" if doubt.unsure else "it was not written:"
            )
            raise StoreUnavailable(
                f"{self.location} was locked by another for {self._timeout:g} s; {written} retry",
                outcome_unknown=doubt.unsure,
            )

    def _split(
        self,
        writes: Mapping[str, bytes | None],
        *,
        absent: Sequence[bytes] = (),
        equal: Sequence[tuple[bytes, bytes]] = (),
        lock: str = "",
    ) -> _Writes:
        sets, deletes = [], []
        for key, value in writes.items():
            if value is None:
                deletes.append(pack(key))
            else:
                sets.append((pack(key), _storable(key, value)))
        return _Writes(sets, deletes, absent, equal, lock)

    def _write_parts(self, parts: list[_Writes]) -> None:
        """Carry out each part as a transaction of its own, many of them in one round trip."""
        patience, doubt = Patience(self._timeout, FIRST_BUSY_PAUSE, LONGEST_BUSY_PAUSE), Doubt()
        per_exchange = max(1, BYTES_PER_EXCHANGE // BYTES_PER_COMMAND)
        for some in _batches(parts, per_exchange):
            left, again = some, False
            while left:
                answers = self._carry_out(left, doubt, again=again)
                again = True
                left = [part for part, answer in zip(left, answers, strict=True) if answer == BUSY]
                if left:
                    self._pause_for_others(patience, doubt)

    def _write(self, writes: _Writes) -> Answer:
        """Carry out a transaction, waiting while another has the lock."""
        if len(writes.deletes) + len(writes.absent) + 2 * len(writes.equal) > MOST_ARGUMENTS:
            raise InvalidInput(
                f"one transaction on Redis deletes {MOST_ARGUMENTS:,} keys, or expects the values of half as "
                "many, at most: make several of it"
            )
        patience, doubt = Patience(self._timeout, FIRST_BUSY_PAUSE, LONGEST_BUSY_PAUSE), Doubt()
        staged = len(writes.sets) > STAGED_ROWS or sum(len(value) for _, value in writes.sets) > STAGED_FROM
        answer: Answer = STAGE_LOST if staged else BUSY
        if staged and (writes.absent or writes.equal):
            # Mostly that saves a lost race from sending it all.
            check = _Writes(absent=writes.absent, equal=writes.equal)
            if self._exchange([self._command(check)]) == [OTHERWISE]:
                return OTHERWISE
        attempts, again = 0, False
        while True:
            if answer == STAGE_LOST:
                attempts += 1
                if attempts > LOCK_ATTEMPTS:
                    raise StoreUnavailable(
                        f"{self.location} lost what was to be written before it could be; nothing was "
                        "written: retry"
                    )
                self._stage(writes)
            (answer,) = self._carry_out([writes], doubt, again=again, staged=staged)
            again = True
            if answer == BUSY:
                self._pause_for_others(patience, doubt)
            elif answer != STAGE_LOST:
                return answer

    def _stage(self, writes: _Writes) -> None:
        """Bring what is to be set to the server, beside the store, where it is gone after a while."""
        stage = self._stage_name(writes)
        for part in _by_bytes(writes.sets):
            rows = (text for row in part for text in row)
            self._exchange([STAGE.call([stage], STAGE_SECONDS * 1000, *rows)])

    def _stage_name(self, writes: _Writes) -> str:
        return f"{self._base}:stage:{writes.token}"

    def _carry_out(
        self, parts: Sequence[_Writes], doubt: Doubt, *, again: bool, staged: bool = False
    ) -> list[Answer]:
        return self._exchange(
            [self._command(part, again=again, staged=staged) for part in parts],
            again=lambda: [self._command(part, again=True, staged=staged) for part in parts],
            doubt=doubt,
        )

    def _command(self, writes: _Writes, *, again: bool = False, staged: bool = False) -> Command:
        return WRITE.call(
            [*self._written, self._stage_name(writes)] if staged else self._written,
            writes.token if writes.needs_token() else "",
            "1" if again else "",
            writes.lock,
            # Longer than a try can be under way when the last one is answered.
            int(self._timeout * 4 + 60) * 1000,
            0 if self._ttl is None else int(self._ttl * 1000),
            self._channel,
            len(writes.absent),
            len(writes.equal),
            len(writes.deletes),
            0 if staged else len(writes.sets),
            len(writes.sets) if staged else 0,
            *writes.absent,
            *(text for row in writes.equal for text in row),
            *writes.deletes,
            *(() if staged else (text for row in writes.sets for text in row)),
        )

    # The server

    @contextmanager
    def listening(self, key: str) -> Iterator[Callable[[float], None]]:
        """As promised by KVStore, on a connection of its own. A wait that loses it, or gets another,
        returns.
        """
        packed = pack(key)
        if packed[:1] == OBJECT_MARK:
            # An object does not change, so nobody is told.
            with super().listening(key) as wait:
                yield wait
            return
        listener = Listener(self._link, self._channel, packed)
        try:
            yield listener.wait
        finally:
            listener.close()

    def close(self) -> None:
        self._link.close()

    def _exchange(
        self,
        commands: Sequence[Command],
        *,
        again: Callable[[], Sequence[Command]] | None = None,
        doubt: Doubt | None = None,
        patient: bool = True,
    ) -> list[Any]:
        if self._checked:
            return self._link.exchange(commands, again=again, doubt=doubt, patient=patient)
        # What only reads need not wait for the answer: opening a store far away is a matter of round trips.
        look = MEMORY.call([self._values])
        memory, *replies = self._link.exchange([look] if again else [look, *commands])
        self._check_memory(*memory)
        self._checked = True
        return self._link.exchange(commands, again=again, doubt=doubt, patient=patient) if again else replies

    def _check_memory(self, limit: bytes, policy: bytes) -> None:
        """Refuse a server that would throw away what is stored when its memory is full."""
        evicts = policy.startswith(b"allkeys-") or (policy.startswith(b"volatile-") and self._ttl is not None)
        if limit not in (b"", b"0") and evicts:
            raise InvalidInput(
                f"{self.location} throws away what is stored when its memory is full (maxmemory-policy "
                f"{policy.decode()}): have it say noeviction, by CONFIG SET maxmemory-policy noeviction"
            )

    def _place(self, packed: bytes) -> tuple[str, bytes]:
        """The hash that a packed key's value is in, and the field."""
        if packed[:1] == OBJECT_MARK:
            return self._objects[packed[1] * OBJECT_HASHES // 256], packed[1:]
        return self._values, packed

    # Identity

    @property
    def location(self) -> str:
        return f"{self._link.place} ({self._prefix})"

    def __repr__(self) -> str:
        return f"Redis({self._link.place!r}, prefix={self._prefix!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._url is None or self._link.has_password:
            raise TypeError(
                "a Redis store is not pickled if its URL holds a password, which would be in the pickle, or "
                "if it was made of a client: open it again where it is needed"
            )
        return partial(Redis, prefix=self._prefix, ttl=self._ttl, timeout=self._timeout), (self._url,)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _storable(key: str, value: bytes) -> bytes:
    value = check_value(value)
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInput(
            f"the value of {key!r} has {len(value):,} bytes; Redis takes {MAX_VALUE_BYTES:,} at most"
        )
    return value


def _batches(things: Iterable[T], count: int) -> Iterator[list[T]]:
    """Lists of so many, the last one shorter."""
    left = iter(things)
    while batch := list(islice(left, count)):
        yield batch


def _by_bytes(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows in parts that are not too long for one command."""
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for row in rows:
        length = len(row[0]) + len(row[1])
        if part and (size + length > BYTES_PER_COMMAND or len(part) == KEYS_PER_EXCHANGE):
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    if part:
        yield part
