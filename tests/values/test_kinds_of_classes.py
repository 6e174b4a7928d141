"""The kinds of classes that programs define in `__main__`: each is read with and without its class.

A row is the source of classes, and ends with `== value || use`: the use makes something comparable of the
value `v`. A row whose library is not installed is skipped.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from vstate import Versioned
from vstate.values import builders

ROWS = """
class Plain:
    limit, names = 3, {"a": [1]}
    def __init__(self): self.x = 1
    def run(self): return self.x, self.limit, self.names, helper(2)
    class Inner:
        def name(self): return type(self).__qualname__
def helper(n): return n if n < 1 else helper(n - 1)
== Plain() || (v.run(), v.Inner().name())

class Slots:
    __slots__ = ("a", "__b", "__weakref__")
    def __init__(self): self.a, self.__b = 1, 2
    def both(self): return self.a, self.__b
== Slots() || (v.both(), hasattr(v, "__dict__"))

class Caching:
    @functools.cached_property
    def size(self): return 3
    @functools.lru_cache(maxsize=7, typed=True)
    def double(self, number): return number * 2
@functools.cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
== [Caching(), fib]
|| (v[0].size, v[0].double(4), type(v[0]).double.cache_parameters(), v[1](30), v[1].cache_info().currsize)

@dataclass(slots=True)
class Slotted:
    a: int
    b: list = field(default_factory=lambda: [1])
== Slotted(1) || (v, type(v)(2), hasattr(v, "__dict__"))

@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    limit: ClassVar[int] = 3
    i: InitVar[int] = 4
class Attributed(Frozen): pass
def attributed(made):
    object.__setattr__(made, "more", 9)
    return made
== [Frozen(1), attributed(Attributed(2))]
|| (v, hash(v[0]) == hash(type(v[0])(1)), v[0].limit, v[1].more)

@dataclass(kw_only=True, order=True)
class Ordered:
    a: int = 0
    limit: ClassVar[int] = 3
    i: InitVar[int] = 4
    def __post_init__(self, i): self.a += i
== Ordered() || (v, type(v)(a=5) > v, [f.name for f in fields(v)])

class Pair(NamedTuple):
    a: int
    b: str = "q"
    def total(self): return self.a
class Triple(Pair):
    def __init__(self, a):
        if a < 0: raise ValueError(a)
    def total(self): return super().total() + 1
== [Pair(1), Triple(2)._replace(a=-2)] || (v, [p.total() for p in v], type(v[0])(4), v[0]._replace(a=3))

Point = namedtuple("Point", "x y", defaults=[3])
== Point(1) || (v, type(v)(4))

class Movie(TypedDict, total=False): name: str
class Sequel(Movie): number: int
class Shop:
    stock: Movie
    def new(self): return Sequel(name="x", number=2)
== [Shop(), Movie, Sequel] || (v[0].new(), v[1].__total__, sorted(v[2].__optional_keys__), v[2].__total__)

T = TypeVar("T")
class Box(Generic[T]):
    def __init__(self, value: T): self.value = value
class Crate(Box[int]): pass
== [Box(1), Box[int](2), Crate(3)]
|| ([b.value for b in v], type(v[0])[str]("x").value, v[1].__orig_class__.__args__)

class Sized2(Protocol):
    def size(self) -> int: ...
@runtime_checkable
class Named2(Protocol):
    def name(self) -> str: ...
class Both(Sized2):
    def size(self): return 2
    def name(self): return isinstance(self, Named2)
== Both() || (v.size(), v.name(), isinstance(3, type(v).__mro__[1].__class__))

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
    @property
    @abc.abstractmethod
    def name(self): ...
class Square(Shape):
    def area(self): return 4
    @property
    def name(self): return isinstance(self, Shape) and isinstance(3, Shape)
Shape.register(int)
== Square() || (v.area(), v.name, len(type(v).__mro__[1].__abstractmethods__))

class Colour(enum.Enum):
    RED = 1
    BLUE = enum.auto()
    CRIMSON = 1
    def shout(self): return self.name + "!"
== Colour.RED || (v.shout(), [m.name for m in type(v)], type(v)["CRIMSON"] is v, type(v)(2).name)

class Planet(enum.Enum):
    EARTH = (6, 2)
    MARS = (3, 1)
    def __init__(self, mass, radius): self.mass, self.radius = mass, radius
    @property
    def density(self): return self.mass / self.radius
== Planet.EARTH || (v.density, v.value, type(v)((3, 1)).mass)

