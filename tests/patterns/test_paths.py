"""Paths: no two tuples of texts have the same key."""

from __future__ import annotations

from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from vstate import Live, Versioned
from vstate.arguments import check_state_key
from vstate.errors import InvalidInput, KeyNotFound
from vstate.patterns import join_path, scope, split_path
from vstate.patterns.paths import path_of

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text("%/ab20\x00\x7f", max_size=6)
paths = st.lists(texts, min_size=1, max_size=4).map(tuple)


@settings(max_examples=50)
@given(paths)
def test_a_path_comes_apart_as_it_was(path: tuple[str, ...]) -> None:
    """For any texts; and the key is valid, without control characters, and without "/" at either end."""
    key = join_path(*path)
    assert split_path(key) == path
    assert key.count("/") == len(path) - 1
    assert all(key.split("/"))
    assert not any(character < " " for character in key)
    check_state_key(key)


@given(paths, paths)
def test_no_two_paths_give_the_same(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """No key lies in the scope of another path, unless it begins with that path."""
    assert (join_path(*one) == join_path(*other)) == (one == other)
    inside = join_path(*one).startswith(join_path(*other) + "/")
    assert inside == (len(one) > len(other) and one[: len(other)] == other)


@given(st.text("%/ab20fF", max_size=6))
def test_only_joined_paths_are_split(key: str) -> None:
    """Another key raises, and never reads as a path."""
    try:
        parts = split_path(key)
    except InvalidInput:
        return
    assert join_path(*parts) == key


class Kind(StrEnum):
    USER = "user"


def test_wrong_parts_of_a_path() -> None:
    """No parts, a part that is no text, and a key that is too long raise at once."""
    assert join_path(Kind.USER, "a/b", "", "50%") == "user/a%2fb/%/50%25"
    assert type(join_path(Kind.USER)) is str
    assert path_of(("a", "b_c")) != path_of(("a_b", "c"))
    with pytest.raises(InvalidInput):
        join_path()
    with pytest.raises(TypeError, match="is a str, not"):
        join_path("a", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an id is"):
        path_of(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        join_path("a", "\ud800")
    for key in ("", "a//b", "/a", "%2F", "%41", "100%"):
        with pytest.raises(InvalidInput):
            split_path(key)


@pytest.mark.parametrize("kind", [Versioned, Live])
def test_scopes(kind: type[Versioned] | type[Live]) -> None:
    """The part of a user and of a session within it; neighbours with similar names are not in it."""
    state = kind()
    user = scope(state, "user", "a")
    session = scope(user, "s/1")
    session["x"] = 1
    scope(state, "user", "ab")["x"] = 2
    scope(state, "user/a")["x"] = 3
    assert dict(user) == {"s%2f1/x": 1}
    assert dict(scope(state, "user", "a", "s/1")) == {"x": 1}
    assert len(state) == 3


def test_scopes_of_the_past() -> None:
    """A scope of a snapshot is read-only, and its errors name keys as they are in the scope."""
    state = Versioned()
    scope(state, "user", "a")["x"] = [1]
    commit = present(state.commit())
    del scope(state, "user", "a")["x"]
    past = scope(scope(state.checkout(commit), "user"), "a")
    assert (dict(past), len(past), list(past.keys("x")), "x" in past) == ({"x": [1]}, 1, ["x"], True)
    assert past.get("y") is None
    with pytest.raises(KeyNotFound, match="'y'"):
        past["y"]
    assert str(past).splitlines()[1].startswith("  x  (list")
    assert not hasattr(past, "__setitem__")
