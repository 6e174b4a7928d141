"""Commits, and the newest branches of a store, as lines."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from rich.cells import cell_len

from vstate.display import branches
from vstate.objects.commit import Commit, Event
from vstate.plural import counted
from vstate.repo.names.refs import HEADS, REMOTES, Head, shown_ref
from vstate.repo.repository import Repository
from vstate.values.preview import preview
from vstate_cli.output import Line, Output, columns, local, padded, safe

CUT_OFF: Final = "commits behind it were removed"

_REFS: Final = {"heads": ("", "bold green"), "remotes": ("", "bold red"), "tags": ("tag: ", "bold yellow")}
_MOST_ITEMS: Final = 8  # of info, in a line
_LONGEST_NAME: Final = 60
_MOST_BRANCHES: Final = 8


def summary(commit: Commit) -> Line:
    """The abbreviated id and the subject."""
    return [(commit.short, "yellow"), f" {safe(commit.subject)}".rstrip()]


def id_of(commit: Commit | None) -> str | None:
    """The id of a commit, for a document."""
    return None if commit is None else commit.id


def decoration(refs: Sequence[str], at: str, head: Head) -> Line:
    """The refs on the commit with the id `at`, and HEAD: ` (HEAD -> main, tag: v1)`."""
    parts: list[Line] = []
    if head.branch is None and head.commit is not None and str(head.commit) == at:
        parts.append([("HEAD", "bold cyan")])
    current = f"{HEADS}{head.branch}" if head.branch is not None else None
    for ref in sorted(refs, key=lambda ref: (ref != current, ref)):
        kind, _, name = ref.partition("/")
        if {HEADS + name, REMOTES + name} <= set(refs):
            name = ref  # the name alone is ambiguous
        prefix, style = _REFS[kind]
        arrow: Line = [("HEAD -> ", "bold cyan")] if ref == current else []
        parts.append([*arrow, (f"{prefix}{safe(shown_ref(name))}", style)])
    inside = [part for line in parts for part in ((", ", "yellow"), *line)][1:]
    return [(" (", "yellow"), *inside, (")", "yellow")] if parts else []


def time_and_info(commit: Commit, out: Output) -> Line:
    """The time, and the info in brief: `05:42:10 · ok · 0.42 s · model=small`."""
    line: Line = [(out.moment(commit.time), "dim")]
    info = dict(commit.info)
    outcome, seconds = info.pop("outcome", None), info.pop("seconds", None)
    if info.get("name") == commit.message:
        del info["name"]
    if outcome is not None:
        line += [(" · ", "dim"), (_brief(outcome), "bold red" if outcome == "error" else "dim")]
    if seconds is not None:
        is_number = isinstance(seconds, int | float) and math.isfinite(seconds)
        line.append((f" · {duration(seconds)}" if is_number else f" · seconds={_brief(seconds)}", "dim"))
    for key, value in islice(info.items(), _MOST_ITEMS):
        if isinstance(value, Mapping):  # of a run, for one
            value = value.get("id", value)
        line.append((f" · {safe(key, _LONGEST_NAME)}={_brief(value)}", "dim"))
    if len(info) > _MOST_ITEMS:
        line.append((f" · … {len(info) - _MOST_ITEMS} more", "dim"))
    return line


def duration(seconds: float) -> str:
    """A number of seconds for people: `3.2 ms`, `1.5 s`."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.2g} ms" if abs(seconds) < 0.01 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if abs(seconds) < 100 else f"{seconds:,.0f} s"


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else preview(value, width=None, max_depth=2, max_items=5)
    return safe(text, _LONGEST_NAME)


def info_lines(info: Mapping[str, object]) -> Iterator[Line]:
    """Every item of a commit's info, in full."""
    for key, value in info.items():
        text = safe(value) if isinstance(value, str) else preview(value, width=None)
        yield [(f"{safe(key, _LONGEST_NAME)}: ", "dim"), text]


def event_line(event: Event, out: Output) -> Line:
    """An event: `05:42:10.123  agent: task.start  name='read'`."""
    time = local(event.time)
    namespace = f"{safe(event.namespace, _LONGEST_NAME)}: " if event.namespace else ""
    data = "  ".join(
        f"{safe(key, _LONGEST_NAME)}={preview(value, width=None, max_depth=3, max_items=10)}"
        for key, value in event.data.items()
    )
    stamp = f"{time:%H:%M:%S}.{time.microsecond // 1000:03}  "
    kind = safe(event.kind, _LONGEST_NAME)
    data = out.fit(f"  {data}", 4 + len(stamp) + cell_len(namespace) + cell_len(kind)) if data else ""
    return [(stamp, "dim"), namespace, (kind, "bold"), data]


def overview(repo: Repository, out: Output, command: str) -> Iterator[Line]:
    """The newest branches, one a line, and how `command` looks at one of them; nothing for an empty store.

    It is for a store in which HEAD's branch has no commit, as in that of an adapter.
    """
    found, every = branches.newest(repo, _MOST_BRANCHES)
    if not found:
        return
    head = repo.refs.head()
    if head.commit is None:
        yield [f"{safe(head.branch or '')} has no commit. The store has ", (branches.summary(every), "bold")]
    width = min(max(cell_len(safe(branch.title)) for branch in found), _LONGEST_NAME)
    for branch in found:
        count = branch.count(repo)
        number = f"{count}+ commits" if count == branches.MOST_COUNTED else counted(count, "commit")
        line: Line = [
            ("  ", ""), (padded(safe(branch.title), width), "bold green"), f"  {number:>12}  ",
            (out.moment(branch.commit.time), "dim"), "  ",
        ]  # fmt: skip
        yield [*line, out.fit(safe(branch.commit.subject), columns(line))]
    if len(every) > len(found):
        yield [(f"  … {len(every) - len(found):,} more: vstate branch -v", "dim")]
    command = "log -p" if command == "diff" else command  # `diff BRANCH` would compare it with HEAD
    yield [("Look at one: ", "dim"), f"vstate {command} {shlex.quote(safe(found[0].title))}"]
