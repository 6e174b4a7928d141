"""`vstate files`: the files of the workspaces on this machine."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from functools import partial

import click

from vstate.errors import InvalidInput, NotFound
from vstate.plural import counted
from vstate.repo.rules.workspaces import WorkspaceRow, workspaces
from vstate.workspace.directory import Directory
from vstate.workspace.paths import CONTROL, as_shown, to_name
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import REV
from vstate_cli.workspaces import at_head, branch_of, is_here, open_directory, root_of

_PREFIX = "files/"


@command(
    "files",
    examples=[
        "vstate files",
        "vstate files restore HEAD notes.txt --force",
        "vstate files restore HEAD~3 src",
        "vstate files export v1 /tmp/v1",
    ],
    json="a list of {host, directory, prefix, branch, here, added, modified, deleted, left_out, refused}; "
    "from `here` on for the directories that are here alone. left_out and refused are objects of reasons. "
    "With restore and export, {directory, files, refused}.",
)
@click.argument("action", type=click.Choice(["status", "restore", "export"]), default="status")
@click.argument("rev", required=False, type=REV)
@click.argument("paths", nargs=-1, metavar="[PATH|DIR]...")
@click.option("--force", is_flag=True, help="Throw edits of these files away that no commit has.")
@click.option("-d", "--directory", metavar="DIR", help="This workspace alone.")
def files(
    session: Session, action: str, rev: str | None, paths: tuple[str, ...], force: bool, directory: str | None
) -> None:
    """Show the directories whose files go with a branch, and their edits.

    `restore` takes a revision, and gives the files at PATH, or all, their contents there. The branch stays,
    so a difference to HEAD is an edit then. `export` writes all files of a revision into a new DIR.
    """
    if action == "status":
        if rev is not None:
            raise click.UsageError("`status` takes nothing.")
        _show(session, directory)
    elif rev is None:
        raise click.UsageError("Missing argument 'REV'.")
    elif action == "restore":
        _restore(session, rev, paths, force, directory)
    elif len(paths) != 1:
        raise click.UsageError("`export` takes REV and DIR.")
    else:
        _export(session, rev, paths[0])


def _rows(session: Session, directory: str | None) -> list[WorkspaceRow]:
    """The workspaces of the store, or those of the directory that is named."""
    rows = workspaces(session.repo.store)
    if directory is not None:
        place = os.path.realpath(directory)
        if not (rows := [row for row in rows if os.path.realpath(row.directory()) == place]):
            raise NotFound(
                f"{directory} is no workspace of this store: `vstate files` lists all", name=directory
            )
    return rows


def _show(session: Session, directory: str | None) -> None:
    repo = session.repo
    head = repo.refs.head()
    found: list[Document] = []
    lines: list[Line] = []
    for row in _rows(session, directory):
        branch = branch_of(row, head)
        on = (safe(branch), "bold green") if branch else ("detached HEAD", "bold yellow")
        here = is_here(repo, row)
        where = "" if here else f" (not here: on {row.host}, of another copy of this store, or gone)"
        lines.append([(safe(as_shown(row.directory())), "bold"), " on ", on, safe(where)])
        found.append({"host": row.host, "directory": as_shown(row.directory()), "prefix": row.prefix})
        found[-1] |= {"branch": branch, "here": here}
        if here:
            place = open_directory(repo, row, session.out)
            with place.locked():
                status = place.status(root_of(repo, row, head), place.scan({})).as_text()
            found[-1] |= dataclasses.asdict(status)
            lines += ([f"  {safe(line)}"] for line in str(status).splitlines())
    session.answer(found, lines or [["no directory goes with this store: open a Workspace in Python"]])


def _restore(session: Session, rev: str, paths: tuple[str, ...], force: bool, directory: str | None) -> None:
    repo = session.repo
    if not session.resolves(rev) and session.has("HEAD", _PREFIX + rev):
        ordered = shlex.join(["vstate", "files", "restore", "HEAD", rev, *paths])
        raise NotFound(f"no revision {rev!r}", candidates=[ordered])
    head, source = repo.refs.head(), repo.resolve(rev)
    rows = at_head(repo, _rows(session, directory))
    if len(rows) != 1:
        raise NotFound(
            f"{len(rows)} of the directories here go with HEAD's branch; `vstate files` lists "
            "all, and --directory DIR names one. To use another directory, open a Workspace there in Python",
            name=directory or "",
        )
    found = open_directory(repo, rows[0], session.out)
    with found.locked():
        found.move(root_of(repo, rows[0], head), force=force and not paths)
        written = found.restore(source.root, paths, found.scan({}), force=force)
    _answer(
        session, found, written, f"Restored {counted(len(written), 'file')}" if written else "No file differs"
    )


def _export(session: Session, rev: str, place: str) -> None:
    source = session.repo.resolve(rev)
    os.makedirs(place, exist_ok=True)
    if os.listdir(place):
        raise InvalidInput(f"{place} is not empty: export to a new directory")
    found = Directory(session.repo, place, _PREFIX)
    found.progress = partial(session.out.progress, "writing files")
    with found.locked():
        found.move(source.root)
    shutil.rmtree(os.path.join(found.path, CONTROL))
    written = found.index.paths()
    _answer(session, found, written, f"Exported {counted(len(written), 'file')}")


def _answer(session: Session, found: Directory, written: list[str], done: str) -> None:
    names, place = sorted(map(to_name, written)), as_shown(found.path)
    for key, reason in found.refused.items():
        session.out.note(f"{key} was not written: {reason}")
    lines: list[Line] = [[f"{done} in ", (safe(place), "bold")]]
    lines += ([f"  {safe(name)}"] for name in names)
    session.answer({"directory": place, "files": names, "refused": found.refused}, lines)
