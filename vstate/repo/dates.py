"""Dates: ages and times as people type them."""

from __future__ import annotations

import re
from datetime import timedelta

from vstate.errors import InvalidInput

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_age(age: str | timedelta) -> timedelta:
    """A length of time: a timedelta, or a number with s, m, h, d or w behind it, such as `30d`; "0" is none.

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
    raise InvalidInput(f"{age!r} is not an age: a number with s, m, h, d or w behind it, such as 30d")
