"""Left out: the parts that an import or an export could not take, each with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vstate.errors import InvalidInput
from vstate.plural import counted
from vstate_cli.output import Document, safe
from vstate_cli.session import Session

LeftOut = Sequence[tuple[str, str]]
"""Names, each with a reason."""


class ThreadsReport(Protocol):
    """The results of a move of threads, as `vstate.integrations.langgraph` reports them."""

    @property
    def threads(self) -> int: ...

    @property
    def checkpoints(self) -> int: ...

    @property
    def written(self) -> int: ...

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]: ...


def documents(left_out: LeftOut) -> list[Document]:
    """The parts for --json."""
    return [{"key": key, "reason": reason} for key, reason in left_out]


def tell_left_out(session: Session, left_out: LeftOut, noun: str) -> None:
    """Name the parts that were left out, and fail if there are any."""
    if not left_out:
        return
    for key, reason in left_out if not session.json else ():
        session.out.line((f"  left out {safe(key)}: {safe(reason)}", "yellow"))
    raise InvalidInput(f"{counted(len(left_out), noun)} left out; the others are there")


def tell_threads(session: Session, report: ThreadsReport, done: str) -> None:
    """Print the results of a move of threads, and fail if something was left out."""
    if session.json:
        counts = {"threads": report.threads, "checkpoints": report.checkpoints, "written": report.written}
        session.out.json({**counts, "left_out": documents(report.left_out)})
    else:
        taken = counted(report.checkpoints - len(report.left_out), "checkpoint")
        threads = counted(report.threads, "thread")
        session.out.line(f"{done} {threads} with {taken}, {report.written:,} of them new")
    tell_left_out(session, report.left_out, "checkpoint")
