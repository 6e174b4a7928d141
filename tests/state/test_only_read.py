"""Reading is never a change and never a conflict, for any pickle that a value has in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import pytest

import vstate
from vstate import InvalidInput, Memory, Unpicklable, Versioned


class HoldsAddress:
    """As a tensor of torch does, it pickles the address of its storage."""

    def __init__(self, data: list[int]) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return _at, (self.data, str(id(self)))


def _at(data: list[int], address: str) -> HoldsAddress:
    return HoldsAddress(data)


class CopiesOnce:
    """Its class changes how it pickles in the process that reads."""

    salt = 0

    def __init__(self) -> None:
        self.data = [1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "salt": type(self).salt}


class FillsCache:
    """As a table of xarray does: its first pickling leaves something in it."""

    def __init__(self) -> None:
        self.data, self.cache = [1], None

    def __getstate__(self) -> dict[str, Any]:
        before = dict(self.__dict__)
        self.cache = {"filled": "yes"}  # type: ignore[assignment]
        return before


def _values() -> dict[str, Any]:
    return {
        "fills": FillsCache(),
        "address": HoldsAddress([1]),
        "within": {"deep": [HoldsAddress([2]), HoldsAddress([3])]},
        "salted": CopiesOnce(),
        "set": {f"m{i}" for i in range(50)},
        "plain": [1],
    }


def test_two_handles_that_only_read_merge() -> None:
    """Two handles read every value and edit different keys: both commits land, with one change each."""
    store = Memory()
    first = Versioned(store)
    first.update(_values())
    first.commit()
    assert not first.status()
    assert first.commit() is None
    first["fills"].data.append(7)
    assert first.status().modified == ["fills"]
    first.commit()
    CopiesOnce.salt += 1
    one, other = Versioned(store), Versioned(store)
    values = [dict(one), dict(other)]
    assert one.commit() is None
    one["address"].data.append(2)
    assert one.status().modified == ["address"]
    other["within"]["deep"][1].data.append(4)
    assert one.commit() is not None
    assert other.commit() is not None
    assert other.diff("HEAD^2~1", "HEAD^2").modified == ["within"]
    assert [Versioned(store)["address"].data, Versioned(store)["within"]["deep"][1].data] == [[1, 2], [3, 4]]
    del values


class Report:
    """Reading it leaves a result among its attributes."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    @cached_property
    def count(self) -> int:
        return len(self.words)


@pytest.mark.parametrize("filled", [False, True])
def test_results_that_reading_caches(filled: bool) -> None:
    """A result that a read caches is no change. Another edit is one, and so is another result."""
    state = Versioned()
    state["report"] = report = Report(["a"])
    assert not filled or report.count
    state["reports"] = {"all": [Report(["b"])]}
    state.commit()
    reader = state.fork("reader")
    for each in (state, reader):
        assert each["report"].count + each["reports"]["all"][0].count == 2
        assert not each.status()
        assert each.commit() is None
    reader["report"].words.append("c")
    assert reader.status().modified == ["report"]
    state["reports"]["all"][0].words.append("d")
    assert state.status().modified == ["reports"]
    state.commit()
    if filled:
        state["report"].count = 9
        assert state.status().modified == ["report"]


class Lazy(property):
    """A property of a program: it keeps a result unless it has a setter."""

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else vars(obj).setdefault(self.fget.__name__, self.fget(obj))  # type: ignore[misc,union-attr]


Lazy.__name__ = "lazyproperty"


class Notes:
    """A program edits its results."""

    def __init__(self) -> None:
        self.name = "a"

    @cached_property
    def notes(self) -> Any:
        return [1]

    @cached_property
    def clients(self) -> Any:
        return {"a": Lock()}

    @Lazy
    def words(self) -> Any:
        return ["w"]

    @Lazy
    def size(self) -> Any:
        return 0

    @size.setter
    def size(self, value: Any) -> None:
        vars(self)["size"] = value


RESULTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "read": (lambda notes: (notes.notes, notes.words, notes.clients), None),
    "an edit in it": (lambda notes: notes.notes.append(2), ("notes", [1, 2])),
    "an edit in one of the program": (lambda notes: notes.words.append("x"), ("words", ["w", "x"])),
    "an assignment": (lambda notes: setattr(notes, "notes", "n"), ("notes", "n")),
    "None": (lambda notes: setattr(notes, "notes", None), ("notes", None)),
    "an equal assignment": (lambda notes: setattr(notes, "notes", [1]), None),
    "a setter": (lambda notes: setattr(notes, "size", 5), ("size", 5)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_edits_of_results(name: str) -> None:
    """A result that differs from the one that the stored object computes is an edit."""
    use, stored = RESULTS[name]
    state = Versioned()
    state["k"] = [Notes()]
    state.commit()
    reader = state.fork("reader")
    for each in (state, reader):
        use(each["k"][0])
        assert (each.commit() is None) == (stored is None)
    if stored is not None:
        assert getattr(reader.fork("now")["k"][0], stored[0]) == stored[1]
    state["k"][0].notes = [Lock()]
    with pytest.raises(Unpicklable, match=r"notes\[0\]"):
        state.commit()


class Client:
    """Reading it leaves a result that cannot be pickled."""

    def __init__(self) -> None:
        self.calls = 0

    @cached_property
    def lock(self) -> Any:
        return Lock()


def test_a_cached_result_that_cannot_be_pickled() -> None:
    """It blocks no commit of other keys, nor a merge. An edit of its object is refused by name."""
    store = Memory()
    writer = Versioned(store)
    writer["client"], writer["n"] = Client(), 1
    writer.commit()
    reader = Versioned(store)
    for each in (writer, reader):
        with each["client"].lock:
            each[f"n{id(each)}"] = 2
        assert len(each.status()) == 1
        assert each.commit() is not None
    with reader["client"].lock:
        assert writer.refresh() == reader.head
    reader["client"].calls += 1
    with pytest.raises(Unpicklable, match="client"):
        reader.commit()


def test_errors_whose_response_is_read() -> None:
    """The text, the headers and the cookies of a response are results that httpx keeps in it."""
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    request = httpx.Request("GET", "http://localhost/a", headers={"a": "b"})
    response = httpx.Response(429, request=request, json={"error": "slow down"})
    state = Versioned()
    state["error"] = httpx.HTTPStatusError("429", request=request, response=response)
    state.commit()
    for each in (state, state.fork("reader")):
        found = each["error"].response
        assert ("slow" in found.text, found.headers["content-type"][:4], len(found.cookies)) == (
            True,
            "appl",
            0,
        )
        assert found.request.headers["a"] == "b"
        assert not each.status()
    state["error"].response.status_code = 500
    with pytest.raises(Unpicklable, match="_cookies"):
        state.commit()
    other = Versioned(state.store)
    other["error"].response.status_code = 500
    assert other["error"].response.text
    assert other.status().modified == ["error"]


def test_tables_that_are_only_shown() -> None:
    """pandas keeps results beside dates, periods and differences of times when they are shown."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    dates = pandas.date_range("2026", periods=500, tz="UTC")
    state = Versioned()
    state["rows"] = pandas.DataFrame({"n": range(500)}, index=dates)
    state["columns"] = pandas.DataFrame({"t": dates, "p": dates.tz_localize(None).to_period("D")})
    state["index"] = dates - dates[0]
    state.commit()
    for each in (state, state.fork("reader")):
        for table in each.values():
            assert repr(table)
        assert each["rows"].loc[dates[3]]["n"] == 3
        assert each["columns"].describe().size
        assert not each.status()
    state["rows"].loc[dates[3], "n"] = 7
    state["columns"].loc[0, "t"] = dates[9]
    assert state.status().modified == ["columns", "rows"]


class Counts:
    """Reading it changes a number, which nobody told vstate."""

    def __init__(self) -> None:
        self.words, self.hits = ["a"], 0

    def read(self) -> list[str]:
        self.hits += 1
        return self.words


class Hits(Counts):
    """As `Counts`, and vstate was told."""


class Filled(Counts):
    """It makes attributes as they are asked for, also one that cannot be pickled."""

    def __init__(self) -> None:
        self.words = ["a"]

    def __getattr__(self, name: str) -> Any:
        if name not in ("lock", "upper"):
            raise AttributeError(name)
        made = Lock() if name == "lock" else [word.upper() for word in self.words]
        return self.__dict__.setdefault(name, made)

    def read(self) -> Any:
        return self.lock, self.upper


class Slotted:
    """It has slots."""

    __slots__ = ("hits", "words")
    __init__, read = Counts.__init__, Counts.read


class Tuples(Counts):
    """As the trees of scikit-learn: its state is a tuple."""

    def __getstate__(self) -> Any:
        return self.words, self.hits

    def __setstate__(self, state: Any) -> None:
        self.words, self.hits = state


class Entries(dict[str, Any]):
    """A dict with a counter."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.words = self.setdefault("words", ["a"])
        self.hits = 0

    read = Counts.read


class Named(NamedTuple):
    """It is stored by the names of its fields, as a struct of msgspec is."""

    words: list[str]
    hits: list[int]

    def read(self) -> None:
        self.hits.append(1)


@dataclass(frozen=True, slots=True)
class Narrow:
    """As `Named`, with slots."""

    words: list[str]
    hits: list[int]
    read = Named.read


class Deep(Counts):
    """The counter is in a part of it."""

    def __init__(self) -> None:
        self.words, self.stats = ["a"], {"reads": 0, "limit": 9}

    def read(self) -> None:
        self.stats["reads"] += 1


READ: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (Hits, Filled, Slotted, Tuples, Entries, Deep)
}
READ["Named"], READ["Narrow"] = lambda: Named(["a"], []), lambda: Narrow(["a"], [])
for kind in (f"{__name__}.Hits", Slotted, Entries, Named, Narrow):
    vstate.compare(kind, without=["hits"])
