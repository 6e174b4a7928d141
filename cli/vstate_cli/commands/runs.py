"""Runs: `vstate runs` lists the runs of a store, and shows the steps of one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import click

from vstate.display.cells import cell_text
from vstate.errors import StorageError
from vstate.objects.commit import Commit
from vstate.plural import counted
from vstate.readers.runs import row
from vstate.repo.runs import DONE, FAILED, OPEN, RESULT, STEP, RunInfo, Step, list_runs, read_run
from vstate.values.inspection import describe
from vstate_cli.changes import name_width
from vstate_cli.commits import duration
from vstate_cli.output import Document, Line, padded, safe
from vstate_cli.session import Session, command
from vstate_cli.suggestions import RUN
from vstate_cli.values import UNREADABLE

_STYLES = {DONE: "green", FAILED: "red", OPEN: "bold yellow"}
_LONGEST_READ = 2**20  # bytes of a result that is shown in a line


@command(
    "runs",
    dated=True,
    examples=["vstate runs", "vstate runs show order-17"],
    json="a list of {id, branch, began, time, steps, open, ended}; open has the ids of steps whose effect is "
    "unknown, and time is that of the last record. With `show`, one such object, whose steps are a list of "
    "{step, status, began, seconds, attempts, function, key, error, result}; result is a short text.",
)
@click.argument("action", type=click.Choice(["list", "show"]), default="list")
@click.argument("id", required=False, type=RUN)
def runs(session: Session, action: str, id: str | None) -> None:
    """List the runs, the newest first, or show the steps of one.

    A step that is `open` was begun, and nobody knows whether it was done: the program finds out, and calls
    `run.resolve` or `run.retry`. The arguments and the results lie on the branch of the run:
    `vstate show runs/ID 'step/STEP/result'` shows one in full.
    """
    if (action == "show") != (id is not None):
        raise click.UsageError("`show` takes ID, `list` takes nothing.")
    if id is None:
        found = list_runs(session.repo)
        session.answer([_document(run) for run in found], _run_lines(session, found))
        return
    commit, run, steps = read_run(session.repo, id)
    results = [_result(session, commit, step) for step in steps]
    rows = [row(step) | {"result": result} for step, result in zip(steps, results, strict=True)]
    lines = [*_run_lines(session, [run]), *_step_lines(session, steps, results)]
    session.answer(_document(run) | {"steps": rows}, lines)


def _document(run: RunInfo) -> Document:
    stored = run.stored()
    del stored["after"]
    return {**stored, "time": run.time.isoformat()}


def _run_lines(session: Session, found: list[RunInfo]) -> Iterator[Line]:
    width = name_width(run.id for run in found)
    for run in found:
        standing = ("ended", "dim") if run.ended else ("not ended", "yellow")
        opened: Line = [("  open: " + ", ".join(map(safe, run.open)), _STYLES[OPEN])] if run.open else []
        id = (padded(safe(run.id), width), "bold")
        about = f"  {session.out.moment(run.time)}  {counted(run.steps, 'step')}  on {safe(run.branch)}  "
        yield [id, about, standing, *opened]


def _step_lines(session: Session, steps: list[Step], results: list[str | None]) -> Iterator[Line]:
    width = name_width(step.id for step in steps)
    for step, result in zip(steps, results, strict=True):
        began = session.out.moment(datetime.fromtimestamp(step.began, UTC))
        took = "" if step.ended is None else duration(step.ended - step.began)
        more = [f"{step.attempts} attempts"] * (step.attempts > 1) + [step.key] * (step.status == OPEN)
        told = "  ".join(filter(None, [safe(result or step.error), *more]))
        id = f"  {padded(safe(step.id), width)}  "
        status = (f"{step.status:6}", _STYLES.get(step.status, ""))
        told = session.out.fit(told, width + len(began) + 24)
        yield [(began, "dim"), id, status, f"  {padded(took, 7)}  ", told]


def _result(session: Session, commit: Commit, step: Step) -> str | None:
    """The result of a step in a line, None if it has none. No code of it runs."""
    key = STEP + step.id + RESULT
    try:
        entry = session.repo.entry(commit.root, key)
        if entry is None:
            return None
        if entry.size > _LONGEST_READ:
            return describe(entry)
        return cell_text(session.repo.inspect(key, entry.raw)) or "None"
    except UNREADABLE as error:
        return str(error)
    except StorageError as error:
        session.out.damage = session.out.damage or error
        return None
