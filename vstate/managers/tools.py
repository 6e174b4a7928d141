"""ToolStateManager: executions of tools, cached results, retries, and statistics."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum, auto
from itertools import islice
from typing import Any, Unpack

from blake3 import blake3
from pydantic import Field, model_validator

from vstate.arguments import check_flag, check_limit, check_seconds, storable
from vstate.errors import InvalidInput
from vstate.managers.backends import Persistence, Where
from vstate.managers.manager import Manager
from vstate.managers.record import Record, index_time, kept, record_copy, timestamp
from vstate.objects import canonical
from vstate.patterns.copies import checked_copy
from vstate.patterns.lifecycle import Lifecycle
from vstate.state.namespace import Namespace

__all__ = [
    "RetryState",
    "ToolCacheEntry",
    "ToolExecution",
    "ToolExecutionStatus",
    "ToolStateManager",
    "ToolStats",
    "parameters_hash",
]

_SHARDS = 16


class ToolExecutionStatus(StrEnum):
    """The status of an execution. COMPLETED and CANCELLED are final."""

    PENDING = auto()
    RUNNING = auto()
    COMPLETED = auto()
    FAILED = auto()
    TIMEOUT = auto()
    RETRYING = auto()
    CANCELLED = auto()


_Status = ToolExecutionStatus
_STARTABLE = (_Status.PENDING, _Status.FAILED, _Status.TIMEOUT, _Status.RETRYING)
_RUNNING = (_Status.RUNNING, _Status.RETRYING)
_LIFE = Lifecycle(
    {
        **{(status, "start"): _Status.RUNNING for status in _STARTABLE},
        **{(status, "complete"): _Status.COMPLETED for status in _RUNNING},
        **{(status, "fail"): _Status.FAILED for status in _RUNNING},
        **{(status, "retry"): _Status.RETRYING for status in (*_STARTABLE, _Status.RUNNING)},
    },
    initial=_Status.PENDING,
)


class ToolExecution(Record):
    """One call of a tool."""

    execution_id: str
    tool_name: str
    status: ToolExecutionStatus = ToolExecutionStatus.RUNNING
    started_at: datetime = Field(default_factory=datetime.now)
    parameters: dict[str, Any] = Field(default_factory=dict)
    result: Any = None
    error: str | None = None
    # One nan or inf would make every sum useless.
    duration_ms: float | None = Field(default=None, allow_inf_nan=False)


class ToolCacheEntry(Record):
    """A cached result for given parameters of a tool.

    With the extra field `parameters` and no `parameters_hash`, the hash is computed. An entry with a hash of
    the program's own is found by `parameters_hash=`. `ttl` is in seconds from `created_at`; None: that of the
    manager.
    """

    tool_name: str
    parameters_hash: str = ""
    result: Any = None
    created_at: datetime = Field(default_factory=datetime.now)
    ttl: float | None = None
    parameters: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_hash(cls, data: Any) -> Any:
        if (
            isinstance(data, Mapping)
            and data.get("parameters") is not None
            and not data.get("parameters_hash")
        ):
            return {**data, "parameters_hash": parameters_hash(data["parameters"])}
        return data


class RetryState(Record):
    """The retries of an execution. A retry is pending while `attempts` is below `max_attempts`."""

    execution_id: str
    attempts: int = 0
    max_attempts: int = 3
    last_error: str | None = None
    next_retry_at: datetime = Field(default_factory=datetime.now)
    backoff_factor: float = 2.0


class ToolStats(Record):
    """The statistics of a tool. Rates are between 0 and 1, and 0 while there is nothing to count.

    `total_executions` counts each end of an execution. `avg_duration_ms` covers those that ended with a
    duration.
    """

    tool_name: str = ""
    total_executions: int = 0
    success_rate: float = 0.0
    error_rate: float = 0.0
    avg_duration_ms: float = 0.0
    cache_hit_rate: float = 0.0


def parameters_hash(parameters: Mapping[str, Any]) -> str:
    """The hash of a tool's parameters by content: 64 hexadecimal digits.

    The order of keys does not count, and a tuple equals a list; 1, 1.0, True and "1" differ. Raises
    InvalidInput, which names the place, for anything but plain data: None, bool, int of 64 bits, float, str,
    bytes, and lists and dicts of these, with str keys.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidInput(f"a tool's parameters are a dict by name, not a {type(parameters).__name__}")
    return blake3(canonical.encode(canonical.plain(dict(parameters), "parameters"))).hexdigest()


