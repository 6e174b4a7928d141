"""Merging: `vstate merge`, `cherry-pick` and `revert` apply changes by policies, and never load a value."""

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
from vstate_cli.commits import id_of
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import KEY, REV

_MOST_SHOWN = 5  # changes inside a key in conflict, of each side
_SHORT = 10  # keys in a message

_Sides = tuple[ObjectId | None, ObjectId | None, ObjectId | None]
"""The trees of the base, ours and theirs."""


def _options(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a command that merges: the message, and who wins where both sides changed a key."""
    of_key: Any = {"type": KEY, "multiple": True}
    by_policy = "Resolve all keys by this policy, not by those of the branch."
    options = (
        click.option("--policy", type=click.Choice(NAMES), metavar="POLICY", help=by_policy),
        click.option("--theirs", **of_key, help=f"Take KEY from the side that is {verb}."),
        click.option("--ours", **of_key, help="Keep KEY as it is on the branch."),
        click.option("-m", "--message", default="", metavar="TEXT", help="The message of the new commit."),
    )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in options:
            function = option(function)
        return function

    return decorate


@command(
    "merge",
    moves=True,
    examples=[
        "vstate merge what-if",
        "vstate merge origin/main -m 'the work of yesterday'",
        "vstate merge what-if --ours plan --theirs notes/a",
    ],
    json='{branch, strategy, commit, merged_keys, resolved}. strategy is "up-to-date", "fast-forward" or '
    '"merge"; resolved is an object of the policies by key. After a conflict, {branch, conflicts: [{key, '
    "reason, ours, theirs}]}; ours and theirs are the paths that each side changed inside the value.",
)
@click.argument("rev", type=REV)
@click.option("--no-ff", is_flag=True, help="Make a merge commit also if the branch could just move to REV.")
@_options("merged")
def merge(
    session: Session,
    rev: str,
    no_ff: bool,
    message: str,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    policy: str | None,
) -> None:
    """Merge REV into HEAD's branch.

    A key that one side changed is taken from that side. If both sides changed a key, its merge policy
    decides: the branch's, or POLICY. The command merges values as they are stored, and loads none. It does
    not run a policy that is a Python function. After a conflict nothing has changed, and the output lists
    the keys, and the changes of each side inside them.
    """
    branch = session.branch()
    repo = InertRepository(session.repo.store, _decided(ours, theirs))
    head, other = repo.newest(branch), repo.resolve(rev)
    try:
        result = repo.merge(
            branch,
            other,
            policy=policy,
            message=message,
            name=rev,
            seen=head,
            fast_forward=not no_ff,
            before_move=repo.decisions.check,
        )
    except MergeConflict as error:
        refuse_merge(session, branch, other, rev, error)
    note_unsigned(session, head, result.commit)
    document = {
        "branch": branch,
        "strategy": result.strategy,
        "commit": id_of(result.commit),
        "merged_keys": list(result.merged_keys),
        "resolved": dict(result.conflicts),
    }
    session.answer(document, [[(safe(branch), "bold green"), f": {safe(str(result))}"]])


@command(
    "cherry-pick",
    moves=True,
    examples=["vstate cherry-pick what-if", "vstate cherry-pick what-if~2 --theirs plan"],
    json="{branch, commit, changes: {added, modified, removed}}. commit is null if there was nothing to "
    "commit, and changes is absent then. After a conflict, the same object as `vstate merge --json`.",
)
@click.argument("rev", type=REV)
@_options("picked")
def cherry_pick(session: Session, rev: str, **options: Any) -> None:
    """Commit the changes of REV to HEAD's branch.

    The new commit makes the changes that REV made to its first parent. Keys that changed here too are
    merged, and conflicts are shown, as by `vstate merge`.
    """
    _apply(session, rev, back=False, **options)


@command(
    "revert",
    moves=True,
    examples=["vstate revert HEAD~1", "vstate revert HEAD~3 -m oops"],
    json="{branch, commit, changes: {added, modified, removed}}. commit is null if there was nothing to "
    "commit, and changes is absent then. After a conflict, the same object as `vstate merge --json`.",
)
@click.argument("rev", type=REV)
@_options("restored")
def revert(session: Session, rev: str, **options: Any) -> None:
    """Take back the changes of REV on HEAD's branch.

    The new commit makes the opposite of the changes that REV made to its first parent. Keys that changed
    here too are merged, and conflicts are shown, as by `vstate merge`.
    """
    _apply(session, rev, back=True, **options)


def _apply(
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
    repo = InertRepository(session.repo.store, _decided(ours, theirs))
    head, source = repo.branch(branch), repo.resolve(rev)
    try:
        commit = (repo.revert if back else repo.cherry_pick)(
            branch, source, policy=policy, message=message, seen=head, before_move=repo.decisions.check
        )
    except MergeConflict as error:
        before = next(iter(repo.history.before(source)), None)
        old, new = None if before is None else before.root, source.root
        doing = f"{'reverting' if back else 'cherry-picking'} {rev} on {branch}"
        again = f"vstate {'revert' if back else 'cherry-pick'} {shlex.quote(rev)}"
        sides = (new, head.root, old) if back else (old, head.root, new)
        _refuse(session, branch, error, doing, sides, again)
    note_unsigned(session, head, commit)
    nothing = "revert: {} has none of these changes." if back else "pick: {} has these changes already."
    show_applied(session, branch, commit, f"Nothing to {nothing.format(branch)}")


def show_applied(session: Session, branch: str, commit: Commit | None, nothing: str) -> None:
    """Print the new commit that applied changes; `nothing` if there was nothing to commit."""
    if commit is None:
        session.answer({"branch": branch, "commit": None}, [[nothing]])
        return
    diff = session.repo.changes(commit)
    document = {"branch": branch, "commit": commit.id, "changes": documents.keys_document(diff)}
    session.answer(document, [[*session.is_at(branch, commit), " ", *changes.counts(diff)]])


def note_unsigned(session: Session, before: Commit | None, after: Commit | None) -> None:
    """Say so if a commit without a signature follows a signed one."""
    if before is not None and after is not None and before.signature and not after.signature:
        session.out.note(
            "the new commit is not signed, so a program that requires signatures refuses it; to take it "
            "back, run `vstate undo`; to sign, do the same in Python"
        )


def _decided(ours: Sequence[str], theirs: Sequence[str]) -> dict[str, str]:
    """The chosen side of each key; a usage error for a key on both sides."""
    for key in ours:
        if key in theirs:
            raise click.UsageError(f"{key!r} is given for --ours and for --theirs.")
    return dict.fromkeys(ours, OURS) | dict.fromkeys(theirs, THEIRS)


def refuse_merge(session: Session, branch: str, other: Commit, name: str, error: MergeConflict) -> NoReturn:
    """Print the conflicts of a merge of the commit `other`, called `name`, into a branch; raise Conflict."""
    repo = session.repo
    head = repo.branch(branch)  # without commits of its own, a branch has no conflict
    bases = repo.history.merge_bases(head.oid, other.oid)
    base = repo.objects.commit(bases[0]).root if bases else None
    sides = None if len(bases) > 1 else (base, head.root, other.root)
    switch = "" if repo.refs.head().branch == branch else f"vstate switch {shlex.quote(branch)} && "
    again = f"{switch}vstate merge {shlex.quote(name)}"
    _refuse(session, branch, error, f"merging {name} into {branch}", sides, again)


def _refuse(
    session: Session, branch: str, error: MergeConflict, doing: str, sides: _Sides | None, again: str
) -> NoReturn:
    """Print the keys in conflict, with the changes of each side inside them, and raise Conflict.

    `sides` is None if there is more than one base. `again` is the command to run again.
    """
    found: list[Document] = []
    lines: list[Line] = []
    for key in error.keys:
        reason = error.conflicts[key].reason
        found.append({"key": key, "reason": reason})
        lines.append([("conflict ", "bold red"), (safe(key), "bold"), f": {safe(reason)}"])
        for name, diff in _sides_of(session, key, sides):
            if session.json:
                details = changes.detail_documents(diff, key, session.out) if key in diff else {}
                found[-1][name] = [detail["path"] for detail in details.get("details", [])]
            else:
                lines += _side_lines(session, name, diff)
    session.answer({"branch": branch, "conflicts": found}, lines)
    names = ", ".join(map(repr, error.keys[:_SHORT]))
    left = len(error.keys) - _SHORT
    names += f" and {counted(left, 'more key')}" if left > 0 else ""
    raise Conflict(
        f"{doing} is in conflict on {names}; nothing has changed. To choose a side, run `{again}` with "
        "--ours KEY or --theirs KEY for each of them, or with --policy POLICY, or merge in Python"
    ) from None


def _sides_of(session: Session, key: str, sides: _Sides | None) -> list[tuple[str, Diff]]:
    """The change of a key on each side since the base."""
    if sides is None:
        return []
    repo = session.repo
    base, ours, theirs = (tree.lookup(repo.objects.node, root, key) for root in sides)
    return [
        (name, repo.make_diff([KeyChange(key, base, side)] if side != base else []))
        for name, side in ((OURS, ours), (THEIRS, theirs))
    ]


def _side_lines(session: Session, name: str, diff: Diff) -> list[Line]:
    whole = "".join(f" {diff[key].kind} it" for key in diff if diff[key].kind != "modified")
    lines: list[Line] = [["  ", (name, "bold"), whole]]
    for key in diff:
        lines += (["    ", *line] for line in changes.detail_lines(diff, key, session.out, _MOST_SHOWN, 4))
    return lines
