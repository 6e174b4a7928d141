"""VstateStore: LangGraph's long-term memory. The tests of LangGraph's own stores run in `make suites`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running import all_at_once

pytest.importorskip("langgraph.store.base", reason="langgraph-checkpoint is not installed")

from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp

from vstate import CannotLoad, Disk, InvalidInput, Memory, Versioned
from vstate.integrations.langgraph import VstateStore
from vstate.objects import expiry

USER = ("users", "ann")


class Colour:
    """A class of the program."""

    name = "green"


def letters(texts: list[str]) -> list[list[float]]:
    """The number of each letter of a text, for its vector."""
    return [[float(text.lower().count(chr(letter))) for letter in range(97, 123)] for text in texts]


@pytest.fixture
def store() -> Iterator[VstateStore]:
    with VstateStore(Memory()) as store:
        yield store


@pytest.fixture
def pass_minutes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the clock that decides about expiry."""
    real, ahead = expiry.now, timedelta()

    def move(minutes: float) -> None:
        nonlocal ahead
        ahead += timedelta(minutes=minutes)

    monkeypatch.setattr(expiry, "now", lambda: real() + ahead // timedelta(microseconds=1))
    return move


def test_a_batch_is_one_commit_that_the_log_can_show(store: VstateStore) -> None:
    """All changes of a batch are one commit, whose message and keys name the items."""
    store.put(USER, "tea", {"kind": "green"})
    store.batch([PutOp(USER, "a/b", {"x": 1}), PutOp(("other",), "c", {"x": 2}), PutOp(USER, "tea", None)])
    state = Versioned(store.repo.store, branch="memories")
    assert [commit.message for commit in state.log()] == [
        "put 2 items, delete users/ann/tea",
        "put users/ann/tea",
    ]
    assert list(state) == ["items/other/c", "items/users/ann/a%2fb"]
    assert state.undo().tree == state.checkout("HEAD").commit.tree
    assert store.get(USER, "tea") is not None


def test_a_bad_batch_changes_nothing(store: VstateStore) -> None:
    """A bad label, and a value that no reader could load, are refused before anything is written."""
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(USER, "a", {"x": 1}), PutOp(("foo.bar",), "b", {"x": 1})])
    with pytest.raises(CannotLoad, match=r"value of 'b', .*Colour.* Nothing of the batch is written"):
        store.batch([PutOp(USER, "a", {"x": 1}), PutOp(USER, "b", {"colour": Colour()})])
    assert store.list_namespaces() == []
    allowing = VstateStore(store.repo.store, allow=["test_langgraph_store.*"])
    allowing.put(USER, "b", {"colour": Colour()})
    with pytest.raises(CannotLoad):
        store.get(USER, "b")


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda store: store.batch([PutOp(USER, 7, {})])),  # type: ignore[arg-type]  # refused
        (TypeError, lambda store: store.get("users", "a")),
        (TypeError, lambda store: store.search("users")),
        (TypeError, lambda store: store.list_namespaces(prefix="users")),
        (InvalidNamespaceError, lambda store: store.put(("users", ""), "a", {})),
        (InvalidNamespaceError, lambda store: store.search(("users.ann",))),
        (InvalidInput, lambda store: store.search(USER, limit=-1)),
        (InvalidInput, lambda store: store.search(USER, offset=-1)),
        (InvalidInput, lambda store: store.list_namespaces(limit=-1)),
        (InvalidInput, lambda store: store.list_namespaces(offset="1")),
        (InvalidInput, lambda store: store.list_namespaces(max_depth=-1)),
    ],
)
def test_a_wrong_argument_is_refused(
    store: VstateStore, error: type[Exception], call: Callable[[VstateStore], object]
) -> None:
    """A namespace that is a text, a key that is none, a bad label and a count below 0 are errors."""
    store.put(USER, "a", {"x": 1})
    with pytest.raises(error):
        call(store)


def test_an_edit_of_a_result_stays_with_the_caller(store: VstateStore) -> None:
    """Neither the dict that was put nor the one that was read is the one in the store."""
    value = {"list": [1]}
    store.put(USER, "a", value)
    value["list"].append(2)
    found = store.get(USER, "a")
    assert found is not None
    found.value["list"].append(3)
    for _ in range(2):
        (item,) = store.search((), filter={"list": [1]})
        item.value["list"].append(4)


def test_an_update_keeps_the_time_of_creation(store: VstateStore) -> None:
    """`created_at` stays, `updated_at` moves on, and the newest item is the first of a search."""
    for key in ("a", "b", "a"):
        store.put(USER, key, {"x": key})
    first, second = store.search(USER)
    assert (first.key, second.key) == ("a", "b")
    assert first.created_at < second.created_at == second.updated_at < first.updated_at


