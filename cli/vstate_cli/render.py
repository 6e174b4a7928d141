"""How commits, changes and values look: as lines of styled text."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, islice
from typing import Final

from rich.cells import cell_len

from vstate.errors import InvalidInput, StorageError
from vstate.objects.commit import Commit, Event
from vstate.repo.compare.details import Detail, common_prefix
from vstate.repo.compare.diff import Change, Diff
from vstate.repo.names.refs import HEADS, REMOTES, Head
from vstate.values.entry import Entry
from vstate.values.inert import Array, InertError, preview
from vstate.values.inspection import describe, size_text
from vstate_cli.output import Line, Output, safe

SIGNS: Final = {"added": "+", "removed": "-", "modified": "~"}
STYLES: Final = {"added": "green", "removed": "red", "modified": "cyan"}

_ARROW: Final = "HEAD -> "
_NAMED: Final = 8  # keys, or items of info, in a line of the log
_LONGEST_NAME: Final = 60
_NARROW: Final = 100  # columns of a line that shows both sides of a change, where there is no terminal
_SAME_BEFORE: Final = 20  # characters shown of what two long texts begin with in common
_LONG_TEXT: Final = 400  # characters from which two texts are shown from where they differ
_MOST_LINES: Final = 4000  # of all texts inside one key, to be compared line by line
_LONGEST_COMPARED: Final = 4_000_000  # characters of two texts, for the same
_LONGEST_LINE: Final = 1000
_DETAIL_NODES: Final = 40_000  # parts of all values that are shown inside one key
_FEWEST_NODES: Final = 40  # of each of them
_VALUE_ITEMS: Final = 100
_FEW: Final = 6  # items of a list that are a line each all the same
_SHORT_ITEM: Final = re.compile(r" +(-?[0-9][0-9.e+-]*|nan|-?inf|True|False|None|'[^']{,30}'),")


# --- commits


def moment(time: datetime) -> str:
    """A time in the zone of this machine: `2025-11-21 05:42:10 +0000`."""
    try:
        time = time.astimezone()
    except (OverflowError, ValueError, OSError):
        pass  # a year that the system's clock does not know: UTC, as it is
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def subject(commit: Commit) -> str:
    """The first line of the message."""
    return safe(commit.message.strip().split("\n", 1)[0], _LONGEST_LINE)


def decoration(refs: Sequence[str], at: str, head: Head) -> Line:
    """The branches, tags and remotes' branches on the commit with the id `at`, and HEAD: ` (HEAD -> main, tag: v1)`."""
    names: list[tuple[str, str]] = []
    detached = head.branch is None and head.commit is not None and str(head.commit) == at
    if detached:
        names.append(("HEAD", "bold cyan"))
    current = f"{HEADS}{head.branch}" if head.branch is not None else None
    for ref in sorted(refs, key=lambda ref: (ref != current, ref)):
        kind, _, name = ref.partition("/")
        if {HEADS + name, REMOTES + name} <= set(refs):  # by its name alone nobody could tell which one it is
            name = ref
        if ref == current:
            names.append((_ARROW, "bold cyan"))
            names.append((safe(name), "bold green"))
        elif kind == "heads":
            names.append((safe(name), "bold green"))
        elif kind == "remotes":
            names.append((safe(name), "bold red"))
        else:
            names.append((f"tag: {safe(name)}", "bold yellow"))
    if not names:
        return []
    line: Line = [(" (", "yellow")]
    for number, part in enumerate(names):
        if number and names[number - 1][0] != _ARROW:
            line.append((", ", "yellow"))
        line.append(part)
    return [*line, (")", "yellow")]


def info_parts(commit: Commit) -> Line:
    """What the commit's info says, in brief: ` · ok · 0.42 s · model=small`."""
    info = dict(commit.info)
    line: Line = []
    outcome, seconds = info.pop("outcome", None), info.pop("seconds", None)
    if info.get("name") == commit.message:
        del info["name"]
    if outcome is not None:
        style = "bold red" if outcome == "error" else "dim"
        line += [(" · ", "dim"), (_named(outcome), style)]
    if seconds is not None:
        known = isinstance(seconds, int | float) and math.isfinite(seconds)
        line.append((f" · {duration(seconds)}" if known else f" · seconds={_named(seconds)}", "dim"))
    for key, value in islice(info.items(), _NAMED):
        line.append((f" · {safe(key, _LONGEST_NAME)}={_named(value)}", "dim"))
    if len(info) > _NAMED:
        line.append((f" · … {len(info) - _NAMED} more", "dim"))
    return line


