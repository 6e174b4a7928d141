"""`vstate rollback`."""

from __future__ import annotations

import click

from vstate.display import documents
from vstate_cli import changes
from vstate_cli.merging import note_unsigned
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "rollback",
    examples=[
        "vstate rollback",
        "vstate rollback --steps 3",
        "vstate rollback v1 -m 'the plan before was better'",
    ],
    json="the new commit: {id, parents, tree, time, message, info, refs, changes: {added, modified, "
    "removed}}.",
)
@click.argument("rev", required=False, shell_complete=complete_revision)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Go back by N commits, instead of to REV. Default: 1.",
)
@click.option("-m", "--message", default="", metavar="TEXT", help="The message of the new commit.")
def rollback(session: Session, rev: str | None, steps: int | None, message: str) -> None:
    """Go back to the state at REV, or of the commit before, by a new commit.

    The new commit goes on top of HEAD's branch. The commits in between stay in the history. Another rollback
    without REV goes further back, and `vstate undo` takes a rollback back.
    """
    if rev is not None and steps is not None:
        raise click.UsageError("Give REV or --steps, not both.")
    repo, out = session.repo, session.out
    branch = session.branch()
    target = repo.resolve(rev) if rev is not None else repo.steps_back(repo.resolve("HEAD"), steps or 1)
    commit = repo.rollback(branch, target, message=message)
    diff = repo.changes(commit)
    note_unsigned(session, target, commit)
    if session.json:
        document = documents.commit_document(commit, session.refs().get(commit.id, []))
        out.json(document | {"changes": documents.keys_document(diff)})
        return
    out.line((branch, "bold green"), " is at ", *session.summary(commit))
    out.line(
        "The keys are as they were at ",
        (target.short, "yellow"),
        ":",
        *(changes.counts(diff) or [" no change"]),
    )
