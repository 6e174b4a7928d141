"""ReadOnly: a store that can be looked at, and not written to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from vstate import errors
from vstate.kv.front import Front


class ReadOnly(Front):
    """`store`, in which every write raises `vstate.errors.ReadOnly`; what others write to it is seen.

    It guards against mistakes of the program that holds it, which may reach the store behind all the same.
    A Versioned over it reads, and what is set in it is staged: a commit raises, and leaves it staged.
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
        """Raises ReadOnly if there is anything to write; whether what is expected is there may be asked."""
        if writes:
            self._refuse()
        return self._store.transact({}, expected)

    def exclusively(self, plan: Callable[[], Mapping[str, bytes | None]]) -> bool:
        """Raises ReadOnly, whatever the plan: it is for writing."""
        self._refuse()

    def turn(self, name: str, *, lost: bool = True) -> AbstractContextManager[None]:
        """Waits for nobody: who does not write need not, and a turn may take files."""
        return nullcontext()

    def _refuse(self) -> NoReturn:
        raise errors.ReadOnly(
            f"the store at {self.location} was opened to be read only: to write to it, open it without "
            "ReadOnly(...), or without readonly: in front of its URL"
        )
