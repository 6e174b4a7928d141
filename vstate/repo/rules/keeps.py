"""Keeps: how long branches and their histories are kept, by rules that lie in the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from datetime import timedelta
from math import inf
from typing import Final, TypeVar

from vstate.arguments import check_count, check_text
from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.base import KVStore
from vstate.objects.canonical import decode_checked, encode_checked
from vstate.repo.names.dates import parse_age
from vstate.repo.names.refs import check_ref_name

RULES: Final = "keep/rules"
"""The key of the row with all rules."""

UNSIGNED: Final = (
    "a history cannot be thinned here: no signature covers the rows that say which commits stay in it, and "
    "this program trusts signed commits only; use last and since without hourly, daily and weekly"
)
"""Why a program with `trust` refuses to thin a history."""

_MICROSECOND: Final = timedelta(microseconds=1)
_PERIODS: Final = timedelta(hours=1), timedelta(days=1), timedelta(weeks=1)
_TO_MONDAY: Final = timedelta(days=3) // _MICROSECOND  # the first day of 1970 was a Thursday


D = TypeVar("D")


@dataclass(frozen=True, slots=True, init=False)
class Keep:
    """How long branches are kept, and how much of their histories; None for ever, and for all of it.

    - `idle`: a branch goes once no commit has reached it for so long. HEAD's branch stays.
    - The others say which commits stay in the history: with several, those that any of them keeps. The newest
      one always stays. `since` keeps those that are younger than that, and `last` so many of the newest.
    - `hourly`, `daily` and `weekly` keep the newest commit of each hour, day or week in UTC, of so many of
      these that have commits. The other commits between go: the history is thinned.
    """

    idle: timedelta | None
    since: timedelta | None
    last: int | None
    hourly: int | None
    daily: int | None
    weekly: int | None

    def __init__(
        self,
        *,
        idle: str | timedelta | None = None,
        since: str | timedelta | None = None,
        last: int | None = None,
        hourly: int | None = None,
        daily: int | None = None,
        weekly: int | None = None,
    ) -> None:
        """An age is a timedelta, or a number followed by s, m, h, d or w, such as `30d`.

        Raises InvalidInput for another one, for an `idle` of 0, and for a number below 1.
        """
        if idle is not None and not parse_age(idle):
            raise InvalidInput(
                "idle is a length of time above 0: otherwise a branch goes as soon as it is made"
            )
        ages = {"idle": idle, "since": since}
        counts = {"last": last, "hourly": hourly, "daily": daily, "weekly": weekly}
        for name, age in ages.items():
            object.__setattr__(self, name, None if age is None else parse_age(age))
        for name, count in counts.items():
            check_count(name, count, 1, none="None for no limit")
            object.__setattr__(self, name, count)

    @property
    def periods(self) -> dict[timedelta, int]:
        """The lengths of the periods whose newest commit stays, and of how many periods."""
        counts = zip(_PERIODS, (self.hourly, self.daily, self.weekly), strict=True)
        return {length: count for length, count in counts if count is not None}

    @property
    def shortens(self) -> bool:
        """Whether commits go out of the history of a branch that stays."""
        return bool(self.periods) or self.since is not None or self.last is not None

    def choose(self, dates: Iterable[tuple[D, int]], now: int) -> Iterator[tuple[D, bool]]:
        """Each with whether it stays, up to the first one behind which none does.

        They come with their dates in microseconds, newest first.
        """
        begin = inf if self.since is None else now - self.since // _MICROSECOND
        left = {length // _MICROSECOND: count for length, count in self.periods.items()}
        seen: dict[int, int] = {}
        for number, (each, date) in enumerate(dates):
            stays = number < (self.last or 1) or date >= begin
            for length, count in left.items():
                period = (date + _TO_MONDAY) // length
                if count and period != seen.get(length):
                    seen[length], left[length] = period, count - 1
                    stays = True
            yield each, stays
            if not stays and not any(left.values()):
                return


class KeepRules:
    """The rules of one store, each for a branch or, with `*` at the end, for all that begin so."""

    def __init__(self, store: KVStore) -> None:
        self._store = store

    def read(self) -> dict[str, Keep]:
        """The rules by pattern, sorted."""
        return self._parsed(self._store.get(RULES))

    def set(self, pattern: str, keep: Keep) -> None:
        """Set the rule of a pattern. One that keeps everything goes."""
        if check_text("pattern", pattern) != "*":
            check_ref_name(pattern.removesuffix("*").removesuffix("/") if pattern.endswith("*") else pattern)
        while True:
            before = self._store.get(RULES)
            rules = {**self._parsed(before), pattern: keep}
            if keep == Keep():
                del rules[pattern]
            row = encode_rules(rules) if rules else None
            if row == before or self._store.compare_and_swap(RULES, before, row):
                return

    def _parsed(self, row: bytes | None) -> dict[str, Keep]:
        try:
            return {} if row is None else parse_rules(row)
        except ValueError as error:
            reason = f"the rules that say what is kept are damaged: {error}"
            raise CorruptStore(self._store.location, reason, repairable=True) from error


def find_rule(rules: Mapping[str, Keep], branch: str) -> Keep:
    """The rule of a branch: that of its name, or of the longest beginning."""
    fits = [pattern for pattern in rules if pattern.endswith("*") and branch.startswith(pattern[:-1])]
    return rules.get(branch) or rules.get(max(fits, key=len, default=""), Keep())


def encode_rules(rules: Mapping[str, Keep]) -> bytes:
    """The rules as a row."""
    return encode_checked({pattern: list(_numbers(keep)) for pattern, keep in rules.items()})


def parse_rules(row: bytes) -> dict[str, Keep]:
    """The rules in a row; ValueError if the row is damaged."""
    rules = decode_checked(row)
    if not isinstance(rules, dict):
        raise ValueError("it holds no rules")
    found = {}
    for pattern, numbers in sorted(rules.items()):
        if not isinstance(numbers, list) or len(numbers) != len(fields(Keep)):
            raise ValueError(f"no rule for {pattern!r}")
        if not all(number is None or (type(number) is int and number >= 0) for number in numbers):
            raise ValueError(f"no numbers in the rule for {pattern!r}")
        limits = dict(zip((limit.name for limit in fields(Keep)), numbers, strict=True))
        idle, since = _age(limits.pop("idle")), _age(limits.pop("since"))
        found[pattern] = Keep(idle=idle, since=since, **limits)
    return found


def _numbers(keep: Keep) -> Iterator[int | None]:
    for limit in astuple(keep):
        yield limit // _MICROSECOND if isinstance(limit, timedelta) else limit


def _age(microseconds: int | None) -> timedelta | None:
    try:
        return None if microseconds is None else timedelta(microseconds=microseconds)
    except OverflowError:
        raise ValueError("an age is longer than any time") from None
