"""The refs that a push, fetch, clone or import moved, as lines and as documents."""

from __future__ import annotations

import dataclasses

from vstate.plural import counted
from vstate.repo.exchange.sync import SyncReport
from vstate.values.inspection import size_text
from vstate_cli.output import Document, Line, safe
from vstate_cli.session import Session

_STYLES = {
    "created": "green",
    "moved": "green",
    "forced": "bold red",
    "deleted": "bold red",
    "diverged": "bold red",
    "left": "bold",
}


def document(report: SyncReport) -> Document:
    """The report of a transfer."""
    members = dataclasses.asdict(report)
    if not report.not_noted:
        del members["not_noted"]
    return members


def show(session: Session, report: SyncReport, verb: str) -> None:
    """Print the report of a transfer, as JSON or as lines that begin with `verb`."""
    if session.json:
        session.out.json(document(report))
    else:
        write(session, report, verb)


def write(session: Session, report: SyncReport, verb: str) -> None:
    """Write one line with the size of the transfer, then one for each ref."""
    session.out.line(f"{verb} {counted(report.objects, 'object')}, {size_text(report.bytes)}")
    for ref in report.refs:
        was = f" from {ref.old[:10]}" if ref.old is not None and ref.status in ("moved", "forced") else ""
        session.out.line(*ref_line(ref.status, ref.name, ref.new or ref.old or "", was))
    if report.not_noted:
        session.out.note(f"could not note here which commits the branches there are at: {report.not_noted}")


def ref_line(status: str, name: str, commit: str, remark: str) -> Line:
    """One ref, indented."""
    return [
        "  ",
        (f"{status:9}", _STYLES.get(status, "dim")),
        f" {safe(name)}  ",
        (commit[:10], "yellow"),
        (remark, "dim"),
    ]
