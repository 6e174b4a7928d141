"""Views: a stored value as a description that a front end draws."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from vstate.display.arrays import ArrayView, array_view
from vstate.display.chats import ChatView, chat_view, message_text
from vstate.display.tables import TableView, column_text, records_view, table_view
from vstate.values.arrays import Array
from vstate.values.instance import Instance
from vstate.values.tables import is_table

_LONG_TEXT: Final = 400  # characters
_LONG_BYTES: Final = 100
_MEDIA: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
    b"PK\x03\x04": "application/zip",
    b"\x1f\x8b": "application/gzip",
}


@dataclass(frozen=True, slots=True)
class TextView:
    """A text that is long or has lines; a front end shows the text itself."""

    characters: int
    lines: int


@dataclass(frozen=True, slots=True)
class BytesView:
    """Many bytes; `media` is a media type that their beginning shows, "" if it shows none."""

    size: int
    media: str


@dataclass(frozen=True, slots=True)
class TreeView:
    """Any other value: a tree of its parts. `note` says why a value that looks like a table is none."""

    type: str
    note: str = ""


View = TableView | ArrayView | ChatView | TextView | BytesView | TreeView

_KINDS: Final[dict[type, str]] = {
    TableView: "table",
    ArrayView: "array",
    ChatView: "chat",
    TextView: "text",
    BytesView: "bytes",
    TreeView: "tree",
}


def part_text(value: object, most: int | None = None) -> str | None:
    """A message or a column as a text; None for another value."""
    text = message_text(value) if most is None else message_text(value, most)
    return column_text(value) if text is None else text


def view_of(value: object) -> View:
    """What a value, as `inert.read` returns it, looks like.

    Frames, and lists of records of the same short fields, are tables; a list of messages with roles is a
    chat. A form that is not known is a tree.
    """
    if isinstance(value, str):
        is_long = "\n" in value or len(value) > _LONG_TEXT
        return TextView(len(value), value.count("\n") + 1) if is_long else TreeView("str")
    if isinstance(value, bytes | bytearray | memoryview):
        data = memoryview(value)
        if data.nbytes <= _LONG_BYTES or data.format != "B":
            return TreeView(type(value).__name__)
        return BytesView(data.nbytes, media_of(bytes(data[:12])))
    if isinstance(value, Array):
        return array_view(value) or TreeView(value.type)
    if is_table(value):
        assert isinstance(value, Instance)
        note = "its columns are stored in a form that vstate does not know; these are its fields"
        return table_view(value) or TreeView(value.type, note)
    if isinstance(value, list | tuple):
        return chat_view(value) or records_view(value) or TreeView(type(value).__name__)
    return TreeView(value.type if isinstance(value, Instance) else type(value).__name__)


def document(view: View) -> dict[str, Any]:
    """The view as a JSON object, with its `kind`."""
    return {"kind": _KINDS[type(view)], **asdict(view)}


def media_of(start: bytes) -> str:
    """The media type that the first bytes of a file show; "" if they show none."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((media for sign, media in _MEDIA.items() if start.startswith(sign)), "")