class Coded(str, enum.Enum):
    A = "a", 1
    B = "b", 2
    def __new__(cls, text, number):
        self = str.__new__(cls, text)
        self._value_, self.number = number, number * 10
        return self
== Coded.A || (v == "a", v.number, type(v)(2).number, type(v)(2) == "b")

class Described(enum.Enum):
    def __init__(self, text): self.text = text
class Level(Described): LOW = "low"
== Level.LOW || (v.text, v.value, type(v).__mro__[1].__name__)

class Pairs(tuple, enum.Enum): A, B = (1, 2), ((3,),)
class Day(datetime.date, enum.Enum): A = 2020, 1, 2
class Wait(datetime.timedelta, enum.Enum): SHORT = 1
class Price(decimal.Decimal, enum.Enum): LOW = "1.5"
class Hex(int, enum.Enum): A = "ff", 16
class Spot(namedtuple("Place", "x y"), enum.Enum):
    A = 1, 2
    def sum(self): return self.x + self.y
@dataclass
class Body: mass: int
class Star(Body, enum.Enum): SUN = 3
== [Pairs.A, Pairs.B, Day.A, Wait.SHORT, Price.LOW, Hex.A, Spot.A, Star.SUN]
|| (v, v[2].year, v[3] * 2, v[4] + 1, v[5] + 1, v[6].sum(), v[7].mass, type(v[7])(v[7].value) is v[7])

class Right(enum.Flag):
    READ = 1
    WRITE = 2
    ALL = 3
class Bits(enum.IntFlag): A, B = 1, 2
class Word(enum.StrEnum): HELLO = enum.auto()
class Size(enum.IntEnum): S, SMALL = 1, 1
== [Right.READ | Right.WRITE, ~Right.READ, Bits.A | Bits.B, Word.HELLO, Size.SMALL]
|| (v, v[0].name, v[2] == 3, v[3] + "!", v[4] + 1)

class Meta(type):
    def __new__(meta, name, bases, body, **options):
        made = super().__new__(meta, name, bases, body)
        made.made = body["table"]
        return made
    def hello(cls): return cls.made + "?"
class WithMeta(metaclass=Meta):
    table = "t"
    def run(self): return type(self).hello()
class WithMore(WithMeta, option=3):
    table = "u"
    def run(self): return super().run() + "!"
== [WithMeta(), WithMore()] || [w.run() for w in v]

class Plugin:
    known = []
    def __init_subclass__(cls, /, tag, **options):
        super().__init_subclass__(**options)
        cls.tag = tag
        cls.known.append(tag)
class First(Plugin, tag="first"): pass
== First() || (v.tag, v.known)

import msgspec
class Struct(msgspec.Struct):
    a: int
    b: list = msgspec.field(default_factory=list)
    c: str = msgspec.field(default="x", name="see")
    def double(self): return self.a * 2
class Tagged(Struct, tag="t", frozen=True, order=True, kw_only=True):
    d: dict = {}
    e: "Tagged | None" = None
    def double(self): return super().double() + 1
class Base(msgspec.Struct, Generic[T], tag=True, forbid_unknown_fields=True): value: T
class WithDict(msgspec.Struct, dict=True): a: int
def with_more(made):
    made.more = 5
    return made
== [Struct(1), Tagged(1, e=Tagged(2)), Base(3), with_more(WithDict(1))]
|| (v, v[3].more, [s.double() for s in v[:2]], type(v[0])(4, c="y"), __import__("msgspec").json.encode(v),
v[1].__struct_config__.frozen, type(v[1])(1, d={1: 2}) == v[1])

import attrs
@attrs.define
class Attrs:
    a: int
    b: list = attrs.field(factory=list, validator=attrs.validators.instance_of(list))
    def name(self): return __class__.__name__
@attrs.define
class More(Attrs):
    c: int = 3
    def name(self): return super().name() + "!"
@attrs.frozen
class Fixed: a: int = attrs.field(converter=int)
@attrs.define(slots=False)
class Loose: a: int
@attrs.define(slots=False)
class Looser(Attrs): c: int = 3
def loosened(made):
    made.more = 5
    return made
== [Attrs(1), More(2), Fixed("3"), Loose(4), loosened(Looser(5))]
|| (v, v[4].more, v[1].name(),
hash(v[2]) == hash(type(v[2])(3)), type(v[0])(1) == v[0], v[3] == type(v[3])(4))

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel
from pydantic import computed_field, field_validator, model_validator
class Model(BaseModel):
    model_config = ConfigDict(frozen=True)
    a: int
    _hidden: int = PrivateAttr(default=4)
    kids: "list[Model]" = []
    @field_validator("a")
    @classmethod
    def check(cls, value): return abs(value)
    @model_validator(mode="after")
    def whole(self): return self
    @computed_field
    @property
    def twice(self) -> int: return self.a * 2
