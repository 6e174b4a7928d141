"""The length of the tests: short in `make test`, long where the environment sets VSTATE_SOAK, as
`make soak` does.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SOAK = bool(os.environ.get("VSTATE_SOAK"))


def sized(short: T, long: T) -> T:
    """`short` in `make test`, `long` in a soak."""
    return long if SOAK else short
