"""Any mixture of edits, branches, merges, undo and gc gives the result of the model, on any store."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from history_model import COUNTERS, HistoryModel, Values
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scripts import LONGEST, Record
from soak import sized
from soundness import check_sound

from vstate import Disk, KVStore, Memory, Versioned
from vstate.errors import InvalidInput, MergeConflict, NotFound, UncommittedChanges
from vstate.testing import Faulty

STEPS = {
    "Memory": sized(1200, 600_000),
    "no transactions": sized(450, 200_000),
    "Disk": sized(450, 200_000),
}
STEPS_IN_A_ROW = sized(40, 100)
MOST_EXAMPLES = 1.4
"""A factor on the number of examples, because some examples end before their last step."""

KEYS = st.sampled_from(["a", "b", "ns/c", "é"])
VALUES = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=3) | st.just("x" * 300)
POLICIES = st.sampled_from(
    [{}, {"": "ours"}, {"": "theirs"}, {"n/": "counter"}, {"": "ours", "n/": "counter"}]
)
MOSTLY = st.sampled_from([True, True, True, False])

MOST_BRANCHES = 5


class HistoryMachine(RuleBasedStateMachine):
    """`now` holds the values of the mapping, `model` everything that is committed."""

    steps = 0

    def make_store(self) -> KVStore:
        return Memory()

    def __init__(self) -> None:
        super().__init__()
        self.store = self.make_store()
        self.state = Versioned(self.store)
        self.model = HistoryModel()
        self.branch = "main"
        self.number = 0
        self.now: Values = dict.fromkeys(COUNTERS, 0)
        for key, value in self.now.items():
            self.state[key] = value
        self.model.create("main", self.committed_as(self.state.commit("first")))

    @property
    def at(self) -> str:
        return self.model.branches[self.branch].at

    @property
    def committed(self) -> Values:
        return self.model.values[self.at]

    @property
    def clean(self) -> bool:
        return self.now == self.committed

    def name(self) -> str:
        self.number += 1
        return f"n{self.number}"

    def committed_as(self, commit: Any) -> str:
        assert commit is not None
        return self.model.add(commit, self.now)

    def moved_to(self, commit: str) -> None:
        """Record that the branch moved there, and the mapping with it."""
        self.model.branches[self.branch].move(commit)
        self.now = copy.deepcopy(self.model.values[commit])

    def settle(self, settled: bool) -> None:
        """Commit first, because the next operation refuses uncommitted changes."""
        if settled and not self.clean:
            self.commit()

    @initialize(values=st.dictionaries(KEYS, VALUES, max_size=3))
    def begin(self, values: Values) -> None:
        for key, value in values.items():
            self.put(key, value)

    # Edits

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: Any) -> None:
        self.state[key] = copy.deepcopy(value)
        self.now[key] = copy.deepcopy(value)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert (self.state.pop(key, self) is self) == (key not in self.now)
        self.now.pop(key, None)

    @rule(key=KEYS, value=st.integers(0, 3))
    def edit(self, key: str, value: int) -> None:
        if isinstance(self.now.get(key), list):
            self.state[key].append(value)
            self.now[key].append(value)

    @rule(key=st.sampled_from(COUNTERS), by=st.integers(-2, 2))
    def count(self, key: str, by: int) -> None:
        self.state[key] += by
        self.now[key] += by

    @rule()
    def discard(self) -> None:
        self.state.discard()
        self.now = copy.deepcopy(self.committed)

    # Commits

    @rule()
    def commit(self) -> None:
        commit = self.state.commit(self.name())
        assert (commit is None) == self.clean
        if commit is not None:
            self.model.branches[self.branch].move(self.committed_as(commit))

    @rule(key=st.sampled_from(COUNTERS), fails=st.booleans(), settled=MOSTLY)
    def update(self, key: str, fails: bool, settled: bool) -> None:
        self.settle(settled)

        def change(fresh: Versioned) -> None:
            fresh[key] += 1
            if fails:
                raise LookupError

        if not self.clean:
            with pytest.raises(UncommittedChanges):
                self.state.apply(change)
        elif fails:
            with pytest.raises(LookupError):
                self.state.apply(change)
        else:
            commit = self.state.apply(change)
            self.now[key] += 1
            self.model.branches[self.branch].move(self.committed_as(commit))

    @rule(key=st.sampled_from(["other/a", "other/b"]), value=VALUES)
    def another_writer(self, key: str, value: Any) -> None:
        """Another writer commits keys on the same branch that this one does not touch."""
        other = Versioned(self.store, branch=self.branch)
        other[key] = copy.deepcopy(value)
        commit = other.commit()
        if commit is not None:
            values = {**self.committed, key: value}
            self.model.branches[self.branch].move(self.model.add(commit, values))
            self.state.refresh()
            self.now[key] = copy.deepcopy(value)

    @rule(key=st.sampled_from(["other/a", "other/b"]), value=VALUES)
    def lose_a_race(self, key: str, value: Any) -> None:
        """Commit without having seen another writer's commit."""
        if self.clean:
            return
        other = Versioned(self.store, branch=self.branch)
        other[key] = copy.deepcopy(value)
        theirs = other.commit()
        if theirs is None:
            return
        before = self.at
        self.model.branches[self.branch].move(self.model.add(theirs, {**self.committed, key: value}))
        mine = copy.deepcopy(self.now)
        self.now[key] = copy.deepcopy(value)
        merged = self.state.commit(self.name())
        self.model.branches[self.branch].move(self.committed_as(merged))
        assert merged is not None
        own = self.state.repo.resolve(merged.parent_ids[1])
        assert str(own.parent_ids[0]) == before
        self.model.add(own, mine)

    @rule(data=st.data(), key=KEYS, value=VALUES, counter=st.sampled_from(COUNTERS), by=st.integers(-2, 2))
    def commit_elsewhere(self, data: st.DataObject, key: str, value: Any, counter: str, by: int) -> None:
        """Another writer on another branch changes the same keys."""
        names = [name for name in self.model.branches if name != self.branch]
        if not names:
            return
        name = data.draw(st.sampled_from(names))
        other = Versioned(self.store, branch=name)
        values = copy.deepcopy(self.model.values[self.model.branches[name].at])
        other[key] = values[key] = copy.deepcopy(value)
        values[counter] += by
        other[counter] = values[counter]
        commit = other.commit()
        if commit is not None:
            self.model.branches[name].move(self.model.add(commit, values))

    @rule(data=st.data(), settled=MOSTLY, policy=POLICIES)
    def merge(self, data: st.DataObject, settled: bool, policy: dict[str, str]) -> None:
        self.settle(settled)
        self.merge_with(data.draw(st.sampled_from(sorted(self.model.branches))), policy)

    @rule(
        data=st.data(),
        keys=st.tuples(KEYS, KEYS),
        values=st.tuples(VALUES, VALUES),
        counters=st.tuples(st.sampled_from(COUNTERS), st.sampled_from(COUNTERS)),
        steps=st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
        policy=POLICIES,
    )
    def diverge_and_merge(
        self,
        data: st.DataObject,
        keys: tuple[str, str],
        values: tuple[Any, Any],
        counters: tuple[str, str],
        steps: tuple[int, int],
        policy: dict[str, str],
    ) -> None:
        """Make a merge of changes on both sides, which the other rules seldom do."""
        self.settle(True)
        if len(self.model.branches) < MOST_BRANCHES:
            self.create_branch(data)
        self.commit_elsewhere(data, keys[0], values[0], counters[0], steps[0])
        self.put(keys[1], values[1])
        self.count(counters[1], steps[1])
        self.settle(True)
        self.merge_with(data.draw(st.sampled_from(sorted(self.model.branches))), policy)

    def merge_with(self, name: str, policy: dict[str, str]) -> None:
        if not self.clean:
            with pytest.raises(UncommittedChanges):
                self.state.merge(name, policy=policy)
            return
        ours, theirs = self.at, self.model.branches[name].at
        bases = self.model.bases(ours, theirs)
        if not bases:  # the history was cut off after the merge base
            return
        repo = self.state.repo
        if repo.history.shallow() and repo.merge_base(ours, theirs) is None:  # it may have been
            with pytest.raises(InvalidInput, match="may have been removed"):
                self.state.merge(name, policy=policy)
            return
        expected: Values | None = None  # tests/state/test_merge.py tests crossing histories
        conflicts: list[str] = []
        if len(bases) == 1:
            expected, conflicts = self.model.merged(ours, theirs, min(bases), policy)
        if conflicts:
            with pytest.raises(MergeConflict) as caught:
                self.state.merge(name, policy=policy)
            assert sorted(caught.value.keys) == conflicts
            return
        try:
            self.state.merge(name, policy=policy)
        except MergeConflict:
            assert expected is None
            return
        head = self.state.head
        assert head is not None
        if expected is None:
            expected = dict(self.state)
        if bases == {theirs}:
            assert head.id == ours
        elif bases == {ours}:
            assert head.id == theirs
            self.moved_to(theirs)
        else:
            assert [str(oid) for oid in head.parent_ids] == [ours, theirs]
            self.moved_to(self.model.add(head, expected))

    # Moves

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(self.model.history(self.at)))
        was_clean = self.clean
        before = self.at
        commit = self.state.rollback(target)
        if not was_clean:
            middle = self.state.repo.resolve(commit.parent_ids[0])
            self.model.branches[self.branch].move(self.committed_as(middle))
            before = middle.id
        assert [str(oid) for oid in commit.parent_ids] == [before]
        self.moved_to(self.model.add(commit, self.model.values[target]))

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(list(self.model.values)))
        self.state.reset(target)
        self.moved_to(target)

    @rule(settled=MOSTLY)
    def undo(self, settled: bool) -> None:
        self.settle(settled)
        branch = self.model.branches[self.branch]
        if not self.clean:
            with pytest.raises(UncommittedChanges):
                self.state.undo()
        elif not branch.moves or branch.moves[-1] is None:
            with pytest.raises(InvalidInput):
                self.state.undo()
        else:
            self.state.undo()
            before = branch.moves.pop()
            branch.undone.append((branch.at, before))
            branch.at = str(before)
            self.now = copy.deepcopy(self.committed)

    @rule(settled=MOSTLY, undone=st.integers(1, 2), moved=st.booleans(), redone=st.integers(1, 3))
    def undo_and_redo(self, settled: bool, undone: int, moved: bool, redone: int) -> None:
        for _ in range(undone):
            self.undo(settled)
        if moved:
            self.count(COUNTERS[0], 1)
            self.settle(True)
        for _ in range(redone):
            self.redo(settled=False)

    @rule(settled=st.booleans())
    def redo(self, settled: bool) -> None:
        self.settle(settled)
        branch = self.model.branches[self.branch]
        if not self.clean:
            with pytest.raises(UncommittedChanges):
                self.state.redo()
        elif not branch.undone:
            with pytest.raises(InvalidInput):
                self.state.redo()
        else:
            self.state.redo()
            to, before = branch.undone.pop()
            branch.moves.append(before)
            branch.at = to
            self.now = copy.deepcopy(self.committed)

    # Branches and tags

    @precondition(lambda self: len(self.model.branches) < MOST_BRANCHES)
    @rule(data=st.data())
    def create_branch(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(list(self.model.values)))
        name = self.name()
        self.state.create_branch(name, at)
        self.model.create(name, at)

    @precondition(lambda self: len(self.model.branches) < MOST_BRANCHES)
    @rule()
    def switch_to_a_new_branch(self) -> None:
        name = self.name()
        self.state.switch(name, create=True)
        self.model.create(name, self.at)
        self.branch = name

    @rule(data=st.data(), settled=MOSTLY)
    def switch(self, data: st.DataObject, settled: bool) -> None:
        self.settle(settled)
        name = data.draw(st.sampled_from(sorted(self.model.branches)))
        if name == self.branch:
            return
        if not self.clean:
            with pytest.raises(UncommittedChanges):
                self.state.switch(name)
            return
        self.state.switch(name)
        self.branch = name
        self.now = copy.deepcopy(self.committed)

    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.branches)))
        if name == self.branch:
            with pytest.raises(InvalidInput):
                self.state.delete_branch(name)
            return
        self.state.delete_branch(name)
        del self.model.branches[name]

    @rule(data=st.data())
    def tag(self, data: st.DataObject) -> None:
        if len(self.model.tags) > 2:
            name = data.draw(st.sampled_from(sorted(self.model.tags)))
            self.state.delete_tag(name)
            del self.model.tags[name]
        else:
            name = self.name()
            self.state.tag(name)
            self.model.tags[name] = self.at

    # Upkeep

    @rule()
    def gc(self) -> None:
        """Before gc every commit that was not collected can be read; after gc every reachable one."""
        self.state.repo.gc()
        for commit in list(self.model.values)[:3]:
            assert dict(self.state.checkout(commit)) == self.model.values[commit]
        self.state.repo.gc(keep_reflog="0s", grace="0s")
        self.model.collect()
        self.collected()

    @rule(data=st.data(), keep_last=st.integers(1, 4))
    def shallow_gc(self, data: st.DataObject, keep_last: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.branches)))
        self.state.repo.gc(keep_reflog="0s", grace="0s", branch=name, keep_last=keep_last)
        self.model.cut(name, keep_last)
        self.model.collect()
        self.collected()

    def collected(self) -> None:
        fresh = Versioned(self.store, branch=self.branch)
        for commit in self.model.gone[-3:]:
            with pytest.raises(NotFound):
                fresh.checkout(commit)
        live = check_sound(self.store, fsck=False)
        assert len(list(self.store.keys("o/"))) == live

    @rule()
    def reopen(self) -> None:
        self.state = Versioned(self.store)
        self.now = copy.deepcopy(self.committed)

    @rule()
    def refresh(self) -> None:
        self.state.refresh()

    @rule()
    def fsck(self) -> None:
        check_sound(self.store)

    # Invariants

    @invariant()
    def agrees(self) -> None:
        type(self).steps += 1
        assert self.state.branch == self.branch
        assert self.state.head is not None
        assert self.state.head.id == self.at
        assert dict(self.state) == self.now

    def teardown(self) -> None:
        check_sound(self.store)
        fresh = Versioned(self.store)
        assert {name: commit.id for name, commit in fresh.branches().items()} == {
            name: branch.at for name, branch in self.model.branches.items()
        }
        assert {name: commit.id for name, commit in fresh.tags().items()} == self.model.tags
        for branch in self.model.branches.values():
            log = [commit.id for commit in fresh.log(branch.at)]
            assert len(log) == len(set(log))
            assert set(log) == self.model.ancestors(branch.at)
        for commit, values in self.model.values.items():
            assert dict(fresh.checkout(commit)) == values
        self.store.close()


class PlainMachine(HistoryMachine):
    """The same on a store without transactions."""

    def make_store(self) -> KVStore:
        return Faulty(Memory(), atomic=False)


class DiskMachine(HistoryMachine):
    """The same on Disk."""

    def make_store(self) -> KVStore:
        self.directory = Path(tempfile.mkdtemp(prefix="vstate-test-"))
        return Disk(self.directory, durability="process")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


MACHINES = {"Memory": HistoryMachine, "no transactions": PlainMachine, "Disk": DiskMachine}


@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("store", MACHINES)
def test_histories(store: str, record: Record) -> None:
    """The store and the model agree after each step, and every commit that was not collected is there."""
    machine = MACHINES[store]
    machine.steps = 0
    examples = round(STEPS[store] / STEPS_IN_A_ROW * MOST_EXAMPLES)
    options = settings(max_examples=examples, stateful_step_count=STEPS_IN_A_ROW)
    run_state_machine_as_test(machine, settings=options)
    assert machine.steps >= STEPS[store]
    record(steps=machine.steps)
