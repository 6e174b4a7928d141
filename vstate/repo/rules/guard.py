"""Guard: something besides its branch that has to be so at the moment that a commit lands."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class Guard(Protocol):
    """Whoever holds it may commit: a lease, for one.

    A store with transactions compares its rows in the transaction that moves the branch; any other looks at them
    right before.
    """

    def rows(self) -> AbstractContextManager[Mapping[str, bytes | None]]:
        """The values that rows must have, which this process changes only after the with block; raises if it is
        known that the commit may not land.
        """

    def check(self) -> None:
        """Read the rows again; raise if the commit may not land."""
