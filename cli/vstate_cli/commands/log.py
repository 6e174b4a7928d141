"""`vstate log`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import click

from vstate.display import documents
from vstate.display.lanes import Lanes
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.compare.diff import Diff
from vstate.repo.names.refs import Head
from vstate.repo.search.selection import Selection, links, select
from vstate_cli import changes, commits
from vstate_cli.output import Document, Line, columns, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import KEY, REV, Count


@command(
    "log",
    dated=True,
    paged=True,
    reads=True,
    examples=[
        "vstate log -5",
        "vstate log --oneline --graph --all",
        "vstate log main..what-if -p",
        "vstate log --since '2 hours ago' --info outcome=error",
        "vstate log what-if -- plan",
    ],
    json="one object a line, one for each commit: {id, parents, tree, time, message, info, refs, events, "
    "changes}. events is a number; changes is {added, modified, removed}, lists of keys. shallow is true "
    "where commits behind this one were removed, and absent elsewhere. With -p or --stat, diff is a list "
    "of changes as `vstate diff --json` prints them.",
)
@click.argument("revs", metavar="[REV]...", nargs=-1, type=REV)
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=KEY,
    help="Show only commits that changed this key. Words behind -- are keys too.",
)
@click.option("-n", "limit", type=Count(min=0), help="Show at most N commits.")
@click.option("--all", "all_refs", is_flag=True, help="Begin at all branches, tags and remote branches.")
@click.option("--since", "--after", metavar="TIME", help="Show commits of this time and later.")
@click.option("--until", "--before", metavar="TIME", help="Show commits of this time and earlier.")
@click.option(
    "--grep",
    metavar="REGEX",
    multiple=True,
    help="Show commits whose message matches, or an item of whose info does, as NAME:VALUE or NAME=VALUE.",
)
@click.option("-i", "--ignore-case", is_flag=True, help="Let --grep ignore case.")
@click.option(
    "--info", metavar="NAME[=VALUE]", multiple=True, help="Show commits whose info has NAME, with that value."
)
@click.option(
    "-S",
    "text",
    metavar="TEXT",
    default="",
    help="Show commits that brought TEXT into a value, or took it out.",
)
@click.option("--author", metavar="KEY", default="", help="Show commits signed with the key that begins so.")
@click.option("--first-parent", is_flag=True, help="Follow only the first parent of a merge.")
@click.option("-p", "--patch", is_flag=True, help="Show the changes inside the values, as `vstate diff`.")
@click.option("--stat", is_flag=True, help="Show the changed keys with types and sizes.")
@click.option("--oneline", is_flag=True, help="Show each commit in one line.")
@click.option("--graph", is_flag=True, help="Draw branches and merges beside the commits.")
def log(session: Session, revs: tuple[str, ...], **options: Any) -> None:
    """Show the commits up to REV, newest first.

    Each commit has its id, branches and tags, message, time, info, number of events, and the keys it changed:
    + added, ~ modified, - removed. A merge is compared with its first parent. REV defaults to HEAD,
    or to all branches if HEAD's branch has no commit, as in the store of an adapter.

    A..B are the commits of B that A lacks, A...B those that only one of the two has, and ^A leaves out the
    commits of A. A TIME is written as 2026-11-20, '2026-11-20 10:00', yesterday or '2 hours ago'.
    """
    view = View(*(options.pop(name) for name in View._fields))
    graph = options.pop("graph")
    ignore_case = options.pop("ignore_case")
    patterns = [_pattern(text, ignore_case) for text in options.pop("grep")]
    found = select(session.repo, revs, patterns=patterns, **options)
    refs, head = session.refs(), session.repo.refs.head()
    if head.commit is None and not (revs or session.json):
        session.out.aside([*commits.overview(session.repo, session.out, "log"), []])
    number, lanes = 0, Graph() if graph else None
    for number, (commit, parents) in enumerate(_with_links(session, found, graph), 1):
        names = refs.get(commit.id, [])
        if session.json:
            session.out.json(_document(session, commit, names, found.keys, view), indent=None)
            continue
        gap = number > 1 and (not view.oneline or view.stat or view.patch)
        used, above = 0, ""
        if lanes is not None:
            above, rows = lanes.between, lanes.add(commit.oid, parents)
            used = len(rows[0]) + 1
        lines = [*_lines(session, commit, names, head, found.keys, view, used)]
        if gap:
            session.out.line(*([(above, "blue")] if above else []))
        if lanes is not None:
            lines = _beside(rows, lines)
        session.out.lines(lines)
    if number == 0 and found.keys and found.limit != 0 and not session.json:
        keys = " or ".join(map(repr, found.keys))
        at = [commit for commit, _ in islice(found.walk(), 1)]
        near = (name for commit in at for key in found.keys for name in session.similar_keys(commit, key))
        similar = [name for name in near if name not in found.keys]
        hint = f"; did you mean: {', '.join(similar)}?" if similar else ""
        session.out.note(f"no commit up to {' '.join(revs) or 'HEAD'} changed the key {keys}{hint}")


class View(NamedTuple):
    """The parts of a commit to show."""

    oneline: bool
    patch: bool
    stat: bool


def _with_links(
    session: Session, found: Selection, graph: bool
) -> Iterator[tuple[Commit, Sequence[ObjectId]]]:
    """The commits, each with the commits that its lanes in a graph lead to."""

    def parents(commit: Commit) -> Sequence[ObjectId]:
        return found.repo.history.parents(commit)[: 1 if found.first_parent else None]

    if not (graph and found.is_partial):
        yield from ((commit, parents(commit) if graph else ()) for commit in _shown(session, found))
        return
    # The lanes lead from one shown commit to the next: all must be known first.
    found = replace(found, walked=[])
    shown = [*_shown(session, found)]
    to = links(found.walked or [], {commit.oid for commit in shown}, parents)
    yield from ((commit, to[commit.oid]) for commit in shown)


def _shown(session: Session, found: Selection) -> Iterator[Commit]:
    """The commits of the log. Until the first is found, the terminal shows how far the search has come."""

    def commits() -> Iterator[Commit]:
        is_found = False
        for number, (commit, is_shown) in enumerate(found.walk(), 1):
            if is_shown:
                is_found = True
                yield commit
            elif not is_found:
                session.out.progress("searching commits", number)

    return islice(commits(), found.limit)


def _pattern(text: str, ignore_case: bool) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise click.UsageError(f"--grep takes a regular expression, and {text!r} is none: {error}") from None


def _document(
    session: Session, commit: Commit, names: list[str], keys: Sequence[str], view: View
) -> Document:
    diff = session.repo.changes(commit)
    document = documents.commit_document(commit, names, shallow=session.repo.history.is_shallow(commit)) | {
        "events": len(commit.events),
        "changes": documents.keys_document(diff),
    }
    if view.patch or view.stat:
        shown = [key for key in diff if not keys or key in keys]
        document["diff"] = [*changes.diff_documents(diff, session.out, shown, is_inside=view.patch)]
    return document


def _lines(
    session: Session,
    commit: Commit,
    names: list[str],
    head: Head,
    keys: Sequence[str],
    view: View,
    used: int,
) -> Iterator[Line]:
    """The lines of a commit, which leave `used` columns of the terminal free for the graph."""
    diff = session.repo.changes(commit)
    first: Line = [(commit.short, "yellow"), *commits.decoration(names, commit.id, head)]
    shallow = session.repo.history.is_shallow(commit)
    last: Line = [" ", *changes.counts(diff)] if view.oneline and diff else []
    if view.oneline and shallow:
        last = [*last, ("  (commits removed)", "yellow")]
    message = safe(commit.subject)
    if session.out.width is not None:
        message = session.out.fit(message, used + columns([*first, *last]) + 1)
    first += [f" {message}"] if message else [(" (no message)", "dim")]
    if view.oneline:
        yield first + last
        yield from _changes(session, diff, keys, view, used)
        return
    yield first
    events = f" · {counted(len(commit.events), 'event')}" if commit.events else ""
    yield ["    ", *commits.time_and_info(commit, session.out), (events, "dim")]
    if keys and not (view.patch or view.stat):
        yield from (["    ", *changes.line(diff[key])] for key in keys if key in diff)
    elif diff and not (view.patch or view.stat):
        width = session.out.width
        yield ["    ", *changes.names(diff, None if width is None else width - used - 4)]
    if shallow:
        yield ["    ", (commits.CUT_OFF, "yellow")]
    yield from _changes(session, diff, keys, view, used)


def _changes(session: Session, diff: Diff, keys: Sequence[str], view: View, used: int) -> Iterator[Line]:
    """The changed keys, and with -p the changes inside them."""
    shown = [key for key in diff if not keys or key in keys]
    lines: Iterator[Line] = iter(())
    if view.patch:
        lines = changes.diff_lines(diff, session.out, shown, used=used + 4)
    elif view.stat:
        lines = changes.diff_lines(diff, session.out, shown, limit=0, width=changes.name_width(shown))
    yield from (["    ", *line] for line in lines)
    if view.stat and diff:
        yield ["    ", (diff.stat(), "dim")]


def _beside(rows: list[str], lines: list[Line]) -> list[Line]:
    """The lines of a commit, with the lanes of the graph to their left."""
    *lanes, last = rows
    lanes += [last] * (len(lines) - len(lanes))
    return [
        [(f"{lane} ", "blue"), *line] if line else [(lane.rstrip(), "blue")]
        for lane, line in zip_longest(lanes, lines)
    ]


class Graph:
    """Draws lanes from each commit down to its parents. Add commits newest first, children before parents."""

    def __init__(self) -> None:
        self._lanes = Lanes()
        self._above: set[int] = set()

    @property
    def between(self) -> str:
        """The lanes between the last commit and the next."""
        return _row(self._above)

    def add(self, commit: ObjectId, parents: Sequence[ObjectId]) -> list[str]:
        """The rows for the next commit, of one width: the first has its star, in the others lanes move.

        The last row goes on beside further lines.
        """
        lane, edges = self._lanes.add(commit, parents)
        rows = [_row(self._above, 2 * lane, "*")]
        lanes = {end for start, end, _ in edges if start == end}
        # From the right one on, so forks first: none crosses another.
        moves = sorted(((start, end) for start, end, _ in edges if start != end), key=lambda move: -move[1])
        while moves:
            start, end = moves.pop(0)
            here = lanes | {start for start, _ in moves}
            gaps, mark = (range(start, end), "\\") if start < end else (range(start - 1, end - 1, -1), "/")
            rows += [_row(here, 2 * gap + 1, mark) for gap in gaps]
            lanes.add(end)
        self._above = lanes
        rows.append(self.between)
        width = max(map(len, rows))
        return [row.ljust(width) for row in rows]


def _row(lanes: set[int], at: int = 0, mark: str = "") -> str:
    """A row with a line in each of the lanes, and a mark in the column `at`."""
    cells = dict.fromkeys((2 * lane for lane in lanes), "|") | ({at: mark} if mark else {})
    return "".join(cells.get(column, " ") for column in range(max(cells, default=-1) + 1))
