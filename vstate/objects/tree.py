"""The ordered Merkle tree of keys: an immutable map from str to bytes.

A B+-like tree whose node boundaries come from a hash of the key alone. A key has a *level*: how many
times 5 zero bits its hash ends in. At height h a key of level above h begins a new node, so a node has
32 items on average and where nodes begin does not depend on the others. Hence the root is a function of
the contents alone: neither the order of edits nor earlier deletions matter.

A tree is named by its root's id; None is the empty tree. Values are opaque here but for their expiry. The
nodes above keys that expire say when the first of them does, so a tree without such keys is not searched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress, islice, pairwise
from itertools import count as count_up
from operator import ne
from typing import Any, NamedTuple

from blake3 import blake3

from vstate.errors import CorruptObject
from vstate.objects.canonical import Packer, decode, decode_short
from vstate.objects.expiry import EXPIRING, moment_of
from vstate.objects.ids import ID_BYTES, TREE, NewObjects, Object, ObjectId

LEVEL_BITS = 5
"""2 ** 5 = 32 items in an average node. Part of the format: with another number, equal trees would differ."""

MAX_HEIGHT = 64
"""No tree is higher: no key's level is above 12."""

DIFF_BATCH = 256
"""How many leaves of each tree a diff reads at a time."""

READ_AHEAD = 64
"""How many nodes of one level a scan reads at a time, after the first: few round trips to a server."""


class Node(NamedTuple):
    """One node, never changed once built.

    A leaf (height 0) pairs `keys[i]` with the value `items[i]`. Above, `keys[i]` is the first key below
    the child `items[i]` and `counts[i]` the number of keys below it. A child that is not written yet
    is a Node instead of an id. `expiries[i]` is when the first key of `items[i]` expires, None for never;
    `expiries` is None if no key below the node expires.
    """

    height: int
    keys: list[str]
    items: list[bytes | Node]
    counts: list[int]
    expiries: Moments = None

    @property
    def size(self) -> int:
        """The number of keys in and below this node."""
        return sum(self.counts) if self.height else len(self.keys)

    @property
    def earliest(self) -> int | None:
        """When the first key in or below this node expires; None for never."""
        return None if self.expiries is None else min(at for at in self.expiries if at is not None)

    def written(self) -> tuple[ObjectId, Object]:
        """The id and the object, once all children are written."""
        fields = [self.height, self.keys, self.items, self.counts]
        if self.expiries is not None:  # where nothing expires there are four fields
            fields.append(self.expiries)
        body = Packer().pack(fields)  # without further calls: a commit does this for each level
        return ObjectId(blake3(body, key=TREE.key).digest()), Object(TREE, body)

    def children(self) -> list[ObjectId]:
        """The ids of the nodes below; none for a leaf."""
        return [ObjectId(item) for item in self.items if isinstance(item, bytes)] if self.height else []

    @classmethod
    def decode(cls, body: bytes) -> Node:
        """The node that `body` encodes; ValueError when it encodes none."""
        try:
            try:
                height, keys, items, counts, *more = decode_short(body)
            except (ValueError, RecursionError):  # a node of many keys, or an error that comes again
                height, keys, items, counts, *more = decode(body)
            # TypeError unless all keys are str and all items bytes: twice as quick as a look at their types.
            "".join(keys)
            b"".join(items)
        except TypeError as error:
            raise ValueError(f"not a tree node: {error}") from error
        well_formed = (
            type(height) is int
            and 0 <= height <= MAX_HEIGHT
            and type(keys) is type(items) is type(counts) is list
            and len(keys) == len(items) > 0
            and len(counts) == (len(keys) if height else 0)
            and (height == 0 or (set(map(len, items)) == {ID_BYTES} and set(map(type, counts)) == {int}))
        )
        if not well_formed or (more and not _are_moments(more, len(keys))):
            raise ValueError("a malformed tree node")
        return cls(height, keys, items, counts, more[0] if more else None)


Moments = list[int | None] | None


