"""Watching: the changes of a state, for `async for`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self

from vstate.state.watching import Seen, Watch


class Watching:
    """The result of `watch`. `async for` gives the changes; awaited, it is the Watch."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Watch]]) -> None:
        self._begin = begin
        self._watch: Watch | None = None

    async def _begun(self) -> Watch:
        if self._watch is None:
            self._watch = await self._begin()
        return self._watch

    def __await__(self) -> Generator[Any, None, Watch]:
        return self._begun().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Seen:
        return await anext(await self._begun())
