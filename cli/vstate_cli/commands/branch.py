"""`vstate branch`."""

from __future__ import annotations

import click

from vstate.repo.names.refs import REMOTES
from vstate_cli import commits
from vstate_cli.changes import name_width
from vstate_cli.output import Document, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_branch, complete_revision


@command(
    "branch",
    examples=[
        "vstate branch",
        "vstate branch --all",
        "vstate branch what-if HEAD~3",
        "vstate branch -m what-if plan-b",
        "vstate branch -d plan-b",
    ],
    json="a list of {name, commit, head}; head is true for HEAD's branch. With NAME, one such object for the "
    "branch that was created, deleted or renamed. With --show-current, the name, null if HEAD is detached.",
)
@click.argument("name", required=False, shell_complete=complete_branch)
@click.argument("at", required=False, shell_complete=complete_revision)
@click.option("-d", "-D", "--delete", is_flag=True, help="Delete the branch NAME. Its reflog stays.")
@click.option("-m", "--move", is_flag=True, help="Rename the branch NAME to AT, or HEAD's branch to NAME.")
@click.option("-a", "--all", "everything", is_flag=True, help="List the branches of remotes too.")
@click.option("--show-current", "current", is_flag=True, help="Print the name of HEAD's branch alone.")
def branch(
    session: Session,
    name: str | None,
    at: str | None,
    delete: bool,
    move: bool,
    everything: bool,
    current: bool,
) -> None:
    """List, create, delete or rename branches.

    Without NAME, list the branches; a * marks HEAD's branch. A branch of a remote is shown as remotes/...,
    at its position when this store last saw it. With NAME, create that branch at the revision AT
    (default: HEAD). HEAD does not move; use `vstate checkout -b` for that.
    """
    if (delete or move) and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    if delete and (move or at is not None):
        raise click.UsageError("-d takes one NAME, without AT and without -m.")
    if (everything or current) and (name is not None or everything is current):
        raise click.UsageError("--all and --show-current go without NAME, and one at a time.")
    if current:
        _show_current(session)
        return
    if name is None:
        _list(session, everything)
        return
    repo = session.repo
    if delete:
        commit, done = repo.delete_branch(name), f"Deleted branch {name}, which was at"
    elif move:
        old, name = (session.branch(), name) if at is None else (name, at)
        commit, done = repo.rename_branch(old, name), f"Renamed branch {old} to {name}, at"
    else:
        commit, done = repo.create_branch(name, "HEAD" if at is None else at), f"Created branch {name} at"
    if session.json:
        session.out.json(_document(name, commit.id, repo.refs.head().branch))
    else:
        session.out.line(f"{safe(done)} ", *commits.summary(commit))


def _show_current(session: Session) -> None:
    head = session.repo.refs.head()
    if session.json:
        session.out.json(head.branch)
    elif head.branch is not None:  # as git, nothing for a detached HEAD
        session.out.line(safe(head.branch))


def _list(session: Session, everything: bool) -> None:
    out, repo = session.out, session.repo
    head, branches = repo.refs.head(), repo.branches()
    if everything:
        branches |= {
            REMOTES + name: repo.objects.commit(oid) for name, oid in repo.refs.list(REMOTES).items()
        }
    if session.json:
        out.json([_document(name, commit.id, head.branch) for name, commit in branches.items()])
        return
    if head.branch is None and head.commit is not None:
        out.line("* ", (f"(HEAD detached at {head.commit.short})", "bold cyan"))
    elif head.branch is not None and head.branch not in branches:
        out.line("* ", (safe(head.branch), "bold green"), ("  no commit yet", "dim"))
    width = name_width(branches)
    for name, commit in branches.items():
        mark, style = ("* ", "bold green") if name == head.branch else ("  ", "")
        out.line(mark, (padded(safe(name), width), style), "  ", *commits.summary(commit))


def _document(name: str, commit: str, current: str | None) -> Document:
    return {"name": name, "commit": commit, "head": name == current}
