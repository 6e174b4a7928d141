"""A Workspace against a dict: random edits and moves, after each of which the directory is as the dict."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from folders import found_in, put
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from soak import sized

from vstate import File, Memory, Versioned, Workspace

NAMES = ["a", "b", "d/a", "d/b", "d/e/f", "A", "é", "100%", "b\udcff"]
FILES = st.builds(
    File, st.sampled_from([b"", b"1", b"2", b"x" * 300]), st.sampled_from(["file", "executable"])
)


class WorkspaceMachine(RuleBasedStateMachine):
    """The model is what the directory should hold, and what each commit and branch holds."""

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp()) / "p"
        self.store = Memory()
        self.state = Versioned(self.store)
        self.files = Workspace(self.state, self.place)
        self.here: dict[str, File] = {}
        self.commits: list[tuple[str, dict[str, File]]] = []
        self.heads: dict[str, dict[str, File]] = {"main": {}}
        self.branch = "main"

    def teardown(self) -> None:
        if hasattr(self, "place"):
            shutil.rmtree(self.place.parent)

    @rule(name=st.sampled_from(NAMES), file=FILES | st.builds(File, st.just(b"a/../x"), st.just("link")))
    def edit(self, name: str, file: File) -> None:
        put(self.place, {name: file})
        self.here[name] = file

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        put(self.place, {name: None})
        self.here.pop(name, None)

    @rule(name=st.sampled_from(NAMES), file=FILES)
    def set_in_python(self, name: str, file: File) -> None:
        self.commit()
        self.state[self.files._directory.key(name)] = file
        self.state.commit("by key")
        self.here[name] = file
        self._committed()

    @rule()
    def look(self) -> None:
        assert self.state.has_uncommitted == (self.here != self.heads[self.branch])
        assert bool(self.files.status()) == self.state.has_uncommitted

    @rule()
    def commit(self) -> None:
        made = self.state.commit("edits")
        assert (made is None) == (self.here == self.heads[self.branch])
        self._committed()

    def _committed(self) -> None:
        if self.state.head is not None:
            self.commits.append((self.state.head.id, dict(self.here)))
        self.heads[self.branch] = dict(self.here)

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.commit()
        commit, there = data.draw(st.sampled_from(self.commits))
        self.state.rollback(commit)
        self.here = dict(there)
        self._committed()

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        self.files.restore(force=True)
        commit, there = data.draw(st.sampled_from(self.commits))
        self.state.reset(commit)
        self.here = dict(there)
        self.heads[self.branch] = dict(there)

    @precondition(lambda self: self.commits)
    @rule(name=st.sampled_from(["main", "x", "y"]))
    def switch(self, name: str) -> None:
        self.commit()
        self.state.switch(name, create=name not in self.heads)
        self.here = dict(self.heads.setdefault(name, dict(self.here)))
        self.branch = name

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        commit, there = data.draw(st.sampled_from(self.commits))
        name = data.draw(st.sampled_from(NAMES))
        if name in there or name in self.here:
            self.files.restore(name, rev=commit, force=True)
            self.here.pop(name, None)
            self.here |= {name: there[name]} if name in there else {}

    @rule()
    def open_again(self) -> None:
        self.files.close()
        self.state = Versioned(self.store)
        self.files = Workspace(self.state, self.place)

    @invariant()
    def is_as_the_model(self) -> None:
        if hasattr(self, "files"):
            assert found_in(self.place) == self.here


TestWorkspace = WorkspaceMachine.TestCase
TestWorkspace.settings = settings(max_examples=sized(40, 2_000), stateful_step_count=30)
