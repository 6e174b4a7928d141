"""LangGraph: a thread as the channels at its newest step, with the next nodes and the interrupts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from vstate.display.chats import messages_in_words, value_in_words
from vstate.errors import InvalidInput
from vstate.readers.stored import Stored
from vstate.readers.threads import CHECKPOINT, LINK, PIECE, Record, Saved, Thread, Write
from vstate.values.growth import NOT_JOINED, Grown, Heap
from vstate.values.inspection import INSPECT_BYTES
from vstate.values.instance import Instance
from vstate.values.plain import plain
from vstate.values.serialized import Serialized

JOURNAL: Final = "journal/"

_MESSAGES: Final = "messages"
_STEP: Final = "checkpoint"
_PENDING: Final = "pending/"
_TO: Final = "branch:to:"
_JOIN: Final = "join:"
_SENDS: Final = "__pregel_tasks"
_INTERRUPT, _RESUME, _ERROR, _START = "__interrupt__", "__resume__", "__error__", "__start__"
_PULL, _PUSH, _UPDATE = "~__pregel_pull", "~__pregel_push", "~__interrupt__"
_RESULTS: Final = {"__return__": "task", "__end__": "result"}
_MOST_TOLD: Final = 20  # writes
_MOST_RECORDS: Final = 8
"""A commit of more records is no step: it copies or prunes a thread, and says so itself."""


class _Part(NamedTuple):
    """The index of one segment of the journal, and the bytes that it adds to the heap."""

    thread: Thread
    added: bytes


class _Parts:
    """The threads of a journal's segments as one thread, without going through all records again."""

    def __init__(self, stored: Stored) -> None:
        self.heap = Heap()
        self._threads: list[Thread] = []
        self.sent: dict[tuple[str, str], list[str]] = {}
        parts = stored.values(JOURNAL, _part)
        for (key, _), part in zip(stored.entries(JOURNAL), parts, strict=True):
            if key != f"{JOURNAL}{self.heap.end:012}":
                raise InvalidInput(NOT_JOINED.format(key))
            self._threads.append(part.thread)
            if part.added:
                self.heap.add(part.added)

    def newest(self) -> dict[str, Saved]:
        """The newest checkpoint of each namespace."""
        found: dict[str, Saved] = {}
        for thread in self._threads:
            for ns in thread.namespaces:
                saved = thread.find(ns, None)
                if saved is not None and (ns not in found or saved.id > found[ns].id):
                    found[ns] = saved
        return found

    def find(self, ns: str, id: str) -> Saved | None:
        """The checkpoint of this id."""
        return next((found for thread in self._threads if (found := thread.find(ns, id)) is not None), None)

    def writes(self, saved: Saved) -> list[Write]:
        """The pending writes of a checkpoint, and of checkpoints after it, which may be stored later.

        A later write replaces an earlier one of its place.
        """
        found = {
            (id, each.task, each.place): each
            for one in self._threads
            for id in one.ids_with_writes(saved.ns)
            if id >= saved.id
            for each in one.writes(saved.ns, id)
        }
        return [write for _, write in sorted(found.items(), key=lambda each: (each[0][0], each[1][:3]))]

    def value(self, saved: Saved, channel: str) -> Serialized:
        """The value of a channel."""
        value = saved.values[channel]
        if value.grown.length > INSPECT_BYTES:
            raise InvalidInput(f"the channel {channel!r} has {value.grown.length:,} bytes: too many to show")
        return Serialized(value.form, self.heap.value(value.grown)).unwrapped


def _part(records: Iterable[Record]) -> _Part:
    thread = Thread()
    for record in records:
        thread.add(record)
    return _Part(thread, thread.heap.value(Grown(b"", (0, thread.heap.end))))


def _parts_of(stored: Stored) -> _Parts:
    if stored.parts is None:
        stored.parts = _Parts(stored)
    parts: _Parts = stored.parts
    return parts


def state(stored: Stored) -> Mapping[str, Any]:
    """The channels of the newest checkpoint, `checkpoint` with its step, and the `pending` writes."""
    parts = _parts_of(stored)
    values: dict[str, Any] = {}
    for ns, saved in sorted(parts.newest().items(), key=lambda each: each[1].id):
        before = "/".join(each.partition(":")[0] for each in ns.split("|")) + "/" if ns else ""
        writes = parts.writes(saved)
        for channel in saved.values:
            if not _is_edge(channel):
                # A channel may have the name of a key below.
                clash = not ns and (channel == _STEP or channel.startswith(_PENDING))
                values[f"channels/{channel}" if clash else before + channel] = parts.value(saved, channel)
        values[before + _STEP] = _described(parts, saved, writes)
        found: Counter[str] = Counter()
        for write in writes:
            if write.place >= 0 and not _is_edge(write.channel):
                node = _node(write.path, saved, parts)
                key = "/".join(filter(None, (f"{before}pending", node, write.channel)))
                found[key] += 1
                name = key if found[key] == 1 else f"{key} {found[key]}"
                values[name] = Serialized(*write.value)
    return values


def title(stored: Stored, before: Stored | None) -> str | None:
    """`buy: 2 messages · “I found it…”`, `waits: approve?`, `step 3, next: approve`."""
    records = stored.new_records(before, JOURNAL)
    if not records or len(records) > _MOST_RECORDS:
        return None
    parts = _parts_of(stored)
    return " · ".join(filter(None, (_told(record, parts) for record in records))) or None


