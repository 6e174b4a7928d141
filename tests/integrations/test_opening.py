"""Opening and closing the store of an adapter."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from vstate import Disk, Memory
from vstate.errors import InvalidInput, NotFound
from vstate.integrations.opening import AsyncOpened, Opened, Opening, StoreLike
from vstate.objects.commit import Commit
from vstate.testing import Faulty


class Plain(Opened):
    def __init__(self, store: StoreLike) -> None:
        self._opening = Opening(store)


class Awaited(AsyncOpened):
    def __init__(self, store: StoreLike) -> None:
        self._opening = Opening(store)


def test_only_a_store_that_the_adapter_opened_is_closed(tmp_path: Path) -> None:
    """A block closes the store of a path, and leaves a store of the program open."""
    with Disk(tmp_path / "own") as own:
        with Plain(own) as adapter:
            pass
        assert adapter.repo.branches() == {}
        with Plain(tmp_path / "path") as adapter:
            pass
        with pytest.raises(InvalidInput):
            adapter.repo.branches()


@pytest.mark.parametrize("kind", [Plain, Awaited])
def test_an_event_loop_does_not_wait_for_the_store_to_close(
    kind: type[Plain | Awaited], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of an `async with` block the store is closed in a thread."""
    closed: list[threading.Thread] = []
    close = Disk.close
    monkeypatch.setattr(
        Disk, "close", lambda store: (closed.append(threading.current_thread()), close(store))
    )

    async def use() -> None:
        async with kind(tmp_path / "s") as adapter:
            adapter.repo.branches()

    asyncio.run(use())
    assert len(closed) == 1
    assert closed[0] is not threading.main_thread()


def write(opening: Opening, value: int) -> Commit | None:
    return opening.commit("chat", lambda head: ({"n": value}, ()), message=f"write {value}")


def test_a_commit_that_changes_neither_keys_nor_labels_is_not_made() -> None:
    """The labels that a branch has are no change of it; another value of a label is one."""
    opening = Opening(Memory())
    made = [
        opening.commit("chat", lambda head: ({"n": 1}, ()), message="", labels={"user": user})
        for user in ("ann", "ann", "bob")
    ]
    assert [commit is not None for commit in made] == [True, False, True]
    assert opening.repo.labels()["chat"]["user"] == "bob"


def test_a_write_beside_another_program_costs_the_same_on_a_long_branch() -> None:
    """Two programs write by turns: the number of calls of the store does not grow with the branch."""
    store = Faulty(Memory())
    turns = [Opening(store), Opening(store)]
    costs = []
    for value in range(200):
        before = len(store.calls)
        write(turns[value % 2], value)
        costs.append(store.calls[before:])
    assert costs[10] == costs[198]
    assert len(store.calls[before:]) <= 6


def test_a_branch_that_begins_anew_while_it_is_read_is_not_taken_for_the_one_that_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the read of the commit and of the label another program deletes the branch and begins it."""
    store = Memory()
    opening, other = Opening(store), Opening(store)
    write(other, 1)
    labels_at = opening.repo.labels_at
    late = iter([2])

    def slow(branch: str) -> object:
        for value in late:
            other.delete("chat")
            other.newest("chat")
            write(other, value)
        return labels_at(branch)

    monkeypatch.setattr(opening.repo, "labels_at", slow)
    assert opening.newest("chat")
    with pytest.raises(NotFound):
        write(opening, 3)
    opening.newest("chat")
    assert write(opening, 3)


def test_a_label_is_set_once() -> None:
    """A branch begins with it. One that is back by the reflog gets another one, which then stays."""
    opening = Opening(Memory())
    write(opening, 0)
    for _ in range(2):
        labels = opening.repo.labels()
        for value in (1, 2):
            write(opening, value)
            assert opening.repo.labels() == labels
        opening.delete("chat", keep_history=True)
        opening.repo.create_branch("chat", "chat@{1}")
        assert opening.newest("chat")
        assert opening.repo.labels() == {}
        write(opening, 3)
