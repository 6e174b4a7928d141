"""`vstate switch`."""

from __future__ import annotations

import shlex

import click

from vstate.errors import InvalidInput, NotFound
from vstate.repo.names.refs import typed_ref
from vstate_cli import heads
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_branch, complete_revision


@command(
    "switch",
    examples=["vstate switch main", "vstate switch -", "vstate switch -c what-if HEAD~3"],
    json="the same object as `vstate checkout --json`.",
)
@click.argument("branch", required=False, shell_complete=complete_branch)
@click.argument("at", required=False, shell_complete=complete_revision)
@click.option("-c", "--create", is_flag=True, help="Create BRANCH at the revision AT (default: HEAD).")
def switch(session: Session, branch: str | None, at: str | None, create: bool) -> None:
    """Move HEAD to another branch.

    A program that opens the store and names no branch works on HEAD's branch. BRANCH - is the branch, or
    the commit, that HEAD was on before. To look at a commit that is no branch, use `vstate checkout`.
    """
    if branch is None:
        raise click.UsageError("Missing argument 'BRANCH'.")
    if at is not None and not create:
        raise click.UsageError("AT goes with -c.")
    asked, branch = branch, branch if create or branch == "-" else typed_ref(branch)
    if create:
        session.repo.create_branch(branch, "HEAD" if at is None else at)
    elif branch not in ("-", session.repo.refs.head().branch):
        try:
            session.repo.branch(branch)
        except (NotFound, InvalidInput) as error:
            commit, unknown = session.resolve_or_head(asked)
            if unknown is not None:
                raise error from None  # it names similar branches
            raise InvalidInput(
                f"{asked!r} is no branch but names the commit {commit.short}: to go there, run "
                f"`vstate checkout {shlex.quote(asked)}`, or `vstate switch -c NAME {shlex.quote(asked)}`"
            ) from None
    heads.move(session, branch, is_new=create)
