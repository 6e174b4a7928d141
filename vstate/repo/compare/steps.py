"""Steps: the texts of which a path into a value is made, and values in a few words."""

from __future__ import annotations

import re
from typing import Final

from vstate.values.instance import printable
from vstate.values.preview import preview

_SHOWN: Final = 60  # characters
_BRIEF_NODES: Final = 60
_STEP_NODES: Final = 20
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def member_step(member: object) -> str:
    """The step of a path that leads to this member of a set."""
    return f"{{{brief(member, _STEP_NODES)}}}"


def step_of(key: object) -> str:
    """The step of a path that leads to this key of a dict, column, label of a row, or slice of rows."""
    if isinstance(key, slice):
        return f"[{key.start}:{key.stop}]"
    if not isinstance(key, str):
        return f"[{brief(key, _STEP_NODES)}]"
    if _IDENTIFIER.fullmatch(key) and len(key) <= _SHOWN:
        return f".{key}"
    inside = printable(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}…").replace('"', '\\"')
    return f'["{inside}"]'


def brief(value: object, max_nodes: int = _BRIEF_NODES) -> str:
    """The value in at most 60 characters."""
    text = preview(value, width=None, max_depth=3, max_items=5, max_nodes=max_nodes)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
