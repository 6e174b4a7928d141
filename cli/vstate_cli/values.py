"""Values as lines: their views, and the changes of texts and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.cells import cell_len

from vstate.display.arrays import ArrayView
from vstate.display.chats import CallView, ChatView
from vstate.display.tables import TableView
from vstate.display.texts import BytesChange, Hunk
from vstate.display.views import BytesView, TextView, TreeView, view_of
from vstate.errors import InvalidInput
from vstate.plural import counted
from vstate.values.budget import InertError
from vstate.values.inspection import size_text
from vstate.values.preview import preview
from vstate_cli.output import Line, Output, cut, padded, safe

UNREADABLE: Final = (InertError, InvalidInput)
"""`Repository.inspect` raises these for an intact value that is malformed or too large to show."""

NARROW: Final = 100  # columns of a line where there is no terminal
LONG_TEXT: Final = 400  # characters

_MOST_ITEMS: Final = 100
_MOST_ITEMS_BELOW: Final = 6  # short items that stand one below the other
_SHORT_ITEM: Final = re.compile(r" +(-?[0-9][0-9.e+-]*|nan|-?inf|True|False|None|'[^']{,30}'),")
_WIDEST_CELL: Final = 30
_NARROWEST_CELL: Final = 6
_BYTES_IN_ROW: Final = 16
_MOST_BYTES: Final = 512
_WIDEST_ROLE: Final = 20
_LONGEST_CALL: Final = 60
_STYLES: Final = {"+": "green", "-": "red", " ": ""}
_CHANGED: Final = {"+": "bold green reverse", "-": "bold red reverse", " ": ""}


def write_value(value: object, out: Output) -> None:
    """Write a value for people, as its view says; a text as it is, any other value pretty-printed."""
    width = out.width or NARROW
    view = view_of(value)
    match view:
        case TextView() if isinstance(value, str):
            out.text(value)
        case TableView():
            out.lines(table_lines(view, width))
        case ArrayView():
            out.lines(array_lines(view, width))
        case ChatView():
            out.lines(chat_lines(view, width))
        case BytesView() if isinstance(value, bytes | bytearray | memoryview):
            out.lines(bytes_lines(memoryview(value), view.media))
        case _:
            if isinstance(view, TreeView) and view.note:
                out.line((f"({view.note})", "yellow"))
            _write_tree(value, out, width)


def _write_tree(value: object, out: Output, width: int) -> None:
    text = preview(value, width=width, max_depth=10, max_items=_MOST_ITEMS, measure=cell_len)
    for short, group in groupby(text.split("\n"), key=lambda text: bool(_SHORT_ITEM.fullmatch(text))):
        run = [*group]
        for line in _joined(run, width) if short and len(run) > _MOST_ITEMS_BELOW else run:
            out.line(line if out.width is None else cut(line, width))


def _joined(lines: list[str], width: int) -> Iterator[str]:
    """Lines of one short item each, joined into lines of `width` columns."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    text = indent
    for line in lines:
        item = line.strip()
        if text != indent and len(text) + len(item) + 1 > width:
            yield text.rstrip()
            text = indent
        text += f"{item} "
    yield text.rstrip()


# Tables


