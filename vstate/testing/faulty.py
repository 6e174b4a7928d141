"""Faulty: a store that fails at a chosen call, and may stay away for some more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from vstate.errors import StoreUnavailable
from vstate.forks import new_lock
from vstate.kv.base import KVStore
from vstate.kv.wrapper import StoreWrapper

T = TypeVar("T")

_WRITES = frozenset(
    {"set", "delete", "compare_and_swap", "set_many", "delete_many", "transact", "exclusively"}
)
_COUNTED = _WRITES | {"get", "get_many", "keys", "items", "__contains__", "present"}
_COUNTED |= {"check", "pack", "release"}


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

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        if not self.atomic:
            return KVStore.transact(self, writes, expected)
        return super().transact(writes, expected)

    @property
    def transactional(self) -> bool:
        return self.atomic and self.store.transactional

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        if not self.atomic:
            return KVStore.exclusively(self, plan)
        return super().exclusively(plan)

    def uncached(self) -> KVStore:
        """Itself: a failure would not reach the store behind."""
        return self

    def __repr__(self) -> str:
        return f"Faulty({self.store!r}, fail_at={self.fail_at})"

    def _pass_on(self, name: str, *arguments: Any, **options: Any) -> Any:
        action = partial(super()._pass_on, name, *arguments, **options)
        return self._call(name, action) if name in _COUNTED else action()

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
