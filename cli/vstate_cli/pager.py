"""The pager: shows long output on a terminal page by page, as git does."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from typing import Final, TextIO

VARIABLE = "VSTATE_PAGER"

_LESS: Final = "FRX"
"""For less: leave after a short output, show colours, keep the output on the screen."""


class Pager:
    """A pager in front of standard output, started at the first text.

    The pager is the command in the variable VSTATE_PAGER or PAGER, or else `less`. There is none if that
    command is empty, `cat`, or not installed.
    """

    def __init__(self) -> None:
        own = os.environ.get(VARIABLE)
        command = os.environ.get("PAGER", "less") if own is None else own
        program = command.split(maxsplit=1)[0] if command.strip() else "cat"
        self._command = "" if program == "cat" or shutil.which(program) is None else command
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: TextIO | None = None

    def stream(self) -> TextIO:
        """The stream to the pager; standard output if there is no pager."""
        if self._command and self._stream is None:
            self._start()
        return self._stream or sys.stdout

    def _start(self) -> None:
        sys.stdout.flush()
        # By a shell, as git does it: the variable holds a command line of the user's own.
        self._process = subprocess.Popen(
            self._command, shell=True, stdin=subprocess.PIPE, env={"LESS": _LESS, "LV": "-c", **os.environ}
        )
        assert self._process.stdin is not None
        self._stream = io.TextIOWrapper(
            self._process.stdin, encoding=sys.stdout.encoding, errors="backslashreplace"
        )

    def close(self) -> None:
        """Wait until the reader leaves the pager."""
        if self._process is None or self._stream is None:
            return
        try:
            self._stream.close()
        except BrokenPipeError:
            pass  # the reader has left already
        while True:
            try:
                self._process.wait()
                return
            except KeyboardInterrupt:
                pass  # the pager handles Ctrl-C itself, and goes on
