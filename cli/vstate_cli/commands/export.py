"""`vstate export`."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial

import click

from vstate.errors import InvalidInput, VStateError
from vstate.plural import counted
from vstate.values.inspection import size_text
from vstate_cli.left_out import tell_threads
from vstate_cli.output import safe
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command
from vstate_cli.suggestions import complete_revision


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
@click.argument("revs", nargs=-1, metavar="[REV]...", shell_complete=complete_revision)
@click.option("-o", "--output", required=True, metavar="FILE", help="The bundle; - for standard output.")
@click.option(
    "--to",
    type=click.Choice(["langgraph-sqlite"]),
    help="Write threads of LangGraph's VstateSaver as a file for its SqliteSaver; by default all threads/*.",
)
@click.option(
    "--since",
    multiple=True,
    metavar="REV",
    shell_complete=complete_revision,
    help="Leave out this commit and its history. Can be repeated.",
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

    With --to langgraph-sqlite, each REV is a branch of a thread. No value is loaded, and the file is read
    back and compared. Checkpoints that are in FILE already stay. This needs vstate[langgraph].
    """
    if to is not None:
        if since or as_branch is not None or output == "-":
            raise click.UsageError("--to takes branches and a FILE, without --since and --as.")
        _write_threads(session, output, revs)
        return
    if not revs:
        raise click.UsageError("Missing argument 'REV...'.")
    if as_branch is not None and len(revs) > 1:
        raise click.UsageError("--as names a single REV.")
    to_standard_output = output == "-"
    if to_standard_output and session.json:
        raise click.UsageError("--json needs a FILE: the bundle goes to standard output.")
    if to_standard_output and session.out.is_terminal:
        raise click.UsageError("A terminal cannot show a bundle: name a FILE, or redirect the output.")
    try:
        with ProgressBar() as bar:
            report = session.repo.export(
                sys.stdout.buffer if to_standard_output else output,
                revs,
                since=since,
                as_branch=as_branch,
                progress=bar,
            )
    except OSError as error:
        if to_standard_output or isinstance(error, VStateError):
            raise
        # The error names a temporary file beside the bundle.
        raise InvalidInput(f"{output} cannot be written: {error.strerror}; choose another file") from error
    if session.json:
        session.out.json(dataclasses.asdict(report))
        return
    names = ", ".join(ref.name for ref in report.refs)
    text = (
        f"exported {names}: {counted(report.objects, 'object')}, {size_text(report.bytes)}, in a bundle of "
        f"{size_text(report.file_bytes)}"
    )
    if to_standard_output:
        session.out.note(text)
        return
    session.out.line(safe(text))
    if report.prerequisites:
        commits = ", ".join(commit[:10] for commit in report.prerequisites)
        session.out.line((f"It continues from {commits}; the other store must have these commits.", "dim"))


def _write_threads(session: Session, file: str, branches: tuple[str, ...]) -> None:
    """Write threads of LangGraph to a file of its SqliteSaver."""
    try:
        from vstate.integrations.langgraph.sqlite_file import write_sqlite  # late, as every optional package
    except ImportError as error:
        raise InvalidInput(str(error)) from None
    with ProgressBar() as bar:
        progress = partial(bar, "exporting checkpoints")
        report = write_sqlite(session.repo, file, branches=branches, progress=progress)
    tell_threads(session, report, "exported")
