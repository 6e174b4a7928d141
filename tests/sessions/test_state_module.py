"""StateModule: registered attributes, the saved state, and loads that change all or nothing."""

from __future__ import annotations

import copy
import json
import threading
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest
from raising import interrupted

from vstate.errors import InvalidInput, NotFound
from vstate.sessions import StateModule
from vstate.sessions.state_module import load_found, save_all


def load_all(modules: Any, states: Any, wrong: Any) -> None:
    load_found("a session", modules, states, wrong, absent="it is absent", allow_not_exist=True)


class Memory(StateModule):
    def __init__(self, content: list[Any] | None = None) -> None:
        super().__init__()
        self.content = content if content is not None else []
        self.register_state("content")


class Plan:
    def __init__(self, goal: str) -> None:
        self.goal = goal


class Agent(StateModule):
    def __init__(self, name: str = "ann") -> None:
        super().__init__()
        self.name = name
        self.memory: Any = Memory()
        self.plan = Plan("none")
        self.register_state("name")
        self.register_state("plan", lambda plan: plan.goal, Plan)


def test_a_round_trip_through_json() -> None:
    """Modules first, then attributes; converters make plain data and the value again."""
    agent = Agent("bob")
    agent.memory.content.append({"role": "user"})
    agent.plan = Plan("win")
    state = json.loads(json.dumps(agent.state_dict()))
    assert list(state) == ["memory", "name", "plan"]
    other = Agent()
    other.load_state_dict(state)
    assert (other.name, other.plan.goal, other.memory.content) == ("bob", "win", [{"role": "user"}])
    assert other.state_dict() == state


def test_a_registered_attribute_that_becomes_a_module() -> None:
    """It is saved once, as the module that it is now."""
    agent = Agent()
    agent.name = Memory([1])  # type: ignore[assignment]
    assert agent.state_dict()["name"] == {"content": [1]}
    json.dumps(agent.state_dict())
    agent.load_state_dict(agent.state_dict())
    assert isinstance(agent.name, Memory)
    agent.name = "ann again"
    assert agent.state_dict()["name"] == "ann again"
    agent.load_state_dict(agent.state_dict() | {"name": "bob"})
    assert agent.name == "bob"


def test_a_module_replaced_by_none_round_trips() -> None:
    """None is saved and loaded as None, and a state with the module brings it back."""
    agent, other = Agent(), Agent()
    agent.memory.content.append(1)
    full = agent.state_dict()
    agent.memory = None
    state = agent.state_dict()
    assert state["memory"] is None
    other.load_state_dict(state)
    assert other.memory is None
    assert other.state_dict() == state
    other.load_state_dict(full)
    assert other.memory.content == [1]


def test_copies_go_in_and_come_out() -> None:
    """A change of a state dict changes no module, and the other way round."""
    memory = Memory([[1]])
    state = memory.state_dict()
    state["content"][0].append(2)
    assert memory.content == [[1]]
    memory.load_state_dict(state)
    memory.content[0].append(3)
    assert state["content"] == [[1, 2]]
    assert copy.deepcopy(memory).content == memory.content


def test_registering() -> None:
    """A missing attribute, a value that is no JSON, and a module are refused; a second call is allowed."""
    module = Agent()
    with pytest.raises(AttributeError):
        module.register_state("nothing")
    module.odd = object()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="odd"):
        module.register_state("odd")
    with pytest.raises(TypeError, match="odd"):
        module.register_state("odd", None, str)
    with pytest.raises(ValueError, match="memory"):
        module.register_state("memory")
    module.register_state("plan", lambda plan: plan.goal.upper(), Plan)
    assert module.state_dict()["plan"] == "NONE"


