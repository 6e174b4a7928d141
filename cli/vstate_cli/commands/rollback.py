"""`vstate rollback`."""

from __future__ import annotations

import click

from vstate_cli import changes, commits
from vstate_cli.merging import note_unsigned
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "rollback",
    examples=["vstate rollback HEAD~1", "vstate rollback v1 -m 'the plan before was better'"],
    json="the new commit: {id, parents, tree, time, message, info, refs, changes: {added, modified, "
    "removed}}.",
)
@click.argument("rev", shell_complete=complete_revision)
@click.option("-m", "--message", default="", metavar="TEXT", help="The message of the new commit.")
def rollback(session: Session, rev: str, message: str) -> None:
    """Go back to the state at REV, by a new commit.

    The new commit goes on top of HEAD's branch. The commits in between stay in the history, so a rollback
    can be rolled back too.
    """
    repo, out = session.repo, session.out
    target = repo.resolve(rev)
    branch = session.branch()
    commit = repo.rollback(branch, target, message=message)
    diff = repo.changes(commit)
    note_unsigned(session, target, commit)
    if session.json:
        document = commits.document(commit, session.refs().get(commit.id, []))
        out.json(document | {"changes": changes.keys_document(diff)})
        return
    out.line((branch, "bold green"), " is at ", *commits.summary(commit))
    out.line(
        "The keys are as they were at ",
        (target.short, "yellow"),
        ":",
        *(changes.counts(diff) or [" no change"]),
    )
