"""`vstate import`."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING

import click

from vstate.errors import Conflict, NotFound
from vstate.values.inspection import size_text
from vstate_cli import documents
from vstate_cli.output import Bar, safe
from vstate_cli.session import Session, command

if TYPE_CHECKING:
    from vstate.repo.exchange.bundle import BundleRef

_STYLES = {"created": "green", "moved": "green", "diverged": "bold red"}


@command(
    "import",
    examples=[
        "vstate import agent.bundle",
        "vstate import agent.bundle --prefix theirs",
        "vstate -s restored import agent.bundle",
    ],
    json="{refs: [{name, commit, outcome, old}], objects, written, bytes (of all objects), file_bytes, "
    'prerequisites: [commit], seconds}: outcome is "created", "moved", "unchanged", "ahead" or "diverged", old '
    "the commit that the ref was at, or null; written is the number of objects that were new to the store.",
)
@click.argument("file", metavar="FILE")
@click.option(
    "--prefix", default="", metavar="NAME", help="Let branches and tags arrive under NAME/, as NAME/main."
)
def import_(session: Session, file: str, prefix: str) -> None:
    """Put what a bundle holds into the store, which is made if there is none.

    FILE is what `vstate export` wrote, - for standard input. Every object in it is checked. A branch that is
    not here is created, one that the bundle's is ahead of is moved there. One that has diverged is left as it
    is, as is a tag that is elsewhere, and the exit code is 1. Interrupted, and run again, it goes on where it
    was.
    """
    if file != "-" and not os.path.exists(file):
        raise NotFound(f"no file {file}", name=file)  # before a store is made for it
    session.create_store()
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    with Bar() as bar:
        report = session.repo.import_bundle(
            sys.stdin.buffer if file == "-" else file, prefix=prefix, progress=bar
        )
    if session.json:
        documents.write(session.out, dataclasses.asdict(report))
    else:
        out = session.out
        new = "all" if report.written == report.objects else f"{report.written:,}"
        out.line(f"imported {report.objects:,} objects, {new} of them new, {size_text(report.bytes)}")
        for ref in report.refs:
            out.line("  ", *_line(ref))
    if report.diverged:
        names = ", ".join(ref.name for ref in report.diverged)
        raise Conflict(
            f"{names} went another way here and stayed where it was: import it beside, with --prefix theirs, look at "
            "it there, and merge it in Python: state.merge('theirs/main')"
        )


def _line(ref: BundleRef) -> list[str | tuple[str, str]]:
    was = f" from {ref.old[:10]}" if ref.old is not None and ref.outcome == "moved" else ""
    ours = f" (here {ref.old[:10]})" if ref.old is not None and ref.outcome in ("ahead", "diverged") else ""
    return [
        (f"{ref.outcome:9}", _STYLES.get(ref.outcome, "dim")),
        f" {safe(ref.name)}  ",
        (ref.commit[:10], "yellow"),
        (f"{was}{ours}", "dim"),
    ]
