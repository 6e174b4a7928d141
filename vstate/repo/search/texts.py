"""Texts: the keys, and the texts and numbers inside values, that hold a text, without unpickling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from vstate.errors import CorruptObject, InvalidInput
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import parts_of
from vstate.repo.core import Core
from vstate.values.arrays import Array
from vstate.values.budget import InertError

MOST_PARTS = 200_000
"""So many parts of one value are searched."""

_DEEPEST = 100
_NAMED = frozenset({"entries", "fields", "kwargs", "columns"})  # groups of parts with names
_AROUND = 60  # characters
_LONGEST_NUMBER = 1000  # bits


@dataclass(frozen=True, slots=True)
class Place:
    """A text that was found: its key, its path inside the value, and the text around it.

    `path` is None if the key itself holds the text.
    """

    key: str
    path: str | None
    excerpt: str


@dataclass(frozen=True, slots=True)
class FoundTexts:
    """The places of a text, by key. `keys` counts the keys that were searched, and `unread` the values among
    them that cannot be read, or not to their end. `is_complete` tells whether all of them were searched, to
    their ends.
    """

    places: tuple[Place, ...]
    keys: int
    unread: int
    is_complete: bool


def find_text(
    core: Core,
    commit: Commit,
    text: str,
    prefix: str = "",
    *,
    most: int = 50,
    most_inside: int | None = None,
    seconds: float = 10.0,
) -> FoundTexts:
    """Search the keys that begin with `prefix`, and their values, for a text, in upper or lower case.

    Ends after `most` places, or after so many seconds; a value, after `most_inside` places in it. Expired
    keys are left out.
    """
    if not text:
        raise InvalidInput("the text to search for is empty")
    wanted, end = text.lower(), monotonic() + seconds
    places: list[Place] = []
    keys = unread = 0
    is_complete = True
    for key, data in tree.scan(core.objects.nodes, commit.root, prefix, at=expiry.now()):
        if len(places) >= most or monotonic() > end:
            return FoundTexts(tuple(places[:most]), keys, unread, False)
        keys += 1
        if wanted in key.lower():
            places.append(Place(key, None, _around(key, wanted)))
        try:
            inside = 0
            for path, found in texts_in(core.inspect(key, data)):
                if wanted in found.lower():
                    places.append(Place(key, path, _around(found, wanted)))
                    inside += 1
                    if inside == most_inside:
                        is_complete = False  # there may be more
                        break
                if len(places) > most or monotonic() > end:
                    return FoundTexts(tuple(places[:most]), keys, unread, False)
        except (InertError, InvalidInput, CorruptObject):
            unread += 1
    return FoundTexts(tuple(places), keys, unread, is_complete)


def moves_text(core: Core, commit: Commit, text: str) -> bool:
    """Whether the commit changed how often a value, or a key, has the text, as `git log -S` finds commits.

    It is compared with its first parent. A value that cannot be read has no text.
    """
    before = core.history.before(commit)
    old = before[0].root if before else None
    wanted = text.lower()
    return any(
        _times(core, change.key, change.old, wanted) != _times(core, change.key, change.new, wanted)
        for change in tree.diff(core.objects.nodes_once, old, commit.root)
    )


def _times(core: Core, key: str, data: bytes | None, wanted: str) -> int:
    if data is None:
        return 0
    times = key.lower().count(wanted)
    with suppress(InertError, InvalidInput, CorruptObject):
        times += sum(text.lower().count(wanted) for _, text in texts_in(core.inspect(key, data)))
    return times


def texts_in(value: object) -> Iterator[tuple[str, str]]:
    """The texts and numbers in a value with their paths, and the steps that are names."""
    prints = Fingerprints()
    stack = [(value, "", 0)]
    parts = 0
    while stack:
        value, path, depth = stack.pop()
        if isinstance(value, str):
            yield path, value
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            if isinstance(value, float) or value.bit_length() <= _LONGEST_NUMBER:
                yield path, str(value)
            continue
        if isinstance(value, Array):
            continue  # a search in millions of numbers finds nothing that somebody looks for
        if depth > _DEEPEST:
            raise InvalidInput("the value is nested too deep to be searched")
        below = []
        for part in parts_of(value, prints):
            parts += 1
            if parts > MOST_PARTS:
                raise InvalidInput("the value has too many parts to be searched")
            where = path + part.step if path else part.step.removeprefix(".")
            if part.group in _NAMED and isinstance(part.place, str):
                yield where, part.place
            below.append((part.value, where, depth + 1))
        stack += reversed(below)


def _around(text: str, wanted: str) -> str:
    """The text around the first place of the wanted one."""
    at = max(text.lower().find(wanted), 0)
    begin, end = max(at - _AROUND, 0), at + len(wanted) + _AROUND
    return ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")
