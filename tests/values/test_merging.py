"""Merge policies: their results, their refusals, and that no change is lost."""

import copy
import datetime
import pickle
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from enum import IntEnum
from fractions import Fraction
from functools import cached_property, partial
from random import Random
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pydantic
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from soak import SOAK

from vstate.values.absent import ABSENT
from vstate.values.file import File
from vstate.values.merging import POLICIES, Overlap, Unmergeable, append_in_order, merge_lines
from vstate.values.tokens import same

try:
    import attrs
    import msgspec
except ImportError:  # optional packages for the tests of values
    attrs = msgspec = None  # type: ignore[assignment]

nan = float("nan")


@dataclass
class Message:
    """A value that is no plain container; equal ones loaded apart are two objects."""

    role: str
    content: Any


class Hidden:
    """An object with the hash and the equality of its identity."""

    def __init__(self, name: str) -> None:
        self.name = name


class Hostile:
    """Asks to be left alone."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment]


class Attributes(dict):  # type: ignore[type-arg]
    """A dict with more to it than its entries."""


def merged(policy: str, base: Any, ours: Any, theirs: Any) -> Any:
    """The result of the policy, which must not change its arguments."""
    before = pickle.dumps((base, ours, theirs))
    try:
        return POLICIES[policy](base, ours, theirs)
    finally:
        assert pickle.dumps((base, ours, theirs)) == before


deep = partial(merged, "deep")


def refused(policy: str, base: Any, ours: Any, theirs: Any) -> Unmergeable:
    with pytest.raises(Unmergeable) as caught:
        POLICIES[policy](base, ours, theirs)
    assert caught.value.reason
    return caught.value


# --- ABSENT and Unmergeable


def test_absent_is_one_falsy_object() -> None:
    """However it is made, copied or pickled, there is one ABSENT, and it is not None."""
    assert not ABSENT
    assert repr(ABSENT) == "ABSENT"
    assert type(ABSENT)() is ABSENT
    assert copy.copy(ABSENT) is copy.deepcopy([ABSENT])[0] is ABSENT
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(ABSENT, protocol)) is ABSENT
    assert pickle.loads(cloudpickle.dumps({"a": ABSENT}))["a"] is ABSENT
    assert same(ABSENT, ABSENT)
    assert not any(same(ABSENT, other) for other in (None, False, 0, "", "ABSENT"))


def test_unmergeable_carries_its_reason() -> None:
    """It prints where and why, and survives pickling."""
    error = pickle.loads(pickle.dumps(Unmergeable("why", '["a"]')))
    assert (error.reason, error.path, str(error)) == ("why", '["a"]', '["a"]: why')
    assert str(Unmergeable("why")) == "why"


def test_the_policies() -> None:
    """There are five, each with a sentence of documentation, and nobody can add to them by accident."""
    assert list(POLICIES) == ["counter", "union", "append", "deep", "text"]
    assert all(policy.__doc__ for policy in POLICIES.values())
    with pytest.raises(TypeError):
        POLICIES["mine"] = POLICIES["deep"]  # type: ignore[index]


SAMPLES: dict[str, Any] = {"counter": 1, "union": {1}, "append": [1], "deep": {"a": 1}, "text": "a\n"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_removal_is_no_value(policy: str) -> None:
    """No policy decides between a removal and a change, nor between values of different types."""
    value = SAMPLES[policy]
    for base in (value, ABSENT):
        assert refused(policy, base, ABSENT, value).reason.startswith("one side removed it")
        assert refused(policy, base, value, ABSENT).reason.startswith("one side removed it")
    refused(policy, value, object(), None)
    refused(policy, Message("a", 1), Message("a", 2), Message("a", 3))
    assert refused(policy, None, 1, "x").path == ""


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_policy_cannot_merge_may_still_be_decided(policy: str) -> None:
    """With values of other types, a change on one side only, or the same on both, is taken."""
    old, new = Message("a", 1), [Message("a", 2)]
    assert merged(policy, old, new, Message("a", 1)) is new
    assert merged(policy, old, Message("a", 1), new) is new
    assert merged(policy, old, new, [Message("a", 2)]) is new
    assert merged(policy, None, new, None) is new


# --- examples


class no(str):  # it reads as the result of a row
    """A refusal with these words."""


class Level(IntEnum):
    LOW, MIDDLE, HIGH = range(3)


BOTH, ONE = "both sides changed it, differently", "one side removed it, the other changed it"
FIRST, SECOND, THIRD = (Message("user", text) for text in "abc")
CONFIG = {"model": {"name": "x", "options": {"seed": 1, "top": 5}}, "tools": ["a"]}
NAMED = {"tools": ["a", "b"], "model": {"name": "y", "options": {"seed": 1, "top": 5}}}
SEEDED = {"model": {"name": "x", "options": {"seed": 2}}, "tools": ["a"], "new": {}}
BOTH_CONFIGS = {"tools": ["a", "b"], "model": {"name": "y", "options": {"seed": 2}}, "new": {}}
NOTED = OrderedDict(a=1)
NOTED.note = "kept"  # type: ignore[attr-defined]  # set from outside
LINES = "one\ntwo\nthree\nfour\n"
SHUFFLED = "\n".join("abcdefghijcheafjbdig") + "\n"  # no line occurs once

EXAMPLES: list[tuple[str, Any, Any, Any, Any]] = [
    ("counter", 1, 2, 1.5, 2.5),
    ("counter", Decimal("0.1"), Decimal("0.3"), Decimal("0.2"), Decimal("0.4")),
    ("counter", 0j, 1j, 2, 2 + 1j),
    ("counter", 0, np.float64(1), 2.0, np.float64(3)),
    ("counter", 0, True, 5, no()),
    ("counter", False, 1, 2, no()),
    ("counter", "a", "b", "c", no()),
    ("counter", *Level, no()),
    ("counter", 0, Decimal(1), 2.0, no("Decimal, float, int")),
    ("counter", 0, 10**400, 1.5, no()),
    ("counter", 0.0, float("inf"), float("-inf"), no()),
    ("counter", 1e308, 1.5e308, 1.7e308, no()),
    ("counter", 0, Decimal("sNaN"), Decimal(1), no()),
    ("counter", 0, Decimal("1e99999"), Decimal(1), no()),
    ("union", [1, 2], [1, 2, 3], [0, 1], [1, 3, 0]),
    ("union", ABSENT, ["a", "b"], ["b", "c", "c"], ["a", "b", "c"]),
    ("union", [1, 1], [1, 1, 2], [1, 1, 3], [1, 1, 2, 3]),
    *(("union", [1], *sides, [2, 2]) for sides in (([1], [2, 2]), ([2, 2], [1]))),
    ("union", [], [1], [True, 1.0], [1, True, 1.0]),
    ("union", [FIRST], [Message("user", "a"), SECOND], [THIRD, Message("user", "a")], [FIRST, SECOND, THIRD]),
    ("union", [1], [2], (3,), no("union cannot merge list with tuple")),
    ("union", "a", "b", "c", no()),
    # A set holds only one of 1 and True: if the sides differ in that, there is no right result.
    ("union", set(), {1}, {True}, no()),
    ("union", {1}, {1}, {True}, {True}),
    ("union", set(), {Hidden("a"), Hidden("a")}, {Hidden("b")}, no()),
    ("union", {"a": 1}, {"a": 1, "b": [1]}, {"a": 2}, {"a": 2, "b": [1]}),
    ("union", {"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {"b": 1, "c": 3}}, no(f'["a"]: {BOTH}')),
    ("union", {"a": 1}, {}, {"a": 2}, no(ONE)),
    ("union", {}, {7: 1}, {7: 2}, no("[7]: ")),
    ("union", OrderedDict(), NOTED, OrderedDict(b=1), no()),
    # By path, at any depth; lists are leaves; keys in ours' order, then theirs' additions.
    ("deep", CONFIG, NAMED, SEEDED, BOTH_CONFIGS),
    ("deep", ABSENT, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    ("deep", {"a": None}, {"a": None, "b": None}, {}, {"b": None}),
    ("deep", {"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {"b": 3}}, no(f'["a"]["b"]: {BOTH}')),
    ("deep", {"a": {"b": 1}}, {}, {"a": {"b": 3}}, no('["a"]: ')),
    ("deep", {"a": {"b": [1]}}, {"a": {"b": [2]}}, {"a": {}}, no('["a"]["b"]: ')),
    ("deep", {}, {"a": {(1, 2): {}}}, {"a": {(1, 2): 1}}, no('["a"][(1, 2)]: ')),
    ("deep", {}, {'"\x1b[': 1}, {'"\x1b[': 2}, no('["\\"\\x1b["]: ')),
    ("deep", [1], [2], [3], no(BOTH)),
    ("deep", {"a": 1}, {"a": {"b": 1}}, {"a": {"c": 1}}, no('["a"]: ')),
    ("deep", {}, {"k": {"a": 1}}, {"k": OrderedDict(b=2)}, no('["k"]: ')),
    ("deep", OrderedDict(a=1), OrderedDict(b=2, a=1), OrderedDict(a=1, c=3), OrderedDict(b=2, a=1, c=3)),
    ("deep", Counter("a"), Counter("ab"), Counter("ac"), Counter("abc")),
    ("deep", Attributes(), Attributes(a=1), Attributes(b=1), Attributes(a=1, b=1)),
    ("deep", defaultdict(list), defaultdict(list, a=1), defaultdict(list, b=2), defaultdict(list, a=1, b=2)),
    ("deep", defaultdict(int), defaultdict(list, a=[]), defaultdict(str, b=""), no()),
    ("deep", ABSENT, defaultdict(None, a=[]), defaultdict(list, b=[]), no()),
    *((policy, {}, {1: "a"}, {True: "b"}, no()) for policy in ("union", "deep")),
    *((policy, {1: "a"}, {1: "a"}, {True: "b"}, {True: "b"}) for policy in ("union", "deep")),
    *((policy, {}, {Hidden("k"): 1, Hidden("k"): 2}, {"x": 1}, no()) for policy in ("union", "deep")),
    ("append", [1, 2, 3], [1, 2, 3, 4], [1, 9, 3], no("[1]: ")),
    ("append", [1, 2], [1], [1, 2, 3], no("[1]: ")),
    ("append", [1], [True, 2], [1, 3], no()),
    ("append", "abc", "abcd", "abX", no()),
    ("append", [1], [1, 2], (1, 2), no()),
    ("append", {1}, {1, 2}, {1, 3}, no()),
    ("append", [1, 2], [], [1, 2], []),
    ("append", [1, 2], [], [], []),
    ("append", ["a"], ["a", "b"], ["a", "b"], ["a", "b", "b"]),
    ("text", LINES, LINES.replace("one\n", "ONE\n"), LINES.replace("three", "3"), "ONE\ntwo\n3\nfour\n"),
    ("text", LINES, LINES + "five", LINES.replace("two\n", ""), "one\nthree\nfour\nfive"),
    ("text", LINES, "zero\n" + LINES, LINES + "five\n", "zero\n" + LINES + "five\n"),
    ("text", "a\nb\nc", "a\nb\nc\n", "A\nb\nc", "A\nb\nc\n"),
    ("text", "a\r\nb\nc\r\n", "A\r\nb\nc\r\n", "a\r\nb\nC", "A\r\nb\nC"),
    ("text", "", "", "a", "a"),
    ("text", SHUFFLED, "new" + SHUFFLED[1:], SHUFFLED[:-2] + "end\n", "new" + SHUFFLED[1:-2] + "end\n"),
    ("text", LINES, LINES.replace("two", "2"), LINES.replace("two", "II"), no("changed line 2 of the base")),
    ("text", LINES, LINES.replace("two", "2"), LINES.replace("three", "3"), no("changed lines 2 to 3 of")),
    ("text", LINES, LINES.replace("two\n", ""), LINES.replace("two\nthree", "x"), no("changed lines 2 to 3")),
    ("text", LINES, LINES + "a\n", LINES + "b\n", no("inserted different lines after line 4 of the base")),
    ("text", LINES, "a\n" + LINES, "b\n" + LINES, no("inserted different lines at the start")),
    ("text", LINES, LINES.rstrip(), LINES + "five\n", no("both sides changed line 4 of the base")),
    ("text", "1%\r2%\r3%\n", "0%\r2%\r3%\n", "1%\r2%\r4%\n", no()),
    ("text", ABSENT, "a", "b", no()),
    ("text", File(b"a\nb\nc"), File(b"A\nb\nc"), File(b"a\nb\nC\n"), File(b"A\nb\nC\n")),
    ("text", File(b"a\n"), File(b"a\n", "executable"), File(b"b\n"), File(b"b\n", "executable")),
    ("text", File(b"a\n", "executable"), File(b"b\n", "executable"), File(b"a\n"), File(b"b\n")),
    ("text", ABSENT, File(b""), File(b"a"), File(b"a")),
    ("text", ABSENT, File(b"a"), File(b"a", "executable"), no("the sides added files of different kinds")),
    ("text", File(b"a"), File(b"b"), File(b"c"), no("both sides changed line 1 of the base")),
    ("text", File(b"a", "link"), File(b"b", "link"), File(b"c", "link"), no("text cannot merge a link")),
    ("text", File(b"a"), File(b"b", "link"), File(b"a\nc"), no("text cannot merge a link")),
    ("text", File(b"a"), File(b"b\0"), File(b"a\nb"), no("a file that is no text")),
    ("text", File(b"\xff"), File(b"b"), File(b"c"), no("a file that is no text")),
    ("text", File(b"\xff"), File(b"b"), File(b"\xff"), File(b"b")),
    (
        "text",
        File(b"a\n"),
        File(b"a\nb\n"),
        "a\nc\n",
        no("merge vstate.values.file.File with str"),
    ),
    ("text", "a", b"b", b"c", no()),
]


@pytest.mark.parametrize(("policy", "base", "ours", "theirs", "result"), EXAMPLES)
def test_examples(policy: str, base: Any, ours: Any, theirs: Any, result: Any) -> None:
    """The result, with the types and the order of its parts, or the place and the words of the refusal."""
    if isinstance(result, no):
        assert result in str(refused(policy, base, ours, theirs))
    else:
        assert same(merged(policy, base, ours, theirs), result)


@pytest.mark.parametrize(
    "sides",
    [
        (Fraction(1, 2), Fraction(3, 2), Fraction(1, 5)),
        (np.zeros((2, 3)), np.zeros((3, 2)), np.ones((2, 3))),
        (datetime.date(2026, 1, 1), datetime.date(2027, 1, 1), datetime.date(2026, 2, 1)),
        (deque([1], 3), deque([1], 4), deque([1, 2], 3)),
        *((Decimal(1), Decimal(2), Decimal("1.0")), ({1}, {1, 2}, {1, 3}), ((1, 2), (1, 3), (2, 2))),
        *((Random(1), Random(2), Random(3)), (len, print, repr)),
    ],
)
def test_deep_leaves(sides: tuple[Any, Any, Any]) -> None:
    """Values whose parts mean nothing apart are never mixed."""
    base, ours, theirs = ({"k": side} for side in sides)
    assert refused("deep", base, ours, theirs).path == '["k"]'


def test_objects_as_keys_and_members() -> None:
    """Objects that were loaded apart are one key or member; a dict keeps its attributes."""
    found = merged("union", {Hidden("a")}, {Hidden("a"), Hidden("b")}, {Hidden("a"), Hidden("c")})
    assert sorted(hidden.name for hidden in found) == ["a", "b", "c"]
    twins = {Hidden("a"), Hidden("a")}
    assert merged("union", {1}, twins, {1}) is twins
    for policy in ("union", "deep"):
        found = merged(policy, {Hidden("k"): 1}, {Hidden("k"): 2}, {Hidden("k"): 1, "x": 1})
        assert list(found.values()) == [2, 1]
    assert len(refused("deep", {}, {"k" * 5000: 1}, {"k" * 5000: 2}).path) < 80
    found = deep(OrderedDict(), NOTED, OrderedDict(b=1))
    assert (list(found), found.note) == (["a", "b"], "kept")


# --- same


def test_types_count() -> None:
    """Equal values of several types differ, as values and inside containers, and as keys and members."""
    for values in [
        (1, 1.0, True, 1 + 0j, Decimal(1), Fraction(1), np.int64(1), np.float64(1)),
        (0, 0.0, -0.0, False, -0.0j),
        (b"a", bytearray(b"a"), "a"),
        ([1], (1,), {1}, frozenset({1})),
        ({"a": 1}, OrderedDict(a=1), Counter(a=1), defaultdict(int, a=1)),
        (None, "", (), "None"),
        (Decimal("1.0"), Decimal("1.00")),
    ]:
        for i, a in enumerate(values):
            for j, b in enumerate(values):
                assert same(a, b) == same([a], [b]) == same({"k": (a,)}, {"k": (b,)}) == (i == j)
    assert not same({1: "x"}, {True: "x"})
    assert not same({1}, {1.0})
    assert not same({(1, "x")}, {(True, "x")})
    assert not same(1, 2**70)


def test_not_a_number_is_itself() -> None:
    """NaN is NaN, of either sign, inside and outside containers and arrays."""
    assert same(nan, -nan)
    assert same([nan, {nan}], [float("nan"), {float("nan")}])
    assert not same({nan, float("nan")}, {nan})
    assert same(complex(nan, 1), complex(float("nan"), 1))
    assert same(np.array([nan, 1.0]), np.array([float("nan"), 1.0]))


def test_objects_are_compared_by_what_is_stored() -> None:
    """Objects, arrays and hostile values: no __eq__ is called; an unpicklable value is only itself."""
    array = np.arange(100_000)
    assert same(array, array.copy())
    assert not same(array, array[::-1])
    assert not same(np.zeros(3), np.zeros(3, dtype="int64"))
    assert same(Message("a", [1]), Message("a", [1]))
    assert not same(Message("a", [1]), Message("a", [2]))
    assert same(Hidden("x"), Hidden("x"))
    assert same(Hostile(), Hostile())
    assert same([Hostile()], [Hostile()])
    assert same(datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1))
    lock = threading.Lock()
    assert same(lock, lock)
    assert same([lock], [lock])
    assert not same(lock, threading.Lock())
    assert same(int, int)
    assert not same(int, str)


def test_classes_that_cannot_be_hashed() -> None:
    """A metaclass with its own equality does not matter."""

    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            raise ZeroDivisionError

    class Odd(metaclass=Meta):
        pass

    one, other = Odd(), Odd()
    assert same(one, one)
    assert same([one], [one])
    assert same(one, other) in (True, False)
    for policy in ("union", "append", "deep", "text"):
        refused(policy, SAMPLES[policy], one, {"a": 2})
    assert refused("deep", {}, {"a": one}, {"a": {}}).path == '["a"]'


def test_how_strings_are_shared_does_not_matter() -> None:
    """Containers are compared by their parts: one string in two places is like two equal strings."""
    text = "text"
    copied = "".join(["te", "xt"])
    assert same([text, text, {"a": text}], [text, copied, {"a": copied}])
    assert same({"zeta", "alpha", "mu"}, {"mu", "zeta", "alpha"})
    assert same({1, 9, 17}, {17, 9, 1})  # in one bucket of the hash table, in the order of insertion
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})


def _nested(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


def test_deep_shared_and_cyclic_values() -> None:
    """Sharing and cycles cost no exponential time; values too deep to be stored are compared, too."""
    assert same(_nested(300, 1), _nested(300, 1))
    assert not same(_nested(300, 1), _nested(300, 2))
    assert not same(_nested(3_000, 1), _nested(3_000, 2))
    shared: list[list[Any]] = [[], []]
    for _ in range(100):
        shared = [[part, part] for part in shared]
    assert same(*shared)
    cycles: list[list[Any]] = [["x"], ["x"], ["y"]]
    for cycle in cycles:
        cycle.append({"self": cycle})
    assert same(cycles[0], cycles[1])
    assert not same(cycles[0], cycles[2])


def test_the_first_pickling_of_a_class() -> None:
    """Pickling leaves a note in a script's own class, which is stored by value: also before that, equal
    objects are the same."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("class Plan: pass\nclass Book:\n  def __init__(self, *parts): self.parts = parts", names)
    plan, book = names["Plan"], names["Book"]
    assert same(book(plan, plan()), book(plan, plan()))
    assert not same(book(plan, plan()), book(plan))


