"""Extras: how to install the packages that a part of vstate needs, for messages."""

from __future__ import annotations

from typing import Final

RELEASED: Final = False
"""Whether a package index has vstate. Until then its name there is anybody's: no message advises it."""


def install(extra: str) -> str:
    """The command that installs an extra: `pip install '.[redis]' in a clone of vstate`."""
    return f"pip install 'vstate[{extra}]'" if RELEASED else f"pip install '.[{extra}]' in a clone of vstate"


UPGRADE: Final = "pip install --upgrade vstate" if RELEASED else "git pull, and pip install . in the clone"
"""The command that installs a newer vstate."""