vstate.compare(Filled, without=["lock", "upper"])
vstate.compare(Tuples, without=[1])
vstate.compare(Deep, lambda deep: (deep.words, deep.stats["limit"]))


@dataclass
class Box:
    content: Any


WRAPPED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bare": (lambda value: value, lambda held: held),
    "dict": (lambda value: {"a": value, "b": 1}, lambda held: held["a"]),
    "list": (lambda value: [1, (value,)], lambda held: held[1][0]),
    "dataclass": (Box, lambda held: held.content),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("kind", READ)
def test_parts_that_do_not_count(kind: str, wrapped: str) -> None:
    """An object that differs in them alone is no change, no conflict, and stays in hand. An edit counts."""
    wrap, unwrap = WRAPPED[wrapped]
    writer = Versioned()
    writer["k"] = wrap(READ[kind]())
    writer.commit()
    handles = [writer, Versioned(writer.store), Versioned(writer.store)]
    for i, each in enumerate(handles):
        held = unwrap(each["k"])
        for _ in range(3):
            held.read()
            assert not each.status()
        each[f"read/{i}"] = 1
    for each in handles:
        assert each.commit() is not None
        held = unwrap(each["k"])
        each.discard()
        assert unwrap(each["k"]) is held
    assert handles[2].diff("HEAD^2~1", "HEAD^2").added == ["read/2"]
    reader = Versioned(writer.store)
    held = unwrap(reader["k"])
    held.read()
    held.words.append("b")
    if kind == "Filled":
        with pytest.raises(Unpicklable, match="lock"):
            reader.commit()
        return
    assert reader.status().modified == ["k"]
    assert reader.commit() is not None
    assert unwrap(Versioned(writer.store)["k"]).words == ["a", "b"]


def test_parts_in_a_cycle() -> None:
    """An object may be among its own parts."""
    vstate.compare(Ring, lambda ring: (ring.words, ring.others))
    state = Versioned()
    state["k"] = {"ring": Ring(), "n": 1}
    state["k"]["ring"].others.append(state["k"]["ring"])
    state.commit()
    for each in (state, state.fork("reader")):
        each["k"]["ring"].hits += 1
        assert not each.status()
        each["k"]["n"] = 2
        assert each.status().modified == ["k"]
        each["k"]["n"] = 1
        each["k"]["ring"].words.append("b")
        assert each.status().modified == ["k"]


class Ring(Counts):
    """It knows others of its class."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Ring] = []


def test_a_class_that_changes_beside_its_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of `__main__` counts its objects: that changes no object that is stored."""

    class Plan:
        made = 0

        def __init__(self) -> None:
            type(self).made += 1
            self.steps = {"x", "y", "z"}

    Plan.__module__, Plan.__qualname__ = "__main__", "Plan"
    monkeypatch.setattr(sys.modules["__main__"], "Plan", Plan, raising=False)
    store = Memory()
    state = Versioned(store)
    state.update({"a": Plan(), "b": [Plan()], "class": Plan})
    state.commit()
    one, other = Versioned(store), Versioned(store)
    for each in (one, other):
        assert each["a"].steps == each["b"][0].steps
        for _ in range(3):
            Plan()
            assert not each.status()
    one["a"].steps.add("n")
    other["b"].append(Plan())
    assert (one.status().modified, other.status().modified) == (["a"], ["b"])
    one.commit()
    other.commit()
    assert len(Versioned(store)["a"].steps) == 4
    assert len(Versioned(store)["b"]) == 2


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((Hits,), {}, InvalidInput),
        ((Hits, vars), {"without": ["hits"]}, InvalidInput),
        ((Hits,), {"without": "hits"}, TypeError),
        ((Hits, 3), {}, TypeError),
        ((3, vars), {}, TypeError),
    ],
)
def test_what_compare_refuses(arguments: Any, options: Any, error: type[Exception]) -> None:
    """Neither or both, a text for a list of names, no function, and no class are refused."""
    with pytest.raises(error):
        vstate.compare(*arguments, **options)
