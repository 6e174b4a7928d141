"""Mutation detection over every shape of value: kept as it is, silent when read, one commit when edited. The
zoo has other processes that read and edit."""

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
