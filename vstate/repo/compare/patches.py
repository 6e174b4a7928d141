"""Patches: the change of a File as text in the form of git, which `git apply` takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from vstate.values.alignment import Aligner, split_lines

_MODES: Final = {"file": "100644", "executable": "100755", "link": "120000"}
_CONTEXT: Final = 3  # equal lines around a change
_STEPS: Final = 2_000_000  # to align all lines: less than a second
_ESCAPES: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_TO_QUOTE: Final = re.compile(rb'[^ -~]|["\\]')

Range = tuple[int, int, int, int]
"""Lines [a, b) that became lines [c, d)."""

Side = tuple[str | bytes, str]
"""The text of a file, or the bytes of one that is no text, and its kind."""


class Patch(NamedTuple):
    """A change of a file as text, and the numbers of lines that were added and removed."""

    text: str
    added: int = 0
    removed: int = 0

    def __str__(self) -> str:
        return self.text


def file_patch(name: str, old: Side | None, new: Side | None) -> Patch:
    """The change from one file to another; None for no file.

    Of files that are no texts, it only says that they differ: `git apply` refuses that. The work is bounded:
    where too many lines differ, a range of lines is one change.
    """
    if old is not None and new is not None and (old[1] == "link") != (new[1] == "link"):
        # git knows no change from a file to a link.
        gone, come = file_patch(name, old, None), file_patch(name, None, new)
        return Patch(gone.text + come.text, come.added, gone.removed)
    places = [_quoted(f"{side}/{name}") for side in "ab"]
    lines = [f"diff --git {places[0]} {places[1]}\n", *_modes(old and old[1], new and new[1])]
    sides = [place if side else "/dev/null" for place, side in zip(places, (old, new), strict=True)]
    before, after = old[0] if old else "", new[0] if new else ""
    if before == after:
        return Patch("".join(lines))
    if isinstance(before, bytes) or isinstance(after, bytes):
        return Patch("".join([*lines, f"Binary files {sides[0]} and {sides[1]} differ\n"]))
    # Behind a name with a space stands a tab, as git has it.
    ends = ["\t\n" if " " in side else "\n" for side in sides]
    lines += [f"--- {sides[0]}{ends[0]}", f"+++ {sides[1]}{ends[1]}"]
    hunks = [*_hunks(split_lines(before), split_lines(after))]
    signs = [line[0] for line in hunks]
    return Patch("".join(lines + hunks), signs.count("+"), signs.count("-"))


def near(changes: Iterable[Range], context: int) -> list[list[Range]]:
    """The changes in groups whose lines around them touch."""
    groups: list[list[Range]] = []
    for change in changes:
        if groups and change[0] - groups[-1][-1][1] <= 2 * context:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _modes(old: str | None, new: str | None) -> list[str]:
    if old is None or new is None:
        return [f"new file mode {_MODES[new]}\n"] if new else [f"deleted file mode {_MODES[old or 'file']}\n"]
    return [] if old == new else [f"old mode {_MODES[old]}\n", f"new mode {_MODES[new]}\n"]


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in near(Aligner(_STEPS).changes(old, new), _CONTEXT):
        start, stop = max(group[0][0] - _CONTEXT, 0), min(group[-1][1] + _CONTEXT, len(old))
        first, last = max(group[0][2] - _CONTEXT, 0), min(group[-1][3] + _CONTEXT, len(new))
        yield f"@@ -{_span(start, stop)} +{_span(first, last)} @@\n"
        at = start
        for a, b, c, d in group:
            yield from (_line(" ", each) for each in old[at:a])
            yield from (_line("-", each) for each in old[a:b])
            yield from (_line("+", each) for each in new[c:d])
            at = b
        yield from (_line(" ", each) for each in old[at:stop])


def _span(start: int, stop: int) -> str:
    """The first line, counted from 1, and the number of lines; of no lines, the line before them."""
    if stop - start == 1:
        return str(stop)
    return f"{start + 1 if stop > start else start},{stop - start}"


def _line(sign: str, text: str) -> str:
    return f"{sign}{text}" if text.endswith("\n") else f"{sign}{text}\n\\ No newline at end of file\n"


def _quoted(name: str) -> str:
    """A name as git writes it: in quotes and with escapes, if it has more than plain characters."""
    data = name.encode("utf-8", "surrogateescape")
    if not _TO_QUOTE.search(data):
        return name

    def escape(match: re.Match[bytes]) -> bytes:
        code = match[0][0]
        return b"\\" + _ESCAPES.get(code, f"{code:03o}").encode()

    return f'"{_TO_QUOTE.sub(escape, data).decode()}"'
