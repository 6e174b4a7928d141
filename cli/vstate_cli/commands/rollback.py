"""`vstate rollback`."""

from __future__ import annotations

import click

from vstate_cli import documents
from vstate_cli.render import change_counts, subject
from vstate_cli.session import Session, command, complete_revision


@command(
    "rollback",
    examples=["vstate rollback HEAD~1", "vstate rollback v1 -m 'the plan before was better'"],
    json="the new commit: {id, parents, tree, time, message, info, refs, changes: {added, modified, removed}}.",
)
@click.argument("rev", shell_complete=complete_revision)
@click.option("-m", "--message", default="", metavar="TEXT", help="The message of the new commit.")
def rollback(session: Session, rev: str, message: str) -> None:
    """Go back to the state at REV, by a new commit.

    The commit is made on HEAD's branch. Nothing is lost: the commits in between stay in the history, and can be rolled back to in turn.
    """
    repo, out = session.repo, session.out
    target = repo.resolve(rev)
    branch = session.branch()
    commit = repo.rollback(branch, target, message=message)
    changes = repo.changes(commit)
    if target.signature is not None:
        out.note(
            "the new commit is not signed, so a program that trusts signatures only will refuse it; `vstate undo` takes it "
            "back, and state.rollback() in Python signs"
        )
    if session.json:
        document = documents.commit(commit, session.refs().get(commit.id, []))
        documents.write(out, document | {"changes": documents.keys(changes)})
        return
    out.line((branch, "bold green"), " is at ", (commit.short, "yellow"), f" {subject(commit)}")
    out.line(
        "The keys are as they were at ",
        (target.short, "yellow"),
        ":",
        *(change_counts(changes) or [" no change"]),
    )
