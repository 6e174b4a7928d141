"""Moving: `vstate checkout` and `vstate switch` put HEAD on a branch or a commit."""

from __future__ import annotations

import shlex

import click

from vstate.errors import InvalidInput, NotFound
from vstate.repo.names.refs import typed_ref
from vstate_cli.commands import merging
from vstate_cli.output import Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import ANY_BRANCH, KEY, REV


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
@click.argument("rev", metavar="REV|BRANCH", required=False, type=REV)
@click.option(
    "-b", "new", metavar="NEW", help="Create the branch NEW at REV (default: HEAD), and move HEAD to it."
)
@click.option(
    "--key",
    "keys",
    type=KEY,
    multiple=True,
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
        session.repo.create_branch(new, rev or "HEAD")
        _move(session, new, is_new=True)
    elif rev is not None:
        try:
            _move(session, rev)
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


@command(
    "switch",
    examples=["vstate switch main", "vstate switch -", "vstate switch -c what-if HEAD~3"],
    json="the same object as `vstate checkout --json`.",
)
@click.argument("branch", required=False, type=ANY_BRANCH)
@click.argument("at", required=False, type=REV)
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
        session.repo.create_branch(branch, at or "HEAD")
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
    _move(session, branch, is_new=create)


def _move(session: Session, target: str, *, is_new: bool = False) -> None:
    """Put HEAD on a branch or a commit, `-` for the one before, and print where HEAD is now."""
    repo = session.repo
    before = repo.refs.head()
    head = repo.checkout(target)
    at: Line = [] if head.commit is None else [" at ", *session.summary(repo.resolve(head.commit))]
    if head.branch is None:
        hint = "To commit from here, create a branch: vstate checkout -b NAME"
        lines: list[Line] = [["HEAD is detached", *at], [(hint, "dim")]]
    else:
        done = "Already on" if before.branch == head.branch else "Switched to branch"
        done = "Switched to the new branch" if is_new else done
        lines = [[f"{done} ", (safe(head.branch), "bold green"), *at]]
    commit = None if head.commit is None else str(head.commit)
    session.answer({"branch": head.branch, "commit": commit}, lines)
