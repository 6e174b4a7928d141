"""Predecessors: the earlier versions of a commit's new objects.

They are hints for stores that keep deltas: a wrong one costs some bytes. Before a node of the tree comes the
node that was in its place; before a value, the key's old value, or for a new key the value of the key in
front of it: rounds, events and logs have keys in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from vstate.errors import CorruptObject
from vstate.objects import tree
from vstate.objects.ids import Link, ObjectId
from vstate.objects.stream import is_single
from vstate.objects.tree import Node, ReadNode
from vstate.values.entry import Entry, OneBlobEntry

FROM_BYTES = 512
"""A shorter value saves too few bytes to look for an earlier version."""

MOST_NODES = 32
"""A commit with more new nodes gets no hints: it changes thousands of keys, and deltas would cost it time."""


RECENT_LEAVES = 4
"""A leaf gets a hint if one of the last leaves was in its place.

Deltas take time: a commit of one of 10,000 keys, at random, takes 340 µs of the processor with them, and 190
without. They pay where commits change one place again and again, as rounds, logs and counters do.
"""


class Predecessors:
    """The earlier versions of the objects of commits. Threads may share it."""

    def __init__(self) -> None:
        # The first keys of leaves, which mostly stay as they are.
        self._recent = deque[str](maxlen=RECENT_LEAVES)

    def note(self, nodes: Sequence[tuple[ObjectId, Node]]) -> None:
        """These nodes are in the store now."""
        if len(nodes) <= MOST_NODES:
            self._recent.extend([node.keys[0] for _, node in nodes if not node.height])

    def are_near(self, nodes: Sequence[tuple[ObjectId, Node]]) -> bool:
        """Whether these new nodes get hints: they are few, and one of the last leaves was in their place."""
        if len(nodes) <= MOST_NODES:
            recent = self._recent
            for _, node in nodes:
                if not node.height and node.keys[0] in recent:
                    return True
        return False

    def of(
        self, read: ReadNode, root: ObjectId | None, nodes: Sequence[tuple[ObjectId, Node]]
    ) -> dict[ObjectId, bytes]:
        """The ids of earlier versions of new nodes and of the values in them, by the new ids.

        `root` is the tree before.
        """
        found: dict[ObjectId, bytes] = {}
        try:
            for oid, node in nodes:
                before = tree.counterpart(read, root, node)
                if before is not None:
                    found[oid] = before[0]
                    if not node.height:
                        found.update(_values(before[1], node))
        except (CorruptObject, ValueError):  # a damaged tree gives no hints
            pass
        return found


def _values(before: Node, leaf: Node) -> Iterable[tuple[ObjectId, bytes]]:
    """The ids of the new values of a leaf, each with the id of an earlier version."""
    for item in set(leaf.items).difference(before.items):
        new = _blobs(item)
        # The earlier value is decoded only for a long one: most values are short.
        if any(length >= FROM_BYTES for _, length in new):
            place = bisect_right(before.keys, leaf.keys[leaf.items.index(item)]) - 1
            if place >= 0:
                for (old, _), (oid, length) in zip(_blobs(before.items[place]), new, strict=False):
                    if length >= FROM_BYTES:
                        yield oid, old


def _blobs(item: bytes | Node) -> list[Link]:
    """The links of an entry to single blobs."""
    if isinstance(item, Node):
        return []
    if (short := OneBlobEntry.find(item)) is not None:
        return [Link(short.id, short.size)]
    return [link for link in Entry.decode(item).links if is_single(link)]
