"""The names of keys in a bucket."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vstate.kv.s3.forms import beginning_of, just_before, key_of, name_of
from vstate.testing.kvstore import OBJECT, ODD_KEYS

KEYS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    st.text("/aé=-_.x%", max_size=450),
)


@given(KEYS)
def test_every_key_comes_back(key: str) -> None:
    """A name leads back to its key, and has short parts of few characters, which every store accepts."""
    name = name_of(key)
    assert key_of(name) == key
    assert re.fullmatch(r"[\w=-]{1,202}(/[\w=-]{1,202})*", name, re.ASCII)


@given(KEYS, KEYS)
def test_no_name_is_the_directory_of_another(key: str, other: str) -> None:
    """No name is the directory of another, which some servers cannot keep."""
    assert not name_of(other).startswith(name_of(key) + "/")
    assert (name_of(other) == name_of(key)) is (other == key)


@given(KEYS, KEYS, st.integers(0, 450))
def test_a_prefix_of_keys_is_one_of_names(key: str, other: str, length: int) -> None:
    """All keys with a prefix are listed from one place on, and none is left out for beginning in mid-part."""
    beginning = beginning_of(key[:length])
    assert name_of(key).startswith(beginning)
    place = just_before(beginning)
    if place is not None:
        assert place < beginning
        assert not place < name_of(other) < beginning


@given(st.text("=-_/aA2EF.", max_size=20))
def test_only_names_are_taken_for_names(name: str) -> None:
    """Whatever else lies in the bucket leads to no key, or is the very name of the key."""
    key = key_of(name)
    assert key is None or name_of(key) == name


def test_names_stay_the_same() -> None:
    """The names are part of the format: stored keys must be found again."""
    names = {
        OBJECT: f"{OBJECT}=",
        "r/heads/main": "r/heads/main=",
        "r/tags/v1.0": "r/tags/v1=2E0=",
        "reflog/HEAD:00ff": "reflog/HEAD=3A00ff=",
        "": "=",
        "/": "=_/=",
        "a//..": "a/=_/=2E=2E=",
        "é\n": "=C3=A9=0A=",
        "x" * 201 + "/y": "x" * 200 + "=-/x/y=",
        "x" * 199 + "é": "x" * 199 + "=-/=C3=A9=",
    }
    assert {key: name_of(key) for key in names} == names
    assert len({name_of(key) for key in ODD_KEYS}) == len(ODD_KEYS)


@pytest.mark.parametrize(
    "name", ["a", "a.b=", "a//b=", "/a=", "=41=", "=2e=", "=FF=", "=00", "=probe", "ab=-", "=_="]
)
def test_other_objects_are_no_keys(name: str) -> None:
    """Foreign names are skipped."""
    assert key_of(name) is None
