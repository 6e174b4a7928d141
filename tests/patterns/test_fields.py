"""Records on branches, with a key for each field."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any

import pytest
from present import present

from vstate import InvalidInput, Memory
from vstate.objects.commit import Commit
from vstate.patterns.fields import Fields
from vstate.repo import Repository
from vstate.state.live import Live
from vstate.state.snapshot import Snapshot


def save(fields: Fields, repo: Repository, record: dict[str, Any]) -> tuple[Commit | None, set[str]]:
    """Make a branch have a record; the commit, and the keys that it sets or deletes."""
    packed, head = fields.pack(record), repo.newest("b")
    state = Live() if head is None else Snapshot(repo, head)
    new, gone = fields.changes("b", state, packed, {"n": 1})
    commit = repo.commit("b", set=new, delete=gone)
    fields.landed("b", commit, packed)
    return commit, {*new, *gone} - {"step"}


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_commit_sets_the_changed_fields_and_items(is_warm: bool) -> None:
    """The record comes back with its types; a process that wrote the last one sets only what differs."""
    repo = Repository(Memory())
    fields = Fields("state")
    chat = [{"n": n} for n in range(3)]
    records: list[dict[str, Any]] = [
        {"z/": 1, "a": "\ud800", "chat": chat, "big": 2**70},
        {"z/": 1.0, "a": "\ud800", "chat": [*chat, {"n": 3}]},
        {"chat": chat[:1], "z/": True, "vector": [0.5, 2]},
        {"chat": {}, "vector": []},
    ]
    changed = [
        {"state/z%2f", "state/a", "state/big", *(f"state/chat/{n:012}" for n in range(3))},
        {"state/z%2f", "state/big", f"state/chat/{3:012}"},
        {"state/z%2f", "state/a", "state/vector", *(f"state/chat/{n:012}" for n in range(1, 4))},
        {"state/z%2f", "state/vector", "state/chat", f"state/chat/{0:012}"},
    ]
    for record, keys in zip(records, changed, strict=True):
        commit, found = save(fields if is_warm else Fields("state"), repo, record)
        assert found == keys or not is_warm
        state = Snapshot(repo, present(commit))
        assert repr(fields.load(state)) == repr(record)
        assert state["step"]["n"] == 1
        assert fields.is_same(state, fields.pack(record))
    assert not fields.is_same(state, fields.pack({"chat": []} | {"chat": {"x": 1}}))
    assert save(fields, repo, records[-1]) == (None, set() if is_warm else {"state/chat"})


def test_a_change_of_another_process_is_noticed() -> None:
    """The digests of an older commit are not taken for those of the newest one."""
    repo = Repository(Memory())
    first, second = Fields("state"), Fields("state")
    save(first, repo, {"x": 1})
    save(second, repo, {"x": 2, "y": [{}]})
    commit, _ = save(first, repo, {"x": 1})
    state = Snapshot(repo, present(commit))
    assert list(state.keys("state/")) == ["state/x"]
    assert first.load(state) == {"x": 1}


class Text(StrEnum):
    SHORT = "short"


def test_a_subclass_becomes_plain_and_other_objects_are_refused() -> None:
    """The error names the field."""
    fields = Fields("state")
    packed = fields.pack({"x": [Text.SHORT], "y": Counter("a"), "z": {"k": Text.SHORT}})
    assert packed.data == fields.pack({"x": ["short"], "y": {"a": 1}, "z": {"k": "short"}}).data
    with pytest.raises(InvalidInput, match="field 'odd' of the state"):
        fields.pack({"x": 1, "odd": [object()]})