def test_filters_compare_values_of_a_kind(store: VstateStore) -> None:
    """A filter compares nested fields, parts of lists and numbers. It passes over values without an order."""
    store.put(USER, "a", {"n": 1, "on": True, "tags": ["x", {"y": 1, "z": 2}], "deep": {"er": "text"}})
    store.put(USER, "b", {"n": "one", "on": 1})
    expected: list[tuple[dict[str, Any], str]] = [
        ({"n": 1}, "a"),
        ({"on": True}, "a"),
        ({"on": 1}, "b"),
        ({"n": {"$gte": 1, "$lt": 2}}, "a"),
        ({"n": {"$gt": "a"}}, "b"),
        ({"n": {"$ne": 1}}, "b"),
        ({"tags": ["x", {"y": 1}]}, "a"),
        ({"tags": ["x"]}, ""),
        ({"deep": {"er": "text"}}, "a"),
        ({"deep.er": "text"}, "a"),
        ({"deep.er.n": None}, "ab"),
    ]
    for wanted, keys in expected:
        assert "".join(sorted(item.key for item in store.search(USER, filter=wanted))) == keys, wanted
    with pytest.raises(ValueError, match=r"no operator '\$in'"):
        store.search(USER, filter={"n": {"$in": [1]}})


def test_an_expired_item_is_absent_at_once(pass_minutes: Callable[[float], None]) -> None:
    """No read shows an expired item or its namespace; the next change, or a sweep, removes it for good."""
    store = VstateStore(Memory(), ttl={"default_ttl": 5}, index={"dims": 26, "embed": letters})
    store.put(USER, "a", {"text": "apple"})
    store.put(USER, "b", {"text": "bear"}, ttl=20)
    store.put(("c",), "c", {"text": "cat"}, ttl=None)
    pass_minutes(6)
    assert store.get(USER, "a") is None
    assert {item.key for item in store.search((), query="apple")} == {"b", "c"}
    assert store.sweep_ttl() == 1
    pass_minutes(15)
    assert store.list_namespaces() == [("c",)]
    store.put(("c",), "c", {"text": "cow"})
    assert list(Versioned(store.repo.store, branch="memories")) == ["items/c/c", "vectors/c/c"]
    assert store.sweep_ttl() == 0


def test_a_read_begins_the_time_again_if_the_settings_say_so(pass_minutes: Callable[[float], None]) -> None:
    """With `refresh_on_read` an item and its vectors live on, and a plain read makes no commit without it."""
    kept = Memory()
    index: Any = {"dims": 26, "embed": letters}
    plain = VstateStore(kept, ttl={"default_ttl": 5}, index=index)
    store = VstateStore(kept, ttl={"default_ttl": 5, "refresh_on_read": True}, index=index)
    store.put(USER, "a", {"text": "apple"})
    before = store.repo.newest("memories")
    assert plain.get(USER, "a") is not None
    assert store.get(USER, "a", refresh_ttl=False) is not None
    assert store.repo.newest("memories") == before
    for _ in range(3):
        pass_minutes(4)
        assert [item.key for item in store.search((), query="apple")] == ["a"]
    pass_minutes(6)
    assert store.search((), query="apple") == []


def test_vectors_go_with_their_item(store: VstateStore) -> None:
    """A query finds the items that are indexed, the most similar ones first, also after the model changed."""
    store = VstateStore(store.repo.store, index={"dims": 26, "embed": letters, "fields": ["text", "more[*]"]})
    store.put(USER, "a", {"text": "aaa", "more": ["zzz", "yyy"]})
    store.put(USER, "b", {"text": "bbb"})
    store.put(USER, "c", {"text": "zzy"}, index=False)
    found = store.search((), query="zzzy")
    assert [(item.key, round(item.score or 0, 3)) for item in found] == [("a", 0.949), ("b", 0.0)]
    assert [item.key for item in store.search((), query="b", filter={"text": "aaa"})] == ["a"]
    store.delete(USER, "a")
    VstateStore(store.repo.store).put(USER, "b", {"text": "no model, no vector"})
    assert store.search((), query="zzzy") == []
    assert len(store.search(())) == 2


@pytest.mark.slow
def test_two_writers_of_one_item_and_of_many(tmp_path: Path) -> None:
    """Threads with stores of their own lose no item, and one item keeps its first time of creation."""
    stores = [VstateStore(Disk(tmp_path)) for _ in range(3)]

    def write(number: int) -> None:
        for turn in range(10):
            one = PutOp(USER, "both", {"by": number, "turn": turn})
            stores[number].batch([one, PutOp(USER, f"{number}-{turn}", {"x": turn})])

    stores[0].put(USER, "both", {})
    created = stores[0].get(USER, "both")
    all_at_once(*(partial(write, number) for number in range(3)))
    assert len(stores[0].search(USER, limit=100)) == 31
    found = stores[0].get(USER, "both")
    assert found is not None
    assert created is not None
    assert (found.created_at, found.value["turn"]) == (created.created_at, 9)


def test_tasks_put_and_find(store: VstateStore) -> None:
    """The async calls do the same, also beside each other, and with an async model."""

    async def embed(texts: list[str]) -> list[list[float]]:
        return letters(texts)

    async def run() -> list[str]:
        memory = VstateStore(store.repo.store, index={"dims": 26, "embed": embed})
        await asyncio.gather(*(memory.aput(USER, text, {"text": text}) for text in ("apple", "bear")))
        results = await memory.abatch([GetOp(USER, "apple"), GetOp(USER, "none")])
        assert [found is None for found in results] == [False, True]
        return [item.key for item in await memory.asearch((), query="bear")]

    assert asyncio.run(run())[0] == "bear"


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """A search by a filter finds the newest value, and a diff shows the change."""
    example("The store: long-term memory")
    log, _, diff = commands("The store: long-term memory")
    assert log.count("put users/ann/tea") == 2
    assert "black" in diff
