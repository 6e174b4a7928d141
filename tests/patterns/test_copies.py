"""Copies: no mutable object is in both the copy and the original."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Any

import pytest

from vstate.patterns.copies import deep_copy, plain_copy


class Words(list[str]):
    """A list with an attribute of its own."""

    def __init__(self, *words: str) -> None:
        super().__init__(words)
        self.language = ["en"]


@pytest.mark.parametrize(
    "value",
    [
        [1, "a", None],
        [[1], 2],
        {"a": 1},
        {"a": [1], "b": 2},
        {("a", 1): {2}},
        ([1], 2),
        OrderedDict(a=[1]),
        Words("a", "b"),
        bytearray(b"abc"),
        [{"a": [{"b": {3}}]}],
    ],
    ids=repr,
)
def test_a_copy_shares_nothing_that_can_change(value: Any) -> None:
    """The copy is equal, of the same class, and shares no mutable object with the original."""
    copy = deep_copy(value)
    assert copy == value
    assert type(copy) is type(value)
    assert not mutable_in(copy) & mutable_in(value)


def test_immutable_values_are_not_copied() -> None:
    """A text is its own copy."""
    text = "a" * 1000
    assert deep_copy(text) is text
    assert deep_copy([text])[0] is text


def test_a_plain_copy_shares_nothing_and_has_no_members_of_enums() -> None:
    """Members of enums become their values, as keys too, in the same order; the original stays."""
    kind = Enum("kind", {"a": "A"})
    data: dict[str, Any] = {"z": 1, "y": [kind.a], "x": {kind.a: {"w": kind.a}, 2: ()}}
    copy = plain_copy(data)
    assert copy == {"z": 1, "y": ["A"], "x": {"A": {"w": "A"}, 2: ()}}
    assert list(copy) == ["z", "y", "x"]
    assert copy["x"]["A"] is not data["x"][kind.a]
    assert data["y"] == [kind.a]


def test_a_value_in_itself() -> None:
    """The copy of a list that holds itself holds itself."""
    value: list[Any] = [1]
    value.append(value)
    copy = deep_copy(value)
    assert copy[1] is copy


def mutable_in(value: Any) -> set[int]:
    """The ids of the mutable objects in a value."""
    own = {id(value)} if isinstance(value, list | dict | set | bytearray) else set()
    parts = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    parts = [*parts, *getattr(value, "__dict__", {}).values()]
    return own.union(*map(mutable_in, parts))
