"""Shapes of values: how to make one, look at it without changing it, edit it in place, and compare two."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd

T = TypeVar("T")


@dataclass
class Plan:
    goal: str
    steps: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    name: str
    tags: list[str]


@dataclass(slots=True)
class Slotted:
    x: int
    y: list[int]


class OldSlots:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1
        self.b = {"k": [1]}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OldSlots) and (self.a, self.b) == (other.a, other.b)

    __hash__ = None  # type: ignore[assignment]


class WithGetstate:
    """Leaves a cache out of its pickle."""

    def __init__(self) -> None:
        self.items = ["one"]
        self.cache: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"items": self.items}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.items = state["items"]
        self.cache = {}

    def lookup(self) -> int:
        return self.cache.setdefault("length", len(self.items))


class WithReduce:
    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return WithReduce, (self.number,)


class WithNewargs(tuple):
    extra: list[int]

    def __new__(cls, a: int, b: int) -> WithNewargs:
        made = super().__new__(cls, (a, b))
        made.extra = []
        return made

    def __getnewargs__(self) -> tuple[int, int]:
        return self[0], self[1]


class Box(Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: list[int]


class Node:
    """Compares and hashes by identity, as classes do unless they say otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.neighbours: set[Node] = set()


class Words(list):
    language = "en"


class Table(dict):
    def __init__(self) -> None:
        super().__init__()
        self.title = "t"


class Cached:
    def __init__(self) -> None:
        self.numbers = [1, 2, 3]

    def method(self) -> int:
        return sum(self.numbers)


def add(a: int, b: int) -> int:
    return a + b


def make_closure() -> Callable[[], int]:
    counts = [0]

    def count() -> int:
        counts[0] += 1
        return counts[0]

    return count


def recursive_list() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def recursive_object() -> Plan:
    plan = Plan("loop")
    plan.steps.append(plan)  # type: ignore[arg-type]
    return plan


def shared() -> dict[str, Any]:
    inner = ["inner"]
    return {"a": inner, "b": inner, "pair": (inner, inner)}


def graph() -> list[Node]:
    nodes = [Node(f"n{i}") for i in range(40)]
    for i, node in enumerate(nodes):
        node.neighbours = {nodes[(i * 7 + j) % 40] for j in range(1, 20)}
    return nodes


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "n": np.arange(500),
            "x": np.linspace(0, 1, 500),
            "name": [f"row {i}" for i in range(500)],
            "when": pd.date_range("2024-01-01", periods=500, freq="h"),
            "kind": pd.Categorical(["a", "b"] * 250),
        }
    )


def set_frame(value: pd.DataFrame) -> None:
    value.loc[3, "x"] = 42.0


def masked() -> Any:
    return np.ma.array(np.arange(2000.0), mask=[i % 3 == 0 for i in range(2000)], fill_value=-1.0)


def structured() -> Any:
    value = np.zeros(300, dtype=[("id", "i4"), ("name", "U8"), ("xy", "f8", (2,))])
    value["id"] = range(300)
    return value


def over_memoryview() -> Any:
    return np.frombuffer(memoryview(bytearray(range(256)) * 16), dtype="u1")


def read_only_array() -> Any:
    value = np.arange(1000.0)
    value.flags.writeable = False
    return value


def view_of_array() -> Any:
    return np.arange(4000.0).reshape(50, 80)[5:45:2, ::3]


def fortran() -> Any:
    return np.asfortranarray(np.arange(3000.0).reshape(60, 50))


def equal(a: Any, b: Any) -> bool:
    return bool(a == b)


