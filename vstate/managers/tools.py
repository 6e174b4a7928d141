"""ToolStateManager: executions of tools, their cached results, their retries, and what all that adds up to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from vstate.errors import InvalidInput
from vstate.managers.manager import Manager
from vstate.managers.persistence import DIRECTORY, Persistence
from vstate.managers.record import seconds, taken
from vstate.managers.tool_records import (
    RetryState,
    ToolCacheEntry,
    ToolExecution,
    ToolExecutionStatus,
    ToolStats,
    parameters_hash,
)
from vstate.managers.tool_tally import add_up, any_shard, count
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.paths import join_path, split_path
from vstate.patterns.records import Records
from vstate.repo.limit import check_limit
from vstate.state.namespace import Namespace

_FAR_FUTURE = 1 << 60  # microseconds

_Status = ToolExecutionStatus
_OPEN = (_Status.PENDING, _Status.FAILED, _Status.TIMEOUT, _Status.RETRYING)
_RUNNING = (_Status.RUNNING, _Status.RETRYING)
_MOVES = Lifecycle(
    {
        **{(status, "start"): _Status.RUNNING for status in _OPEN},
        **{(status, "complete"): _Status.COMPLETED for status in _RUNNING},
        **{(status, "fail"): _Status.FAILED for status in _RUNNING},
        **{(status, "retry"): _Status.RETRYING for status in (*_OPEN, _Status.RUNNING)},
    },
    initial=_Status.PENDING,
)


class ToolStateManager(Manager):
    """What tools do, and did: `ToolStateManager(persistence, cache_results=True, cache_ttl=3600)`.

    An execution that has ended cannot end again: IllegalTransition; one that failed may begin again. Statistics are
    counted in the commit that they are about, in one of 16 places by chance, so that writers are seldom in each
    other's way: they are exact whoever counts, and cost the same at the first execution and the millionth.

    - `cache_ttl` is for how many seconds a result is given again, unless it says so itself; None: for ever.
    - `cache_results=False` keeps none and gives none.
    """

    part = "tools"

    def __init__(
        self,
        persistence: Persistence = "memory",
        *,
        cache_results: bool = True,
        cache_ttl: float | None = 3600,
        redis_url: str | None = None,
        path: str = DIRECTORY,
    ) -> None:
        super().__init__(persistence, redis_url=redis_url, path=path)
        self._caches = cache_results
        self._cache_ttl = cache_ttl
        self._shard = any_shard()

    # Executions

    async def start_execution(self, execution: ToolExecution) -> ToolExecution:
        """Note that an execution has begun; one that is to be retried may begin again. IllegalTransition otherwise."""

        new = ToolExecution.of(execution)

        def start(tools: Namespace) -> ToolExecution:
            executions = _executions(tools)
            before = executions.get(new.execution_id)
            status = _MOVES.next(before.status if before else _Status.PENDING, "start")
            if before is not None:
                del tools[_place(before)]
            started = executions.put(new.model_copy(update={"status": status}))
            tools[_place(started)] = None
            return started

        return await self.change(start, f"execution {new.execution_id}: started {new.tool_name}")

    async def complete_execution(
        self, execution_id: str, result: Any = None, duration_ms: float | None = None
    ) -> ToolExecution:
        """Note the result of an execution. Raises KeyNotFound, and IllegalTransition if it has ended before."""
        return await self._end(
            execution_id, "complete", "completed", duration_ms, result=taken(result, "result"), error=None
        )

    async def fail_execution(
        self, execution_id: str, error: str | BaseException, duration_ms: float | None = None
    ) -> ToolExecution:
        """Note that an execution has failed. Raises KeyNotFound, and IllegalTransition if it has ended before."""
        reason = str(error) or repr(error)
        return await self._end(
            execution_id, "fail", f"failed: {_one_line(reason)}", duration_ms, error=reason
        )

    async def _end(
        self, execution_id: str, event: str, done: str, duration_ms: float | None, **fields: Any
    ) -> ToolExecution:
        def end(tools: Namespace) -> ToolExecution:
            executions = _executions(tools)
            execution = executions[execution_id]
            status = _MOVES.next(execution.status, event)
            update = {"status": status, "duration_ms": duration_ms, **fields}
            ended = executions.put(execution.model_copy(update=update))
            if status is _Status.COMPLETED:
                _retries(tools).discard(execution_id)
            timed = {} if ended.duration_ms is None else {"timed": 1, "duration_ms": ended.duration_ms}
            count(tools, ended.tool_name, self._shard, **{status.value: 1}, **timed)
            return ended

        return await self.change(end, f"execution {execution_id}: {done}")

    async def get_execution(self, execution_id: str) -> ToolExecution | None:
        """An execution, None if there is none of that id."""
        return await self.read(lambda tools: _executions(tools).get(execution_id))

    async def get_execution_history(self, tool_name: str, limit: int | None = 100) -> list[ToolExecution]:
        """The last executions of a tool, the one that began last first; None for all."""
        most = check_limit(limit)

        def look(tools: Namespace) -> list[ToolExecution]:
            history = tools.namespace("history").keys(join_path(tool_name) + "/")
            return [_executions(tools)[split_path(key)[-1]] for key in islice(history, most)]

        return await self.read(look)

    # The cache

    async def cache_result(self, entry: ToolCacheEntry) -> None:
        """Keep a result until its `ttl` is over, in place of the one of the same tool and parameters."""
        entry = ToolCacheEntry.of(entry)
        if not entry.parameters_hash:
            raise InvalidInput("a cached result needs `parameters`, or a `parameters_hash` of your own")
        ttl = self._cache_ttl if entry.ttl is None else entry.ttl
        left = None if ttl is None else ttl - _seconds_since(entry.created_at)

        def keep(tools: Namespace) -> None:
            entries, id = _entries(tools), (entry.tool_name, entry.parameters_hash)
            if left is not None and left <= 0:
                entries.discard(id)
            else:
                entries.put(entry)
                entries.expire(id, left)

        if self._caches:
            await self.change(keep, f"cache of {entry.tool_name}: a result kept")

    async def get_cached_result(
        self,
        tool_name: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        parameters_hash: str | None = None,
    ) -> ToolCacheEntry | None:
        """The entry with the result for these parameters; None if there is none, or its time is over.

        Hit or miss is counted, which is a commit too. An entry with a hash of one's own is found by that.
        """
        id = (tool_name, _hash(parameters or {}) if parameters_hash is None else parameters_hash)

        def look_up(tools: Namespace) -> ToolCacheEntry | None:
            entry = _entries(tools).get(id)
            count(tools, tool_name, self._shard, **{"misses" if entry is None else "hits": 1})
            return entry

        return await self.change(look_up, f"cache of {tool_name}: looked up") if self._caches else None

    async def invalidate_cache(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Drop the results of a tool, or the one for these parameters; how many there were."""
        named = None if parameters is None else [(tool_name, _hash(parameters))]

        def drop(tools: Namespace) -> int:
            entries = _entries(tools)
            return sum(map(entries.discard, list(entries.ids(tool_name)) if named is None else named))

        return await self.change(drop, f"cache of {tool_name}: dropped")

    # Retries

    async def update_retry_state(self, retry: RetryState) -> None:
        """Note when an execution is to be tried again. IllegalTransition if it is completed or cancelled."""

        retry = RetryState.of(retry)

        def note(tools: Namespace) -> None:
            executions = _executions(tools)
            execution = executions.get(retry.execution_id)
            if execution is not None:
                status = _MOVES.next(execution.status, "retry")
                executions.put(execution.model_copy(update={"status": status}))
            _retries(tools).put(retry)

        await self.change(
            note, f"execution {retry.execution_id}: to be retried after attempt {retry.attempts}"
        )

    async def get_pending_retries(self) -> list[RetryState]:
        """What is to be tried again, the one that is due first at the beginning: not what has begun again, nor what
        has been tried as often as it may.
        """

        def look(tools: Namespace) -> list[RetryState]:
            pending = []
            for retry in _retries(tools).values():
                execution = _executions(tools).get(retry.execution_id)
                waits = execution is None or execution.status is _Status.RETRYING
                if waits and retry.attempts < retry.max_attempts:
                    pending.append(retry)
            return sorted(pending, key=lambda retry: seconds(retry.next_retry_at))

        return await self.read(look)

    # Statistics

    async def get_tool_stats(self, tool_name: str) -> ToolStats:
        """What a tool has done so far, by whomever it was called."""
        return await self.read(lambda tools: add_up(tools, tool_name))


def _executions(tools: Namespace) -> Records[ToolExecution]:
    return Records(tools.namespace("executions"), ToolExecution, key="execution_id")


def _entries(tools: Namespace) -> Records[ToolCacheEntry]:
    return Records(tools.namespace("cache"), ToolCacheEntry, key=("tool_name", "parameters_hash"))


def _retries(tools: Namespace) -> Records[RetryState]:
    return Records(tools.namespace("retries"), RetryState, key="execution_id")


_hash = parameters_hash  # there is an argument of that name


def _place(execution: ToolExecution) -> str:
    """A key that comes before those of the executions that began earlier, so that the last ones are found first."""
    latest_first = _FAR_FUTURE - round(seconds(execution.started_at) * 1_000_000)
    return "history/" + join_path(execution.tool_name, f"{latest_first:016x}", execution.execution_id)


def _seconds_since(moment: datetime) -> float:
    return (datetime.now(moment.tzinfo) - moment).total_seconds()


def _one_line(text: str) -> str:
    """The beginning of a text as a commit's message can have it."""
    return text.strip().split("\n", 1)[0][:80].encode("utf-8", "replace").decode()
