"""vstate refuses an async function where it calls a function, because the body would never run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from loops import in_a_loop
from pydantic import BaseModel

from vstate import Live, Versioned, aio
from vstate.managers import Manager
from vstate.patterns import EventStream, Records, bound
from vstate.sessions import Conversation, StateModule


async def coroutine(*args: Any) -> Any:
    """An async function, as in a program that is async throughout."""
    return args


def generator(*args: Any) -> Any:
    """A generator function: calling it runs nothing."""
    yield args


async def both(*args: Any) -> Any:
    yield args


class Hidden:
    """A callable that does not look async before it is called."""

    async def __call__(self, *args: Any) -> Any:
        return args


class Note(BaseModel):
    name: str
    text: str = ""


def filled(**values: Any) -> Versioned:
    """A state with a list, two commits and these values staged."""
    state = Versioned()
    for number in range(3):
        state["n"] = number
        state.commit()
    state.update(values)
    return state


def in_a_transaction(function: Any) -> object:
    state = Versioned()
    with state.transaction():
        return state.apply(function)


def hooked(state: Any, function: Any) -> object:
    state.namespace("part").before_commit(function)
    return state.commit()


def a_record(function: Any) -> object:
    notes = Records(Versioned(), Note, key="name")
    notes.put(Note(name="a"))
    return notes.change("a", function)


def bounded(**options: Any) -> object:
    state = filled()
    bound(state, "list", limit=1, **options)
    state["list"] = [1, 2]
    return state.commit()


def fold(function: Any) -> object:
    stream: EventStream[Any] = EventStream(Versioned(), "events")
    stream.append(1)
    return stream.fold(function, 0)


def summarise(function: Any) -> object:
    conversation = Conversation(Versioned(), "chat")
    conversation.extend(["a", "b"])
    return conversation.window(last=1, summarise=function)


def load_an_attribute(function: Any) -> object:
    module = StateModule()
    module.mood = "good"  # type: ignore[attr-defined]
    module.register_state("mood", custom_to_json=str, custom_from_json=function)
    return module.load_state_dict({"mood": "bad"})


CALLS: dict[str, Callable[[Any], object]] = {
    "apply of a Live": lambda function: Live().apply(function),
    "apply in a transaction": in_a_transaction,
    "bisect": lambda function: filled().bisect(function, "HEAD~2"),
    "before_commit": lambda function: hooked(Versioned(), function),
    "before_commit of a Live": lambda function: hooked(Live(), function),
    "change": a_record,
    "shrink": lambda function: bounded(shrink=function),
    "cost": lambda function: bounded(cost=function),
    "fold": fold,
    "summarise": summarise,
    "custom_from_json": load_an_attribute,
}


@pytest.mark.parametrize(
    "function", [coroutine, generator, both, Hidden()], ids=lambda each: getattr(each, "__name__", "hidden")
)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_would_not_run_is_refused(call: Callable[[Any], object], function: Any) -> None:
    """TypeError says to pass a plain function, and no coroutine is left that was never awaited."""
    with pytest.raises(TypeError, match="must be a plain function, not async or a generator"):
        call(function)


@pytest.mark.parametrize("function", [coroutine, generator, both])
def test_a_subscriber_is_refused_before_anything_is_watched(function: Any) -> None:
    """subscribe() refuses the function, because later no caller could get the error."""
    with Versioned() as state:
        for mapping in (state, state.namespace("part")):
            with pytest.raises(TypeError, match="plain function"):
                mapping.subscribe("*", function)


def test_a_policy_is_refused_where_it_is_set() -> None:
    """A merge policy must return a value, not a coroutine."""
    with pytest.raises(TypeError, match="a merge policy must be a plain function"):
        Versioned().set_policy("n", coroutine)


@in_a_loop
async def test_awaited_states_call_what_they_are_given_too() -> None:
    """The calls in worker threads refuse async functions too; `await` is for the call itself."""

    class Notes(Manager):
        part = "notes"

    async with aio.Versioned() as state, Notes() as notes:
        for call in (state.read, state.apply, notes.read, lambda function: notes.change(function, "")):
            assert callable(call)
            with pytest.raises(TypeError, match="plain function"):
                assert not inspect.iscoroutine(await call(coroutine))
