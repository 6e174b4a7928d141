"""Classes: the classes and functions that the values in a history name, without importing any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vstate.errors import CorruptObject, InvalidInput
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.core import Core
from vstate.values.budget import InertError
from vstate.values.entry import PICKLE
from vstate.values.inspection import named_in

_REMEMBERED = 10_000


@dataclass(slots=True)
class Named:
    """A class or function that values name.

    `first` and `last` are the oldest and the newest commit that stored a value with the name. `commits` is
    the number of such commits, and `keys` are the keys of the newest state whose values have the name.
    `magic` is the magic number of the Python whose bytecode is stored, for a class that is stored by value.
    """

    name: str
    magic: bytes
    first: Commit
    last: Commit
    commits: int = 0
    keys: tuple[str, ...] = ()


def find_named(core: Core, commit: Commit, progress: Callable[[int], None] | None = None) -> list[Named]:
    """The classes and functions in the values of this commit and those before it, sorted by name.

    Values that cannot be read, or that are too long to show, are left out.
    """
    found: dict[str, Named] = {}
    read = _Reader(core)
    for number, each in enumerate(core.log(commit), 1):
        if progress is not None:
            progress(number)
        before = core.history.before(each)
        stored: dict[str, bytes] = {}
        for change in tree.diff(core.objects.nodes, before[0].root if before else None, each.root):
            if change.new is not None:
                stored.update(read.names(change.key, change.new))
        for name, magic in stored.items():
            named = found.setdefault(name, Named(name, magic, each, each))
            named.first = each  # the log is newest first
            named.commits += 1
    for key, data in tree.scan(core.objects.nodes, commit.root):
        for name in read.names(key, data):
            if name in found:
                found[name].keys = (*found[name].keys, key)
    return [found[name] for name in sorted(found)]


class _Reader:
    """Reads the names in entries, each entry once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[bytes, dict[str, bytes]] = {}

    def names(self, key: str, data: bytes) -> dict[str, bytes]:
        """The names in the value of an entry, with the magic numbers of their Python."""
        if data not in self._known:
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            self._known[data] = dict(self._read(key, data))
        return self._known[data]

    def _read(self, key: str, data: bytes) -> Iterator[tuple[str, bytes]]:
        try:
            entry = self._core.parse_entry(key, data)
            if entry.codec == PICKLE:
                yield from named_in(entry, self._core.objects).items()
        except (CorruptObject, InertError, InvalidInput):
            return
