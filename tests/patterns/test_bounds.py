"""bound: each commit is within the limit."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator, MutableMapping
from decimal import Decimal
from math import nan
from typing import Any

import pytest
from agent_stores import AgentStore
from present import present
from running import at_once

from vstate import Live, Versioned, aio
from vstate.errors import InvalidInput
from vstate.patterns import EventStream, Sequence, bound, scope
from vstate.state.snapshot import Snapshot


def tokens(value: Any) -> int:
    return sum(len(str(item).split()) for item in value)


def test_the_oldest_go(local_store: AgentStore) -> None:
    """A commit, an update and a transaction keep the last three; history has the others."""
    state = Versioned(local_store(), branch="main")
    bound(state, "log", limit=3)
    log = state["log"] = ["a", "b", "c"]
    first = present(state.commit())
    log.append("d")
    state.commit()
    assert log == state["log"] == ["b", "c", "d"]
    state.apply(lambda inner: inner["log"].extend("ef"))
    with state.transaction():
        state["log"].append("g")
    assert dict(Versioned(local_store(), branch="main")) == {"log": ["e", "f", "g"]}
    assert state.checkout(first)["log"] == ["a", "b", "c"]
    assert not state.has_uncommitted


def test_a_summary_replaces_the_oldest_parts(local_store: AgentStore) -> None:
    """The summariser gets a copy, once an attempt, only over the limit; the list is edited in place."""
    calls: list[list[str]] = []

    def summarise(value: list[str]) -> list[str]:
        calls.append(list(value))
        value.clear()
        return [f"summary of {len(calls[-1]) - 1}", calls[-1][-1]]

    state = Versioned(local_store(), branch="main")
    bound(state, "log", limit=3, shrink=summarise)
    log = state["log"] = ["a", "b", "c"]
    state.commit()
    assert calls == []
    log.append("d")
    state.commit()
    state["other"] = 1
    state.commit()
    assert (log, calls) == (["summary of 3", "d"], [["a", "b", "c", "d"]])
    assert Versioned(local_store(), branch="main")["log"] == log


class Log(list[Any]):
    """A list of the program."""


class Around(MutableMapping[str, Any]):
    """A mapping of the program around a dict, which a shallow copy shares."""

    def __init__(self, inside: dict[str, Any]) -> None:
        self.inside = inside

    def __getitem__(self, key: str) -> Any:
        return self.inside[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.inside[key] = value

    def __delitem__(self, key: str) -> None:
        del self.inside[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inside)

    def __len__(self) -> int:
        return len(self.inside)


def keys(*names: str) -> dict[str, list[str]]:
    return {name: [name] for name in names}


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: [["a"], ["b"], ["c"], ["d"]],
    "subclass": lambda: Log([["a"], ["b"], ["c"], ["d"]]),
    "UserList": lambda: UserList([["a"], ["b"], ["c"], ["d"]]),
    "deque": lambda: deque([["a"], ["b"], ["c"], ["d"]], 9),
    "dict": lambda: keys(*"abcd"),
    "OrderedDict": lambda: OrderedDict(keys(*"abcd")),
    "UserDict": lambda: UserDict(keys(*"abcd")),
    "dict inside": lambda: Around(keys(*"abcd")),
    "bytearray": lambda: bytearray(b"abcd"),
    "set": lambda: {1, 2, 3, 4},
    "tuple": lambda: (1, 2, 3, 4),
    "str": lambda: "abcd",
    "bytes": lambda: b"abcd",
}


def parts(value: Any) -> list[Any]:
    return list(value.values() if isinstance(value, MutableMapping) else value)


@pytest.mark.parametrize("make_state", [Versioned, Live])
@pytest.mark.parametrize("shrinks", [False, True], ids=["oldest", "shrink"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_parts_of_each_kind_stay(kind: str, shrinks: bool, make_state: Any) -> None:
    """A value that can be changed stays the one that the program holds, with the parts that stay."""
    immutable = kind in ("tuple", "str", "bytes")

    def shrink(value: Any) -> Any:
        if immutable:
            return value[2:]
        if kind == "set":
            return value - {1, 2}
        for key in list(value)[:2] if isinstance(value, MutableMapping) else (0, 0):
            del value[key]
        return value

    state = make_state()
    bound(state, ("user", "log"), limit=2, shrink=shrink if shrinks or kind == "set" else "oldest")
    held = KINDS[kind]()
    expected = parts(held)[2:]
    state["user/log"] = held
    state.commit("begin")
    assert state["user/log"] is held or immutable
    assert parts(state["user/log"]) == expected
    assert type(state["user/log"]) is type(held)
    if isinstance(expected[-1], list) and kind != "dict inside" and make_state is Versioned:
        expected[-1].append("edited")  # a copy of the others copies its parts too
        assert state.commit("edited") is not None
        assert parts(Snapshot(state.repo, state.head)["user/log"]) == expected


def test_sequences_and_streams(local_store: AgentStore) -> None:
    """By name, as themselves, in a namespace, and beside others whose names begin alike."""
    state = Versioned(local_store(), branch="main")
    inner = scope(state, "user", "a/b")
    log: Sequence[int] = Sequence(inner, "log")
    logs: Sequence[int] = Sequence(inner, "logs")
    stream: EventStream[int] = EventStream(state, "events")
    tokens_of: Sequence[str] = Sequence(state, ("talk", "1"))
    bound(inner, "log", limit=3)
    bound(state, stream, limit=2)
    bound(state, tokens_of, limit=4, cost=tokens)
    log.extend(range(10))
    logs.extend(range(10))
    stream.extend(range(10))
    tokens_of.extend(["one", "two three", "four five"])
    inner["log"] = [9] * 5
    state.commit()
    assert (list(log), list(logs), list(stream), inner["log"]) == (
        [7, 8, 9],
        list(range(10)),
        [8, 9],
        [9] * 3,
    )
    assert list(tokens_of) == ["two three", "four five"]
    kept = list(log.keys())
    bound(inner, log, limit=2, shrink=lambda items: [f"{len(items) - 1} before", *items[-1:]])
    state.commit()
    assert list(log) == ["2 before", 9]
    assert list(log.keys()) == kept[1:]
    end = bound(inner, log, limit=1, shrink=lambda items: ("x",))
    with pytest.raises(InvalidInput, match="a list that is no longer"):
        state.commit()
    end()
    state.apply(lambda _: log.append(10))
    assert list(log) == ["2 before", 10]
    assert stream.fold(lambda so_far, event: so_far + event, 0) == 17


def test_in_live() -> None:
    """`commit`, `update` and `transaction` shrink; an error of a hook in a transaction undoes it."""
    state = Live()
    bound(state, "log", limit=2)
    state["log"] = [1, 2, 3]
    state.commit()
    assert state["log"] == [2, 3]
    state.apply(lambda inner: inner.update({"log": [1, 2, 3, 4]}))
    assert state["log"] == [3, 4]
    with state.transaction():
        with state.transaction():
            state["log"] = [5, 6, 7]
        assert state["log"] == [5, 6, 7]
    assert state["log"] == [6, 7]
    with pytest.raises(InvalidInput), state.transaction():
        state["log"] = {1, 2, 3}
    assert state["log"] == [6, 7]


def test_in_aio() -> None:
    """A state of vstate.aio is bound once it is open."""

    async def main() -> None:
        state = aio.Versioned()
        with pytest.raises(InvalidInput, match="async with"):
            bound(state, "log", limit=2)
        async with state:
            bound(state, "log", limit=2)
            await state.apply(lambda inner: inner.update({"log": [1, 2, 3]}))
            assert await state["log"] == [2, 3]
            bound(state.namespace("inner"), "log", limit=1)
            async with state.transaction():
                await state.set("inner/log", [1, 2, 3])
            assert await state["inner/log"] == [3]

    asyncio.run(main())


def test_a_hook_that_raises_stops_the_commit(local_store: AgentStore) -> None:
    """Everything stays staged; once the summariser works again, all is committed."""
    state = Versioned(local_store(), branch="main")
    down = [True]

    def summarise(value: list[int]) -> list[int]:
        if down[0]:
            value.clear()
            raise ConnectionError("the model is away")
        return value[-2:]

    end = bound(state, "log", limit=2, shrink=summarise)
    state["log"] = [1, 2, 3]
    state["other"] = 1
    with pytest.raises(ConnectionError):
        state.commit()
    assert (state["log"], state["other"], state.head) == ([1, 2, 3], 1, None)
    assert state.status().added == ["log", "other"]
    down[0] = False
    state.commit()
    assert state["log"] == [2, 3]
    down[0] = True
    with pytest.raises(ConnectionError):
        state.apply(lambda inner: inner["log"].append(4))
    assert state["log"] == [2, 3]
    assert not state.has_uncommitted
    with pytest.raises(ConnectionError), state.transaction():
        state["log"].append(4)
    end()
    state["log"] = [1, 2, 3]
    state.commit()
    assert state["log"] == [1, 2, 3]


NO_COSTS: list[Any] = [nan, -1, None, "3", Decimal("nan"), [1]]


def test_a_value_that_cannot_be_shrunk_raises() -> None:
    """One item over the limit, a set, a summariser that returns nothing or too much, wrong arguments."""
    state = Versioned()
    for value, options, reason in (
        (["one two three four"], {"cost": tokens}, "its limit is 3"),
        ({1, 2, 3, 4}, {}, "has no oldest part"),
        ([1, 2, 3, 4], {"shrink": lambda value: None}, "returned None"),
        ([1, 2, 3, 4], {"shrink": lambda value: value}, "its limit is 3"),
        ([], {"cost": lambda value: 4}, "costs 4 after shrinking"),
        ("", {"cost": lambda value: 4}, "costs 4 after shrinking"),
        ({}, {"cost": lambda value: 4}, "costs 4 after shrinking"),
        (deque(), {"cost": lambda value: 4}, "costs 4 after shrinking"),
        *(([1], {"cost": lambda value, bad=bad: bad}, "a number from 0 on") for bad in NO_COSTS),
    ):
        end = bound(state, "key", limit=3, **options)
        state["key"] = value
        with pytest.raises(InvalidInput, match=reason):
            state.commit()
        assert state["key"] == value
        end()
    with pytest.raises(InvalidInput):
        bound(state, "key", limit=1, shrink="newest")  # type: ignore[arg-type]
    for limit in (nan, -1, None, "3"):
        with pytest.raises(InvalidInput, match="limit is a number from 0 on, not"):
            bound(state, "m", limit=limit)  # type: ignore[arg-type]
    bound(state, "key", limit=0)
    state["key"] = [1]
    state.commit()
    assert state["key"] == []


def test_racing_updates_stay_within_the_limit(shared_store: AgentStore) -> None:
    """Each attempt shrinks the newest state: no removed item comes back, and no last item is missing."""

    def work(worker: int) -> None:
        state = Versioned(shared_store(), branch="main")
        bound(state, "log", limit=5)
        bound(state, "items", limit=5)
        for number in range(10):

            def append(inner: Any, number: int = number) -> None:
                inner.setdefault("log", []).append((worker, number))
                Sequence(inner, "items").append((worker, number))
                inner[f"mine-{worker}"] = number

            state.apply(append, attempts=200)
            assert len(state["log"]) <= 5

    at_once(work, range(3))
    state = Versioned(shared_store(), branch="main")
    appended = [state.checkout(commit)["log"][-1] for commit in state.log()][::-1]
    assert state["log"] == list(Sequence(state, "items")) == appended[-5:]
    assert sorted(appended) == [(worker, number) for worker in range(3) for number in range(10)]


def test_a_bound_adds_no_reads_to_other_updates() -> None:
    """An update of another key does not depend on the bounded sequence, nor load the bounded value."""
    one = Versioned(branch="main")
    other = Versioned(one.store, branch="main")
    Sequence(one, "items").extend(range(10))
    one["log"] = list(range(10))
    one.commit()
    other.refresh()
    bound(other, "items", limit=20)
    bound(other, "log", limit=20)
    other.update({"x": 0})
    other.commit()
    runs = []

    def change(inner: Any) -> None:
        runs.append(1)
        if len(runs) == 1:
            one.refresh()
            Sequence(one, "items").append(10)
            one["log"].append(10)
            one.commit()
        inner["x"] = len(runs)

    other.apply(change)
    assert len(runs) == 1
    assert len(Sequence(other, "items")) == 11


def test_the_next_commit_shrinks_unbound_writes_of_others() -> None:
    """A value and items that this handle never read, with a cost of its own, after each change."""
    one = Versioned(branch="main")
    other = Versioned(one.store, branch="main")
    for key in ("value", "items"):
        bound(one, key, limit=3, cost=tokens)
    one["x"] = 0
    one.commit()
    for round in range(3):
        other.refresh()
        other["value"] = [str(round)] * 5
        Sequence(other, "items").extend([str(round)] * 5)
        other.commit()
        one.refresh()
        one["x"] = round + 1
        one.commit()
        assert one["value"] == list(Sequence(one, "items")) == [str(round)] * 3
        one.discard()


@pytest.mark.parametrize("kind", [Versioned, Live])
def test_a_hook_is_called_once_a_commit_with_its_state(kind: Any) -> None:
    """Also without changes, and as often as it was given; only the returned function ends that."""
    state, given = kind(), list[Any]()
    inner = state.namespace("inner")
    first, second = state.before_commit(given.append), state.before_commit(given.append)
    state.commit()
    first()
    first()
    inner.before_commit(given.append)
    with state.transaction():
        state["a"] = 2
        with state.transaction():
            state["a"] = 3
    second()
    state.apply(lambda inner: inner.update({"a": 4}))
    assert [each is state for each in given] == [True, True, True, False, False]
    assert given[3] is given[4] is inner


def test_what_a_hook_changes_is_in_the_commit() -> None:
    """With what an update of it changes, too."""
    state = Versioned()
    state.before_commit(lambda state: state.apply(lambda inner: inner.update({"stamp": inner["a"]})))
    state["a"] = 5
    state.commit()
    assert not state.has_uncommitted
    assert dict(state) == {"a": 5, "stamp": 5}


def test_a_hook_does_not_move_the_branch() -> None:
    """A move to another branch in a commit would lose the reads of the update: the hook gets an error."""
    state = Versioned(branch="main")
    state["a"] = 1
    state.commit()
    state.create_branch("other")
    state["a"] = 2
    state.commit()
    moves: list[Any] = [
        state.refresh, state.purge, state.undo, lambda: state.rollback(steps=1), lambda: state.merge("other"),
        lambda: state.reset("HEAD~1"), lambda: state.switch("other"), lambda: state.cherry_pick("other"),
    ]  # fmt: skip
    for move in moves:
        end = state.before_commit(lambda state, move=move: move())
        for operation in (lambda: state.apply(lambda inner: inner.update({"a": 3})), state.commit):
            with pytest.raises(InvalidInput, match="cannot commit, nor move the branch"):
                operation()
        end()
    assert (state["a"], state.branch, len(list(state.log()))) == (2, "main", 2)
    state.refresh()


def test_an_update_depends_on_the_reads_of_its_hooks() -> None:
    """If others change the key that the hook reads, the update runs again."""
    one = Versioned(branch="main")
    one.apply(lambda inner: inner.update({"a": 1}))
    other = Versioned(one.store, branch="main")
    other.before_commit(lambda state: other.update({"copy": other["a"]}))
    runs: list[int] = []

    def change(inner: Any) -> None:
        runs.append(1)
        if len(runs) == 1:
            one.apply(lambda theirs: theirs.update({"a": 2}))
        inner["x"] = 1

    other.apply(change)
    assert (len(runs), other["copy"]) == (2, 2)


def test_a_sequence_of_another_state() -> None:
    """Commits of this state cannot bound it; a sequence of a namespace of this state is fine."""
    state, other = Versioned(), Versioned()
    for key in (Sequence[int](other, "log"), EventStream[int](scope(other, "x"), "log")):
        with pytest.raises(InvalidInput, match="is in another state"):
            bound(state, key, limit=2)
    log: Sequence[int] = Sequence(scope(state, "x"), "log")
    bound(state.namespace("y"), log, limit=2)
    log.extend(range(5))
    state.commit()
    assert list(log) == [3, 4]