def test_a_value_that_json_cannot_hold_any_more() -> None:
    """The state has it as it is; a save names its path; the same for a value that is nested too deep."""
    agent = Agent()
    deep: list[Any] = []
    for _ in range(700):
        deep = [deep]
    cycle: dict[str, Any] = {}
    cycle["round"] = cycle
    for odd in (object(), deep, [{1, 2}], threading.Lock(), cycle):
        agent.memory.content = [odd]
        assert len(agent.state_dict()["memory"]["content"]) == 1
        with pytest.raises(TypeError, match=r"agent\.memory\.content\S* cannot be saved as JSON"):
            save_all({"agent": agent})
    agent.memory.content = cycle  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"agent\.memory\.content cannot be saved as JSON"):
        save_all({"agent": agent})


def test_a_subclass_converts_values_of_its_base() -> None:
    """Inside another module too, and by way of `super().state_dict()`."""

    class Messages(Memory):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "content": [message.goal for message in self.content]}

        def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
            super().load_state_dict({"content": [Plan(goal) for goal in state_dict["content"]]}, strict)

    agent, other = Agent(), Agent()
    agent.memory, other.memory = Messages(), Messages()
    agent.memory.content.append(Plan("win"))
    state = save_all({"agent": agent})
    assert state["agent"]["memory"] == agent.memory.state_dict() == {"content": ["win"]}
    load_all({"agent": other}, json.loads(json.dumps(state)), lambda name, reason: AssertionError(reason))
    assert [message.goal for message in other.memory.content] == ["win"]


class Foreign:
    """A module of another framework."""

    def __init__(self, seen: Any = 0) -> None:
        self.seen = seen

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Strict(Foreign):
    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        self.strict = strict
        super().load_state_dict(state)


@pytest.mark.parametrize("kind", [Foreign, Strict])
def test_modules_of_other_frameworks(kind: type[Foreign]) -> None:
    """They are saved and loaded, and a failed load is undone; `register_state` takes one as an attribute."""
    state = save_all({"one": kind([1]), "two": Memory([2])})
    assert state == {"one": {"seen": [1]}, "two": {"content": [2]}}
    one, two = kind(), Memory()

    def wrong(name: str, reason: str) -> Exception:
        return AssertionError(reason)

    with pytest.raises(NotFound):
        load_all({"one": one, "two": two}, {**state, "two": {}}, wrong)
    assert one.seen == 0
    load_all({"one": one, "two": two}, state, wrong)
    assert (one.seen, two.content) == ([1], [2])
    one.seen.append(3)
    assert state["one"] == {"seen": [1]}
    with pytest.raises(TypeError, match=r"one\['seen'\] cannot be saved as JSON"):
        save_all({"one": kind(object())})

    holder = Agent()
    holder.foreign = kind([1])  # type: ignore[attr-defined]
    assert "foreign" not in holder.state_dict()
    holder.register_state("foreign")
    assert holder.state_dict()["foreign"] == {"seen": [1]}
    holder.foreign = kind([2])  # type: ignore[attr-defined]
    state = holder.state_dict()
    assert state["foreign"] == {"seen": [2]}
    holder.foreign.seen = None  # type: ignore[attr-defined]
    holder.load_state_dict(state)
    assert holder.foreign.seen == [2]  # type: ignore[attr-defined]
    holder.foreign = "no module"  # type: ignore[attr-defined]
    assert "foreign" not in holder.state_dict()


def test_no_modules() -> None:
    """Neither plain values, nor a class, nor a mock whose attributes are all there."""
    for value in ({"no": "module"}, Foreign, Mock()):
        with pytest.raises(TypeError, match="not a StateModule"):
            save_all({"one": value})  # type: ignore[dict-item]


def test_missing_keys() -> None:
    """Strict names the path and changes nothing; not strict ignores missing attributes, at any depth."""
    agent = Agent()
    agent.memory.content.append(1)
    before = agent.state_dict()
    for state, path in (
        ({"name": "x", "plan": "p"}, "memory"),
        ({"name": "x", "plan": "p", "memory": {}}, r"memory\.content"),
        ({"memory": {"content": []}, "plan": "p"}, "name"),
    ):
        with pytest.raises(KeyError, match=path) as caught:
            agent.load_state_dict(state)
        assert isinstance(caught.value, NotFound)
        assert agent.state_dict() == before
    agent.load_state_dict({"name": "y", "memory": {}, "unknown": 1}, strict=False)
    assert agent.state_dict() == before | {"name": "y"}


