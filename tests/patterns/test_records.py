"""Records: validated on write and on read, migrated on read, copied in and out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pydantic.dataclasses
import pytest
from agent_stores import AgentStore
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator
from running import RunPython

from vstate import Live, Versioned, aio
from vstate.errors import AlreadyExists, InvalidInput, InvalidRecord, KeyNotFound, Unpicklable
from vstate.patterns import Records, scope


class Color(Enum):
    RED = 1
    BLUE = 2


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


class Part(BaseModel):
    name: str
    color: Color = Color.RED


class Thing(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    level: Level = Level.LOW
    color: Color = Color.RED
    parts: list[Part] = []
    by_name: dict[str, Part] = {}
    tags: set[str] = set()
    data: bytes = b""
    at: datetime | None = None
    pair: tuple[int, Color] = (1, Color.BLUE)
    price: Decimal = Decimal(0)
    uuid: UUID | None = None


@dataclass
class Step:
    run: str
    name: str
    notes: list[str] = field(default_factory=list)


@pytest.fixture(params=["namespace", "live"])
def state(request: pytest.FixtureRequest) -> Any:
    return scope(Versioned(), "a", "") if request.param == "namespace" else Live()


FULL = Thing(
    id="a/b",
    level=Level.HIGH,
    color=Color.BLUE,
    parts=[Part(name="p", color=Color.BLUE)],
    by_name={"x": Part(name="q")},
    tags={"one", "two"},
    data=b"\x00\xff",
    at=datetime(2026, 11, 21, 9, tzinfo=UTC),
    pair=(2, Color.RED),
    price=Decimal("1.10"),
    uuid=UUID(int=5),
    more={"x": [1, (2, 3)]},  # type: ignore[call-arg]
)


def test_records_are_read_as_written(local_store: AgentStore) -> None:
    """Enums, times, sets, bytes, nested models, extra fields: equal in another handle, plain in the store."""
    state = Versioned(local_store(), branch="main")
    state.apply(lambda inner: Records(inner, Thing, key="id").put(FULL))
    again = Versioned(local_store(), branch="main")
    records = Records(again, Thing, key="id")
    assert records["a/b"] == FULL
    assert again["a%2fb"] == {**FULL.model_dump(), "level": "high", "color": 2, "pair": (2, 1)} | {
        "parts": [{"name": "p", "color": 2}],
        "by_name": {"x": {"name": "q", "color": 1}},
    }
    naive = datetime(2026, 1, 2, 3)
    records.put(Thing(id="naive", at=naive))
    assert records["naive"].at == naive
    again.commit()
    assert again.diff("HEAD~1", "HEAD").added == ["naive"]


def test_it_is_a_mapping_by_id(state: Any) -> None:
    """get, in, len, ids, values, add, change, del and discard."""
    records = Records(state, Part, key="name")
    records.put(Part(name="b"))
    records.add(Part(name="a/"))
    assert (list(records), len(records), "b" in records, "c" in records) == (["a/", "b"], 2, True, False)
    assert records.get("c") is None
    assert records.get("c", 5) == 5
    with pytest.raises(AlreadyExists, match="b"):
        records.add(Part(name="b"))
    assert records.change("b", color=Color.BLUE) == Part(name="b", color=Color.BLUE)
    assert records.change("b", lambda part: Part(name=part.name)).color is Color.RED
    assert [part.name for part in records.values()] == ["a/", "b"]
    del records["b"]
    assert records.discard("a/") is True
    assert records.discard("a/") is False
    for missing in (
        lambda: records["b"],
        lambda: records.__delitem__("b"),
        lambda: records.change("b", color=1),
    ):
        with pytest.raises(KeyNotFound):
            missing()


def test_ids_are_tuples(state: Any) -> None:
    """Ids of several fields, or of a function; ids with the same beginning are listed by it."""
    records = Records(state, Step, key=("run", "name"))
    for run, name in (("a", "b_c"), ("a_b", "c"), ("a", "x/y"), ("", "n")):
        records.put(Step(run, name))
    assert list(records.ids()) == [("", "n"), ("a", "b_c"), ("a", "x/y"), ("a_b", "c")]
    assert list(records.ids("a")) == [("a", "b_c"), ("a", "x/y")]
    assert [step.name for step in records.values("a")] == ["b_c", "x/y"]
    assert (records.count("a"), records.count("b")) == (2, 0)
    assert records["a", "x/y"] == Step("a", "x/y")
    by_function = Records(state, Step, key=lambda step: (step.run, step.name))
    assert by_function["a_b", "c"].name == "c"
    with pytest.raises(TypeError, match="an id is"):
        Records(state, Step, key=lambda step: 5).put(Step("a", "b"))  # type: ignore[arg-type, return-value]


class Loose(BaseModel):
    id: str
    anything: Any = None


def test_copies_go_in_and_come_out(state: Any) -> None:
    """The record passed to put, the one returned, the one read, and the dict that a migration edits can be
    changed without effect, also in a field that pydantic does not copy.
    """
    records = Records(state, Loose, key="id")
    given = Loose(id="x", anything={"a": ["one"]})
    written = records.put(given)
    state.commit()

    def edit(data: dict[str, Any]) -> dict[str, Any]:
        data["anything"]["a"].append("two")
        return data

    migrated = Records(state, Loose, key="id", version=2, migrate={1: edit})["x"]
    assert migrated.anything == {"a": ["one", "two"]}
    for each in (given, written, records["x"], next(records.values())):
        each.anything["a"].append("two")
    assert records["x"].anything == {"a": ["one"]}
    assert not state.has_uncommitted


def test_invalid_records_are_not_written(state: Any) -> None:
    """InvalidRecord names the key and the fields, and nothing is written, by put, add or change."""
    records = Records(state, Thing, key="id")
    records.put(Thing(id="x"))
    bad = Thing.model_construct(
        id="x", parts=[Part.model_construct(name="p", color="s3cret")], price="s3cret"
    )
    for write in (records.put, records.add):
        with pytest.raises(InvalidRecord) as raised:
            write(bad)
        assert raised.value.key == "x"
        assert "parts.0.color" in str(raised.value)
        assert "price" in str(raised.value)
        assert "s3cret" not in str(raised.value)
    with pytest.raises(InvalidRecord, match="level"):
        records.change("x", level="s3cret")
    with pytest.raises(InvalidRecord, match="@version"):
        records.put(Thing(id="x", **{"@version": 9}))
    with pytest.raises(InvalidInput, match="would make it 'y'"):
        records.change("x", id="y")
    assert records["x"] == Thing(id="x")
    assert list(records) == ["x"]


class Guarded(BaseModel):
    id: str
    kind: Literal["a", "b"] = "a"
    uuid: UUID | None = None
    secret: str = ""

    @field_validator("secret")
    @classmethod
    def check(cls, value: str) -> str:
        if "s3cret" in value:
            raise ValueError(f"{value} is not allowed")
        return value


def test_no_value_is_in_an_error() -> None:
    """Neither on reads, nor in the messages of a validator, nor in those of pydantic."""
    state = Versioned()
    state["x"] = {"id": "x", "kind": "s3cret", "uuid": "s3cret", "secret": "s3cret"}
    with pytest.raises(InvalidRecord) as raised:
        Records(state, Guarded, key="id")["x"]
    text = str(raised.value)
    assert all(name in text for name in ("kind", "uuid", "secret:"))
    assert "s3cret" not in text
    assert "found `s`" not in text


def test_invalid_records_are_not_read(state: Any) -> None:
    """Every read raises; none reports it as absent."""
    state["x"] = {"name": ["no text"]}
    records = Records(state, Part, key="name")
    for read in (lambda: records["x"], lambda: records.get("x"), lambda: list(records.values())):
        with pytest.raises(InvalidRecord, match="name"):
            read()
    state["x"] = "no dict"
    with pytest.raises(InvalidRecord, match="it is a str, not a Part"):
        records.get("x")
    with pytest.raises(InvalidRecord):
        records.put(Part(name="x"))
    for version in ("2", 0, True, None):
        state["x"] = {"name": "x", "@version": version}
        with pytest.raises(InvalidRecord, match="version"):
            records.get("x")


class Aliased(BaseModel):
    id: str = Field(alias="ID")
    size: int = Field(default=1, validation_alias="in", serialization_alias="out")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.size


@pydantic.dataclasses.dataclass(frozen=True)
class Frozen:
    id: str
    size: int = 1


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    size: int = 1


def test_models_of_many_kinds(state: Any) -> None:
    """With aliases and computed fields, frozen ones, and dataclasses of pydantic's."""
    aliased = Records(scope(state, "aliased"), Aliased, key="id")
    aliased.put(Aliased(ID="x", **{"in": 3}))
    assert (aliased["x"].size, state["aliased/x"]) == (3, {"id": "x", "size": 3})
    for kind in (Frozen, FrozenModel):
        records: Records[Any] = Records(scope(state, kind.__name__), kind, key="id")
        records.put(kind(id="x"))
        assert records.change("x", size=2).size == 2
        assert records["x"] == kind(id="x", size=2)
        with pytest.raises(InvalidRecord, match="size"):
            records.change("x", size="much")
        with pytest.raises(InvalidInput, match="no field sise; it has: id, size"):
            records.change("x", sise=2)


