"""`vstate cherry-pick`."""

from __future__ import annotations

import shlex

import click

from vstate.errors import MergeConflict
from vstate_cli import merging
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


@command(
    "cherry-pick",
    examples=["vstate cherry-pick what-if", "vstate cherry-pick what-if~2 --theirs plan"],
    json="{branch, commit, changes: {added, modified, removed}}. commit is null if there was nothing to "
    "commit, and changes is absent then. After a conflict, the same object as `vstate merge --json`.",
)
@click.argument("rev", shell_complete=complete_revision)
@merging.options("picked")
def cherry_pick(
    session: Session,
    rev: str,
    message: str,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    policy: str | None,
) -> None:
    """Commit the changes of REV to HEAD's branch.

    The new commit makes the changes that REV made to its first parent. Keys that changed here too are
    merged, and conflicts are shown, as by `vstate merge`.
    """
    branch = session.branch()
    repo = merging.InertRepository(session.repo.store, merging.decided(ours, theirs))
    head, picked = repo.branch(branch), repo.resolve(rev)
    try:
        commit = repo.cherry_pick(
            branch, picked, policy=policy, message=message, seen=head, before_move=repo.decisions.check
        )
    except MergeConflict as error:
        before = next(iter(repo.history.before(picked)), None)
        parent = None if before is None else before.root
        merging.refuse(
            session,
            branch,
            error,
            operation=f"cherry-picking {rev} on {branch}",
            sides=(parent, head.root, picked.root),
            again=f"vstate cherry-pick {shlex.quote(rev)}",
        )
    merging.note_unsigned(session, head, commit)
    merging.show_applied(session, branch, commit, f"Nothing to pick: {branch} has these changes already.")