def _are_moments(fields: list[Any], length: int) -> bool:
    """Whether the fields are one list of `length` moments, at least one of them not None."""
    if len(fields) != 1 or type(fields[0]) is not list or len(fields[0]) != length:
        return False
    return {type(None)} != set(map(type, fields[0])) <= {int, type(None)}


def moments(items: Sequence[bytes | Node]) -> Moments:
    """When each of a leaf's items expires; None if none does."""
    found = [moment_of(item) for item in items]  # type: ignore[arg-type]  # the items of a leaf are bytes
    return found if any(at is not None for at in found) else None


ReadNode = Callable[[bytes], Node]
ReadNodes = Callable[[Sequence[bytes]], list[Node]]
EachNode = Callable[[Sequence[bytes]], Iterable[Node]]
"""How nodes are read, by their ids: plain bytes, as nodes hold them, since wrapping each would cost time."""


class KeyChange(NamedTuple):
    """A key whose value differs between two trees; None stands for absent."""

    key: str
    old: bytes | None
    new: bytes | None


@lru_cache(maxsize=65536)
def level(key: str) -> int:
    """The number of heights at which this key begins a node: the zero bits at its hash's end, by fives."""
    bits = int.from_bytes(blake3(key.encode()).digest(length=8), "big") | 1 << 60
    return ((bits & -bits).bit_length() - 1) // LEVEL_BITS


# Reading
#
# Readers take `at`, a moment in microseconds since 1970-01-01 UTC: keys that have expired by then are absent.
# With None they are there, as in history.


def find(read: ReadNode, root: ObjectId | None, key: str) -> tuple[Node, int] | None:
    """The leaf that holds `key`, and its place there; None if it is absent. Reads one node a level."""
    if root is None:
        return None
    node = read(root)
    while node.height:
        i = bisect_right(node.keys, key) - 1
        if i < 0:
            return None
        item = node.items[i]
        node = item if type(item) is Node else read(item)  # type: ignore[arg-type]  # as in `_loaded`
    i = bisect_left(node.keys, key)
    return (node, i) if i < len(node.keys) and node.keys[i] == key else None


def holds(read: ReadNode, root: ObjectId | None, oid: ObjectId, node: Node) -> bool:
    """Whether a tree has this very node. Reads only nodes above its place."""
    below: bytes | None = root
    while below is not None and below != oid:
        found = read(below)
        if found.height <= node.height:
            return False
        below = found.items[max(bisect_right(found.keys, node.keys[0]) - 1, 0)]  # type: ignore[assignment]  # written
    return below is not None


def lookup(read: ReadNode, root: ObjectId | None, key: str, *, at: int | None = None) -> bytes | None:
    """The value of `key`, or None. Reads one node for each height."""
    found = find(read, root, key)
    if found is None or (at is not None and _is_over(*found, at)):
        return None
    node, i = found
    return node.items[i]  # type: ignore[return-value]  # the items of a leaf are bytes


def lookup_many(read: ReadNodes, root: ObjectId | None, keys: Iterable[str]) -> dict[str, bytes]:
    """The values of the keys that are present. Reads one level at a time."""
    found: dict[str, bytes] = {}
    below = {} if root is None else {root: sorted(set(keys))}
    while below:
        ids, groups, below = list(below), list(below.values()), {}
        for node, group in zip(read(ids), groups, strict=True):
            for key in group:
                i = bisect_right(node.keys, key) - 1
                if i < 0:
                    continue
                if node.height:
                    below.setdefault(node.items[i], []).append(key)  # type: ignore[arg-type]  # as in `diff`
                elif node.keys[i] == key:
                    found[key] = node.items[i]  # type: ignore[assignment]  # the items of a leaf are bytes
    return found


def read_paths(read: ReadNodes, roots: Iterable[ObjectId], key: str) -> None:
    """Read the nodes that lead to a key in many trees, one level of all trees at a time."""
    ids = set[bytes](roots)
    while ids:
        places = [(node, bisect_right(node.keys, key) - 1) for node in read(list(ids)) if node.height]
        ids = {node.items[i] for node, i in places if i >= 0}  # type: ignore[misc]  # as in `diff`


