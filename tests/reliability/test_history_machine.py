"""Branches, tags, merges, gc and reopening against a model of all commits: any order of them ends alike."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from soak import LONGEST, sized

from vstate import ABSENT, Cache, Disk, InvalidInput, KVStore, Memory, MergeConflict, NotFound, Versioned
from vstate.repo import Repository
from vstate.testing import Faulty

Values = dict[str, Any]

KEYS = st.sampled_from(["a", "b", "c", "n", "big"])
NUMBERS = st.integers(0, 5)
STEPS = 40


class HistoryMachine(RuleBasedStateMachine):
    """The model knows every commit by its id: its parents and its values; and where each ref is."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self.make_store()
        self.state = Versioned(self.store, branch="main")
        self.parents: dict[str, tuple[str, ...]] = {}
        self.values: dict[str, Values] = {}
        self.heads: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.branch = "main"
        self.number = 0

    def make_store(self) -> KVStore:
        return Memory()

    @initialize()
    def begin(self) -> None:
        self.state["n"] = 0
        self.state.set_policy("n", "counter")
        self._made(self.state.commit())

    # The model

    def _made(self, commit: Any) -> None:
        """Take note of a commit that the branch is at now, and of the one that was merged with it."""
        assert commit is not None
        self.parents[commit.id] = tuple(str(parent) for parent in commit.parents)
        self.values[commit.id] = {key: self._plain(self.state[key]) for key in self.state}
        self.heads[self.branch] = commit.id

    def _plain(self, value: Any) -> Any:
        return list(value) if isinstance(value, list) else value

    @property
    def now(self) -> Values:
        return self.values[self.heads[self.branch]]

    def _ancestors(self, commit: str) -> set[str]:
        found, todo = set[str](), [commit]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += self.parents[at]
        return found

    def _bases(self, one: str, other: str) -> set[str]:
        common = self._ancestors(one) & self._ancestors(other)
        return {at for at in common if not any(at in self._ancestors(c) for c in common - {at})}

    def _merged(self, base: Values, ours: Values, theirs: Values) -> Values | None:
        merged = {}
        for key in base.keys() | ours.keys() | theirs.keys():
            b, o, t = (side.get(key, ABSENT) for side in (base, ours, theirs))
            if key == "n" and b != o and b != t and ABSENT not in (o, t):
                merged[key] = o + t - (0 if b is ABSENT else b)
            elif o != t and o != b and t != b:
                return None
            elif (t if o == b else o) is not ABSENT:
                merged[key] = t if o == b else o
        return merged

    # What may happen

    @rule(key=KEYS, value=NUMBERS | st.lists(NUMBERS, max_size=3))
    def change(self, key: str, value: Any) -> None:
        if key == "n":
            value = self.now.get("n", 0) + 1
        self.state[key] = [value] * 3000 if key == "big" else value
        made = self.state.commit(f"set {key}")
        if made is not None:
            self._made(made)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        if key != "n" and self.state.pop(key, None) is not None:
            self._made(self.state.commit(f"delete {key}"))

    @rule(key=KEYS, by=NUMBERS)
    def update(self, key: str, by: int) -> None:
        made = self.state.update(lambda now: now.__setitem__("n", now["n"] + by))
        if made is not None:
            self._made(made)

    @precondition(lambda self: len(self.heads) < 4)
    @rule(data=st.data())
    def branch_off(self, data: st.DataObject) -> None:
        self.number += 1
        name, at = f"b{self.number}", data.draw(st.sampled_from(sorted(self.heads)))
        self.state.create_branch(name, at)
        self.heads[name] = self.heads[at]

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        self.branch = data.draw(st.sampled_from(sorted(self.heads)))
        self.state.switch(self.branch)

    @precondition(lambda self: len(self.heads) > 2)
    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.heads.keys() - {self.branch, "main"})))
        self.state.delete_branch(name)
        del self.heads[name]

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        other = data.draw(st.sampled_from(sorted(self.heads)))
        ours, theirs = self.heads[self.branch], self.heads[other]
        bases = self._bases(ours, theirs)
        if len(bases) > 1:
            # What the merge of several bases is, has tests of its own; here it has to keep the store sound.
            with_policy = self.state.merge(other, policy={"": "theirs", "n": "ours"})
            assert with_policy.strategy == "merge"
            self._made(with_policy.commit)
            return
        (base,) = bases
        expected = self._merged(self.values[base], self.values[ours], self.values[theirs])
        if expected is None:
            with pytest.raises(MergeConflict):
                self.state.merge(other)
            return
        result = self.state.merge(other)
        assert result.strategy == (
            "up-to-date" if base == theirs else "fast-forward" if base == ours else "merge"
        )
        self._made(result.commit)
        assert self.now == expected

    @rule(steps=st.integers(0, 2))
    def rollback(self, steps: int) -> None:
        try:
            made = self.state.rollback(steps=steps)
        except NotFound:
            return
        self._made(made)

    @rule(steps=st.integers(1, 3))
    def reset(self, steps: int) -> None:
        try:
            self.heads[self.branch] = self.state.reset(f"HEAD~{steps}").id
        except NotFound:
            return

    @rule()
    def undo(self) -> None:
        try:
            self.heads[self.branch] = self.state.undo().id
        except (InvalidInput, NotFound):  # nothing to undo, or gc has removed what was there
            return

    @rule()
    def revert(self) -> None:
        head = self.heads[self.branch]
        if not self.parents[head]:
            return
        base, theirs = self.values[head], self.values[self.parents[head][0]]
        made = self.state.revert("HEAD")
        if made is None:
            assert base == theirs
            return
        self._made(made)
        assert self.now == theirs

    @rule()
    def tag(self) -> None:
        self.number += 1
        self.state.tag(f"t{self.number}")
        self.tags[f"t{self.number}"] = self.heads[self.branch]

    @rule(keep=st.sampled_from(["0", "30d"]), grace=st.sampled_from(["0", "1h"]))
    def gc(self, keep: str, grace: str) -> None:
        expected = self.state.repo.gc(keep_reflog=keep, grace=grace, dry_run=True)
        report = self.state.repo.gc(keep_reflog=keep, grace=grace)
        assert report.live == expected.live

    @rule()
    def reopen(self) -> None:
        self.state = Versioned(self.store, branch=self.branch)

    @rule()
    def fsck(self) -> None:
        report = self.state.repo.fsck()
        assert report.ok, str(report)

    @invariant()
    def values_agree(self) -> None:
        if self.heads:
            assert dict(self.state) == self.now
            assert self.state.head is not None
            assert self.state.head.id == self.heads[self.branch]

    def teardown(self) -> None:
        fresh = Versioned(self.store, branch="main")
        refs = {**self.heads, **self.tags}
        for name, id in refs.items():
            assert {commit.id for commit in fresh.log(name)} == self._ancestors(id)
            assert dict(fresh.checkout(name)) == self.values[id]
        if refs:
            assert fresh.repo.fsck().ok
            bundle = io.BytesIO()
            fresh.repo.export(bundle, sorted(refs))
            bundle.seek(0)
            copy = Repository(Memory())
            copy.import_bundle(bundle)
            assert {**copy.branches(), **copy.tags()}.keys() == refs.keys()
            assert copy.fsck().ok
        self.store.close()


class DiskHistoryMachine(HistoryMachine):
    """On Disk, behind a Cache."""

    def make_store(self) -> KVStore:
        self.directory = Path(tempfile.mkdtemp(prefix="vstate-test-"))
        return Cache(Disk(self.directory, durability="process"))

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


class PlainHistoryMachine(HistoryMachine):
    """On a store without transactions."""

    def make_store(self) -> KVStore:
        return Faulty(Memory(), atomic=False)


def _settings(steps: int) -> settings:
    return settings(
        max_examples=steps // STEPS,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


TestHistoryMachine = pytest.mark.timeout(LONGEST)(HistoryMachine.TestCase)
TestHistoryMachine.settings = _settings(sized(3_200, 700_000))
TestDiskHistoryMachine = pytest.mark.timeout(LONGEST)(DiskHistoryMachine.TestCase)
TestDiskHistoryMachine.settings = _settings(sized(800, 150_000))
TestPlainHistoryMachine = pytest.mark.timeout(LONGEST)(PlainHistoryMachine.TestCase)
TestPlainHistoryMachine.settings = _settings(sized(1_000, 150_000))
