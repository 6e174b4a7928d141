"""Files: `vstate export` and `vstate import` write and read bundles, and move values from other formats."""

from __future__ import annotations

import dataclasses
import dbm
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import click

from vstate.errors import Conflict, InvalidInput, NotFound, VStateError
from vstate.plural import counted
from vstate.repo.exchange import intake
from vstate.repo.exchange.bundle import BundleReport
from vstate.repo.names.remotes import expanded
from vstate.values.inspection import size_text
from vstate_cli.commands.merging import note_unsigned
from vstate_cli.commands.sharing import ref_line
from vstate_cli.commits import id_of
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import REV


@command(
    "export",
    examples=[
        "vstate export main v1 -o agent.bundle",
        "vstate export main --since v1 -o since-v1.bundle",
        "vstate export HEAD~3 --as before -o before.bundle",
        "vstate export main -o - | ssh there vstate -s agent-state import -",
        "vstate export --to langgraph-sqlite -o checkpoints.sqlite",
    ],
    json="{refs: [{name, commit, outcome, old}], objects, written, bytes, file_bytes, prerequisites: "
    "[commit], seconds}. bytes is the size of all objects, file_bytes the size of the bundle. With --to, "
    "{threads, checkpoints, written, left_out: [{key, reason}]}.",
)
@click.argument("revs", nargs=-1, metavar="[REV]...", type=REV)
@click.option("-o", "--output", required=True, metavar="FILE", help="The bundle; - for standard output.")
@click.option(
    "--to",
    type=click.Choice(["langgraph-sqlite"]),
    help="Write threads of LangGraph's VstateSaver as a file for its SqliteSaver; by default all threads/*.",
)
@click.option(
    "--since", multiple=True, type=REV, help="Leave out this commit and its history. Can be repeated."
)
@click.option("--as", "as_branch", metavar="NAME", help="Export a single REV as a branch NAME.")
def export(
    session: Session,
    revs: tuple[str, ...],
    output: str,
    to: str | None,
    since: tuple[str, ...],
    as_branch: str | None,
) -> None:
    """Write branches and tags, with their history, to a file.

    The file is a bundle; `vstate import` reads it into another store. With --since, the bundle continues
    from those commits, and the other store must have them. HEAD stands for its branch. Any other REV that
    is no branch and no tag needs --as.

    With --to langgraph-sqlite, each REV is a branch of a thread, and no value is loaded. Checkpoints that are
    in FILE already stay. This needs vstate[langgraph].
    """
    if to is not None:
        if since or as_branch is not None or output == "-":
            raise click.UsageError("--to takes branches and a FILE, without --since and --as.")
        _export_threads(session, output, revs)
        return
    if not revs:
        raise click.UsageError("Missing argument 'REV...'.")
    if as_branch is not None and len(revs) > 1:
        raise click.UsageError("--as names a single REV.")
    file: Any = output
    if output == "-":
        if session.json:
            raise click.UsageError("--json needs a FILE: the bundle goes to standard output.")
        if session.out.is_terminal:
            raise click.UsageError("A terminal cannot show a bundle: name a FILE, or redirect the output.")
        file = sys.stdout.buffer
    try:
        progress = session.out.progress
        report = session.repo.export(file, revs, since=since, as_branch=as_branch, progress=progress)
    except OSError as error:
        if output == "-" or isinstance(error, VStateError):
            raise
        # The error names a temporary file beside the bundle.
        raise InvalidInput(f"{output} cannot be written: {error.strerror}; choose another file") from error
    if output == "-":
        session.out.note(_exported(report))
    else:
        session.answer(dataclasses.asdict(report), _export_lines(report))


def _exported(report: BundleReport) -> str:
    names = ", ".join(ref.name for ref in report.refs)
    objects = f"{counted(report.objects, 'object')}, {size_text(report.bytes)}"
    return f"exported {names}: {objects}, in a bundle of {size_text(report.file_bytes)}"


def _export_lines(report: BundleReport) -> Iterator[Line]:
    yield [safe(_exported(report))]
    if report.prerequisites:
        commits = ", ".join(commit[:10] for commit in report.prerequisites)
        yield [(f"It continues from {commits}; the other store must have these commits.", "dim")]


def _export_threads(session: Session, file: str, branches: tuple[str, ...]) -> None:
    """Write threads of LangGraph to a file of its SqliteSaver."""
    progress = partial(session.out.progress, "exporting checkpoints")
    tables = _integration("langgraph.tables")
    report = tables.write_sqlite(session.repo, file, branches=branches, progress=progress)
    _tell_threads(session, "exported", report)


