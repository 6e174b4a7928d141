"""Dates: ages and times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from vstate.errors import InvalidInput

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d+(?:\.\d+)?|an?)\s+([a-z]+?)s?\s+ago")
_WORDS = {
    "second": timedelta(seconds=1),
    "sec": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
    "month": timedelta(days=30),
    "year": timedelta(days=365),
}

_LONGEST_TTL = 1000 * 365 * 86400.0


def parse_age(age: str | timedelta) -> timedelta:
    """A length of time: a timedelta, or a number followed by s, m, h, d or w, such as `30d`; "0" is zero.

    Raises InvalidInput for anything else.
    """
    if isinstance(age, timedelta):
        if age < timedelta():
            raise InvalidInput(f"an age is not below 0: {age}")
        return age
    if not isinstance(age, str):
        raise TypeError(f"an age is a str such as '30d' or a timedelta, not {type(age).__name__}")
    if age == "0":
        return timedelta()
    match = _AGE.fullmatch(age.strip().lower())
    try:
        if match is not None:
            return timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        pass
    raise InvalidInput(f"{age!r} is not an age: write a number followed by s, m, h, d or w, such as 30d")


def shown_ttl(seconds: float) -> str:
    """A time to live as people read it: `1h`, `90m`, `0.5s`."""
    whole = {unit: timedelta(**{name: 1}).total_seconds() for unit, name in _UNITS.items()}
    unit = next(unit for unit in reversed(whole) if seconds % whole[unit] == 0 or unit == "s")
    return f"{seconds / whole[unit]:,.6f}".rstrip("0").rstrip(".") + unit


def parse_ttl(ttl: float | timedelta) -> float:
    """A time to live in seconds; InvalidInput unless above 0 and below a thousand years."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float | timedelta):
        raise TypeError(f"a time to live is a number of seconds or a timedelta, not {type(ttl).__name__}")
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else float(ttl)
    if not 0 < seconds < _LONGEST_TTL:
        raise InvalidInput(f"a time to live is above 0 s and below a thousand years, not {ttl}")
    return seconds


def ttl_microseconds(ttl: float | timedelta) -> int:
    """A time to live in whole microseconds, at least one; InvalidInput."""
    return max(round(parse_ttl(ttl) * 1_000_000), 1)


def parse_time(text: str, *, now: datetime | None = None) -> datetime:
    """A moment as people type it, aware and in UTC; InvalidInput with examples for anything else.

    - `2026-11-20`, `2026-11-20 10:00`, and all that datetime.fromisoformat accepts, by default in the local
      time zone;
    - `now`, and `yesterday` for the same time of the day before;
    - `2 hours ago`, where a month has 30 days and a year 365;
    - an age as for `parse_age`, with or without `ago`: `3d`.
    """
    if not isinstance(text, str):
        raise TypeError(f"a time is a str such as '2026-11-20 10:00', not {type(text).__name__}")
    now = datetime.now(UTC) if now is None else now
    words = " ".join(text.lower().split())
    try:
        if words == "now":
            return now.astimezone(UTC)
        if words == "yesterday":
            # By the calendar: that day may have 23 or 25 hours.
            return (now.astimezone().replace(tzinfo=None) - timedelta(days=1)).astimezone(UTC)
        if (match := _AGO.fullmatch(words)) is not None and match[2] in _WORDS:
            count = float(match[1]) if match[1][0].isdigit() else 1.0
            return (now - count * _WORDS[match[2]]).astimezone(UTC)
        if _AGE.fullmatch(words.removesuffix(" ago")):
            return (now - parse_age(words.removesuffix(" ago"))).astimezone(UTC)
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(
            f"{text!r} is not a time: write 2026-11-20, '2026-11-20 10:00', 2026-11-20T10:00:00Z, "
            "yesterday, '2 hours ago' or 3d"
        ) from None
