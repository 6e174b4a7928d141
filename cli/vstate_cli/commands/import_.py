"""`vstate import`."""

from __future__ import annotations

import dataclasses
import os
import sys

import click

from vstate.errors import Conflict, InvalidInput, NotFound
from vstate.plural import counted
from vstate.values.inspection import size_text
from vstate_cli.moved_refs import ref_line
from vstate_cli.progress import ProgressBar
from vstate_cli.session import Session, command


@command(
    "import",
    examples=[
        "vstate import agent.bundle",
        "vstate import agent.bundle --prefix theirs",
        "vstate -s restored import agent.bundle",
    ],
    json="{refs: [{name, commit, outcome, old}], objects, written, bytes, file_bytes, prerequisites: "
    '[commit], seconds}. outcome is "created", "moved", "unchanged", "ahead" or "diverged"; old is the '
    "commit of the ref before, or null; written counts the objects that were new to the store; bytes is "
    "the size of all objects, file_bytes the size of the bundle.",
)
@click.argument("file", metavar="FILE")
@click.option("--prefix", default="", metavar="NAME", help="Import the branch main as NAME/main, and so on.")
def import_(session: Session, file: str, prefix: str) -> None:
    """Read a bundle into the store. Create the store if there is none.

    FILE is a bundle that `vstate export` wrote, or - for standard input. Every object is checked. New
    branches are created, and branches without commits of their own are fast-forwarded. A branch that has
    diverged and a tag at another commit stay as they are, and the exit code is 1. To continue an
    interrupted import, run the command again.
    """
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
