"""Tasks commit once a call; events record facts in their commit; view shows keys."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from datetime import date
from typing import Any

import pytest

from vstate import (
    InvalidInput,
    Live,
    Memory,
    MergeConflict,
    NotVersioned,
    StoreUnavailable,
    Unpicklable,
    Versioned,
    events,
    task,
    view,
)
from vstate.state.base import State
from vstate.testing import Faulty


@task
def add(value: Any, *, state: Any, fail: bool = False) -> int:
    """Add a value to the list."""
    state.setdefault("list", []).append(value)
    state.record("added", value=value)
    if fail:
        raise ValueError("no")
    return len(state["list"])


@task
async def add_async(value: Any, *, state: Any, fail: bool = False) -> int:
    """Add a value to the list, after a moment."""
    state.setdefault("list", []).append(value)
    await asyncio.sleep(0)
    if fail:
        raise ValueError("no")
    return len(state["list"])


@task(name="outer")
def outer(*, state: Any, fail: bool = False) -> None:
    add(1, state=state)
    try:
        add(2, state=state, fail=True)
    except ValueError:
        pass
    state["outer"] = True
    if fail:
        raise KeyError("outer")


def messages(state: Versioned) -> list[str]:
    return [commit.message for commit in state.log()][::-1]


def kinds(state: Any, **options: Any) -> list[str]:
    return [event.kind for event in events(state, **options)]


def test_one_commit_a_call() -> None:
    """A call makes one commit with the task's name, duration and outcome."""
    state = Versioned()
    assert add("x", state=state) == 1
    assert add("y", state=state) == 2
    assert messages(state) == ["add(value='x')", "add(value='y')"]
    assert state.head is not None
    assert state.head.info["name"] == "add"
    assert state.head.info["outcome"] == "ok"
    assert 0 <= state.head.info["seconds"] < 60
    assert kinds(state) == ["task.start", "added", "task.end"] * 2
    assert add.__doc__ == "Add a value to the list."
    assert add.__name__ == "add"


def test_async_is_one_commit_a_call() -> None:
    """An async task makes one commit too, also on an exception, and concurrent tasks take turns."""
    state = Versioned()

    async def main() -> None:
        await asyncio.gather(*(add_async(i, state=state) for i in range(5)))
        with pytest.raises(ValueError, match="no"):
            await add_async("bad", state=state, fail=True)

    asyncio.run(main())
    assert sorted(state["list"]) == list(range(5))
    assert sorted(messages(state)) == [
        "add_async(value='bad', fail=True)",
        *(f"add_async(value={i})" for i in range(5)),
    ]
    sizes = [len(state.checkout(c).get("list", [])) for c in state.log()][::-1]
    assert sizes == [1, 2, 3, 4, 5, 5]


def test_nested_tasks_add_to_the_outer_commit() -> None:
    """Nested tasks make no commit. A nested failure that is caught discards only its own changes."""
    state = Versioned()
    outer(state=state)
    assert messages(state) == ["outer()"]
    assert dict(state) == {"list": [1], "outer": True}
    assert kinds(state).count("task.start") == 3
    assert kinds(state).count("task.error") == 1


@pytest.mark.parametrize(
    ("mode", "listed", "commits"), [("discard", [], 1), ("commit", [1], 1), ("keep", [1], 0)]
)
def test_on_error(mode: Any, listed: list[int], commits: int) -> None:
    """on_error discards, commits or keeps staged the changes of a failing call."""

    @task(on_error=mode)
    def fails(*, state: Any) -> None:
        state["list"].append(1)
        raise ValueError("no")

    state = Versioned()
    state["list"] = []
    state.commit()
    with pytest.raises(ValueError, match="no"):
        fails(state=state)
    assert state["list"] == listed
    assert len(messages(state)) == 1 + commits
    assert state.status().modified == (["list"] if mode == "keep" else [])
    [error] = events(state, kind="task.error")
    assert (error.data["type"], error.data["message"], error.data["name"]) == ("ValueError", "no", "fails")
    assert mode == "keep" or (error.commit, state.head.info["outcome"]) == (state.head.id, "error")


def test_bad_options() -> None:
    """An unknown on_error, a generator function and an object that is no state are refused."""
    with pytest.raises(InvalidInput):
        task(on_error="x")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput):

        @task
        def generator(*, state: Any) -> Any:
            yield 1

    with pytest.raises(TypeError):
        add(1, state={})


def test_without_a_state() -> None:
    """Without a state each call gets a fresh Live. With a Live, calls share its values."""
    assert add(1) == add(2) == 1  # type: ignore[call-arg]
    live = Live()
    assert [add(i, state=live) for i in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="no"):
        add(3, state=live, fail=True)
    assert kinds(live)[-1] == "task.error"
    assert all(event.commit is None for event in events(live))