# --- counter

numbers = st.integers() | st.fractions()


@settings(max_examples=50)
@given(numbers, numbers, numbers)
@pytest.mark.slow
def test_counter_adds_what_both_added(base: Any, ours: Any, theirs: Any) -> None:
    """Exact numbers: the base plus both differences, whichever side is which."""
    found = merged("counter", base, ours, theirs)
    assert found == base + (ours - base) + (theirs - base) == merged("counter", base, theirs, ours)
    assert merged("counter", ABSENT, ours, theirs) == ours + theirs


@settings(max_examples=50)
@given(st.floats() | st.complex_numbers() | st.decimals(), st.floats() | st.decimals() | st.booleans())
@pytest.mark.slow
def test_counter_of_one_side(old: Any, new: Any) -> None:
    """The change of only one side is the result, without rounding; infinities and NaN too."""
    assert same(merged("counter", old, new, old), new)
    assert same(merged("counter", old, old, new), new)


def test_counter_is_not_rounded_by_the_context() -> None:
    """A program that computes with three digits still counts with all of them."""
    with localcontext(prec=3):
        assert merged("counter", Decimal(10**40), Decimal(10**40 + 1), Decimal(10**40 + 2)) == 10**40 + 3


# --- union

small_sets = st.sets(st.integers(0, 8) | st.sampled_from("abc"))


