"""What changed inside a value, by path."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, NamedTuple

from vstate.values.inert import Array, Global, Record, preview, printable

__all__ = ["Detail", "details"]

Kind = Literal["added", "removed", "modified"]

_SIGNS: Final = {"added": "+", "removed": "-", "modified": "~"}
_SHOWN: Final = 60  # characters of each side in str(Detail)
_MOST_PAIRS: Final = 2_000_000
_MOST_STEPS: Final = 3_000_000  # of aligning all the lists
_MOST_EDITS: Final = 700  # items of two lists that are not in both; takes time and memory by their square
_LONGEST_ALIGNED: Final = 200_000  # items of both lists, without those equal at both ends
_MOST_SKETCHED: Final = 3_000_000  # parts of values that are looked at to align lists
_SKETCH: Final = 200  # parts of one value
_SKETCH_DEPTH: Final = 8
_BLOCK: Final = 4096  # bytes of an array compared at a time
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ATOMS: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    memoryview,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
)


@dataclass(frozen=True)
class Detail:
    """One change: at `path`, "" for the value itself. `old` is None when added, `new` when removed."""

    path: str
    kind: Kind
    old: object = None
    new: object = None
    note: str = ""
    """More about it, such as how many elements of an array differ."""

    def __str__(self) -> str:
        where = f"{_SIGNS[self.kind]} {self.path}: " if self.path else f"{_SIGNS[self.kind]} "
        note = f" ({self.note})" if self.note else ""
        if self.kind == "added":
            return f"{where}{_brief(self.new)}{note}"
        if self.kind == "removed":
            return f"{where}{_brief(self.old)}{note}"
        old, new = _brief_pair(self.old, self.new)
        return f"{where}{old} -> {new}{note}"


def details(old: object, new: object, *, limit: int = 1000) -> list[Detail]:
    """What turns `old` into `new`, both as `vstate.values.inert.read` returns them; at most `limit` changes.

    Entries are matched by key, the fields of records by name, and the items of lists by aligning
    equal ones, so that an insertion is one added item; an index is one into the new list, for
    a removed item into the old one. A text is a whole. Types count: 1, 1.0 and True differ; NaN is NaN.
    What several places share is compared, and shown, at the first of them. The work is bounded: of
    two values too large to compare part by part, the rest is one modification.
    """
    return list(islice(_Comparison().run(old, new), max(limit, 0)))


class _Path(NamedTuple):
    """A step and all before it; written out only when a change is found, since most paths lead to none."""

    before: _Path | None
    step: str

    def __str__(self) -> str:
        steps: list[str] = []
        path: _Path | None = self
        while path is not None:
            steps.append(path.step)
            path = path.before
        return "".join(reversed(steps)).removeprefix(".")


_Pair = tuple[_Path | None, object, object]


class _Comparison:
    """Walks two values side by side, without recursion, in the order in which they would be printed."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.pairs = _MOST_PAIRS
        self.steps = _MOST_STEPS
        self.sketched = _MOST_SKETCHED

    def run(self, old: object, new: object) -> Iterator[Detail]:
        waiting: list[Iterator[_Pair | Detail]] = [iter(((None, old, new),))]
        while waiting:
            for found in waiting[-1]:
                if isinstance(found, Detail):
                    yield found
                    continue
                path, before, after = found
                self.pairs -= 1
                if before is after or _same_atom(before, after):
                    continue
                if self.pairs < 0:
                    yield _detail(path, "modified", before, after, "too large to compare further")
                    return
                inner = self.compare(path, before, after)
                if inner is None:
                    yield _detail(path, "modified", before, after)
                    continue
                key = (id(before), id(after))
                if key not in self.seen:
                    self.seen.add(key)
                    waiting.append(inner)
                    break
            else:
                waiting.pop()

    def compare(self, path: _Path | None, old: object, new: object) -> Iterator[_Pair | Detail] | None:
        """The pairs of parts of two containers of one type; None when they have no parts in common."""
        if isinstance(old, Array) and isinstance(new, Array) and old.type == new.type:
            return self.arrays(path, old, new)
        if isinstance(old, Record) and isinstance(new, Record):
            alike = old.type == new.type and old.called == new.called
            return self.records(path, old, new) if alike else None
        if isinstance(old, Global) and isinstance(new, Global) and old.name == new.name:
            return self.named(path, old.fields, new.fields)
        if isinstance(old, dict) and isinstance(new, dict):
            return self.entries(path, old, new)
        if isinstance(old, list) and isinstance(new, list):
            return self.items(path, old, new)
        if isinstance(old, tuple) and isinstance(new, tuple):
            return self.items(path, old, new)
        if isinstance(old, set | frozenset) and type(old) is type(new):
            assert isinstance(new, set | frozenset)
            return self.members(path, old, new)
        return None

    # --- one generator for each kind of container

    def records(self, path: _Path | None, old: Record, new: Record) -> Iterator[_Pair | Detail]:
        if len(old.args) == len(new.args) == 1 and not (old.fields or new.fields):
            # `Decimal('1')` has nothing but its argument: that needs no name.
            yield path, old.args[0], new.args[0]
        else:
            yield from self.items(_Path(path, ".args"), old.args, new.args)
        yield from self.named(path, old.kwargs, new.kwargs)
        yield from self.named(path, old.fields, new.fields)
        yield from self.items(path, old.items or [], new.items or [])
        yield from self.entries(path, old.entries or {}, new.entries or {})
        yield _Path(path, ".state"), old.state, new.state

    def named(
        self, path: _Path | None, old: Mapping[str, object], new: Mapping[str, object]
    ) -> Iterator[_Pair | Detail]:
        for name, before in old.items():
            step = _Path(path, _step(name))
            yield (step, before, new[name]) if name in new else _detail(step, "removed", before, None)
        for name, after in new.items():
            if name not in old:
                yield _detail(_Path(path, _step(name)), "added", None, after)

    def entries(
        self, path: _Path | None, old: Mapping[object, object], new: Mapping[object, object]
    ) -> Iterator[_Pair | Detail]:
        # By sketch: a record is another object in the other value, and 1 and True must not meet.
        later = dict(self.by_token(new))
        for token, key in self.by_token(old):
            step = _Path(path, _step(key))
            if token in later:
                yield step, old[key], new[later.pop(token)]
            else:
                yield _detail(step, "removed", old[key], None)
        for key in later.values():
            yield _detail(_Path(path, _step(key)), "added", None, new[key])

    def members(
        self, path: _Path | None, old: Iterable[object], new: Iterable[object]
    ) -> Iterator[_Pair | Detail]:
        later = dict(self.by_token(new))
        for token, member in self.by_token(old):
            step = _Path(path, f"{{{_brief(member)}}}")
            if token not in later:
                yield _detail(step, "removed", member, None)
            else:
                yield step, member, later.pop(token)
        for member in later.values():
            yield _detail(_Path(path, f"{{{_brief(member)}}}"), "added", None, member)

    def items(
        self, path: _Path | None, old: Sequence[object], new: Sequence[object]
    ) -> Iterator[_Pair | Detail]:
        for before, after in self.aligned(old, new):
            if before is None:
                assert after is not None
                yield _detail(_Path(path, f"[{after}]"), "added", None, new[after])
            elif after is None:
                yield _detail(_Path(path, f"[{before}]"), "removed", old[before], None)
            elif not _same_atom(old[before], new[after]):
                yield _Path(path, f"[{after}]"), old[before], new[after]

    def arrays(self, path: _Path | None, old: Array, new: Array) -> Iterator[_Pair | Detail]:
        shape = old.fields.get("shape")
        alike = all(old.fields.get(name) == new.fields.get(name) for name in ("dtype", "order"))
        if not alike or shape != new.fields.get("shape") or old.raw is None or new.raw is None:
            yield from self.records(path, old, new)
            return
        count = _differing(old.raw, new.raw, old.itemsize)
        if count:
            total = len(old.raw) // old.itemsize
            yield _detail(path, "modified", old, new, f"{count} of {total} elements differ")

    # --- aligning lists

    def aligned(
        self, old: Sequence[object], new: Sequence[object]
    ) -> Iterator[tuple[int | None, int | None]]:
        """Pairs of indices, None where one side has nothing. Every pair still has to be compared."""
        shorter = min(len(old), len(new))
        start = 0
        while start < shorter and self.alike(old[start], new[start]):
            yield start, start
            start += 1
        end = 0
        while end < shorter - start and self.alike(old[-1 - end], new[-1 - end]):
            end += 1
        yield from self.middle(old, new, (start, len(old) - end), (start, len(new) - end))
        for back in range(end, 0, -1):
            yield len(old) - back, len(new) - back

    def middle(
        self, old: Sequence[object], new: Sequence[object], olds: tuple[int, int], news: tuple[int, int]
    ) -> Iterator[tuple[int | None, int | None]]:
        height, breadth = olds[1] - olds[0], news[1] - news[0]
        matches: list[tuple[int, int]] = []
        if (
            height
            and breadth
            and 2 < height + breadth <= _LONGEST_ALIGNED
            and min(self.steps, self.sketched) > 0
        ):
            matches, self.steps = _common(
                [self.token(item) for item in old[olds[0] : olds[1]]],
                [self.token(item) for item in new[news[0] : news[1]]],
                self.steps,
            )
        at, to = olds[0], news[0]
        for row, column in [*matches, (height, breadth)]:
            stop, until = olds[0] + row, news[0] + column
            both = min(stop - at, until - to)
            yield from ((at + step, to + step) for step in range(both))
            yield from ((index, None) for index in range(at + both, stop))
            yield from ((None, index) for index in range(to + both, until))
            if row < height:
                yield stop, until
            at, to = stop + 1, until + 1

    def alike(self, old: object, new: object) -> bool:
        """Whether two items look equal enough to be the same item."""
        if old is new or _same_atom(old, new):
            return True
        if type(old) is not type(new) or isinstance(old, _ATOMS):
            return False
        # Without means to look further, lists are aligned by index.
        return self.sketched < 0 or self.token(old) == self.token(new)

    def by_token(self, keys: Iterable[object]) -> Iterator[tuple[object, object]]:
        """Each key behind its token, which is numbered where several have the same."""
        counts: dict[object, int] = {}
        for key in keys:
            token = self.token(key)
            if type(token) is not str:
                counts[token] = count = counts.get(token, 0) + 1
                token = (token, count)
            yield token, key

    def token(self, value: object) -> object:
        """Something hashable that is equal for equal values, and most often only for those."""
        if type(value) is str:
            return value
        left = [_SKETCH]
        token = _sketch(value, left, 0)
        self.sketched -= _SKETCH - left[0]
        return token