def table_lines(view: TableView, width: int) -> Iterator[Line]:
    """A table: its size, its columns with their dtypes, and its first and last rows."""
    across = counted(len(view.columns) + view.more_columns, "column")
    yield [(cut(f"{safe(view.type)}: {counted(view.rows, 'row')}, {across}", width), "bold")]
    heads = [safe(column.name) for column in (*view.labels, *view.columns)]
    dtypes = [safe(column.dtype) for column in (*view.labels, *view.columns)]
    if view.labels == view.labels[:1] and not view.labels[0].name:
        dtypes[0] = ""  # numbers of rows
    body = [[safe(cell) for cell in row] for row in (*view.first, *view.last)]
    grid = [heads, dtypes, *body]
    widths = [min(max(cell_len(row[at]) for row in grid), _WIDEST_CELL) for at in range(len(heads))]
    shown = _fitting(widths, width)
    rights = [_is_number(dtype) for dtype in dtypes]
    gap: list[str] | None = None
    if view.last:
        gap = ["…" for _ in heads]
    yield _row(heads, widths, rights, shown, "bold")
    yield _row(dtypes, widths, rights, shown, "dim")
    for number, row in enumerate(body):
        if gap is not None and number == len(view.first):
            yield _row(gap, widths, rights, shown, "dim")
        yield _row(row, widths, rights, shown)
    hidden = heads[shown:]
    if hidden or view.more_columns:
        count = len(hidden) + view.more_columns
        names = ", ".join(f"{name} {dtype}" for name, dtype in zip(hidden, dtypes[shown:], strict=True))
        yield [(cut(f"… {counted(count, 'more column')}{f': {names}' if names else ''}", width), "dim")]
    unread = [safe(column.name) for column in view.columns if not column.is_readable]
    if unread:
        yield [(cut(f"(vstate cannot read the cells of {', '.join(unread)})", width), "yellow")]


def _fitting(widths: list[int], width: int) -> int:
    """How many columns fit; narrows the last one rather than leave it out."""
    used = 0
    for number, each in enumerate(widths):
        room = width - used
        if each > room:
            if room >= _NARROWEST_CELL or not number:
                widths[number] = max(room, 1)
                return number + 1
            return number
        used += each + 2
    return len(widths)


def _row(cells: Sequence[str], widths: list[int], rights: list[bool], shown: int, style: str = "") -> Line:
    parts = []
    for cell, width, right in list(zip(cells, widths, rights, strict=True))[:shown]:
        text = cut(cell, width)
        parts.append(" " * (width - cell_len(text)) + text if right else padded(text, width))
    return [("  ".join(parts).rstrip(), style)]


def _is_number(dtype: str) -> bool:
    return dtype.lower().startswith(("int", "uint", "float", "complex", "double")) or dtype == ""


# Arrays


def array_lines(view: ArrayView, width: int) -> Iterator[Line]:
    """An array: dtype, shape, range, and its first and last elements with their indices."""
    shape = " × ".join(f"{size:,}" for size in view.shape) or "one element"
    facts = [f"{view.dtype}", shape]
    if view.order == "F":
        facts.append("columns first")
    if view.low:
        facts.append(f"{view.low} to {view.high}")
    if view.nans:
        facts.append(f"{view.nans:,} nan")
    yield [(cut(f"{safe(view.type)}: {safe(', '.join(facts))}", width), "bold")]
    for start, texts in ((0, view.first), (view.last_at, view.last)):
        if not texts:
            continue
        if start:
            yield [("…", "dim")]
        yield from _elements([safe(text) for text in texts], start, view, width)


