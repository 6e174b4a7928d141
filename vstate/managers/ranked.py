"""Ranked: records of an owner's, each found by its id, and in the order of their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, Generic, TypeVar

from vstate.managers.record import seconds
from vstate.patterns.paths import join_path, split_path
from vstate.patterns.records import Records
from vstate.state.namespace import Namespace

M = TypeVar("M")

_WIDTH: Final = 20
_ABOVE_ALL: Final = 10**_WIDTH - 1


class Ranked(Generic[M]):
    """The records `name` of a part: `name/owner/id` holds each, `name-by-rank/owner/rank/id` its mark.

    `rank` makes some numbers of a record, none of which is negative, the first of them the most significant. Their
    order, and never that of texts, says which is the newest, and of all of an owner's records that one is found
    by reading no other. A `mark` is kept with the rank, for whoever looks for the newest with a certain one.
    """

    def __init__(
        self,
        part: Namespace,
        name: str,
        model: type[M],
        *,
        key: tuple[str, str],
        rank: Callable[[M], tuple[int, ...]],
        mark: Callable[[M], bool] = lambda record: True,
    ) -> None:
        self._records = Records(part.namespace(name), model, key=key)
        self._ranks = part.namespace(f"{name}-by-rank")
        self._owner, self._id = key
        self._rank = rank
        self._mark = mark

    def put(self, record: M) -> M:
        """Write a record, in place of the one of that owner and id; what was written."""
        before = self._records.get((getattr(record, self._owner), getattr(record, self._id)))
        if before is not None:
            del self._ranks[self._rank_key(before)]
        written = self._records.put(record)
        self._ranks[self._rank_key(written)] = self._mark(written)
        return written

    def get(self, owner: str, id: str) -> M | None:
        """The record, None if there is none."""
        return self._records.get((owner, id))

    def newest_first(self, owner: str, *, marked: bool = False) -> Iterator[M]:
        """The owner's records from the highest rank down, each read as it is asked for; only the marked ones."""
        for key, mark in self._ranks.items(f"{join_path(owner)}/"):
            if mark or not marked:
                yield self._records[owner, split_path(key)[-1]]

    def owners(self) -> set[str]:
        """Whose records there are."""
        return {split_path(key)[0] for key in self._ranks.scan_keys("")}

    def count(self, owner: str) -> int:
        """How many an owner has."""
        return self._records.count(owner)

    def delete(self, owner: str, id: str) -> bool:
        """Delete one; False if there is none."""
        record = self._records.get((owner, id))
        if record is None:
            return False
        del self._ranks[self._rank_key(record)]
        del self._records[owner, id]
        return True

    def delete_all(self, owner: str) -> int:
        """Delete all of an owner's; how many there were. They are not read: one that is not valid is no obstacle."""
        ids = list(self._records.ids(owner))
        for id in ids:
            del self._records[id]
        for key in list(self._ranks.scan_keys(f"{join_path(owner)}/")):
            del self._ranks[key]
        return len(ids)

    def _rank_key(self, record: M) -> str:
        # Counted from above, so that the first key is that of the newest.
        numbers = (f"{_ABOVE_ALL - number:0{_WIDTH}}" for number in self._rank(record))
        return join_path(getattr(record, self._owner), *numbers, getattr(record, self._id))


def moment(time: datetime) -> int:
    """A time as a rank: microseconds since 1970, by the local clock if it has no zone."""
    return max(round(seconds(time) * 1_000_000), 0)
