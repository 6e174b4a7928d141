"""Output: lines of styled text and JSON, written to standard output."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, TextIO

from rich.cells import cell_len

from vstate.errors import StorageError

Part = str | tuple[str, str]
"""Text, alone or with its style: words of `_CODES`."""

Line = list[Part]

Document = dict[str, Any]
"""A JSON object."""

VARIABLE: Final = "VSTATE_PAGER"
_LESS: Final = "FRX"
"""For less: leave after a short output, show colours, keep the output on the screen."""

_CODES: Final = {
    "bold": "1", "dim": "2", "reverse": "7",
    "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36",
}  # fmt: skip
_FIRST_SHOWN_AFTER: Final = 0.5  # seconds of work before a bar is shown
_SHOWN_EVERY: Final = 0.1  # seconds
_LONGEST: Final = 1_000_000  # characters of a line
_BLOCK: Final = 64 * 1024  # characters of a text that are written at a time
_MOST_ESCAPES: Final = 1_000_000  # characters that escapes may add to a text
_UNSAFE: Final = re.compile(r"[^ -~]{1,1000}")
_UNSAFE_IN_LINES: Final = re.compile(r"[^\n\t -~]{1,1000}")


def safe(text: str, limit: int | None = None) -> str:
    """`text` on one line, with control characters escaped, cut to `limit` characters."""
    limit = _LONGEST if limit is None else limit
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    text = match[0]
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def local(time: datetime) -> datetime:
    """The time in the zone of this machine."""
    try:
        return time.astimezone()
    except (OverflowError, ValueError, OSError):
        return time  # the system's clock does not reach this year: UTC


def columns(line: Line) -> int:
    """The width of a line on a terminal."""
    return sum(cell_len(part if isinstance(part, str) else part[0]) for part in line)


def padded(text: str, width: int) -> str:
    """`text` and the spaces behind it that fill `width` columns."""
    return text + " " * (width - cell_len(text))


def cut(text: str, width: int) -> str:
    """`text`, cut to so many columns of a terminal; the last one is then "…"."""
    if len(text) <= width // 2 or (len(text) <= 4 * width and cell_len(text) <= width):
        return text
    shown = text[: max(width - 1, 0)]
    while cell_len(shown) > width - 1 and shown:
        shown = shown[:-1]
    return f"{shown}…" if width else ""


class _Pager:
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


class ProgressBar:
    """Shows the progress of work, once it takes long, and only on a terminal."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, step: str, count: int, total: int | None = None) -> None:
        """Show the count of a step, and its share of a known total. Cheap enough for every item."""
        now = time.monotonic()
        if now - self._began < _FIRST_SHOWN_AFTER or now - self._shown < _SHOWN_EVERY:
            return
        self._shown = now
        if self._bar is None and sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        if self._bar is not None:
            # `update` ignores a total of None, and keeps the one before.
            self._bar.tasks[0].total = total
            self._bar.update(self._task, description=f"{step}: {count:,}", completed=count)

    def stop(self) -> None:
        """Take the bar away. The next call may show a new one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._began = time.monotonic()


def _make_bar() -> Any:
    # Imported late: few runs take long enough to show a bar.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    percent = TaskProgressColumn("{task.percentage:3.0f} %")
    parts = TextColumn("{task.description}", markup=False), BarColumn(), percent
    return Progress(*parts, console=Console(stderr=True), transient=True)


class Output:
    """Standard output, or another stream. A terminal has colours, a width and a pager; elsewhere the text is
    plain and uncut.

    FORCE_COLOR asks for colours elsewhere too, and NO_COLOR for none anywhere.
    """

    def __init__(self, *, paged: bool = False, stream: TextIO | None = None) -> None:
        self._own_stream = stream
        self.is_terminal = stream is None and sys.stdout.isatty()
        self._pager = _Pager() if paged and self.is_terminal else None
        is_capable = self.is_terminal and os.environ.get("TERM") not in ("dumb", "unknown")
        is_asked = bool(os.environ.get("FORCE_COLOR")) and stream is None
        self.is_coloured = (is_capable or is_asked) and not os.environ.get("NO_COLOR")
        """Whether the text has colours."""
        self.width = shutil.get_terminal_size().columns if self.is_terminal else None
        """The columns of the terminal; None elsewhere."""
        self.progress = ProgressBar()
        """Shows the progress of long work, until the next output."""
        self.short_times = self.is_terminal
        """Whether times are short, for people."""
        self.damage: StorageError | None = None
        """The first damage in the output. The command finishes its output, then fails with this error."""

    def flush(self) -> None:
        """Send the text written so far on its way."""
        self._stream.flush()

    @property
    def _stream(self) -> TextIO:
        self.progress.stop()
        if self._own_stream is not None:
            return self._own_stream
        # Opened at the first text: an error, or a progress bar before the text, needs no pager.
        return sys.stdout if self._pager is None else self._pager.stream()

    def close(self) -> None:
        """Take away the bar of the progress, and wait until the reader leaves the pager."""
        self.progress.stop()
        if self._pager is not None:
            self._pager.close()

    def moment(self, time: datetime) -> str:
        """A time: on a terminal `05:42:10`, or `11-21 05:42` of another day; elsewhere in full, with zone."""
        there, now = local(time), datetime.now().astimezone()
        if not self.short_times:
            return there.strftime("%Y-%m-%d %H:%M:%S %z")
        if there.date() == now.date():
            return there.strftime("%H:%M:%S")
        return there.strftime("%m-%d %H:%M" if there.year == now.year else "%Y-%m-%d")

    def aside(self, lines: Iterable[Line]) -> None:
        """Write lines about the output: beside it where people read it, else to standard error."""
        is_read = self.is_terminal or self._own_stream is not None
        (self if is_read else Output(stream=sys.stderr)).lines(lines)

    def line(self, *parts: Part) -> None:
        """Write one line. A terminal wraps a long one."""
        self._stream.write(
            "".join(part if isinstance(part, str) else self._styled(*part) for part in parts) + "\n"
        )

    def _styled(self, text: str, style: str) -> str:
        if not (self.is_coloured and text and style):
            return text
        return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}\x1b[0m"

    def lines(self, lines: Iterable[Line]) -> None:
        """Write lines, each given as its parts."""
        for parts in lines:
            self.line(*parts)

    def exact(self, text: str) -> str:
        """A line as it is, for a file or a program; on a terminal, with control characters escaped."""
        is_read = self.is_terminal or self._own_stream is not None
        return _UNSAFE_IN_LINES.sub(_escape, text) if is_read else text

    def text(self, text: str) -> None:
        """Write a text of any number of lines, with control characters escaped.

        After a million characters of escapes the text ends, with the number of characters left out.
        """
        left = _MOST_ESCAPES
        for start in range(0, len(text), _BLOCK):
            if left < 0:
                self._stream.write(f"\n… {len(text) - start} more characters\n")
                return
            block = text[start : start + _BLOCK]
            shown = _UNSAFE_IN_LINES.sub(_escape, block)
            left -= len(shown) - len(block)
            self._stream.write(shown)
        if not text.endswith("\n"):
            self._stream.write("\n")

    def raw(self, text: str) -> None:
        """Write text unescaped. It must hold nothing unescaped from a store."""
        # In pieces: the stream keeps a copy of each.
        for start in range(0, len(text), _BLOCK):
            self._stream.write(text[start : start + _BLOCK])

    def json(self, document: Any, *, indent: int | None = 2) -> None:
        """Write a JSON document. It is ASCII, so no text in it can drive a terminal."""
        # Piece by piece: the whole text may need more memory than there is.
        for piece in json.JSONEncoder(indent=indent).iterencode(document):
            self.raw(piece)
        self.raw("\n")

    def json_array(
        self, items: Iterable[Document], *, before: Document | None = None, name: str = ""
    ) -> None:
        """Write a JSON array item by item; with `before`, as the last member `name` of that object."""
        if before is None:
            self.raw("[")
        else:
            start = json.dumps(before)[:-1]
            self.raw(f"{start}{', ' if before else ''}{json.dumps(name)}: [")
        separator = "\n"
        for item in items:
            self.raw(f"{separator}{json.dumps(item)}")
            separator = ",\n"
        self.raw("\n]" + ("" if before is None else "}") + "\n")

    def note(self, text: str) -> None:
        """Write a remark about the output to standard error; into the pager if both are on the terminal."""
        self.flush()
        paged = self._pager is not None and sys.stderr.isatty()
        print(f"vstate: {safe(text)}", file=self._stream if paged else sys.stderr)

    def fit(self, text: str, used: int = 0) -> str:
        """`text`, cut on a terminal to the columns that are left behind `used` columns."""
        return text if self.width is None else cut(text, max(self.width - used, 20))
