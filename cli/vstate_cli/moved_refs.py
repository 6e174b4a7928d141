"""The refs that a push, fetch or clone moved, as it shows them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from vstate.values.inspection import size_text
from vstate_cli import documents
from vstate_cli.output import Line, Output, safe

if TYPE_CHECKING:
    from vstate.repo.exchange.sync import SyncRef, SyncReport

JSON = (
    "{refs: [{name, status, old, new, objects, bytes}], objects, bytes, seconds}: name is the full one of the ref "
    'that moved, as heads/main, tags/v1 or remotes/origin/main; status is "created", "moved", "forced", '
    '"unchanged", "deleted", "left" or "fetched"; old and new are commits or null; objects and bytes (as they are '
    "stored) are what was written. After a push that could not be noted here, not_noted says why."
)

_STYLES = {"created": "green", "moved": "green", "forced": "bold red", "deleted": "bold red", "left": "bold"}


def document(report: SyncReport) -> documents.Document:
    """The report as `--json` prints it."""
    found = dataclasses.asdict(report)
    if not report.not_noted:
        del found["not_noted"]
    return found


def write(out: Output, report: SyncReport, what: str) -> None:
    """A line on what was written, then one for each ref."""
    count = f"{report.objects:,} object{'' if report.objects == 1 else 's'}"
    out.line(f"{what} {count}, {size_text(report.bytes)}")
    for ref in report.refs:
        out.line("  ", *_line(ref))
    if report.not_noted:
        out.note(f"where the branches are there could not be noted here: {report.not_noted}")


def _line(ref: SyncRef) -> Line:
    shown = ref.new or ref.old or ""
    was = f" from {ref.old[:10]}" if ref.old is not None and ref.status in ("moved", "forced") else ""
    return [
        (f"{ref.status:9}", _STYLES.get(ref.status, "dim")),
        f" {safe(ref.name)}  ",
        (shown[:10], "yellow"),
        (was, "dim"),
    ]
