"""`vstate checkout`."""

from __future__ import annotations

import click

from vstate_cli import commits
from vstate_cli.output import Line
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "checkout",
    examples=["vstate checkout main", "vstate checkout HEAD~3 -b what-if", "vstate checkout v1"],
    json="{branch, commit}. branch is HEAD's branch, or null if HEAD is detached; commit is the id of HEAD's "
    "commit, or null on a branch without commits.",
)
@click.argument("rev", metavar="REV|BRANCH", required=False, shell_complete=complete_revision)
@click.option(
    "-b", "new", metavar="NEW", help="Create the branch NEW at REV (default: HEAD), and move HEAD to it."
)
def checkout(session: Session, rev: str | None, new: str | None) -> None:
    """Move HEAD to a branch, a new branch or a commit.

    A program that opens the store and names no branch works on HEAD's branch. If REV is a commit and not a
    branch, HEAD is detached: programs can read the state, but need a branch to commit.
    """
    if rev is None and new is None:
        raise click.UsageError("Missing argument 'REV|BRANCH' (or -b NEW).")
    repo, out = session.repo, session.out
    before = repo.refs.head()
    if new is not None:
        repo.create_branch(new, "HEAD" if rev is None else rev)
    target = new if new is not None else rev
    assert target is not None
    head = repo.checkout(target)
    if session.json:
        out.json({"branch": head.branch, "commit": None if head.commit is None else str(head.commit)})
        return
    at: Line = [] if head.commit is None else [" at ", *commits.summary(repo.resolve(head.commit))]
    if head.branch is None:
        out.line("HEAD is detached", *at)
        out.line(("To commit from here, create a branch: vstate checkout -b NAME", "dim"))
    elif new is not None:
        out.line("Switched to the new branch ", (head.branch, "bold green"), *at)
    elif before.branch == head.branch:
        out.line("Already on ", (head.branch, "bold green"), *at)
    else:
        out.line("Switched to branch ", (head.branch, "bold green"), *at)
