"""ToolStateManager: executions of tools, their cached results, their retries, and what all that adds up to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum, auto
from functools import reduce
from itertools import islice
from typing import Any

from blake3 import blake3
from pydantic import Field, model_validator

from vstate.arguments import check_flag, check_limit, check_seconds
from vstate.errors import InvalidInput
from vstate.managers.backends import DIRECTORY, Persistence
from vstate.managers.manager import Manager
from vstate.managers.record import Record, moment, seconds, taken
from vstate.objects import canonical
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.records import Records
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


class ToolExecutionStatus(StrEnum):
    """What has become of an execution. COMPLETED and CANCELLED are final."""

    PENDING = auto()
    RUNNING = auto()
    COMPLETED = auto()
    FAILED = auto()
    TIMEOUT = auto()
    RETRYING = auto()
    CANCELLED = auto()


class ToolExecution(Record):
    """One call of a tool."""

    execution_id: str
    tool_name: str
    status: ToolExecutionStatus = ToolExecutionStatus.RUNNING
    started_at: datetime = Field(default_factory=datetime.now)
    parameters: dict[str, Any] = Field(default_factory=dict)
    result: Any = None
    error: str | None = None
    duration_ms: float | None = Field(
        default=None, allow_inf_nan=False
    )  # one of them, and every sum would be one


class ToolCacheEntry(Record):
    """A result to be given again for the same parameters.

    `parameters_hash` is made of the extra field `parameters`, if that is given and the hash is not; a hash of one's
    own is kept as it is, and such an entry is found by `parameters_hash=`. `ttl` is in seconds from `created_at`;
    None stands for the manager's.
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
    """What is known about the retries of an execution. It is pending while `attempts` is below `max_attempts`."""

    execution_id: str
    attempts: int = 0
    max_attempts: int = 3
    last_error: str | None = None
    next_retry_at: datetime = Field(default_factory=datetime.now)
    backoff_factor: float = 2.0


class ToolStats(Record):
    """What a tool has done so far. Rates are between 0 and 1, and 0 while there is nothing to count.

    `total_executions` counts those that have ended, each time that they did; `avg_duration_ms` is over those that
    ended with a duration.
    """

    tool_name: str = ""
    total_executions: int = 0
    success_rate: float = 0.0
    error_rate: float = 0.0
    avg_duration_ms: float = 0.0
    cache_hit_rate: float = 0.0


