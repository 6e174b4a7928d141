"""Merge policies: each merges two changes of one value, as a function of the values alone."""

from __future__ import annotations

import cmath
import functools
import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, localcontext
from enum import Enum
from fractions import Fraction
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from vstate.values.absent import ABSENT, Unmergeable
from vstate.values.alignment import Aligner, split_lines
from vstate.values.deep import DICTS, is_one_of, merge_by_path
from vstate.values.entry import type_name
from vstate.values.file import File
from vstate.values.tokens import CLASH, Tokens, same

Policy = Callable[[Any, Any, Any], Any]
"""(base, ours, theirs) -> the merged value; base may be ABSENT. A policy changes no argument, and its result
may share parts with them."""

_ITEMS: Final = (list, tuple)
_MOST_STEPS: Final = 2_000_000  # to align one side: less than a second
# Sums are exact or refused: the program's own context may round.
_EXACT: Final = Context(prec=1000, traps=[Inexact, InvalidOperation, Overflow])


# --- common to all policies


def _policy(decide: Policy) -> Policy:
    """`decide` with two rules around it.

    A side that removed the value makes Unmergeable. If `decide` cannot merge, but only one side changed, or
    both changed alike, that change is the result.
    """

    @functools.wraps(decide)
    def policy(base: Any, ours: Any, theirs: Any) -> Any:
        if ours is ABSENT or theirs is ABSENT:
            raise Unmergeable("one side removed it, the other changed it")
        try:
            return decide(base, ours, theirs)
        except Unmergeable:
            value = Tokens().only_change(base, ours, theirs)
            if value is CLASH:
                raise
            return value

    return policy


def _common_type(policy: str, kinds: Sequence[type], base: Any, ours: Any, theirs: Any) -> Callable[..., Any]:
    """The one type of both sides and the base, which must be one of `kinds`, if there are any."""
    for value in (ours, theirs):
        if kinds and not is_one_of(value, kinds):
            raise Unmergeable(f"{policy} cannot merge a value of type {type_name(value)}")
    for value in (theirs, base):
        if type(value) is not type(ours) and value is not ABSENT:
            raise Unmergeable(f"{policy} cannot merge {type_name(ours)} with {type_name(value)}")
    return type(ours)


# --- counter


@_policy
def _counter(base: Any, ours: Any, theirs: Any) -> Any:
    """A number: the result is the base plus the differences of both sides. An absent base counts as 0."""
    old = 0 if base is ABSENT else base
    for value in (old, ours, theirs):
        number = isinstance(value, int | float | complex | Decimal | Fraction)
        if not number or isinstance(value, bool | Enum):
            raise Unmergeable(f"counter cannot add values of type {type_name(value)}")
    # If one side changed, its value is the result: a sum of floats might differ in the last bits.
    if same(old, ours):
        return theirs
    if same(old, theirs):
        return ours
    try:
        with localcontext(_EXACT):
            total = ours + theirs - old
    except (TypeError, ArithmeticError, ValueError) as error:
        names = ", ".join(sorted({type_name(value) for value in (old, ours, theirs)}))
        raise Unmergeable(f"counter cannot add these numbers ({names}) exactly") from error
    finite = total.is_finite() if isinstance(total, Decimal) else isinstance(total, int | Fraction)
    if not finite and not cmath.isfinite(total):
        raise Unmergeable(f"the sum is not finite: {total}")
    return total


# --- union


@_policy
def _union(base: Any, ours: Any, theirs: Any) -> Any:
    """Members, items or entries that both sides kept or one side added; those that one side removed are gone.

    Items of a list keep ours' order, followed by theirs' additions. An item is in the list or not, however
    often; but if one side left the list alone, the result is the other side's list. Entries of a dict are
    merged by key; the two sides may not change one entry differently.
    """
    kind = _common_type("union", (set, frozenset, *_ITEMS, *DICTS), base, ours, theirs)
    if kind in DICTS:
        return merge_by_path(base, ours, theirs, inner=False)
    tokens = Tokens()
    old = [] if base is ABSENT else [tokens.of(item) for item in base]
    mine, other = [tokens.of(item) for item in ours], [tokens.of(item) for item in theirs]
    if kind in _ITEMS and old in (mine, other):
        return theirs if old == mine else ours
    there, before, here = set(other), set(old), set(mine)
    merged = [item for item, token in zip(ours, mine, strict=True) if token in there or token not in before]
    for item, token in zip(theirs, other, strict=True):
        if token not in before and token not in here:
            here.add(token)
            merged.append(item)
    result = kind(merged)
    if kind not in _ITEMS and (len(result) < len(merged) or any(map(_repeats, (old, mine, other)))):
        raise Unmergeable(
            "some of its members are equal but not the same, such as 1 and True, or the reverse"
        )
    return result


