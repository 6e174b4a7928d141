"""Selecting: finds the keys, parts of values and events to erase in a history."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from vstate.arguments import check_state_key
from vstate.errors import InvalidInput, NotFound
from vstate.objects.commit import Event
from vstate.objects.expiry import split_expiry, with_expiry
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.tree import Node
from vstate.repo.compare.fingerprints import Fingerprints
from vstate.repo.compare.paths import find_part
from vstate.repo.compare.plain import find_object, with_part
from vstate.repo.core import Core
from vstate.repo.objects import Objects
from vstate.repo.search.texts import texts_in
from vstate.values.absent import ABSENT
from vstate.values.budget import InertError
from vstate.values.entry import ATOM, Reader, entry_chunks

Where = Callable[[Any], object]
"""Whether to erase a value, which it gets as plain data. Nothing is unpickled for that."""

Edit = Callable[[Any], Any]
"""Gets a loaded value, and returns it without the erased part; ABSENT to erase the key."""


class Selection:
    """The values and events to erase, with the arguments of `Repository.erase`.

    `keys` are the keys that were met. `versions` counts their different values, and `bytes` is the size of
    these. `values` has the ids of the blobs of each erased entry, and `blobs` the key of each of these ids.
    `made` has the new objects of each new entry.
    """

    def __init__(
        self,
        core: Core,
        keys: Sequence[str],
        *,
        path: str | None = None,
        where: Where | None = None,
        edit: Edit | None = None,
        events: bool | Callable[[Event], object] = False,
    ) -> None:
        if not (keys or where or callable(events)):
            raise InvalidInput("name the keys to erase, or choose values with where=")
        if (path or edit) and not keys:
            raise InvalidInput("name the keys to erase a part of")
        if path and edit:
            raise InvalidInput("give path or edit, not both")
        self._core = core
        names = [check_state_key(key) for key in keys] or ["*"] * (where is not None)
        # Each name with the test that a key has to pass.
        self._names = [
            (n.removesuffix("*"), str.startswith if n.endswith("*") else str.__eq__) for n in names
        ]
        self._path, self._where, self._edit = path, where, edit
        self._events = events
        self._below: dict[bytes, Mapping[str, bytes | None]] = {}
        self._known: dict[tuple[str, bytes], bytes | None] = {}
        self.keys: set[str] = set()
        self.versions = self.bytes = 0
        self.values: dict[bytes, Sequence[bytes]] = {}
        self.blobs: dict[bytes, str] = {}
        self.made: dict[bytes, NewObjects] = {}

    # Keys

    def read(self, objects: Objects, roots: Iterable[ObjectId]) -> None:
        """Read the nodes that `changes` will look at, a level of all trees at a time."""
        below: list[bytes] = [root for root in dict.fromkeys(roots) if root not in self._below]
        while below:
            wanted = (child for node in objects.nodes(below) for child in self._children(node))
            below = [oid for oid in dict.fromkeys(wanted) if oid not in self._below]

    def changes(self, objects: Objects, root: bytes | None) -> Mapping[str, bytes | None]:
        """The keys at and below a node that change, with their new entries; None for an erased key."""
        if root is None:
            return {}
        if root not in self._below:
            node, found = objects.node(root), dict[str, bytes | None]()
            for child in self._children(node):
                found |= self.changes(objects, child)
            for i in () if node.height else self._places(node):
                key, entry = node.keys[i], node.items[i]
                new = self._entry(objects, key, entry)  # type: ignore[arg-type]  # of a leaf, bytes
                if new != entry:
                    found[key] = new
            self._below[root] = found
        return self._below[root]

    def _children(self, node: Node) -> Iterator[bytes]:
        """The nodes below that may hold one of the keys."""
        for i in self._places(node) if node.height else ():
            yield node.items[i]  # type: ignore[misc]  # in a written tree all items are bytes

    def _places(self, node: Node) -> list[int]:
        """The places in a node of the keys to erase, or of the nodes that may hold them."""
        places = dict[int, None]()
        for name, fits in self._names:
            begin = max(bisect_right(node.keys, name) - 1, 0) if node.height else bisect_left(node.keys, name)
            end = begin + (node.height > 0)
            while end < len(node.keys) and fits(node.keys[end], name):
                end += 1
            places |= dict.fromkeys(range(begin, end))
        return [*places]

    def _entry(self, reader: Reader, key: str, entry: bytes) -> bytes | None:
        if (key, entry) in self._known:
            return self._known[key, entry]
        new = self._edited(reader, key, entry)
        if new != entry:
            self._known[key, entry] = new
            self._note(reader, key, entry)
        return new

    def _edited(self, reader: Reader, key: str, entry: bytes) -> bytes | None:
        """The entry without the part to erase; None if nothing is left, or the same entry if nothing goes."""
        if self._where is not None and not self._where(self._data(reader, key, entry)):
            return entry
        if self._path:
            try:
                value = _without_part(self._data(reader, key, entry), key, self._path)
            except NotFound:
                return entry
        else:
            value = ABSENT if self._edit is None else self._edit(self._core.load(key, entry, reader).value)
        if value is ABSENT:
            return None
        encoded = self._core.encode(value)
        new = with_expiry(encoded.entry, split_expiry(entry)[1])
        self.made[new] = dict(encoded.objects)
        return new

    def _data(self, reader: Reader, key: str, entry: bytes) -> object:
        try:
            return self._core.inspect(key, entry, reader)
        except InertError as error:
            raise InvalidInput(f"the value of {key!r} cannot be read as data: {error}") from error

    def _note(self, reader: Reader, key: str, data: bytes) -> None:
        entry = self._core.parse_entry(key, data)
        self.keys.add(key)
        self.versions += 1
        self.bytes += entry.size
        if self._path or self._edit:
            return  # the rest of the value stays, so its blobs tell nothing
        ids = [bytes(link.id) for link in entry.links]
        ids += [bytes(oid) for cut in entry_chunks(entry, reader) if cut for oid in cut.ids]
        self.blobs |= dict.fromkeys(ids, key)
        if entry.codec != ATOM or (isinstance(entry.value, str | bytes) and entry.value):
            self.values[split_expiry(data)[0]] = ids

    # Events

    def left(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events that are not erased."""
        if not (self._events and events):
            return events
        goes = self._events if callable(self._events) else self._names_key
        return [event for event in events if not goes(event)]

    def _names_key(self, event: Event) -> bool:
        for _, text in texts_in([event.kind, event.namespace, event.data]):
            if any(name and fits(text, name) for name, fits in self._names):
                return True
        with suppress(InvalidInput):  # a condition that does not fit the data
            return self._where is not None and bool(self._where(dict(event.data)))
        return False


def _without_part(value: Any, key: str, path: str) -> Any:
    """Plain data without its part at a path; NotFound if there is none, InvalidInput for other data."""
    prints = Fingerprints()
    trail = find_part(value, path, prints)
    if find_object(value) is None:
        return with_part(value, trail, ABSENT, prints)
    raise InvalidInput(
        f"the value of {key!r} has objects of classes, and nothing is unpickled here: erase the part in "
        f"Python, with state.erase({key!r}, edit=function), which gives each value without the part"
    )
