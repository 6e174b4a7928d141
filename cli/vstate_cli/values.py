"""Values as lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.cells import cell_len

from vstate.display.arrays import ArrayView
from vstate.display.chats import ChatView
from vstate.display.tables import TableView
from vstate.display.views import BytesView, TextView, TreeView, view_of
from vstate.errors import InvalidInput
from vstate.values.inert import InertError, preview
from vstate_cli import drawing
from vstate_cli.output import Output

UNREADABLE: Final = (InertError, InvalidInput)
"""`Repository.inspect` raises these for an intact value that is malformed or too large to show."""

NARROW: Final = 100  # columns of a line where there is no terminal
LONG_TEXT: Final = 400  # characters

_MOST_ITEMS: Final = 100
_MOST_ITEMS_BELOW: Final = 6  # short items that stand one below the other
_SHORT_ITEM: Final = re.compile(r" +(-?[0-9][0-9.e+-]*|nan|-?inf|True|False|None|'[^']{,30}'),")


def write_value(value: object, out: Output) -> None:
    """Write a value for people, as its view says; a text as it is, any other value pretty-printed."""
    width = out.width or NARROW
    view = view_of(value)
    match view:
        case TextView() if isinstance(value, str):
            out.text(value)
        case TableView():
            out.lines(drawing.table_lines(view, width))
        case ArrayView():
            out.lines(drawing.array_lines(view, width))
        case ChatView():
            out.lines(drawing.chat_lines(view, width))
        case BytesView() if isinstance(value, bytes | bytearray | memoryview):
            out.lines(drawing.bytes_lines(memoryview(value), view.media))
        case _:
            if isinstance(view, TreeView) and view.note:
                out.line((f"({view.note})", "yellow"))
            _write_tree(value, out, width)


def _write_tree(value: object, out: Output, width: int) -> None:
    text = preview(value, width=width, max_depth=10, max_items=_MOST_ITEMS, measure=cell_len)
    for short, group in groupby(text.split("\n"), key=lambda text: bool(_SHORT_ITEM.fullmatch(text))):
        run = [*group]
        for line in _joined(run, width) if short and len(run) > _MOST_ITEMS_BELOW else run:
            out.line(line if out.width is None else drawing.cut(line, width))


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