def _sketch(value: object, left: list[int], depth: int) -> object:
    """The type and parts of `value`, down to some depth and number; `left` counts down the parts."""
    left[0] -= 1
    kind = type(value).__name__
    if isinstance(value, bytearray | memoryview):
        return (kind, bytes(value[:1000]) if isinstance(value, bytearray) else value.nbytes)
    if isinstance(value, _ATOMS):
        return (kind, "nan") if value != value else (kind, value)
    if left[0] < 0 or depth >= _SKETCH_DEPTH:
        return (kind,)
    deeper = depth + 1
    if isinstance(value, list | tuple):
        return (kind, len(value), *_sketches(value, left, deeper))
    if isinstance(value, set | frozenset):
        # In no order, so either all or none.
        whole = len(value) <= left[0]
        return (kind, len(value), frozenset(_sketches(value, left, deeper)) if whole else None)
    if isinstance(value, dict):
        whole = len(value) <= left[0]
        return (kind, len(value), frozenset(_pairs(value, left, deeper)) if whole else None)
    if isinstance(value, Global):
        return (kind, value.name)
    if isinstance(value, Record):
        parts = (value.args, value.kwargs, value.fields, value.items, value.entries, value.state)
        return (kind, value.type, value.called, *_sketches(parts, left, deeper))
    return (kind,)


