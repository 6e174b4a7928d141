"""Conformance: whether readable objects have the one encoding that `docs/format.md` prescribes.

Equal contents have equal ids only if every writer uses that encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vstate.objects.canonical import decode, encode
from vstate.objects.ids import Link, ObjectId
from vstate.objects.stream import INDEX_FANOUT, INDEX_LIMIT
from vstate.objects.tree import Node, level
from vstate.plural import counted
from vstate.values.entry import ATOM, ATOM_BYTES, INLINE_BYTES, Entry

MOST_KEY_BYTES = 4096  # of the format, whatever the limit for new keys is

_ATOMS = (type(None), bool, int, float, str, bytes)


def is_canonical(data: bytes) -> bool:
    """Whether these bytes are the canonical encoding of their value."""
    try:
        return encode(_sorted(decode(data))) == data
    except (ValueError, TypeError, OverflowError):
        return False


def _sorted(value: Any) -> Any:
    """The same plain data with its maps sorted."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def key_faults(node: Node) -> Iterator[str]:
    """The faults in the choice of a tree node's keys, as far as the node itself shows them.

    Each first key also stands in the nodes above, where it is not the first one. So checking the other keys
    checks all.
    """
    if any(level(key) != node.height for key in node.keys[1:]):
        yield "a key in it is not at the height of its level"
    if any(len(key) > MOST_KEY_BYTES // 4 and len(key.encode()) > MOST_KEY_BYTES for key in node.keys):
        yield "a key in it is too long"


def entry_fault(entry: Entry, data: bytes) -> str | None:
    """The fault in the form of an entry; None if there is none."""
    if encode(decode(data)) != data:  # there are no maps in it
        return "is not encoded canonically"
    if entry.codec == ATOM:
        value = entry.value
        if not isinstance(value, _ATOMS):
            return "is not an atom"
        raw = value.encode() if isinstance(value, str) else value
        return "is too long for an atom" if isinstance(raw, bytes) and len(raw) > ATOM_BYTES else None
    for part in entry.parts:
        linked = isinstance(part, Link)
        length = part.length if isinstance(part, Link) else len(part)
        if linked != (length > INLINE_BYTES):
            return f"has a part of {counted(length, 'byte')} {'in a link' if linked else 'inline'}"
    return None


def index_faults(height: int, items: Sequence[tuple[ObjectId, int]], body: bytes) -> Iterator[str]:
    """The faults in the form of an index node, as far as the node itself shows them."""
    if encode([height, b"".join(oid for oid, _ in items), [length for _, length in items]]) != body:
        yield "it is not encoded canonically"
    if len(items) > INDEX_LIMIT or any(oid[-1] % INDEX_FANOUT == 0 for oid, _ in items[1:-1]):
        yield "it has items behind the one that ends it"


def may_end(items: Sequence[tuple[ObjectId, int]]) -> bool:
    """Whether an index node may end after these items, with others to follow."""
    return len(items) == INDEX_LIMIT or (len(items) > 1 and items[-1][0][-1] % INDEX_FANOUT == 0)
