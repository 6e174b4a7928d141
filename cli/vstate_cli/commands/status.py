"""`vstate status`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from vstate.display import documents
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects import expiry, tree
from vstate.plural import counted
from vstate.repo.names.refs import HEADS, REMOTES, TAGS
from vstate.repo.names.revisions import FIRST
from vstate.values.inspection import size_text
from vstate_cli import commits
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command

_CLOCK_READ_EVERY = 64  # counted items


@command(
    "status",
    reads=True,
    dated=True,
    examples=["vstate status", "vstate -s agent-state status --json", "vstate status --timeout 0"],
    json="{store, bytes, branch, upstream, head, commits, branches, tags, keys, objects, at_least}. branch "
    "is null if HEAD is detached; upstream is {name, ahead, behind}, or null; head is a commit as `vstate "
    "log --json` prints it, or null; at_least lists the counts that the timeout ended early; bytes is null "
    "for a store that is no directory.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop counting commits, and then objects, after this time. 0 counts to the end.",
)
def status(session: Session, timeout: float) -> None:
    """Show the position of HEAD, and the size of the store.

    After a push, pull or clone, shows how many commits HEAD's branch is ahead of the remote's branch, as seen
    then, and how many behind. Counts the commits that a branch, a tag or HEAD reaches, the keys of HEAD, and
    the bytes of the store's files.
    """
    repo, out = session.repo, session.out
    at_least: list[str] = []

    def count(name: str, items: Iterable[object], noun: str = "commits") -> int:
        began, number = time.monotonic(), 0
        for number, _ in enumerate(items, 1):
            if number % _CLOCK_READ_EVERY == 0:
                if timeout and time.monotonic() - began > timeout:
                    at_least.append(name)
                    break
                out.progress(f"counting {noun}", number)
        return number

    head = repo.refs.head()
    branches, tags = repo.refs.list(HEADS), repo.refs.list(TAGS)
    commit = repo.commit_at(head)
    starts = {*branches.values(), *tags.values()} | ({commit.oid} if commit is not None else set())
    root = None if commit is None else commit.root
    commit_count = count("commits", repo.history.ancestors(*starts))
    object_count = count("objects", repo.store.keys(OBJECT_PREFIX), "objects")
    numbers = {
        "commits": commit_count,
        "branches": len(branches),
        "tags": len(tags),
        "keys": tree.count_prefix(repo.objects.node, root, "", at=expiry.now()),
        "objects": object_count,
    }
    upstream = None
    if head.branch is not None and commit is not None and (name := repo.remotes.upstream(head.branch)):
        there = repo.refs.read(REMOTES + name) or commit.oid
        ahead = count("ahead", repo.history.outside([commit.oid], [there]))
        behind = count("behind", repo.history.outside([there], [commit.oid]))
        upstream = {"name": name, "ahead": ahead, "behind": behind}
    size = _size(Path(repo.store.location))
    position: Document = {"store": repo.store.location, "bytes": size, "branch": head.branch}
    if session.json:
        refs = session.refs().get(commit.id, []) if commit is not None else []
        shown = None if commit is None else documents.commit_document(commit, refs)
        out.json(position | {"upstream": upstream, "head": shown} | numbers | {"at_least": at_least})
        return
    out.lines(_position_lines(position, upstream, at_least))
    if commit is None:
        out.line(("head      ", "dim"), "no commit yet" if branches else f"no commit yet; {FIRST}")
    else:
        out.line(("head      ", "dim"), *commits.summary(commit))
        out.line("          ", *commits.time_and_info(commit, out))
    for name, number in numbers.items():
        more = " or more (--timeout 0 counts them all)" if name in at_least else ""
        out.line((f"{name:10}", "dim"), f"{number:,}", (more, "dim"))
    if commit is None and branches:
        out.lines([[], *commits.overview(repo, out, "log")])


def _position_lines(position: Document, upstream: Document | None, at_least: list[str]) -> Iterator[Line]:
    size, branch = position["bytes"], position["branch"]
    shown_size = "" if size is None else f"  {size_text(size)}"
    yield [("store     ", "dim"), safe(position["store"]), (shown_size, "dim")]
    on = ("none: HEAD is detached", "bold yellow") if branch is None else (safe(branch), "bold green")
    yield [("branch    ", "dim"), on]
    if upstream is not None:
        parts = [
            f"{counted(upstream[where], 'commit')}{' or more' if where in at_least else ''} {where}"
            for where in ("ahead", "behind")
            if upstream[where]
        ]
        distance = ", ".join(parts) or "up to date"
        yield [("upstream  ", "dim"), (safe(upstream["name"]), "bold red"), f"  {distance}"]


def _size(directory: Path) -> int | None:
    """The bytes of the files of a store on this machine; None for any other store."""
    if not directory.is_dir():
        return None
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            pass  # another process deleted it, such as a log that SQLite closed
    return total
