"""`vstate revert`."""

from __future__ import annotations

import shlex

import click

from vstate.errors import MergeConflict
from vstate_cli import merging
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "revert",
    examples=["vstate revert HEAD~1", "vstate revert HEAD~3 -m oops"],
    json="{branch, commit, changes: {added, modified, removed}}. commit is null if there was nothing to "
    "commit, and changes is absent then. After a conflict, the same object as `vstate merge --json`.",
)
@click.argument("rev", shell_complete=complete_revision)
@merging.options("restored")
def revert(
    session: Session,
    rev: str,
    message: str,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    policy: str | None,
) -> None:
    """Take back the changes of REV on HEAD's branch.

    The new commit makes the opposite of the changes that REV made to its first parent. Keys that changed
    here too are merged, and conflicts are shown, as by `vstate merge`.
    """
    branch = session.branch()
    repo = merging.InertRepository(session.repo.store, merging.decided(ours, theirs))
    head, reverted = repo.branch(branch), repo.resolve(rev)
    try:
        commit = repo.revert(
            branch, reverted, policy=policy, message=message, seen=head, before_move=repo.decisions.check
        )
    except MergeConflict as error:
        before = next(iter(repo.history.before(reverted)), None)
        parent = None if before is None else before.root
        merging.refuse(
            session,
            branch,
            error,
            operation=f"reverting {rev} on {branch}",
            sides=(reverted.root, head.root, parent),
            again=f"vstate revert {shlex.quote(rev)}",
        )
    merging.note_unsigned(session, head, commit)
    merging.show_applied(session, branch, commit, f"Nothing to revert: {branch} has none of these changes.")
