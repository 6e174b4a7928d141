"""The command on a terminal."""

from __future__ import annotations

import os
import select
import struct
import subprocess
from contextlib import suppress

import pytest


def on_terminal(command: list[str], environment: dict[str, str], columns: int = 60) -> str:
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
