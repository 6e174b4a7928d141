"""ToolStateManager: executions of tools, their cached results, their retries, and what all that adds up to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from vstate.arguments import check_flag, check_limit, check_seconds
from vstate.errors import InvalidInput
from vstate.managers.manager import Manager
from vstate.managers.persistence import DIRECTORY, Persistence
from vstate.managers.record import taken
from vstate.managers.tool_cache import Cache
from vstate.managers.tool_executions import Executions
from vstate.managers.tool_records import (
    RetryState,
    ToolCacheEntry,
    ToolExecution,
    ToolStats,
    parameters_hash,
)
from vstate.managers.tool_tally import add_up, any_shard


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
        check_flag("cache_results", cache_results)
        check_seconds("cache_ttl", cache_ttl, zero=True, none="None for ever")
        super().__init__(persistence, redis_url=redis_url, path=path)
        self._caches = cache_results
        self._cache_ttl = cache_ttl
        self._shard = any_shard()

    # Executions

    async def start_execution(self, execution: ToolExecution) -> ToolExecution:
        """Note that an execution has begun; one that is to be retried may begin again. IllegalTransition otherwise."""
        new = ToolExecution.of(execution)
        return await self.change(
            lambda part: Executions(part).start(new), f"execution {new.execution_id}: started {new.tool_name}"
        )

    async def complete_execution(
        self, execution_id: str, result: Any = None, duration_ms: float | None = None
    ) -> ToolExecution:
        """Note the result of an execution. Raises KeyNotFound, and IllegalTransition if it has ended before."""
        fields = {"result": taken(result, "result"), "error": None, "duration_ms": duration_ms}
        return await self._end(execution_id, "complete", "completed", fields)

    async def fail_execution(
        self, execution_id: str, error: str | BaseException, duration_ms: float | None = None
    ) -> ToolExecution:
        """Note that an execution has failed. Raises KeyNotFound, and IllegalTransition if it has ended before."""
        reason = str(error) or repr(error)
        fields = {"error": reason, "duration_ms": duration_ms}
        return await self._end(execution_id, "fail", f"failed: {_one_line(reason)}", fields)

    async def _end(
        self, execution_id: str, event: str, done: str, fields: Mapping[str, Any]
    ) -> ToolExecution:
        return await self.change(
            lambda part: Executions(part).end(execution_id, event, self._shard, **fields),
            f"execution {execution_id}: {done}",
        )

    async def get_execution(self, execution_id: str) -> ToolExecution | None:
        """An execution, None if there is none of that id."""
        return await self.read(lambda part: Executions(part).get(execution_id))

    async def get_execution_history(self, tool_name: str, limit: int | None = 100) -> list[ToolExecution]:
        """The last executions of a tool, the one that began last first; None for all."""
        most = check_limit(limit)
        return await self.read(lambda part: list(islice(Executions(part).history(tool_name), most)))

    # The cache

    async def cache_result(self, entry: ToolCacheEntry) -> None:
        """Keep a result until its `ttl` is over, in place of the one of the same tool and parameters."""
        entry = ToolCacheEntry.of(entry)
        if not entry.parameters_hash:
            raise InvalidInput("a cached result needs `parameters`, or a `parameters_hash` of your own")
        ttl = self._cache_ttl if entry.ttl is None else entry.ttl
        if self._caches:
            await self.change(
                lambda part: Cache(part).keep(entry, ttl), f"cache of {entry.tool_name}: a result kept"
            )

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
        hash = _hash(parameters or {}) if parameters_hash is None else parameters_hash
        if not self._caches:
            return None
        return await self.change(
            lambda part: Cache(part).look_up(tool_name, hash, self._shard),
            lambda entry: f"cache of {tool_name}: {'a miss' if entry is None else 'a hit'}",
        )

    async def invalidate_cache(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Drop the results of a tool, or the one for these parameters; how many there were."""
        hash = None if parameters is None else _hash(parameters)
        return await self.change(
            lambda part: Cache(part).drop(tool_name, hash),
            lambda number: f"cache of {tool_name}: {number} dropped",
        )

    # Retries

    async def update_retry_state(self, retry: RetryState) -> None:
        """Note when an execution is to be tried again. IllegalTransition if it is completed or cancelled."""
        new = RetryState.of(retry)
        await self.change(
            lambda part: Executions(part).retry(new),
            f"execution {new.execution_id}: to be retried after attempt {new.attempts}",
        )

    async def get_pending_retries(self) -> list[RetryState]:
        """What is to be tried again, the one that is due first at the beginning: not what has begun again, nor what
        has been tried as often as it may.
        """
        return await self.read(lambda part: Executions(part).to_be_retried())

    # Statistics

    async def get_tool_stats(self, tool_name: str) -> ToolStats:
        """What a tool has done so far, by whomever it was called."""
        return await self.read(lambda part: add_up(part, tool_name))


_hash = parameters_hash  # there is an argument of that name


def _one_line(text: str) -> str:
    """The beginning of a text as a commit's message can have it."""
    return text.strip().split("\n", 1)[0][:80].encode("utf-8", "replace").decode()
