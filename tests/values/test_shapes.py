"""Mutation detection over every shape of value: kept as it is, silent when read, one commit when edited."""

import json
from pathlib import Path
from typing import Any

import pytest
from value_shapes import EDITABLE, SHAPES

from vstate import Memory, Versioned


@pytest.mark.parametrize("name", SHAPES)
def test_round_trip_keeps_value_type_and_identity(name: str) -> None:
    """A value comes back equal, of its type, and with the identities inside it."""
    shape = SHAPES[name]
    store = Memory()
    state = Versioned(store)
    state["v"] = shape.make()
    state.commit()
    value = Versioned(store)["v"]
    assert type(value) is type(shape.make())
    assert shape.same(value, shape.make())
    assert shape.kept(value)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_reading_makes_no_commit(name: str) -> None:
    """Reading a value makes no commit, neither where it was set nor where it was loaded."""
    shape = SHAPES[name]
    store = Memory()
    first = Versioned(store)
    first["v"] = shape.make()
    first.commit()
    for state in (first, Versioned(store), Versioned(store)):
        for _ in range(3):
            shape.read(state["v"])
            assert not state.status()
            assert state.commit() is None
    held = first["v"]
    assert first.commit() is None
    assert first["v"] is held


@pytest.mark.parametrize("name", EDITABLE)
@pytest.mark.slow
def test_an_edit_in_place_makes_one_commit(name: str) -> None:
    """One edit in place makes exactly one commit, which another handle reads, set or loaded."""
    shape = SHAPES[name]
    assert shape.edit is not None
    expected = shape.make()
    shape.edit(expected)
    store = Memory()
    writer = Versioned(store)
    writer["v"] = shape.make()
    writer.commit()
    for state in (writer.fork("loaded"), writer):
        shape.edit(state["v"])
        assert state.commit() is not None
        assert state.commit() is None
        assert shape.same(Versioned(store, branch=state.branch)["v"], expected)


@pytest.mark.parametrize("name", EDITABLE)
def test_an_edit_through_an_old_reference_is_committed(name: str) -> None:
    """An edit through a reference taken before two commits makes a commit."""
    shape = SHAPES[name]
    assert shape.edit is not None
    state = Versioned()
    state["v"] = value = shape.make()
    state.commit()
    state["other"] = 1
    state.commit()
    shape.edit(value)
    assert state.commit() is not None
    assert shape.same(state.checkout("HEAD")["v"], value)


WRITE = """
import sys
from value_shapes import SHAPES
from vstate import Versioned
with Versioned(sys.argv[1]) as state:
    for name, shape in SHAPES.items():
        state[name] = shape.make()
    state.commit()
"""

READ = """
import json, sys
from value_shapes import SHAPES
from vstate import Versioned
found = {}
with Versioned(sys.argv[1]) as state:
    for name, shape in SHAPES.items():
        value = state[name]
        shape.read(value)
        found[name] = {
            "type": type(value) is type(shape.make()),
            "same": bool(shape.same(value, shape.make())),
            "kept": bool(shape.kept(value)),
            "silent": state.commit() is None,
        }
        if not found[name]["silent"]:
            del value
            state.reset("HEAD~1")
print(json.dumps(found))
"""

EDIT = """
import json, sys
from value_shapes import EDITABLE, SHAPES
from vstate import Versioned
found = {}
with Versioned(sys.argv[1]) as state:
    for name in EDITABLE:
        SHAPES[name].edit(state[name])
        found[name] = [state.commit(name) is not None, state.commit() is None]
print(json.dumps(found))
"""

CHECK = """
import json, sys
from value_shapes import EDITABLE, SHAPES
from vstate import Versioned
found = {}
with Versioned(sys.argv[1]) as state:
    for name in EDITABLE:
        expected = SHAPES[name].make()
        SHAPES[name].edit(expected)
        found[name] = bool(SHAPES[name].same(state[name], expected))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def processes(run_python: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of four processes, each with its own hash seed: written, read, edited, read again."""
    store = tmp_path_factory.mktemp("shapes") / "store"
    here = Path(__file__).parent
    run_python(WRITE, store, seed=1, path=here)
    return {
        "read": json.loads(run_python(READ, store, seed=2, path=here)),
        "edit": json.loads(run_python(EDIT, store, seed=3, path=here)),
        "check": json.loads(run_python(CHECK, store, seed=4, path=here)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_another_process_reads_it_and_commits_nothing(processes: dict[str, Any], name: str) -> None:
    """A process with another hash seed reads the value whole and makes no commit by it."""
    assert processes["read"][name] == {"type": True, "same": True, "kept": True, "silent": True}


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITABLE)
def test_another_process_edits_it_with_one_commit(processes: dict[str, Any], name: str) -> None:
    """A process with another hash seed edits the value in place with exactly one commit."""
    assert processes["edit"][name] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITABLE)
def test_the_edit_is_read_by_yet_another_process(processes: dict[str, Any], name: str) -> None:
    """One process edits in place, and the next one reads the edits."""
    assert processes["check"][name]
