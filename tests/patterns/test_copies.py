"""Copies: no mutable object is in both the copy and the original."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from enum import Enum
from typing import Any

import pytest
from edited import changed
from pydantic import PrivateAttr

from vstate.managers.record import Record
from vstate.patterns.copies import deep_copy, plain_copy


class Words(list[Any]):
    """A list with an attribute of its own."""

    def __init__(self, words: Any = ()) -> None:
        super().__init__(words)
        self.language = ["en"]


class Table(dict[str, Any]):
    pass


class Mode(Enum):
    FAST = "fast"


class Note(Record):
    a: Any = None
    b: Any = None
    _seen: list[Any] = PrivateAttr(default_factory=list)


MUTABLE: list[Any] = [[1], {"k": 1}, [[1]], {"k": [1]}, {(1, Mode.FAST): 1}, ([1],), {1}, bytearray(b"1")]
MUTABLE += [
    OrderedDict(a=[1]),
    [{"a": [{"b": {3}}]}],
    Words([1]),
    Table(k=1),
    [Words()],
    {"k": Table()},
    [Note(a=[1])],
    Note(a=[1], more=[1]),
]


@pytest.mark.parametrize("value", MUTABLE, ids=str)
def test_a_copy_of_a_record_shares_nothing(value: Any) -> None:
    """At any depth: later changes of the original are not in the copy."""
    owned = Note(a=value, more=deepcopy(value))
    owned._seen.append(deepcopy(value))
    before = deepcopy(owned)
    taken = deep_copy(owned)
    assert sum(map(changed, (owned.a, owned.more, owned._seen))) >= 4
    assert taken == before
    assert taken._seen == before._seen
    assert type(taken.a) is type(value)


def test_shared_parts_of_a_record_are_shared_in_its_copy() -> None:
    """One list in two fields, or the record itself, is one object in the copy too."""
    flat: list[Any] = [1]
    record = Note(a=flat, b=[flat], more=flat)
    record._seen = flat
    taken = deep_copy(record)
    assert taken.a is taken.b[0] is taken.more is taken._seen is not flat
    nested = [flat]
    taken = deep_copy(Note(a=nested, b=flat))
    assert taken.a[0] is taken.b
    record.a = record
    record.b = [record]
    taken = deep_copy(record)
    assert taken.a is taken.b[0] is taken is not record
    flat.append(flat)
    copy = deep_copy(flat)
    assert copy[1] is copy is not flat
    words = Words(["a"])
    assert deep_copy([words])[0].language is not words.language == deep_copy([words])[0].language
    text = "a" * 1000
    assert deep_copy([text])[0] is deep_copy(text) is text


def test_a_plain_copy_shares_nothing_and_has_no_members_of_enums() -> None:
    """Members of enums become their values, as keys too, in the same order; the original stays."""
    kind = Enum("kind", {"a": "A"})
    data: dict[str, Any] = {"z": 1, "y": [kind.a], "x": {kind.a: {"w": kind.a}, 2: ()}}
    copy = plain_copy(data)
    assert copy == {"z": 1, "y": ["A"], "x": {"A": {"w": "A"}, 2: ()}}
    assert list(copy) == ["z", "y", "x"]
    assert copy["x"]["A"] is not data["x"][kind.a]
    assert data["y"] == [kind.a]