def test_a_failure_in_the_middle_changes_nothing() -> None:
    """Neither a converter that raises nor an attribute that cannot be set leaves half a load."""

    class Odd(Agent):
        def __init__(self) -> None:
            super().__init__()
            self.register_state("fixed")

        @property
        def fixed(self) -> int:
            return 1

    odd = Odd()
    before = odd.state_dict()
    with pytest.raises(AttributeError):
        odd.load_state_dict({"memory": {"content": [1]}, "name": "x", "plan": "y", "fixed": 2})
    assert odd.state_dict() == before

    agent = Agent()
    agent.register_state("plan", lambda plan: plan.goal, lambda goal: 1 / 0)
    before = agent.state_dict()
    with pytest.raises(ZeroDivisionError) as caught:
        agent.load_state_dict({"memory": {"content": [1]}, "name": "x", "plan": "y"})
    assert any("plan" in note for note in caught.value.__notes__)
    assert agent.state_dict() == before


def test_an_interruption_changes_all_or_nothing() -> None:
    """Ctrl-C at any moment of a load leaves the object in its old or its new state."""
    old, new = ([], "ann", "none"), ([1], "new", "win")
    found = set()
    state = {"memory": {"content": [1]}, "name": "new", "plan": "win"}
    for moment in count(1):
        agent = Agent()
        _, interruption = interrupted(partial(agent.load_state_dict, state), moment)
        now = (agent.memory.content, agent.name, agent.plan.goal)
        assert now in (old, new)
        found.add(now == new)
        if interruption is None:
            break
    assert moment > 50
    assert found == {True, False}


def test_errors_of_methods_of_its_own_say_where() -> None:
    """A module with its own load fails with its path too; its edits in place are undone."""

    class Own(Memory):
        def state_dict(self) -> dict[str, Any]:
            return {"content": self.content}

        def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
            self.content.clear()
            self.content.extend(state_dict["content"])

    class Further(Memory):
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict()

        def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
            super().load_state_dict(state_dict, strict)

    holder = StateModule()
    holder.own, holder.further = Own([1]), Further([2])  # type: ignore[attr-defined]
    before = holder.state_dict()
    with pytest.raises(KeyError) as caught:
        holder.load_state_dict({"own": {"content": [3]}, "further": {}})
    assert "while further was loaded" in caught.value.__notes__
    assert holder.state_dict() == before == {"own": {"content": [1]}, "further": {"content": [2]}}
    holder.state_dict()["own"]["content"].append(3)
    assert holder.state_dict() == before
    for name in ("own", "further"):
        module = getattr(holder, name)
        module.content.append(object())
        with pytest.raises(TypeError, match=rf"^holder\.{name}\S*content\S*\[1\] cannot"):
            save_all({"holder": holder})
        module.content.pop()


def test_before_super_init() -> None:
    """The error names the call that is missing."""

    class Early(StateModule):
        def __init__(self) -> None:
            self.memory = Memory()

    class Never(StateModule):
        def __init__(self) -> None:
            self.name = "x"

    with pytest.raises(AttributeError, match="super"):
        Early()
    for call in (
        Never().state_dict,
        lambda: Never().register_state("name"),
        lambda: Never().load_state_dict({}),
    ):
        with pytest.raises(AttributeError, match="super"):
            call()
    del Never().name


def test_a_module_inside_itself() -> None:
    """It is refused by name, without a RecursionError; a module under two names is in the state twice."""
    module = StateModule()
    module.parent = module  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="parent"):
        module.state_dict()
    shared, holder = Memory([1]), StateModule()
    holder.a, holder.b = shared, shared  # type: ignore[attr-defined]
    assert holder.state_dict() == {"a": {"content": [1]}, "b": {"content": [1]}}
