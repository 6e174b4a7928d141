"""Output: where lines of styled text go, in colour and cut to the width on a terminal only."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from rich.cells import cell_len
from rich.console import Console
from rich.status import Status
from rich.text import Text

from vstate.errors import StorageError

Part = str | tuple[str, str]
"""Text, alone or with its style."""

Line = list[Part]

_LONGEST: Final = 1_000_000  # characters of a line
_BLOCK: Final = 64 * 1024  # characters of a text that are written at a time
_MOST_ESCAPES: Final = 1_000_000  # characters that escapes may add to a text
_UNSURE: Final = re.compile(r"[^ -~]{1,1000}")
_UNSURE_IN_LINES: Final = re.compile(r"[^\n\t -~]{1,1000}")
_SPINNER_AFTER: Final = 0.5  # seconds
_SPINNER_EVERY: Final = 0.1


def safe(text: str, limit: int | None = None) -> str:
    """`text` on one line, with everything escaped that could drive a terminal; cut to `limit` characters."""
    limit = _LONGEST if limit is None else limit
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return _UNSURE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    text = match[0]
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def columns(line: Line) -> int:
    """How wide a line is on a terminal."""
    return sum(cell_len(part if isinstance(part, str) else part[0]) for part in line)


class Output:
    """Standard output: colours and the width of a terminal if it is one, plain text if not."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self.is_terminal = self._stream.isatty()
        plain = not self.is_terminal or bool(os.environ.get("NO_COLOR"))
        self._console = Console(
            file=self._stream,
            force_terminal=self.is_terminal,
            color_system=None if plain else "auto",
            markup=False,
            highlight=False,
            emoji=False,
        )
        self.damage: StorageError | None = None
        """The first damage that was met, and shown, on the way: the command goes on, and fails at its end."""
        self._coloured = self._console.color_system is not None
        self.width = self._console.width if self.is_terminal else None
        """The columns of the terminal; None where there is none, and nothing is cut."""

    def line(self, *parts: Part) -> None:
        """Write one line. A terminal wraps it if it is too long, no other place cuts it."""
        if self._coloured:
            self._console.print(Text.assemble(*parts), soft_wrap=True)
        else:
            self._stream.write("".join(part if isinstance(part, str) else part[0] for part in parts) + "\n")

    def lines(self, lines: Iterable[Line], indent: str = "") -> None:
        """Write lines, indented."""
        for parts in lines:
            self.line(*([indent, *parts] if parts else []))

    def text(self, text: str) -> None:
        """Write a text of any number of lines as it is, but for what could drive a terminal.

        Should that be so much that it takes long, it ends there, and says so.
        """
        left = _MOST_ESCAPES
        for start in range(0, len(text), _BLOCK):
            if left < 0:
                self._stream.write(f"\n… {len(text) - start} more characters\n")
                return
            block = text[start : start + _BLOCK]
            shown = _UNSURE_IN_LINES.sub(_escaped, block)
            left -= len(shown) - len(block)
            self._stream.write(shown)
        if not text.endswith("\n"):
            self._stream.write("\n")

    def raw(self, text: str) -> None:
        """Write text as it is: for what holds nothing that came out of a store unescaped, such as JSON."""
        # In pieces: the stream keeps a copy of what it is given.
        for start in range(0, len(text), _BLOCK):
            self._stream.write(text[start : start + _BLOCK])

    def note(self, text: str) -> None:
        """Write a line about the output, which is not part of it, to standard error."""
        self._stream.flush()
        print(f"vstate: {safe(text)}", file=sys.stderr)

    def fit(self, text: str, used: int = 0) -> str:
        """`text` cut to what is left of a terminal's line behind `used` columns; whole elsewhere."""
        if self.width is None:
            return text
        room = max(self.width - used, 20)
        if cell_len(text) <= room:
            return text
        cut = text[: room - 1]
        while cell_len(cut) > room - 1:
            cut = cut[:-1]
        return f"{cut}…"


class Bar:
    """What long work is at, on the terminal's standard error, once it takes long; elsewhere nothing."""

    def __init__(self) -> None:
        self._began = self._shown = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, what: str, count: int, total: int | None = None) -> None:
        """Say how far it is, of how much if that is known; cheap enough for every step."""
        now = time.monotonic()
        if now - self._began < _SPINNER_AFTER or now - self._shown < _SPINNER_EVERY:
            return
        self._shown = now
        if self._bar is None and sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        if self._bar is not None:
            # To `update`, no total means the one before, which is 100 at first.
            self._bar.tasks[0].total = total
            self._bar.update(self._task, description=f"{what}: {count:,}", completed=count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Any:
    from rich.progress import BarColumn, Progress, TextColumn  # late: few commands work long

    class Percent(TextColumn):
        def render(self, task: Any) -> Text:
            return Text("" if task.total is None else f"{task.percentage:3.0f} %")

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        Percent(""),
        console=Console(stderr=True),
        transient=True,
    )


class Progress:
    """A spinner on the terminal's standard error, once the work inside takes long; elsewhere nothing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._shown = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def update(self, count: int) -> None:
        """Say how far it is; cheap enough for every step."""
        now = time.monotonic()
        if now - self._began < _SPINNER_AFTER or now - self._shown < _SPINNER_EVERY:
            return
        self._shown = now
        if self._status is None and sys.stderr.isatty():
            self._status = Console(stderr=True).status("")
            self._status.start()
        if self._status is not None:
            self._status.update(Text(f"counting {self._what}: {count:,}"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
