"""`vstate status`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from vstate.kv.base import OBJECT_PREFIX
from vstate.objects import expiry, tree
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS, TAGS
from vstate.repo.repository import Repository
from vstate.values.inspection import size_text
from vstate_cli import documents, render
from vstate_cli.output import Progress, safe
from vstate_cli.session import Session, command

_CHECKED_EVERY = 64  # steps of counting, between two looks at the clock


@command(
    "status",
    examples=["vstate status", "vstate -s agent-state status --json", "vstate status --timeout 0"],
    json="{store, bytes, branch (null when HEAD is detached), head (a commit as in log, or null), commits, branches, "
    "tags, keys, objects: numbers, at_least: the names of those that were not counted to the end}; bytes is "
    "null for a store that is no directory.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to count commits and objects, each; 0: as long as it takes.",
)
def status(session: Session, timeout: float) -> None:
    """Show where HEAD is, and how much the store holds.

    Commits are those that a branch, a tag or HEAD leads to; keys are those of HEAD; bytes are what the files
    of the store take.
    """
    repo = session.repo
    head = repo.refs.head()
    branches, tags = repo.refs.list(HEADS), repo.refs.list(TAGS)
    starts = {*branches.values(), *tags.values(), *([head.commit] if head.commit is not None else [])}
    commit = None if head.commit is None else repo.resolve(head.commit)
    commits, all_commits = _count("commits", _reachable(repo, starts), timeout)
    objects, all_objects = _count("objects", repo.store.keys(OBJECT_PREFIX), timeout)
    root = None if commit is None else commit.tree
    over = tree.expired(repo.objects.node, root, expiry.now())
    keys = tree.count(repo.objects.node, root) - sum(1 for _ in over)
    size = _size(Path(repo.store.location))
    at_least = [name for name, done in (("commits", all_commits), ("objects", all_objects)) if not done]
    numbers = {
        "commits": commits,
        "branches": len(branches),
        "tags": len(tags),
        "keys": keys,
        "objects": objects,
    }
    out = session.out
    if session.json:
        document = None if commit is None else documents.commit(commit, session.refs().get(commit.id, []))
        places = {"store": repo.store.location, "bytes": size, "branch": head.branch, "head": document}
        documents.write(out, places | numbers | {"at_least": at_least})
        return
    shown_size = "" if size is None else f"  {size_text(size)}"
    out.line(("store     ", "dim"), safe(repo.store.location), (shown_size, "dim"))
    branch = ("none: HEAD is detached", "bold yellow")
    if head.branch is not None:
        branch = (safe(head.branch), "bold green")
    out.line(("branch    ", "dim"), branch)
    if commit is None:
        out.line(("head      ", "dim"), "no commit yet")
    else:
        out.line(("head      ", "dim"), (commit.short, "yellow"), f" {render.subject(commit)}".rstrip())
        out.line("          ", (render.moment(commit.time), "dim"), *render.info_parts(commit))
    for name, number in numbers.items():
        more = " or more (--timeout 0 counts them all)" if name in at_least else ""
        out.line((f"{name:10}", "dim"), f"{number:,}", (more, "dim"))


def _reachable(repo: Repository, starts: set[ObjectId]) -> Iterator[ObjectId]:
    seen, waiting = set(starts), [*starts]
    while waiting:
        oid = waiting.pop()
        yield oid
        for parent in repo.history.parents(repo.objects.commit(oid)):
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)


def _count(what: str, items: Iterable[object], timeout: float) -> tuple[int, bool]:
    """How many items there are, and whether those are all: False when the time was up."""
    began, count = time.monotonic(), 0
    with Progress(what) as progress:
        for count, _ in enumerate(items, 1):
            if count % _CHECKED_EVERY == 0:
                if timeout and time.monotonic() - began > timeout:
                    return count, False
                progress.update(count)
    return count, True


def _size(directory: Path) -> int | None:
    """The bytes that the files of a store on this machine take; None for any other store."""
    if not directory.is_dir():
        return None
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            pass  # gone since it was listed, as a log can be that another process closes
    return total
