"""Run: a run for a program with an event loop, whose steps may be coroutine functions."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self

from vstate import state as sync
from vstate.aio.mapping import Writing
from vstate.aio.workers import in_thread, shielded
from vstate.errors import InvalidInput
from vstate.repo.runs import Step
from vstate.state.base import handle_of
from vstate.state.run import NESTED, How
from vstate.state.run import Run as SyncRun

_is_in_step: ContextVar[bool] = ContextVar("vstate_step", default=False)


class Run:
    """A run, to be entered by `async with`, once. `vstate.state.run.Run` explains it.

    Steps that run side by side, by `asyncio.gather` for one, are numbered in the order of the calls. Each is
    recorded as it ends, together with all edits of the state until then, and one that fails undoes none: let
    such steps edit the state last, or after them. A step that is cancelled leaves no record, or with
    `once=True` its intent.
    """

    def __init__(
        self,
        state: Writing[sync.Versioned],
        make: Callable[[], SyncRun],
        enter: Callable[[SyncRun], Awaitable[None]],
    ) -> None:
        self._state = state
        self._make = make
        self._enter = enter
        self._run: SyncRun | None = None

    @property
    def sync(self) -> SyncRun:
        """The run that this one awaits; InvalidInput before it is entered."""
        if self._run is None:
            raise InvalidInput("this run is not entered yet: use `async with` it")
        return self._run

    @property
    def id(self) -> str:
        """The name of the run, or of another branch's state that name and the branch."""
        return self.sync.id

    @property
    def steps(self) -> list[Step]:
        """The records of the steps, in the order in which they were begun."""
        return self.sync.steps

    def __repr__(self) -> str:
        return "<aio Run, not entered>" if self._run is None else f"<aio {self._run!r}>"

    async def __aenter__(self) -> Self:
        await self._state._opened()
        self._run = self._make()
        await self._enter(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await shielded(self._in_turn(partial(self.sync.__exit__, kind, error, trace)))

    @wraps(SyncRun.step)
    def step(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        if _is_in_step.get() or handle_of(self._state.sync).turns.nested:
            raise InvalidInput(NESTED)
        how = How(**{name: options.pop(name) for name in How._fields if name in options})
        return self.sync.work(self.sync.call_of(function, args, options, how), self._do)

    async def resolve(self, step: str, result: Any) -> Any:
        """Record the result of a step that is open, because its effect was had; the result."""
        return await self._in_turn(partial(self.sync.resolve, step, result))

    async def retry(self, step: str) -> None:
        """Have a step that is open called again, because its effect was not had."""
        await self._in_turn(partial(self.sync.retry, step))

    async def _in_turn(self, function: Callable[[], Any]) -> Any:
        return await self._state._in_turn(self._state.sync, lambda outermost: function())

    async def _do(self, is_users: bool, function: Callable[[], Any]) -> Any:
        if is_users:
            return await _called(function)
        return await self._in_turn(partial(self._state.sync._handle.operate, function))


async def _called(function: Callable[[], Any]) -> Any:
    """The result of a function of the program's. One that is no coroutine function runs in a thread."""
    token = _is_in_step.set(True)
    try:
        if inspect.iscoroutinefunction(function):
            return await function()
        result = await in_thread(partial(contextvars.copy_context().run, function))
        return await result if isinstance(result, Awaitable) else result
    finally:
        _is_in_step.reset(token)
