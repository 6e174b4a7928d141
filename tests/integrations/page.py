"""The programs and commands of docs/integrations.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Example = Callable[..., dict[str, Any]]
Commands = Callable[[str], list[str]]
PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
_PART = re.compile(r"^#{2,3} ([^\n]+)$|^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^#{2,3} (.+)$|^\$ vstate (.+)$", re.MULTILINE)


def examples() -> dict[str, list[str]]:
    """The programs under each heading of the page."""
    return _by_heading(_PART)


def lines() -> dict[str, list[str]]:
    """The lines `$ vstate …` under each heading of the page, but for imports, whose files are not there."""
    found = {
        title: [line for line in each if " import " not in line] for title, each in _by_heading(_LINE).items()
    }
    return {title: each for title, each in found.items() if each}


def _by_heading(part: re.Pattern[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    title = ""
    for heading, text in part.findall(PAGE.read_text("utf-8")):
        title = heading or title
        if text:
            found.setdefault(title, []).append(text)
    return found