def read_differences(read: ReadNodes, pairs: Iterable[tuple[ObjectId, ObjectId]], most: int) -> None:
    """Read the nodes in which the trees of each pair differ, one level of all pairs at a time.

    Ends at a level with more than `most` nodes.
    """
    differing = [({one}, {other}) for one, other in pairs if one != other]
    while differing:
        ids = list({oid for sides in differing for side in sides for oid in side})
        if len(ids) > most:
            return
        nodes = dict(zip(ids, read(ids), strict=True))
        below = []
        for sides in differing:
            one, other = ({oid for above in side for oid in nodes[above].children()} for side in sides)
            if one != other:
                below.append((one - other, other - one))
        differing = below


def _is_over(node: Node, i: int, at: int) -> bool:
    """Whether a key of a leaf has expired by this moment."""
    due = None if node.expiries is None else node.expiries[i]
    return due is not None and due <= at


def count(read: ReadNode, root: ObjectId | None) -> int:
    """The number of keys, expired ones included, from the root alone."""
    return 0 if root is None else read(root).size


def scan(
    read: ReadNodes,
    root: ObjectId | None,
    prefix: str = "",
    *,
    start: str = "",
    at: int | None = None,
    reverse: bool = False,
) -> Iterator[tuple[str, bytes]]:
    """The items whose keys begin with `prefix`, from `start` on, sorted; reads nodes as it goes.

    One node a level is read for the first item, and then up to `READ_AHEAD` neighbours at a time. With
    `reverse`, the last item comes first.
    """
    for keys, items in _runs(read, root, prefix, start, at, reverse):
        yield from zip(keys, items, strict=True)


def scan_keys(
    read: ReadNodes, root: ObjectId | None, prefix: str, *, at: int | None = None, reverse: bool = False
) -> Iterator[str]:
    """The keys that begin with `prefix`, as `scan` finds them."""
    for keys, _ in _runs(read, root, prefix, "", at, reverse):
        yield from keys


def _runs(
    read: ReadNodes, root: ObjectId | None, prefix: str, start: str, at: int | None, reverse: bool
) -> Iterator[tuple[Sequence[str], Sequence[bytes]]]:
    """The keys and values of a scan, a leaf at a time."""
    if root is None:
        return
    first = max(prefix, start)
    last: str | None = None
    for leaf in _leaves(read, read([root])[0], first, prefix, 1, reverse):
        begin = bisect_left(leaf.keys, first)
        keys = leaf.keys[begin:]
        if not keys:
            continue
        # A forged tree may lead to one node a billion times.
        ends = () if last is None else (keys[-1], last) if reverse else (last, keys[0])
        for before, key in chain(pairwise(ends), pairwise(keys)):
            if key <= before:
                raise CorruptObject(root.hex(), f"its key {key!r} comes after {before!r}")
        last = keys[0 if reverse else -1]
        items: list[bytes] = leaf.items[begin:]  # type: ignore[assignment]  # the items of a leaf are bytes
        is_end = not keys[-1].startswith(prefix)
        if is_end or (at is not None and leaf.expiries is not None):
            wanted = [
                key.startswith(prefix) and (at is None or not _is_over(leaf, i, at))
                for i, key in enumerate(keys, begin)
            ]
            keys, items = list(compress(keys, wanted)), list(compress(items, wanted))
        yield (keys[::-1], items[::-1]) if reverse else (keys, items)
        if is_end and not reverse:
            return


def _leaves(
    read: ReadNodes, node: Node, first: str, prefix: str, count: int, reverse: bool
) -> Iterator[Node]:
    """The leaves that may hold keys with this prefix, from the one of `first` on; `count` at first."""
    if not node.height:
        yield node
        return
    keys = node.keys
    begin = max(bisect_right(keys, first) - 1, 0)
    past = begin + 1
    while past < len(keys) and keys[past].startswith(prefix):
        past += 1
    ids = node.items[begin:past]
    if reverse:
        ids.reverse()
    while ids:
        some, ids = ids[:count], ids[count:]
        for child in read(some):  # type: ignore[arg-type]  # in a written tree all are bytes
            yield from _leaves(read, child, first, prefix, count, reverse)
        count = READ_AHEAD