def duration(seconds: float) -> str:
    """A number of seconds to be read: `3.2 ms`, `1.5 s`."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.2g} ms" if abs(seconds) < 0.01 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if abs(seconds) < 100 else f"{seconds:,.0f} s"


def _named(value: object) -> str:
    text = value if isinstance(value, str) else preview(value, width=None, max_depth=2, max_items=5)
    return safe(text, _LONGEST_NAME)


def changed_keys(diff: Diff, only: str | None = None) -> Line:
    """The changed keys in a line: `+new ~changed -gone … 3 more`. With `only`, what happened to that one."""
    if only is not None:
        return change_line(diff[only]) if only in diff else []
    line: Line = []
    for key, change in islice(diff.items(), _NAMED):
        line += [" "] if line else []
        line.append((SIGNS[change.kind] + safe(key, _LONGEST_NAME), STYLES[change.kind]))
    if len(diff) > _NAMED:
        line.append((f" … {len(diff) - _NAMED} more", "dim"))
    return line


def change_counts(diff: Diff) -> Line:
    """How many keys changed: ` +1 ~2 -1`."""
    counts = (("added", diff.added), ("modified", diff.modified), ("removed", diff.removed))
    return [(f" {SIGNS[kind]}{len(keys)}", STYLES[kind]) for kind, keys in counts if keys]


def event_line(event: Event, out: Output) -> Line:
    """An event: `05:42:10.123  agent: task.start  name='read'`."""
    try:
        at = event.time.astimezone()
    except (OverflowError, ValueError, OSError):
        at = event.time
    where = f"{safe(event.namespace, _LONGEST_NAME)}: " if event.namespace else ""
    data = "  ".join(
        f"{safe(key, _LONGEST_NAME)}={preview(value, width=None, max_depth=3, max_items=10)}"
        for key, value in event.data.items()
    )
    stamp = f"{at:%H:%M:%S}.{at.microsecond // 1000:03}  "
    kind = safe(event.kind, _LONGEST_NAME)
    data = out.fit(f"  {data}", 4 + len(stamp) + cell_len(where) + cell_len(kind)) if data else ""
    return [(stamp, "dim"), where, (kind, "bold"), data]


def info_lines(info: Mapping[str, object]) -> Iterator[Line]:
    """Every item of a commit's info, in full."""
    for key, value in info.items():
        text = safe(value) if isinstance(value, str) else preview(value, width=None)
        yield [(f"{safe(key, _LONGEST_NAME)}: ", "dim"), text]


# --- changes


def sides(change: Change) -> str:
    """Type and size before and after: `list, 4.1 kB -> 4.3 kB`."""
    try:
        old, new = change.old_entry, change.new_entry
    except ValueError:
        return "an entry that makes no sense"
    if old is None or new is None:
        entry = old or new
        return _described(entry) if entry is not None else ""
    if old.type != new.type:
        return f"{_described(old)} -> {_described(new)}"
    sizes = size_text(old.size), size_text(new.size)
    return _described(new) if sizes[0] == sizes[1] else f"{safe(new.type)}, {sizes[0]} -> {sizes[1]}"


def _described(entry: Entry) -> str:
    return safe(describe(entry))


def change_line(change: Change, width: int = 0) -> Line:
    """A changed key: sign, name in so many columns, type and size."""
    name = safe(change.key)
    gap = " " * max(width - cell_len(name), 0)
    style = STYLES[change.kind]
    return [(f"{SIGNS[change.kind]} {name}", f"bold {style}"), f"{gap}  ", (sides(change), "dim")]


def name_width(keys: Iterable[str]) -> int:
    """The columns that aligned names of keys need, unless some are very long."""
    return min(max((cell_len(safe(key)) for key in keys), default=0), 40)


