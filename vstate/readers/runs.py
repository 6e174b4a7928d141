"""Runs: the steps of a run as one table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from vstate.readers.stored import Kept, Stored
from vstate.repo.runs import Step, is_record, steps_of


def state(stored: Stored) -> Mapping[str, Any]:
    """The steps of a run as `steps`, a row for each, in order; their arguments and results as stored."""
    rows = [*stored.entries()]
    others = {key: Kept(data) for key, data in rows if not is_record(key)}
    return {**others, "steps": [row(step) for step in steps_of(rows, stored.value)]}


def row(step: Step) -> dict[str, Any]:
    """The record of a step for people and for JSON: times with their zone, and the seconds that it took."""
    began = datetime.fromtimestamp(step.began, UTC)
    seconds = None if step.ended is None else round(step.ended - step.began, 6)
    return {
        "step": step.id,
        "status": step.status,
        "began": began.isoformat(timespec="milliseconds"),
        "seconds": seconds,
        "attempts": step.attempts,
        "function": step.function,
        "key": step.key or None,
        "error": step.error or None,
    }
