"""`vstate log`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import click

from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import Head
from vstate_cli import documents, render
from vstate_cli.graph import Graph
from vstate_cli.output import Line, columns
from vstate_cli.session import Session, command, complete_key, complete_revision


@command(
    "log",
    examples=["vstate log -n 5", "vstate log --oneline --graph", "vstate log what-if --key plan"],
    json="one line for each commit, an object with id, parents, tree, time, message, info, refs, events "
    "(their number) and changes ({added, modified, removed}: lists of keys); shallow: true where the history "
    "behind a commit was cut off.",
)
@click.argument("rev", default="HEAD", shell_complete=complete_revision)
@click.option("--key", metavar="KEY", shell_complete=complete_key, help="Only commits that changed this key.")
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="At most so many commits.")
@click.option("--oneline", is_flag=True, help="One line for each commit.")
@click.option("--graph", is_flag=True, help="Draw branches and merges beside the commits.")
def log(session: Session, rev: str, key: str | None, limit: int | None, oneline: bool, graph: bool) -> None:
    """Show the commits up to REV (HEAD), newest first.

    Each with its id, branches and tags, message, time, info, number of events, and the keys it changed: +
    added, ~ modified, - removed. A merge is compared with its first parent.
    """
    commits = session.repo.log(rev, key=key, limit=limit)
    refs, head = session.refs(), session.repo.refs.head()
    lanes = Graph() if graph else None
    count = 0
    for count, commit in enumerate(commits, 1):
        names = refs.get(commit.id, [])
        if session.json:
            shallow = session.repo.history.is_shallow(commit)
            document = documents.commit(commit, names, shallow=shallow) | {
                "events": len(commit.events),
                "changes": documents.keys(session.repo.changes(commit)),
            }
            documents.write(session.out, document, indent=None)
            continue
        lines = [*_lines(session, commit, names, head, key, oneline)]
        if lanes is not None:
            # With --key the commits in between are missing, and so is what a line would be drawn along.
            parents = session.repo.history.parents(commit) if key is None else ()
            lines = [*_beside(lanes, commit, parents, lines, gap=count > 1 and not oneline)]
        elif count > 1 and not oneline:
            lines.insert(0, [])
        session.out.lines(lines)
    if count == 0 and key is not None and limit != 0 and not session.json:
        session.out.note(f"no commit up to {rev} changed the key {key!r}")


def _lines(
    session: Session, commit: Commit, names: list[str], head: Head, key: str | None, oneline: bool
) -> Iterator[Line]:
    changes = session.repo.changes(commit)
    first: Line = [(commit.short, "yellow"), *render.decoration(names, commit.id, head)]
    shallow = session.repo.history.is_shallow(commit)
    last = [" ", *render.change_counts(changes)] if oneline and changes else []
    if oneline and shallow:
        last = [*last, ("  (history cut off)", "yellow")]
    message = session.out.fit(render.subject(commit), columns([*first, *last]) + 6)
    first += [f" {message}"] if message else [(" (no message)", "dim")]
    if oneline:
        yield first + last
        return
    yield first
    count = len(commit.events)
    events = f" · {count} event{'s' if count > 1 else ''}" if count else ""
    yield ["    ", (render.moment(commit.time), "dim"), *render.info_parts(commit), (events, "dim")]
    if changes:
        yield ["    ", *render.changed_keys(changes, key)]
    if shallow:
        yield ["    ", ("the history behind it was cut off", "yellow")]


def _beside(
    graph: Graph, commit: Commit, parents: Sequence[ObjectId], lines: list[Line], *, gap: bool
) -> Iterator[Line]:
    """The lines of a commit with the lanes drawn to their left."""
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
