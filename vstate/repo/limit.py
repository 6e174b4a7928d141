"""Limit: at most how many of something whoever asks for it gets."""

from __future__ import annotations

from operator import index

from vstate.repo.options import check_count


def check_limit(limit: int | None) -> int | None:
    """The limit as it is, None for none; InvalidInput unless it is a whole number from 0 on.

    For the call that takes it: `islice` would say so only where the first item is asked for, and in its own words.
    """
    check_count("limit", limit, 0, none="None for no limit")
    return None if limit is None else index(limit)
