"""The prose of the product stays plain."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parent.parent
CLAUSE = re.compile(r"\bwhat\b(?![- ]if)|\bwhoever\b", re.IGNORECASE)
MOST = 45


def test_few_clauses_begin_with_what() -> None:
    """Name the noun instead: "the rows of a store" for "what a store holds"."""
    sources = [path for folder in ("vstate", "cli") for path in sorted((TOP / folder).rglob("*.py"))]
    found = [
        f"{path.relative_to(TOP)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if CLAUSE.search(line)
    ]
    assert len(sources) > 100
    assert len(found) <= MOST, "\n".join(found)