def _sketches(values: Iterable[object], left: list[int], depth: int) -> Iterator[object]:
    for value in values:
        if left[0] < 0:
            return
        yield _sketch(value, left, depth)


def _pairs(entries: Mapping[object, object], left: list[int], depth: int) -> Iterator[object]:
    # Each entry by the same allowance, whatever the order in which a dict has them.
    share = max(left[0] // max(len(entries), 1), 2)
    for key, value in entries.items():
        own = [share]
        yield (_sketch(key, own, depth), _sketch(value, own, depth))
        left[0] -= share - max(own[0], 0)


def _common(old: Sequence[object], new: Sequence[object], steps: int) -> tuple[list[tuple[int, int]], int]:
    """The index pairs of a longest common subsequence, and what is left of `steps`.

    No pairs when there are more than _MOST_EDITS other items, or the steps do not suffice. The algorithm is
    that of E. Myers, "An O(ND) difference algorithm and its variations" (1986): quick for few differences.
    """
    numbers: dict[object, int] = {}
    rows = [numbers.setdefault(token, len(numbers)) for token in old]
    columns = [numbers.setdefault(token, len(numbers)) for token in new]
    height, breadth = len(rows), len(columns)
    # The row that can be reached on each diagonal (row - column) with so many edits.
    reached = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(height + breadth, _MOST_EDITS) + 1):
        history.append(reached.copy())
        for diagonal in range(-edits, edits + 1, 2):
            source = _before(reached, diagonal, edits)
            start = row = reached[source] + (source < diagonal)
            column = row - diagonal
            while row < height and column < breadth and rows[row] == columns[column]:
                row += 1
                column += 1
            reached[diagonal] = row
            steps -= row - start + 1
            if row >= height and column >= breadth:
                return _retraced(history, height, breadth), steps
        if steps < 0:
            break
    return [], steps


