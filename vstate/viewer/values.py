"""Values: the value of a key at a commit, described part by part and page by page."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import asdict
from typing import Any, Final

from vstate.display.arrays import ArrayView, array_shape
from vstate.display.cells import cell_text
from vstate.display.chats import ChatView, chat_view
from vstate.display.documents import entry_document
from vstate.display.tables import TableView, table_rows
from vstate.display.views import BytesView, document, media_of, view_of
from vstate.errors import InvalidInput, KeyNotFound, NotFound
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.recent import Recent
from vstate.repo.compare.details import details
from vstate.repo.compare.paths import part_at
from vstate.repo.compare.steps import step_of
from vstate.repo.repository import Repository
from vstate.values.arrays import Array
from vstate.values.budget import InertError
from vstate.values.entry import BYTES, FILE, TEXT, Entry, Part, read_range
from vstate.values.file import File
from vstate.values.inspection import shown_value, size_text
from vstate.values.tables import table_of
from vstate.viewer.parts import Marks, part_document, part_documents

_LARGEST: Final = 256 * 2**20  # bytes of a value that is read
_KEPT_BYTES: Final = 512 * 2**20  # of all values that are kept
_KEPT: Final = 16
_MARKED: Final = 1000  # changes inside a value that are marked
_MARKED_BYTES: Final = 16 * 2**20  # of a value whose changes are marked
_CONTINUATION: Final = bytes(range(0x80, 0xC0))  # in UTF-8
_CUT_CHARACTER: Final = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z")
_RANGED_BYTES: Final = _MARKED_BYTES  # of a text, or bytes, of which only a page is read
_LOOKED_AT: Final = 8000  # bytes of a file
_CHARACTERS: Final = 1000  # of a text, for each item of a page
_ROW_BYTES: Final = 16
_MOST_LABELS: Final = 200_000  # of rows among which changed cells are found
_ITEM: Final = re.compile(r"\[(\d+)\]")
_LONGEST_MESSAGE: Final = 20_000
_PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_LARGEST_PICTURE: Final = 32 * 2**20
_DATA_URL: Final = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")
_BASE64_STARTS: Final = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")


class Values:
    """The values of one repository, read without unpickling. The last ones are kept. Threads may share it."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        least = _KEPT_BYTES // _KEPT
        self._kept = Recent[str, tuple[object, int]](_KEPT_BYTES, lambda kept: max(kept[1], least), least=1)

    def data(self, commit: Commit, key: str) -> bytes:
        """The stored entry of the key; KeyNotFound if the commit has no such key."""
        data = tree.lookup(self._repo.objects.node, commit.root, key)
        if data is None:
            raise KeyNotFound(key)
        return data

    def read(self, key: str, data: bytes) -> object:
        """The value of an entry. InvalidInput and InertError for one that cannot be shown."""
        name = _version(data)
        if (found := self._kept.get(name)) is not None:
            return found[0]
        entry = self._repo.parse_entry(key, data)
        value = shown_value(entry, self._repo.objects, limit=_LARGEST)
        self._kept[name] = value, entry.size
        return value

    def part(self, commit: Commit, key: str, path: str) -> object:
        """The part of a value at `path`. NotFound if there is none."""
        return part_at(self.read(key, self.data(commit, key)), path)

    def page(
        self, commit: Commit, key: str, path: str, *, before: Commit | None, first: int, limit: int
    ) -> dict[str, Any]:
        """The part at `path` as `GET /value` gives it, from its item `first` on.

        The parts that differ from the value at the commit `before` are marked. A value that cannot be read
        has an `error` instead.
        """
        data = self.data(commit, key)
        entry = self._repo.parse_entry(key, data)
        names = {"rev": commit.id, "key": key, "path": path, "version": _version(data)}
        found = names | entry_document(entry)
        try:
            marks = self._marks(commit, key, data, before)
            if not path and entry.size > _RANGED_BYTES and entry.codec in (BYTES, TEXT, FILE):
                described = self._range(entry, marks, first, limit)
            else:
                described = _described(self.part(commit, key, path), path, marks, first, limit)
            described["view"]["note"] = described["view"].get("note") or marks.note
            # Of a file, the type is its kind: the value is shown as a text or bytes.
            return found | described | ({"type": entry.type} if entry.codec == FILE else {})
        except (InertError, InvalidInput) as error:
            found["error"], found["kind"] = str(error), "unreadable"
            return found | {"view": None, "parts": [], "next": None}

    def _range(self, entry: Entry, marks: Marks, first: int, limit: int) -> dict[str, Any]:
        """A page of a long text or of many bytes; no more is read. `first` counts bytes of a text."""
        (part,) = entry.parts
        is_text = entry.codec == TEXT or (entry.codec == FILE and self._begins_as_text(part))
        unit, steps = (1, limit * _CHARACTERS) if is_text else (_ROW_BYTES, limit)
        start = min(first * unit, entry.size)
        stop = min(start + steps * unit, entry.size)
        raw = read_range(part, self._repo.objects, start, stop)
        if is_text:  # not through the middle of a character
            stop -= len(raw) - len(_CUT_CHARACTER.sub(b"", raw)) if stop < entry.size else 0
            raw = raw[: stop - start].lstrip(_CONTINUATION)
        found = _described(str(raw, "utf-8", "replace") if is_text else raw, "", marks, 0, limit)
        following = stop // unit if stop < entry.size else None
        found["view"] |= {"first": first, "next": following, "size": entry.size}
        found["view"] |= {"characters": None, "lines": None} if is_text else {"picture": False}
        return found | {"first": first}

    def _begins_as_text(self, part: Part) -> bool:
        """Whether a long file is shown as a text: its beginning is one, as far as git looks."""
        start = _CUT_CHARACTER.sub(b"", read_range(part, self._repo.objects, 0, _LOOKED_AT))
        return File(start).text() is not None

    def _marks(self, commit: Commit, key: str, data: bytes, before: Commit | None) -> Marks:
        old = None if before is None else tree.lookup(self._repo.objects.node, before.root, key)
        if old == data:
            return Marks([])
        if old is None:
            return Marks([], whole="added")
        if max(self._repo.parse_entry(key, each).size for each in (old, data)) > _MARKED_BYTES:
            return Marks(
                [], note=f"Parts of values over {size_text(_MARKED_BYTES)} are not marked; see Diff."
            )
        try:
            return Marks(details(self.read(key, old), self.read(key, data), limit=_MARKED))
        except (InertError, InvalidInput):
            return Marks([], whole="modified")

    def picture(self, commit: Commit, key: str, path: str) -> tuple[str, bytes]:
        """The media type and the bytes of a picture, perhaps stored in base64. NotFound for other values."""
        value = self.part(commit, key, path)
        data: bytes = b""
        if isinstance(value, str) and _text_picture(value):
            with_head = _DATA_URL.match(value)
            try:
                data = binascii.a2b_base64(value[with_head.end() :] if with_head else value)
            except ValueError:
                data = b""
        elif isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
        media = media_of(data[:12])
        if not is_picture(media, len(data)):
            raise NotFound(f"the value of {key!r} is no picture that is shown", name=key)
        return media, data


