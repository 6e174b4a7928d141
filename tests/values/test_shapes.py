"""Mutation detection over shapes of values: kept as they are, silent when read, one commit when edited.

The zoo asks the same of other shapes, and of other processes.
"""

import pytest
from value_shapes import EDITABLE, SHAPES, edit, make, same, view

from vstate import Memory, Versioned


@pytest.mark.parametrize("name", SHAPES)
def test_round_trip_keeps_value_type_and_identity(name: str) -> None:
    """A value comes back equal, of its type, and with the identities inside it."""
    shape = SHAPES[name]
    state = Versioned()
    state["v"] = make(shape)
    state.commit()
    assert same(shape, Versioned(state.store)["v"], make(shape))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_reading_makes_no_commit(name: str) -> None:
    """Reading a value makes no commit, neither where it was set nor where it was loaded."""
    shape = SHAPES[name]
    store = Memory()
    first = Versioned(store)
    first["v"] = make(shape)
    first.commit()
    for state in (first, Versioned(store), Versioned(store)):
        for _ in range(3):
            repr(state["v"])
            view(shape, state["v"])
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
    expected = make(shape)
    edit(shape, expected)
    store = Memory()
    writer = Versioned(store)
    writer["v"] = make(shape)
    writer.commit()
    for state in (writer.fork("loaded"), writer):
        edit(shape, state["v"])
        assert state.commit() is not None
        assert state.commit() is None
        assert same(shape, Versioned(store, branch=state.branch)["v"], expected)


@pytest.mark.parametrize("name", EDITABLE)
def test_an_edit_through_an_old_reference_is_committed(name: str) -> None:
    """An edit through a reference taken before two commits makes a commit."""
    shape = SHAPES[name]
    state = Versioned()
    state["v"] = value = make(shape)
    state.commit()
    state["other"] = 1
    state.commit()
    edit(shape, value)
    assert state.commit() is not None
    expected = make(shape)
    edit(shape, expected)
    assert same(shape, state.checkout("HEAD")["v"], expected)