def change_details(diff: Diff, change: Change, out: Output, limit: int) -> Iterator[Line]:
    """What changed inside a key, by path, or why that cannot be said."""
    try:
        found = diff.details(change.key, limit=limit + 1)
    except (InertError, InvalidInput) as error:
        yield [(f"({safe(str(error))})", "yellow")]
        return
    except StorageError as error:
        out.damage = out.damage or error
        yield [(f"({safe(str(error))})", "bold red")]
        return
    nodes = max(_DETAIL_NODES // max(len(found), 1), _FEWEST_NODES)
    lines_left = _MOST_LINES
    for detail in found[:limit]:
        lines = _lines_of(detail)
        by_line = 0 < lines <= lines_left
        lines_left -= lines if by_line else 0
        yield from _detail(detail, out, nodes, by_line=by_line)
    if len(found) > limit:
        yield [(f"… more than {limit} changes", "dim")]
    elif not found:
        yield [("(the same value, stored in another way)", "dim")]


def _detail(detail: Detail, out: Output, nodes: int, *, by_line: bool) -> Iterator[Line]:
    path, style = safe(detail.path), STYLES[detail.kind]
    mark = f"{SIGNS[detail.kind]} "
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
        # Their first elements, which is what could be shown, need not be those that differ.
        yield [(f"{mark}{path}", style), colon, detail.note]
        return
    before, after = _both(old, new, out.width, nodes)
    start = [(mark, style), (path, style), colon]
    if used + cell_len(before) + cell_len(after) + 4 <= (out.width or _NARROW):
        yield [*start, (before, "red"), " -> ", (after, "green"), (note, "dim")]
        return
    if path or note:
        yield [*start[:2], (note, "dim")]
    yield [("  - ", "red"), (out.fit(before, 8), "red")]
    yield [("  + ", "green"), (out.fit(after, 8), "green")]


def _one_line(value: object, nodes: int) -> str:
    return preview(value, width=None, max_nodes=nodes)


def _both(old: object, new: object, width: int | None, nodes: int) -> tuple[str, str]:
    """Both sides on a line each, long texts from shortly before they begin to differ."""
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > (width or _LONG_TEXT) // 2:
        start = common_prefix(old, new) - _SAME_BEFORE
        if start > 0:
            return _from(old, start), _from(new, start)
    return _one_line(old, nodes), _one_line(new, nodes)


def _from(text: str, start: int) -> str:
    piece = text[start : start + _LONG_TEXT]
    rest = len(text) - start - len(piece)
    return f"…{piece!r}… {rest} more" if rest else f"…{piece!r}"


def _lines_of(detail: Detail) -> int:
    """How many lines there are to compare in a detail; 0 if it is no change of a text of several lines."""
    old, new = detail.old, detail.new
    if not isinstance(old, str) or not isinstance(new, str) or len(old) + len(new) > _LONGEST_COMPARED:
        return 0
    ends = old.count("\n") + new.count("\n")
    return ends + 2 if ends else 0


def _text_diff(old: str, new: str) -> Iterator[Line]:
    """The lines in which two texts differ, with one around them, as in `diff -u`."""
    styles = {"+": "green", "-": "red", "@": "cyan", " ": ""}
    hunks = difflib.unified_diff(old.split("\n"), new.split("\n"), n=1, lineterm="")
    for text in islice(hunks, 2, None):
        yield ["  ", (safe(text, _LONGEST_LINE), styles[text[0]])]


# --- values


def write_value(value: object, out: Output) -> None:
    """Write a value for reading: a text of several lines, or a long one, as it is; else pretty-printed."""
    if isinstance(value, str) and ("\n" in value or len(value) > _LONG_TEXT):
        out.text(value)
        return
    width = out.width or _NARROW
    lines = preview(value, width=width, max_depth=10, max_items=_VALUE_ITEMS).split("\n")
    for short, group in groupby(lines, key=lambda text: bool(_SHORT_ITEM.fullmatch(text))):
        run = [*group]
        for text in _filled(run, width) if short and len(run) > _FEW else run:
            out.line(text)


def _filled(lines: list[str], width: int) -> Iterator[str]:
    """Lines of one short item each as lines of as many as fit: a long list of such is read across."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    text = indent
    for line in lines:
        item = line.strip()
        if text != indent and len(text) + len(item) + 1 > width:
            yield text.rstrip()
            text = indent
        text += f"{item} "
    yield text.rstrip()