def count_prefix(read: ReadNode, root: ObjectId | None, prefix: str, *, at: int | None = None) -> int:
    """The number of keys under `prefix`. Reads the edges of the range, and nodes with expired keys."""
    end = _after(prefix)
    total = count(read, root) if end is None else _rank(read, root, end)
    over = 0 if at is None else sum(1 for _ in expired(read, root, at, prefix))
    return total - _rank(read, root, prefix) - over


def expired(read: ReadNode, root: ObjectId | None, at: int, prefix: str = "") -> Iterator[str]:
    """The keys under `prefix` that have expired at this moment, sorted. Reads only nodes with such keys."""
    if root is not None:
        yield from _expired(read, read(root), at, prefix, _after(prefix))


def _expired(read: ReadNode, node: Node, at: int, first: str, end: str | None) -> Iterator[str]:
    if node.expiries is None:
        return
    begin = bisect_left(node.keys, first)
    if node.height:
        begin = max(begin - 1, 0)  # the child before may hold the first ones
    for i in range(begin, len(node.keys)):
        if end is not None and node.keys[i] >= end:
            return
        due = node.expiries[i]
        if due is None or due > at:
            continue
        if node.height:
            yield from _expired(read, _loaded(read, node.items[i]), at, first, end)
        else:
            yield node.keys[i]


def _after(prefix: str) -> str | None:
    """The least text above every text that begins with `prefix`; None if there is none."""
    stem = prefix.rstrip("\U0010ffff")
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None


def _rank(read: ReadNode, root: ObjectId | None, key: str) -> int:
    """The number of keys below `key`."""
    if root is None:
        return 0
    node, rank = read(root), 0
    while node.height:
        i = max(bisect_right(node.keys, key) - 1, 0)
        rank += sum(node.counts[:i])
        node = _loaded(read, node.items[i])
    return rank + bisect_left(node.keys, key)


# Differences


def diff(read: EachNode, old: ObjectId | None, new: ObjectId | None) -> Iterator[KeyChange]:
    """The keys whose values differ, sorted. Reads one level at a time, and no node that is in both trees.

    Leaves are read in batches, and each is compared as soon as it is read.
    """
    if old == new:
        return
    roots = list(read([root for root in (old, new) if root is not None]))
    old_nodes = roots[:1] if old is not None else []
    new_nodes = roots[-1:] if new is not None else []
    while height := max([node.height for node in (*old_nodes, *new_nodes)], default=0):
        groups = _groups(old_nodes, new_nodes, height)
        old_ids = [oid for one, _ in groups for oid in one]
        new_ids = [oid for _, other in groups for oid in other]
        _check_unique(old_ids)
        _check_unique(new_ids)
        old_nodes = [node for node in old_nodes if node.height < height]
        new_nodes = [node for node in new_nodes if node.height < height]
        if height == 1 and not (old_nodes or new_nodes):
            for begin in range(0, len(groups), DIFF_BATCH):
                batch = groups[begin : begin + DIFF_BATCH]
                leaves = iter(read([oid for group in batch for ids in group for oid in ids]))
                for one, other in batch:
                    yield from _diff_leaves([*islice(leaves, len(one))], [*islice(leaves, len(other))])
            return
        below = list(read(old_ids + new_ids))
        old_nodes += below[: len(old_ids)]
        new_nodes += below[len(old_ids) :]
    yield from _diff_leaves(old_nodes, new_nodes)


_Group = tuple[list[bytes], list[bytes]]
"""Nodes of one tree, and those of another tree, of whose keys no other group has any."""


