"""Merges: the command applies the changes of other commits by policies, and never loads a value."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from vstate.display import documents
from vstate.errors import Conflict, MergeConflict
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.objects.tree import KeyChange
from vstate.plural import counted
from vstate.repo.compare.diff import Diff
from vstate.repo.inert import InertRepository
from vstate.repo.rules.policies import NAMES, OURS, THEIRS
from vstate_cli import changes
from vstate_cli.output import Document, safe
from vstate_cli.session import Session
from vstate_cli.suggestions import complete_key

_MOST_SHOWN = 5  # changes inside a key in conflict, of each side
_SHORT = 10  # keys in a message

_Command = Callable[..., None]


def options(verb: str) -> Callable[[_Command], _Command]:
    """The options of a command that merges: the message, and who wins where both sides changed a key."""
    of_key: Any = {"metavar": "KEY", "multiple": True, "shell_complete": complete_key}

    def decorate(function: _Command) -> _Command:
        for option in (
            click.option(
                "--policy",
                type=click.Choice(NAMES),
                metavar="POLICY",
                help="Resolve all keys by this policy, not by those of the branch.",
            ),
            click.option("--theirs", **of_key, help=f"Take KEY from the side that is {verb}."),
            click.option("--ours", **of_key, help="Keep KEY as it is on the branch."),
            click.option(
                "-m", "--message", default="", metavar="TEXT", help="The message of the new commit."
            ),
        ):
            function = option(function)
        return function

    return decorate


def decided(ours: Sequence[str], theirs: Sequence[str]) -> dict[str, str]:
    """The chosen side of each key; a usage error for a key on both sides."""
    for key in ours:
        if key in theirs:
            raise click.UsageError(f"{key!r} is given for --ours and for --theirs.")
    return dict.fromkeys(ours, OURS) | dict.fromkeys(theirs, THEIRS)


def refuse(
    session: Session,
    branch: str,
    error: MergeConflict,
    *,
    operation: str,
    sides: tuple[ObjectId | None, ObjectId | None, ObjectId | None] | None,
    again: str,
) -> NoReturn:
    """Print the keys in conflict, with the changes of each side inside them, and raise Conflict.

    `sides` are the trees of the base, ours and theirs, if there is one base. `again` is the command to run
    again.
    """
    out = session.out
    found = [_conflict(session, key, error.conflicts[key].reason, sides) for key in error.keys]
    if session.json:
        out.json({"branch": branch, "conflicts": [document for document, _, _ in found]})
    else:
        for document, ours, theirs in found:
            out.line(
                ("conflict ", "bold red"), (safe(document["key"]), "bold"), f": {safe(document['reason'])}"
            )
            for name, diff in (("ours", ours), ("theirs", theirs)):
                if diff is None:
                    continue
                whole = "".join(f" {diff[key].kind} it" for key in diff if diff[key].kind != "modified")
                out.line("  ", (name, "bold"), whole)
                for key in diff:
                    out.lines(changes.detail_lines(diff, key, out, _MOST_SHOWN, 4), indent="    ")
    names = ", ".join(map(repr, error.keys[:_SHORT]))
    left = len(error.keys) - _SHORT
    names += f" and {counted(left, 'more key')}" if left > 0 else ""
    raise Conflict(
        f"{operation} is in conflict on {names}; nothing has changed. To choose a side, run `{again}` with "
        "--ours KEY or --theirs KEY for each of them, or with --policy POLICY, or merge in Python"
    ) from None


def _conflict(
    session: Session,
    key: str,
    reason: str,
    sides: tuple[ObjectId | None, ObjectId | None, ObjectId | None] | None,
) -> tuple[Document, Diff | None, Diff | None]:
    document: Document = {"key": key, "reason": reason}
    if sides is None:
        return document, None, None
    repo = session.repo
    base, ours, theirs = (tree.lookup(repo.objects.node, root, key) for root in sides)
    diffs = [repo.make_diff([KeyChange(key, base, side)] if side != base else []) for side in (ours, theirs)]
    for name, diff in zip((OURS, THEIRS), diffs, strict=True):
        found = changes.detail_documents(diff, key, session.out) if session.json and key in diff else {}
        document[name] = [detail["path"] for detail in found.get("details", [])]
    return document, diffs[0], diffs[1]


def apply(
    session: Session,
    rev: str,
    *,
    back: bool,
    message: str,
    ours: Sequence[str],
    theirs: Sequence[str],
    policy: str | None,
) -> None:
    """Commit the changes of `rev` to HEAD's branch, or take them `back`, and print the new commit."""
    branch = session.branch()
    repo = InertRepository(session.repo.store, decided(ours, theirs))
    head, source = repo.branch(branch), repo.resolve(rev)
    try:
        commit = (repo.revert if back else repo.cherry_pick)(
            branch, source, policy=policy, message=message, seen=head, before_move=repo.decisions.check
        )
    except MergeConflict as error:
        before = next(iter(repo.history.before(source)), None)
        old, new = None if before is None else before.root, source.root
        refuse(
            session,
            branch,
            error,
            operation=f"{'reverting' if back else 'cherry-picking'} {rev} on {branch}",
            sides=(new, head.root, old) if back else (old, head.root, new),
            again=f"vstate {'revert' if back else 'cherry-pick'} {shlex.quote(rev)}",
        )
    note_unsigned(session, head, commit)
    nothing = "revert: {} has none of these changes." if back else "pick: {} has these changes already."
    show_applied(session, branch, commit, f"Nothing to {nothing.format(branch)}")


def show_applied(session: Session, branch: str, commit: Commit | None, nothing: str) -> None:
    """Print the new commit that applied changes; `nothing` if there was nothing to commit."""
    out = session.out
    diff = None if commit is None else session.repo.changes(commit)
    if session.json:
        document = {} if diff is None else {"changes": documents.keys_document(diff)}
        out.json({"branch": branch, "commit": None if commit is None else commit.id} | document)
        return
    if commit is None or diff is None:
        out.line(nothing)
        return
    out.line((safe(branch), "bold green"), " is at ", *session.summary(commit), " ", *changes.counts(diff))


def note_unsigned(session: Session, before: Commit | None, after: Commit | None) -> None:
    """Say so if a commit without a signature follows a signed one."""
    if before is not None and after is not None and before.signature and not after.signature:
        session.out.note(
            "the new commit is not signed, so a program that requires signatures refuses it; to take it "
            "back, run `vstate undo`; to sign, do the same in Python"
        )
