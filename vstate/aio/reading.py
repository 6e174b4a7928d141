"""Reading: a mapping whose values are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import partial, wraps
from itertools import islice
from threading import Lock
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from vstate import state as sync
from vstate.aio.workers import Workers
from vstate.arguments import check_several
from vstate.errors import InvalidInput
from vstate.objects.commit import Commit
from vstate.state.base import ReadableState, State, handle_of
from vstate.state.slots import ABSENT

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound=ReadableState)
_T = TypeVar("_T")

_AT_ONCE = 256  # items that an iteration fetches at a time


def awaited(
    function: Callable[Concatenate[Any, _P], _R], *, turn: bool = False
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]:
    """An awaited form of a method of the sync handle. A method that moves the branch waits for its `turn`."""

    @wraps(function)
    async def method(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _R:
        handle = await self._opened()
        call = partial(getattr(handle, function.__name__), *args, **options)
        work = self._in_turn(handle, lambda outermost: call()) if turn else self._workers.run(call)
        result: _R = await work
        return result

    return method


class Reading(Generic[_S]):
    """A mapping whose reads are awaited."""

    def __init__(self, workers: Workers, handle: _S | None) -> None:
        self._workers = workers
        self._handle = handle

    async def _opened(self) -> _S:
        return self.sync

    @property
    def sync(self) -> _S:
        """The handle that this one awaits, for use in a thread; InvalidInput before it is open."""
        if self._handle is None:
            raise InvalidInput("this state is not open yet: use `async with` it, or await it")
        return self._handle

    async def _run(self, function: Callable[[_S], _R]) -> _R:
        """Call the function with the sync handle, in a worker thread."""
        handle = await self._opened()
        return await self._workers.run(partial(function, handle))

    async def _in_turn(self, handle: State, function: Callable[[bool], _R]) -> _R:
        """Call the function in a thread, in the turn; its argument says whether this call took the turn."""
        turns, token = handle_of(handle).turns, Lock()
        with turns, token:
            outermost = await turns.take_async(token)
            return await self._workers.run(partial(function, outermost))

    async def _ready(self, key: object) -> Any:
        """The value of the key if it is in memory, else ABSENT. A thread would take longer than the read."""
        if self._handle is None or not self._workers.are_open:
            return ABSENT
        value = self._handle._ready(key, ABSENT)
        if value is not ABSENT:
            await self._workers.breathe()
        return value

    async def __getitem__(self, key: str) -> Any:
        """The value of the key: `await state["k"]`. Raises KeyNotFound."""
        value = await self._ready(key)
        return await self._run(lambda handle: handle[key]) if value is ABSENT else value

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of the key, or `default` if there is none."""
        value = await self._ready(key)
        return await self._run(lambda handle: handle.get(key, default)) if value is ABSENT else value

    async def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of those keys that are present, in the order given; the store is asked a few times."""
        keys = list(check_several(keys))
        found = {key: value for key in keys if (value := await self._ready(key)) is not ABSENT}
        if len(found) == len(set(keys)):
            return found
        return await self._run(lambda handle: handle.get_many(keys))

    async def contains(self, key: str) -> bool:
        """Whether the key is present."""
        return await self._ready(key) is not ABSENT or await self._run(lambda handle: key in handle)

    async def count(self, prefix: str = "") -> int:
        """How many keys begin with `prefix`."""
        return await self._run(lambda handle: len(handle.keys(prefix)))

    def __aiter__(self) -> AsyncIterator[str]:
        return self.keys()

    # Without these two, Python would call `state[0]`, `state[1]`, … without end: each is a coroutine, and
    # none raises IndexError.

    def __iter__(self) -> NoReturn:
        raise TypeError("the keys of this state are awaited: write `async for key in state`")

    def __contains__(self, key: object) -> NoReturn:
        raise TypeError("this test is awaited: write `await state.contains(key)`")

    def keys(self, prefix: str = "", *, reverse: bool = False) -> AsyncIterator[str]:
        """The keys that begin with `prefix`, sorted: `async for key in state.keys("a/")`."""
        return self._iterated(lambda handle: iter(handle.keys(prefix, reverse=reverse)))

    def values(self, prefix: str = "", *, reverse: bool = False) -> AsyncIterator[Any]:
        """The values whose keys begin with `prefix`, in key order."""
        return self._iterated(lambda handle: iter(handle.values(prefix, reverse=reverse)))

    def items(self, prefix: str = "", *, reverse: bool = False) -> AsyncIterator[tuple[str, Any]]:
        """The items whose keys begin with `prefix`, in key order."""
        return self._iterated(lambda handle: iter(handle.items(prefix, reverse=reverse)))

    async def _iterated(self, begin: Callable[[_S], Iterator[_T]]) -> AsyncIterator[_T]:
        items = await self._run(begin)
        at_once = 1  # the first item comes soon
        while batch := await self._workers.run(partial(list[_T], islice(items, at_once))):
            for item in batch:
                yield item
            at_once = min(at_once * 4, _AT_ONCE)

    def __repr__(self) -> str:
        return f"<aio {self._handle!r}>" if self._handle is not None else "<aio, not open>"


class Snapshot(Reading[sync.Snapshot]):
    """The state at one commit, read-only."""

    @property
    def commit(self) -> Commit:
        """The commit of this state."""
        return self.sync.commit

    inert = awaited(sync.Snapshot.inert)