def _groups(old_nodes: Sequence[Node], new_nodes: Sequence[Node], height: int) -> list[_Group]:
    """The children of the nodes of this height that are in one of the two trees only, in groups.

    Whether a key begins a node follows from the key alone. So where a node of each tree begins with the same
    key, no other node of that height holds keys on both sides of it.
    """
    if len(old_nodes) == len(new_nodes) and all(map(_same_shape, old_nodes, new_nodes)):
        # The usual case, overwritten keys: the items are compared in C, position by position.
        return [
            ([a.items[i]], [b.items[i]])  # type: ignore[list-item]  # in a written tree all items are bytes
            for a, b in zip(old_nodes, new_nodes, strict=True)
            for i in compress(count_up(), map(ne, a.items, b.items))
        ]
    old, new = _items_below(old_nodes, height), _items_below(new_nodes, height)
    shared = {oid for _, oid in old}.intersection(oid for _, oid in new)
    sides = [[item for item in side if item[1] not in shared] for side in (old, new)]
    starts = [[key for key, _ in side] for side in sides]
    groups, begins = [], [0, 0]
    for cut in [*sorted(set(starts[0]).intersection(starts[1])), None]:
        ends = [len(keys) if cut is None else bisect_left(keys, cut) for keys in starts]
        one, other = ([oid for _, oid in side[i:j]] for side, i, j in zip(sides, begins, ends, strict=True))
        groups.append((one, other))
        begins = ends
    return groups


def _same_shape(a: Node, b: Node) -> bool:
    return a.height == b.height and a.keys == b.keys


def _items_below(nodes: Sequence[Node], height: int) -> list[tuple[str, bytes]]:
    """The children of the nodes of this height, with their first keys."""
    nodes = [node for node in nodes if node.height == height]
    return [item for node in nodes for item in zip(node.keys, node.items, strict=True)]  # type: ignore[misc]


def _check_unique(ids: Sequence[bytes]) -> None:
    """CorruptObject if a node is twice in one tree: keys are unique, but a forged tree may repeat a node."""
    if len(set(ids)) < len(ids):
        again = next(oid for i, oid in enumerate(ids) if oid in ids[:i])
        raise CorruptObject(again.hex(), "one tree leads to it twice")


def _diff_leaves(old_nodes: Sequence[Node], new_nodes: Sequence[Node]) -> list[KeyChange]:
    for node in (*old_nodes, *new_nodes):
        if node.height:
            oid, _ = node.written()
            raise CorruptObject(oid.hex(), "it is no leaf, and lies where one belongs")
    if len(old_nodes) == len(new_nodes) == 1 and (keys := old_nodes[0].keys) == new_nodes[0].keys:
        # Most leaves have the same keys as before: the items are compared in C, position by position.
        olds, news = old_nodes[0].items, new_nodes[0].items
        return [KeyChange(keys[i], olds[i], news[i]) for i in compress(count_up(), map(ne, olds, news))]  # type: ignore[arg-type]
    before, after = (
        dict(item for node in nodes for item in zip(node.keys, node.items, strict=True))
        for nodes in (old_nodes, new_nodes)
    )
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return [KeyChange(key, before.get(key), after.get(key)) for key in sorted(changed)]  # type: ignore[arg-type]


# Editing


def update(
    read: ReadNode, root: ObjectId | None, changes: Mapping[str, bytes | None]
) -> tuple[ObjectId | None, NewObjects, list[tuple[ObjectId, Node]]]:
    """The tree with `changes` made, where None deletes a key; deleting an absent key changes nothing.

    Returns the new root, the new objects, and the new nodes, which the caller may cache.
    """
    if not changes:
        return root, {}, []
    keys = sorted(changes)
    if len(keys) == 1 and root is not None and (along := _update_along(read, root, keys, changes)):
        return along
    if root is None:
        pieces = _edit_leaf(Node(0, [], [], []), keys, changes)
    else:
        pieces = _edit(read, read(root), keys, changes)
    while len(pieces) > 1:
        pieces = _group(pieces[0].height + 1, pieces)
    if not pieces:
        return None, {}, []
    top = pieces[0]
    while top.height and len(top.items) == 1:
        top = _loaded(read, top.items[0])
    objects: NewObjects = {}
    nodes: list[tuple[ObjectId, Node]] = []
    return _write(top, objects, nodes), objects, nodes


