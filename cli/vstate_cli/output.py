"""Output: where lines of styled text go, in colour and cut to the width on a terminal only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from rich.cells import cell_len
from rich.console import Console
from rich.status import Status
from rich.text import Text

from vstate.errors import StorageError

Part = str | tuple[str, str]
"""Text, alone or with its style."""

Line = list[Part]

_SPINNER_AFTER: Final = 0.5  # seconds
_SPINNER_EVERY: Final = 0.1


def safe(text: str, limit: int | None = None) -> str:
    """`text` on one line, with everything escaped that could drive a terminal; cut to `limit` characters."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
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

    def raw(self, text: str) -> None:
        """Write text as it is: for what holds nothing that came out of a store unescaped, such as JSON."""
        self._stream.write(text)

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
