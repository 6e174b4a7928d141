"""Similar: the known names that somebody may have meant, for every "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final
from urllib.parse import unquote

_MOST_COMPARED: Final = 10_000  # names; a comparison takes some microseconds
_NEAR: Final = 0.7  # of 1 for equal names, as `difflib` computes it; one other character is near, too


def similar(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Those of the known names that `name` most likely stands for; none if no name is near.

    They are the names that are equal but for case, quoting and punctuation. If there are none, those that
    begin so. If there are none either, those at a small distance for their length.
    """
    plain = {other: _plain(other) for other in known}
    wanted = _plain(name)
    if not wanted:
        return []
    if equal := [other for other, its in plain.items() if its == wanted]:
        return equal[:most]
    if begin := nsmallest(most, (other for other, its in plain.items() if its.startswith(wanted)), key=len):
        return begin
    from difflib import SequenceMatcher  # late, for a quick `import vstate`

    matcher = SequenceMatcher(b=wanted)
    near = []
    for other in [*plain][:_MOST_COMPARED]:
        # Names in one directory are not near for its sake.
        ours, theirs = _behind_common(wanted, plain[other])
        matcher.set_seqs(theirs, ours)
        least = min(_NEAR, max(1 - 1 / len(ours), 0.5)) if ours else 1
        if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= least <= matcher.ratio():
            near.append((-matcher.ratio(), other))
    return [other for _, other in nsmallest(most, near)]


def _plain(name: str) -> str:
    return "".join(char for char in unquote(name).casefold() if char.isalnum() or char == "/")


def _behind_common(one: str, other: str) -> tuple[str, str]:
    """Both texts without the directories that they have in common."""
    for end in range(one.count("/"), 0, -1):
        begin = "/".join(one.split("/")[:end]) + "/"
        if other.startswith(begin):
            return one[len(begin) :], other[len(begin) :]
    return one, other
