"""Shapes of values that the zoo has not, in rows as the zoo has them: `source || edit || view`.

The edit changes `v` in place; a value that cannot be edited has none. The view makes something comparable of
`v`, with the identities inside it.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd

sys.path.append(str(Path(__file__).parents[1] / "zoo"))

import journey
from kinds_of_values import Kind, edit, kinds, make, view

T = TypeVar("T")

ROWS = """
(1 << 64) - 1
-(1 << 63) - 1
-0.0 || || repr(v)
float('nan') || || repr(v)
complex(1, -0.0) || || repr(v)
'wörd ' * 30_000
''
'a\\ud800b\\udfff'
'\\ud800' * 40_000
b''
bytes(range(256)) * 300
bytearray() || v.append(1)
bytearray(range(256)) * 400 || v[50_000] = 7
[] || v.append(None)
[''.join(['wo', 'rd']) for _ in range(50)] || v.append('word')
[[[1]], [[2]]] || v[1][0].append(3)
{'b': 1, 'a': 2} || v.update(b=v.pop('b')) || list(v.items())
{1: 'int', (1, 2): 'tuple', None: 'none', 2.5: 'float', frozenset({1}): 'set'} || v[b'x'] = 1
{f'word {i}' for i in range(100)} || v.discard('word 3')
{value_shapes.Colour.RED, value_shapes.Colour.BLUE} || v.remove(value_shapes.Colour.RED)
{('a', i, f'{i}') for i in range(60)} || v.add(('b', 0, '0'))
frozenset(f'word {i}' for i in range(100))
{f'k{i}': {f'a{i}', f'b{i}', 'c', 'd'} for i in range(30)} || v['k7'].add('new')
value_shapes.Point(1, [2]) || v.y.append(3)
value_shapes.Plan('g') || v.goal = 'h'
value_shapes.Frozen('n', ['t']) || v.tags.append('u')
value_shapes.Slotted(1, [2]) || v.x = 5
value_shapes.WithGetstate() || v.items.append('two') || (v.items, v.lookup())
value_shapes.WithReduce(1) || v.number = 2 || vars(v)
value_shapes.WithNewargs(1, 2) || v.extra.append(1) || (v, v.extra)
value_shapes.Box[list[int]]([1]) || v.item.append(2) || vars(v)
value_shapes.Words(['a']) || v.language = 'fr' || (v, vars(v))
value_shapes.Table() || v['k'] = 1 || (v, vars(v))
value_shapes.Colour.BLUE || || v is value_shapes.Colour.BLUE
value_shapes.Cached().method || v.__self__.numbers.append(4) || v()
value_shapes.make_closure() || v() || v.__closure__
len
[1].append || v(2) || v.__self__
functools.partial(value_shapes.add, 1) || v.keywords.update(b=2) || v.keywords
collections.defaultdict(int) || v['seen']
collections.defaultdict(lambda: 5, a=1) || v['new'] || dict(v)
array.array('q', range(5000)) || v[2500] = -1
datetime.datetime(2024, 2, 29, fold=1) || || (v, v.fold)
ValueError('bad', 1) || v.add_note('n') || (v.args, getattr(v, '__notes__', 0))
value_shapes.recursive_list() || v.append(2) || (v[0], len(v), v[1] is v)
value_shapes.recursive_object() || v.goal = 'other' || (v.goal, v.steps[0] is v)
value_shapes.shared() || v['b'].append('more') || (v, v['a'] is v['b'] is v['pair'][0] is v['pair'][1])
value_shapes.graph() || v[0].neighbours.add(v[0])
    || [({n.name for n in x.neighbours}, all(any(n is m for m in v) for n in x.neighbours)) for x in v]
