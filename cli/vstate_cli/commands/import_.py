"""`vstate import`."""

from __future__ import annotations

import dataclasses
import dbm
import os
import sys
from functools import partial
from typing import Final

import click

from vstate.errors import Conflict, InvalidInput, NotFound
from vstate.plural import counted
from vstate.repo.exchange import intake
from vstate.repo.names.remotes import expanded
from vstate.values.inspection import size_text
from vstate_cli.left_out import documents, tell_left_out, tell_threads
from vstate_cli.merging import note_unsigned
from vstate_cli.moved_refs import ref_line
from vstate_cli.output import safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command


@command(
    "import",
    examples=[
        "vstate import agent.bundle",
        "vstate import agent.bundle --prefix theirs",
        "vstate -s restored import agent.bundle",
        "vstate import shelve cache.db --branch cache",
        "vstate import json settings/ --prefix settings/",
        "vstate import langgraph-sqlite checkpoints.sqlite",
        "vstate import openai-agents sessions.sqlite",
        "vstate import langgraph-postgres 'postgresql://app:${PASSWORD}@db/app'",
    ],
    json="{refs: [{name, commit, outcome, old}], objects, written, bytes, file_bytes, prerequisites: "
    '[commit], seconds}. outcome is "created", "moved", "unchanged", "ahead" or "diverged"; old is the '
    "commit of the ref before, or null; written counts the objects that were new to the store; bytes is "
    "the size of all objects, file_bytes the size of the bundle. Of shelve or JSON files: {branch, commit, "
    "keys, written, left_out: [{key, reason}]}; written counts the keys that were new or changed. Of "
    "threads: {threads, checkpoints, written, left_out}, where the key is a thread and a checkpoint; of "
    "sessions: {sessions, items, written, left_out}.",
)
@click.argument("words", metavar="[FORMAT] FILE", nargs=-1, required=True)
@click.option(
    "--prefix", default="", metavar="NAME",
    help="Import the branch main as NAME/main, and so on; of shelve or JSON, put NAME in front of the keys.",
)  # fmt: skip
@click.option("--branch", metavar="BRANCH", help="Of shelve or JSON: the branch. Default: HEAD's branch.")
def import_(session: Session, words: tuple[str, ...], prefix: str, branch: str | None) -> None:
    """Read a bundle, a shelve file or JSON files into the store. Create the store if there is none.

    Without --store, the store is .vstate in this directory, and not one of a directory above.

    FILE is a bundle that `vstate export` wrote, or - for standard input. Every object is checked. New
    branches are created, and branches without commits of their own are fast-forwarded. A branch that has
    diverged and a tag at another commit stay as they are, and the exit code is 1. To continue an
    interrupted import, run the command again.

    `shelve FILE` commits the values of a file of Python's shelve under their keys. No class is imported and
    nothing is unpickled: objects are moved as they are stored. `json DIR` commits the files *.json in a
    directory and below; a/b.json has the key a/b. A key that is there already gets the new value, and its
    history stays. Each value is read back and compared. Values that cannot be taken are left out and named,
    and the exit code is 1.

    `langgraph-sqlite FILE` and `langgraph-postgres DSN` move the threads of LangGraph's savers to the
    branches of a VstateSaver, threads/ID, a commit for each checkpoint. NAME stands for threads/ then. In a
    DSN, ${NAME} is a variable of the environment. This needs vstate[langgraph]. `openai-agents FILE` moves
    the sessions of a SQLiteSession to those of VstateSession, and needs vstate[openai-agents].
    """
    *form, file = words
    if len(form) > 1 or not set(form) <= _FORMATS:
        formats = ", ".join(sorted(_FORMATS))
        raise click.UsageError(
            f"{' '.join(form)!r} is no format. Give one FILE, or one of {formats} and one FILE."
        )
    if form in (["shelve"], ["json"]):
        _take(session, form[0], file, prefix, branch)
        return
    if form == ["openai-agents"] and branch is None and not prefix:
        _take_sessions(session, file)
        return
    if form and form != ["openai-agents"] and branch is None:
        _take_threads(session, form[0], file, prefix or "threads/")
        return
    if form or branch is not None:
        raise click.UsageError(
            "--branch goes with shelve and json, and --prefix not with openai-agents: the others have "
            "branches of their own."
        )
    if file != "-" and not os.path.exists(file):
        raise NotFound(f"no file {file}", name=file)  # before the store is created
    if os.path.isdir(file):
        raise InvalidInput(f"{file} is a directory, and no bundle; to copy a store, use `vstate clone`")
    session.create_store()
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    with ProgressBar() as bar:
        report = session.repo.import_bundle(
            sys.stdin.buffer if file == "-" else file, prefix=prefix, progress=bar
        )
    if session.json:
        session.out.json(dataclasses.asdict(report))
    else:
        new = "all" if report.written == report.objects else f"{report.written:,}"
        session.out.line(
            f"imported {counted(report.objects, 'object')}, {new} of them new, {size_text(report.bytes)}"
        )
        for ref in report.refs:
            remark = ""
            if ref.old is not None and ref.outcome == "moved":
                remark = f" from {ref.old[:10]}"
            elif ref.old is not None and ref.outcome in ("ahead", "diverged"):
                remark = f" (here {ref.old[:10]})"
            session.out.line(*ref_line(ref.outcome, ref.name, ref.commit, remark))
    if report.diverged:
        names = ", ".join(ref.name for ref in report.diverged)
        raise Conflict(
            f"{names} diverged from the bundle and did not move; import the bundle with --prefix theirs, "
            "look at its commits there, and merge them: vstate merge theirs/main"
        )


