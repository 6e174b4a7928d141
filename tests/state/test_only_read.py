"""Reading is never a change and never a conflict, for any pickle that a value has in this process."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from vstate import Memory, Unpicklable, Versioned


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


class CountsPicklings:
    """As a figure of matplotlib does: no two of its pickles are alike."""

    def __init__(self) -> None:
        self.data, self.count = [1], 0

    def __getstate__(self) -> dict[str, Any]:
        self.count += 1
        return dict(self.__dict__)


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
        "counts": [CountsPicklings()],
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
    first["counts"][0].data.append(7)
    first["fills"].data.append(7)
    assert first.status().modified == ["counts", "fills"]
    first.commit()
    CopiesOnce.salt += 1
    one, other = Versioned(store), Versioned(store)
    values = [dict(one), dict(other)]
    assert one.commit() is None
    one["address"].data.append(2)
    assert one.status().modified == ["address"]
    other["within"]["deep"][1].data.append(4)
    other["counts"][0].data.append(8)
    assert one.commit() is not None
    made = other.commit()
    assert made is not None
    assert other.diff("HEAD^2~1", "HEAD^2").modified == ["counts", "within"]
    assert [Versioned(store)["address"].data, Versioned(store)["within"]["deep"][1].data] == [[1, 2], [3, 4]]
    del values


def test_updates_and_transactions_that_only_read() -> None:
    """A value that an update or a transaction reads is sealed and stays as it is."""
    store = Memory()
    first = Versioned(store)
    first.update(_values())
    first.commit()
    CopiesOnce.salt += 1
    state = Versioned(store)

    def read(now: Any) -> None:
        assert [now[key] for key in now]

    assert state.update(read) is None
    with state.transaction():
        held = dict(state)
    assert state.commit() is None
    with pytest.raises(ZeroDivisionError), state.transaction():
        held["address"].data.append(9)
        raise ZeroDivisionError
    assert state["address"].data == [1]
    state.refresh()
    assert not state.status()


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


SCRIPT = """
import sys
from pydantic import BaseModel
from vstate import Versioned

class Plan(BaseModel):
    goal: str
    steps: list[str] = []
    tags: set[str] = set()

state = Versioned(sys.argv[1])
if state.head is None:
    for i in range(5):
        state[f"plan{i}"] = Plan(goal=f"goal {i}", tags={"a", "b", "c"})
    state.commit()
else:
    other = Versioned(sys.argv[1])
    plans, same = dict(state), dict(other)
    Plan.model_json_schema()
    assert state.commit() is None, state.status()
    state["plan1"].steps.append("x")
    other["plan2"].goal += "!"
    assert state.status().modified == ["plan1"], state.status()
    state.commit()
    assert other.status().modified == ["plan2"], other.status()
    other.commit()
    assert state.refresh() is not None
    print(sorted(plan.goal + str(plan.steps) for plan in state.values()))
"""


@pytest.mark.slow
def test_models_of_a_script(run_python: Any, tmp_path: Path) -> None:
    """A pydantic model of `__main__`: of five keys one is edited, and one changes, in every process."""
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for seed in (1, 2, 3):
        out = run_python(script, tmp_path / "s", seed=seed)
    assert "goal 1['x', 'x']" in out
