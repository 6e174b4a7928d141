"""Signal handlers and finalizers that use the state in the middle of a call on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count

import pytest
from raising import called_within
from soak import sized
from state_operations import Contents, edits, fill, others_commit, picture, stored

from vstate import Memory, Versioned
from vstate.errors import InvalidInput, KeyNotFound, MergeConflict
from vstate.testing import Faulty

Action = Callable[[Versioned], object]

STEP = sized(9, 1)
"""Between the moments of one handler. The handlers begin at different ones, so they meet each moment."""


def write(state: Versioned) -> None:
    state["handler"] = [1]


def write_over(state: Versioned) -> None:
    state["count"] = 77


def write_and_commit(state: Versioned) -> None:
    state["handler"] = [1]
    state.commit("by the handler")


def write_in_a_transaction(state: Versioned) -> None:
    with state.transaction("by the handler"):
        state["handler"] = [1]


def edit_and_record(state: Versioned) -> None:
    state["list"].append(2)
    state["new"] = {"of": ["main"]}
    del state["gone"]
    state.expire("slides", 3600)
    state.record("edited")


def beside_another(state: Versioned) -> None:
    others = Versioned(state.store, branch="main")
    others["count"] += 100
    others["theirs"] = 1
    others.commit("theirs")
    state["count"] += 10


HANDLERS: dict[str, Action] = {
    "write": write,
    "write over": write_over,
    "delete": lambda state: state.pop("list", None),
    "expire": lambda state: state.expire("list", 7200),
    "record": lambda state: state.record("edited"),
    "commit": write_and_commit,
    "discard": lambda state: state.discard(),
    "refresh": lambda state: state.refresh(),
    "transaction": write_in_a_transaction,
}

CALLS: dict[str, tuple[Action, Action]] = {
    "write": (lambda state: state.__setitem__("list", [5]), lambda state: state["list"]),
    "read": (lambda state: state["list"], lambda state: None),
    "read beside another": (lambda state: state["list"], others_commit),
    "read an atom": (lambda state: state["count"], lambda state: None),
    "delete": (lambda state: state.pop("list", None), lambda state: None),
    "expire": (lambda state: state.expire("list", 3600), lambda state: state["list"]),
    "record": (lambda state: state.record("edited"), edit_and_record),
    "refresh": (lambda state: state.refresh(), others_commit),
    "commit": (lambda state: state.commit("two"), edit_and_record),
    "commit beside another": (lambda state: state.commit("two"), beside_another),
}


@pytest.fixture(scope="module")
def filled() -> Mapping[str, bytes]:
    store = Memory()
    fill(store)
    return dict(store.items())


def prepared(filled: Mapping[str, bytes], prepare: Action) -> Versioned:
    store = Memory()
    store.set_many(filled)
    state = Versioned(store)
    prepare(state)
    return state


def ended(state: Versioned) -> tuple[Contents, int] | None:
    """The contents and events after a last commit, the same for a new handle; None after a conflict."""
    hand = state._handle.at.table
    for key, slot in hand.slots.items():
        assert not slot.dirty or key in hand.dirty, key
        assert slot.due is None or (key in hand.timed and key not in hand.cache), key
        assert key not in hand.cache or hand.cache[key] is slot.value, key
    try:
        state.commit("rest")
    except MergeConflict:
        return None
    state.refresh()
    assert not state.has_uncommitted
    assert picture(state) == stored(state.store, "main")
    return picture(state), edits(state)


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_uses_the_state(call: str, name: str, filled: Mapping[str, bytes]) -> None:
    """At any moment, it runs before the call or after it, or is refused: nothing is lost.

    Each handler runs at every ninth moment; with VSTATE_SOAK set at each one.
    """
    (operation, prepare), handler = CALLS[call], HANDLERS[name]
    outcomes: list[object] = []
    for actions in ((handler, operation), (operation, handler)):
        state = prepared(filled, prepare)
        for action in actions:
            with suppress(KeyNotFound, MergeConflict):
                action(state)
        outcomes.append(ended(state))
    state = prepared(filled, prepare)
    operation(state)
    alone = ended(state)
    first = 1 + [*HANDLERS].index(name) % STEP
    for moment in count(first, STEP):
        state = prepared(filled, prepare)
        refused: list[InvalidInput] = []

        def in_between(state: Versioned = state, refused: list[InvalidInput] = refused) -> None:
            try:
                handler(state)
            except InvalidInput as error:
                refused.append(error)
            except KeyNotFound:
                pass

        def run(state: Versioned = state) -> None:
            with suppress(KeyNotFound, MergeConflict):
                operation(state)

        if not called_within(run, moment, in_between):
            break
        found = ended(state)
        assert found in outcomes or found is None or (refused and found == alone), moment


def test_a_handler_that_records_in_the_middle_of_a_discard() -> None:
    """Its event stays, and everything is discarded all the same."""
    for moment in count(1):
        state = Versioned()
        state["k"] = [1]
        happened = called_within(state.discard, moment, lambda state=state: state.record("seen"))
        assert dict(state) == {}, moment
        if not happened:
            break
        assert [event.kind for event in state._handle.pending_events()] == ["seen"], moment


class Calling(Memory):
    """A store whose next transaction calls a function first."""

    call: Callable[[], object] | None = None

    def transact(self, writes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        call, self.call = self.call, None
        if call is not None:
            call()
        return super().transact(writes, expected)


def test_a_value_handed_out_while_a_commit_is_written_stays_open() -> None:
    """Its edits are seen, also if the comparison is made again before the commit has landed."""
    store = Calling()
    state = Versioned(store)
    state["list"] = [0]
    state.commit()
    state["list"].append(1)
    held: list[list[int]] = []
    store.call = lambda: (held.append(state["list"]), state.has_uncommitted)
    state.commit()
    held[0].append(2)
    assert state.has_uncommitted


def test_an_edit_while_a_commit_loses_its_race_is_not_lost() -> None:
    """The other side's value would replace the edited one, so the commit is in conflict."""
    store = Calling()
    state = Versioned(store)
    state["list"], state["n"] = ["base"], 0
    state.commit()
    other = Versioned(store)
    other["list"].append("theirs")
    other.commit()
    held, state["n"] = state["list"], 1
    store.call = lambda: held.append("edited meanwhile")
    with pytest.raises(MergeConflict, match="list"):
        state.commit()
    assert state["list"] is held
    assert held == ["base", "edited meanwhile"]


def test_a_write_while_a_commit_is_written_asks_no_store() -> None:
    """Nobody looks for the commit before its call of the store has ended."""
    store = Calling()
    faulty = Faulty(store)
    state = Versioned(faulty)
    state["k"] = 1
    asked: list[str] = []

    def write() -> None:
        faulty.calls.clear()
        state["handler"] = 1
        asked.extend(faulty.calls)

    store.call = write
    state.commit()
    assert asked == []
    assert state.status().added == ["handler"]


def test_a_value_set_back_while_a_commit_is_written() -> None:
    """It is compared with the commit that landed, not with the one before."""
    store = Calling()
    state = Versioned(store)
    state["list"] = [0]
    state.commit()
    state = Versioned(store)
    state["list"].append(1)
    store.call = lambda: state.__setitem__("list", [0])
    state.commit()
    assert state.has_uncommitted
    state.commit()
    assert Versioned(store)["list"] == [0]
