"""Redis: a store on a Redis or Valkey server, or on a cluster of them, for many machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from vstate.arguments import check_installed, check_seconds
from vstate.backoff import Timeout
from vstate.errors import InvalidInput
from vstate.kv.base import TransactionalStore, batches, batches_by_bytes, check_key
from vstate.kv.redis.scripts import DIGITS, FIELDS, KEYS_PER_EXCHANGE, PRESENT, Keys
from vstate.kv.stored_keys import OBJECT_MARK, is_stored_object, key_of, ranges, stored_key

if TYPE_CHECKING:
    import redis

SHORTEST_TTL = 0.001
LONGEST_TTL = 10**9  # a number that the server does not take would stop a script halfway
KEYS_PER_PAGE = 1000
FIELDS_PER_PAGE = 500
BYTES_PER_WRITE = 4 * 1024 * 1024


class Redis(TransactionalStore):
    """A store on the server at `url`, or of a `client` of redis-py: Redis 6.2 or later, Valkey, a cluster.

    URLs: `redis://user:password@host:port/database`, `rediss://` for TLS, `unix:///path/of/the/socket?db=0`,
    `redis+cluster://host:port` for any node of a cluster, and
    `redis+sentinel://user:password@host:port,host:port/service/database` for the primary that sentinels name;
    with `rediss+` for TLS. Behind a "?" are the options of redis-py, and `sentinel_username` and
    `sentinel_password`. A `client` is a redis.Redis (also one from a Sentinel) or a redis.RedisCluster. The
    store makes connections of its own like the client's, with the client's timeouts, and leaves it open.

    **Promise.** `transact` is one script on the server, and one round trip: all the writes or none, any
    number of swaps. If the connection dies before the answer, the same transaction is sent again under the
    same token. By the token the server knows whether it has carried it out. If the server can no longer be
    asked, StoreUnavailable has `outcome_unknown`. Threads, forks and machines may share a store.

    **Durability** is the server's. With `appendonly yes` and `appendfsync always`, writes survive a power
    cut. With `everysec`, the default of `appendonly yes`, the last second or two may be lost; with snapshots
    alone, everything since the last one. Only the newest writes are lost: a branch is where it was some
    transactions ago.

    **Consistency.** Every read is from the primary, and sees the last write. But a primary hands writes to
    its replicas after it has confirmed them. A failover may lose the last ones. A primary that is cut off
    from the others may confirm writes that are lost when it comes back (`min-replicas-to-write` bounds that).

    **Memory.** Redis keeps everything in memory, and must not evict anything: with a `maxmemory` and a
    `maxmemory-policy` that could evict keys of the store, the first use raises InvalidInput. With
    `noeviction` a full server raises StoreFull and writes nothing, and deleting still works.

    - `prefix` sets stores on one server apart. All keys of a store begin with "{prefix}:", braces included.
      So a cluster has them on one node, and they must fit in its memory. While the cluster moves them to
      another node, calls wait. A user of the server needs all commands on these keys; without the right to
      publish, only `listening` is slower.
    - `ttl`, in seconds: the whole store expires so long after the last write, and never a part of it. None:
      never. All writers of a store must give the same.
    - `timeout`, in seconds, is how long a call waits for the server to answer or to come back, and for the
      end of another's `exclusively`; then StoreUnavailable. None: 30 seconds, and 5 for a server that refuses
      connections or cannot be reached. No call waits for a server that was never there.
    - `max_connections`, of the URL or of the client, bounds the connections. Each `listening` takes one more.

    A store is pickled as its URL. It cannot be pickled if the URL holds a password, or if it was made of a
    `client`.
    """

    ordered = True

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "vstate",
        ttl: float | None = None,
        client: redis.Redis | redis.RedisCluster | None = None,
        timeout: float | None = None,
    ) -> None:
        check_key(prefix)
        if not prefix or "{" in prefix or "}" in prefix:
            raise InvalidInput(f"a prefix is some text without braces, not {prefix!r}")
        check_seconds("timeout", timeout, none="None for the default")
        check_seconds("ttl", ttl, none="None for ever")
        if ttl is not None and not SHORTEST_TTL <= ttl <= LONGEST_TTL:
            raise InvalidInput(f"ttl is from {SHORTEST_TTL} to {LONGEST_TTL:,} seconds on Redis, not {ttl!r}")
        if (url is None) == (client is None):
            raise InvalidInput("a Redis store is given a URL or a client=, one of the two")
        check_installed("redis", "a Redis store", "redis")
        # Late, as is every driver: these modules import it.
        from vstate.kv.redis.link import Link
        from vstate.kv.redis.transactions import Transactions

        self._url = url
        self._ttl = ttl
        self._timeout = timeout
        self._keys = Keys(prefix)
        patience = Timeout.of(timeout, 30.0)
        self._link = Link(url, client, timeout=patience, keys=self._keys, expires=ttl is not None)
        self._transactions = Transactions(
            self._link, self._keys, ttl=ttl, timeout=patience.seconds, location=self.location
        )

    # Reading

    def get(self, key: str) -> bytes | None:
        hash_name, name = self._keys.place(stored_key(key))
        value: bytes | None = self._link.exchange([("HGET", hash_name, name)])[0]
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of those keys that are present, of up to 5,000 keys in one round trip."""
        found = {}
        wanted = dict.fromkeys(stored_key(key) for key in keys)
        for some in batches(wanted, KEYS_PER_EXCHANGE):
            by_hash: dict[str, list[tuple[bytes, bytes]]] = {}
            for stored in some:
                hash_name, field = self._keys.place(stored)
                by_hash.setdefault(hash_name, []).append((stored, field))
            commands = [("HMGET", name, *(field for _, field in part)) for name, part in by_hash.items()]
            for part, values in zip(by_hash.values(), self._link.exchange(commands), strict=True):
                for (stored, _), value in zip(part, values, strict=True):
                    if value is not None:
                        found[key_of(stored)] = value
        return found

    def __contains__(self, key: str) -> bool:
        return bool(self.present([key]))

    def present(self, keys: Iterable[str]) -> Set[str]:
        found: set[str] = set()
        wanted = dict.fromkeys(stored_key(key) for key in keys)
        for some in batches(wanted, KEYS_PER_EXCHANGE):
            (digits,) = self._link.exchange([PRESENT.call(self._keys.rows, *some)])
            found.update(
                key_of(stored) for stored, digit in zip(some, digits, strict=True) if digit == ord("1")
            )
        return found

    def keys(self, prefix: str = "") -> Iterator[str]:
        """As promised by KVStore. A sixteenth of the names of objects is in memory at a time."""
        check_key(prefix)
        return (key_of(stored) for stored in self._listed(prefix))

    def _listed(self, prefix: str) -> Iterator[bytes]:
        for first, last in ranges(prefix):
            if first.startswith(OBJECT_MARK):
                digits = prefix[2:]
                for digit, hash_name in zip(DIGITS, self._keys.objects, strict=True):
                    if not digits or digits[0] == digit:
                        yield from self._listed_objects(hash_name, digits)
            else:
                yield from self._listed_others(first, last)

    def _listed_others(self, first: bytes, last: bytes) -> Iterator[bytes]:
        """The stored keys in the index from the first to the last, inclusive."""
        begin = b"[" + first
        while True:
            command = ("ZRANGEBYLEX", self._keys.index, begin, b"[" + last, "LIMIT", 0, KEYS_PER_PAGE)
            (page,) = self._link.exchange([command])
            yield from page
            if len(page) < KEYS_PER_PAGE:
                return
            begin = b"(" + page[-1]

    def _listed_objects(self, hash_name: str, digits: str) -> Iterator[bytes]:
        """The stored keys of the objects in one hash whose ids begin with these digits."""
        whole = bytes.fromhex(digits[: len(digits) // 2 * 2])
        # A hash that shrinks meanwhile lists some fields twice, and a restarted server lists all again.
        seen: set[bytes] = set()
        cursor, run = b"0", None
        while True:
            ((now, cursor, fields),) = self._link.exchange(
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

    def set_many(self, items: Mapping[str, bytes]) -> None:
        """Set every key, some megabytes in each transaction. If it raises, some may be set and others not."""
        limits = {"most_bytes": BYTES_PER_WRITE, "most": KEYS_PER_EXCHANGE}
        for some in batches_by_bytes(items.items(), lambda item: len(item[1]), **limits):
            super().set_many(dict(some))

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete every one of the keys, some thousand in each transaction."""
        for some in batches(keys, KEYS_PER_EXCHANGE):
            super().delete_many(some)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """As promised by KVStore, and as one transaction: all the writes or none, any number of swaps.

        It has 512 MiB at most. The server does nothing else meanwhile, which takes seconds for each gigabyte.
        """
        return self._transactions.write(writes, expected)

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """As promised by KVStore. While `plan` runs, in this process, a lock on the server makes all other
        writers wait, for as long as their timeout. `plan` must not write, for it would wait for itself.

        The lock is renewed until `plan` is done, and ends a few seconds after a process that died.
        """
        self._transactions.write_alone(plan)
        return True

    # The server

    def listening(self, key: str) -> AbstractContextManager[Callable[[float], None]]:
        """As promised by KVStore. It takes a connection; a wait that loses it, or gets another, returns."""
        stored = stored_key(key)
        if is_stored_object(stored):
            # An object does not change, so no message tells of it.
            return super().listening(key)
        from vstate.kv.redis.link import Listener  # late, as is every driver

        return Listener(self._link, self._keys.channel, stored)

    def close(self) -> None:
        self._link.connections.close()

    # Identity

    @property
    def location(self) -> str:
        return f"{self._link.address.place} ({self._keys.prefix})"

    def __repr__(self) -> str:
        return f"Redis({self._link.address.place!r}, prefix={self._keys.prefix!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._url is None or self._link.address.secrets:
            raise TypeError(
                "a Redis store is not pickled if its URL holds a password, which would be in the pickle, or "
                "if it was made of a client: open it again where it is needed"
            )
        return partial(Redis, prefix=self._keys.prefix, ttl=self._ttl, timeout=self._timeout), (self._url,)
