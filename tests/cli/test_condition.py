"""The conditions of `vstate bisect`: the results of expressions, their errors, and their bounds."""

import datetime
import os
import pickle
import time

import numpy
import pytest
from vstate_cli.commands.bisect import Condition

from vstate.errors import InvalidInput
from vstate.values.inert import read
from vstate.values.instance import Global, Instance


def stored(value):
    """A value as it is read from a store."""
    return read(pickle.dumps(value, protocol=4))


VALUE = {
    "goal": "win",
    "steps": ["look", "think"],
    "messages": [{"role": "user", "content": "hello"}, {"role": "system", "content": ""}],
    "odd key": (1, 2),
    "when": datetime.datetime(2026, 11, 20),
    "tags": {"x", "y"},
    "nothing": None,
    "zero": 0,
    "$more": 5,  # not taken for the mark of a part that was cut
}
STEPS = [Instance("app.Step", {"done": True}), Instance("app.Step", {"done": False})]
PLAN = Instance("app.Plan", {"goal": "win", "steps": STEPS})
ARRAY = numpy.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("value", VALUE, True),
        ("!missing", VALUE, True),
        ("value.goal == 'win' && length(value.steps) >= `2`", VALUE, True),
        ("value.steps[-1] == 'think' && contains(value.steps, 'look')", VALUE, True),
        ('value."odd key" == [`1`, `2`]', VALUE, True),
        ("max(value.messages[*].length(content)) < `10`", VALUE, True),
        ("length(value.messages[?role == 'system']) == `1`", VALUE, True),
        ("value.when.\"$datetime\" > '2026-01-01'", VALUE, True),
        ("value.tags.\"$set\" == ['x', 'y']", VALUE, True),
        ("value.nothing == `null` && !(value.nothing) && value.absent == `null`", VALUE, True),
        ("value.zero", VALUE, True),  # where Python would take it for false
        ('value."$$more" == `5`', VALUE, True),
        ("missing", VALUE, False),
        ("value.nothing", VALUE, False),
        ("value.absent", VALUE, False),
        ("value.steps[?@ == 'x']", VALUE, False),
        ("value.goal > 'x'", VALUE, False),
        ("value.goal == 'win' && length(value.steps[?!done]) == `1`", PLAN, True),
        ("value.\"$type\" == 'app.Plan' && value.steps[0] != value.steps[1]", PLAN, True),
        ('value."$items"[-1] == `3`', Instance("app.Bag", items=[1, 2, 3]), True),
        ('value."$entries".a == `1`', Instance("app.Book", entries={"a": 1}), True),
        ("value == value", Global("os.system"), True),
        ("value.data[1][2] == [`20`, `21`, `22`, `23`]", stored(ARRAY), True),
        ("value.order == 'F' && value.data[1] == `12`", stored(numpy.asfortranarray(ARRAY)), True),
        # A step reads entries of dicts, never attributes of Python objects.
        *(
            (f"value.{name}", value, False)
            for name in ("__class__", "keys", "append")
            for value in ({}, [], Instance("app.Plan"))
        ),
    ],
)
def test_what_is_true(text, value, expected):
    """Each is evaluated on the data that `--json` would print: objects are records."""
    assert Condition(text).is_true(value) is expected


@pytest.mark.parametrize(
    "text",
    [
        "value.price[1] == `null` && value.price[0] == `1.5` && length(value.price) == `3`",
        "max(value.size) == `3` && value.\"$index\" == ['a', 'b', 'c']",
        "value.\"7\"[0] == 'x'",
    ],
)
def test_what_is_true_of_a_frame(pandas, text):
    """A frame is its columns."""
    columns = {"price": [1.5, float("nan"), 2.5], "size": [1, 2, 3], 7: ["x", "y", "z"]}
    assert Condition(text).is_true(stored(pandas.DataFrame(columns, index=["a", "b", "c"]))) is True


def test_a_missing_value():
    """It is null, and missing is true."""
    assert Condition("missing && value == `null`").is_true(None, missing=True)
    assert not Condition("missing").is_true(None)
    assert Condition("missing || value > `3`").is_true(None, missing=True)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (VALUE, "goal, steps, messages, odd key, when, tags, nothing, zero"),
        ({str(n): n for n in range(9)}, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"),
        (Instance("app.Plan", {"goal": "win"}), "goal"),
        ([1], ""),
    ],
)
def test_the_names_of_the_parts_are_told(value, names):
    """Those of a dict or an object, the first ones of many; a list has none."""
    condition = Condition("value.gaol == 'win'")
    condition.is_true(value)
    assert condition.names == names


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "an empty expression; write a condition such as"),
        ("   ", "column 4 of the expression: invalid syntax$"),
        ("value.goal = 'win'", "column 12 of the expression: invalid syntax at '='"),
        ("value >= 0", "column 10 of the expression: invalid syntax; write a number in backquotes, as `3`"),
        ("(value", "column 7 of the expression: invalid syntax"),
        ("value\n+1", "column 7"),
        ("\x00value", "column 1"),
        ("1" * 5000, "invalid expression: "),
        ("(" * 2000 + "value", "the expression is nested too deep"),
        ("`" + "[" * 100_000 + "`", "the expression is nested too deep"),
        ("goal == 'win'", "the expression tests neither value nor missing"),
        ("__import__('os').system('touch mark')", "the expression tests neither value nor missing"),
        ("value(1)", "column 7"),
        ("eval(value)", "Unknown function: eval"),
        ("length(value, value)", "Expected 1 argument for function length"),
        ("length(value.zero)", r"length\(\) takes string or array or object, not number"),
        ("value.goal < `3`", "cannot evaluate the expression: '<' not supported"),
        ("value.steps[::0]", "cannot evaluate the expression: slice step cannot be zero"),
        ("value | " * 2000 + "value", "the expression is nested too deep"),
    ],
)
def test_expressions_that_are_refused(text, problem, tmp_path, monkeypatch):
    """The error is one line; nothing runs, and nothing takes long."""
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    with pytest.raises(InvalidInput, match=problem) as caught:
        Condition(text).is_true(VALUE)
    assert time.process_time() - began < 2
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def _doubled(depth: int, kind: type = list) -> object:
    value: object = kind([1])
    for _ in range(depth):
        value = kind([value, value])
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("value[0] == value[1]", [_doubled(40), _doubled(40)], id="shared-lists"),
        pytest.param("to_string(value)", [_doubled(40, tuple), _doubled(40, tuple)], id="shared-tuples"),
        pytest.param("contains(value, value[1])", list(range(1_300_000)), id="long"),
        pytest.param("to_string(value)", ["x" * (2**26 + 1)], id="text"),
    ],
)
def test_large_values_are_refused(text, value):
    """A large value is an error in bounded time. A part counts each time that it occurs."""
    began = time.process_time()
    with pytest.raises(InvalidInput, match="the value is too large or nested too deep for an expression"):
        Condition(text).is_true(value)
    assert time.process_time() - began < 10


def test_deep_and_cyclic_values():
    """Nesting ends with an error, and a value inside itself with a mark."""
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidInput, match="too large or nested too deep"):
        Condition("value == value").is_true(deep)
    while deep:
        deep[:] = deep[0]
    cycle: dict[str, object] = {"goal": "win"}
    cycle["self"] = cycle
    assert Condition("value.goal == 'win' && value.self.\"$cycle\"").is_true(cycle)
