"""`vstate checkout`."""

from __future__ import annotations

import shlex

import click

from vstate.errors import NotFound
from vstate_cli import heads, merging
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_key, complete_revision


@command(
    "checkout",
    examples=[
        "vstate checkout main",
        "vstate checkout HEAD~3 -b what-if",
        "vstate checkout -",
        "vstate checkout v1 -- plan",
    ],
    json="{branch, commit}. branch is HEAD's branch, or null if HEAD is detached; commit is the id of HEAD's "
    "commit, or null on a branch without commits. With keys, the same object as `vstate cherry-pick --json`.",
)
@click.argument("rev", metavar="REV|BRANCH", required=False, shell_complete=complete_revision)
@click.option(
    "-b", "new", metavar="NEW", help="Create the branch NEW at REV (default: HEAD), and move HEAD to it."
)
@click.option(
    "--key",
    "keys",
    metavar="KEY",
    multiple=True,
    shell_complete=complete_key,
    help="Commit the value that KEY has at REV, and leave HEAD. Words behind -- are keys too.",
)
def checkout(session: Session, rev: str | None, new: str | None, keys: tuple[str, ...]) -> None:
    """Move HEAD to a branch, a new branch or a commit.

    A program that opens the store and names no branch works on HEAD's branch. If REV is a commit and not a
    branch, HEAD is detached: programs can read the state, but need a branch to commit. As in git, `-` is the
    branch, or the commit, that HEAD was on before.

    With keys, the branch and HEAD stay, and one new commit has the values of REV for these keys.
    """
    if keys:
        if rev is None or new is not None:
            raise click.UsageError("Keys go with REV, and without -b: vstate checkout REV -- KEY.")
        _restore(session, rev, keys)
    elif new is not None:
        session.repo.create_branch(new, "HEAD" if rev is None else rev)
        heads.move(session, new, is_new=True)
    elif rev is not None:
        try:
            heads.move(session, rev)
        except NotFound as error:
            commit, _ = session.resolve_or_head(rev)  # HEAD's, because rev names none
            if session.repo.entry(commit.root, rev) is None:
                raise
            hint = f"it is a key: to take it from a commit, run vstate checkout REV -- {shlex.quote(rev)}"
            raise NotFound(f"{error.message.partition(';')[0]}; {hint}", name=rev) from None
    else:
        raise click.UsageError("Missing argument 'REV|BRANCH' (or -b NEW).")


def _restore(session: Session, rev: str, keys: tuple[str, ...]) -> None:
    repo, branch = session.repo, session.branch()
    head, source = repo.branch(branch), repo.resolve(rev)
    try:
        commit = repo.restore(branch, source, keys, seen=head)
    except NotFound as error:
        raise NotFound(error.message, candidates=session.similar_keys(source, error.name)) from None
    merging.note_unsigned(session, head, commit)
    merging.show_applied(session, branch, commit, f"Nothing to take: {branch} has these values already.")