numpy.arange(100_000.0) || v[70_000] = -1.0 || v.tolist()
numpy.empty((0, 3)) || || (v.shape, v.dtype)
numpy.arange(4000.0).reshape(50, 80)[5:45:2, ::3] || v[3, 3] = -1.0 || v.tolist()
numpy.asfortranarray(numpy.arange(3000.0).reshape(60, 50)) || v[5, 5] = -1.0
    || (v.tolist(), v.flags.f_contiguous, v.flags.c_contiguous)
(lambda a: {'all': a, 'rows': a[2:4]})(numpy.zeros((10, 300))) || v['all'].fill(1) || v['all'].tolist()
(lambda a: [a, a])(numpy.zeros(3000)) || v[0].fill(1) || (v[1].tolist(), v[0] is v[1])
value_shapes.read_only_array() || || (v.tolist(), v.flags.writeable)
numpy.frombuffer(memoryview(bytearray(range(256)) * 16), dtype='u1') || v[5] = 200 || v.tolist()
value_shapes.masked() || v[1] = numpy.ma.masked || (v.mask.tolist(), v.filled().tolist(), v.fill_value)
value_shapes.structured() || v[4] = (9, 'nine', (1.0, 2.0)) || (v.tolist(), v.dtype)
numpy.rec.array([(1, 2.0), (3, 4.0)], names='a,b') || v.a[0] = 7 || (v.tolist(), v.dtype)
value_shapes.frame() || v.loc[3, 'x'] = 42.0 || (v.to_csv(), list(v.dtypes))
value_shapes.frame() || v.insert(0, 'new', 1) || (v.to_csv(), list(v.dtypes))
pandas.Series([1.0, None, 3.0], index=['a', 'b', 'c'], name='s') || v['b'] = 2.0 || (v.to_csv(), v.name)
value_shapes.mixture() || v['data'][1][1]['deep'][0].extend(b'!') || str(v)
"""


def _kind(row: str) -> Kind:
    source, change, shown = (part.strip() for part in (*row.split("||"), "", "")[:3])
    return Kind(source, change, shown or "v", False, "")


SHAPES = {row: _kind(row) for row in ROWS.strip().replace("\n    ", " ").splitlines()}
EDITABLE = [name for name, shape in SHAPES.items() if shape.edit]
USUAL = ("standard", "numpy", "pandas")
# numpy warns of its matrices.
ZOO = [kind for kind in kinds() if kind.package in USUAL and not kind.refused and "matrix" not in kind.source]
ALL = [*SHAPES.values(), *ZOO]


def same(shape: Kind, one: Any, other: Any) -> bool:
    """Whether two values of this shape are of one type and look alike."""
    return type(one) is type(other) and journey.same(view(shape, one), view(shape, other))


__all__ = ["ALL", "EDITABLE", "SHAPES", "edit", "make", "same", "view"]


@dataclass
class Plan:
    goal: str
    steps: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    name: str
    tags: list[str]


@dataclass(slots=True)
class Slotted:
    x: int
    y: list[int]


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
    plan.steps.append(plan)
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
    columns = {
        "n": np.arange(500),
        "x": np.linspace(0, 1, 500),
        "name": [f"row {i}" for i in range(500)],
        "when": pd.date_range("2024-01-01", periods=500, freq="h"),
        "kind": pd.Categorical(["a", "b"] * 250),
    }
    return pd.DataFrame(columns)


def masked() -> Any:
    return np.ma.array(np.arange(2000.0), mask=[i % 3 == 0 for i in range(2000)], fill_value=-1.0)


def structured() -> Any:
    value = np.zeros(300, dtype=[("id", "i4"), ("name", "U8"), ("xy", "f8", (2,))])
    value["id"] = range(300)
    return value


def read_only_array() -> Any:
    value = np.arange(1000.0)
    value.flags.writeable = False
    return value


def mixture() -> dict[str, Any]:
    return {
        "plan": Plan("mix", ["a"]),
        "data": [np.arange(2000.0), (Colour.RED, {"deep": [bytearray(b"q")]})],
        "slotted": [Slotted(1, [])],
    }