def _integration(name: str) -> Any:
    """A module of `vstate.integrations`; late, as every one that needs an optional package."""
    try:
        return import_module(f"vstate.integrations.{name}")
    except ImportError as error:
        raise InvalidInput(str(error)) from None


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
    *before, file = words
    form = " ".join(before)
    if form not in _IS_THERE:
        formats = ", ".join(filter(None, _IS_THERE))
        raise click.UsageError(f"{form!r} is no format. Give one FILE, or one of {formats} and one FILE.")
    is_values = form in ("shelve", "json")
    if (branch is not None and not is_values) or (prefix and form == "openai-agents"):
        raise click.UsageError(
            "--branch goes with shelve and json, and --prefix not with openai-agents: the others have "
            "branches of their own."
        )
    # Before the store is created.
    noun, is_there = _IS_THERE[form]
    if not is_there(file):
        hint = ": name it as the program that wrote it does" if form == "shelve" else ""
        raise NotFound(f"no {noun} {file}{hint}", name=file)
    if not form and os.path.isdir(file):
        raise InvalidInput(f"{file} is a directory, and no bundle; to copy a store, use `vstate clone`")
    session.creates = True
    if is_values:
        _import_values(session, form, file, prefix, branch)
    elif form == "openai-agents":
        _import_sessions(session, file)
    elif form:
        _import_threads(session, form, file, prefix or "threads/")
    else:
        _import_bundle(session, file, prefix)


_IS_THERE: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "": ("file", lambda path: path == "-" or os.path.exists(path)),
    "json": ("directory", os.path.isdir),
    "langgraph-postgres": ("database", bool),
    "langgraph-sqlite": ("file", os.path.isfile),
    "openai-agents": ("file", os.path.isfile),
    "shelve": ("shelve file", dbm.whichdb),
}
"""The noun of each format, "" for a bundle, and whether there can be one at a path."""


def _import_bundle(session: Session, file: str, prefix: str) -> None:
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    source = sys.stdin.buffer if file == "-" else file
    report = session.repo.import_bundle(source, prefix=prefix, progress=session.out.progress)
    session.answer(dataclasses.asdict(report), _import_lines(report))
    if report.diverged:
        names = ", ".join(ref.name for ref in report.diverged)
        raise Conflict(
            f"{names} diverged from the bundle and did not move; import the bundle with --prefix theirs, "
            "look at its commits there, and merge them: vstate merge theirs/main"
        )


def _import_lines(report: BundleReport) -> Iterator[Line]:
    new = "all" if report.written == report.objects else f"{report.written:,}"
    yield [f"imported {counted(report.objects, 'object')}, {new} of them new, {size_text(report.bytes)}"]
    for ref in report.refs:
        remark = ""
        if ref.old is not None and ref.outcome == "moved":
            remark = f" from {ref.old[:10]}"
        elif ref.old is not None and ref.outcome in ("ahead", "diverged"):
            remark = f" (here {ref.old[:10]})"
        yield ref_line(ref.outcome, ref.name, ref.commit, remark)


def _import_values(session: Session, form: str, path: str, prefix: str, branch: str | None) -> None:
    """Commit the values of a shelve file, or of JSON files."""
    repo = session.repo
    branch = branch or session.branch()
    before = repo.newest(branch)
    source = intake.shelve_file(path) if form == "shelve" else intake.json_files(path)
    progress = partial(session.out.progress, "importing keys")
    report = intake.take(repo, branch, source, name=form, prefix=prefix, progress=progress)
    note_unsigned(session, before, report.commit)
    taken = counted(report.keys - len(report.left_out), "key")
    counts = {"keys": report.keys, "written": report.written}
    document = {"branch": branch, "commit": id_of(report.commit), **counts}
    text = f"imported {taken} into {safe(branch)}, {report.written:,} of them new or changed"
    _tell(session, document, report.left_out, text, "key")


def _import_threads(session: Session, form: str, place: str, prefix: str) -> None:
    """Move the threads of LangGraph's savers."""
    tables = _integration("langgraph.tables")
    progress = partial(session.out.progress, "importing checkpoints")
    if form == "langgraph-sqlite":
        report = tables.take_sqlite(session.repo, place, prefix=prefix, progress=progress)
    else:
        report = tables.take_postgres(session.repo, expanded(place), prefix=prefix, progress=progress)
    _tell_threads(session, "imported", report)


def _import_sessions(session: Session, path: str) -> None:
    """Move the sessions of the OpenAI Agents SDK."""
    take = _integration("openai_sqlite").take_sqlite
    report = take(session.repo, path, progress=partial(session.out.progress, "importing items"))
    sessions, items = counted(report.sessions, "session"), counted(report.items, "item")
    text = f"imported {sessions} with {items}, {report.written:,} of them new"
    _tell(session, dataclasses.asdict(report), report.left_out, text, "part")


def _tell_threads(session: Session, done: str, report: Any) -> None:
    threads, checkpoints = counted(report.threads, "thread"), counted(report.checkpoints, "checkpoint")
    text = f"{done} {threads} with {checkpoints}, {report.written:,} of them new"
    _tell(session, dataclasses.asdict(report), report.left_out, text, "part")


def _tell(
    session: Session, document: Document, left_out: Sequence[tuple[str, str]], text: str, noun: str
) -> None:
    """Print the result of a move: the text, and the parts that were left out. Fail if there are any."""
    parts = [{"key": key, "reason": reason} for key, reason in left_out]
    lines: list[Line] = [[text]]
    lines += ([(f"  left out {safe(key)}: {safe(reason)}", "yellow")] for key, reason in left_out)
    session.answer(document | {"left_out": parts}, lines)
    if left_out:
        raise InvalidInput(f"{counted(len(left_out), noun)} left out; the others are there")
