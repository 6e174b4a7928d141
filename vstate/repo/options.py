"""Options: what is given to be gone by later, looked at in the call that takes it and not where it is first used."""

from __future__ import annotations

from numbers import Real
from operator import index
from typing import Final

from vstate.errors import InvalidInput, quoted

_MOST_SECONDS: Final = 1e10  # three hundred years: no clock can be asked for much more


def check_count(name: str, given: object, least: int, *, none: str = "") -> None:
    """InvalidInput unless it is a whole number from `least` on, or None, if `none` says what that stands for."""
    if given is None and none:
        return
    try:
        number = least - 1 if isinstance(given, bool) else index(given)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least:
        raise InvalidInput(f"{name} is a whole number from {least} on{_or(none)}, not {quoted(given)}")


def check_seconds(name: str, given: object, *, zero: bool = False, none: str = "") -> None:
    """InvalidInput unless it is a number of seconds above 0, or 0 with `zero`, or None, if `none` says what that is."""
    if given is None and none:
        return
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not (is_number and 0 <= given < _MOST_SECONDS and (zero or given)):  # type: ignore[operator]
        least = "from 0 on" if zero else "above 0"
        raise InvalidInput(f"{name} is a number of seconds {least}{_or(none)}, not {quoted(given)}")


def check_amount(name: str, given: object, *, none: str = "") -> None:
    """InvalidInput unless it is a number from 0 on, or None, if `none` says what that stands for."""
    if given is None and none:
        return
    if isinstance(given, bool) or not is_amount(given):
        raise InvalidInput(f"{name} is a number from 0 on{_or(none)}, not {quoted(given)}")


def is_amount(given: object) -> bool:
    """Whether it is a number from 0 on, of whatever class."""
    try:
        return bool(given >= 0)  # type: ignore[operator]
    except (TypeError, ValueError, ArithmeticError):  # a Decimal raises the last, which is NaN
        return False


def check_flag(name: str, given: object) -> None:
    """InvalidInput unless it is True or False: "no" would count as yes."""
    if not isinstance(given, bool):
        raise InvalidInput(f"{name} is True or False, not {quoted(given)}")


def _or(none: str) -> str:
    return f", or {none}" if none else ""
