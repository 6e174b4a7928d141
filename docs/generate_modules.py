"""Writes docs/modules.md, a line for each module, from the first sentences of their docstrings.

python docs/generate_modules.py
"""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

TOP = Path(__file__).parent.parent
PAGE = TOP / "docs" / "modules.md"

INTRODUCTION = """\
# The modules

<!-- docs/generate_modules.py writes this page. Change the docstring of a module, then run `make docs`. -->

What each file is for, by folder. [The map](../CONTRIBUTING.md#the-map) says how the folders stand on each
other, and [architecture](architecture.md) how a commit goes through them.
"""


def page() -> str:
    """The whole page."""
    files = [file.relative_to(TOP) for top in ("vstate", "cli") for file in (TOP / top).rglob("*.py")]
    parts = [INTRODUCTION]
    for folder, modules in groupby(sorted(files, key=lambda file: (file.parent, file)), lambda f: f.parent):
        parts.append(f"\n## {folder}\n\n| file | what it is for |\n|---|---|\n")
        parts += [f"| `{file.name}` | {_told(file)} |\n" for file in modules]
    return "".join(parts)


def _told(file: Path) -> str:
    """The first paragraph of the docstring, which is one line, without the name of the module."""
    text = (ast.get_docstring(ast.parse((TOP / file).read_text("utf-8"))) or "").partition("\n")[0]
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")