def is_picture(media: str, size: int) -> bool:
    """Whether so many bytes of this media type are shown as a picture."""
    return media in _PICTURES and size <= _LARGEST_PICTURE


def _version(data: bytes) -> str:
    """A name for the bytes of an entry."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _described(value: object, path: str, marks: Marks, first: int, limit: int) -> dict[str, Any]:
    """A part with its view: a page of what the view shows, or the parts inside."""
    view = _view(value, path, marks, first, limit)
    found = part_document(value, path, marks=marks)
    found |= {"first": first, "next": None, "parts": [], "view": view}
    if view["kind"] in ("chat", "table"):
        found["kind"] = view["kind"]
    elif view["kind"] == "tree":
        found["parts"] = [*part_documents(value, path, first, limit, marks)]
        found["next"] = _following(first, limit, found["count"])
    return found


def _following(first: int, limit: int, count: int) -> int | None:
    """The first item of the next page; None behind the last one."""
    return first + limit if first + limit < count else None


def _view(value: object, path: str, marks: Marks, first: int, limit: int) -> dict[str, Any]:
    """The view with its page of items; a tree has none."""
    view = view_of(value)
    if isinstance(value, str):
        characters = limit * _CHARACTERS
        return {
            "kind": "text",
            "characters": len(value),
            "lines": value.count("\n") + (not value.endswith("\n") and bool(value)),
            "text": value[first : first + characters],
            "first": first,
            "next": _following(first, characters, len(value)),
            "picture": _text_picture(value),
        }
    if isinstance(value, bytes | bytearray | memoryview):
        raw = memoryview(value).cast("B") if memoryview(value).contiguous else memoryview(bytes(value))
        media = media_of(bytes(raw[:12]))
        page = raw[first * _ROW_BYTES : (first + limit) * _ROW_BYTES]
        return {
            "kind": "bytes",
            "size": raw.nbytes,
            "media": view.media if isinstance(view, BytesView) else media,
            "picture": is_picture(media, raw.nbytes),
            "data": base64.b64encode(page).decode(),
            "first": first,
            "next": _following(first, limit, -(-raw.nbytes // _ROW_BYTES)),
        }
    if isinstance(view, TableView):
        return _table(value, view, path, marks, first, limit)
    if isinstance(value, Array):
        fields = document(view) if isinstance(view, ArrayView) else {}
        others = {name: part for name, part in fields.items() if name not in ("first", "last", "last_at")}
        return _array(value, first, limit) | others
    if isinstance(view, ChatView):
        return _chat(value, path, marks, first, limit)
    return {"kind": "tree", "note": getattr(view, "note", "")}


def _table(value: object, view: TableView, path: str, marks: Marks, first: int, limit: int) -> dict[str, Any]:
    cells = table_rows(value, first, first + limit)
    table = table_of(value)
    if table is None:
        steps = [step_of(name) for name in value[0]]  # type: ignore[index] # the view is of a list of dicts
    else:
        steps = [""] if table.type == "Series" else [step_of(column.name) for column in table.columns]
    changed = []
    for row in range(first, first + len(cells)):
        label = f"[{row}]" if table is None else step_of(table.label(row))
        is_new = marks.at(_inside(path, label if table is None else f".rows{label}")) == "added"
        for number, step in enumerate(steps[: len(view.columns)]):
            if is_new or marks.of(_inside(path, label + step if table is None else step + label)):
                changed.append([row, number])
    changed_columns = [
        number
        for number, step in enumerate(steps[: len(view.columns)])
        if table is not None and step and marks.at(_inside(path, step))
    ]
    fields = {name: part for name, part in document(view).items() if name not in ("first", "last")}
    return fields | {
        "first": first,
        "cells": cells,
        "next": _following(first, limit, view.rows),
        "changed": changed,
        "changed_columns": changed_columns,
        # Of the whole table, once: with its first page.
        "changes": _changed_cells(value, steps[: len(view.columns)], [] if first else marks.inside(path)),
    }


def _changed_cells(value: object, steps: list[str], paths: list[str]) -> list[tuple[int, int]]:
    """The rows and columns of the cells to which the paths lead, in their order."""
    table = table_of(value)
    rows: dict[str, int] = {}
    if table is not None and paths and table.rows <= _MOST_LABELS:
        levels = [level.cells(0, table.rows) for level in table.labels]
        labels = levels[0] if len(levels) == 1 else [*zip(*levels, strict=True)] or range(table.rows)
        rows = {step_of(label): row for row, label in enumerate(labels)}
    found = []
    for path in paths:
        item = _ITEM.match(path) if table is None else None
        for number, step in enumerate(steps):
            if item is not None and path.startswith(step, item.end()):
                found.append((int(item[1]), number))
            elif table is not None and path.startswith(step) and path[len(step) :] in rows:
                found.append((rows[path[len(step) :]], number))
    return found


def _inside(path: str, steps: str) -> str:
    """The path of a part inside the one at `path`."""
    return path + steps if path else steps.removeprefix(".")


def _array(array: Array, first: int, limit: int) -> dict[str, Any]:
    shape = array_shape(array)
    histogram, stop = None, min(first + limit, array.count)
    if shape is not None:
        histogram = {name: getattr(shape, name) for name in ("low", "high", "counts", "sampled")}
    return {
        "kind": "array",
        "type": array.type,
        "shape": array.shape,
        "count": array.count,
        "first": first,
        "elements": [cell_text(element) for element in array.elements(first, stop)],
        "next": _following(first, limit, array.count),
        "histogram": histogram,
        "line": None if shape is None else shape.line,
    }


def _chat(value: Any, path: str, marks: Marks, first: int, limit: int) -> dict[str, Any]:
    chat = chat_view(value, first=first, limit=limit, most=_LONGEST_MESSAGE)
    messages = [] if chat is None else [asdict(message) for message in chat.messages]
    for message in messages:
        message["new"] = marks.of(f"{path}[{message['place']}]") is not None
        for call in message["calls"]:
            is_later = call["result_at"] is not None and not message["new"]
            call["new"] = is_later and marks.of(f"{path}[{call['result_at']}]") is not None
    return {
        "kind": "chat",
        "count": len(value),
        "first": first,
        "next": _following(first, limit, len(value)),
        "messages": messages,
    }


def _text_picture(text: str) -> str | None:
    """The media type of a picture that a text holds in base64; None for any other text."""
    head = _DATA_URL.match(text)
    body = text[head.end() if head else 0 :][:4096]
    if not head and not body.startswith(_BASE64_STARTS):
        return None
    if _BASE64.fullmatch(body) is None:
        return None
    try:
        media = media_of(binascii.a2b_base64(body[:32])[:12])
    except ValueError:
        return None
    return media if media in _PICTURES else None