def _update_along(
    read: ReadNode, root: ObjectId, keys: Sequence[str], changes: Mapping[str, bytes | None]
) -> tuple[ObjectId, NewObjects, list[tuple[ObjectId, Node]]] | None:
    """As `update`, for one key that begins and ends no node: only the nodes on the way change. Else None."""
    way: list[tuple[Node, int]] = []
    node = read(root)
    while node.height:
        way.append((node, max(bisect_right(node.keys, keys[0]) - 1, 0)))
        item = node.items[way[-1][1]]
        node = item if type(item) is Node else read(item)  # type: ignore[arg-type]  # as in `_loaded`
    pieces = _edit_leaf(node, keys, changes)
    if len(pieces) != 1 or pieces[0].keys[0] != node.keys[0]:
        return None
    new, count = pieces[0], len(pieces[0].keys)
    objects: NewObjects = {}
    nodes: list[tuple[ObjectId, Node]] = []
    while True:
        oid, made = new.written()
        objects[oid] = made
        nodes.append((oid, new))
        if not way:
            return oid, objects, nodes
        node, i = way.pop()
        items, counts, expiries = node.items.copy(), node.counts.copy(), node.expiries
        if expiries is not None or new.expiries is not None:
            expiries = _with_moment(expiries, i, new.earliest, len(items))
        items[i], counts[i] = oid, count
        count = sum(counts)
        new = Node(node.height, node.keys, items, counts, expiries)


def _edit(read: ReadNode, node: Node, keys: Sequence[str], changes: Mapping[str, bytes | None]) -> list[Node]:
    """The nodes that take the place of `node`; none if all its keys are deleted.

    The first of them may have lost the key that began it. The caller then joins it to its left neighbour.
    """
    if node.height == 0:
        return _edit_leaf(node, keys, changes)
    edited: dict[int, list[Node]] = {}
    begin = 0
    while begin < len(keys):
        i = max(bisect_right(node.keys, keys[begin]) - 1, 0)
        end = bisect_left(keys, node.keys[i + 1], begin) if i + 1 < len(node.keys) else len(keys)
        edited[i] = _edit(read, _loaded(read, node.items[i]), keys[begin:end], changes)
        begin = end
    same_shape = _with_children(node, edited)
    if same_shape is not None:
        return [same_shape]
    children: list[_Child] = []
    for i, child in enumerate(_children(node)):
        for piece in map(_as_child, edited[i]) if i in edited else [child]:
            _append(read, children, piece, node.height)
    return _split(node.height, children)


def _with_children(node: Node, edited: Mapping[int, Sequence[Node]]) -> Node | None:
    """`node` with the edited children, if each is still one node that begins with the same key; else None.

    The first child may begin with another key, since its left neighbour is not in this node.
    """
    keys, items, counts, expiries = node.keys, node.items.copy(), node.counts.copy(), node.expiries
    for i, pieces in edited.items():
        if len(pieces) != 1:
            return None
        piece = pieces[0]
        first = piece.keys[0]
        if first != keys[i]:
            if i:
                return None
            keys = [first, *keys[1:]]
        items[i], counts[i] = piece, piece.size
        if expiries is not None or piece.expiries is not None:
            expiries = _with_moment(expiries, i, piece.earliest, len(items))
    return Node(node.height, keys, items, counts, expiries)


def _with_moment(moments: Moments, i: int, due: int | None, length: int) -> Moments:
    """The moments, with number `i` replaced by `due`."""
    if moments is None and due is None:
        return None
    changed: list[int | None] = [None] * length if moments is None else moments.copy()
    changed[i] = due
    return changed if any(at is not None for at in changed) else None


