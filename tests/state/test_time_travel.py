"""Blame, bisect, undo and redo of a state."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from present import present

from vstate import Commit, Snapshot, Versioned
from vstate.errors import (
    InvalidInput,
    KeyNotFound,
    NotFound,
)


def commit(state: Versioned, message: str, **values: Any) -> Commit:
    state.update(values)
    made = present(state.commit(message))
    return made


def actions(state: Versioned) -> list[str]:
    return [line.action for line in state.repo.refs.reflog(f"heads/{state.branch}")]


@pytest.fixture
def state() -> Versioned:
    """Commits c0 to c3 on main, in which k is 0 to 3."""
    state = Versioned()
    for number in range(4):
        commit(state, f"c{number}", k=number, same=["x"])
    return state


def test_each_rollback_goes_further_back(state: Versioned) -> None:
    """A rollback counts as the commit that it went back to, also from a commit made since; all are kept."""
    commit(state, "c4", k=4)
    values = []
    for _ in range(4):
        state.rollback()
        values.append(state["k"])
    assert values == [3, 2, 1, 0]
    with pytest.raises(NotFound, match="fewer than 1"):
        state.rollback()
    commit(state, "new", k=9)
    state.rollback()
    assert state["k"] == 0
    state.rollback("main@{6}")
    assert state["k"] == 4
    state.rollback(steps=2)
    assert state["k"] == 2
    assert len(list(state.log())) == 5 + 4 + 1 + 3
    state.rollback("HEAD~1")  # a revision is a revision, as in git
    assert state["k"] == 4
    side = state.fork("side")
    commit(state, "c5", k=5)
    commit(side, "c5", k=5)
    side.cherry_pick(state.rollback())
    with pytest.raises(InvalidInput, match="not both"):
        side.rollback("HEAD", steps=2)
    side.rollback()  # a copy of a rollback is a change like any other
    assert side["k"] == 5


def test_undo_twice_goes_two_moves_back_and_redo_forward_again(state: Versioned) -> None:
    """An undo marks the move before it as undone; redo takes the last undo back, a move ends that."""
    assert [state.undo().message, state.undo().message] == ["c2", "c1"]
    assert state.redo().message == "c2"
    assert state.redo().message == "c3"
    with pytest.raises(InvalidInput, match="nothing to redo on branch 'main': the last move was no undo"):
        state.redo()
    assert state.undo().message == "c2"
    commit(state, "new", k=10)
    with pytest.raises(InvalidInput, match="nothing to redo"):
        state.redo()
    assert [state.undo().message, state.undo().message] == ["c2", "c1"]
    assert actions(state)[:2] == ["undo: commit: c2", "undo: commit: new"]


def test_the_first_commit_cannot_be_undone(state: Versioned) -> None:
    """There was no branch before: the error says how to delete it. Nothing has moved."""
    with pytest.raises(InvalidInput, match=r"began with 'commit: c0'.*vstate branch -d main"):
        state.undo(steps=4)
    assert state.head == state.repo.branch("main")
    assert state["k"] == 3
    state.create_branch("side", "HEAD~1")
    side = Versioned(state.store, branch="side")
    with pytest.raises(InvalidInput, match=r"began with 'branch: created from HEAD~1'.*branch -d side"):
        side.undo()


def test_nothing_to_undo() -> None:
    """Before the first commit, and without a reflog, nothing can be undone. Steps count from 1."""
    state = Versioned()
    with pytest.raises(NotFound, match="no commit yet on branch 'main'"):
        state.undo()
    commit(state, "c0", k=1)
    commit(state, "c1", k=2)
    for steps in (0, 1.5, "2", True):
        with pytest.raises(InvalidInput, match="steps is a whole number from 1 on"):
            state.undo(steps=steps)  # type: ignore[arg-type]  # refused
    for key in list(state.store.keys("reflog/")):
        state.store.delete(key)
    with pytest.raises(InvalidInput, match="nothing to undo on branch 'main'"):
        state.undo()
    commit(state, "c2", k=3)
    with pytest.raises(InvalidInput, match="only 1 of 2 moves to undo"):
        state.undo(steps=2)
    assert state.undo().message == "c1"


def test_a_commit_that_gc_removed_cannot_be_gone_back_to(state: Versioned) -> None:
    """The error comes before anything moves."""
    head, before = state.head, state.checkout("HEAD~1").commit
    state.store.delete(f"o/{before.id}")
    fresh = Versioned(state.store)
    with pytest.raises(NotFound, match=f"{before.short} is gone: gc has removed it"):
        fresh.undo()
    assert fresh.head == head == fresh.repo.branch("main")


class Undoing(RuleBasedStateMachine):
    """A branch against a model: its earlier positions, and its undone moves."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Versioned()
        self.number = 0
        self.undoable: list[Commit] = []
        self.redoable: list[tuple[Commit, list[Commit]]] = []

    @initialize()
    def begin(self) -> None:
        commit(self.state, "first", k=-1)

    def moved(self, old: Commit | None) -> None:
        assert old is not None
        if self.state.head != old:
            self.undoable.append(old)
            self.redoable.clear()

    @rule()
    def commit(self) -> None:
        old = self.state.head
        self.number += 1
        commit(self.state, f"c{self.number}", k=self.number)
        self.moved(old)

    @rule(back=st.integers(0, 3))
    def reset(self, back: int) -> None:
        old = self.state.head
        log = list(self.state.log())
        self.state.reset(log[min(back, len(log) - 1)])
        self.moved(old)

    @rule(steps=st.integers(1, 3))
    def undo(self, steps: int) -> None:
        old = present(self.state.head)
        if steps > len(self.undoable):
            with pytest.raises(InvalidInput):
                self.state.undo(steps=steps)
            return
        target = self.undoable[-steps]
        self.redoable.append((old, self.undoable[-steps:]))
        del self.undoable[-steps:]
        assert self.state.undo(steps=steps) == target

    @precondition(lambda self: self.redoable)
    @rule()
    def redo(self) -> None:
        target, undone = self.redoable.pop()
        self.undoable += undone
        assert self.state.redo() == target

    @precondition(lambda self: not self.redoable)
    @rule()
    def redo_of_nothing(self) -> None:
        with pytest.raises(InvalidInput):
            self.state.redo()

    @invariant()
    def is_where_it_says(self) -> None:
        head = self.state.head
        if head is not None:
            assert self.state.repo.branch("main") == head
            assert self.state["k"] == self.state.checkout(head)["k"]


