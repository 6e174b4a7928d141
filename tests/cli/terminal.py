"""The command on a terminal."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest

_RUN = """
import json, os, sys
from vstate_cli.app import cli
for variables, arguments in json.loads(sys.argv[1]):
    for name, value in variables.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    cli(arguments, standalone_mode=False)
    sys.stdout.flush()
    os.write(1, b"\\0")
"""

Run = tuple[Mapping[str, str | None], Sequence[str]]
"""Variables to set or remove, which stay so for later runs, and the arguments of the command."""


def outputs(runs: Sequence[Run], environment: dict[str, str], columns: int = 60) -> list[str]:
    """The output of each of these runs, one after the other in one process on a terminal."""
    command = [sys.executable, "-c", _RUN, json.dumps(runs)]
    *texts, rest = _on_terminal(command, environment, columns).split("\0")
    assert not rest
    return texts


def _on_terminal(command: list[str], environment: dict[str, str], columns: int) -> str:
    """The output of a process on a terminal of this width."""
    pty = pytest.importorskip("pty")
    import fcntl  # not on Windows
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    with suppress(OSError):  # what Linux reports when the other end is closed
        while select.select([ours], [], [], 200)[0] and (piece := os.read(ours, 65536)):
            written += piece
    os.close(ours)
    assert process.wait(timeout=200) == 0, written
    return written.decode().replace("\r\n", "\n")
