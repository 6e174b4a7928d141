"""Results that a test expects to be there."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """The value; the test fails if it is None."""
    assert value is not None
    return value
