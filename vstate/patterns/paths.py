"""Paths: keys made of parts, such as the ids of a user and a session. No two tuples of parts share a key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, overload

from vstate.arguments import check_state_key
from vstate.errors import InvalidInput, KeyNotFound
from vstate.state.base import ReadableState, State
from vstate.state.namespace import Namespace

Id = str | tuple[str, ...]
"""An id: a text, or a tuple of texts."""

_ESCAPED = re.compile(r"[%/\x00-\x1f\x7f]")
_EMPTY = "%"
_PART = re.compile(r"%|(?:[^%/\x00-\x1f\x7f]|%25|%2f|%[01][0-9a-f]|%7f)+")


def join_path(*parts: str) -> str:
    """The key of a tuple of texts: the parts with "/" between them.

    A "%", a "/" or a control character in a part becomes "%" and two hexadecimal digits, as in a URL. An
    empty part becomes "%". Raises TypeError for a part that is no str, and InvalidInput without parts or for
    an invalid key.
    """
    if not parts:
        raise InvalidInput("a path has at least one part")
    for part in parts:
        if type(part) is not str:
            parts = tuple(map(_text, parts))
            break
    return check_state_key("/".join([_ESCAPED.sub(_escape, part) if part else _EMPTY for part in parts]))


def split_path(key: str) -> tuple[str, ...]:
    """The parts of a key that `join_path` made. Raises InvalidInput for any other key."""
    parts = key.split("/")
    if not all(map(_PART.fullmatch, parts)):
        raise InvalidInput(f"the key {key!r} is not a path: join_path makes none like it")
    return tuple("" if part == _EMPTY else re.sub("%(..)", _unescape, part) for part in parts)


def path_of(id: Id) -> str:
    """The key of an id: `join_path` of its texts."""
    if not isinstance(id, str | tuple):
        raise TypeError(f"an id is a str or a tuple of them, not {type(id).__name__}: {id!r}")
    return join_path(id) if isinstance(id, str) else join_path(*id)


class Scope(ReadableState):
    """The keys below a path, without that path, in a snapshot or another read-only state."""

    def __init__(self, state: ReadableState, path: str) -> None:
        base, prefix = base_of(state)
        self.base = base
        self.prefix = f"{prefix}{path}/"

    def __getitem__(self, key: str) -> Any:
        try:
            return self.base[self.prefix + check_state_key(key)]
        except KeyNotFound:
            raise KeyNotFound(key) from None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.prefix + key in self.base

    def _scan(self, prefix: str, *, reverse: bool = False) -> Iterator[str]:
        found = self.base.keys(self.prefix + prefix, reverse=reverse)
        return (key[len(self.prefix) :] for key in found)

    def _count(self, prefix: str) -> int:
        return len(self.base.keys(self.prefix + prefix))

    def _describe(self, key: str) -> str:
        return self.base._describe(self.prefix + key)

    def _title(self) -> str:
        return f"{self.prefix!r} of {self.base._title()}"


@overload
def scope(state: State, *parts: str) -> Namespace: ...


@overload
def scope(state: ReadableState, *parts: str) -> ReadableState: ...


def scope(state: ReadableState, *parts: str) -> ReadableState:
    """The namespace of a user, a session, or anything else that a path names. Of a snapshot it is read-only.

    Two scopes share keys only if the path of one begins with the path of the other.
    """
    path = join_path(*parts)
    return state.namespace(path) if isinstance(state, State) else Scope(state, path)


def base_of(state: ReadableState) -> tuple[ReadableState, str]:
    """The whole state behind a namespace or scope, and the prefix of its keys there."""
    if isinstance(state, State):
        return state.root, state.prefix
    if isinstance(state, Scope):
        return state.base, state.prefix
    return require_state(state), ""


def require_state(state: ReadableState) -> ReadableState:
    """The state. Raises TypeError for any other object, and for a state of `vstate.aio`, which is awaited."""
    if not isinstance(state, ReadableState):
        raise TypeError(
            f"a {type(state).__module__}.{type(state).__qualname__} is not a state: give a Versioned, "
            "a Live, a Namespace or a Snapshot; with vstate.aio, give the state that the function gets in "
            "`await state.apply(function)`"
        )
    return state


def _text(part: object) -> str:
    if not isinstance(part, str):
        raise TypeError(f"an id, or a name in a path, is a str, not {type(part).__name__}: {part!r}")
    return str.__str__(part)  # the characters of a str Enum, whatever its own __str__ returns


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02x}"


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))