def arrays(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


def masked_arrays(a: Any, b: Any) -> bool:
    return bool((a.mask == b.mask).all()) and arrays(a.filled(), b.filled()) and a.fill_value == b.fill_value


def frames(a: Any, b: Any) -> bool:
    return bool(a.equals(b)) and list(a.dtypes) == list(b.dtypes)


def attributes(a: Any, b: Any) -> bool:
    return bool(vars(a) == vars(b))


def look(value: Any) -> None:
    repr(value)
    if hasattr(value, "__len__") and not callable(value):
        len(value)
    if hasattr(value, "__iter__"):
        for _ in value:
            pass


def nothing(value: Any) -> None:
    pass


@dataclass
class Shape:
    """`edit` is None for values that cannot be edited in place; `kept` checks identity inside the value."""

    make: Callable[[], Any]
    edit: Callable[[Any], Any] | None = None
    same: Callable[[Any, Any], bool] = equal
    kept: Callable[[Any], bool] = lambda value: True
    read: Callable[[Any], Any] = look


def setter(name: str, new: Any) -> Callable[[Any], None]:
    return lambda value: setattr(value, name, new)


def put(place: Any, new: Any) -> Callable[[Any], None]:
    def edit(value: Any) -> None:
        value[place] = new

    return edit


SHAPES: dict[str, Shape] = {
    "none": Shape(lambda: None),
    "true": Shape(lambda: True),
    "big int": Shape(lambda: 1 << 5000),
    "negative big int": Shape(lambda: -(1 << 63) - 1),
    "largest atom": Shape(lambda: (1 << 64) - 1),
    "float": Shape(lambda: 0.1),
    "negative zero": Shape(lambda: -0.0, same=lambda a, b: repr(a) == repr(b)),
    "nan": Shape(lambda: float("nan"), same=lambda a, b: repr(a) == repr(b) == "nan"),
    "infinity": Shape(lambda: float("-inf")),
    "complex": Shape(lambda: complex(1, -0.0), same=lambda a, b: repr(a) == repr(b)),
    "str": Shape(lambda: "héllo"),
    "long str": Shape(lambda: "wörd " * 30_000),
    "empty str": Shape(lambda: ""),
    "surrogates": Shape(lambda: "a\ud800b\udfff"),
    "long surrogates": Shape(lambda: "\ud800" * 40_000),
    "bytes": Shape(lambda: b"\0\xff"),
    "empty bytes": Shape(lambda: b""),
    "long bytes": Shape(lambda: bytes(range(256)) * 300),
    "bytearray": Shape(lambda: bytearray(b"abc"), lambda v: v.extend(b"d")),
    "empty bytearray": Shape(bytearray, lambda v: v.append(1)),
    "long bytearray": Shape(lambda: bytearray(range(256)) * 400, put(50_000, 7)),
    "list": Shape(lambda: [1, "a", None], lambda v: v.append(2)),
    "empty list": Shape(list, lambda v: v.append(None)),
    "list of equal strings": Shape(
        lambda: ["".join(["wo", "rd"]) for _ in range(50)], lambda v: v.append("word")
    ),
    "nested list": Shape(lambda: [[[1]], [[2]]], lambda v: v[1][0].append(3)),
    "dict": Shape(lambda: {"b": 1, "a": [2]}, lambda v: v["a"].append(3)),
    "dict in another order": Shape(
        lambda: {"b": 1, "a": 2},
        lambda v: v.update(b=v.pop("b")),
        same=lambda a, b: list(a.items()) == list(b.items()),
    ),
    "dict with odd keys": Shape(
        lambda: {1: "int", (1, 2): "tuple", None: "none", 2.5: "float", frozenset({1}): "set"}, put(b"x", 1)
    ),
    "set of str": Shape(lambda: {f"word {i}" for i in range(100)}, lambda v: v.discard("word 3")),
    "set of enums": Shape(lambda: {Colour.RED, Colour.BLUE}, lambda v: v.remove(Colour.RED)),
    "set of tuples": Shape(
        lambda: {("a", i, f"{i}") for i in range(60)}, lambda v: v.add(("b", 0, "0"))
    ),
    "frozenset": Shape(lambda: frozenset(f"word {i}" for i in range(100))),
    "dict of sets": Shape(
        lambda: {f"k{i}": {f"a{i}", f"b{i}", "c", "d"} for i in range(30)}, lambda v: v["k7"].add("new")
    ),
    "tuple": Shape(lambda: (1, "a", (2, None))),
    "tuple with a list": Shape(lambda: (1, [2]), lambda v: v[1].append(3)),
    "namedtuple": Shape(lambda: Point(1, [2]), lambda v: v.y.append(3)),
    "range": Shape(lambda: range(3, 1000, 7)),
    "slice": Shape(lambda: slice(1, None, 2)),
    "ellipsis": Shape(lambda: ...),
    "dataclass": Shape(lambda: Plan("g", ["s"]), lambda v: v.steps.append("t")),
    "dataclass attribute": Shape(lambda: Plan("g"), setter("goal", "h")),
    "frozen dataclass": Shape(lambda: Frozen("n", ["t"]), lambda v: v.tags.append("u")),
    "slots dataclass": Shape(lambda: Slotted(1, [2]), setter("x", 5)),
    "slots": Shape(OldSlots, lambda v: v.b["k"].append(2)),
    "getstate": Shape(
        WithGetstate,
        lambda v: v.items.append("two"),
        same=lambda a, b: a.items == b.items,
        read=lambda v: v.lookup(),
    ),
    "reduce": Shape(lambda: WithReduce(1), setter("number", 2), same=attributes),
    "getnewargs": Shape(
        lambda: WithNewargs(1, 2),
        lambda v: v.extra.append(1),
        same=lambda a, b: a == b and a.extra == b.extra,
    ),
    "generic class": Shape(lambda: Box[list[int]]([1]), lambda v: v.item.append(2), same=attributes),
    "subclass of list": Shape(lambda: Words(["a"]), setter("language", "fr"), same=attributes),
    "subclass of dict": Shape(Table, put("k", 1)),
    "simple namespace": Shape(lambda: types.SimpleNamespace(a=[1]), lambda v: v.a.append(2)),
    "enum": Shape(lambda: Colour.BLUE, kept=lambda v: v is Colour.BLUE),
    "flag": Shape(lambda: Access.READ | Access.WRITE),
    "class by reference": Shape(lambda: Plan, kept=lambda v: v is Plan, read=nothing),
    "function by reference": Shape(lambda: add, kept=lambda v: v is add),
    "builtin function": Shape(lambda: len, kept=lambda v: v is len),
    "bound method": Shape(
        lambda: Cached().method, lambda v: v.__self__.numbers.append(4), same=lambda a, b: a() == b()
    ),
    "bound method of a list": Shape(
        lambda: [1].append, lambda v: v(2), same=lambda a, b: a.__self__ == b.__self__
    ),
    "closure": Shape(make_closure, lambda v: v(), same=lambda a, b: a.__closure__ == b.__closure__),
    "lambda": Shape(lambda: lambda x: x + 1, same=lambda a, b: a(3) == b(3) == 4),
    "partial": Shape(
        lambda: functools.partial(add, 1), lambda v: v.keywords.update(b=2),
        same=lambda a, b: a.keywords == b.keywords
    ),
    "defaultdict": Shape(lambda: collections.defaultdict(list, a=[1]), lambda v: v["new"].append(1)),
    "defaultdict read of a missing key": Shape(lambda: collections.defaultdict(int), lambda v: v["seen"]),
    "defaultdict of lambda": Shape(
        lambda: collections.defaultdict(lambda: 5, a=1), lambda v: v["new"],
        same=lambda a, b: dict(a) == dict(b)
    ),
    "ordered dict": Shape(
        lambda: collections.OrderedDict(a=1, b=2), lambda v: v.move_to_end("a"),
        same=lambda a, b: list(a) == list(b)
    ),
    "counter": Shape(lambda: collections.Counter("banana"), lambda v: v.update("a")),
    "deque": Shape(lambda: collections.deque([1, 2], maxlen=3), lambda v: v.extend([3, 4])),
    "chain map": Shape(lambda: collections.ChainMap({"a": 1}, {"b": 2}), put("c", 3)),
    "array": Shape(lambda: array.array("d", [1.5, 2.5]), lambda v: v.append(3.5)),
    "long array": Shape(lambda: array.array("q", range(5000)), put(2500, -1)),
    "datetime": Shape(lambda: datetime.datetime(2024, 2, 29, 12, 30, 0, 5, datetime.UTC)),
    "naive datetime": Shape(
        lambda: datetime.datetime(2024, 2, 29, fold=1),
        same=lambda a, b: (a, a.fold) == (b, b.fold)
    ),
    "date": Shape(lambda: datetime.date(1, 1, 1)),
    "timedelta": Shape(lambda: datetime.timedelta(days=-1, microseconds=1)),
    "decimal": Shape(lambda: decimal.Decimal("1.10"), same=lambda a, b: str(a) == str(b)),
    "fraction": Shape(lambda: fractions.Fraction(1, 3)),
    "uuid": Shape(lambda: uuid.UUID(int=7)),
    "path": Shape(lambda: pathlib.PurePosixPath("/a/b")),
    "exception": Shape(
        lambda: ValueError("bad", 1), lambda v: v.add_note("n"),
        same=lambda a, b: (a.args, getattr(a, "__notes__", 0)) == (b.args, getattr(b, "__notes__", 0))
    ),
    "recursive list": Shape(
        recursive_list, lambda v: v.append(2),
        same=lambda a, b: a[0] == b[0] and len(a) == len(b),
        kept=lambda v: v[1] is v
    ),
    "recursive object": Shape(
        recursive_object,
        setter("goal", "other"),
        same=lambda a, b: a.goal == b.goal,
        kept=lambda v: v.steps[0] is v,
        read=nothing,
    ),
    "shared references": Shape(
        shared,
        lambda v: v["b"].append("more"),
        kept=lambda v: v["a"] is v["b"] is v["pair"][0] is v["pair"][1],
    ),
    "graph of identity-hashed objects": Shape(
        graph,
        lambda v: v[0].neighbours.add(v[0]),
        same=lambda a, b: (
            [{n.name for n in x.neighbours} for x in a]
            == [{n.name for n in x.neighbours} for x in b]
        ),
        kept=lambda v: all(any(n is m for m in v) for x in v for n in x.neighbours),
    ),
    "numpy scalar": Shape(lambda: np.float32(1.5)),
    "numpy array": Shape(lambda: np.arange(10), put(0, 9), same=arrays),
    "long numpy array": Shape(lambda: np.arange(100_000.0), put(70_000, -1.0), same=arrays),
    "empty numpy array": Shape(lambda: np.empty((0, 3)), same=arrays),
    "numpy view": Shape(view_of_array, put((3, 3), -1.0), same=arrays),
    "fortran array": Shape(
        fortran, put((5, 5), -1.0),
        same=arrays,
        kept=lambda v: v.flags.f_contiguous and not v.flags.c_contiguous
    ),
    "two views of one array": Shape(
        lambda: (lambda a: {"all": a, "rows": a[2:4]})(np.zeros((10, 300))),
        lambda v: v["all"].fill(1),
        same=lambda a, b: arrays(a["all"], b["all"]),  # pickle itself parts the two
    ),
    "one array twice": Shape(
        lambda: (lambda a: [a, a])(np.zeros(3000)),
        lambda v: v[0].fill(1),
        same=lambda a, b: arrays(a[0], b[0]) and arrays(a[1], b[1]),
        kept=lambda v: v[0] is v[1],
    ),
    "array of objects": Shape(
        lambda: np.array([{"a": 1}, "b", None], dtype=object), lambda v: v[0].update(a=2), same=arrays
    ),
    "read-only array": Shape(read_only_array, same=arrays, kept=lambda v: not v.flags.writeable),
    "array over a memoryview": Shape(over_memoryview, put(5, 200), same=arrays),
    "masked array": Shape(masked, lambda v: v.__setitem__(1, np.ma.masked), same=masked_arrays),
    "structured array": Shape(structured, put((4), (9, "nine", (1.0, 2.0))), same=arrays),
    "record array": Shape(
        lambda: np.rec.array([(1, 2.0), (3, 4.0)], names="a,b"), lambda v: v.a.__setitem__(0, 7), same=arrays
    ),
    "data frame": Shape(frame, set_frame, same=frames, read=lambda v: (repr(v), v.describe(), v["x"].sum())),
    "data frame with a new column": Shape(
        frame, lambda v: v.insert(0, "new", 1),
        same=frames,
        read=lambda v: v.groupby("kind", observed=True)["n"].sum()
    ),
    "series": Shape(
        lambda: pd.Series([1.0, None, 3.0], index=["a", "b", "c"], name="s"),
        lambda v: v.__setitem__("b", 2.0),
        same=lambda a, b: bool(a.equals(b)) and a.name == b.name,
    ),
    "index": Shape(
        lambda: pd.MultiIndex.from_product([["a", "b"], [1, 2]]),
        same=lambda a, b: bool(a.equals(b))
    ),
    "mixture": Shape(
        lambda: {
            "plan": Plan("mix", ["a"]),
            "seen": {"x", "y", "z"},
            "data": [np.arange(2000.0), (Colour.RED, {"deep": [bytearray(b"q")]})],
            "queue": collections.deque([Slotted(1, [])]),
        },
        lambda v: v["data"][1][1]["deep"][0].extend(b"!"),
        same=lambda a, b: (
            (a["plan"], a["seen"], a["data"][1], a["queue"])
            == (b["plan"], b["seen"], b["data"][1], b["queue"])
            and arrays(a["data"][0], b["data"][0])
        ),
    ),
}  # fmt: skip

EDITABLE = [name for name, shape in SHAPES.items() if shape.edit is not None]
