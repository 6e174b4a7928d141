"""`vstate revert`."""

from __future__ import annotations

from typing import Any

import click

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
def revert(session: Session, rev: str, **options: Any) -> None:
    """Take back the changes of REV on HEAD's branch.

    The new commit makes the opposite of the changes that REV made to its first parent. Keys that changed
    here too are merged, and conflicts are shown, as by `vstate merge`.
    """
    merging.apply(session, rev, back=True, **options)
