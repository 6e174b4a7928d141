"""Edits of a value, to see whether a copy of it shares a part."""

from __future__ import annotations

from typing import Any

from vstate.managers.record import Record


def changed(value: Any) -> int:
    """Change all mutable parts of a value, and count them."""
    match value:
        case Record():
            return sum(map(changed, vars(value).values())) + changed(value.model_extra)
        case dict():
            inner = sum(map(changed, value.values()))
            value["new"] = 1
        case list():
            inner = sum(map(changed, value))
            value.append("new")
        case tuple():
            return sum(map(changed, value))
        case set():
            value.add("new")
            return 1
        case bytearray():
            value.append(0)
            return 1
        case _:
            return 0
    return inner + 1
