"""Wait: what a method returns that need not be awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Wait:
    """The work is done, or goes on by itself; `await` waits until it is done, and raises what it raised."""

    def __init__(self, until_done: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        # A function and not its coroutine, of which Python would complain that nobody awaited it.
        self._until_done = until_done

    def __await__(self) -> Generator[Any, None, None]:
        if self._until_done is not None:
            yield from self._until_done().__await__()
