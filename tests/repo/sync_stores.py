"""Stores that record their calls, and act at a given call, for tests of sync."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from threading import Lock
from typing import TypeVar

from bundle_files import exported, imported

from vstate import KVStore, Memory
from vstate.repo import Repository
from vstate.repo.clone import clone
from vstate.repo.exchange.bundle import BundleReport
from vstate.repo.exchange.sync import SyncReport
from vstate.testing import Faulty

T = TypeVar("T")


def push(source: KVStore, target: KVStore, *branches: str, **options: object) -> SyncReport:
    return Repository(source).push(target, branches or None, **options)  # type: ignore[arg-type]


def carry(source: KVStore, target: KVStore, *branches: str) -> BundleReport:
    """Bring branches, by default main, to another store in a bundle."""
    return imported(target, exported(source, *branches))


WAYS: dict[str, Callable[..., object]] = {"bundle": carry, "push": push}
"""The ways to copy the branch main, or others, to another store."""


def statuses(report: SyncReport) -> dict[str, str]:
    return {ref.name: ref.status for ref in report.refs}


def cloned(store: KVStore) -> Memory:
    """A copy of a store."""
    target = Memory()
    clone(store, target)
    return target


class Counted(Faulty):
    """Counts the calls, the bytes that are read and written, and the keys of which it is asked whether they
    are there.
    """

    remote = True

    def __init__(self, store: KVStore) -> None:
        super().__init__(store)
        self.read = self.written = self.asked = 0

    def get(self, key: str) -> bytes | None:
        value = super().get(key)
        self.read += len(value or b"")
        return value

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        found = super().get_many(keys)
        self.read += sum(map(len, found.values()))
        return found

    def present(self, keys: Iterable[str]) -> Set[str]:
        keys = list(keys)
        self.asked += len(keys)
        return super().present(keys)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        for key, value in super().items(prefix):
            self.read += len(key) + len(value)
            yield key, value

    def keys(self, prefix: str = "") -> Iterator[str]:
        for key in super().keys(prefix):
            self.read += len(key)
            yield key

    def set_many(self, items: Mapping[str, bytes]) -> None:
        self.written += sum(map(len, items.values()))
        super().set_many(items)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        self.written += sum(len(value or b"") for value in writes.values())
        return super().transact(writes, expected)


class Once:
    """Acts once: at the first call, or the first one whose first argument begins with `at`.

    For `Hooked`, which gives a key, and for the progress of gc, fsck, imports and others, who give a step.
    """

    def __init__(self, action: Callable[[], object], at: str = "") -> None:
        self.done = False
        self._action, self._at = action, at

    def __call__(self, step: str, *_: object) -> None:
        if not self.done and step.startswith(self._at):
            self.done = True
            self._action()


class Beside(Counted):
    """Calls `meanwhile` before each call of the store."""

    def __init__(self, store: KVStore, meanwhile: Callable[[], object]) -> None:
        super().__init__(store)
        self._meanwhile = meanwhile
        self._turn = Lock()

    def _call(self, name: str, call: Callable[[], T]) -> T:
        with self._turn:
            self._meanwhile()
        return super()._call(name, call)


class Torn(Faulty):
    """A store without transactions: of a `set_many` that fails every second row is written all the same."""

    def __init__(self, store: KVStore, fail_at: int, rest: int) -> None:
        super().__init__(store, fail_at, atomic=False)
        self._rest = rest

    def set_many(self, items: Mapping[str, bytes]) -> None:
        if len(self.calls) + 1 == self.fail_at:
            self.store.set_many({key: items[key] for key in list(items)[self._rest :: 2]})
        super().set_many(items)


class Hooked(Faulty):
    """Calls `before(key)` before rows are written, or asked for by `present`, with the key of one of them."""

    def __init__(self, store: KVStore, before: Callable[[str], object], *, atomic: bool = True) -> None:
        super().__init__(store, atomic=atomic)
        self._before = before

    def present(self, keys: Iterable[str]) -> Set[str]:
        keys = list(keys)
        found = super().present(keys)
        for key in keys[-1:]:
            self._before(key)
        return found

    def set_many(self, items: Mapping[str, bytes]) -> None:
        for key in list(items)[:1]:
            self._before(key)
        super().set_many(items)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        self._before(key)
        return super().compare_and_swap(key, expected, new)

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        for key in expected:
            self._before(key)
        return super().transact(writes, expected)


class Overtaken(Faulty):
    """Calls `after_read(key)` once rows were read, with each key, before the answer is used."""

    after_read: Callable[[str], object] = staticmethod(lambda key: None)

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        self.after_read(key)
        return found

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        wanted = list(keys)
        found = super().get_many(wanted)
        for key in wanted:
            self.after_read(key)
        return found

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        found = list(super().items(prefix))
        for key, _ in found:
            self.after_read(key)
        return iter(found)
