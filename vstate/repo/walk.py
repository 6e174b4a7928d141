"""Walks: over objects depth first, a batch at a time, and over commits from the newest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from vstate.errors import CorruptObject
from vstate.objects.commit import Commit
from vstate.objects.ids import Kind, Link
from vstate.objects.tree import Node
from vstate.values.entry import Entry

BATCH = 256
"""How many objects a walk reads at once: of the largest, tree nodes of some 4 KB, that is 1 MB."""

Batch = tuple[Kind, Sequence[Any]]
"""Objects of one kind that a walk has still to visit."""

Below = Mapping[Kind, Callable[[Any], Sequence[Batch]]]
"""By kind, how a walk finds the objects that those of a batch link to."""

_REMEMBERED_ENTRIES = 100_000
_ATOM = b"\x92\x00"  # how the entry of an atom begins


def depth_first(start: Sequence[Batch], below: Below) -> Iterator[Batch]:
    """Every batch, and then the batches that `below` finds beneath it.

    Depth first, because the objects that are still to be read stay few that way.
    """
    stack = list(start)
    while stack:
        kind, items = stack.pop()
        if not items:
            continue
        if len(items) > BATCH:
            stack.append((kind, items[BATCH:]))
            items = items[:BATCH]
        yield kind, items
        find = below.get(kind)
        if find is not None:
            stack += find(items)


class NewestFirst(Iterator[Commit]):
    """A queue of commits. The newest comes out first; of two with one time, the one that went in first.

    A commit's order is above that of its parents. So a walk that puts in the parents of each commit that it
    takes out meets every commit after all its children.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Commit]] = []
        self._order = count()

    def push(self, commit: Commit) -> None:
        """Put a commit in."""
        heappush(self._heap, (-commit.order, next(self._order), commit))

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def order(self) -> int:
        """The order of the commit that comes next; -1 if there is none."""
        return -self._heap[0][0] if self._heap else -1

    def __next__(self) -> Commit:
        if not self._heap:
            raise StopIteration
        return heappop(self._heap)[2]


class Entries:
    """Tells the entries of leaves that a walk has not met lately: most stood in an earlier leaf too."""

    def __init__(self) -> None:
        self._met: set[bytes] = set()

    def new(self, leaf: Node) -> list[bytes]:
        """The entries of a leaf that were not met lately."""
        met = self._met
        if len(met) > _REMEMBERED_ENTRIES:
            met.clear()
        found = [entry for entry in leaf.items if entry not in met]
        met.update(found)  # type: ignore[arg-type]  # a node that was read holds bytes only
        return found  # type: ignore[return-value]

    def new_items(self, leaf: Node) -> list[tuple[str, bytes]]:
        """The entries of a leaf that were not met lately, with their keys."""
        found = set(self.new(leaf))
        items = zip(leaf.keys, leaf.items, strict=True) if found else ()
        return [(key, entry) for key, entry in items if entry in found]

    def all(self, leaf: Node) -> Iterator[tuple[str, bytes]]:
        """The keys and all entries of a leaf; `new` leaves them out from now on."""
        self.new(leaf)
        return zip(leaf.keys, leaf.items, strict=True)  # type: ignore[arg-type]


def links_of(leaf: bytes, entry: bytes) -> Sequence[Link]:
    """The links of an entry; CorruptObject, naming the leaf, if the entry cannot be decoded."""
    return () if entry.startswith(_ATOM) else checked_links(leaf, entry)


def checked_links(leaf: bytes, entry: bytes) -> Sequence[Link]:
    """As `links_of`, of an entry that a forger may have written: an atom is decoded too."""
    try:
        return list(Entry.decode(entry).links)
    except ValueError as error:
        raise CorruptObject(leaf.hex(), f"an entry in it cannot be decoded: {error}") from error
