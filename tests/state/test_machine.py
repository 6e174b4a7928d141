"""Versioned against a model: any mixture of edits and moves ends where a dict with copies would."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from soak import sized

from vstate import Disk, KVStore, Memory, Versioned
from vstate.errors import UncommittedChanges

KEYS = st.sampled_from(["a", "b", "ns/a", "ns/b", "", "é"])
LEAVES = st.none() | st.integers(0, 3) | st.sampled_from(["s", "x" * 200])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pq"), inner, max_size=2),
    max_leaves=6,
)

Model = dict[str, Any]


class Failed(Exception):
    pass


def containers(value: Any) -> list[Any]:
    """The lists and dicts in a value, itself included."""
    if isinstance(value, list):
        return [value, *(inner for item in value for inner in containers(item))]
    if isinstance(value, dict):
        return [value, *(inner for item in value.values() for inner in containers(item))]
    return []


class VersionedMachine(RuleBasedStateMachine):
    """Each branch of the model is a list of states. `now` holds the values of the mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.store: KVStore = self.make_store()
        self.state = Versioned(self.store)
        self.now: Model = {}
        self.branches: dict[str, list[tuple[str, Model]]] = {"main": []}
        self.branch = "main"
        self.tags: dict[str, Model] = {}
        self.held: list[tuple[str, Any]] = []
        self.number = 0

    def make_store(self) -> KVStore:
        return Memory()

    @property
    def commits(self) -> list[tuple[str, Model]]:
        return self.branches[self.branch]

    @property
    def committed(self) -> Model:
        return self.commits[-1][1] if self.commits else {}

    def _moved(self) -> None:
        self.held.clear()

    def _name(self) -> str:
        self.number += 1
        return f"n{self.number}"

    @initialize(values=st.dictionaries(KEYS, VALUES, max_size=4))
    def begin(self, values: Model) -> None:
        self.state.update(copy.deepcopy(values))
        self.now.update(copy.deepcopy(values))

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: Any) -> None:
        self.state[key] = copy.deepcopy(value)
        self.now[key] = copy.deepcopy(value)
        self.held = [(k, v) for k, v in self.held if k != key]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert (self.state.pop(key, self) is self) == (key not in self.now)
        self.now.pop(key, None)
        self.held = [(k, v) for k, v in self.held if k != key]

    @rule(key=KEYS)
    def hold(self, key: str) -> None:
        if key in self.now:
            value = self.state[key]
            assert value == self.now[key]
            assert self.state[key] is value
            self.held.append((key, value))

    def _edit(self, key: str, value: Any, data: st.DataObject) -> None:
        places = containers(value)
        model = containers(self.now[key])
        assert len(places) == len(model)
        if not places:
            return
        i = data.draw(st.integers(0, len(places) - 1))
        new = data.draw(VALUES)
        for place, made in ((places[i], new), (model[i], copy.deepcopy(new))):
            if isinstance(place, list):
                place.append(made)
            else:
                place["p"] = made

    @rule(key=KEYS, data=st.data())
    def edit(self, key: str, data: st.DataObject) -> None:
        if key in self.now:
            self._edit(key, self.state[key], data)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def edit_through_an_old_reference(self, data: st.DataObject) -> None:
        key, value = data.draw(st.sampled_from(self.held))
        self._edit(key, value, data)

    @rule()
    def let_go(self) -> None:
        self.held.clear()

    @rule(times=st.integers(1, 2))
    def commit(self, times: int) -> None:
        for _ in range(times):
            changed = self.now != self.committed
            made = self.state.commit(self._name())
            assert (made is not None) == changed
            if made is not None:
                self.commits.append((made.id, copy.deepcopy(self.now)))

    def _commit_keys(self, keys: list[str]) -> None:
        """Commit the keys that exist, in the state and in the model."""
        keys = [key for key in keys if key in self.now or key in self.committed]
        chosen = {key: self.now[key] for key in keys if key in self.now}
        after = {key: value for key, value in self.committed.items() if key not in keys} | chosen
        made = self.state.commit(self._name(), keys=keys)
        assert (made is not None) == (after != self.committed)
        if made is not None:
            self.commits.append((made.id, copy.deepcopy(after)))

    @rule(keys=st.lists(KEYS))
    def commit_keys(self, keys: list[str]) -> None:
        self._commit_keys(keys)

    @rule(keys=st.lists(KEYS), put=KEYS, value=VALUES, again=KEYS)
    def transaction_that_commits_keys_and_fails(
        self, keys: list[str], put: str, value: Any, again: str
    ) -> None:
        before = copy.deepcopy(self.now)
        with pytest.raises(Failed):
            with self.state.transaction():
                self.put(put, value)
                earlier = copy.deepcopy(self.committed)
                self._commit_keys(keys)
                self.put(again, "later")
                raise Failed
        for key in {*earlier, *self.committed}:  # a commit stays, and the rest goes back
            if earlier.get(key, self) != self.committed.get(key, self):
                before.pop(key, None)
                if key in self.committed:
                    before[key] = copy.deepcopy(self.committed[key])
        self.now = before
        self._moved()

    @rule(keys=st.none() | st.sets(KEYS, min_size=1))
    def discard(self, keys: set[str] | None) -> None:
        self.state.discard(*(keys or ()))
        for key in KEY_LIST if keys is None else keys:
            if key in self.committed:
                self.now[key] = copy.deepcopy(self.committed[key])
            else:
                self.now.pop(key, None)
        # The program now owns the references to discarded values.
        self._moved()

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        steps = data.draw(st.integers(0, min(3, len(self.commits) - 1)))
        _, target = self.commits[-1 - steps]
        if self.now != self.committed:
            self.commits.append(("before", copy.deepcopy(self.now)))
        made = self.state.rollback(f"HEAD~{steps}")
        if self.commits[-1][0] == "before":
            self.commits[-1] = (str(made.parent_ids[0]), self.commits[-1][1])
        self.commits.append((made.id, copy.deepcopy(target)))
        self.now = copy.deepcopy(target)
        self._moved()

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        steps = data.draw(st.integers(0, min(3, len(self.commits) - 1)))
        self.state.reset(f"HEAD~{steps}")
        del self.commits[len(self.commits) - steps :]
        self.now = copy.deepcopy(self.committed)
        self._moved()

    @precondition(lambda self: self.commits and len(self.branches) < 6)
    @rule()
    def fork(self) -> None:
        name = self._name()
        other = self.state.fork(name)
        self.branches[name] = list(self.commits)
        assert dict(other) == self.committed

    @precondition(lambda self: self.commits and len(self.branches) < 6)
    @rule()
    def switch_to_a_new_branch(self) -> None:
        name = self._name()
        self.state.switch(name, create=True)
        self.branches[name] = list(self.commits)
        self.branch = name

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        names = [name for name, commits in self.branches.items() if commits and name != self.branch]
        if not names:
            return
        name = data.draw(st.sampled_from(sorted(names)))
        if self.now != self.committed:
            with pytest.raises(UncommittedChanges):
                self.state.switch(name)
            assert self.state.branch == self.branch
            return
        self.state.switch(name)
        self.branch = name
        self.now = copy.deepcopy(self.committed)
        self._moved()

    @rule()
    def reopen(self) -> None:
        self.state = Versioned(self.store)
        assert self.state.branch == self.branch
        self.now = copy.deepcopy(self.committed)
        self._moved()

    @precondition(lambda self: self.commits)
    @rule()
    def tag(self) -> None:
        name = self._name()
        self.state.tag(name)
        self.tags[name] = copy.deepcopy(self.committed)

    @rule(key=KEYS, value=VALUES, other=KEYS, data=st.data())
    def failing_transaction(self, key: str, value: Any, other: str, data: st.DataObject) -> None:
        before = copy.deepcopy(self.now)
        with pytest.raises(Failed):
            with self.state.transaction():
                self.put(key, value)
                self.delete(other)
                self.edit(data.draw(KEYS), data)
                raise Failed
        self.now = before
        self._moved()

    @rule(key=KEYS, value=VALUES, data=st.data())
    def transaction(self, key: str, value: Any, data: st.DataObject) -> None:
        with self.state.transaction(self._name()):
            self.put(key, value)
            self.edit(data.draw(KEYS), data)
        if self.now != self.committed:
            assert self.state.head is not None
            self.commits.append((self.state.head.id, copy.deepcopy(self.now)))

    @rule()
    def refresh(self) -> None:
        self.state.refresh()

    @rule()
    def status(self) -> None:
        diff = self.state.status()
        old, new = self.committed, self.now
        assert diff.added == sorted(new.keys() - old.keys())
        assert diff.removed == sorted(old.keys() - new.keys())
        assert diff.modified == sorted(k for k in old.keys() & new.keys() if old[k] != new[k])
        for key, change in diff.items():
            assert change.old == old.get(key)
            assert change.new == new.get(key)

    @invariant()
    def keys_agree(self) -> None:
        assert list(self.state) == sorted(self.now)
        assert len(self.state) == len(self.now)
        assert len(self.state.keys("ns/")) == sum(key.startswith("ns/") for key in self.now)
        assert (self.state.head.id if self.state.head else None) == (
            self.commits[-1][0] if self.commits else None
        )

    def teardown(self) -> None:
        assert dict(self.state) == self.now
        for name, commits in self.branches.items():
            if commits:
                assert [c.id for c in self.state.log(name)] == [id for id, _ in reversed(commits)]
                for id, values in commits[-3:]:
                    assert dict(self.state.checkout(id)) == values
        for name, values in self.tags.items():
            assert dict(self.state.checkout(name)) == values
        self.store.close()


KEY_LIST = ["a", "b", "ns/a", "ns/b", "", "é"]


class DiskMachine(VersionedMachine):
    """The same on Disk."""

    def make_store(self) -> KVStore:
        self.directory = Path(tempfile.mkdtemp(prefix="vstate-test-"))
        return Disk(self.directory, durability="process")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


TestVersionedMachine = pytest.mark.slow(VersionedMachine.TestCase)
TestVersionedMachine.settings = settings(max_examples=sized(40, 80), stateful_step_count=40)
TestDiskMachine = pytest.mark.slow(DiskMachine.TestCase)
TestDiskMachine.settings = settings(max_examples=sized(10, 20), stateful_step_count=30)