_hash = parameters_hash  # get_cached_result has a parameter of that name


class ToolStateManager(Manager):
    """The executions of tools: `ToolStateManager(persistence, cache_results=True, cache_ttl=3600)`.

    An execution that has ended cannot end again: IllegalTransition; a failed one may start again. Each count
    of the statistics is part of the commit that it counts, in one of 16 shards, so that concurrent writers
    rarely conflict. Counts are exact, and cost the same at the first execution and the millionth.

    - `cache_ttl` is the lifetime of a cached result in seconds, unless its entry says otherwise; None: for
      ever.
    - `cache_results=False` caches nothing.
    """

    part = "tools"

    def __init__(
        self,
        persistence: Persistence = "memory",
        *,
        cache_results: bool = True,
        cache_ttl: float | None = 3600,
        **where: Unpack[Where],
    ) -> None:
        check_flag("cache_results", cache_results)
        check_seconds("cache_ttl", cache_ttl, zero=True, none="None for ever")
        super().__init__(persistence, **where)
        self._caches = cache_results
        self._cache_ttl = cache_ttl
        self._shard = f"{os.urandom(1)[0] % _SHARDS:x}"

    # Executions

    async def start_execution(self, execution: ToolExecution) -> ToolExecution:
        """Record the start of an execution, or a new start of one to retry. Raises IllegalTransition."""
        new = record_copy(ToolExecution, execution)

        def start(part: Namespace) -> ToolExecution:
            before = _executions(part).get(new.execution_id)
            status = _LIFE.next(before.status if before else _Status.PENDING, "start")
            return _executions(part).put(new.model_copy(update={"status": status}))

        return await self.change(start, f"execution {new.execution_id}: started {new.tool_name}")

    async def complete_execution(
        self, execution_id: str, result: Any = None, duration_ms: float | None = None
    ) -> ToolExecution:
        """Record the result of an execution. Raises KeyNotFound, and IllegalTransition if it has ended."""
        fields = {"result": checked_copy(result, "result"), "error": None, "duration_ms": duration_ms}
        return await self._end(execution_id, "complete", "completed", fields)

    async def fail_execution(
        self, execution_id: str, error: str | BaseException, duration_ms: float | None = None
    ) -> ToolExecution:
        """Record the failure of an execution. Raises KeyNotFound, and IllegalTransition if it has ended."""
        reason = str(error) or repr(error)
        fields = {"error": reason, "duration_ms": duration_ms}
        line = storable(reason.strip().partition("\n")[0][:80])
        return await self._end(execution_id, "fail", f"failed: {line}", fields)

    async def _end(
        self, execution_id: str, event: str, done: str, fields: Mapping[str, Any]
    ) -> ToolExecution:
        def end(part: Namespace) -> ToolExecution:
            ended = _move(part, _executions(part)[execution_id], event, **fields)
            if ended.status is _Status.COMPLETED:
                _retries(part).discard(execution_id)
            timed = {} if ended.duration_ms is None else {"timed": 1, "duration_ms": ended.duration_ms}
            self._count(part, ended.tool_name, **{ended.status.value: 1}, **timed)
            return ended

        return await self.change(end, f"execution {execution_id}: {done}")

    async def get_execution(self, execution_id: str) -> ToolExecution | None:
        """The execution with this id, or None."""
        return await self.read(lambda part: _executions(part).get(execution_id))

    async def get_execution_history(self, tool_name: str, limit: int | None = 100) -> list[ToolExecution]:
        """The last executions of a tool, the latest start first; with None, all."""
        most = check_limit(limit)
        return await self.read(
            lambda part: list(islice(_executions(part).indexed("history", tool_name), most))
        )

    # Cache

    async def cache_result(self, entry: ToolCacheEntry) -> None:
        """Cache a result for its `ttl`, replacing any for the same tool and parameters."""
        entry = record_copy(ToolCacheEntry, entry)
        if not entry.parameters_hash:
            raise InvalidInput("a cached result needs `parameters`, or a `parameters_hash` of your own")
        ttl = self._cache_ttl if entry.ttl is None else entry.ttl

        def put(part: Namespace) -> None:
            cache, id = _cache(part), (entry.tool_name, entry.parameters_hash)
            age = (datetime.now(entry.created_at.tzinfo) - entry.created_at).total_seconds()
            left = None if ttl is None else ttl - age
            if left is not None and left <= 0:
                cache.discard(id)
            else:
                cache.put(entry)
                cache.expire(id, left)

        if self._caches:
            await self.change(put, f"cache of {entry.tool_name}: a result kept")

    async def get_cached_result(
        self,
        tool_name: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        parameters_hash: str | None = None,
    ) -> ToolCacheEntry | None:
        """The cached entry for these parameters, or for a hash of the program's own; or None.

        A commit counts the hit or miss.
        """
        hash = _hash(parameters or {}) if parameters_hash is None else parameters_hash

        def look_up(part: Namespace) -> ToolCacheEntry | None:
            entry = _cache(part).get((tool_name, hash))
            self._count(part, tool_name, **{"misses" if entry is None else "hits": 1})
            return entry

        if not self._caches:
            return None
        return await self.change(
            look_up, lambda entry: f"cache of {tool_name}: {'a miss' if entry is None else 'a hit'}"
        )

    async def invalidate_cache(self, tool_name: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Drop the cached results of a tool, or the one for these parameters. Returns their number."""
        hash = None if parameters is None else _hash(parameters)

        def drop(part: Namespace) -> int:
            cache = _cache(part)
            ids = list(cache.ids(tool_name)) if hash is None else [(tool_name, hash)]
            return sum(map(cache.discard, ids))

        return await self.change(drop, lambda number: f"cache of {tool_name}: {number} dropped")

    # Retries

    async def update_retry_state(self, retry: RetryState) -> None:
        """Schedule a retry of an execution. Raises IllegalTransition if it is completed or cancelled."""
        new = record_copy(RetryState, retry)

        def schedule(part: Namespace) -> None:
            execution = _executions(part).get(new.execution_id)
            if execution is not None:
                _move(part, execution, "retry")
            _retries(part).put(new)

        await self.change(
            schedule, f"execution {new.execution_id}: to be retried after attempt {new.attempts}"
        )

    async def get_pending_retries(self) -> list[RetryState]:
        """The pending retries, the first due first; none that has started again or used up its attempts."""

        def is_pending(part: Namespace, retry: RetryState) -> bool:
            execution = _executions(part).get(retry.execution_id)
            is_over = execution is not None and execution.status is not _Status.RETRYING
            return retry.attempts < retry.max_attempts and not is_over

        return await self.read(
            lambda part: sorted(
                (retry for retry in _retries(part).values() if is_pending(part, retry)),
                key=lambda retry: timestamp(retry.next_retry_at),
            )
        )

    # Statistics

    async def get_tool_stats(self, tool_name: str) -> ToolStats:
        """The statistics of a tool over all processes."""
        return await self.read(lambda part: _statistics(_tallies(part).values(tool_name), tool_name))

    def _count(self, part: Namespace, tool_name: str, **more: float) -> None:
        tallies = _tallies(part)
        tally = tallies.get((tool_name, self._shard)) or Tally(tool_name=tool_name, shard=self._shard)
        counts = {name: getattr(tally, name) + value for name, value in more.items()}
        tallies.put(tally.model_copy(update=counts))


_executions = kept(
    "executions",
    ToolExecution,
    key="execution_id",
    index={"history": lambda execution: (execution.tool_name, -index_time(execution.started_at))},
)
_retries = kept("retries", RetryState, key="execution_id")
_cache = kept("cache", ToolCacheEntry, key=("tool_name", "parameters_hash"))


def _move(part: Namespace, execution: ToolExecution, event: str, **fields: Any) -> ToolExecution:
    status = _LIFE.next(execution.status, event)
    return _executions(part).put(execution.model_copy(update={"status": status, **fields}))


class Tally(Record):
    """The counts of one tool by the managers of one shard."""

    tool_name: str
    shard: str
    completed: int = 0
    failed: int = 0
    timed: int = 0
    duration_ms: float = 0
    hits: int = 0
    misses: int = 0


_tallies = kept("stats", Tally, key=("tool_name", "shard"))


def _statistics(tallies: Iterable[Tally], tool_name: str) -> ToolStats:
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally.model_dump(exclude={"tool_name", "shard"}))
    ended = total["completed"] + total["failed"]
    return ToolStats(
        tool_name=tool_name,
        total_executions=ended,
        success_rate=_rate(total["completed"], ended),
        error_rate=_rate(total["failed"], ended),
        avg_duration_ms=_rate(total["duration_ms"], total["timed"]),
        cache_hit_rate=_rate(total["hits"], total["hits"] + total["misses"]),
    )


def _rate(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