class PartTwo(BaseModel):
    title: str
    colors: list[str] = []


MIGRATE = {1: lambda data: {"title": data["name"], "color": str(data["color"])}}
MIGRATE_ON = {**MIGRATE, 2: lambda data: {"title": data["title"], "colors": [data["color"]]}}


def test_old_records_are_migrated_when_they_are_read(local_store: AgentStore) -> None:
    """Step by step; the stored dict stays as it was until a put, and in history for ever."""
    state = Versioned(local_store(), branch="main")
    old = Records(state, Part, key="name")
    old.put(Part(name="a"))
    first = state.commit()
    new = Records(state, PartTwo, key="title", version=3, migrate=MIGRATE_ON)
    assert new["a"] == PartTwo(title="a", colors=["1"])
    assert [*new.values()] == [PartTwo(title="a", colors=["1"])]
    assert not state.has_uncommitted
    new.change("a", colors=["green"])
    state.commit()
    assert state["a"] == {"title": "a", "colors": ["green"], "@version": 3}
    past = Records(state.checkout(first), PartTwo, key="title", version=3, migrate=MIGRATE_ON)
    assert past["a"].colors == ["1"]
    assert state.checkout(first)["a"] == {"name": "a", "color": 1}
    with pytest.raises(InvalidInput, match="read-only"):
        past.put(PartTwo(title="b"))
    for use in (lambda: old["a"], lambda: old.put(Part(name="a")), lambda: old.change("a", color=Color.BLUE)):
        with pytest.raises(InvalidRecord, match="version 3 of Part, and this program knows 1: update"):
            use()
    state.rollback(steps=1)
    assert old["a"] == Part(name="a")


