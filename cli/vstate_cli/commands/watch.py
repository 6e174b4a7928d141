"""`vstate watch`."""

from __future__ import annotations

from itertools import islice

import click

from vstate.display import documents
from vstate.errors import InvalidInput
from vstate.state.watching import Watch
from vstate_cli import changes, commits
from vstate_cli.session import Session, command
from vstate_cli.suggestions import BRANCH, complete_key, complete_revision


@command(
    "watch",
    reads=True,
    examples=["vstate watch -n 1 --since v1", "vstate watch 'agent:*'", "vstate watch --json"],
    json="one object a line, one for each change: {key, kind, old, new, commit}. old and new are {type, "
    "size} with the size in bytes, or null; commit is the id of the commit that made the change.",
)
@click.argument("pattern", default="*", shell_complete=complete_key)
@click.option("--branch", metavar="BRANCH", type=BRANCH, help="Watch this branch, not HEAD's.")
@click.option(
    "--since", metavar="REV", shell_complete=complete_revision, help="Begin after REV, not after now."
)
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="N", help="Stop after N changes.")
def watch(session: Session, pattern: str, branch: str | None, since: str | None, limit: int | None) -> None:
    """Show the changes of keys as programs commit them, until Ctrl-C.

    PATTERN chooses keys as a shell chooses files: `agent:*`. Each line has the commit, and the key with the
    change: + added, ~ modified, - removed.
    """
    repo, out = session.repo, session.out
    name = repo.refs.head().branch if branch is None else branch
    if name is None:
        raise InvalidInput("HEAD is detached, so it has no branch to watch; name one with --branch BRANCH")
    seen = repo.newest(name) if since is None else repo.resolve(since)
    if branch is not None:
        repo.branch(branch)  # NotFound names similar branches
    with Watch(repo, name, pattern, seen) as found:
        for _, change, commit in islice(found, limit):
            if session.json:
                out.json(documents.change_document(change) | {"commit": commit.id}, indent=None)
            else:
                out.line(*commits.summary(commit), "  ", *changes.line(change))
            out.flush()
