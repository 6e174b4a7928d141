"""Tally: what was counted of a tool, in several places, so that those who count at once seldom meet."""

from __future__ import annotations

import os
from functools import reduce

from vstate.managers.record import Record
from vstate.managers.tool_records import ToolStats
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

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
