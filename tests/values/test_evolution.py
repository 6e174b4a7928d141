"""Stored objects whose classes were moved, renamed or given other fields since."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import pytest

from vstate import CannotLoad, InvalidInput, KeyNotFound, Memory, Versioned, renamed, upgrade
from vstate.values import evolution
from vstate.values.pickling import loads

BEFORE = """
from dataclasses import dataclass, field
from enum import Enum
class Plain:
    def __init__(self): self.goal = "go"
class Slotted:
    __slots__ = ("first", "second")
    def __init__(self): self.first, self.second = 1, 2
@dataclass
class Plan:
    goal: str
    class Step:
        pass
@dataclass(slots=True)
class Narrow:
    goal: str
@dataclass
class Empty:
    pass
class Colour(Enum):
    RED = 1
def double(x): return 2 * x
"""

GAINED = "    tags: list = field(default_factory=list)\n    size: int = 3\n"
AFTER = (
    ("import uuid" + BEFORE)
    .replace('self.goal = "go"', 'self.goal, self.owner = "go", "nobody"')
    .replace('("first", "second")\n    def __init__(self): self.first, self.second = 1, 2', '("total",)')
    .replace("    goal: str\n", "    goal: str\n" + GAINED)
    .replace("    class Step", "    id: object = field(default_factory=uuid.uuid4)\n    class Step")
    .replace("class Empty:\n    pass", "class Empty:\n" + GAINED)
)


def module(name: str, source: str) -> ModuleType:
    """A module with this source, as if it were a file."""
    made = sys.modules[name] = ModuleType(name)
    exec(source, made.__dict__)
    return made


@pytest.fixture
def old() -> Iterator[ModuleType]:
    """The module `evolving` as it was; names and fields that a test announces are forgotten."""
    tables: list[dict[str, Any]] = [evolution._names, evolution._upgrades]
    before = [dict(table) for table in tables]
    yield module("evolving", BEFORE)
    for name in [name for name in sys.modules if name.startswith("evolving")]:
        del sys.modules[name]
    for table, then in zip(tables, before, strict=True):
        table.clear()
        table.update(then)


def stored(**values: Any) -> Memory:
    """A store with these values."""
    store = Memory()
    with Versioned(store) as state:
        state.update(values)
        state.commit("before")
    return store


def test_defaults_of_gained_fields(old: ModuleType) -> None:
    """A field that a class gained has its default, in every object of a value, and reading is no change."""
    plans = [old.Plan("a"), {"deep": (old.Plan("b"),)}]
    store = stored(plans=plans, narrow=old.Narrow("c"), empty=old.Empty(), other=1)
    new = module("evolving", AFTER)
    first, second = Versioned(store), Versioned(store)
    for state in (first, second):
        plan, inside = state["plans"][0], state["plans"][1]["deep"][0]
        assert (plan.goal, plan.tags, plan.size) == ("a", [], 3)
        assert vars(inside).keys() == {"goal", "tags", "size", "id"}
        assert (state["narrow"].goal, state["narrow"].tags, state["narrow"].size) == ("c", [], 3)
        assert state["empty"].tags == []
        assert isinstance(plan, new.Plan)
        assert not state.status()
    assert first.commit("only read") is None
    first["narrow"].tags.append("x")
    assert first.status().modified == ["narrow"]
    first.commit("edited")
    second["other"] = 2
    second.commit("beside")  # a key that both only read is no conflict
    assert Versioned(store)["narrow"].tags == ["x"]
    assert Versioned(store).checkout("HEAD~1")["plans"][0].tags == []


def test_a_class_that_was_renamed(old: ModuleType) -> None:
    """Objects, nested classes, members of enumerations and functions load under the present name."""
    store = stored(plan=old.Plan("a"), step=old.Plan.Step(), colour=old.Colour.RED, double=old.double)
    del sys.modules["evolving"]
    with pytest.raises(CannotLoad, match=r"evolving\.Plan"):
        Versioned(store)["plan"]
    new = module("evolving_now", BEFORE)
    renamed("evolving", "evolving_now")
    state = Versioned(store)
    assert type(state["plan"]) is new.Plan
    assert type(state["step"]) is new.Plan.Step
    assert state["colour"] is new.Colour.RED
    assert state["double"] is new.double
    assert state.commit("only read") is None


def test_names_follow_each_other(old: ModuleType) -> None:
    """A class that was renamed twice is found, a circle ends, and the class itself serves as its name."""
    store = stored(plan=old.Plan("a"))
    del sys.modules["evolving"]
    renamed("evolving.Plan", "evolving_a.Plan")
    renamed("evolving_a", "evolving_b")
    new = module("evolving_b", BEFORE)
    assert type(Versioned(store)["plan"]) is new.Plan
    renamed("evolving_b", "evolving_a")
    with pytest.raises(CannotLoad, match=r"evolving\.Plan was renamed"):
        Versioned(store)["plan"]
    renamed("evolving.Plan", new.Plan)
    assert type(Versioned(store)["plan"]) is new.Plan
    assert Versioned(store, allow=["evolving_b"])["plan"].goal == "a"
    with pytest.raises(CannotLoad, match="allow"):
        Versioned(store, allow=["evolving"])["plan"]


def test_an_upgrade(old: ModuleType) -> None:
    """The fields of plain and of slotted objects go through the function before the class sees them."""
    store = stored(plain=[old.Plain(), old.Plain()], slotted=old.Slotted())
    module("evolving", AFTER)
    seen = []

    def add_owner(fields: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(fields))
        return {"owner": "me", **fields}

    upgrade("evolving.Plain", add_owner)

    def add_up(fields: dict[str, Any]) -> dict[str, Any]:
        return fields if "total" in fields else {"total": fields["first"] + fields["second"]}

    upgrade(sys.modules["evolving"].Slotted, add_up)
    for allow in (None, ["evolving"]):
        state = Versioned(store, allow=allow)
        assert [(plain.goal, plain.owner) for plain in state["plain"]] == [("go", "me")] * 2
        assert state["slotted"].total == 3
        assert state.commit("only read") is None
    assert seen[0] == {"goal": "go"}
    state = Versioned(store)
    state["plain"][0].owner = "you"
    state.commit("edited")
    assert [plain.owner for plain in Versioned(store)["plain"]] == ["you", "me"]
    assert [plain.owner for plain in Versioned(store).checkout("HEAD~1")["plain"]] == ["me", "me"]


def test_an_upgrade_that_fails(old: ModuleType) -> None:
    """The error of the function names the class, and the stored bytes stay."""
    store = stored(plain=old.Plain())
    upgrade("evolving.Plain", lambda fields: {"owner": fields["nobody"]})
    with pytest.raises(CannotLoad, match=r"evolving\.Plain.*KeyError"):
        Versioned(store)["plain"]
    renamed("evolving.Plan", "evolving.Plain", upgrade=list)  # type: ignore[arg-type]
    with pytest.raises(CannotLoad, match="returned a list"):
        Versioned(store)["plain"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a b", "c"), InvalidInput),
        (("a", ""), InvalidInput),
        (("a.b", "a.b"), InvalidInput),
        ((dict, "a"), TypeError),
        (("a", 7), TypeError),
    ],
)
def test_names_that_are_refused(arguments: tuple[Any, Any], error: type[Exception]) -> None:
    """Text that is no name, a name for itself, and anything but a class are refused at once."""
    with pytest.raises(error):
        renamed(*arguments)


def test_a_key_that_gained_a_field(old: ModuleType) -> None:
    """An object that is a key, or a member of a set, has its new fields before its hash is needed."""
    source = (
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass Key:\n    a: int\n"
    )
    key = module("evolving", source).Key(1)
    store = stored(table={key: 2}, members={key})
    new = module("evolving", source + "    b: int = 5\n")
    for allow in (None, ["evolving"]):
        state = Versioned(store, allow=allow)
        assert state["table"] == {new.Key(1): 2}
        assert new.Key(1, 5) in state["members"]
        assert state.commit("only read") is None


def test_a_private_attribute_of_a_model(old: ModuleType) -> None:
    """A model of pydantic gets the private attributes that it gained, and keeps those that it has."""
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    source = "from pydantic import BaseModel, PrivateAttr\nclass Model(BaseModel):\n    a: int\n"
    store = stored(model=module("evolving", source).Model(a=1))
    source += "    _first: int = PrivateAttr(7)\n"
    module("evolving", source)
    state = Versioned(store)
    assert state["model"]._first == 7
    state["model"]._first = 8
    state.commit("edited")
    module("evolving", source + "    _second: list = PrivateAttr(default_factory=list)\n")
    model = Versioned(store)["model"]
    assert (model._first, model._second) == (8, [])


@pytest.mark.parametrize("library", ["pydantic", "attrs"])
def test_defaults_of_libraries(library: str, old: ModuleType) -> None:
    """Models of pydantic and classes of attrs get the defaults of fields that they gained."""
    name = {"pydantic": "pydantic", "attrs": "attr"}[library]
    pytest.importorskip(name, reason=f"{library} is not installed")
    sources = {
        "pydantic": (
            "import pydantic\nclass Model(pydantic.BaseModel):\n    goal: str\n",
            "    tags: list[str] = []\n    ids: list[int] = pydantic.Field(default_factory=lambda: [1])\n",
        ),
        "attrs": (
            "import attr\n@attr.define\nclass Model:\n    goal: str\n",
            "    tags: list = attr.Factory(list)\n    ids: list = attr.ib(factory=lambda: [1])\n",
        ),
    }
    before, more = sources[library]
    store = stored(model=[module("evolving", before).Model(goal="a")])
    module("evolving", before + more)
    state = Versioned(store)
    (model,) = state["model"]
    assert (model.goal, model.tags, model.ids) == ("a", [], [1])
    assert state.commit("only read") is None
    model.tags.append("x")
    assert state.commit("edited") is not None
    assert Versioned(store)["model"][0].tags == ["x"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pathlib._local.PurePosixPath", "pathlib.PurePosixPath"),
        ("re.PatternError", "re.error"),
        ("zipfile._path.CompleteDirs", "zipfile.CompleteDirs"),
        ("zipfile._path.Path", "zipfile.Path"),
    ],
)
def test_names_of_other_pythons(old: str, new: str) -> None:
    """A class that another Python has elsewhere in its standard library loads in each."""
    module, _, name = old.rpartition(".")
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    assert loads(b"\x80\x04" + texts + b"\x93.") is resolve_name(new)


KINDS = {
    "plain": "class A:\n  def __init__(self, x, y, z=7): self.x, self.y = x, y",
    "slots": "class A:\n  __slots__ = tuple(NAMES)\n  def __init__(self, x, y): self.x, self.y = x, y",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n  FIELDS",
    "frozen": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass A:\n  FIELDS",
    "slots dataclass": "from dataclasses import dataclass\n@dataclass(slots=True)\nclass A:\n  FIELDS",
    "frozen slots": "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass A:\n  FIELDS",
    "NamedTuple": "from typing import NamedTuple\nclass A(NamedTuple):\n  FIELDS",
    "attrs": "import attrs\n@attrs.define(slots=False)\nclass A:\n  FIELDS",
    "attrs slots": "import attrs\n@attrs.define\nclass A:\n  FIELDS",
    "attrs frozen": "import attrs\n@attrs.frozen\nclass A:\n  FIELDS",
    "pydantic": "import pydantic\nclass A(pydantic.BaseModel):\n  FIELDS",
    "msgspec": "import msgspec\nclass A(msgspec.Struct):\n  FIELDS",
    "slots, dict": "class A:\n  __slots__ = ('x', '__dict__')",
    "generic": "import pydantic, typing\nclass G(pydantic.BaseModel, typing.Generic[typing.TypeVar('T')]):\n"
    "  FIELDS\nA = G[int]",
    "dict": "class A(dict):\n  def __init__(self, x, y): self.x, self.y = x, y",
    "list": "class A(list):\n  def __init__(self, x, y): self.x, self.y = x, y",
}
"""Classes with two fields, by the kind of class. A kind without defaults has no place for them."""

KEEP = {"plain", "dataclass", "frozen", "attrs", "pydantic", "dict", "list"}
"""The kinds whose objects keep a field that their class does not have."""

FILL = KINDS.keys() - {"plain", "slots", "dict", "list"}
"""The kinds that know the default of a field."""


def kind_of(kind: str, *fields: str) -> Any:
    """The class A of the module `evolving`, of this kind and with these fields."""
    if kind.split()[0] in ("attrs", "pydantic", "msgspec"):
        pytest.importorskip(kind.split()[0], reason="the library is not installed")
    names = repr([field.partition(":")[0] for field in fields])
    return module("evolving", KINDS[kind].replace("NAMES", names).replace("FIELDS", "\n  ".join(fields))).A


@pytest.mark.parametrize("allow", [None, ["evolving"]], ids=["any", "allowed"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("slots, dict", "generic")])
def test_fields_that_changed(kind: str, allow: Any, old: ModuleType) -> None:
    """Reordered fields keep their values, a new one has its default, and one that is gone is kept, or told.

    An upgrade gets the fields by name, whatever the kind.
    """
    made = kind_of(kind, "x: int", "y: int")
    store = stored(v=[made(x=1, y=2)])

    def read() -> Any:
        state = Versioned(store, allow=allow)
        assert state["v"] is state["v"]
        assert state.commit() is None
        return state["v"][0]

    kind_of(kind, "y: int", "x: int")
    assert (read().x, read().y) == (1, 2)
    kind_of(kind, "x: int", "y: int", "z: int = 7")
    assert getattr(read(), "z", 7) == 7
    assert (kind in FILL) == hasattr(read(), "z")
    kind_of(kind, "x: int")
    if kind in KEEP:
        state = Versioned(store, allow=allow)
        state["v"].append("an older program")
        state.commit()
        assert getattr(read(), "y", None) == 2 or kind == "pydantic"
    else:
        with pytest.raises(CannotLoad, match=r"evolving\.A|'y'"):
            read()
    seen = []
    upgrade("evolving.A", lambda fields: seen.append(dict(fields)) or {"x": fields["x"] + 10})  # type: ignore[func-returns-value]
    assert read().x == 11
    assert seen[0] == {"x": 1, "y": 2}
    upgrade(kind_of(kind, "new: int"), lambda fields: {"new": fields.get("x", 0)})
    assert read().new == 1


@pytest.mark.parametrize("allow", [None, ["evolving"]], ids=["any", "allowed"])
@pytest.mark.parametrize(
    "kinds",
    [
        ("plain", "slots"),
        ("slots", "plain"),
        ("slots", "dataclass"),
        *(
            (before, after)
            for before in ("dataclass", "frozen", "slots dataclass", "attrs")
            for after in ("frozen slots", "attrs slots")
        ),
        ("frozen slots", "dataclass"),
        ("attrs slots", "slots dataclass"),
    ],
)
def test_slots_that_came_or_went(kinds: tuple[str, str], allow: Any, old: ModuleType) -> None:
    """A class that gained slots, or lost them, loads its objects, with and without an upgrade."""
    before, after = kinds
    store = stored(v=kind_of(before, "x: int", "y: int")(1, 2))
    kind_of(after, "x: int", "y: int")
    for y in (2, 9):
        state = Versioned(store, allow=allow)
        assert (state["v"].x, state["v"].y) == (1, y)
        assert state.commit() is None
        upgrade("evolving.A", lambda fields: {"x": fields["x"], "y": 9})


@pytest.mark.parametrize(
    "kinds",
    [
        ("plain", "slots, dict"),
        ("dataclass", "pydantic"),
        ("pydantic", "dataclass"),
        ("pydantic", "frozen slots"),
        ("generic", "generic"),
    ],
)
def test_upgrades_to_another_kind(kinds: tuple[str, str], old: ModuleType) -> None:
    """An upgrade gives the fields to a class of another kind, and to a class made of a generic one."""
    before = kind_of(kinds[0], "x: int", "y: int = 2")
    store = stored(v=before(x=1, y=2))
    after = kind_of(kinds[1], "x: int", "y: int = 2")
    generic = vars(sys.modules["evolving"]).get("G")
    upgrade(generic or after, lambda fields: {**fields, "x": fields["x"] + 10})
    for allow in (None, None if generic else ["evolving"]):  # no list can name `G[int]`
        found = Versioned(store, allow=allow)["v"]
        assert (found.x, found.y) == (11, 2)


def test_an_upgrade_of_a_class_that_is_stored_by_value(old: ModuleType) -> None:
    """A class that no process can import has upgrades too, as a model of pydantic made of a generic one."""
    kind_of("generic", "x: int", "y: int = 2")
    generic = vars(sys.modules["evolving"])["G"]
    store = stored(v=generic[str](x=1), w=type("Made", (), {})())
    upgrade(generic, lambda fields: {**fields, "x": fields["x"] + 10})
    upgrade(f"{__name__}.Made", lambda fields: {"x": 5})
    assert (Versioned(store)["v"].x, Versioned(store)["w"].x) == (11, 5)


@pytest.mark.parametrize("base", ["Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"])
def test_members_of_an_enum(base: str, old: ModuleType) -> None:
    """An upgrade gets the value of a member, and returns the present one; without it an old value is told."""
    source = f"import enum\nclass A(enum.{base}):\n  ONE = VALUE\n"
    one, other = ("'a'", "'b'") if base in ("Enum", "StrEnum") else ("1", "4")
    store = stored(v={"k": module("evolving", source.replace("VALUE", one)).A.ONE})
    new = module("evolving", source.replace("VALUE", other)).A
    if base != "IntFlag":  # it takes any number
        with pytest.raises(CannotLoad, match=r"(?s)evolving\.A.*members have changed.*vstate\.upgrade"):
            Versioned(store)["v"]
    upgrade(new, lambda fields: {"value": new.ONE.value} if fields["value"] != new.ONE.value else fields)
    state = Versioned(store)
    assert state["v"]["k"] is new.ONE
    assert state.commit() is None
    state["v"]["more"] = 1
    state.commit()
    assert Versioned(store)["v"] == {"k": new.ONE, "more": 1}


NO_FIELDS = {
    "an exception": "class A(Exception): pass",
    "__reduce__": "class A:\n  def __reduce__(self): return A, ()",
    "__reduce_ex__": "class A:\n  def __reduce_ex__(self, protocol): return A, ()",
    "a deque": "import collections\nclass A(collections.deque): pass",
    "an ordered dict": "import collections\nclass A(collections.OrderedDict): pass",
    "a date": "import datetime\nclass A(datetime.date): pass",
    "__getnewargs__": "class A:\n  def __getnewargs__(self): return ()\n  def __getstate__(self): pass",
    "its own __new__": "import collections\nclass A(collections.namedtuple('B', 'x', defaults=[1])):\n"
    "  def __new__(cls, x=1): return super().__new__(cls, x)",
    "a TypedDict": "import typing\nclass A(typing.TypedDict): pass",
    "a built-in class": "A = dict",
}


@pytest.mark.parametrize("source", NO_FIELDS.values(), ids=NO_FIELDS)
def test_classes_without_fields(source: str, old: ModuleType) -> None:
    """An upgrade that nothing would call is refused, or told when an object is loaded."""
    made = module("evolving", source).A
    with pytest.raises(InvalidInput, match="not stored as fields"):
        upgrade(made, lambda fields: fields)
    if made.__module__ != "evolving" or "TypedDict" in source:
        return
    store = stored(v=made(2026, 1, 2) if "date" in source else made())
    upgrade("evolving.A", lambda fields: fields)
    with pytest.raises(CannotLoad, match=r"evolving\.A"):
        Versioned(store)["v"]


def test_a_state_without_fields(old: ModuleType) -> None:
    """A class whose `__getstate__` returns no fields cannot have an upgrade: loading says so."""
    source = "class A:\n  def __getstate__(self): return [1]\n  def __setstate__(self, state): pass"
    store = stored(v=module("evolving", source).A())
    upgrade("evolving.A", lambda fields: fields)
    with pytest.raises(CannotLoad, match="its state is a list"):
        Versioned(store)["v"]


def test_the_data_without_the_class(old: ModuleType) -> None:
    """A snapshot reads the fields of an object although its class is gone."""
    store = stored(plan=old.Plan("a"), plain=[1])
    del sys.modules["evolving"]
    snapshot = Versioned(store).checkout("HEAD")
    assert (snapshot.inert("plan").type, snapshot.inert("plan").fields) == ("evolving.Plan", {"goal": "a"})
    assert snapshot.inert("plain") == [1]
    with pytest.raises(KeyNotFound):
        snapshot.inert("none")
