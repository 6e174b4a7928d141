"""Changes of keys, and of the values inside them, as lines and as documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from rich.cells import cell_len

from vstate.display import documents
from vstate.display.cells import cell_text
from vstate.display.chats import ChatView
from vstate.display.texts import bytes_changes, text_hunks
from vstate.display.views import part_text, view_of
from vstate.errors import StorageError, VStateError
from vstate.repo.compare.details import Detail
from vstate.repo.compare.diff import SIGNS, Change, Diff, counts_by_kind
from vstate.repo.compare.patches import Patch
from vstate.values.alignment import common_ends
from vstate.values.arrays import Array
from vstate.values.inspection import describe, size_text
from vstate.values.instance import Instance
from vstate.values.plain import plain
from vstate.values.preview import preview
from vstate_cli import values
from vstate_cli.output import Document, Line, Output, columns, padded, safe

_STYLES: Final = {"added": "green", "removed": "red", "modified": "cyan"}
_PATCH_STYLES: Final = {"+": "green", "-": "red", "@": "cyan", " ": "", "\\": "dim"}
_WIDEST_NAME: Final = 40

_MOST_MESSAGES: Final = 20  # of a conversation that came or went as a whole
_MOST_NAMES: Final = 8  # of keys, in a line
_LONGEST_NAME: Final = 60
_SHARED_PREFIX: Final = 20  # characters shown of the beginning that two long texts share
_SHARED_BYTES: Final = 4
_MOST_ELEMENTS: Final = 4  # of a range of an array
_LONGEST_BESIDE: Final = 160  # characters of two texts that stand in one line
_MOST_COMPARED: Final = 32_000_000  # characters of all texts inside one key that are compared by line
_LINE_NODES: Final = 40_000  # parts of all values that the lines of one key show
_FEWEST_LINE_NODES: Final = 40  # of each value
_MOST_DOCUMENTS: Final = 1000  # inside one key
_DOCUMENT_NODES: Final = 100_000  # parts of all values in the documents of one key
_MOST_DOCUMENT_NODES: Final = 10_000  # of each value
_FEWEST_DOCUMENT_NODES: Final = 50


# A whole diff


def diff_lines(
    diff: Diff,
    out: Output,
    keys: Iterable[str] | None = None,
    *,
    limit: int = 200,
    used: int = 0,
    path: str = "",
    width: int = 0,
    patches: bool = False,
) -> Iterator[Line]:
    """Each changed key with the changes inside it, at most `limit` of a key, as `vstate diff` draws them.

    `keys` are some of the changed keys; None means all. With `path`, only the changes inside that part. The
    lines leave `used` columns of the terminal free. Names are padded to `width` columns. With `patches`, the
    change of a File is a whole patch in the form of git. Without changes inside, its lines are counted.
    """
    for key in diff if keys is None else keys:
        patch = _patch(diff, key) if patches or not limit else None
        if patch is not None and limit:
            for text in patch.text.split("\n")[:-1]:
                yield [(out.exact(text), _PATCH_STYLES.get(text[:1], "bold"))]
            continue
        yield [*line(diff[key], width), *(_lines_changed(patch) if patch else ())]
        if limit:
            yield from (["    ", *inside] for inside in detail_lines(diff, key, out, limit, used + 4, path))


# Keys


def line(change: Change, width: int = 0) -> Line:
    """A changed key: the sign, the name padded to `width` columns, type and size."""
    name = padded(safe(change.key), width)
    return [(f"{SIGNS[change.kind]} {name}", f"bold {_STYLES[change.kind]}"), "  ", (sides(change), "dim")]


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


def names(diff: Diff, room: int | None) -> Line:
    """The changed keys in one line, as many as fit into `room` columns: `+new ~changed -gone … 3 more`."""
    parts: Line = []
    shown = 0
    for key, change in islice(diff.items(), _MOST_NAMES):
        name = SIGNS[change.kind] + safe(key, _LONGEST_NAME)
        left = len(diff) - shown - 1
        rest = cell_len(f" … {left} more") if left else 0
        if shown and room is not None and columns(parts) + 1 + cell_len(name) + rest > room:
            break
        parts += [" ", (name, _STYLES[change.kind])] if shown else [(name, _STYLES[change.kind])]
        shown += 1
    if len(diff) > shown:
        parts.append((f" … {len(diff) - shown} more", "dim"))
    return parts


def counts(diff: Diff) -> Line:
    """The numbers of changed keys: ` +1 ~2 -1`."""
    return [
        (f" {SIGNS[kind]}{count}", _STYLES[kind]) for kind, count in counts_by_kind(diff).items() if count
    ]


# Inside a key


def _patch(diff: Diff, key: str) -> Patch | None:
    """The change of a File; None for other values, and for a file that cannot be read."""
    try:
        return diff.patch(key)
    except (*values.UNREADABLE, StorageError, ValueError):
        return None


def _details(diff: Diff, key: str, out: Output, limit: int, path: str) -> list[Detail] | VStateError:
    """The changes inside a key, or the error that prevents reading its values. Notes damage in the output."""
    try:
        return diff.details(key, limit=limit, path=path)
    except values.UNREADABLE as error:
        return error
    except StorageError as error:
        out.damage = out.damage or error
        return error


def _lines_changed(patch: Patch) -> Line:
    signs = (("  +", patch.added, "green"), ("  -" if not patch.added else " -", patch.removed, "red"))
    return [(f"{sign}{count}", style) for sign, count, style in signs if count]


def diff_documents(
    diff: Diff, out: Output, keys: Iterable[str], *, is_inside: bool, path: str = ""
) -> Iterator[Document]:
    """Each of these changed keys; if `is_inside`, with the changes inside it."""
    for key in keys:
        document = documents.change_document(diff[key])
        if is_inside and "error" not in document:
            document |= detail_documents(diff, key, out, path)
        if (patch := None if path else _patch(diff, key)) is not None:
            document |= {"lines": {"added": patch.added, "removed": patch.removed}}
            document |= {"patch": patch.text} if is_inside else {}
        yield document


def detail_documents(diff: Diff, key: str, out: Output, path: str = "") -> Document:
    """The changes inside a key as `details`, or `error` if its values cannot be read."""
    found = _details(diff, key, out, _MOST_DOCUMENTS, path)
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


def detail_lines(diff: Diff, key: str, out: Output, limit: int, used: int, path: str = "") -> Iterator[Line]:
    """The changes inside a key by path, at most `limit`, or the reason why its values cannot be read.

    Values are cut so that the lines leave `used` columns of the terminal free; the lines of texts are not.
    """
    found = _details(diff, key, out, limit + 1, path)
    if isinstance(found, VStateError):
        yield [(f"({safe(str(found))})", "bold red" if isinstance(found, StorageError) else "yellow")]
        return
    nodes = max(_LINE_NODES // max(len(found), 1), _FEWEST_LINE_NODES)
    left = _MOST_COMPARED
    for detail in found[:limit]:
        size = _size_to_compare(detail)
        is_inside = 0 < size <= left
        left -= size if is_inside else 0
        yield from _detail_lines(detail, out, nodes, used, is_inside=is_inside)
    if len(found) > limit:
        yield [(f"… more than {limit} changes", "dim")]
    elif not found:
        same = f"no change in {safe(path)}" if path else "the same value, stored in another way"
        yield [(f"({same})", "dim")]


def _detail_lines(detail: Detail, out: Output, nodes: int, used: int, *, is_inside: bool) -> Iterator[Line]:
    path, style = safe(detail.path), _STYLES[detail.kind]
    mark = f"{SIGNS[detail.kind]} "
    note = f"  ({safe(detail.note)})" if detail.note else ""
    colon = ": " if path else ""
    beside = used + len(mark) + cell_len(path) + len(colon) + len(note)
    if detail.kind != "modified":
        value = detail.new if detail.kind == "added" else detail.old
        view = None if path else view_of(value)
        if isinstance(view, ChatView):
            yield from islice(values.chat_lines(view, (out.width or values.NARROW) - used), 1, _MOST_MESSAGES)
            return
        start: Line = [(f"{mark}{path}", style), colon] if path else []
        yield [*start, out.fit(_one_line(value, nodes), beside if path else used + len(note)), (note, "dim")]
        return
    old, new = detail.old, detail.new
    if is_inside:
        noun = "text" if isinstance(old, str) else "bytes"
        yield [(f"{mark}{path or noun}", style), ":", (note, "dim")]
        for line in _inside(old, new, out):
            yield ["  ", *line]
        return
    if isinstance(old, Array) and isinstance(new, Array) and len(old.shape) == 1 and note:
        before, after = _beginning(old), _beginning(new)
        yield [(f"{mark}{path}", style), colon, (before, "red"), " -> ", (after, "green"), (note, "dim")]
        return
    if note and (isinstance(old, Array) or _is_column(old)):
        # Both sides are described by their beginnings, and the parts that differ may come later.
        yield [(f"{mark}{path}", style), colon, detail.note]
        return
    before, after = _both_sides(old, new, out.width, nodes)
    start = [(mark, style), (path, style), colon]
    if beside + cell_len(before) + cell_len(after) + 4 <= (out.width or values.NARROW):
        yield [*start, (before, "red"), " -> ", (after, "green"), (note, "dim")]
        return
    if path or note:
        yield [*start[:2], (note, "dim")]
    yield [("  - ", "red"), (out.fit(before, used + 4), "red")]
    yield [("  + ", "green"), (out.fit(after, used + 4), "green")]


def _one_line(value: object, nodes: int) -> str:
    """A message or a column in words, or any other value."""
    text = part_text(value)
    return _exact(value, nodes) if text is None else safe(text)


def _exact(value: object, nodes: int) -> str:
    return preview(value, width=None, max_nodes=nodes)


def _both_sides(old: object, new: object, width: int | None, nodes: int) -> tuple[str, str]:
    """Both sides as a line each. Long texts, bytes and numbers begin shortly before they differ."""
    lines = _one_line(old, nodes), _one_line(new, nodes)
    if lines[0] == lines[1]:
        lines = _exact(old, nodes), _exact(new, nodes)
    if max(map(len, lines)) <= (width or values.LONG_TEXT) // 2 and lines[0] != lines[1]:
        return lines
    if isinstance(old, int) and isinstance(new, int):
        old, new = hex(old), hex(new)
    if isinstance(old, str) and isinstance(new, str):
        start = common_ends(old, new)[0] - _SHARED_PREFIX
        return (_from(old, start), _from(new, start)) if start > 0 else lines
    if isinstance(old, bytes | bytearray) and isinstance(new, bytes | bytearray):
        start = common_ends(bytes(old), bytes(new))[0] - _SHARED_BYTES
        return (_from(bytes(old), start), _from(bytes(new), start)) if start > 0 else lines
    return lines


def _from(value: str | bytes, start: int) -> str:
    piece = value[start : start + values.LONG_TEXT]
    rest = len(value) - start - len(piece)
    return f"…{piece!r}… {rest} more" if rest else f"…{piece!r}"


def _beginning(array: Array) -> str:
    """The first elements of a range."""
    texts = [safe(cell_text(element), 20) for element in array.elements(0, min(array.count, _MOST_ELEMENTS))]
    return ", ".join([*texts, "…"] if array.count > _MOST_ELEMENTS else texts)


def _is_column(value: object) -> bool:
    return isinstance(value, Instance) and value.type == "column"


def _size_to_compare(detail: Detail) -> int:
    """The length of two texts, or of two strings of bytes, that do not fit beside each other; else 0."""
    old, new = detail.old, detail.new
    if isinstance(old, str) and isinstance(new, str):
        is_long = "\n" in old or "\n" in new or len(old) + len(new) > _LONGEST_BESIDE
    elif isinstance(old, bytes | bytearray) and isinstance(new, bytes | bytearray):
        is_long = len(old) + len(new) > _LONGEST_BESIDE
    else:
        return 0
    return len(old) + len(new) if is_long else 0


def _inside(old: object, new: object, out: Output) -> Iterator[Line]:
    if isinstance(old, str) and isinstance(new, str):
        return values.hunk_lines(text_hunks(old, new), out.is_coloured)
    assert isinstance(old, bytes | bytearray)
    assert isinstance(new, bytes | bytearray)
    return values.bytes_change_lines(bytes_changes(bytes(old), bytes(new)))
