"""Changes of keys, and of the values inside them, as lines and as documents."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from rich.cells import cell_len

from vstate.errors import StorageError, VStateError
from vstate.repo.compare.details import Detail, common_prefix
from vstate.repo.compare.diff import Change, Diff
from vstate.values.entry import Entry
from vstate.values.inert import Array, plain, preview
from vstate.values.inspection import describe, size_text
from vstate_cli.output import Document, Line, Output, padded, safe
from vstate_cli.values import LONG_TEXT, NARROW, UNREADABLE, entry_document

_SIGNS: Final = {"added": "+", "removed": "-", "modified": "~"}
_STYLES: Final = {"added": "green", "removed": "red", "modified": "cyan"}
_WIDEST_NAME: Final = 40

_MOST_NAMES: Final = 8  # of keys, in a line
_SHARED_PREFIX: Final = 20  # characters shown of the beginning that two long texts share
_MOST_LINES: Final = 4000  # of all texts inside one key that are compared line by line
_LONGEST_COMPARED: Final = 4_000_000  # characters of two texts that are compared line by line
_LONGEST_LINE: Final = 1000
_LINE_NODES: Final = 40_000  # parts of all values that the lines of one key show
_FEWEST_LINE_NODES: Final = 40  # of each value
_MOST_DOCUMENTS: Final = 1000  # inside one key
_DOCUMENT_NODES: Final = 100_000  # parts of all values in the documents of one key
_MOST_DOCUMENT_NODES: Final = 10_000  # of each value
_FEWEST_DOCUMENT_NODES: Final = 50


# A whole diff


def diff_lines(
    diff: Diff, out: Output, *, keys: Iterable[str] | None = None, limit: int = 200
) -> Iterator[Line]:
    """Each changed key with the changes inside it, at most `limit` of a key, as `vstate diff` draws them.

    `keys` are some of the changed keys; None means all.
    """
    for key in diff if keys is None else keys:
        yield line(diff[key])
        for inside in detail_lines(diff, key, out, limit):
            yield ["    ", *inside]


# Keys


def line(change: Change, width: int = 0) -> Line:
    """A changed key: the sign, the name padded to `width` columns, type and size."""
    name = padded(safe(change.key), width)
    return [(f"{_SIGNS[change.kind]} {name}", f"bold {_STYLES[change.kind]}"), "  ", (sides(change), "dim")]


def name_width(names: Iterable[str]) -> int:
    """The columns that aligned names need. Very long names do not count."""
    return min(max((cell_len(safe(name)) for name in names), default=0), _WIDEST_NAME)


def sides(change: Change) -> str:
    """Type and size before and after: `list, 4.1 kB -> 4.3 kB`."""
    try:
        old, new = change.old_entry, change.new_entry
    except ValueError:
        return "an unreadable entry"
    if old is None or new is None:
        entry = old or new
        return safe(describe(entry)) if entry is not None else ""
    if old.type != new.type:
        return safe(f"{describe(old)} -> {describe(new)}")
    sizes = size_text(old.size), size_text(new.size)
    return safe(describe(new) if sizes[0] == sizes[1] else f"{new.type}, {sizes[0]} -> {sizes[1]}")


def names(diff: Diff, only: str | None = None) -> Line:
    """The changed keys in one line: `+new ~changed -gone … 3 more`. With `only`, the change of that key."""
    if only is not None:
        return line(diff[only]) if only in diff else []
    parts: Line = []
    for key, change in islice(diff.items(), _MOST_NAMES):
        parts += [" "] if parts else []
        parts.append((_SIGNS[change.kind] + safe(key, 60), _STYLES[change.kind]))
    if len(diff) > _MOST_NAMES:
        parts.append((f" … {len(diff) - _MOST_NAMES} more", "dim"))
    return parts


def counts(diff: Diff) -> Line:
    """The numbers of changed keys: ` +1 ~2 -1`."""
    kinds = (("added", diff.added), ("modified", diff.modified), ("removed", diff.removed))
    return [(f" {_SIGNS[kind]}{len(keys)}", _STYLES[kind]) for kind, keys in kinds if keys]


def keys_document(diff: Diff) -> Document:
    """The changed keys by kind."""
    return {"added": diff.added, "modified": diff.modified, "removed": diff.removed}


def document(change: Change) -> Document:
    """A changed key with types and sizes in bytes. A side that does not exist is null."""
    try:
        old, new = change.old_entry, change.new_entry
    except ValueError as error:
        return {"key": change.key, "kind": change.kind, "old": None, "new": None, "error": str(error)}
    return {"key": change.key, "kind": change.kind, "old": _side(old), "new": _side(new)}


def _side(entry: Entry | None) -> Document | None:
    return None if entry is None else entry_document(entry)


# Inside a key


def _details(diff: Diff, key: str, out: Output, limit: int) -> list[Detail] | VStateError:
    """The changes inside a key, or the error that prevents reading its values. Notes damage in the output."""
    try:
        return diff.details(key, limit=limit)
    except UNREADABLE as error:
        return error
    except StorageError as error:
        out.damage = out.damage or error
        return error


def detail_documents(diff: Diff, key: str, out: Output) -> Document:
    """The changes inside a key as `details`, or `error` if its values cannot be read."""
    found = _details(diff, key, out, _MOST_DOCUMENTS)
    if isinstance(found, VStateError):
        return {"error": str(found)}
    nodes = min(_DOCUMENT_NODES // (2 * len(found) or 1), _MOST_DOCUMENT_NODES)
    return {"details": [_detail_document(detail, max(nodes, _FEWEST_DOCUMENT_NODES)) for detail in found]}


def _detail_document(detail: Detail, nodes: int) -> Document:
    members: Document = {"path": detail.path, "kind": detail.kind}
    if detail.kind != "added":
        members["old"] = plain(detail.old, max_nodes=nodes)
    if detail.kind != "removed":
        members["new"] = plain(detail.new, max_nodes=nodes)
    if detail.note:
        members["note"] = detail.note
    return members


def detail_lines(diff: Diff, key: str, out: Output, limit: int) -> Iterator[Line]:
    """The changes inside a key by path, at most `limit`, or the reason why its values cannot be read."""
    found = _details(diff, key, out, limit + 1)
    if isinstance(found, VStateError):
        yield [(f"({safe(str(found))})", "bold red" if isinstance(found, StorageError) else "yellow")]
        return
    nodes = max(_LINE_NODES // max(len(found), 1), _FEWEST_LINE_NODES)
    lines_left = _MOST_LINES
    for detail in found[:limit]:
        lines = _lines_to_compare(detail)
        by_line = 0 < lines <= lines_left
        lines_left -= lines if by_line else 0
        yield from _detail_lines(detail, out, nodes, by_line=by_line)
    if len(found) > limit:
        yield [(f"… more than {limit} changes", "dim")]
    elif not found:
        yield [("(the same value, stored in another way)", "dim")]


def _detail_lines(detail: Detail, out: Output, nodes: int, *, by_line: bool) -> Iterator[Line]:
    path, style = safe(detail.path), _STYLES[detail.kind]
    mark = f"{_SIGNS[detail.kind]} "
    note = f"  ({safe(detail.note)})" if detail.note else ""
    colon = ": " if path else ""
    used = 8 + cell_len(path) + len(note)
    if detail.kind != "modified":
        value = detail.new if detail.kind == "added" else detail.old
        start: Line = [(f"{mark}{path}", style), colon] if path else []
        yield [*start, out.fit(_one_line(value, nodes), used), (note, "dim")]
        return
    old, new = detail.old, detail.new
    if by_line and isinstance(old, str) and isinstance(new, str):
        yield [(f"{mark}{path or 'text'}", style), ":", (note, "dim")]
        yield from _text_diff(old, new)
        return
    if isinstance(old, Array) and isinstance(new, Array) and note:
        # The reader keeps only the first elements, and the elements that differ may come later.
        yield [(f"{mark}{path}", style), colon, detail.note]
        return
    before, after = _both_sides(old, new, out.width, nodes)
    start = [(mark, style), (path, style), colon]
    if used + cell_len(before) + cell_len(after) + 4 <= (out.width or NARROW):
        yield [*start, (before, "red"), " -> ", (after, "green"), (note, "dim")]
        return
    if path or note:
        yield [*start[:2], (note, "dim")]
    yield [("  - ", "red"), (out.fit(before, 8), "red")]
    yield [("  + ", "green"), (out.fit(after, 8), "green")]


def _one_line(value: object, nodes: int) -> str:
    return preview(value, width=None, max_nodes=nodes)


def _both_sides(old: object, new: object, width: int | None, nodes: int) -> tuple[str, str]:
    """Both sides as a line each. Long texts begin shortly before their first difference."""
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > (width or LONG_TEXT) // 2:
        start = common_prefix(old, new) - _SHARED_PREFIX
        if start > 0:
            return _from(old, start), _from(new, start)
    return _one_line(old, nodes), _one_line(new, nodes)


def _from(text: str, start: int) -> str:
    piece = text[start : start + LONG_TEXT]
    rest = len(text) - start - len(piece)
    return f"…{piece!r}… {rest} more" if rest else f"…{piece!r}"


def _lines_to_compare(detail: Detail) -> int:
    """The lines of both texts of a detail; 0 if it is no change of a text of several lines."""
    old, new = detail.old, detail.new
    if not isinstance(old, str) or not isinstance(new, str) or len(old) + len(new) > _LONGEST_COMPARED:
        return 0
    ends = old.count("\n") + new.count("\n")
    return ends + 2 if ends else 0


def _text_diff(old: str, new: str) -> Iterator[Line]:
    """The lines in which two texts differ, with one line around them, as in `diff -u`."""
    styles = {"+": "green", "-": "red", "@": "cyan", " ": ""}
    hunks = difflib.unified_diff(old.split("\n"), new.split("\n"), n=1, lineterm="")
    for text in islice(hunks, 2, None):
        yield ["  ", (safe(text, _LONGEST_LINE), styles[text[0]])]