def _told(record: Record, parts: _Parts) -> str:
    kind, fields, *_ = record
    if kind in (LINK, PIECE):
        return ""
    ns, id = fields["ns"], fields["id"]
    where = f"{ns.partition(':')[0]}/" if ns else ""
    saved = parts.find(ns, id)
    if kind == CHECKPOINT:
        if saved is None:
            return ""
        about = _mapping(saved.metadata)
        if "step" not in about:  # it is encrypted
            return ""
        source = about.get("source")
        named = "" if source in ("loop", None) else f" ({source})"
        names = list(_next(parts, saved))
        step = f"{where}step {about.get('step')}{named}"
        return f"{step}, next: {', '.join(names)}" if names else f"{step}, end{_last_words(parts, saved)}"
    node = where + _node(fields["path"], saved, parts)
    writes = [(channel, Serialized(*pair)) for _, channel, pair in fields["writes"][:_MOST_TOLD]]
    # The resume of a task repeats the one that the commit before has told.
    text = ", ".join(_writes_told(each for each in writes if not node or each[0] != _RESUME))
    if not node:
        return text
    return f"{node}: {text}" if text else node


def _last_words(parts: _Parts, saved: Saved) -> str:
    """The last message of a thread that ends here."""
    last = parts.value(saved, _MESSAGES).last if _MESSAGES in saved.values else None
    text = None if last is None else messages_in_words(last.value, with_role=True)
    return "" if text is None else f" · {text}"


def _writes_told(writes: Iterable[tuple[str, Serialized]]) -> Iterator[str]:
    for channel, pair in writes:
        if channel == _INTERRUPT:
            yield f"waits: {', '.join(_text(each) for each in _asked(pair.value))}"
        elif channel == _RESUME:
            yield f"resumes: {_text(pair.value)}"
        elif channel == _ERROR:
            yield f"error: {_text(pair.value)}"
        elif pair.is_unknown:
            yield f"{channel} ({pair.kind})"
        elif channel in _RESULTS:
            yield value_in_words(_RESULTS[channel], pair.value)
        elif not _is_edge(channel) and channel != "__previous__":
            yield value_in_words(channel, pair.value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(plain(value))


def _asked(value: object) -> list[object]:
    """The values of interrupts."""
    items = value if isinstance(value, list | tuple) else [value]
    return [each.fields.get("value", each) if isinstance(each, Instance) else each for each in items]


def _described(parts: _Parts, saved: Saved, writes: Iterable[Write]) -> dict[str, Any]:
    about = {**_mapping(saved.metadata)}
    answered = {write.task for write in writes if write.place >= 0}
    waits = [
        plain(each)
        for write in writes
        if write.channel == _INTERRUPT and write.task not in answered
        for each in _asked(Serialized(*write.value).value)
    ]
    failed = [_text(Serialized(*write.value).value) for write in writes if write.channel == _ERROR]
    found: dict[str, Any] = {
        "step": about.pop("step", None),
        **({"waits": waits} if waits else {}),
        **({"errors": failed} if failed else {}),
        "next": list(_next(parts, saved)),
        "source": about.pop("source", None),
        "id": saved.id,
    }
    about.pop("parents", None)
    return {**found, **({"metadata": plain(about)} if about else {})}


def _next(parts: _Parts, saved: Saved) -> Iterator[str]:
    """The nodes that run next."""
    for channel in saved.values:
        if channel == _START:
            yield _START
        elif channel.startswith(_TO):
            yield channel.removeprefix(_TO)
        elif channel.startswith(_JOIN):
            needed, _, node = channel.removeprefix(_JOIN).rpartition(":")
            seen = parts.value(saved, channel).value
            if isinstance(seen, Instance):
                seen = seen.args[0] if seen.args else ()
            if isinstance(seen, list | tuple | set) and {*needed.split("+")} <= {*map(str, seen)}:
                yield node
    yield from filter(None, _sent(parts, saved))


def _sent(parts: _Parts, saved: Saved | None) -> list[str]:
    """The nodes of the sends that wait at a checkpoint, in order."""
    if saved is None or _SENDS not in saved.values:
        return []
    if (known := parts.sent.get((saved.ns, saved.id))) is not None:
        return known
    sends = parts.value(saved, _SENDS).value
    found = []
    for each in sends if isinstance(sends, list | tuple) else ():
        args = each.args if isinstance(each, Instance) else ()
        found.append(str(args[0]) if args else "")
    parts.sent[saved.ns, saved.id] = found
    return found


def _node(path: str, saved: Saved | None, parts: _Parts) -> str:
    """The node of a task, by its path: `~__pregel_pull, buy`."""
    kind, *rest = path.split(", ")
    if kind == _PUSH and rest and rest[0] == _PULL:  # a task of a function
        kind, *rest = rest
    if kind == _UPDATE:
        return "update"
    if kind == _PULL and rest:
        return "input" if rest[0] == _START else rest[0]
    if kind == _PUSH and rest and rest[0].isdigit():
        sent = _sent(parts, saved)
        return sent[int(rest[0])] if int(rest[0]) < len(sent) else f"task {int(rest[0])}"
    return ""


def _is_edge(channel: str) -> bool:
    return channel.startswith((_TO, _JOIN)) or channel == _SENDS


@lru_cache(16)  # the subject of a commit and its state have the same
def _mapping(pair: tuple[str, bytes]) -> Mapping[str, Any]:
    """The texts by name in a pair; nothing if it is encrypted."""
    value = Serialized(*pair).value
    return {str(name): each for name, each in value.items()} if isinstance(value, dict) else {}
