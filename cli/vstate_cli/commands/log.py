"""`vstate log`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import click

from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.names.refs import Head
from vstate_cli import changes, commits
from vstate_cli.graph import Graph
from vstate_cli.output import Line, columns
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_key, complete_revision


@command(
    "log",
    paged=True,
    examples=["vstate log -n 5", "vstate log --oneline --graph", "vstate log what-if --key plan"],
    json="one object a line, one for each commit: {id, parents, tree, time, message, info, refs, events, "
    "changes}. events is a number; changes is {added, modified, removed}, lists of keys. shallow is true "
    "where the history behind a commit was cut off, and absent elsewhere.",
)
@click.argument("rev", default="HEAD", shell_complete=complete_revision)
@click.option(
    "--key", metavar="KEY", shell_complete=complete_key, help="Show only commits that changed this key."
)
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="Show at most N commits.")
@click.option("--oneline", is_flag=True, help="Show each commit in one line.")
@click.option("--graph", is_flag=True, help="Draw branches and merges beside the commits.")
def log(session: Session, rev: str, key: str | None, limit: int | None, oneline: bool, graph: bool) -> None:
    """Show the commits up to REV, newest first.

    Each commit has its id, branches and tags, message, time, info, number of events, and the keys it changed:
    + added, ~ modified, - removed. A merge is compared with its first parent. REV defaults to HEAD.
    """
    found = session.repo.log(rev, key=key, limit=limit)
    refs, head = session.refs(), session.repo.refs.head()
    lanes = Graph() if graph else None
    number = 0
    for number, commit in enumerate(found, 1):
        names = refs.get(commit.id, [])
        if session.json:
            shallow = session.repo.history.is_shallow(commit)
            document = commits.document(commit, names, shallow=shallow) | {
                "events": len(commit.events),
                "changes": changes.keys_document(session.repo.changes(commit)),
            }
            session.out.json(document, indent=None)
            continue
        lines = [*_lines(session, commit, names, head, key, oneline)]
        gap = number > 1 and not oneline
        if lanes is not None:
            # --key leaves out the commits along which the lanes would go down.
            parents = session.repo.history.parents(commit) if key is None else ()
            lines = [*_beside(lanes, commit, parents, lines, gap=gap)]
        elif gap:
            lines.insert(0, [])
        session.out.lines(lines)
    if number == 0 and key is not None and limit != 0 and not session.json:
        session.out.note(f"no commit up to {rev} changed the key {key!r}")


def _lines(
    session: Session, commit: Commit, names: list[str], head: Head, key: str | None, oneline: bool
) -> Iterator[Line]:
    diff = session.repo.changes(commit)
    first: Line = [(commit.short, "yellow"), *commits.decoration(names, commit.id, head)]
    shallow = session.repo.history.is_shallow(commit)
    last: Line = [" ", *changes.counts(diff)] if oneline and diff else []
    if oneline and shallow:
        last = [*last, ("  (history cut off)", "yellow")]
    message = session.out.fit(commits.subject(commit), columns([*first, *last]) + 6)
    first += [f" {message}"] if message else [(" (no message)", "dim")]
    if oneline:
        yield first + last
        return
    yield first
    events = f" · {counted(len(commit.events), 'event')}" if commit.events else ""
    yield ["    ", *commits.time_and_info(commit), (events, "dim")]
    if diff:
        yield ["    ", *changes.names(diff, key)]
    if shallow:
        yield ["    ", (commits.CUT_OFF, "yellow")]


def _beside(
    graph: Graph, commit: Commit, parents: Sequence[ObjectId], lines: list[Line], *, gap: bool
) -> Iterator[Line]:
    """The lines of a commit, with the lanes of the graph to their left."""
    between = graph.between
    row = graph.add(commit.oid, parents)
    if gap and not row.before:
        yield [(between, "blue")] if between else []
    for joining in row.before:
        yield [(joining, "blue")]
    lanes = [row.head, *row.forks]
    lanes += [row.beside] * (len(lines) - len(lanes))
    for lane, line in zip_longest(lanes, lines):
        yield [(f"{lane} ", "blue"), *line] if line else [(lane.rstrip(), "blue")]
