"""`vstate cherry-pick`."""

from __future__ import annotations

from typing import Any

import click

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
def cherry_pick(session: Session, rev: str, **options: Any) -> None:
    """Commit the changes of REV to HEAD's branch.

    The new commit makes the changes that REV made to its first parent. Keys that changed here too are
    merged, and conflicts are shown, as by `vstate merge`.
    """
    merging.apply(session, rev, back=False, **options)
