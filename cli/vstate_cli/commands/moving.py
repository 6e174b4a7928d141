"""Moving: `vstate checkout`, `switch`, `reset`, `rollback`, `undo`, `redo`; `reflog` lists the moves."""

from __future__ import annotations

import shlex
from itertools import chain, islice

import click

from vstate.display import documents
from vstate.errors import InvalidInput, NotFound
from vstate.repo.names.refs import HEAD, HEADS, ReflogEntry, typed_ref
from vstate.repo.names.undo import Undo
from vstate_cli import changes
from vstate_cli.commands.merging import note_unsigned, show_applied
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import ANY_BRANCH, BRANCH, KEY, REV, Count


@command(
    "checkout",
    moves=True,
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
    note_unsigned(session, head, commit)
    show_applied(session, branch, commit, f"Nothing to take: {branch} has these values already.")


@command(
    "switch",
    moves=True,
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


@command(
    "reset",
    moves=True,
    examples=["vstate reset HEAD~1", "vstate reset main@{yesterday}"],
    json="{branch, old, commit}. old and commit are the ids of the commits before and after.",
)
@click.argument("rev", type=REV)
@click.option("--hard", is_flag=True, help="Taken as in git: a store has no working tree to keep.")
def reset(session: Session, rev: str, hard: bool) -> None:
    """Move HEAD's branch itself to REV.

    The commits behind REV leave the history of the branch. The reflog keeps them, and `vstate undo` brings
    them back. To go back by a new commit instead, use `vstate rollback`.
    """
    repo, branch = session.repo, session.branch()
    old = repo.branch(branch)
    commit = repo.move_branch(branch, repo.resolve(rev), seen=old)
    lines = [session.is_at(branch, commit)]
    if commit != old:
        lines.append([(f"It was at {old.short}. To take that back: vstate undo", "dim")])
    session.answer({"branch": branch, "old": old.id, "commit": commit.id}, lines)


@command(
    "rollback",
    moves=True,
    examples=[
        "vstate rollback",
        "vstate rollback --steps 3",
        "vstate rollback v1 -m 'the plan before was better'",
    ],
    json="the new commit: {id, parents, tree, time, message, info, refs, changes: {added, modified, "
    "removed}}.",
)
@click.argument("rev", required=False, type=REV)
@click.option("--steps", type=Count(min=1), help="Go back by N commits, instead of to REV. Default: 1.")
@click.option("-m", "--message", default="", metavar="TEXT", help="The message of the new commit.")
def rollback(session: Session, rev: str | None, steps: int | None, message: str) -> None:
    """Go back to the state at REV, or of the commit before, by a new commit.

    The new commit goes on top of HEAD's branch. The commits in between stay in the history. Another rollback
    without REV goes further back, and `vstate undo` takes a rollback back.
    """
    if rev is not None and steps is not None:
        raise click.UsageError("Give REV or --steps, not both.")
    repo, branch = session.repo, session.branch()
    target = repo.resolve(rev) if rev is not None else repo.steps_back(repo.resolve(HEAD), steps or 1)
    commit = repo.rollback(branch, target, message=message)
    diff = repo.changes(commit)
    note_unsigned(session, target, commit)
    document = documents.commit_document(commit, session.refs().get(commit.id, []))
    counts = changes.counts(diff) or [" no change"]
    session.answer(
        document | {"changes": documents.keys_document(diff)},
        [
            session.is_at(branch, commit),
            ["The keys are as they were at ", (target.short, "yellow"), ":", *counts],
        ],
    )


@command(
    "undo",
    moves=True,
    examples=["vstate undo", "vstate undo -n 3", "vstate undo --redo"],
    json="{branch, old, commit, action}. old and commit are the ids of the commits before and after; "
    "action is the text of the reflog line.",
)
@click.option("-n", "steps", type=Count(min=1), help="Take back N moves. Default: 1.")
@click.option("--redo", is_flag=True, help="Take back the last undo.")
def undo(session: Session, steps: int | None, redo: bool) -> None:
    """Move HEAD's branch back to its position before the last move.

    A commit, a merge, a rollback and a reset each move a branch. A second undo takes back the move before.
    Nothing is lost: `vstate reflog` shows every move. To go back by a new commit instead, use `vstate
    rollback`.
    """
    if redo and steps is not None:
        raise click.UsageError("--redo takes back the last undo as a whole, so it does not go with -n.")
    repo, branch = session.repo, session.branch()
    found = repo.find_redo(branch) if redo else repo.find_undo(branch, steps=steps or 1)
    carry_out(session, found, hint="" if redo else "To take that back: vstate redo")


@command("redo", moves=True, examples=["vstate redo"], json="the same object as `vstate undo --json`.")
def redo(session: Session) -> None:
    """Take back the last undo of HEAD's branch.

    If something else moved the branch since, there is nothing to redo. `vstate undo --redo` is the same.
    """
    carry_out(session, session.repo.find_redo(session.branch()))


def carry_out(session: Session, found: Undo, *, hint: str = "") -> None:
    """Make the move, and print where the branch is now."""
    commit = session.repo.carry_out(found)
    document = {"branch": found.branch, "old": found.old.id, "commit": commit.id, "action": found.action}
    hints: list[Line] = [[(hint, "dim")]] if hint else []
    session.answer(document, [session.is_at(found.branch, commit), [(safe(found.action), "dim")], *hints])


@command(
    "reflog",
    dated=True,
    paged=True,
    examples=["vstate reflog", "vstate reflog -n 5", "vstate reflog what-if --json"],
    json="a list of {name, old, new, time, action}, newest first. name is a revision such as main@{2}; "
    "old and new are ids of commits, or null where there was no branch.",
)
@click.argument("branch", required=False, type=BRANCH)
@click.option("-n", "limit", type=Count(min=0), help="Show at most N moves.")
def reflog(session: Session, branch: str | None, limit: int | None) -> None:
    """Show the moves of a branch, newest first.

    Each line begins with a revision for the position after the move: main@{1} is the position one move ago.
    BRANCH defaults to HEAD's branch, or to HEAD itself if it is detached. The reflog still names commits
    that no branch reaches, and the moves of a deleted branch, until `vstate gc` removes old moves.
    """
    repo = session.repo
    if branch is None or branch == HEAD:
        branch = repo.refs.head().branch
    name, ref = (HEAD, HEAD) if branch is None else (branch, HEADS + branch)
    moves = islice(repo.refs.reflog(ref), limit)
    newest = next(moves, None)
    if newest is None and limit != 0:
        if branch is not None and repo.refs.read(ref) is None:
            repo.branch(branch)  # raises NotFound, with similar names
        if not session.json:
            session.out.note(f"no move of {name} is on record")
            return
    named = ((f"{name}@{{{at}}}", move) for at, move in enumerate(chain([newest], moves)) if move)
    session.answer((_document(*each) for each in named), (_line(session, *each) for each in named))


def _line(session: Session, name: str, move: ReflogEntry) -> Line:
    at = ("(deleted) ", "dim") if move.new is None else (move.new.short, "yellow")
    time = (session.out.moment(move.time), "dim")
    return [(safe(name), "bold green"), "  ", at, "  ", time, "  ", safe(move.action)]


def _document(name: str, move: ReflogEntry) -> Document:
    return {
        "name": name,
        "old": None if move.old is None else str(move.old),
        "new": None if move.new is None else str(move.new),
        "time": move.time.isoformat(),
        "action": move.action,
    }
