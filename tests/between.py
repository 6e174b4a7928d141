"""Between: a store that does something before one of its calls, as another process may act then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vstate.kv.base import KVStore
from vstate.testing import Faulty


class Between(Faulty):
    """Calls a function before one of its calls, as another process may act then."""

    def __init__(self, store: KVStore) -> None:
        super().__init__(store)
        self.at: int | None = None
        self.act: Callable[[], object] = lambda: None
        self._alone = False

    def _call(self, name: str, do: Callable[[], Any]) -> Any:
        if self.at is not None and not self._alone:
            self.at -= 1
            if self.at < 0:
                self.at = None
                self.act()
        if name != "exclusively":
            return super()._call(name, do)
        self._alone = True  # nobody else writes now
        try:
            return super()._call(name, do)
        finally:
            self._alone = False
