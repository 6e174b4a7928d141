"""Workspaces: the directories on this machine whose files go where a command moves a branch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from vstate.errors import UncommittedChanges
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import Head
from vstate.repo.repository import Repository
from vstate.repo.rules.workspaces import WorkspaceRow, goes_with, note_workspace, path_of, workspaces
from vstate.workspace.directory import Directory
from vstate.workspace.paths import CONTROL
from vstate_cli.output import Output

_ADVICE = "commit() them in Python, or throw them away: vstate files restore HEAD --force"


def is_here(repo: Repository, row: WorkspaceRow) -> bool:
    """Whether the directory of a workspace is on this machine, and goes with this store."""
    return goes_with(repo.store, row) and os.path.isdir(os.path.join(row.directory(), CONTROL))


def open_directory(repo: Repository, row: WorkspaceRow, out: Output) -> Directory:
    """The files of a workspace that is here, whose moves show their progress."""
    directory = Directory(repo, row.directory(), row.prefix)
    directory.progress = partial(out.progress, "writing files")
    return directory


def branch_of(row: WorkspaceRow, head: Head) -> str | None:
    """The branch whose files are in a workspace; None if it goes where a detached HEAD is."""
    return head.branch if row.follows_head else row.branch or None


def at_head(repo: Repository, rows: list[WorkspaceRow]) -> list[WorkspaceRow]:
    """Those of the workspaces whose files are here, and of HEAD's branch."""
    head = repo.refs.head()
    return [row for row in rows if is_here(repo, row) and branch_of(row, head) == head.branch]


def root_of(repo: Repository, row: WorkspaceRow, head: Head) -> ObjectId | None:
    """The tree whose files belong into a workspace."""
    branch = branch_of(row, head)
    commit = repo.commit_at(head) if branch == head.branch else repo.newest(branch or "")
    return None if commit is None else commit.root


@contextmanager
def moving_files(repo: Repository, out: Output, operation: str, *, every: bool = False) -> Iterator[None]:
    """For a command that moves HEAD or its branch, or `every` branch: the files here go along.

    Raises UncommittedChanges, before anything moves, if one of them was edited.
    """
    head, rows = repo.refs.head(), workspaces(repo.store)
    rows = [row for row in rows if is_here(repo, row)] if every else at_head(repo, rows)
    directories = [(row, open_directory(repo, row, out)) for row in rows]
    for row, directory in directories:
        with directory.locked():
            directory.move(root_of(repo, row, head), operation=operation, advice=_ADVICE)
            if edits := directory.scan({}):
                raise UncommittedChanges(operation, map(directory.key, edits), advice=_ADVICE)
    yield
    head = repo.refs.head()
    for row, directory in directories:
        with directory.locked():
            before = directory.index.root
            directory.move(root := root_of(repo, row, head))
        now = row._replace(branch=branch_of(row, head) or "", store=path_of(repo.store))
        if now != row:
            note_workspace(repo.store, now)
        if root != before:
            out.note(f"the files in {directory.path} went along")
        for key, reason in directory.refused.items():
            out.note(f"{key} was not written: {reason}")
