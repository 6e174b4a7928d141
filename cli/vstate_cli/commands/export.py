"""`vstate export`."""

from __future__ import annotations

import dataclasses
import sys

import click

from vstate.values.inspection import size_text
from vstate_cli import documents
from vstate_cli.output import Bar, safe
from vstate_cli.session import Session, command, complete_revision


@command(
    "export",
    examples=[
        "vstate export main v1 -o agent.bundle",
        "vstate export main --since v1 -o since-v1.bundle",
        "vstate export HEAD~3 --as before -o before.bundle",
        "vstate export main -o - | ssh there vstate -s agent-state import -",
    ],
    json="{refs: [{name, commit, outcome, old}], objects, written, bytes (of all objects), file_bytes, "
    "prerequisites: [commit], seconds}.",
)
@click.argument("revs", nargs=-1, required=True, metavar="REV...", shell_complete=complete_revision)
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="Where to write the bundle; - for standard output."
)
@click.option(
    "--since",
    multiple=True,
    metavar="REV",
    shell_complete=complete_revision,
    help="Leave out what this commit holds, and all before it; may be given several times.",
)
@click.option("--as", "as_branch", metavar="NAME", help="Export a single REV as a branch of that name.")
def export(
    session: Session, revs: tuple[str, ...], output: str, since: tuple[str, ...], as_branch: str | None
) -> None:
    """Write branches and tags, with their history, to a file.

    The file, a bundle, holds all that they need; `vstate import` puts it into another store. With --since it
    holds only what came after those commits, which the other store has to have. HEAD stands for its branch;
    any other REV that is no branch and no tag needs --as.
    """
    if as_branch is not None and len(revs) > 1:
        raise click.UsageError("--as names a single REV.")
    to_standard_output = output == "-"
    if to_standard_output and session.json:
        raise click.UsageError("--json needs a FILE: standard output is taken by the bundle.")
    if to_standard_output and session.out.is_terminal:
        raise click.UsageError("A bundle is not for a terminal: name a FILE, or redirect the output.")
    with Bar() as bar:
        report = session.repo.export(
            sys.stdout.buffer if to_standard_output else output,
            revs,
            since=since,
            as_branch=as_branch,
            progress=bar,
        )
    if session.json:
        documents.write(session.out, dataclasses.asdict(report))
        return
    names = ", ".join(ref.name for ref in report.refs)
    text = (
        f"exported {names}: {report.objects:,} objects, {size_text(report.bytes)}, in a bundle of "
        f"{size_text(report.file_bytes)}"
    )
    if to_standard_output:
        session.out.note(text)
        return
    session.out.line(safe(text))
    if report.prerequisites:
        commits = ", ".join(commit[:10] for commit in report.prerequisites)
        session.out.line((f"It continues from {commits}, which the other store has to have.", "dim"))
