"""Conditions: the results of expressions, their errors, and their bounds on hostile values."""

import datetime
import os
import pickle
import time

import pytest
from vstate_cli.commands.bisect import Condition

from vstate.errors import InvalidInput
from vstate.values.inert import read
from vstate.values.instance import Global, Instance
from vstate.values.plain import plain

VALUE = {
    "goal": "win",
    "steps": ["look", "think"],
    "scores": [3, 1.5, 2],
    "messages": [{"role": "user", "content": "hello"}, {"role": "system", "content": ""}],
    "odd key": (1, 2),
    "when": datetime.datetime(2026, 11, 20),
    "tags": {"x", "y"},
    "nothing": None,
    "zero": 0,
    "$more": 5,  # not taken for the mark of a part that was cut
}


@pytest.mark.parametrize(
    "text",
    [
        "value",
        "!missing",
        "value.goal == 'win' && length(value.steps) >= `2`",
        "value.steps[0] == 'look' && value.steps[-1] == 'think' && value.steps[1:] == ['think']",
        'value."odd key" == [`1`, `2`]',
        "contains(value.steps, 'look') && contains(value.goal, 'in')",
        "max(value.scores) == `3` && sum(value.scores) == `6.5` && sort(value.scores)[0] == `1.5`",
        "max(value.messages[*].length(content)) < `10`",
        "length(value.messages[?role == 'system']) == `1`",
        "value.when.\"$datetime\" > '2026-01-01'",
        "value.tags.\"$set\" == ['x', 'y']",
        "value.nothing == `null` && !(value.nothing) && value.absent == `null`",
        "value.zero",
        "contains(keys(value), 'zero')",
        'value."$$more" == `5`',
    ],
)
def test_conditions_that_are_true(text):
    """Each is true of the data that `--json` would print, even where Python would take it for false."""
    assert Condition(text).is_true(VALUE)


@pytest.mark.parametrize(
    "text", ["missing", "value.nothing", "value.absent", "value.steps[?@ == 'x']", "value.goal > 'x'"]
)
def test_conditions_that_are_false(text):
    """False, null and whatever is empty."""
    assert not Condition(text).is_true(VALUE)


def test_a_missing_value():
    """It is null, and missing is true."""
    assert Condition("missing && value == `null`").is_true(None, missing=True)
    assert not Condition("missing").is_true(None)
    assert Condition("missing || value > `3`").is_true(None, missing=True)


def test_objects_are_records():
    """Fields are parts by name; a class, items and entries are parts whose name begins with a $."""
    steps = [Instance("app.Step", {"done": True}), Instance("app.Step", {"done": False})]
    plan = Instance("app.Plan", {"goal": "win", "steps": steps})
    assert Condition("value.goal == 'win' && length(value.steps[?!done]) == `1`").is_true(plan)
    assert Condition("value.\"$type\" == 'app.Plan' && value.steps[0] != value.steps[1]").is_true(plan)
    assert Condition('value."$items"[-1] == `3`').is_true(Instance("app.Bag", items=[1, 2, 3]))
    assert Condition('value."$entries".a == `1`').is_true(Instance("app.Book", entries={"a": 1}))
    assert Condition("value == value").is_true(Global("os.system"))


def test_the_names_of_the_parts_are_told():
    """Those of a dict or an object, the first ones of many; a list has none."""
    condition = Condition("value.gaol == 'win'")
    condition.is_true(VALUE)
    assert condition.names == "goal, steps, scores, messages, odd key, when, tags, nothing and 1 more"
    condition.is_true(Instance("app.Plan", {"goal": "win"}))
    assert condition.names == "goal"
    condition.is_true([1])
    assert condition.names == ""


@pytest.mark.parametrize(
    "text",
    [
        "value.price[1] == `null` && value.price[0] == `1.5` && length(value.price) == `3`",
        "max(value.size) == `3` && value.\"$index\" == ['a', 'b', 'c']",
        "value.\"7\"[0] == 'x'",
    ],
)
def test_frames_are_columns(text):
    """A column is a list of its cells, and NaN is null."""
    pandas = pytest.importorskip("pandas")
    columns = {"price": [1.5, float("nan"), 2.5], "size": [1, 2, 3], 7: ["x", "y", "z"]}
    assert Condition(text).is_true(stored(pandas.DataFrame(columns, index=["a", "b", "c"])))


def test_columns_of_one_name_are_all_there():
    """The second one has its number too."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "a"])
    assert list(plain(stored(frame))) == ["$type", "a", "b", "a [2]"]


def test_arrays_are_nested_lists():
    """By their shape; in Fortran's order they are flat."""
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(24).reshape(2, 3, 4)
    assert Condition("value.data[1][2] == [`20`, `21`, `22`, `23`]").is_true(stored(array))
    assert Condition("value.order == 'F' && value.data[1] == `12`").is_true(
        stored(numpy.asfortranarray(array))
    )


def stored(value):
    """A value as it is read from a store."""
    return read(pickle.dumps(value, protocol=4))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "an empty expression; write a condition such as"),
        ("   ", "column 4 of the expression: invalid syntax$"),
        ("value.goal = 'win'", "column 12 of the expression: invalid syntax at '='"),
        ("value >= 0", "column 10 of the expression: invalid syntax; write a number in backquotes, as `3`"),
        ("value['a']", "column 7 of the expression: invalid syntax at 'a'"),
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


@pytest.mark.parametrize("name", ["__class__", "__init__", "keys", "append", "__globals__"])
def test_python_attributes_are_out_of_reach(name):
    """A step reads entries of dicts, never attributes of Python objects."""
    assert not Condition(f"value.{name}").is_true({})
    assert not Condition(f"value.{name}").is_true([])
    assert not Condition(f"value.{name}").is_true(Instance("app.Plan"))


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
