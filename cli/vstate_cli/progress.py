"""Progress of long work, as a bar on the terminal's standard error."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

_FIRST_SHOWN_AFTER: Final = 0.5  # seconds
_SHOWN_EVERY: Final = 0.1


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
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.text import Text

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
