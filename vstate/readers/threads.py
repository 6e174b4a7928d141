"""Threads: the checkpoints and writes of one LangGraph thread, as records of a journal and as their index."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from vstate.values.growth import Grown, Heap, grow

Pair = tuple[str, bytes]
"""A value as LangGraph's serializer gives it: the name of its form, and bytes."""

Record = tuple[Any, ...]
"""A kind, a dict of fields, and the bytes that the heap gets, each with the name of their form."""

CHECKPOINT: Final = "checkpoint"
WRITES: Final = "writes"
_TEXTS: Final = frozenset({0xD9, 0xDA, 0xDB})  # the first byte of a text in MessagePack
_BINARY: Final = frozenset({0xC4, 0xC5, 0xC6})


class Value(NamedTuple):
    """The value of a channel: its version, the name of its form, and its bytes by their place on the heap."""

    version: Any
    form: str
    grown: Grown


class Saved(NamedTuple):
    """A checkpoint without the values of its channels, and where these are."""

    ns: str
    id: str
    parent: str | None
    checkpoint: Pair
    metadata: Pair
    values: Mapping[str, Value]


class Write(NamedTuple):
    """A pending write, with the path of its task."""

    path: str
    task: str
    place: int
    channel: str
    value: Pair


class Thread:
    """The index of a thread's journal. A reader holds the lock of the journal."""

    def __init__(self) -> None:
        self.heap = Heap()
        self._saved: dict[str, dict[str, Saved | dict[str, Any]]] = {}
        """The checkpoints by namespace and id, as their fields until they are asked for: most never are."""
        self._newest: dict[str, str] = {}
        self._writes: dict[tuple[str, str], dict[tuple[str, int], Write]] = {}
        self._last: dict[tuple[str, str], tuple[Grown, bytes]] = {}
        """The bytes of the last value of each channel, to compare the next one with."""
        self._planned: tuple[Record, dict[tuple[str, str], tuple[Grown, bytes]]] = ((), {})
        """The last record that `record` made, and the values in it. It may never land."""

    def add(self, record: tuple[Any, ...]) -> None:
        """Take the next record."""
        kind, fields, *grown = record
        ns, id = fields["ns"], fields["id"]
        if kind == CHECKPOINT:
            own = self._saved.get(ns)
            if own is None:
                own = self._saved[ns] = {}
                self._newest[ns] = id
            own[id] = fields
            if id > self._newest[ns]:
                self._newest[ns] = id
            for _, data in grown:
                self.heap.add(data)
            if record is self._planned[0]:
                self._last |= self._planned[1]
        elif kind == WRITES:
            writes = self._writes.setdefault((ns, id), {})
            for place, channel, value in fields["writes"]:
                key = fields["task"], place
                if place < 0 or key not in writes:
                    writes[key] = Write(fields["path"], fields["task"], place, channel, value)

    # Reading

    @property
    def namespaces(self) -> Iterable[str]:
        """The namespaces with checkpoints."""
        return self._saved

    def ids_with_writes(self, ns: str) -> Iterable[str]:
        """The checkpoints of a namespace with pending writes, whether they are here or not."""
        return [id for name, id in self._writes if name == ns]

    def find(self, ns: str, id: str | None) -> Saved | None:
        """The checkpoint of this id, or the newest one: that with the greatest id."""
        own = self._saved.get(ns, {})
        id = id or self._newest.get(ns, "")
        found = own.get(id)
        if isinstance(found, dict):
            found = own[id] = _saved(found)
        return found

    def all(self, ns: str | None = None) -> list[Saved]:
        """The checkpoints of a namespace, or of all, the greatest id first."""
        names = [(name, id) for name, own in self._saved.items() if ns is None or name == ns for id in own]
        found = [saved for name, id in names if (saved := self.find(name, id)) is not None]
        return sorted(found, key=lambda saved: saved.id, reverse=True)

    def writes(self, ns: str, id: str) -> list[Write]:
        """The pending writes of a checkpoint, in the order in which LangGraph applies them."""
        return sorted(self._writes.get((ns, id), {}).values(), key=lambda write: write[:3])

    def has_write(self, ns: str, id: str, task: str, place: int) -> bool:
        """Whether a write of this place is there, which a second one must not replace."""
        return place >= 0 and (task, place) in self._writes.get((ns, id), {})

    def ancestors(self, saved: Saved) -> Iterator[Saved]:
        """The checkpoints before this one, up to the first one that is missing."""
        seen = {saved.id}
        before = self.find(saved.ns, saved.parent) if saved.parent else None
        while before is not None and before.id not in seen:
            yield before
            seen.add(before.id)
            before = self.find(before.ns, before.parent) if before.parent else None

    def pair(self, value: Value) -> Pair:
        """The value of a channel as the serializer gave it."""
        return value.form, self.heap.value(value.grown)

    # Records

    def record(
        self,
        ns: str,
        id: str,
        parent: str | None,
        checkpoint: Pair,
        metadata: Pair,
        versions: Mapping[str, Any],
        dump: Callable[[str], Pair],
        *,
        changed: Container[str],
    ) -> Record:
        """The record of a new checkpoint, whose channels have these versions.

        `dump` gives the value of a channel. It is not called for a channel that is not `changed`, and that
        the parent has in the same version. Parts of a value that an earlier version has are not stored again.
        """
        known = self.find(ns, parent) if parent else None
        before = known or self.find(ns, None)
        maker = _Maker(len(self.heap))
        new: dict[tuple[str, str], tuple[Grown, bytes]] = {}
        for channel, version in versions.items():
            same = known.values.get(channel) if known and channel not in changed else None
            if same is not None and same.version == version:
                maker.values[channel] = version, same.form, *same.grown
                continue
            old = before.values.get(channel) if before else None
            last = self._last.get((ns, channel))
            if old is not None and (last is None or last[0] != old.grown):
                last = old.grown, self.heap.value(old.grown)
            new[ns, channel] = maker.add(channel, version, dump(channel), last if old else None)
        self._planned = maker.record(ns, id, parent, checkpoint, metadata), new
        return self._planned[0]

    def copies(self, kept: Iterable[Saved], heap_size: int = 0) -> list[Record]:
        """The records of these checkpoints, and of their writes, for a heap of this size."""
        records: list[Record] = []
        last: dict[tuple[str, str], tuple[Grown, bytes]] = {}
        for saved in sorted(kept, key=lambda saved: saved.id):
            maker = _Maker(heap_size)
            for channel, value in saved.values.items():
                key = saved.ns, channel
                last[key] = maker.add(channel, value.version, self.pair(value), last.get(key))
            records.append(maker.record(saved.ns, saved.id, saved.parent, saved.checkpoint, saved.metadata))
            heap_size = maker.heap_size
            for write in self.writes(saved.ns, saved.id):
                records.append(writes_record(saved.ns, saved.id, write.path, write.task, [write[2:]]))
        return records


