"""The store contract: each store, on each kind of server, and each store that stands in front of others."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from servers import on_server, url_of

from vstate.kv import Cache, Disk, Encrypted, KVStore, Memory, Prefixed, Redis, Tiered, open_store
from vstate.testing import Faulty, KVStoreTests

SECRET = bytes(32)

HERE: dict[str, Callable[[Path], KVStore]] = {
    "Memory": lambda path: Memory(),
    "Disk": lambda path: Disk(path / "store"),
    "Cache": lambda path: Cache(Memory(), max_bytes=600),
    "Cache with a directory, Disk": lambda path: Cache(Disk(path / "s"), 1000, path / "cache", 10**6),
    "Encrypted, Disk": lambda path: Encrypted(Disk(path, durability="process"), SECRET),
    "Encrypted, no transactions": lambda path: Encrypted(Faulty(Memory(), atomic=False), SECRET),
    "Prefixed, Disk": lambda path: Prefixed(Disk(path), "tenant-1", owns=True),
    "Prefixed, no transactions": lambda path: Prefixed(Faulty(Memory(), atomic=False), "tenant-1"),
    "Tiered, three": lambda path: Tiered(Memory(), Disk(path, durability="process"), Memory()),
    "Tiered, no transactions": lambda path: Tiered(Memory(), Faulty(Memory(), atomic=False)),
}
ON_SERVERS = ("redis", "valkey", "redis cluster", "postgres", "s3")


@pytest.mark.parametrize("kind", [*HERE, *map(on_server, ON_SERVERS)])
class TestEachStore(KVStoreTests):
    """Each with its promises, and with those of the store behind."""

    @pytest.fixture
    def opener(
        self, kind: str, tmp_path: Path, redis_prefix: str, request: pytest.FixtureRequest
    ) -> Callable[[], KVStore]:
        if kind in HERE:
            return partial(HERE[kind], tmp_path)
        if kind in ("valkey", "redis cluster"):
            url = request.getfixturevalue(kind.split()[-1] + "_url")
            return partial(Redis, url, prefix=redis_prefix)
        return partial(open_store, url_of(kind, request))

    @pytest.fixture
    def store(
        self, kind: str, opener: Callable[[], KVStore], redis_prefix: str, request: pytest.FixtureRequest
    ) -> Iterator[KVStore]:
        if kind != "redis cluster":
            with opener() as store:
                yield store
            return
        # Over a client of the caller, in the newer protocol.
        client = request.getfixturevalue("cluster_client")
        with Redis(client=client, prefix=redis_prefix) as store:
            assert store.location.startswith("redis+cluster://127.0.0.1:")
            yield store
        assert client.ping()  # it is not the store's to close

    @pytest.fixture
    def reopen(self, kind: str, opener: Callable[[], KVStore]) -> Callable[[], KVStore] | None:
        return opener if kind.endswith("Disk") or kind in ON_SERVERS else None
