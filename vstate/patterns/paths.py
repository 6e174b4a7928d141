"""Paths: keys that are made of parts, such as a user's id and a session's, of which no two tuples give the same."""

from __future__ import annotations

import re

from vstate.errors import InvalidInput
from vstate.state.base import State
from vstate.state.namespace import Namespace

_ESCAPED = re.compile(r"[%/\x00-\x1f\x7f]")
_EMPTY = "%"


def join_path(*parts: str) -> str:
    """The key of a tuple of texts: the parts with "/" between them.

    A "%", a "/" and control characters in a part are written as "%" and two hexadecimal digits, as in a URL; a
    part without characters as a "%" alone.
    """
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"the parts of a path are str, not {type(part).__name__}: {part!r}")
    if not parts:
        raise InvalidInput("a path has at least one part")
    return "/".join(_ESCAPED.sub(_escape, part) if part else _EMPTY for part in parts)


def split_path(key: str) -> tuple[str, ...]:
    """The parts that `join_path` made the key of."""
    return tuple(
        "" if part == _EMPTY else re.sub("%(..)", lambda found: chr(int(found[1], 16)), part)
        for part in key.split("/")
    )


def scope(state: State, *parts: str) -> Namespace:
    """The part of a state that belongs to a user, a session, or whatever the path names: a namespace of its own."""
    return state.namespace(join_path(*parts))


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02x}"
