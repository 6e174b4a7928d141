"""Executions: what tools were asked to do, with what became of it, and what is to be tried again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vstate.managers.record import moment, seconds
from vstate.managers.tool_records import RetryState, ToolExecution, ToolExecutionStatus
from vstate.managers.tool_tally import count
from vstate.patterns.lifecycle import Lifecycle
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

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
