"""Cells: the text of one short value in a table, an array or a conversation."""

from __future__ import annotations

import math
import re
from typing import Final

from vstate.values.preview import preview

_LONGEST: Final = 80
_WHITESPACE: Final = re.compile(r"\s+")
_NO_FRACTION: Final = re.compile(r"(T\d\d:\d\d:\d\d)\.0+(?!\d)")
_MIDNIGHT: Final = "T00:00:00"


def cell_text(value: object) -> str:
    """A cell in one short line: a text without quotes, a time without an empty fraction; "" for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = value[: _LONGEST + 1]
        if "T" in text:
            text = _NO_FRACTION.sub(r"\1", text).removesuffix(_MIDNIGHT)
        return cut_text(text)
    if isinstance(value, float) and math.isfinite(value):
        text = repr(value)
        return text if len(text) <= 12 else f"{value:.6g}"
    return cut_text(preview(value, width=None, max_depth=2, max_items=5, max_nodes=30))


def line_text(text: str, most: int) -> str:
    """The beginning of a text of several lines as one line of at most `most` characters."""
    return cut_text(_WHITESPACE.sub(" ", text[: 4 * most]).strip(), most, is_cut=len(text) > 4 * most)


def cut_text(text: str, most: int = _LONGEST, *, is_cut: bool = False) -> str:
    """The beginning of a text, of at most `most` characters; it ends in "…" if more follows."""
    return text if len(text) <= most and not is_cut else f"{text[: most - 1]}…"