@settings(max_examples=50)
@given(small_sets, small_sets, small_sets, st.sampled_from([set, frozenset]))
@pytest.mark.slow
def test_union_of_sets(base: Any, ours: Any, theirs: Any, kind: Any) -> None:
    """A member is kept if both kept it, and added if either added it; the sides are alike."""
    base, ours, theirs = kind(base), kind(ours), kind(theirs)
    found = merged("union", base, ours, theirs)
    assert type(found) is kind
    assert found == (ours & theirs) | (ours - base) | (theirs - base)
    assert found == merged("union", base, theirs, ours)
    assert merged("union", ABSENT, ours, theirs) == ours | theirs


dicts = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2), max_size=4)


def _three_way(base: Any, ours: Any, theirs: Any) -> Any:
    """The model: the value, ABSENT, or Unmergeable raised."""
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    raise Unmergeable("model")


@settings(max_examples=60)
@given(dicts | st.just(ABSENT), dicts, dicts, st.sampled_from(["union", "deep"]))
@example({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"c": 1, "b": 1, "a": 1}, "union")
@example({"a": 1, "b": 1}, {"b": 1, "a": 2}, {"c": 1, "a": 1, "b": 1}, "deep")
@pytest.mark.slow
def test_dicts_by_key(base: Any, ours: Any, theirs: Any, policy: str) -> None:
    """Flat dicts follow the model of three-way merging key by key, conflicts included."""
    before: Any = base or {}
    expected = {}
    try:
        for key in {**before, **ours, **theirs}:
            value = _three_way(*(side.get(key, ABSENT) for side in (before, ours, theirs)))
            if value is not ABSENT:
                expected[key] = value
    except Unmergeable:
        refused(policy, base, ours, theirs)
        return
    found = merged(policy, base, ours, theirs)
    assert found == expected
    order = list(theirs) if list(ours) == list(before) else [*ours, *theirs]
    assert list(found) == [key for key in dict.fromkeys(order) if key in found]


