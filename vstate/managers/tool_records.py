"""What a ToolStateManager keeps: executions, cached results, retries; and the statistics that it makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum, auto
from typing import Any

from blake3 import blake3
from pydantic import Field, model_validator

from vstate.errors import InvalidInput
from vstate.managers.record import Record
from vstate.objects import canonical


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
