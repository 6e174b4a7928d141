"""Paths: keys that are made of parts, such as a user's id and a session's, of which no two tuples give the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, overload

from vstate.errors import InvalidInput, KeyNotFound
from vstate.state.base import ReadableState, State, check_key
from vstate.state.namespace import Namespace

Id = str | tuple[str, ...]
"""What something is found by: a text, or a tuple of them."""

_ESCAPED = re.compile(r"[%/\x00-\x1f\x7f]")
_EMPTY = "%"
_WHOLE = re.compile(r"%|(?:[^%/\x00-\x1f\x7f]|%25|%2f|%[01][0-9a-f]|%7f)+")


def join_path(*parts: str) -> str:
    """The key of a tuple of texts: the parts with "/" between them.

    A "%", a "/" and control characters in a part are written as "%" and two hexadecimal digits, as in a URL; a
    part without characters as a "%" alone. Raises TypeError for a part that is no str, InvalidInput without parts
    and for what no key can be.
    """
    if not parts:
        raise InvalidInput("a path has at least one part")
    texts = []
    for part in parts:
        if type(part) is not str:
            if not isinstance(part, str):
                raise TypeError(f"the parts of a path are str, not {type(part).__name__}: {part!r}")
            part = str.__str__(part)  # the characters of a str Enum, whatever its own __str__ says
        texts.append(_ESCAPED.sub(_escape, part) if part else _EMPTY)
    return check_key("/".join(texts))


def split_path(key: str) -> tuple[str, ...]:
    """The parts that `join_path` made the key of; InvalidInput for a key that it did not make."""
    parts = key.split("/")
    if not all(map(_WHOLE.fullmatch, parts)):
        raise InvalidInput(f"the key {key!r} is not a path: join_path makes none like it")
    return tuple("" if part == _EMPTY else re.sub("%(..)", _unescape, part) for part in parts)


def path_of(id: Id) -> str:
    """The key of an id: `join_path` of the text, or of the texts of the tuple."""
    if not isinstance(id, str | tuple):
        raise TypeError(f"an id is a str or a tuple of them, not {type(id).__name__}: {id!r}")
    return join_path(id) if isinstance(id, str) else join_path(*id)


class Scope(ReadableState):
    """The part of a snapshot, or of another state that can only be read, that a path names: without that prefix."""

    def __init__(self, state: ReadableState, path: str) -> None:
        base, prefix = base_of(state)
        self.base = base
        self.prefix = f"{prefix}{path}/"

    def __getitem__(self, key: str) -> Any:
        try:
            return self.base[self.prefix + check_key(key)]
        except KeyNotFound:
            raise KeyNotFound(key) from None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.prefix + key in self.base

    def scan_keys(self, prefix: str) -> Iterator[str]:
        return (key[len(self.prefix) :] for key in self.base.scan_keys(self.prefix + prefix))

    def count_keys(self, prefix: str) -> int:
        return self.base.count_keys(self.prefix + prefix)

    def describe_key(self, key: str) -> str:
        return self.base.describe_key(self.prefix + key)

    def title(self) -> str:
        return f"{self.prefix!r} of {self.base.title()}"


@overload
def scope(state: State, *parts: str) -> Namespace: ...


@overload
def scope(state: ReadableState, *parts: str) -> ReadableState: ...


def scope(state: ReadableState, *parts: str) -> ReadableState:
    """The part of a state that belongs to a user, a session, or whatever the path names: a namespace of its own.

    Of a snapshot, it can be read only. No path of the same number of parts, or of others that do not begin with it,
    leads into it.
    """
    path = join_path(*parts)
    return state.namespace(path) if isinstance(state, State) else Scope(state, path)


def base_of(state: ReadableState) -> tuple[ReadableState, str]:
    """The state that a namespace or scope is a part of, itself for others, and the prefix of the part."""
    if isinstance(state, State):
        return state.root, state.prefix
    if isinstance(state, Scope):
        return state.base, state.prefix
    return require_state(state), ""


def require_state(state: ReadableState) -> ReadableState:
    """The state, if it is one; TypeError otherwise, for one of `vstate.aio` too, whose methods are awaited."""
    if not isinstance(state, ReadableState):
        raise TypeError(
            f"a {type(state).__module__}.{type(state).__qualname__} is not a state: give a Versioned, a Live, a "
            "Namespace or a Snapshot; with vstate.aio use what the function gets in `await state.update(function)`"
        )
    return state


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02x}"


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))
