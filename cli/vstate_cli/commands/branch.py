"""`vstate branch`."""

from __future__ import annotations

import click

from vstate_cli import documents
from vstate_cli.output import safe
from vstate_cli.render import name_width, subject
from vstate_cli.session import Session, command, complete_branch, complete_revision


@command(
    "branch",
    examples=[
        "vstate branch",
        "vstate branch what-if HEAD~3",
        "vstate branch -m what-if plan-b",
        "vstate branch -d plan-b",
    ],
    json="a list of {name, commit, head}, head true for HEAD's branch; with NAME the one branch that was made, "
    "deleted or renamed.",
)
@click.argument("name", required=False, shell_complete=complete_branch)
@click.argument("at", required=False, shell_complete=complete_revision)
@click.option("-d", "--delete", is_flag=True, help="Delete the branch NAME; the reflog keeps where it was.")
@click.option("-m", "--move", is_flag=True, help="Rename the branch NAME to AT, or HEAD's branch to NAME.")
def branch(session: Session, name: str | None, at: str | None, delete: bool, move: bool) -> None:
    """List, make, delete or rename branches.

    Without NAME, list them; with NAME, make that branch at the revision AT (HEAD). A * marks HEAD's branch. Making a branch does not move HEAD: see `vstate checkout -b`.
    """
    if (delete or move) and name is None:
        raise click.UsageError("Missing argument 'NAME'.")
    if delete and (move or at is not None):
        raise click.UsageError("-d takes one NAME, and neither AT nor -m.")
    if name is None:
        _list(session)
        return
    repo = session.repo
    if delete:
        commit, done = repo.delete_branch(name), f"Deleted branch {name}, which was at"
    elif move:
        old, name = (session.branch(), name) if at is None else (name, at)
        commit, done = repo.rename_branch(old, name), f"Renamed branch {old} to {name}, at"
    else:
        commit, done = repo.create_branch(name, "HEAD" if at is None else at), f"Made branch {name} at"
    if session.json:
        documents.write(session.out, _document(name, commit.id, repo.refs.head().branch))
    else:
        session.out.line(f"{safe(done)} ", (commit.short, "yellow"), f" {subject(commit)}".rstrip())


def _list(session: Session) -> None:
    out, head, branches = session.out, session.repo.refs.head(), session.repo.branches()
    if session.json:
        listed = [_document(name, commit.id, head.branch) for name, commit in branches.items()]
        documents.write(out, listed)
        return
    if head.branch is None and head.commit is not None:
        out.line("* ", (f"(HEAD detached at {head.commit.short})", "bold cyan"))
    elif head.branch is not None and head.branch not in branches:
        out.line("* ", (safe(head.branch), "bold green"), ("  no commit yet", "dim"))
    width = name_width(branches)
    for name, commit in branches.items():
        current = name == head.branch
        shown = (f"{safe(name):{width}}", "bold green" if current else "")
        out.line(
            "* " if current else "  ", shown, "  ", (commit.short, "yellow"), f"  {subject(commit)}".rstrip()
        )


def _document(name: str, commit: str, current: str | None) -> documents.Document:
    return {"name": name, "commit": commit, "head": name == current}
