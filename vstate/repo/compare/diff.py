"""Diff: the keys in which two states differ, and their values, loaded on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from vstate.arguments import check_limit
from vstate.errors import KeyNotFound, NotFound
from vstate.objects.tree import KeyChange
from vstate.plural import counted
from vstate.values.entry import FILE, Entry
from vstate.values.inspection import describe

if TYPE_CHECKING:
    from vstate.repo.compare.details import Detail
    from vstate.repo.compare.patches import Patch

ChangeKind = Literal["added", "removed", "modified"]

SIGNS: Final = {"added": "+", "modified": "~", "removed": "-"}
_SHOWN = 100
_ABSENT = object()

Load = Callable[[str, bytes], Any]


class Change:
    """The change of one key. `old` and `new` are its values, loaded on demand; None if absent."""

    __slots__ = ("_load", "_new", "_old", "key")

    def __init__(self, change: KeyChange, load: Load) -> None:
        self.key = change.key
        self._old = change.old
        self._new = change.new
        self._load = load

    @property
    def kind(self) -> ChangeKind:
        """`"added"`, `"removed"` or `"modified"`."""
        if self._old is None:
            return "added"
        return "removed" if self._new is None else "modified"

    @property
    def old(self) -> Any:
        """The value before; None for an added key."""
        return None if self._old is None else self._load(self.key, self._old)

    @property
    def new(self) -> Any:
        """The value after; None for a removed key."""
        return None if self._new is None else self._load(self.key, self._new)

    @property
    def old_entry(self) -> Entry | None:
        """Type, size and links of the value before, without loading it."""
        return None if self._old is None else Entry.decode(self._old)

    @property
    def new_entry(self) -> Entry | None:
        """Type, size and links of the value after, without loading it."""
        return None if self._new is None else Entry.decode(self._new)

    def summary(self) -> str:
        """The types and sizes before and after, as text for people."""
        sides = [describe(entry) for entry in (self.old_entry, self.new_entry) if entry is not None]
        return sides[0] if len(set(sides)) == 1 else " -> ".join(sides)

    def __repr__(self) -> str:
        return f"Change({self.kind} {self.key!r}: {self.summary()})"


class Diff(Mapping[str, Change]):
    """The changed keys, sorted, each with its Change; false when nothing differs.

    Finding the keys reads no value. `details` reads values without unpickling: it runs no stored code.
    """

    def __init__(self, changes: Iterable[KeyChange], *, load: Load, inspect: Load) -> None:
        self._entries = {change.key: change for change in changes}
        self._load = load
        self._inspect = inspect

    def __getitem__(self, key: str) -> Change:
        try:
            return Change(self._entries[key], self._load)
        except KeyError:
            raise KeyNotFound(key) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def below(self, prefix: str) -> Diff:
        """The Diff of the keys that begin with `prefix` alone."""
        found = [change for key, change in self._entries.items() if key.startswith(prefix)]
        return Diff(found, load=self._load, inspect=self._inspect)

    @property
    def added(self) -> list[str]:
        """The keys that are only in the new state."""
        return [key for key, change in self._entries.items() if change.old is None]

    @property
    def removed(self) -> list[str]:
        """The keys that are only in the old state."""
        return [key for key, change in self._entries.items() if change.new is None]

    @property
    def modified(self) -> list[str]:
        """The keys whose values differ."""
        return [
            key for key, change in self._entries.items() if change.old is not None and change.new is not None
        ]

    def details(self, key: str, *, limit: int = 1000, path: str = "") -> list[Detail]:
        """The changes inside the value of `key`, or inside its part at `path`, at most `limit` of them.

        An added or removed key or part is one detail at `path`. An unchanged one has none. Raises NotFound if
        neither value has the part, or if gc has removed a commit that was compared.
        """
        # Late, for a quick `import vstate`.
        from vstate.repo.compare.details import Detail, details, kind_change
        from vstate.repo.compare.paths import part_at

        check_limit(limit)
        change = self._entries.get(key)
        if change is None:
            return []
        sides: list[object] = []
        reason: NotFound | None = None
        for data in (change.old, change.new):
            value = _ABSENT if data is None else self._inspect(key, data)
            try:
                sides.append(_ABSENT if data is None else part_at(value, path))
            except NotFound as error:
                sides.append(_ABSENT)
                reason = error
        old, new = sides
        if old is new is _ABSENT:
            raise reason or KeyNotFound(key)
        if old is _ABSENT:
            return [Detail(path, "added", None, new)]
        if new is _ABSENT:
            return [Detail(path, "removed", old, None)]
        found = details(old, new, limit=limit)
        if not path:
            entries = [Entry.decode(data) for data in (change.old, change.new) if data is not None]
            return [*kind_change(*entries), *found][:limit]
        return [replace(each, path=_joined(path, each.path)) for each in found]

    def patch(self, key: str) -> Patch | None:
        """The change of a File in the form of git: its text, and the numbers of lines; None for other values.

        A text is compared by line, and `git apply` takes the result. Raises InvalidInput for a file of more
        than 64 MB.
        """
        from vstate.repo.compare.patches import Side, file_patch  # late, as above

        change, sides = self._entries.get(key), list[Side | None]()
        for data in () if change is None else (change.old, change.new):
            entry = None if data is None else Entry.decode(data)
            if entry is not None and entry.codec != FILE:
                return None
            sides.append(None if data is None or entry is None else (self._inspect(key, data), entry.type))
        return file_patch(key, *sides) if sides else None

    def stat(self) -> str:
        """The counts as text, without zeros: `+1 added ~2 modified`."""
        counts = ((SIGNS[kind], count, kind) for kind, count in counts_by_kind(self).items() if count)
        return " ".join(f"{sign}{count} {kind}" for sign, count, kind in counts) or "no changes"

    def __str__(self) -> str:
        lines = [f"{SIGNS[change.kind]} {key}  ({change.summary()})" for key, change in self._first()]
        if len(self) > _SHOWN:
            lines.append(f"… and {counted(len(self) - _SHOWN, 'more key')}")
        return "\n".join(lines) or "no changes"

    def __repr__(self) -> str:
        return f"Diff({self.stat()})"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def _repr_html_(self) -> str:
        from html import escape  # only a notebook asks

        rows = "".join(
            f"<tr><td>{SIGNS[change.kind]}</td><td>{escape(key)}</td><td>{escape(change.summary())}</td></tr>"
            for key, change in self._first()
        )
        more = f"<p>… and {counted(len(self) - _SHOWN, 'more key')}</p>" if len(self) > _SHOWN else ""
        return f"<table>{rows}</table>{more}" if rows else "<p>no changes</p>"

    def _first(self) -> list[tuple[str, Change]]:
        return [(key, self[key]) for key in list(self._entries)[:_SHOWN]]


def counts_by_kind(diff: Diff) -> dict[str, int]:
    """How many keys changed, by the kind of their changes."""
    return {"added": len(diff.added), "modified": len(diff.modified), "removed": len(diff.removed)}


def _joined(path: str, rest: str) -> str:
    """The path that leads on from the part at `path`."""
    return f"{path}.{rest}" if rest and rest[0] not in ".[{" else path + rest
