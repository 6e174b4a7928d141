"""ReadOnly: a store that can be read and not written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from vstate import errors
from vstate.kv.base import Plain
from vstate.kv.wrapper import StoreWrapper


class ReadOnly(StoreWrapper):
    """`store`, in which every write raises `vstate.errors.ReadOnly`. Writes of others are seen.

    It guards against mistakes of the program that holds it, which can still reach the store behind. A
    Versioned over it reads, and stages changes; its commit raises, and leaves them staged.
    """

    def set(self, key: str, value: bytes) -> None:
        self._refuse()

    def set_many(self, items: Mapping[str, bytes]) -> None:
        self._refuse()

    def delete(self, key: str) -> None:
        self._refuse()

    def delete_many(self, keys: Iterable[str]) -> None:
        self._refuse()

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes | None) -> bool:
        self._refuse()

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Raises ReadOnly if there is anything to write. Without writes it compares the expected values."""
        if writes:
            self._refuse()
        return self._store.transact({}, expected)

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """Raises ReadOnly without calling the plan, which is for writing."""
        self._refuse()

    def pack(self, plain: Plain, keys: Sequence[str] | None = None) -> None:
        self._refuse()

    def release(self) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.ReadOnly(
            f"the store at {self.location} was opened to be read only: to write, open it without "
            "ReadOnly(...), or without readonly: in front of its URL"
        )
