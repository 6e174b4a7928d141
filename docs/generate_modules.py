"""Writes docs/modules.md, a line for each module, from the first lines of their docstrings.

python docs/generate_modules.py
"""

from __future__ import annotations

import ast
from pathlib import Path

TOP = Path(__file__).parent.parent
PAGE = TOP / "docs" / "modules.md"

INTRODUCTION = """\
# The modules

<!-- docs/generate_modules.py writes this page. Change the docstring of a module, then run `make docs`. -->

What each file is for. [The map](../CONTRIBUTING.md#the-map) says how the folders stand on each other, and
[architecture](architecture.md) how a commit goes through them.

| file | what it is for |
|---|---|
"""


def page() -> str:
    """The whole page. Raises ValueError for a module without a docstring."""
    files = [file.relative_to(TOP) for top in ("vstate", "cli") for file in (TOP / top).rglob("*.py")]
    rows = [f"| `{file}` | {_told(file)} |\n" for file in sorted(files, key=lambda file: (file.parent, file))]
    return INTRODUCTION + "".join(rows)


def _told(file: Path) -> str:
    """The first line of the module's docstring, as a cell of a table."""
    told = ast.get_docstring(ast.parse((TOP / file).read_text("utf-8")))
    if not told:
        raise ValueError(f"{file} has no docstring")
    return told.partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")