def _before(reached: Mapping[int, int], diagonal: int, edits: int) -> int:
    """The diagonal from which `diagonal` is reached with one more edit."""
    if diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1]):
        return diagonal + 1
    return diagonal - 1


def _retraced(history: Sequence[Mapping[int, int]], row: int, column: int) -> list[tuple[int, int]]:
    matches: list[tuple[int, int]] = []
    for edits in range(len(history) - 1, -1, -1):
        diagonal = _before(history[edits], row - column, edits)
        earlier = history[edits][diagonal]
        while row > earlier and column > earlier - diagonal:
            row -= 1
            column -= 1
            matches.append((row, column))
        row, column = earlier, earlier - diagonal
    matches.reverse()
    return matches


def _same_atom(old: object, new: object) -> bool:
    if type(old) is not type(new) or not isinstance(old, _ATOMS):
        return False
    if isinstance(old, datetime.date | datetime.time):
        # Equal moments in two zones are two values.
        return repr(old) == repr(new)
    return old == new or (old != old and new != new)


def _differing(old: memoryview, new: memoryview, itemsize: int) -> int:
    """How many elements of two arrays differ in their bytes."""
    block = max(_BLOCK // itemsize, 1) * itemsize if itemsize else 1
    count = 0
    for start in range(0, len(old), block):
        before, after = old[start : start + block], new[start : start + block]
        if before != after:
            a, b = bytes(before), bytes(after)
            count += sum(a[at : at + itemsize] != b[at : at + itemsize] for at in range(0, len(a), itemsize))
    return count


def _detail(path: _Path | None, kind: Kind, old: object, new: object, note: str = "") -> Detail:
    return Detail("" if path is None else str(path), kind, old, new, note)


def _step(key: object) -> str:
    if not isinstance(key, str):
        return f"[{_brief(key)}]"
    if _IDENTIFIER.fullmatch(key) and len(key) <= _SHOWN:
        return f".{key}"
    inside = printable(key if len(key) <= _SHOWN else f"{key[:_SHOWN]}…").replace('"', '\\"')
    return f'["{inside}"]'


def _brief(value: object) -> str:
    text = preview(value, width=None, max_depth=3, max_items=5)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _brief_pair(old: object, new: object) -> tuple[str, str]:
    """Both sides in brief, long texts from where they begin to differ."""
    before, after = _brief(old), _brief(new)
    if before != after or not isinstance(old, str) or not isinstance(new, str):
        return before, after
    same = _common_prefix(old, new)
    start = max(same - 15, 0)
    return f"…{_brief(old[start : start + 200])}", f"…{_brief(new[start : start + 200])}"


def _common_prefix(old: str, new: str) -> int:
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
