"""`vstate status`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import click

from vstate.display import documents
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects import expiry, tree
from vstate.plural import counted
from vstate.repo.names.refs import HEADS, REMOTES, TAGS
from vstate.repo.names.revisions import FIRST
from vstate.values.inspection import size_text
from vstate_cli import commits, overview
from vstate_cli.output import Document, safe
from vstate_cli.progress import ProgressBar
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
    repo = session.repo
    head = repo.refs.head()
    branches, tags = repo.refs.list(HEADS), repo.refs.list(TAGS)
    starts = {*branches.values(), *tags.values(), *([head.commit] if head.commit is not None else [])}
    commit = None if head.commit is None else repo.resolve(head.commit)
    commit_count, all_commits = _count("commits", repo.history.ancestors(*starts), timeout)
    object_count, all_objects = _count("objects", repo.store.keys(OBJECT_PREFIX), timeout)
    root = None if commit is None else commit.root
    key_count = tree.count_prefix(repo.objects.node, root, "", at=expiry.now())
    size = _size(Path(repo.store.location))
    at_least = [name for name, done in (("commits", all_commits), ("objects", all_objects)) if not done]
    numbers = {
        "commits": commit_count,
        "branches": len(branches),
        "tags": len(tags),
        "keys": key_count,
        "objects": object_count,
    }
    upstream, behind, ahead = None, (0, True), (0, True)
    if head.branch is not None and head.commit is not None:
        upstream = repo.remotes.upstream(head.branch)
    if upstream is not None and head.commit is not None:
        there = repo.refs.read(REMOTES + upstream) or head.commit
        ahead = _count("commits", repo.history.outside([head.commit], [there]), timeout)
        behind = _count("commits", repo.history.outside([there], [head.commit]), timeout)
    at_least += [name for name, count in (("ahead", ahead), ("behind", behind)) if not count[1]]
    out = session.out
    if session.json:
        tracked = None if upstream is None else {"name": upstream, "ahead": ahead[0], "behind": behind[0]}
        document = (
            None if commit is None else documents.commit_document(commit, session.refs().get(commit.id, []))
        )
        position: Document = {"store": repo.store.location, "bytes": size, "branch": head.branch}
        position |= {"upstream": tracked, "head": document}
        out.json(position | numbers | {"at_least": at_least})
        return
    shown_size = "" if size is None else f"  {size_text(size)}"
    out.line(("store     ", "dim"), safe(repo.store.location), (shown_size, "dim"))
    branch = ("none: HEAD is detached", "bold yellow")
    if head.branch is not None:
        branch = (safe(head.branch), "bold green")
    out.line(("branch    ", "dim"), branch)
    if upstream is not None:
        out.line(("upstream  ", "dim"), (safe(upstream), "bold red"), f"  {_distance(ahead, behind)}")
    if commit is None:
        out.line(("head      ", "dim"), "no commit yet" if branches else f"no commit yet; {FIRST}")
    else:
        out.line(("head      ", "dim"), *commits.summary(commit))
        out.line("          ", *commits.time_and_info(commit, out))
    for name, number in numbers.items():
        more = " or more (--timeout 0 counts them all)" if name in at_least else ""
        out.line((f"{name:10}", "dim"), f"{number:,}", (more, "dim"))
    if commit is None and branches:
        out.lines([[], *overview.lines(repo, out, "log")])


def _distance(ahead: tuple[int, bool], behind: tuple[int, bool]) -> str:
    """The number of commits that each side has alone: `2 commits ahead, 1 commit behind`."""
    parts = [
        f"{counted(number, 'commit')}{'' if all_counted else ' or more'} {where}"
        for (number, all_counted), where in ((ahead, "ahead"), (behind, "behind"))
        if number
    ]
    return ", ".join(parts) or "up to date"


def _count(noun: str, items: Iterable[object], timeout: float) -> tuple[int, bool]:
    """The number of items, and whether the time sufficed to count them all."""
    began, count = time.monotonic(), 0
    with ProgressBar() as bar:
        for count, _ in enumerate(items, 1):
            if count % _CLOCK_READ_EVERY == 0:
                if timeout and time.monotonic() - began > timeout:
                    return count, False
                bar(f"counting {noun}", count)
    return count, True


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