def _elements(texts: list[str], start: int, view: ArrayView, width: int) -> Iterator[Line]:
    widest = min(max(map(cell_len, texts)), _WIDEST_CELL)
    places = (*range(len(view.first)), *range(view.last_at, view.last_at + len(view.last)))
    label = max(len(_label(view, place)) for place in places) + 1
    fitting = max((width - label) // (widest + 1), 1)
    per_line = min(view.columns, fitting) if view.columns else fitting
    step = view.columns or per_line
    for at in range(0, len(texts), step):
        row = texts[at : at + step][:per_line]
        cells = " ".join(" " * (widest - cell_len(text := cut(cell, widest))) + text for cell in row)
        more = " …" if step > per_line else ""
        yield [(f"{_label(view, start + at):<{label}}", "dim"), cut(f"{cells}{more}", max(width - label, 1))]


def _label(view: ArrayView, place: int) -> str:
    return "".join(f"[{step}]" for step in view.index(place))


# Conversations


def chat_lines(view: ChatView, width: int) -> Iterator[Line]:
    """One line a message, and one for each call of a tool with its result."""
    yield [(counted(view.count, "message"), "bold")]
    label = len(f"[{max((message.place for message in view.messages), default=0)}]") + 1
    widest = max((cell_len(safe(_who(m.role, m.name))) for m in view.messages), default=0)
    role_width = min(widest, _WIDEST_ROLE, width // 4)
    for message in view.messages:
        start = f"{f'[{message.place}]':<{label}}"
        who = padded(cut(safe(_who(message.role, message.name)), role_width), role_width)
        room = max(width - label - role_width - 2, 1)
        lines = [safe(message.text)] if message.text or not message.calls else []
        yield from _message(start, who, [cut(text, room) for text in lines], message.calls, room)
    if view.more:
        yield [(f"… {view.more:,} more", "dim")]


def _message(start: str, who: str, texts: list[str], calls: Iterable[CallView], room: int) -> Iterator[Line]:
    for text in texts:
        yield [(start, "dim"), (who, "cyan"), "  ", text]
        start, who = " " * len(start), " " * cell_len(who)
    for call in calls:
        made = cut(safe(f"{call.name}({call.arguments})"), min(_LONGEST_CALL, room) if call.result else room)
        line: Line = [(start, "dim"), (who, "cyan"), "  ", (made, "yellow")]
        if call.result is not None:
            left = room - cell_len(made) - 4
            line += [" -> ", cut(safe(call.result), left)] if left > 8 else []
        yield line
        start, who = " " * len(start), " " * cell_len(who)


def _who(role: str, name: str) -> str:
    return f"{role} {name}" if name and name != role else role


# Bytes


def bytes_lines(data: memoryview, media: str, limit: int = _MOST_BYTES) -> Iterator[Line]:
    """The size and the kind of bytes, and their beginning in hexadecimal."""
    yield [(f"{size_text(len(data))}{f', {media}' if media else ''}", "bold")]
    for at in range(0, min(len(data), limit), _BYTES_IN_ROW):
        row = bytes(data[at : at + _BYTES_IN_ROW])
        yield [(f"{at:08x}  ", "dim"), f"{row.hex(' '):<{3 * _BYTES_IN_ROW - 1}}  ", (_ascii(row), "cyan")]
    if len(data) > limit:
        yield [(f"… {counted(len(data) - limit, 'more byte')} (--json has them all)", "dim")]


def _ascii(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def bytes_change_lines(found: Iterable[BytesChange]) -> Iterator[Line]:
    """The bytes that differ, by offset."""
    for change in found:
        yield [(f"@@ byte {change.offset} @@", "cyan")]
        for sign, size, text in (("-", change.old_size, change.old), ("+", change.new_size, change.new)):
            data = bytes.fromhex(text)
            for at in range(0, len(data), _BYTES_IN_ROW):
                row = data[at : at + _BYTES_IN_ROW]
                yield [(f"{sign}{row.hex(' '):<{3 * _BYTES_IN_ROW - 1}}  {_ascii(row)}", _STYLES[sign])]
            if size > len(data):
                yield [(f"{sign}… {counted(size - len(data), 'more byte')}", _STYLES[sign])]


# Texts


def hunk_lines(hunks: Iterable[Hunk], coloured: bool) -> Iterator[Line]:
    """Changed lines as in `diff -u`; a terminal with colours marks the changed words."""
    for hunk in hunks:
        old, new = _range(hunk.old_line, hunk.old_count), _range(hunk.new_line, hunk.new_count)
        column = next((change.column for change in hunk.lines if change.column), 0)
        where = f" character {column}" if column else ""
        yield [(f"@@ -{old} +{new} @@{where}", "cyan")]
        for change in hunk.lines:
            line: Line = [(change.sign, _STYLES[change.sign])]
            for piece in change.pieces:
                styles = _CHANGED if piece.is_changed and coloured else _STYLES
                line.append((safe(piece.text), styles[change.sign]))
            yield line


def _range(line: int, count: int) -> str:
    return str(line) if count == 1 else f"{line},{count}"