TestUndoing = pytest.mark.slow(Undoing.TestCase)
TestUndoing.settings = settings(max_examples=40, stateful_step_count=25)


# Blame and bisect: their algorithms are tested with the repository


def test_blame_of_a_state(state: Versioned) -> None:
    """Seen from this handle's HEAD, wherever its branch is; keys are str."""
    assert state.blame("k").message == "c3"
    assert state.blame("k") == next(state.log(key="k", limit=1))
    assert state.blame("same", "[0]").message == "c0"
    other = state.fork("other", "HEAD~1")
    assert other.blame("k").message == "c2"
    with pytest.raises(KeyNotFound):
        state.blame("nowhere")
    with pytest.raises(TypeError):
        state.blame(5)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="no commit yet"):
        Versioned().blame("k")


def test_bisect_gives_snapshots_to_the_predicate() -> None:
    """It finds the first commit where the predicate fails, in about log2 tests."""
    state = Versioned()
    for number in range(100):
        commit(state, f"c{number}", k={"number": number, "broken": number >= 37})
    state["k"]["broken"] = "not committed"
    seen: list[Snapshot] = []

    def well(snapshot: Snapshot) -> bool:
        seen.append(snapshot)
        return not snapshot["k"]["broken"]

    found = state.bisect(well, "HEAD~99")
    assert found.message == "c37"
    assert isinstance(seen[0], Snapshot)
    assert len(seen) <= math.log2(100) + 3
    assert state.bisect(well, "HEAD~99", "HEAD~50") == found
    with pytest.raises(InvalidInput, match="still holds at"):
        state.bisect(well, "HEAD~99", "HEAD~70")


def test_commits_without_a_message(state: Versioned) -> None:
    """The reflog line only says that there was a commit. undo and redo still recognise their own lines."""
    other = Versioned(state.store)
    commit(state, "", k=4)
    commit(other, " \n", other=1)
    state.refresh()
    commit(state, "\nthe plan\nand more", k=5)
    assert actions(state)[:3] == ["commit: the plan", "commit (merge)", "commit"]
    state.undo(steps=2)
    state.undo()
    assert actions(state)[:2] == ["undo: commit", "undo 2 moves: commit: the plan"]
    assert state["k"] == 3
    state.redo()
    state.redo()
    assert state["k"] == 5
    assert actions(state)[:2] == ["redo: commit: the plan", "redo: commit"]


def test_a_line_of_a_move_that_did_not_happen_is_passed_over(state: Versioned) -> None:
    """A process that died in a store without transactions leaves a line that leads nowhere."""
    refs = state.repo.refs
    lines = state.store
    before = set(lines.keys("reflog/heads/main:"))
    refs.compare_and_swap("heads/side", expected=None, new=state.checkout("HEAD~2").commit.oid, action="x")
    (key,) = lines.keys("reflog/heads/side:")
    value = present(lines.get(key))
    lines.set(key.replace("side", "main"), value)
    assert len(set(lines.keys("reflog/heads/main:")) - before) == 1
    assert state.undo().message == "c2"


def test_an_interruption_right_after_the_branch_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next read is of the commit that the branch is at, also of a value that was read before."""
    state = Versioned()
    for number in (1, 2):
        state["k"] = number
        state.commit()
    assert state["k"] == 2

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vstate.state.versioned.arrive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.rollback()
    assert state["k"] == 1