def _repeats(tokens: Sequence[Hashable]) -> bool:
    return len(set(tokens)) < len(tokens)


# --- deep


@_policy
def _deep(base: Any, ours: Any, theirs: Any) -> Any:
    """Dicts and objects, merged by path. Anything else, a list too, is a leaf that only one side may change.

    An object is merged by its fields: a dataclass, a pydantic or attrs class, a named tuple, a plain class.
    Keys keep ours' order, then theirs' additions; or theirs' order, if ours did not change the keys.
    """
    _common_type("deep", (), base, ours, theirs)
    return merge_by_path(base, ours, theirs, inner=True)


# --- append


def _sequence(base: Any, ours: Any, theirs: Any) -> tuple[Callable[..., Any], Any]:
    """The type of the sequences, and the base; an absent one is empty."""
    kind = _common_type("append", (list, tuple, str, bytes, bytearray), base, ours, theirs)
    return kind, kind() if base is ABSENT else base


@_policy
def _append(base: Any, ours: Any, theirs: Any) -> Any:
    """A sequence to which both sides appended: the base, then ours' additions, then theirs'."""
    kind, start = _sequence(base, ours, theirs)
    tokens = Tokens()
    return _joined(kind, [start, *(_appended(tokens, start, side) for side in (ours, theirs))])


def append_in_order(
    base: Any, steps_ours: Sequence[tuple[Any, Any]], steps_theirs: Sequence[tuple[Any, Any]]
) -> Any:
    """The base, then the additions of both sides, in the order of time.

    The steps of a side are the (time, value) of the sequence along its commits, oldest first; a side without
    steps did not change it. The additions of one step stay together, each side keeps its own order, and ours
    comes first at equal times. If a step does not begin with the step before, the additions of its side are
    one piece at the side's last time. If an earlier merge added to a list in the middle, the result is ours,
    then the items that are new in theirs. Raises Unmergeable where the policy "append" does. The result may
    share parts with the steps.
    """
    if not steps_theirs:
        return steps_ours[-1][1] if steps_ours else base
    if not steps_ours:
        return steps_theirs[-1][1]

    @_policy
    def in_order(base: Any, ours: Any, theirs: Any) -> Any:
        kind, start = _sequence(base, ours, theirs)
        tokens = Tokens()
        try:
            pieces = [_pieces(tokens, start, steps) for steps in (steps_ours, steps_theirs)]
        except Unmergeable:
            if kind not in _ITEMS:
                raise
            # Earlier merges put items in between, each in the order of its own two sides.
            _without(tokens, start, ours)
            return _joined(kind, [ours, _without(tokens, start, theirs)])
        # Not sorted: a merge keeps the order of each side even if its times do not ascend.
        return _joined(kind, [start, *(piece for _, piece in heapq.merge(*pieces, key=itemgetter(0)))])

    return in_order(base, steps_ours[-1][1], steps_theirs[-1][1])


@_policy
def append_onto(base: Any, change: Any, branch: Any) -> Any:
    """The branch's sequence, then the items that the change appended to the base.

    The branch keeps its order, which others have seen. Unmergeable if the change did more than append.
    """
    kind, start = _sequence(base, change, branch)
    return _joined(kind, [branch, _appended(Tokens(), start, change)])