@pytest.mark.parametrize("mode", ["discard", "commit"])
def test_a_result_that_cannot_be_stored(mode: Any) -> None:
    """The call raises Unpicklable with the key, and leaves nothing behind: later tasks run and commit."""
    state = Versioned()
    state["mine"] = 1

    @task(on_error=mode)
    def lock(*, state: Any) -> None:
        state["lock"] = threading.Lock()
        state["other"] = [1]
        state["mine"] = 2

    for _ in range(2):
        with pytest.raises(Unpicklable, match=r"lock.*Nothing was stored") as caught:
            lock(state=state)
    assert caught.value.__notes__ == [
        "vstate: the commit of the task 'lock' failed, and its changes are undone"
    ]
    assert dict(state) == {"mine": 1}
    assert kinds(state) == ["task.start", "task.error"] * 2
    assert not state.has_uncommitted
    add("x", state=state)
    assert messages(state) == ["Before lock", "lock()", "lock()", "add(value='x')"]


@pytest.mark.parametrize(
    ("mode", "fails", "error"), [("keep", False, Unpicklable), ("commit", True, ZeroDivisionError)]
)
def test_a_result_that_cannot_be_stored_and_an_error(mode: Any, fails: bool, error: Any) -> None:
    """With "keep" the changes stay staged; with "commit" the caller gets the function's own exception."""

    @task(on_error=mode)
    def lock(*, state: Any) -> None:
        state["lock"] = threading.Lock()
        if fails:
            raise ZeroDivisionError

    state = Versioned()
    with pytest.raises(error):
        lock(state=state)
    assert list(state) == ([] if fails else ["lock"])


def test_a_conflict_of_a_task_leaves_nothing_behind() -> None:
    """The call that lost a race raises MergeConflict; the next call works on the newest commit."""
    store = Memory()
    state, other = Versioned(store), Versioned(store)

    @task
    def count(*, state: Any, beside: Any = None) -> None:
        state["n"] = state.get("n", 0) + 1
        if beside is not None:
            beside["n"] = 10
            beside.commit()

    with pytest.raises(MergeConflict, match="nothing is staged: call the task again"):
        count(state=state, beside=other)
    assert not state.has_uncommitted
    count(state=state)
    assert state["n"] == 11


def test_a_failing_hook_undoes_the_task() -> None:
    """So does any other exception of the commit, in a task that awaits too."""
    state = Versioned()

    def stop(state: Versioned) -> None:
        if "new" in state:
            raise ZeroDivisionError

    state.before_commit(stop)

    @task
    async def work(*, state: Any) -> None:
        state["new"] = 1

    with pytest.raises(ZeroDivisionError):
        asyncio.run(work(state=state))
    assert not dict(state)
    assert kinds(state) == ["task.start", "task.error"]
    assert state.head is not None
    assert state.head.info["outcome"] == "error"


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.slow
def test_every_fault_of_a_task_leaves_it_done_or_undone(after: bool, atomic: bool) -> None:
    """Wherever the store fails, or loses its answer, the task is committed whole, once, or not at all."""
    failed = 0
    for fail_at, away in itertools.product(range(1, 10), (0, 1, 4)):
        store = Faulty(Memory(), after=after, atomic=atomic, away=away)
        state = Versioned(store)
        add("first", state=state)
        store.fail_at = len(store.calls) + fail_at
        try:
            add("second", state=state)
        except StoreUnavailable:
            failed += 1
        store.fail_at, store.away = None, 0
        made = "second" in state["list"]
        assert state["list"] == ["first", *["second"] * made]
        assert not state.status()
        add("third", state=state)
        fresh = Versioned(store.store)
        assert fresh["list"] == ["first", *["second"] * made, "third"]
        assert kinds(fresh).count("task.end") == 2 + made
    assert failed


@pytest.mark.parametrize(
    "wrong",
    [lambda x: x, lambda state, /: state, len, "name", int],
    ids=["no state", "positional only", "builtin", "text", "class"],
)
def test_a_function_without_state_is_refused_at_once(wrong: Any) -> None:
    """The decoration raises the TypeError, not the first call."""
    with pytest.raises(TypeError, match=r"has no argument 'state'|a task is a function"):
        task(wrong)
    with pytest.raises(TypeError, match=r"the task <lambda> takes its state by name: "):
        task(lambda x, state: x)(1, Versioned())
    assert task(lambda **options: options)(x=1)["x"] == 1
    assert task(functools.partial(lambda x, state: x, 7))() == 7


def test_events() -> None:
    """events() lists the oldest first, by kind, limit and revision, each with its commit."""
    state = Versioned()
    for i in range(3):
        state["k"] = i
        state.record("step", i=i, nested={"a": [1, None]})
        state.record("noise")
        state.commit(f"c{i}")
    state.record("step", i=3)
    found = events(state, kind="step")
    assert [event.data["i"] for event in found] == [0, 1, 2, 3]
    assert [state.checkout(event.commit)["k"] for event in found[:3] if event.commit] == [0, 1, 2]
    assert found[3].commit is None
    assert [event.data["i"] for event in events(state, kind="step", limit=2)] == [2, 3]
    assert [event.data["i"] for event in events(state, kind="step", rev="HEAD~1")] == [0, 1]
    assert events(state, limit=0) == []
    times = [event.time for event in events(state)]
    assert times == sorted(times)
    with pytest.raises(InvalidInput, match=r"data\['bad'\]"):
        state.record("x", bad=object())


