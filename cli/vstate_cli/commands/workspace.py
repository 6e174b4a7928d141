"""`vstate files`: the files of the workspaces on this machine."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from functools import partial

import click

from vstate.errors import InvalidInput, NotFound
from vstate.plural import counted
from vstate.repo.names.refs import Head
from vstate.repo.rules.workspaces import WorkspaceRow, workspaces
from vstate.workspace.directory import Directory, Status
from vstate.workspace.paths import CONTROL, to_name
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import REV
from vstate_cli.workspaces import branch_of, is_here, open_directory, root_of

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
    "from `here` on for the directories of this machine alone. left_out and refused are objects of reasons. "
    "With restore and export, {directory, files}, and refused with export.",
)
@click.argument("action", type=click.Choice(["status", "restore", "export"]), default="status")
@click.argument("rev", required=False, type=REV)
@click.argument("paths", nargs=-1, metavar="[PATH|DIR]...")
@click.option("--force", is_flag=True, help="Throw edits of these files away that no commit has.")
@click.option("-d", "--directory", metavar="DIR", help="The workspace, if several are on HEAD's branch.")
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
        _show(session)
    elif rev is None:
        raise click.UsageError("Missing argument 'REV'.")
    elif action == "restore":
        _restore(session, rev, paths, force, directory)
    elif len(paths) != 1:
        raise click.UsageError("`export` takes REV and DIR.")
    else:
        _export(session, rev, paths[0])


def _show(session: Session) -> None:
    repo = session.repo
    head = repo.refs.head()
    found: list[Document] = []
    lines: list[Line] = []
    for row in workspaces(repo.store):
        branch = branch_of(row, head)
        on = (safe(branch), "bold green") if branch else ("detached HEAD", "bold yellow")
        where = "" if is_here(row) else f" (on {row.host})"
        lines.append([(safe(_text(row.directory())), "bold"), " on ", on, safe(where)])
        found.append({"host": row.host, "directory": _text(row.directory()), "prefix": row.prefix})
        found[-1] |= {"branch": branch, "here": is_here(row)}
        if is_here(row):
            status = _status(session, row, head)
            found[-1] |= dataclasses.asdict(status)
            lines += ([f"  {safe(line)}"] for line in str(status).splitlines())
    session.answer(found, lines or [["no directory goes with this store: open a Workspace in Python"]])


def _status(session: Session, row: WorkspaceRow, head: Head) -> Status:
    directory = open_directory(session.repo, row, session.out)
    root = root_of(session.repo, row, head)
    with directory.locked():
        return directory.status(root, directory.scan({})).as_text()


def _restore(session: Session, rev: str, paths: tuple[str, ...], force: bool, directory: str | None) -> None:
    repo = session.repo
    head, source = repo.refs.head(), repo.resolve(rev)
    rows = [row for row in workspaces(repo.store) if is_here(row) and branch_of(row, head) == head.branch]
    if directory is not None:
        rows = [row for row in rows if os.path.samefile(row.directory(), directory)]
    if len(rows) != 1:
        raise NotFound(
            f"there are {len(rows)} directories here with the files of HEAD's branch; `vstate files` lists "
            "all, and --directory DIR names one",
            name=directory or "",
        )
    found = open_directory(repo, rows[0], session.out)
    with found.locked():
        found.move(root_of(repo, rows[0], head), force=force and not paths)
        written = found.restore(source.root, paths, found.scan({}), force=force)
    _answer(session, found, written, "Restored")


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
    _answer(session, found, found.index.paths(), "Exported", found.refused)


def _answer(
    session: Session, found: Directory, written: list[str], done: str, refused: dict[str, str] | None = None
) -> None:
    document: Document = {"directory": _text(found.path), "files": sorted(map(to_name, written))}
    if refused is not None:
        document["refused"] = refused
        for key, reason in refused.items():
            session.out.note(f"{key} was not written: {reason}")
    session.answer(document, _lines(found, written, done))


def _lines(found: Directory, written: list[str], done: str) -> Iterator[Line]:
    yield [f"{done} {counted(len(written), 'file')} in ", (safe(_text(found.path)), "bold")]
    for path in sorted(written):
        yield [f"  {safe(to_name(path))}"]


def _text(path: str) -> str:
    """A path that may not be UTF-8, as text."""
    return os.fsencode(path).decode("utf-8", "replace")
