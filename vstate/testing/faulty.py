"""Faulty: a store that fails at a chosen call, and may stay away for some more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeVar

from vstate.errors import StoreUnavailable
from vstate.forks import new_lock
from vstate.kv.base import RELEASE_SECONDS, KVStore, Plain
from vstate.kv.wrapper import StoreWrapper

T = TypeVar("T")

_WRITES = frozenset(
    {"set", "delete", "compare_and_swap", "set_many", "delete_many", "transact", "exclusively"}
)


class Faulty(StoreWrapper):
    """`store`, whose call number `fail_at` (from 1; None for never) raises `error("...")`.

    The call raises before it does anything, or, with `after=True`, once it is done: the answer of a server is
    lost. A StoreUnavailable after a write says `outcome_unknown`, as a server's client would. The next `away`
    calls raise too, before they do anything. All other calls go through. `calls` lists the names of the
    methods called, the failing ones included: run once without a fault, then once for every `fail_at` up to
    `len(calls)`, and check that nothing is lost.

    With `atomic=False`, `transact` is taken apart into the calls that KVStore makes of it for a store
    without transactions, so that it can also fail halfway.
    """

    def __init__(
        self,
        store: KVStore,
        fail_at: int | None = None,
        error: Callable[[str], BaseException] = StoreUnavailable,
        after: bool = False,
        *,
        atomic: bool = True,
        away: int = 0,
    ) -> None:
        super().__init__(store)
        self.store = store
        self.fail_at = fail_at
        self.error = error
        self.after = after
        self.away = away
        self.atomic = atomic
        self.calls: list[str] = []
        self._lock = new_lock()

    def get(self, key: str) -> bytes | None:
        return self._call("get", lambda: self.store.get(key))

    def set(self, key: str, value: bytes) -> None:
        self._call("set", lambda: self.store.set(key, value))

    def delete(self, key: str) -> None:
        self._call("delete", lambda: self.store.delete(key))

    def keys(self, prefix: str = "") -> Iterator[str]:
        return self._call("keys", lambda: self.store.keys(prefix))

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        return self._call("compare_and_swap", lambda: self.store.compare_and_swap(key, expected, new))

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self._call("get_many", lambda: self.store.get_many(keys))

    def set_many(self, items: Mapping[str, bytes]) -> None:
        self._call("set_many", lambda: self.store.set_many(items))

    def delete_many(self, keys: Iterable[str]) -> None:
        self._call("delete_many", lambda: self.store.delete_many(keys))

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        return self._call("items", lambda: self.store.items(prefix))

    def __contains__(self, key: str) -> bool:
        return self._call("__contains__", lambda: key in self.store)

    def present(self, keys: Iterable[str]) -> Set[str]:
        return self._call("present", lambda: self.store.present(keys))

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if not self.atomic:
            return KVStore.transact(self, writes, expected)
        return self._call("transact", lambda: self.store.transact(writes, expected))

    @property
    def transactional(self) -> bool:
        return self.atomic and self.store.transactional

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        if not self.atomic:
            return KVStore.exclusively(self, plan)
        return self._call("exclusively", lambda: self.store.exclusively(plan))

    def uncached(self) -> KVStore:
        """Itself: a failure would not reach the store behind."""
        return self

    def check(self) -> Iterator[str]:
        return self._call("check", self.store.check)

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        self._call("pack", lambda: self.store.pack(plain, keys))

    def release(self, seconds: float = RELEASE_SECONDS) -> None:
        self._call("release", lambda: self.store.release(seconds))

    def __repr__(self) -> str:
        return f"Faulty({self.store!r}, fail_at={self.fail_at})"

    def _call(self, name: str, action: Callable[[], T]) -> T:
        with self._lock:
            self.calls.append(name)
            since = -1 if self.fail_at is None else len(self.calls) - self.fail_at
        answer_lost = since == 0 and self.after
        if 0 <= since <= self.away and not answer_lost:
            raise self.error(f"made to fail at call {len(self.calls)}, before {name}")
        result = action()
        if answer_lost:
            error = self.error(f"made to fail at call {len(self.calls)}, after {name}")
            if isinstance(error, StoreUnavailable) and name in _WRITES:
                error.outcome_unknown = True
            raise error
        return result