def test_the_three_hundredth_event_costs_what_the_tenth_did() -> None:
    """The bytes of a commit with one event do not grow with the number of earlier events."""
    store = Memory()
    state = Versioned(store)
    sizes: dict[int, int] = {}
    for i in range(1, 301):
        before = sum(map(len, dict(store.items()).values())) if i in (10, 300) else 0
        state.record("step", number=10_000 + i)
        state["last"] = 10_000 + i
        state.commit("step")
        if before:
            sizes[i] = sum(map(len, dict(store.items()).values())) - before
    assert abs(sizes[300] - sizes[10]) < 0.05 * sizes[10]


def test_view() -> None:
    """view returns a dict that prints as a table, of every key or of the keys in the newest commit."""
    state = Versioned()
    assert view(state, "recent") == {}
    state["a"], state["n/b"] = 1, "x" * 1000
    state.commit("one")
    state["a"] = 2
    state["n/c"] = None
    state.commit("two")
    assert view(state) == {"a": 2, "n/b": "x" * 1000, "n/c": None}
    assert view(state, focus="recent") == {"a": (1, 2), "n/c": (None, None)}
    assert view(state.checkout("HEAD~1"), "recent") == {"a": (None, 1), "n/b": (None, "x" * 1000)}
    assert view(state.checkout("HEAD~1")) == {"a": 1, "n/b": "x" * 1000}
    assert view(state.namespace("n")) == {"b": "x" * 1000, "c": None}
    assert view(state.namespace("n"), "recent") == {"c": (None, None)}
    lines = str(view(state)).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) < 300
    assert "<table>" in view(state)._repr_html_()
    with pytest.raises(InvalidInput):
        view(state, "other")  # type: ignore[arg-type]
    assert view(Live()) == {}
    with pytest.raises(NotVersioned):
        view(Live(), "recent")


class Secret(str):
    pass


TOLD = [
    ((3,), {}, "turn(step=3)"),
    ((), {"step": 3.5}, "turn(step=3.5)"),
    (("a\nb", "c", True), {"other": None}, "turn(step='a\\nb', rest='c', True, other=None)"),
    ((Secret("key"),), {}, "turn(step=<Secret>)"),
    (([1, 2, 3, 4],), {"other": {"a": [Versioned]}}, "turn(step=[1, 2, 3, ...], other={'a': [<ABCMeta>]})"),
    ((b"x",), {"on": date(2026, 1, 2)}, "turn(step=b'x', on=datetime.date(2026, 1, 2))"),
    (("x" * 50,), {"other": "y" * 50}, f"turn(step='{'x' * 17}...{'x' * 18}', other='{'y' * 12}…"),
    (("\ud800",), {"\ud800": 1}, "turn(step='\\ud800', \ufffd=1)"),
    ((10**5000,), {}, None),
]


@pytest.mark.parametrize(("args", "options", "told"), TOLD)
def test_the_message_has_the_call_in_one_line(args: Any, options: Any, told: str | None) -> None:
    """Plain data is written as in Python, cut short, and of other objects the class alone."""

    @task
    def turn(step: object, rest: object = 0, *more: object, state: State, **others: object) -> None:
        state["step"] = 1

    state = Versioned()
    turn(*args, **options, state=state)
    [message] = messages(state)
    assert told is None or message == told
    assert message.startswith("turn(")
    assert len(message) <= 72


def test_a_message_of_ones_own() -> None:
    """It is a text, or a function of the arguments and the result; a call that raises has no result."""

    @task(message="a turn")
    def text(*, state: State) -> None:
        state["n"] = 1

    @task(name="double", message=lambda n, result: f"{n} doubled is {result}")
    def made(n: int, *, state: State) -> int:
        state["n"] = 1 / (n - 1) + n
        return 2 * n

    @task(message=lambda n, result: f"awaited {n}, {result}")
    async def awaited(n: int, *, state: State) -> int:
        state["n"] = n
        return n

    state = Versioned()
    text(state=state)
    made(3, state=state)
    made(n=4, state=state)
    with pytest.raises(ZeroDivisionError):
        made(1, state=state)
    asyncio.run(awaited(7, state=state))
    assert messages(state) == [
        "a turn", "3 doubled is 6", "4 doubled is 8", "double(n=1)", "awaited 7, 7",
    ]  # fmt: skip
    assert state.head is not None
    assert state.head.info["name"] == "awaited"


def test_a_message_that_cannot_be_made() -> None:
    """The caller gets the error of the function, and the changes of the call are undone."""

    @task(message=lambda result: 1 / 0)
    def work(*, state: State) -> None:
        state["n"] = 1

    state = Versioned()
    with pytest.raises(ZeroDivisionError):
        work(state=state)
    assert dict(state) == {}
    assert kinds(state) == ["task.start", "task.error"]
    with pytest.raises(TypeError, match="the message of a task is a function, not int"):
        task(message=3)  # type: ignore[call-overload]