class Cat(BaseModel): kind: Literal["cat"] = "cat"
class Dog(BaseModel): kind: Literal["dog"] = "dog"
class Zoo(BaseModel): pet: Cat | Dog = Field(discriminator="kind")
class Generous(BaseModel, Generic[T]): x: T
class Numbers(RootModel[list[int]]): pass
== [Model(a=-1, kids=[Model(a=2)]), Zoo(pet=Dog()), Generous[int](x=1), Generous(x="y"), Numbers([1])]
|| (v, type(v[0])(a="-3"), v[0]._hidden, v[0].model_dump_json(),
type(v[1]).model_validate({"pet": {"kind": "cat"}}), type(v[2])(x="5"), type(v[4])(["2"]))

from pydantic import BaseModel
class Item(BaseModel):
    x: int
    kid: "Item | None" = None
Item.model_rebuild()
Numbered = Item
class Item(BaseModel):
    x: str
    kid: "Item | None" = None
Item.model_rebuild()
def make(kind):
    class Local(BaseModel):
        x: kind
        kid: Optional["Local"] = None
    Local.model_rebuild(_types_namespace={"Local": Local})
    return Local
class Order(BaseModel):
    a: Numbered
    b: Item
    c: make(int)
    d: make(str)
== Order(a=Numbered(x=1), b=Item(x="q"), c={"x": 1}, d={"x": "t"})
|| type(v).model_validate({k: {"x": w, "kid": {"x": w}} for k, w in zip("abcd", (1, "t", 2, "u"))})

import pydantic.dataclasses
@pydantic.dataclasses.dataclass
class Checked: a: int
== Checked(1) || (v, type(v)("3"))
"""

PRELUDE = """
import abc, datetime, decimal, enum, functools
from collections import namedtuple
from dataclasses import InitVar, dataclass, field, fields
from typing import ClassVar, Generic, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar
from typing import runtime_checkable
T = TypeVar("T")
"""

KINDS: dict[str, tuple[str, str, str]] = {}
"""By the first class of a row: the source, the value, and the use."""
for row in ROWS.strip().split("\n\n"):
    source, _, last = row.partition("\n== ")
    value, _, use = last.partition("|| ")
    KINDS[value.strip("[").partition("(")[0].partition(".")[0]] = source, value, use


def program(name: str, source: str) -> dict[str, Any]:
    """The names of another program: this process forgets which classes it stored or loaded by value."""
    builders.by_id.clear()
    builders.undefined_classes.clear()
    made = sys.modules[name] = types.ModuleType(name)
    exec(PRELUDE + source, vars(made))
    return vars(made)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "Order"])
def test_a_kind_of_class(name: str) -> None:
    """An object works in a program that lacks its class, and is of the class of one that has it; reading an
    object makes no commit.
    """
    source, value, use = KINDS[name]
    before, state = sys.modules["__main__"], Versioned()
    try:
        writer = program("__main__", source)
        state["v"] = eval(value, writer)
        state.commit()
        written = repr(eval(use, {**writer, "v": state["v"]}))
        sys.modules["__main__"] = types.ModuleType("__main__")
        for reader in ("elsewhere", "__main__"):
            names = program(reader, source)  # the use has classes of its own
            state = Versioned(state.store)
            assert repr(eval(use, {**names, "v": state["v"]})) == written
            assert state.commit() is None
        assert type(state["v"]) is type(eval(value, names))
    except ImportError as error:
        pytest.skip(f"needs {error.name}")
    finally:
        sys.modules["__main__"] = before
        sys.modules.pop("elsewhere", None)


@pytest.mark.slow
def test_classes_of_one_name(run_python: Any, tmp_path: Path) -> None:
    """Classes of pydantic of one name stay apart in the process that reads them."""
    source, value, use = KINDS["Order"]
    texts = []
    for script in (f"{PRELUDE}{source}\nstate['v'] = {value}\nstate.commit()", ""):
        store = f"from vstate import Disk, Versioned\nstate = Versioned(Disk({str(tmp_path)!r}))\n"
        texts.append(run_python(f"{store}{script}\nv = state['v']\nprint({use})"))
    assert texts[0] == texts[1] != ""