_FORMATS: Final = frozenset({"shelve", "json", "langgraph-sqlite", "langgraph-postgres", "openai-agents"})


def _take(session: Session, form: str, path: str, prefix: str, branch: str | None) -> None:
    """Commit the values of a shelve file, or of JSON files."""
    if form == "json" and not os.path.isdir(path):
        raise NotFound(f"no directory {path}", name=path)  # before the store is created
    if form == "shelve" and not dbm.whichdb(path):
        raise NotFound(f"no shelve file {path}: name it as the program that wrote it does", name=path)
    session.create_store()
    repo, out = session.repo, session.out
    branch = branch or session.branch()
    before = repo.newest(branch)
    source = intake.shelve_file(path) if form == "shelve" else intake.json_files(path)
    with ProgressBar() as bar:
        report = intake.take(
            repo, branch, source, name=form, prefix=prefix, progress=lambda keys: bar("importing keys", keys)
        )
    if session.json:
        commit = None if report.commit is None else report.commit.id
        counts = {"keys": report.keys, "written": report.written}
        out.json({"branch": branch, "commit": commit, **counts, "left_out": documents(report.left_out)})
    else:
        taken = counted(report.keys - len(report.left_out), "key")
        out.line(f"imported {taken} into {safe(branch)}, {report.written:,} of them new or changed")
    note_unsigned(session, before, report.commit)
    tell_left_out(session, report.left_out, "key")


def _take_threads(session: Session, form: str, place: str, prefix: str) -> None:
    """Move the threads of LangGraph's savers."""
    if form == "langgraph-sqlite" and not os.path.isfile(place):
        raise NotFound(f"no file {place}", name=place)  # before the store is created
    try:
        from vstate.integrations.langgraph import intake as threads  # late, as every optional package
    except ImportError as error:
        raise InvalidInput(str(error)) from None
    session.create_store()
    with ProgressBar() as bar:
        progress = partial(bar, "importing checkpoints")
        if form == "langgraph-sqlite":
            report = threads.take_sqlite(session.repo, place, prefix=prefix, progress=progress)
        else:
            report = threads.take_postgres(session.repo, expanded(place), prefix=prefix, progress=progress)
    tell_threads(session, report, "imported")


def _take_sessions(session: Session, path: str) -> None:
    """Move the sessions of the OpenAI Agents SDK."""
    if not os.path.isfile(path):
        raise NotFound(f"no file {path}", name=path)  # before the store is created
    try:
        from vstate.integrations.openai_sqlite import take_sqlite  # late, as every optional package
    except ImportError as error:
        raise InvalidInput(str(error)) from None
    session.create_store()
    with ProgressBar() as bar:
        report = take_sqlite(session.repo, path, progress=partial(bar, "importing items"))
    if session.json:
        counts = {"sessions": report.sessions, "items": report.items, "written": report.written}
        session.out.json({**counts, "left_out": documents(report.left_out)})
    else:
        sessions, items = counted(report.sessions, "session"), counted(report.items, "item")
        session.out.line(f"imported {sessions} with {items}, {report.written:,} of them new")
    tell_left_out(session, report.left_out, "part")
