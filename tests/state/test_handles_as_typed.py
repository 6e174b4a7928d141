"""The objects that a program holds, as a person types them: repr, print, tab completion, pickle and copy."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from vstate import Live, Memory, Versioned, aio, events, upgrade, view
from vstate.managers import StateManager
from vstate.patterns import EventStream, Sequence, scope
from vstate.sessions import Conversation, VersionedSession
from vstate.testing import Faulty


def things(store: Faulty) -> dict[str, Any]:
    """One object of each public class that stands on the store."""
    state = Versioned(store)
    state.update({f"k{i:03}": [i] for i in range(300)})
    first = state.commit("first")
    state["k000"] = "changed"
    state.commit("second")
    opened = asyncio.run(_opened(store))
    diff = state.diff("HEAD~1", "HEAD")
    items = Sequence(state, "items")
    items.append("one")
    state["staged"] = 1
    fresh = Versioned(store)
    assert first is not None
    return {
        "Versioned": state,
        "Versioned, nothing read": fresh,
        "Namespace": state.namespace("a"),
        "Snapshot": fresh.checkout(first.id),
        "scope of a Snapshot": scope(fresh.checkout(first.id), "a"),
        "keys": fresh.keys(),
        "values": fresh.values(),
        "items": fresh.items(),
        "Repository": state.repo,
        "Log": fresh.log(),
        "Diff": diff,
        "Change": diff["k000"],
        "Commit": first,
        "Lease": state.lease("nightly"),
        "Watch": state.watch(),
        "transaction": state.transaction(),
        "Sequence": items,
        "EventStream": EventStream(state, "events"),
        "Conversation": Conversation(fresh, "chat"),
        "aio.Versioned": opened,
        "aio.Namespace": opened.namespace("a"),
        "StateManager": StateManager(store),
        "VersionedSession": VersionedSession(store),
        "Faulty": store,
    }


async def _opened(store: Faulty) -> aio.Versioned:
    return await aio.Versioned(store)


@pytest.fixture(scope="module")
def gone() -> tuple[dict[str, Any], Faulty]:
    """The objects, and their store, of which no call succeeds any more."""
    store = Faulty(Memory())
    made = things(store)
    store.fail_at, store.away = len(store.calls) + 1, 10**9
    return made, store


def test_repr_asks_no_store(gone: tuple[dict[str, Any], Faulty]) -> None:
    """It never raises, because programs log and print objects where they handle the error."""
    made, store = gone
    before = list(store.calls)
    for name, thing in made.items():
        assert repr(thing), name
    assert store.calls == before


def test_print_says_that_the_store_is_gone(gone: tuple[dict[str, Any], Faulty]) -> None:
    """str() and the form of a notebook list keys. Without the store they name the state and the error."""
    made, _ = gone
    for name in ("Versioned, nothing read", "Snapshot"):
        for text in (str(made[name]), made[name]._repr_html_()):
            assert repr(made[name])[1:10] in text
            assert "its keys cannot be read: " in text
    assert made["Versioned, nothing read"]._ipython_key_completions_() == []


def test_keys_complete_in_a_shell() -> None:
    """`state["<TAB>` offers the keys: of a state, its namespaces, a Live, a snapshot and a diff."""
    state, live = Versioned(), Live()
    for each in (state, live):
        each["plan"] = each["agent/name"] = 1
        assert each._ipython_key_completions_() == ["agent/name", "plan"]
        assert each.namespace("agent")._ipython_key_completions_() == ["name"]
    state.commit()
    snapshot = state.checkout("HEAD")
    assert snapshot._ipython_key_completions_() == ["agent/name", "plan"]
    state["new"] = 1
    assert state.status()._ipython_key_completions_() == ["new"]


def test_all_that_holds_a_state_says_so() -> None:
    """No object shows a lock or a queue as the reason."""
    for name, thing in things(Faulty(Memory())).items():
        if name in ("Commit", "Log", "Diff", "Change"):
            continue
        with pytest.raises(TypeError, match=r"cannot be pickled or copied: ") as caught:
            pickle.dumps(thing)
        assert "_thread" not in str(caught.value), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda state: state.subscribe("a*", 3), "the function of subscribe is a function, not int"),
        (lambda state: state.namespace("n").subscribe("a*", 3), "the function of subscribe is a function"),
        (lambda state: state.before_commit(3), "the function of before_commit is a function, not int"),
        (lambda state: upgrade("app.Plan", 3), "the function of upgrade is a function, not int"),
        (lambda state: state.subscribe(print, "a*"), "the function of subscribe is a function, not str"),
        (lambda state: state.watch(3), "pattern is a str, not int"),
        (lambda state: state.keys(3), "prefix is a str, not int"),
        (lambda state: state.values(3), "prefix is a str, not int"),
        (lambda state: state.items(3), "prefix is a str, not int"),
        (lambda state: state.get_many("key"), r"several keys, not a str: write \['key'\]"),
        (lambda state: state.namespace("n").get_many("key"), "several keys, not a str"),
        (lambda state: state.repo.restore("main", "HEAD", "key"), r"restore takes several keys, not a str"),
        (lambda state: state.repo.commit("main", delete="key"), r"delete takes several keys, not a str"),
        (lambda state: state.repo.branches("main"), r"several names, not a str: write \['main'\]"),
        (lambda state: state.commit(3), "a commit message is a str, not int"),
        (lambda state: state.log(key=3), "keys are str, not int: 3"),
        (lambda state: state.blame("key", 3), "path is a str, not int"),
        (lambda state: view({}), "a view is of a state or a snapshot, not of dict"),
        (lambda state: events({}), "events are of a Versioned, a Live or a Namespace, not of dict"),
    ],
)
def test_a_wrong_type_is_refused_by_the_call_that_takes_it(
    call: Callable[[Versioned], object], message: str
) -> None:
    """The error names the argument and the type; nothing fails later, in a thread or a loop."""
    state = Versioned()
    state["key"] = 1
    state.commit()
    with pytest.raises(TypeError, match=message):
        call(state)
