"""The life of a workflow: which events lead from which status to which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vstate.managers.workflow_records import WorkflowStatus
from vstate.patterns.lifecycle import Lifecycle

_PENDING, _RUNNING, _PAUSED = WorkflowStatus.PENDING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED
_WAITING, _FAILED = WorkflowStatus.WAITING, WorkflowStatus.FAILED


def _moves(event: str, statuses: Iterable[WorkflowStatus], to: WorkflowStatus) -> dict[Any, WorkflowStatus]:
    return {(status, event): to for status in statuses}


LIFE = Lifecycle(
    {
        **_moves("start", [_PENDING], _RUNNING),
        **_moves("begin a step", [_PENDING, _RUNNING, _WAITING], _RUNNING),
        # What was under way when it was paused may still end.
        **_moves("end a step", [_PENDING, _RUNNING, _WAITING], _RUNNING),
        **_moves("end a step", [_PAUSED], _PAUSED),
        **_moves("pause", [_PENDING, _RUNNING, _WAITING], _PAUSED),
        **_moves("resume", [_PAUSED, _WAITING], _RUNNING),
        **_moves("retry", [_FAILED], _RUNNING),
        **_moves("resume from a checkpoint", [_PENDING, _RUNNING, _WAITING, _PAUSED, _FAILED], _RUNNING),
        **_moves("complete", [_RUNNING, _WAITING, _PAUSED], WorkflowStatus.COMPLETED),
        **_moves("fail", [_PENDING, _RUNNING, _WAITING, _PAUSED], _FAILED),
        **_moves("cancel", [_PENDING, _RUNNING, _WAITING, _PAUSED], WorkflowStatus.CANCELLED),
    },
    initial=_PENDING,
)
