"""Commits: the first line of a message."""

from __future__ import annotations

import pytest

from vstate import Versioned
from vstate.objects.commit import Commit


@pytest.mark.parametrize(
    ("message", "subject", "shown"),
    [
        ("", "", ""),
        ("one", "one", "one"),
        ("\n  first \nsecond", "first ", "first"),
        ("a\x1b[2Jb", "a\x1b[2Jb", r"a\x1b[2Jb"),
        ("x" * 1000, "x" * 1000, "x" * 1000),
        ("x" * 1001, "x" * 1000 + "…", "x" * 1000 + "…"),
    ],
)
def test_the_first_line(message: str, subject: str, shown: str) -> None:
    """It is cut after 1,000 characters; `str()` escapes what would drive a terminal."""
    state = Versioned()
    state["k"] = 1
    commit = state.commit(message)
    assert isinstance(commit, Commit)
    assert commit.subject == subject
    assert str(commit) == f"{commit.short}  {commit.time:%Y-%m-%d %H:%M:%S}  {shown}".rstrip()
