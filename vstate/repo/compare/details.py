"""Details: the changes inside a value, by path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from vstate.arguments import check_limit
from vstate.repo.compare.arrays import Found, differences
from vstate.repo.compare.matching import Matching, same_atom, size_of
from vstate.repo.compare.steps import brief, member_step, step_of
from vstate.repo.compare.tables import TableComparison
from vstate.values.alignment import common_ends
from vstate.values.arrays import Array
from vstate.values.entry import FILE, Entry
from vstate.values.instance import Global, Instance
from vstate.values.tables import Table, is_table, table_of

Kind = Literal["added", "removed", "modified"]

_SIGNS: Final = {"added": "+", "removed": "-", "modified": "~"}
_LONGEST_PATH: Final = 500  # characters, and its last step
_MOST_WORK: Final = 5_000_000  # parts of values, and half kilobytes of texts, that are compared
_KEY_WORK: Final = 2_500_000  # to match keys and members
_PAIR_WORK: Final = 10  # for each pair of containers, besides their parts
_TOO_LARGE: Final = "too large to compare further"


@dataclass(frozen=True)
class Detail:
    """One change: at `path`, "" for the value itself. `old` is None when added, `new` when removed."""

    path: str
    kind: Kind
    old: object = None
    new: object = None
    note: str = ""
    """More about the change, such as the number of different elements of an array."""

    def __str__(self) -> str:
        where = f"{_SIGNS[self.kind]} {self.path}: " if self.path else f"{_SIGNS[self.kind]} "
        note = f" ({self.note})" if self.note else ""
        if self.kind == "added":
            return f"{where}{brief(self.new)}{note}"
        if self.kind == "removed":
            return f"{where}{brief(self.old)}{note}"
        old, new = _brief_pair(self.old, self.new)
        return f"{where}{old} -> {new}{note}"


def details(old: object, new: object, *, limit: int = 1000) -> list[Detail]:
    """The changes that turn `old` into `new`, both as `inert.read` returns them; at most `limit` changes.

    Entries are matched by key, fields by name, and items of lists by aligning equal ones, so that an
    insertion is one added item. An index counts in the new list, or in the old list for a removed item. A
    text is a whole. Types count: 1, 1.0 and True differ; NaN is NaN. A value in several places is compared,
    and shown, at the first of them.

    Arrays are compared by element: `[3]`, `[2][5]`, or a range, `[10:20]`. Tables are the frames of pandas
    and the tables of pyarrow. They are compared by column and row: `price[3]` is the cell of the column price
    in the row labelled 3, and `rows[3]` is that row. After ten changes, one change stands for the rest of an
    array or a column, and its `note` counts them.

    The work is bounded: if two values are too large, the rest of them is one modification.
    """
    return list(islice(_Comparison().run(old, new), check_limit(limit)))


def kind_change(old: Entry, new: Entry) -> list[Detail]:
    """The change of the kind of a File, which its text or bytes do not show."""
    if not old.codec == new.codec == FILE or old.type == new.type:
        return []
    return [Detail("", "modified", old.type, new.type, "the kind of the file")]


class _Path:
    """A step and the path before it. It becomes text only for a change, since most paths lead to none."""

    __slots__ = ("_before", "_key", "_show", "_text")

    def __init__(self, before: _Path | None, show: Callable[[Any], str], key: object) -> None:
        self._before = before
        self._show = show
        self._key = key
        self._text = ""

    @property
    def step(self) -> str:
        if not self._text:
            self._text = self._show(self._key)
        return self._text

    def __str__(self) -> str:
        steps = [self.step]
        length = len(self.step)
        path = self._before
        while path is not None:
            length += len(path.step)
            if length > _LONGEST_PATH:
                steps.append("…")
                break
            steps.append(path.step)
            path = path._before
        return "".join(reversed(steps)).removeprefix(".")


_Pair = tuple[_Path | None, object, object]
_NO_ITEMS: Final[list[object]] = []
_NO_ENTRIES: Final[dict[object, object]] = {}


class _Comparison:
    """Walks two values side by side, without recursion, in the order of their text."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        """The compared pairs of containers, both ids in one number to save memory."""
        self.left = _MOST_WORK
        self.matching = Matching()
        self.keys = Matching(_KEY_WORK)

    def run(self, old: object, new: object) -> Iterator[Detail]:
        waiting: list[Iterator[_Pair | Detail]] = [iter(((None, old, new),))]
        while waiting:
            for found in waiting[-1]:
                if isinstance(found, Detail):
                    yield found
                    continue
                path, before, after = found
                if before is after:
                    continue
                self.left -= _PAIR_WORK
                if self.left < 0:
                    yield _detail(path, "modified", before, after, _TOO_LARGE)
                    return
                if self.same(before, after):
                    continue
                inner = self.compare(path, before, after)
                if inner is None:
                    yield _detail(path, "modified", before, after)
                    continue
                key = id(before) << 64 | id(after)
                if key not in self.seen:
                    self.seen.add(key)
                    waiting.append(inner)
                    break
            else:
                waiting.pop()

    def same(self, old: object, new: object) -> bool:
        """Whether two parts are surely the same: one object, equal atoms, or empty containers."""
        if old is new:
            return True
        if type(old) is not type(new):
            return False
        if isinstance(old, list | dict | tuple | set | frozenset):
            return not old and not new
        self.left -= 1 + size_of(old)
        return same_atom(old, new)

    def compare(self, path: _Path | None, old: object, new: object) -> Iterator[_Pair | Detail] | None:
        """The pairs of parts of two containers of one type; None when they have no parts in common."""
        if is_table(old) and is_table(new):
            before, after = table_of(old), table_of(new)
            if before is not None and after is not None:
                return self.tables(path, before, after)
        if isinstance(old, Array) and isinstance(new, Array) and old.type == new.type:
            return self.arrays(path, old, new)
        if isinstance(old, Instance) and isinstance(new, Instance):
            alike = old.type == new.type and old.called == new.called
            return self.instances(path, old, new) if alike else None
        if isinstance(old, Global) and isinstance(new, Global) and old.name == new.name:
            return self.keyed(path, old.fields, new.fields, step_of)
        if isinstance(old, dict) and isinstance(new, dict):
            return self.keyed(path, old, new, step_of)
        if isinstance(old, list | tuple) and type(old) is type(new):
            assert isinstance(new, list | tuple)
            return self.items(path, old, new)
        if isinstance(old, set | frozenset) and type(old) is type(new):
            assert isinstance(new, set | frozenset)
            return self.keyed(path, old, new, member_step)
        return None

    # --- one generator for each kind of container

    def instances(self, path: _Path | None, old: Instance, new: Instance) -> Iterator[_Pair | Detail]:
        if len(old.args) == len(new.args) == 1 and not (old.fields or new.fields):
            # `Decimal('1')` has only its argument, which needs no step.
            yield path, old.args[0], new.args[0]
        else:
            yield _Path(path, str, ".args"), old.args, new.args
        yield from self.keyed(path, old.kwargs, new.kwargs, step_of)
        yield from self.keyed(path, old.fields, new.fields, step_of)
        # As pairs, since several instances may share them.
        yield path, old.items or _NO_ITEMS, new.items or _NO_ITEMS
        yield path, old.entries or _NO_ENTRIES, new.entries or _NO_ENTRIES
        yield _Path(path, str, ".state"), old.state, new.state

    def keyed(
        self,
        path: _Path | None,
        old: Collection[Any],
        new: Collection[Any],
        show: Callable[[Any], str],
    ) -> Iterator[_Pair | Detail]:
        """The values of two dicts by key, or the members of two sets."""
        self.left -= len(old) + len(new)
        # By token: an Instance is another object in the other value, and 1 is not True.
        later = dict(self.by_token(new, old))
        unmatched = len(new) - len(later) + len(old)  # more than none if the work is spent
        for token, key in self.by_token(old, later):
            unmatched -= 1
            before = _under(old, key)
            if token not in later:
                yield _detail(_Path(path, show, key), "removed", before, None)
                continue
            after = _under(new, later.pop(token))
            if self.left < 0 or not self.same(before, after):
                yield _Path(path, show, key), before, after
        if unmatched:
            yield _detail(path, "modified", old, new, _TOO_LARGE)
            return
        for key in later.values():
            yield _detail(_Path(path, show, key), "added", None, _under(new, key))

    def by_token(self, keys: Iterable[object], others: Sized) -> Iterator[tuple[object, object]]:
        """Each key behind its token, until the work is spent."""
        # Without others to match, any token will do.
        return self.keys.by_token(keys) if others else enumerate(keys)

    def items(
        self, path: _Path | None, old: Sequence[object], new: Sequence[object]
    ) -> Iterator[_Pair | Detail]:
        self.left -= len(old) + len(new)
        for before, after in self.matching.items(old, new):
            if before is None:
                assert after is not None
                yield _detail(_Path(path, _index, after), "added", None, new[after])
            elif after is None:
                yield _detail(_Path(path, _index, before), "removed", old[before], None)
            elif self.left < 0 or not self.same(old[before], new[after]):
                yield _Path(path, _index, after), old[before], new[after]

    def arrays(self, path: _Path | None, old: Array, new: Array) -> Iterator[_Pair | Detail]:
        # Many arrays may share one buffer.
        self.left -= len(old.raw or b"") >> 6
        found = differences(old, new)
        if found is None:
            yield from self.instances(path, old, new)
        else:
            yield from self.found(path, found)

    def tables(self, path: _Path | None, old: Table, new: Table) -> Iterator[_Pair | Detail]:
        comparison = TableComparison(old, new, self.matching)
        yield from self.found(path, comparison.run())
        if comparison.is_spent:
            yield _detail(path, "modified", old.type, new.type, _TOO_LARGE)

    def found(self, path: _Path | None, differences: Iterable[Found]) -> Iterator[_Pair | Detail]:
        """The differences inside an array or a table at this path."""
        for steps, kind, old, new, note in differences:
            place = path
            for step in steps:
                place = _Path(place, step_of, step)
            yield (place, old, new) if kind == "pair" else _detail(place, kind, old, new, note)


def _detail(path: _Path | None, kind: Kind, old: object, new: object, note: str = "") -> Detail:
    return Detail("" if path is None else str(path), kind, old, new, note)


def _under(values: Collection[Any], key: object) -> Any:
    """The value of a key of a dict; a member of a set itself."""
    return values[key] if isinstance(values, dict) else key


def _index(index: int) -> str:
    return f"[{index}]"


def _brief_pair(old: object, new: object) -> tuple[str, str]:
    """Both sides in brief; long texts and bytes from their first difference on."""
    before, after = brief(old), brief(new)
    if before != after or not isinstance(old, str | bytes) or not isinstance(new, str | bytes):
        return before, after
    same, _ = common_ends(old, new)
    start = max(same - 15, 0)
    return f"…{brief(old[start : start + 200])}", f"…{brief(new[start : start + 200])}"
