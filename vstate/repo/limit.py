"""Limit: at most how many of something whoever asks for it gets."""

from __future__ import annotations

from operator import index

from vstate.errors import InvalidInput


def check_limit(limit: int | None) -> int | None:
    """The limit as it is, None for none; InvalidInput unless it is a whole number from 0 on.

    For the call that takes it: `islice` would say so only where the first item is asked for, and in its own words.
    """
    if limit is None:
        return None
    try:
        number = index(limit)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidInput(f"limit is a whole number from 0 on, or None for no limit, not {limit!r}")
    return number
