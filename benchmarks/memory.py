"""The peak of the memory that a call takes, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def apart(work: Callable[..., Any], *arguments: object) -> Any:
    """The result of a call in a new process. Raises EOFError if the call fails.

    `work` is a function of a module. The process imports that module before the call.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(send, work, arguments))
    process.start()
    send.close()
    try:
        return receive.recv()
    finally:
        process.join()


def _send(send: Connection, work: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    send.send(work(*arguments))


def peak_growth(work: Callable[..., object], *arguments: object) -> float:
    """The bytes by which the call raises the peak of a new process's resident memory.

    `work` is a function of a module. The process imports that module before the measurement starts.
    """
    grown: float = apart(_grown, work, arguments)
    return grown


def _grown(work: Callable[..., object], arguments: tuple[object, ...]) -> float:
    before = peak()
    work(*arguments)
    return peak() - before


def peak() -> float:
    """The peak of this process's resident memory in bytes."""
    # Linux hands the peak in getrusage on to a new process, and that of its status not.
    if STATUS.exists():
        lines = STATUS.read_text(encoding="ascii").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(used if sys.platform == "darwin" else 1024 * used)