def test_migrations_with_a_gap() -> None:
    """A missing step and a surplus one raise at once; a version before the oldest, and a KeyError of a
    migration, which is no missing record, on read.
    """
    state = Versioned()
    for version, migrate in ((3, {1: dict}), (2, {1: dict, 2: dict}), (4, {1: dict, 3: dict}), (0, {})):
        with pytest.raises(InvalidInput, match=r"migrate|version is a number from 1 on, not 0"):
            Records(state, Part, key="name", version=version, migrate=migrate)
    state["a"] = {"nom": "a"}
    with pytest.raises(InvalidRecord, match="nothing migrates it from 1 to 2"):
        Records(state, Part, key="name", version=3, migrate={2: dict})["a"]
    with pytest.raises(InvalidRecord):
        Records(state, Part, key="name", version=2, migrate={1: lambda data: None})["a"]  # type: ignore[dict-item, return-value]
    records = Records(state, Part, key="name", version=2, migrate={1: lambda data: {"name": data["name"]}})
    for read in (lambda: records["a"], lambda: records.get("a"), lambda: records.change("a", color=2)):
        with pytest.raises(InvalidRecord, match="migration from version 1 raised KeyError") as raised:
            read()
        assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(
        TypeError, match=r"vstate.aio.versioned.Versioned is not a state: .*await state.apply"
    ):
        Records(aio.Versioned(), Part, key="name")  # type: ignore[arg-type]


class BigPart(Part):
    size: int = 1


class BigThing(Thing):
    size: int = 1


def test_a_record_of_another_model(state: Any) -> None:
    """Another model or a plain dict is refused; no field of a subclass is lost: kept or refused."""
    records = Records(state, Part, key="name")
    records.put(Part(name="a"))
    for other in (Thing(id="a"), {"name": "a"}):
        for write in (records.put, records.add, lambda other: records.change("a", lambda part: other)):
            with pytest.raises(InvalidInput, match="these are records of Part, not of"):
                write(other)  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord, match="Part has no field size"):
        records.put(BigPart(name="a", size=5))
    assert [*records.values()] == [Part(name="a")]
    things = Records(scope(state, "things"), Thing, key="id")
    things.put(BigThing(id="b", size=5))
    assert things["b"].model_dump()["size"] == 5


def test_it_needs_no_pydantic_for_the_rest(run_python: RunPython, tmp_path: Path) -> None:
    """Without pydantic the other patterns work, and Records names the package to install."""
    (tmp_path / "pydantic.py").write_text("raise ImportError('not here')\n")
    script = (
        "from vstate.patterns import EventStream, Lifecycle, Sequence, bound, scope, join_path\n"
        "try:\n    from vstate.patterns import Records\nexcept ImportError as error:\n    print(error)\n"
    )
    assert "pip install '.[agents]'" in run_python(script, path=tmp_path)


def test_a_value_that_cannot_be_copied_is_named_by_its_field() -> None:
    """The error names the program's value, not its form in pydantic."""

    class Anything(BaseModel):
        id: str
        held: Any = None

    records = Records(Versioned(), Anything, key="id")
    with pytest.raises(Unpicklable, match=r'Anything\["held"\]\["it"\]: generator'):
        records.put(Anything(id="a", held={"it": (number for number in [1])}))
    assert list(records) == []
