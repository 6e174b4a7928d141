"""`vstate checkout`."""

from __future__ import annotations

import click

from vstate_cli import documents
from vstate_cli.render import subject
from vstate_cli.session import Session, command, complete_revision


@command(
    "checkout",
    examples=["vstate checkout main", "vstate checkout HEAD~3 -b what-if", "vstate checkout v1"],
    json="{branch, commit}: HEAD's branch, null when it is detached, and the id it is at, null on a branch "
    "without commits.",
)
@click.argument("rev", metavar="REV|BRANCH", required=False, shell_complete=complete_revision)
@click.option("-b", "new", metavar="NEW", help="Make this branch at REV (HEAD), and move HEAD to it.")
def checkout(session: Session, rev: str | None, new: str | None) -> None:
    """Move HEAD to a branch, a new branch or a commit.

    A program that opens the store without naming a branch works where HEAD is. At a commit that is not a branch
    HEAD is detached: programs can look, but need a branch to commit.
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
        documents.write(
            out, {"branch": head.branch, "commit": None if head.commit is None else str(head.commit)}
        )
        return
    commit = None if head.commit is None else repo.resolve(head.commit)
    at = f" at {commit.short} {subject(commit)}".rstrip() if commit is not None else ""
    if head.branch is None:
        out.line(f"HEAD is detached{at}")
        out.line(("To commit from here, make a branch: vstate checkout -b NAME", "dim"))
    elif new is not None:
        out.line("Switched to the new branch ", (head.branch, "bold green"), at)
    elif before.branch == head.branch:
        out.line("Already on ", (head.branch, "bold green"), at)
    else:
        out.line("Switched to branch ", (head.branch, "bold green"), at)
