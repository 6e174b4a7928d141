"""Priority: how urgent a task is, as a number or a word, and its place among others."""

from __future__ import annotations

import struct
import sys
from datetime import UTC, datetime, timedelta

from vstate.errors import InvalidInput, quoted

WORDS = {"critical": 2.0, "urgent": 2.0, "high": 1.0, "normal": 0.0, "medium": 0.0, "low": -1.0}

_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = datetime.fromtimestamp(0, UTC)


def place(priority: object, at: datetime) -> str:
    """A text of 32 digits that sorts the higher priority first, and the earlier moment within one.

    A priority is a number, or one of `WORDS`, which stand between the numbers as it says; None is normal. Anything
    else raises InvalidInput.
    """
    # The bits of a float sort as it does once those of a negative one are turned round; and here the highest goes first.
    (bits,) = struct.unpack(">Q", struct.pack(">d", _number(priority) + 0.0))
    rising = bits ^ (_ALL if bits & _SIGN else _SIGN)
    return f"{_ALL - rising:016x}{(at - _EPOCH) // timedelta(microseconds=1):016x}"


def _number(priority: object) -> float:
    if priority is None:
        return 0.0
    if isinstance(priority, str) and priority.lower() in WORDS:
        return WORDS[priority.lower()]
    if (
        isinstance(priority, int | float)
        and not isinstance(priority, bool)
        and abs(priority) <= sys.float_info.max
    ):
        return float(priority)
    raise InvalidInput(f"a task's priority is a number, or one of {', '.join(WORDS)}, not {quoted(priority)}")
