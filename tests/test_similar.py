"""The one function behind each "did you mean"."""

from __future__ import annotations

import pytest

from vstate.repo.names.refs import quote_ref, shown_ref, typed_ref
from vstate.similar import similar

USERS = [f"users/user%20{number}" for number in range(3000)]


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("users/user 77", USERS, ["users/user%2077"]),
        ("Users/User_77", USERS, ["users/user%2077"]),
        ("users/user%20299", [*USERS[:299], *USERS[300:]], USERS[2990:2993]),  # they begin so
        ("users/nobody", USERS, []),
        ("nope", ["main", "shorter", "HEAD"], []),
        ("[s1995]", [f".s{number}" for number in range(2000)], [".s1995"]),
        ("mian", ["main", "what-if"], ["main"]),
        ("what-fi", ["main", "what-if"], ["what-if"]),
        ("v2", ["v1", "first"], ["v1"]),
        ("a", ["b"], []),
        ("", ["main"], []),
        ("?", ["main"], []),
    ],
)
def test_similar_names(name: str, known: list[str], found: list[str]) -> None:
    """Equal but for quoting and case; else those that begin so; else those at a small distance; else none."""
    assert similar(name, known) == found


@pytest.mark.parametrize(
    "text", ["user 0", "50% off", "a/b c", "ünï", "what?", "100%", "a%2fb", "main", "x:y"]
)
def test_people_type_names_as_they_read_them(text: str) -> None:
    """What is shown for a name of a branch leads to the branch when it is typed."""
    name = quote_ref(text)
    assert typed_ref(shown_ref(name)) == name
    assert typed_ref(name) == name
    assert shown_ref(quote_ref("user 17")) == "user 17"
