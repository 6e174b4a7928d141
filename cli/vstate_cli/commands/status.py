"""`vstate status`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import click

from vstate.display import documents
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.plural import counted
from vstate.repo.names.refs import HEADS, TAGS
from vstate.repo.names.revisions import FIRST
from vstate.values.inspection import size_text
from vstate_cli import commits
from vstate_cli.output import Document, Line, Part, safe
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
    "where the size is unknown.",
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
    object_count = count("objects", repo.view.keys(OBJECT_PREFIX), "objects")
    numbers = {
        "commits": commit_count,
        "branches": len(branches),
        "tags": len(tags),
        "keys": tree.count_prefix(repo.objects.node, root, "", at=expiry.now()),
        "objects": object_count,
    }
    upstream = None
    tracked = None if head.branch is None else repo.remotes.upstream(head.branch)
    if commit is not None and tracked is not None:
        name, there = tracked
        ahead = count("ahead", repo.history.outside([commit.oid], [there]))
        behind = count("behind", repo.history.outside([there], [commit.oid]))
        upstream = {"name": name, "ahead": ahead, "behind": behind}
    refs = session.refs().get(commit.id, []) if commit is not None else []
    shown = None if commit is None else documents.commit_document(commit, refs)
    position: Document = {"store": repo.store.location, "bytes": repo.store.size(), "branch": head.branch}
    document = position | {"upstream": upstream, "head": shown} | numbers | {"at_least": at_least}
    session.answer(document, _lines(session, commit, document, numbers))


def _lines(
    session: Session, commit: Commit | None, document: Document, numbers: dict[str, int]
) -> Iterator[Line]:
    size, branch, upstream, at_least = (
        document[name] for name in ("bytes", "branch", "upstream", "at_least")
    )
    yield _row("store", safe(document["store"]), ("" if size is None else f"  {size_text(size)}", "dim"))
    on = ("none: HEAD is detached", "bold yellow") if branch is None else (safe(branch), "bold green")
    yield _row("branch", on)
    if upstream is not None:
        parts = [
            f"{counted(upstream[where], 'commit')}{' or more' if where in at_least else ''} {where}"
            for where in ("ahead", "behind")
            if upstream[where]
        ]
        distance = ", ".join(parts) or "up to date"
        yield _row("upstream", (safe(upstream["name"]), "bold red"), f"  {distance}")
    if commit is None:
        yield _row("head", "no commit yet" if numbers["branches"] else f"no commit yet; {FIRST}")
    else:
        yield _row("head", *commits.summary(commit))
        yield _row("", *commits.time_and_info(commit, session.out))
    for name, number in numbers.items():
        more = " or more (--timeout 0 counts them all)" if name in at_least else ""
        yield _row(name, f"{number:,}", (more, "dim"))
    if commit is None and numbers["branches"]:
        yield from [[], *commits.overview(session.repo, session.out, "log")]


def _row(name: str, *parts: Part) -> Line:
    return [(f"{name:10}", "dim"), *parts]