def _saved(fields: Mapping[str, Any]) -> Saved:
    """The checkpoint of a record with these fields."""
    values = {
        channel: Value(version, form, Grown(head, ranges))
        for channel, (version, form, head, ranges) in fields["values"].items()
    }
    return Saved(
        fields["ns"], fields["id"], fields["parent"], fields["checkpoint"], fields["metadata"], values
    )


class _Maker:
    """The parts of the record of one checkpoint."""

    def __init__(self, heap_size: int) -> None:
        self.heap_size = heap_size
        self.values: dict[str, tuple[Any, ...]] = {}
        self._grown: list[Pair] = []

    def add(
        self, channel: str, version: Any, pair: Pair, last: tuple[Grown, bytes] | None
    ) -> tuple[Grown, bytes]:
        """Take the value of a channel; its place on the heap, and its bytes."""
        form, data = pair[0], bytes(pair[1])
        grown, new = grow(data, self.heap_size, last)
        self.values[channel] = version, form, *grown
        if new:
            # The head is not among the new bytes, so that they are values of their own, or text.
            label = form
            if form == "msgpack" and (data[0] in _TEXTS or data[0] in _BINARY):
                label = "utf-8" if data[0] in _TEXTS else "bytes"
            self._grown.append((label, new))
            self.heap_size += len(new)
        return grown, data

    def record(self, ns: str, id: str, parent: str | None, checkpoint: Pair, metadata: Pair) -> Record:
        fields = {
            "ns": ns,
            "id": id,
            "parent": parent,
            "metadata": metadata,
            "checkpoint": checkpoint,
            "values": self.values,
        }
        return (CHECKPOINT, fields, *self._grown)


def writes_record(ns: str, id: str, path: str, task: str, writes: Iterable[tuple[int, str, Pair]]) -> Record:
    """The record of pending writes of one task: for each its place, its channel and its value."""
    return WRITES, {"ns": ns, "id": id, "path": path, "task": task, "writes": list(writes)}
