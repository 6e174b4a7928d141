"""Cache: results of tools, to be given again for the same parameters."""

from __future__ import annotations

from datetime import datetime

from vstate.managers.tool_records import ToolCacheEntry
from vstate.managers.tool_tally import count
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace


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