def _append(
    read: ReadNode,
    children: list[_Child],
    child: _Child,
    height: int,
) -> None:
    """Add a child of a node of this height. If its first key begins no node, join it to the child before."""
    if children and level(child[0]) < height:
        joined = _join(read, _loaded(read, children[-1][1]), _loaded(read, child[1]))
        children[-1] = _as_child(joined)
    else:
        children.append(child)


def _join(read: ReadNode, left: Node, right: Node) -> Node:
    """One node of two neighbours; the right one has lost the key that began it."""
    if left.height == 0:
        expiries = _moments_of(left) + _moments_of(right) if left.expiries or right.expiries else None
        return Node(0, left.keys + right.keys, left.items + right.items, [], expiries)
    children = _children(left)
    rest = _children(right)
    _append(read, children, rest[0], left.height)
    children += rest[1:]
    return _node(left.height, children)


_Child = tuple[str, "bytes | Node", int, "int | None"]
"""A child of a node: its first key, its id or the Node, its number of keys, and its earliest expiry."""


def _as_child(node: Node) -> _Child:
    return node.keys[0], node, node.size, node.earliest


def _moments_of(node: Node) -> list[int | None]:
    return [None] * len(node.keys) if node.expiries is None else node.expiries


def _children(node: Node) -> list[_Child]:
    return list(zip(node.keys, node.items, node.counts, _moments_of(node), strict=True))


def _node(height: int, children: Sequence[_Child]) -> Node:
    keys, items, counts, expiries = (list(column) for column in zip(*children, strict=True))
    due = expiries if any(at is not None for at in expiries) else None
    return Node(height, keys, items, counts, due)


def _loaded(read: ReadNode, item: bytes | Node) -> Node:
    return item if type(item) is Node else read(item)  # type: ignore[arg-type]  # mypy narrows by isinstance only


def _split(height: int, children: Sequence[_Child]) -> list[Node]:
    """Nodes of this height over the children, cut before each key whose level is above the height."""
    if not children:
        return []
    starts = [0, *(i for i in range(1, len(children)) if level(children[i][0]) > height), len(children)]
    return [_node(height, children[begin:end]) for begin, end in pairwise(starts)]


def _group(height: int, pieces: Sequence[Node]) -> list[Node]:
    return _split(height, [_as_child(piece) for piece in pieces])


def _edit_leaf(node: Node, keys: Sequence[str], changes: Mapping[str, bytes | None]) -> list[Node]:
    known = node.keys
    if len(keys) == 1:
        i = bisect_left(known, keys[0])
        value = changes[keys[0]]
        if value is not None and i < len(known) and known[i] == keys[0]:
            items = node.items.copy()
            items[i] = value
            expiries = node.expiries
            if expiries is not None or value[:1] in EXPIRING:
                expiries = _with_moment(expiries, i, moment_of(value), len(items))
            return [Node(0, known, items, [], expiries)]
    merged: dict[str, bytes | Node] = dict(zip(known, node.items, strict=True))
    for key in keys:
        value = changes[key]
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    if not merged:
        return []
    new = [value[:1] for key in keys if (value := changes[key])]
    timed = node.expiries is not None or not EXPIRING.isdisjoint(new)
    in_order = sorted(merged)
    # Only a key that is new in the leaf, or that was its first one, can begin a node inside it.
    fresh = merged.keys() - known[1:]
    begins = [bisect_left(in_order, key) for key in fresh if level(key) > 0]
    starts = [0, *sorted(i for i in begins if i), len(in_order)]
    nodes = []
    for begin, end in pairwise(starts):
        some = in_order[begin:end]
        items = list(map(merged.__getitem__, some))
        nodes.append(Node(0, some, items, [], moments(items) if timed else None))
    return nodes


def _write(node: Node, objects: NewObjects, nodes: list[tuple[ObjectId, Node]]) -> ObjectId:
    """Turn a node, and the unwritten ones below it, into objects; its id."""
    for i, item in enumerate(node.items if node.height else ()):
        if type(item) is Node:
            node.items[i] = _write(item, objects, nodes)
    oid, made = node.written()
    objects[oid] = made
    nodes.append((oid, node))
    return oid
