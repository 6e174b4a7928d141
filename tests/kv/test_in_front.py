"""The store contract, with each store in front of others."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vstate.kv import Cache, Disk, Encrypted, KVStore, Memory, Prefixed, Tiered
from vstate.testing import Faulty, KVStoreTests

SECRET = bytes(32)

IN_FRONT: dict[str, Callable[[Path], KVStore]] = {
    "Cache": lambda path: Cache(Memory()),
    "Cache, tiny": lambda path: Cache(Memory(), max_bytes=600),
    "Cache with a directory, Disk": lambda path: Cache(Disk(path / "s"), 1000, path / "cache", 10**6),
    "Encrypted, Disk": lambda path: Encrypted(Disk(path, durability="process"), SECRET),
    "Encrypted, no transactions": lambda path: Encrypted(Faulty(Memory(), atomic=False), SECRET),
    "Prefixed, Disk": lambda path: Prefixed(Disk(path), "tenant-1", owns=True),
    "Prefixed, no transactions": lambda path: Prefixed(Faulty(Memory(), atomic=False), "tenant-1"),
    "Tiered, three": lambda path: Tiered(Memory(), Disk(path, durability="process"), Memory()),
    "Tiered, no transactions": lambda path: Tiered(Memory(), Faulty(Memory(), atomic=False)),
}


@pytest.mark.parametrize("kind", IN_FRONT)
class TestInFront(KVStoreTests):
    """Each with its promises, and with those of the store behind."""

    @pytest.fixture
    def store(self, kind: str, tmp_path: Path) -> Iterator[KVStore]:
        with IN_FRONT[kind](tmp_path) as store:
            yield store

    @pytest.fixture
    def reopen(self, kind: str, tmp_path: Path) -> Callable[[], KVStore] | None:
        return (lambda: IN_FRONT[kind](tmp_path)) if kind.endswith(", Disk") else None