def parameters_hash(parameters: Mapping[str, Any]) -> str:
    """The hash of a tool's parameters, by their content: 64 hexadecimal digits.

    The order of keys makes no difference, nor does a tuple for a list; 1, 1.0, True and "1" are different. Raises
    InvalidInput, naming the place, for what is no plain data: None, bool, int of 64 bits, float, str, bytes, and
    lists and dicts, with str keys, of these.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidInput(f"a tool's parameters are a dict by name, not a {type(parameters).__name__}")
    return blake3(canonical.encode(canonical.plain(dict(parameters), "parameters"))).hexdigest()


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


class Executions:
    """The executions of all tools, whose records are in this part of a state, and their retries."""

    def __init__(self, part: Namespace) -> None:
        self._part = part
        self._executions = Records(
            part.namespace("executions"),
            ToolExecution,
            key="execution_id",
            index={"history": lambda execution: (execution.tool_name, -moment(execution.started_at))},
        )

    @property
    def _retries(self) -> Records[RetryState]:
        return Records(self._part.namespace("retries"), RetryState, key="execution_id")

    def get(self, execution_id: str) -> ToolExecution | None:
        """An execution, None if there is none of that id."""
        return self._executions.get(execution_id)

    def history(self, tool_name: str) -> Iterator[ToolExecution]:
        """The executions of a tool, the one that began last first, each read as it is asked for."""
        return self._executions.indexed("history", tool_name)

    def start(self, execution: ToolExecution) -> ToolExecution:
        """Begin one that is new, or is to begin again; IllegalTransition."""
        before = self.get(execution.execution_id)
        status = _MOVES.next(before.status if before else _Status.PENDING, "start")
        return self._executions.put(execution.model_copy(update={"status": status}))

    def end(self, execution_id: str, event: str, shard: str, **fields: Any) -> ToolExecution:
        """Complete one, or let it fail, and count that; IllegalTransition."""
        ended = self._move(self._executions[execution_id], event, **fields)
        if ended.status is _Status.COMPLETED:
            self._retries.discard(execution_id)
        timed = {} if ended.duration_ms is None else {"timed": 1, "duration_ms": ended.duration_ms}
        count(self._part, ended.tool_name, shard, **{ended.status.value: 1}, **timed)
        return ended

    def retry(self, retry: RetryState) -> None:
        """Note when one, known or not, is to be tried again; IllegalTransition."""
        execution = self.get(retry.execution_id)
        if execution is not None:
            self._move(execution, "retry")
        self._retries.put(retry)

    def to_be_retried(self) -> list[RetryState]:
        """What waits to be tried again, and may be, the one that is due first at the beginning."""
        pending = [retry for retry in self._retries.values() if self._waits(retry)]
        return sorted(pending, key=lambda retry: seconds(retry.next_retry_at))

    def _waits(self, retry: RetryState) -> bool:
        execution = self.get(retry.execution_id)
        return retry.attempts < retry.max_attempts and (
            execution is None or execution.status is _Status.RETRYING
        )

    def _move(self, execution: ToolExecution, event: str, **fields: Any) -> ToolExecution:
        status = _MOVES.next(execution.status, event)
        return self._executions.put(execution.model_copy(update={"status": status, **fields}))


class Cache:
    """The results that are kept in this part of a state, by tool and by hash of the parameters."""

    def __init__(self, part: Namespace) -> None:
        self._part = part
        self._entries = Records(part.namespace("cache"), ToolCacheEntry, key=("tool_name", "parameters_hash"))

    def keep(self, entry: ToolCacheEntry, ttl: float | None) -> None:
        """Keep a result until its time, in seconds, is over: from when it was created."""
        id = (entry.tool_name, entry.parameters_hash)
        left = None if ttl is None else ttl - _seconds_since(entry.created_at)
        if left is not None and left <= 0:
            self._entries.discard(id)
        else:
            self._entries.put(entry)
            self._entries.expire(id, left)

    def look_up(self, tool_name: str, parameters_hash: str, shard: str) -> ToolCacheEntry | None:
        """The entry, None if there is none or its time is over; hit or miss is counted."""
        entry = self._entries.get((tool_name, parameters_hash))
        count(self._part, tool_name, shard, **{"misses" if entry is None else "hits": 1})
        return entry

    def drop(self, tool_name: str, parameters_hash: str | None) -> int:
        """Delete the results of a tool, or the one of this hash; how many there were."""
        if parameters_hash is not None:
            return int(self._entries.discard((tool_name, parameters_hash)))
        return sum(map(self._entries.discard, list(self._entries.ids(tool_name))))


def _seconds_since(moment: datetime) -> float:
    return (datetime.now(moment.tzinfo) - moment).total_seconds()


_SHARDS = 16


class Tally(Record):
    """What the managers of one shard counted of one tool."""

    tool_name: str
    shard: str
    completed: int = 0
    failed: int = 0
    timed: int = 0
    duration_ms: float = 0
    hits: int = 0
    misses: int = 0

    def plus(self, **more: float) -> Tally:
        """The tally with these counted too."""
        return self.model_copy(update={name: getattr(self, name) + value for name, value in more.items()})


def any_shard() -> str:
    """One of the 16 places to count in, by chance."""
    return f"{os.urandom(1)[0] % _SHARDS:x}"


def count(tools: Namespace, tool_name: str, shard: str, **more: float) -> None:
    """Count so many more of these, in the commit that they happen in."""
    tallies = _tallies(tools)
    tally = tallies.get((tool_name, shard)) or Tally(tool_name=tool_name, shard=shard)
    tallies.put(tally.plus(**more))


def add_up(tools: Namespace, tool_name: str) -> ToolStats:
    """The statistics of a tool, by whomever it was counted."""

    def both(one: Tally, other: Tally) -> Tally:
        return one.plus(**other.model_dump(exclude={"tool_name", "shard"}))

    total = reduce(both, _tallies(tools).values(tool_name), Tally(tool_name=tool_name, shard=""))
    ended = total.completed + total.failed
    return ToolStats(
        tool_name=tool_name,
        total_executions=ended,
        success_rate=_rate(total.completed, ended),
        error_rate=_rate(total.failed, ended),
        avg_duration_ms=_rate(total.duration_ms, total.timed),
        cache_hit_rate=_rate(total.hits, total.hits + total.misses),
    )


def _tallies(tools: Namespace) -> Records[Tally]:
    return Records(tools.namespace("stats"), Tally, key=("tool_name", "shard"))


def _rate(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
