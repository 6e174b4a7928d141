"""Threads: the checkpoints and writes of one LangGraph thread, as records of a journal and as their index."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from vstate.values.growth import Grown, Heap, Unread, grow

Pair = tuple[str, bytes]
"""A value as LangGraph's serializer gives it: the name of its form, and bytes."""

Record = tuple[Any, ...]
"""A kind, a dict of fields, and the bytes that the heap gets, each with the name of their form."""

CHECKPOINT: Final = "checkpoint"
WRITES: Final = "writes"
LINK: Final = "link"
"""A deleted checkpoint from which later ones are computed: its values and writes of their delta channels."""
PIECE: Final = "piece"
"""A record without fields, whose bytes were in many records before."""

_NO_METADATA: Final = "msgpack", b"\x80"
_PIECE_BYTES: Final = 11 * 1024
"""So many bytes at the end of a value that are in short parts are put together, before it grows further. Then
its newest version is in few segments. With what a message adds a piece is one blob, of 16 KB at most.
"""
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


Deltas = Callable[[Saved], set[str]]
"""The delta channels of a checkpoint that are computed from the checkpoints before it."""


class Write(NamedTuple):
    """A pending write, with the path of its task."""

    path: str
    task: str
    place: int
    channel: str
    value: Pair


class Thread:
    """The index of a thread's journal, or of its newest part. A reader holds the lock of the journal.

    The newest part alone raises Unread if a call needs more. So the record of a checkpoint tells what came
    before it: whether it is `late`, after one with a greater id; from which position on writes of it came
    `early`; and which other checkpoints are `awaited` by writes, from which position on.
    """

    def __init__(self) -> None:
        self.heap = Heap()
        self._start = 0
        """The position of the first record."""
        self._saved: dict[str, dict[str, Saved | dict[str, Any]]] = {}
        """The checkpoints by namespace and id, as their fields until they are asked for: most never are."""
        self._newest: dict[str, str] = {}
        self.links: dict[tuple[str, str], Saved] = {}
        """The deleted checkpoints from which later ones are computed."""
        self._writes: dict[tuple[str, str], dict[tuple[str, int], Write]] = {}
        self._last: dict[tuple[str, str], tuple[Grown, bytes]] = {}
        """The bytes of the last value of each channel, to compare the next one with."""
        self._early: dict[tuple[str, str], int] = {}
        self._awaited: dict[tuple[str, str], int] = {}
        """By checkpoint, the position of its first write that came before it."""
        self._planned: tuple[Record, dict[tuple[str, str], tuple[Grown, bytes]]] = ((), {})
        """The last record that `record` made, and the values in it. It may never land."""

    # As the index of a journal

    @staticmethod
    def width(record: Record) -> int:
        """The bytes that a record takes on the heap: one at least, so that each has a position of its own."""
        return sum(len(data) for _, data in record[2:]) or 1

    def begin(self, position: int) -> None:
        """Begin with the record at a position: those before are read only if they are needed."""
        self.heap, self._start = Heap(position), position

    def fill(self, position: int, records: Iterable[Record]) -> None:
        """Take the bytes of earlier records."""
        for record in records:
            for _, data in record[2:]:
                self.heap.fill(position, data)
                position += len(data)
            position += 0 if record[2:] else 1

    def add(self, record: Record) -> None:
        """Take the next record."""
        kind, fields, *grown = record
        position = self.heap.end
        for _, data in grown:
            self.heap.add(data)
        if not grown:
            self.heap.add(b"\0")
        if kind in (CHECKPOINT, LINK):
            ns, id = fields["ns"], fields["id"]
            if kind == LINK:
                self.links[ns, id] = _saved(fields)
            else:
                self.links.pop((ns, id), None)
                self._saved.setdefault(ns, {})[id] = fields
                if "late" not in fields:
                    self._newest[ns] = id
            if "early" in fields:
                self._early[ns, id] = fields["early"]
            awaited = fields.get("awaited")
            self._awaited = {(ns, id): position for ns, id, position in awaited} if awaited else {}
            if record is self._planned[0]:
                self._last |= self._planned[1]
        elif kind == WRITES:
            if "early" in fields:
                self._awaited.setdefault((fields["ns"], fields["id"]), position)
            writes = self._writes.setdefault((fields["ns"], fields["id"]), {})
            for place, channel, value in fields["writes"]:
                key = fields["task"], place
                if place < 0 or key not in writes:
                    writes[key] = Write(fields["path"], fields["task"], place, channel, value)

    def require(self, position: int = 0) -> None:
        """Raise Unread unless the records from this position on are here."""
        if position < self._start:
            raise Unread

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
        if found is None and id <= self._newest.get(ns, id):  # none has a greater id than the newest
            self.require()
        elif isinstance(found, dict):
            found = own[id] = _saved(found)
        return found

    def all(self, ns: str | None = None) -> list[Saved]:
        """The checkpoints of a namespace, or of all, the greatest id first."""
        self.require()
        names = [(name, id) for name, own in self._saved.items() if ns is None or name == ns for id in own]
        found = [saved for name, id in names if (saved := self.find(name, id)) is not None]
        return sorted(found, key=lambda saved: saved.id, reverse=True)

    def writes(self, ns: str, id: str) -> list[Write]:
        """The pending writes of a checkpoint that is here, in the order in which LangGraph applies them."""
        self.require(self._early.get((ns, id), self._start))
        return sorted(self._writes.get((ns, id), {}).values(), key=lambda write: write[:3])

    def has_write(self, ns: str, id: str, task: str, place: int) -> bool:
        """Whether a checkpoint has a write of this place, which a second one must not replace."""
        self.require(self._early.get((ns, id), self._start))
        return place >= 0 and (task, place) in self._writes.get((ns, id), {})

    def ancestors(self, saved: Saved) -> Iterator[Saved]:
        """The checkpoints and links before this one, up to the first one that is missing."""
        seen = {saved.id}
        while saved.parent and saved.parent not in seen:
            before = self.links.get((saved.ns, saved.parent)) or self.find(saved.ns, saved.parent)
            if before is None:
                return
            saved = before
            seen.add(saved.id)
            yield saved

    def pair(self, value: Value) -> Pair:
        """The value of a channel as the serializer gave it."""
        return value.form, self.heap.value(value.grown)

    def pairs(self, values: Mapping[str, Value]) -> dict[str, Pair]:
        """The values of channels, as `pair` gives them. Raises Unread with the spans that they all lack."""
        found: dict[str, Pair] = {}
        lacking: list[tuple[int, int]] = []
        for channel, value in values.items():
            try:
                found[channel] = self.pair(value)
            except Unread as error:
                lacking += error.spans
        if lacking:
            raise Unread(*lacking)
        return found

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
        kind: str = CHECKPOINT,
    ) -> list[Record]:
        """The record of a new checkpoint, or of a link, whose channels have these versions, and its pieces.

        `dump` gives the value of a channel. It is not called for a channel that is not `changed`, and that
        the parent has in the same version. Parts of a value that an earlier version has are not stored again.
        """
        if id <= self._newest.get(ns, id):  # it is the first one, or late, or there already
            self.require()
        known = self.find(ns, parent) if parent else None
        before = known or self.find(ns, None)
        olds = before.values if before else {}
        values: dict[str, Any] = dict.fromkeys(versions)  # in the order of the channels
        anew: dict[str, Value | None] = {}
        for channel, version in versions.items():
            old = olds.get(channel)
            if old and known and old.version == version and channel not in changed:
                values[channel] = version, old.form, *old.grown
            else:
                anew[channel] = old
        lasts, pieces, size = self._lasts(ns, anew)
        new: dict[tuple[str, str], tuple[Grown, bytes]] = {}
        added: list[Pair] = []
        for channel in anew:
            form, dumped = dump(channel)
            grown, more = grow(data := bytes(dumped), size, lasts.get(channel))
            values[channel] = versions[channel], form, *grown
            new[ns, channel] = grown, data
            if more:
                added.append((_label(form, data), more))
                size += len(more)
        fields: dict[str, Any] = {"ns": ns, "id": id, "parent": parent, "metadata": metadata}
        fields |= {"checkpoint": checkpoint, "values": values}
        if id < self._newest.get(ns, ""):
            fields["late"] = True
        if (ns, id) in self._awaited or (ns, id) in self._writes:
            fields["early"] = self._awaited.get((ns, id), 0)
        if others := self._awaited.keys() - {(ns, id)}:
            fields["awaited"] = sorted((*key, self._awaited[key]) for key in others)
        self._planned = (kind, fields, *added), new
        return [*pieces, self._planned[0]]

    def _lasts(
        self, ns: str, olds: Mapping[str, Value | None]
    ) -> tuple[dict[str, tuple[Grown, bytes]], list[Record], int]:
        """The earlier values of channels, with their bytes: parts of the next values are in them.

        Also the pieces of values whose ends are in many short parts, and the size of the heap with these.
        """
        lasts: dict[str, tuple[Grown, bytes]] = {}
        pieces: list[Record] = []
        size = self.heap.end
        for channel, old in olds.items():
            if not old:
                continue
            last = self._last.get((ns, channel))
            if last is None or last[0] != old.grown:
                last = old.grown, self.heap.value(old.grown)
            is_long = len(last[1]) >= _PIECE_BYTES
            if is_long and (count := self.heap.scattered(old.grown)) >= _PIECE_BYTES:
                pieces.append((PIECE, {}, (_label(old.form, last[1]), last[1][-count:])))
                last = old.grown.moved(count, size), last[1]
                size += count
            lasts[channel] = last
        return lasts, pieces, size

    def copies(self, kept: Iterable[Saved], deltas: Deltas, onto: Thread | None = None) -> list[Record]:
        """The records that add these checkpoints and their writes to a new thread, or to the thread `onto`.

        Checkpoints that are not kept, but from which kept ones are computed, become links. Writes whose
        checkpoint is not there yet are copied too.
        """
        copy, records = Thread(), list[Record]()
        if onto is not None:
            onto.require()
            copy.heap, copy._newest = Heap(onto.heap.end), {**onto._newest}
            copy._writes = {key: {**own} for key, own in onto._writes.items()}
            copy._awaited = {**onto._awaited}
        copied = {**self._needed(kept, deltas), **{(saved.ns, saved.id): (saved, None) for saved in kept}}
        for key, (saved, of) in sorted(copied.items(), key=lambda each: each[1][0].id):
            kind = CHECKPOINT if of is None else LINK
            pairs = {name: self.pair(each) for name, each in saved.values.items() if not of or name in of}
            versions = {name: saved.values[name].version for name in pairs}
            if kind == LINK and onto is not None and (same := onto.find(*key) or onto.links.get(key)):
                pairs |= {name: onto.pair(value) for name, value in same.values.items()}
                versions |= {name: value.version for name, value in same.values.items()}
            made = copy.record(*saved[:5], versions, pairs.__getitem__, changed=versions, kind=kind)
            made += self._writes_records(saved.ns, saved.id, of)
            for record in made:
                copy.add(record)
            records += made
        for ns, id in self._writes:
            if (ns, id) not in self.links and self.find(ns, id) is None:
                is_early = onto is None or onto.find(ns, id) is None
                records += self._writes_records(ns, id, None, is_early)
        return records

    def _needed(self, kept: Iterable[Saved], deltas: Deltas) -> dict[tuple[str, str], tuple[Saved, Any]]:
        """The checkpoints from which kept ones are computed, without metadata, and the channels of each."""
        found = dict[tuple[str, str], tuple[Saved, set[str]]]()
        for saved in kept:
            wanted = deltas(saved)
            for before in self.ancestors(saved):
                _, known = found.get((before.ns, before.id), (before, set()))
                if wanted <= known:  # so all before it is there
                    break
                found[before.ns, before.id] = before._replace(metadata=_NO_METADATA), known | wanted
                wanted = wanted - before.values.keys()
        return {**found}

    def _writes_records(self, ns: str, id: str, of: set[str] | None, early: bool = False) -> list[Record]:
        return [
            writes_record(ns, id, write.path, write.task, [write[2:]], early=early)
            for write in self.writes(ns, id)
            if not of or write.channel in of
        ]


def _label(form: str, data: bytes) -> str:
    """The form of bytes behind the head of a value: they are values of their own, or text."""
    if form == "msgpack" and (data[0] in _TEXTS or data[0] in _BINARY):
        return "utf-8" if data[0] in _TEXTS else "bytes"
    return form


def _saved(fields: Mapping[str, Any]) -> Saved:
    """The checkpoint of a record with these fields."""
    values = {
        channel: Value(version, form, Grown(head, ranges))
        for channel, (version, form, head, ranges) in fields["values"].items()
    }
    return Saved(
        fields["ns"], fields["id"], fields["parent"], fields["checkpoint"], fields["metadata"], values
    )


def writes_record(
    ns: str,
    id: str,
    path: str,
    task: str,
    writes: Iterable[tuple[int, str, Pair]],
    *,
    early: bool = False,
) -> Record:
    """The record of pending writes of one task: for each its place, its channel and its value.

    They are `early` if their checkpoint is not there yet.
    """
    fields = {"ns": ns, "id": id, "path": path, "task": task, "writes": list(writes)}
    return WRITES, fields | {"early": True} if early else fields
