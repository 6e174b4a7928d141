"""Texts: the parts in which two texts, or two strings of bytes, differ."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from vstate.repo.compare.arrays import runs
from vstate.repo.compare.patches import Range, near
from vstate.values.alignment import Aligner, common_ends

_CONTEXT: Final = 1  # equal lines around a change
_STEPS: Final = 500_000  # to align all lines and words of two texts
_LONG_LINE: Final = 120  # characters; of a longer line only the changed parts are kept
_AROUND: Final = 20  # characters beside a change in a long line
_LONGEST_WORDS: Final = 20_000  # characters of a line that is compared by word
_MOST_PIECE: Final = 400  # characters of a changed part
_MOST_LINES: Final = 2000  # of all hunks
_MOST_CHANGES: Final = 10  # of bytes
_MOST_BYTES: Final = 64  # of a change
_NEAR: Final = 8  # equal bytes between two changes that are shown as one
_WORD: Final = re.compile(r"\w{1,30}|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line; `is_changed` if the other text has not this part. "…" stands for a part left out."""

    text: str
    is_changed: bool = False


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line of a hunk: " " in both texts, "-" in the old one, "+" in the new one.

    `column` is the place of the first change in a long line, counted from 1; 0 for a line that is whole.
    """

    sign: str
    pieces: tuple[Piece, ...]
    column: int = 0


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that differ, with a line around them. The lines of each text are counted from 1."""

    old_line: int
    old_count: int
    new_line: int
    new_count: int
    lines: tuple[LineChange, ...]


@dataclass(frozen=True, slots=True)
class BytesChange:
    """Bytes that differ from this offset on; `old` and `new` are their beginnings, in hexadecimal."""

    offset: int
    old_size: int
    new_size: int
    old: str
    new: str


def text_hunks(old: str, new: str) -> list[Hunk]:
    """The lines in which two texts differ; inside of changed lines, the words.

    The work is bounded: where too much differs, ranges of lines are one change.
    """
    before, after = old.split("\n"), new.split("\n")
    aligner = Aligner(_STEPS)
    hunks: list[Hunk] = []
    left = _MOST_LINES
    for group in near(aligner.changes(before, after), _CONTEXT):
        if left <= 0:
            hunks[-1] = replace(hunks[-1], lines=(*hunks[-1].lines, _left_out("more changes behind these")))
            break
        hunk = _hunk(before, after, group, aligner, left)
        left -= len(hunk.lines)
        hunks.append(hunk)
    return hunks


def _hunk(before: list[str], after: list[str], group: list[Range], aligner: Aligner, most: int) -> Hunk:
    start, stop = max(group[0][0] - _CONTEXT, 0), min(group[-1][1] + _CONTEXT, len(before))
    first, last = max(group[0][2] - _CONTEXT, 0), min(group[-1][3] + _CONTEXT, len(after))
    lines: list[LineChange] = []
    at = start
    for row, row_end, column, column_end in group:
        lines += [LineChange(" ", _short(before[number])) for number in range(at, row)]
        removed, added = before[row:row_end][:most], after[column:column_end][:most]
        pairs = []
        if len(removed) == len(added):
            pairs = [_by_word(a, b, aligner) for a, b in zip(removed, added, strict=True)]
        if pairs:
            lines += [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
        else:
            lines += [LineChange("-", _short(text)) for text in removed]
            lines += [LineChange("+", _short(text)) for text in added]
        if row_end - row > most or column_end - column > most:
            counts = f"{row_end - row:,} lines become {column_end - column:,}"
            lines.append(_left_out(f"{counts}; the first {most:,} of each are shown"))
        at = row_end
    lines += [LineChange(" ", _short(before[number])) for number in range(at, stop)]
    return Hunk(start + 1, stop - start, first + 1, last - first, tuple(lines))


def _left_out(what: str) -> LineChange:
    """A line that tells of lines that are not shown."""
    return LineChange(" ", (Piece(f"… {what} …"),))


def _short(text: str) -> tuple[Piece, ...]:
    if len(text) <= _LONG_LINE:
        return (Piece(text),)
    return (Piece(text[:_LONG_LINE]), Piece("…"))


def _by_word(old: str, new: str, aligner: Aligner) -> tuple[LineChange, LineChange]:
    """The old and the new line, with the words that changed; of a long line, the part that changed."""
    start, end = common_ends(old, new)
    if max(len(old), len(new)) <= _LONGEST_WORDS and aligner.left > 0:
        words, others = _WORD.findall(old), _WORD.findall(new)
        ends = [*aligner.matches(words, others), (len(words), len(others))]
    else:
        words, others = (
            [text[:start], text[start : len(text) - end], text[len(text) - end :]] for text in (old, new)
        )
        ends = [(0, 0), (2, 2)]
    lines = []
    for sign, parts, side in (("-", words, 0), ("+", others, 1)):
        pieces, at = [], 0
        for pair in ends:
            to = pair[side]
            pieces += [Piece("".join(parts[at:to]), True), Piece("".join(parts[to : to + 1]))]
            at = to + 1
        lines.append(_line(sign, _joined(pieces), start))
    return lines[0], lines[1]


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The pieces without empty ones, neighbours of one kind as one."""
    found: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        if found and found[-1].is_changed == piece.is_changed:
            found[-1] = Piece(found[-1].text + piece.text, piece.is_changed)
        else:
            found.append(piece)
    return found


def _line(sign: str, pieces: list[Piece], start: int) -> LineChange:
    """The line; of a long line, the changed pieces and a few characters beside each."""
    if sum(len(piece.text) for piece in pieces) <= _LONG_LINE:
        return LineChange(sign, tuple(pieces))
    short: list[Piece] = []
    for number, piece in enumerate(pieces):
        text = piece.text
        head = _AROUND if number else 0
        tail = _AROUND if number < len(pieces) - 1 else 0
        if piece.is_changed:
            short.append(Piece(text[:_MOST_PIECE], True))
            short += [Piece("…")] if len(text) > _MOST_PIECE else []
        elif len(text) <= head + tail + 1:
            short.append(piece)
        else:
            short.append(Piece(f"{text[:head]}…{text[len(text) - tail :]}"))
    return LineChange(sign, tuple(short), start + 1)


def bytes_changes(old: bytes, new: bytes) -> list[BytesChange]:
    """The ranges of bytes in which the two differ, at most ten; the last goes up to the last difference."""
    if len(old) != len(new):
        start, end = common_ends(memoryview(old), memoryview(new))
        return [_bytes_change(old, new, start, len(old) - end, len(new) - end)]
    found: list[tuple[int, int]] = []
    for start, stop, _ in runs(memoryview(old), memoryview(new), 1):
        if found and (start - found[-1][1] <= _NEAR or len(found) == _MOST_CHANGES):
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return [_bytes_change(old, new, start, stop, stop) for start, stop in found]


def _bytes_change(old: bytes, new: bytes, start: int, old_stop: int, new_stop: int) -> BytesChange:
    before = old[start : min(old_stop, start + _MOST_BYTES)].hex()
    after = new[start : min(new_stop, start + _MOST_BYTES)].hex()
    return BytesChange(start, old_stop - start, new_stop - start, before, after)
