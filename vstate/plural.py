"""Plural: numbers of things, for messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things: `1 object`, `3,000 objects`, `2 branches`, `2 entries`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("ry"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('x', 'ch')) else 's'}"