def _pieces(tokens: Tokens, start: Any, steps: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    time, last = steps[-1]
    whole = [(time, _appended(tokens, start, last))]
    pieces = []
    for time, value in steps:
        try:
            pieces.append((time, _appended(tokens, start, value)))
        except Unmergeable:
            return whole
        start = value
    return pieces


def _appended(tokens: Tokens, start: Any, value: Any) -> Any:
    """The part of `value` behind `start`; Unmergeable if `value` does not begin with it."""
    if type(value) is not type(start):
        raise Unmergeable(f"{type_name(start)} became {type_name(value)}")
    if type(start) not in _ITEMS:
        at = len(start) if value.startswith(start) else 0
        where = ""
    else:
        pairs = enumerate(zip(start, value, strict=False))
        at = next((i for i, (old, new) in pairs if not tokens.same(old, new)), min(len(start), len(value)))
        where = f"[{at}]"
    if at < len(start):
        raise Unmergeable(_NOT_APPENDED, where)
    return value[at:]


_NOT_APPENDED: Final = "a side did not only append: it changed or removed a part of the base"


def _without(tokens: Tokens, start: Sequence[Any], value: Sequence[Any]) -> list[Any]:
    """The items of `value` without those of `start`, in any order; Unmergeable if one is missing."""
    left, added = Counter(map(tokens.of, start)), []
    for item in value:
        token = tokens.of(item)
        if left[token]:
            left[token] -= 1
        else:
            added.append(item)
    if left.total():
        raise Unmergeable(_NOT_APPENDED)
    return added


def _joined(kind: Callable[..., Any], parts: Sequence[Any]) -> Any:
    if kind in _ITEMS:
        return kind(item for part in parts for item in part)
    return kind().join(parts)


# --- text


@_policy
def _text(base: Any, ours: Any, theirs: Any) -> Any:
    """Text, merged by lines, as diff3 does it: see `merge_lines`. A File is its text, with a kind."""
    if _common_type("text", (str, File), base, ours, theirs) is File:
        return _file(base, ours, theirs)
    return _lines("" if base is ABSENT else base, ours, theirs)


def _lines(base: str, ours: str, theirs: str) -> str:
    merged = merge_lines(base, ours, theirs)
    if isinstance(merged, Overlap):
        raise Unmergeable(str(merged))
    return merged


def _file(base: Any, ours: File, theirs: File) -> File:
    """A file of text, merged by lines, of the kind that one side gave it."""
    if base is ABSENT:
        if ours.kind != theirs.kind:
            raise Unmergeable("the sides added files of different kinds")
        base = File(b"", ours.kind)
    old, mine, other = (side.text() for side in (base, ours, theirs))
    if "link" in (base.kind, ours.kind, theirs.kind):
        raise Unmergeable("text cannot merge a link")
    if old is None or mine is None or other is None:
        raise Unmergeable("text cannot merge a file that is no text of UTF-8")
    kind = theirs.kind if ours.kind == base.kind else ours.kind
    return File(_lines(old, mine, other).encode(), kind)


class Overlap(NamedTuple):
    """Both sides changed the lines [first, last) of the base, differently; lines are counted from 0.

    If `first` equals `last`, both inserted different lines in front of that line.
    """

    first: int
    last: int

    def __str__(self) -> str:
        if self.last > self.first + 1:
            return f"both sides changed lines {self.first + 1} to {self.last} of the base"
        if self.last > self.first:
            return f"both sides changed line {self.last} of the base"
        where = f"after line {self.first} of the base" if self.first else "at the start"
        return f"both sides inserted different lines {where}"


class _Change(NamedTuple):
    """The lines [start, stop) of the base became `lines`."""

    start: int
    stop: int
    lines: list[str]


def merge_lines(base: str, ours: str, theirs: str) -> str | Overlap:
    """The base with the changes of both sides, or the first place where these overlap or touch.

    A change that both sides made alike is taken once. Lines end with "\\n", which is part of the line:
    "\\r\\n" and a last line without an end stay unchanged. The work is bounded: where too many lines
    differ, a range of lines counts as one change. That may make an overlap, never a wrong line.
    """
    old = split_lines(base)
    mine, other = (
        [
            _Change(start, stop, side[first:last])
            for start, stop, first, last in Aligner(_MOST_STEPS).changes(old, side)
        ]
        for side in (split_lines(ours), split_lines(theirs))
    )
    merged: list[str] = []
    done = i = j = 0
    while i < len(mine) or j < len(other):
        start = stop = min(change.start for change in (*mine[i : i + 1], *other[j : j + 1]))
        first, second = i, j
        while True:
            if i < len(mine) and mine[i].start <= stop:
                stop = max(stop, mine[i].stop)
                i += 1
            elif j < len(other) and other[j].start <= stop:
                stop = max(stop, other[j].stop)
                j += 1
            else:
                break
        changed = _applied(old, start, stop, mine[first:i] or other[second:j])
        if first < i and second < j and changed != _applied(old, start, stop, other[second:j]):
            return Overlap(start, stop)
        merged += old[done:start] + changed
        done = stop
    return "".join(merged + old[done:])


def _applied(base: Sequence[str], start: int, stop: int, changes: Sequence[_Change]) -> list[str]:
    """The lines [start, stop) of the base after these changes of one side."""
    lines: list[str] = []
    for change in changes:
        lines += base[start : change.start]
        lines += change.lines
        start = change.stop
    return [*lines, *base[start:stop]]


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {"counter": _counter, "union": _union, "append": _append, "deep": _deep, "text": _text}
)
"""The policies by name. Each raises Unmergeable when it cannot decide, as when one side removed the value.

Call a policy even if both sides have the same value: both may have counted one more.
"""