# --- deep

trees = st.recursive(
    st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


def _model(base: Any, ours: Any, theirs: Any) -> Any:
    """Deep merging, as a short recursive definition."""
    try:
        return _three_way(base, ours, theirs)
    except Unmergeable:
        if not (
            isinstance(ours, dict) and isinstance(theirs, dict) and (base is ABSENT or isinstance(base, dict))
        ):
            raise
    old = base if isinstance(base, dict) else {}
    both = {
        key: _model(*(side.get(key, ABSENT) for side in (old, ours, theirs)))
        for key in {**old, **ours, **theirs}
    }
    return {key: value for key, value in both.items() if value is not ABSENT}


@st.composite
def edited_trees(draw: Any) -> tuple[Any, Any, Any]:
    """A tree and two that differ from it at a few paths each: most of them can be merged."""
    base = draw(trees)
    sides = [copy.deepcopy(base), copy.deepcopy(base)]
    for side in sides:
        for _ in range(draw(st.integers(0, 2))):
            inside, key = side, draw(st.sampled_from("abc"))
            while isinstance(inside.get(key), dict) and draw(st.booleans()):
                inside, key = inside[key], draw(st.sampled_from("abc"))
            if draw(st.integers(0, 3)):
                inside[key] = draw(st.integers(0, 2) | trees)
            else:
                inside.pop(key, None)
    return base, sides[0], sides[1]


@pytest.mark.slow
@given(st.tuples(trees | st.just(ABSENT), trees, trees) | edited_trees())
@settings(max_examples=120)
def test_deep_against_a_model(sides: tuple[Any, Any, Any]) -> None:
    """Trees of dicts: the same result as the recursive definition, and refused where that is."""
    try:
        expected = _model(*sides)
    except Unmergeable:
        assert refused("deep", *sides).path
        return
    assert merged("deep", *sides) == expected


def test_deep_many_levels() -> None:
    """Dicts that are nested a hundred deep are merged, or refused with the path; deeper ones are refused."""
    sides = [_nested(100, leaf) for leaf in ({"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 1, "y": 2})]
    assert POLICIES["deep"](*sides) == _nested(100, {"x": 2, "y": 2})
    assert refused("deep", *(_nested(100, {"x": x}) for x in range(3))).path == '["a"]' * 100 + '["x"]'
    assert "nested too deep" in str(refused("deep", *(_nested(3_000, {"x": x}) for x in range(3))))


def test_deep_cycles_and_sharing() -> None:
    """A dict that holds itself is merged into one that does, and shared dicts are merged once."""
    sides: list[dict[str, Any]] = [{"n": 1}, {"n": 1, "ours": 1}, {"n": 1, "theirs": 1}]
    for side in sides:
        side["self"] = side
    found = POLICIES["deep"](*sides)
    assert found["self"] is found
    assert set(found) == {"n", "self", "ours", "theirs"}
    shared: list[dict[str, Any]] = [{"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 1, "y": 2}]
    for _ in range(100):
        shared = [{"a": inner, "b": inner} for inner in shared]
    found = POLICIES["deep"](*shared)
    for _ in range(100):
        assert found["a"] is found["b"]
        found = found["a"]
    assert found == {"x": 2, "y": 2}


@dataclass
class Plan:
    """As programs write them: a field of each kind."""

    goal: Any = "g"
    budget: Any = 1
    notes: Any = None

    @cached_property
    def size(self) -> int:
        return self.budget * 2  # type: ignore[no-any-return]


@dataclass(slots=True, frozen=True)
class FrozenPlan:
    goal: Any = "g"
    budget: Any = 1
    notes: Any = None


@dataclass(slots=True)
class SlotsPlan:
    goal: Any = "g"
    budget: Any = 1
    notes: Any = None


class TuplePlan(NamedTuple):
    goal: Any = "g"
    budget: Any = 1
    notes: Any = None


class PlainPlan:
    def __init__(self, goal: Any = "g", budget: Any = 1, notes: Any = None) -> None:
        self.goal, self.budget, self.notes = goal, budget, notes


class KeptPlan(PlainPlan):
    """With a state of its own."""

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["kept"])


class ModelPlan(pydantic.BaseModel, extra="allow"):
    goal: Any = "g"
    budget: Any = 1
    notes: Any = None


PLANS: list[Any] = [Plan, FrozenPlan, SlotsPlan, TuplePlan, PlainPlan, KeptPlan, ModelPlan]
if attrs is not None:
    options: dict[str, Any]
    for options in ({}, {"frozen": True}, {"slots": False}):
        name = f"AttrsPlan{len(PLANS)}"
        fields = {"goal": attrs.field(default="g"), "budget": attrs.field(default=1)}
        globals()[name] = attrs.make_class(name, {**fields, "notes": attrs.field(default=None)}, **options)
        PLANS.append(globals()[name])
if msgspec is not None:
    globals()["StructPlan"] = msgspec.defstruct(
        "StructPlan", [("goal", Any, "g"), ("budget", Any, 1), ("notes", Any, None)], module=__name__
    )
    PLANS.append(globals()["StructPlan"])


@pytest.mark.parametrize("kind", PLANS)
def test_deep_merges_objects_by_field(kind: Any) -> None:
    """Also inside dicts and each other, and a dict within; the result equals that of a load."""
    found = deep(kind(), kind(goal="ours"), kind(budget=2))
    assert (type(found), found.goal, found.budget, found.notes) == (kind, "ours", 2, None)
    # By the parts of its pickle: the pickle itself shows the order of the set in a model.
    assert pickle.loads(pickle.dumps(found)).__reduce_ex__(4) == found.__reduce_ex__(4)
    base = {"p": kind(notes={"a": 1, "in": kind()})}
    ours = {"p": kind(notes={"a": 2, "in": kind()})}
    theirs = {"p": kind(notes={"a": 1, "in": kind(budget=3), "b": 1}, goal="theirs")}
    inside = deep(base, ours, theirs)["p"]
    assert (inside.goal, inside.notes["a"], inside.notes["b"], inside.notes["in"].budget) == (
        "theirs",
        2,
        1,
        3,
    )
    error = refused("deep", {"p": kind()}, {"p": kind(goal=1)}, {"p": kind(goal=2, budget=2)})
    assert error.path == ('["p"].kept["goal"]' if kind is KeptPlan else '["p"].goal')
    assert refused("deep", kind(), kind(notes=[1]), kind(notes=[2])).path.endswith(("notes", '"notes"]'))
    assert same(deep(ABSENT, kind(goal=1), kind(goal=1)), kind(goal=1))
    refused("deep", kind(), kind(goal=1), {"goal": 2})


def test_deep_objects_in_detail() -> None:
    """Fields that were added or removed, sets of a model's fields, cached properties, cycles."""
    one, other = ModelPlan(goal=1, extra=1), ModelPlan(budget=2, more=2)
    found = deep(ModelPlan(), one, other)
    assert (found.goal, found.budget, found.extra, found.more) == (1, 2, 1, 2)
    assert found.model_fields_set == {"goal", "budget", "extra", "more"}
    ours, theirs = Plan(goal=1), Plan(budget=5)
    assert (ours.size, theirs.size) == (2, 10)
    assert deep(Plan(), ours, theirs).size == 10
    old, gone, new = PlainPlan(), PlainPlan(), PlainPlan(goal=1)
    del gone.budget
    assert vars(deep(old, gone, new)) == {"goal": 1, "notes": None}
    sides = [PlainPlan(), PlainPlan(goal=1), PlainPlan(budget=2)]
    for side in sides:
        side.notes = {"up": side}
    found = deep(*sides)
    assert found.notes["up"] is found
    assert (found.goal, found.budget) == (1, 2)


def test_leaves_are_compared_without_asking_them() -> None:
    """Arrays, NaN and objects without a usable equality as leaves."""
    for policy in ("union", "deep"):
        base = {"a": np.zeros(3), "n": nan, "h": Hostile(), "x": 1}
        ours = {"a": np.zeros(3), "n": float("nan"), "h": Hostile(), "x": 2}
        theirs = {"a": np.ones(3), "n": nan, "h": Hostile(), "x": 1}
        found = POLICIES[policy](base, ours, theirs)
        assert found["x"] == 2
        assert found["a"] is theirs["a"]
        assert refused(policy, base, ours, {**theirs, "x": 3}).path == '["x"]'


# --- append

sequences: list[Callable[[list[int]], Any]] = [
    list,
    tuple,
    bytes,
    bytearray,
    lambda numbers: "".join(map(chr, numbers)),
    lambda numbers: [[{"id": number}] for number in numbers],
]
short = st.lists(st.integers(0, 255), max_size=5)


@settings(max_examples=50)
@given(short, short, short, st.sampled_from(sequences))
@pytest.mark.slow
def test_append_both_tails(start: list[int], mine: list[int], other: list[int], kind: Any) -> None:
    """For any sequence, the result is the base, ours' tail, and theirs' tail."""
    expected = kind(start + mine + other)
    assert same(merged("append", kind(start), kind(start + mine), kind(start + other)), expected)
    if not start:
        assert same(merged("append", ABSENT, kind(mine), kind(other)), expected)


steps_of_ints = st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(), max_size=3)), max_size=5)


@settings(max_examples=60)
@given(short, steps_of_ints, steps_of_ints, st.booleans(), st.booleans())
@example([1], [(1, [1])], [(1, [2])], False, False)
@pytest.mark.slow
def test_append_in_order_keeps_everything(
    start: list[int], mine: Any, other: Any, ascending: bool, absent: bool
) -> None:
    """Every item of both sides is there once, each side in its own order; by time where times ascend."""
    sides = []
    for name, pieces in (("ours", mine), ("theirs", other)):
        times = [when for when, _ in pieces]
        total: list[Any] = [] if absent else list(start)
        steps = []
        for when, (_, piece) in zip(sorted(times) if ascending else times, pieces, strict=True):
            total = [*total, *((name, when, len(total) + i) for i in range(len(piece)))]
            steps.append((when, total))
        sides.append(steps)
    base: Any = ABSENT if absent else start
    assume(not absent or all(sides))
    found = append_in_order(base, *sides)
    before = [] if absent else start
    assert found[: len(before)] == before
    added = found[len(before) :]
    for name, steps in zip(("ours", "theirs"), sides, strict=True):
        own = steps[-1][1][len(before) :] if steps else []
        assert [item for item in added if item[0] == name] == own
    assert len(added) == sum(len(steps[-1][1]) - len(before) for steps in sides if steps)
    if ascending:
        assert added == sorted(added, key=lambda item: (item[1], item[0]))


def test_append_in_order_examples() -> None:
    """Pieces by time, ours first at equal times; a side without steps did not change."""
    ours = [(1, "log\na"), (3, "log\nac")]
    theirs = [(1, "log\nb"), (2, "log\nbB"), (4, "log\nbBd")]
    assert append_in_order("log\n", ours, theirs) == "log\nabBcd"
    assert append_in_order([1], [], []) == [1]
    assert append_in_order(ABSENT, [], [(1, [7])]) == append_in_order(ABSENT, [(1, [7])], []) == [7]


def test_append_in_order_of_a_side_that_did_more_than_append() -> None:
    """A side with a step that removes items is one piece at its last time."""
    ours = [(1, [0, "x"]), (3, [0]), (5, [0, "a", "b"])]
    theirs = [(2, [0, "c"]), (6, [0, "c", "d"])]
    assert append_in_order([0], ours, theirs) == [0, "c", "a", "b", "d"]
    gone = [(1, ABSENT), (3, [0, "a"])]
    assert append_in_order([0], gone, theirs) == [0, "c", "a", "d"]
    with pytest.raises(Unmergeable):
        append_in_order([0], [(1, [0, 1]), (2, [1])], theirs)
    with pytest.raises(Unmergeable):
        append_in_order([0], [(1, [0, 1]), (2, ABSENT)], theirs)
    with pytest.raises(Unmergeable):
        append_in_order([0], [(1, "text")], theirs)


# --- text

lines = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\r\n", "{\n", "}\n"]), max_size=10)
texts = st.builds(
    lambda body, end: "".join(body) + end, lines, st.sampled_from(["", "", "x", "\r", " \x0c y"])
)


def _count(*texts: str) -> Counter[str]:
    return Counter(line for text in texts for line in text.split("\n") if line)


@pytest.mark.slow
@given(texts, texts, texts)
@settings(max_examples=100)
def test_text_loses_no_line(base: str, ours: str, theirs: str) -> None:
    """Merged or refused whichever side is which. No line that a side added is missing from the result, and
    none is gone that both sides kept."""
    found = merge_lines(base, ours, theirs)
    assert merge_lines(base, theirs, ours) == found
    if isinstance(found, Overlap):
        assert 0 <= found.first <= found.last <= base.count("\n") + 1
        return
    old, mine, other, new = (_count(text) for text in (base, ours, theirs, found))
    for line in mine | other | old:
        plus = mine[line] + other[line] - old[line]
        assert min(mine[line], other[line], plus) <= new[line] <= max(mine[line], other[line], plus)


@st.composite
def disjoint_edits(draw: Any) -> tuple[list[str], dict[int, list[str]], dict[int, list[str]], str]:
    """A base of different lines, and the lines that each side replaces; one line stands between two edits."""
    size = draw(st.integers(1, 30))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    base = [f"line {i}{end}" for i in range(size)]
    if draw(st.booleans()):
        base[-1] = base[-1].removesuffix(end)
    places = draw(st.sets(st.integers(0, size - 1)))
    sides: tuple[dict[int, list[str]], dict[int, list[str]]] = ({}, {})
    for place in sorted(places):
        if place - 1 in sides[0] or place - 1 in sides[1]:
            continue
        side = draw(st.integers(0, 1))
        new = [f"new {side} {place} {i}{end}" for i in range(draw(st.integers(0, 2)))]
        if new and place == size - 1 and not base[-1].endswith(end):
            new[-1] = new[-1].removesuffix(end)
        sides[side][place] = new
    return base, sides[0], sides[1], end


def _edited(base: list[str], edits: dict[int, list[str]]) -> str:
    return "".join("".join(edits.get(place, [line])) for place, line in enumerate(base))


@pytest.mark.slow
@given(disjoint_edits())
@settings(max_examples=60)
def test_text_takes_disjoint_edits(case: Any) -> None:
    """Edits with an unchanged line between them are all taken, and nothing else changes."""
    base, mine, other, _ = case
    expected = _edited(base, {**mine, **other})
    assert merged("text", "".join(base), _edited(base, mine), _edited(base, other)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "edit"),
    [
        (lambda i: f"line {i}\n", lambda lines, at: [*lines[:at], "new\n", *lines[at + 1 :]]),
        (lambda i: f"line {i % 500}\n", lambda lines, at: lines[:at] + lines[at + 1 :]),
    ],
)
def test_long_texts(line: Callable[[int], str], edit: Callable[[list[str], int], list[str]]) -> None:
    """A hundred thousand lines, repeated ones too: an edit of each side in seconds, and both are there."""
    base = [line(i) for i in range(100_000)]
    ours, theirs = edit(base, 10), edit(base, 90_000)
    both = edit(theirs, 10)
    began = time.perf_counter()
    found = merge_lines("".join(base), "".join(ours), "".join(theirs))
    assert time.perf_counter() - began < 100
    assert found == "".join(both)


# --- speed


@pytest.mark.slow
def test_many_items() -> None:
    """No policy takes more than seconds for a hundred thousand items, hashable or not."""
    size = 100_000 if SOAK else 3_000
    plain = list(range(size))
    sides: list[list[Any]] = [[{"id": i, "tags": ["a"]} for i in range(size)] for _ in range(3)]
    began = time.perf_counter()
    assert len(POLICIES["union"](plain, [*plain, "x"], [*plain[1:], "y"])) == size + 1
    assert len(POLICIES["union"](set(plain), {*plain, "x"}, {*plain[1:], "y"})) == size + 1
    assert len(POLICIES["union"](sides[0], [*sides[1], 1], [*sides[2][1:], 2])) == size + 1
    assert len(POLICIES["append"](plain, [*plain, 1], [*plain, 2])) == size + 2
    tables: list[dict[Any, int]] = [dict.fromkeys(plain, 0) for _ in range(3)]
    tables[1]["ours"] = tables[2]["theirs"] = 1
    assert len(POLICIES["deep"](*tables)) == size + 2
    assert time.perf_counter() - began < 150
