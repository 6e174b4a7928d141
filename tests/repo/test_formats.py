"""Stores written by earlier formats: all can be read and written."""

from __future__ import annotations

import array
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from vstate import Disk, Versioned

STORES = Path(__file__).parent.parent / "stores"
HEADS = {"format-1": "62f801e06317011a7d9f27cd9ef6b2e56cec336e416b2f59e86dca51d6bf893b"}


@pytest.fixture(params=sorted(path.name for path in STORES.iterdir()))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def state(name: str, tmp_path: Path) -> Versioned:
    """Work on a copy, because SQLite writes files beside a store that is only read."""
    shutil.copytree(STORES / name, tmp_path / "store")
    return Versioned(Disk(tmp_path / "store"))


def test_everything_of_an_earlier_format_is_read(name: str, state: Versioned) -> None:
    """Every kind of value, the history, a merge, a tag and a branch are unchanged."""
    assert state.head is not None
    assert state.head.id == HEADS[name]
    assert [commit.message for commit in state.log()] == [
        "Merge b6117d5eb9 into main: mine",
        "mine",
        "theirs",
        "third",
        "many",
        "first",
    ]
    assert len(state) == 308
    assert state["plan"] == {"steps": ["read", "write"], "done": False}
    assert state["when"] == datetime(2026, 11, 21, 7, tzinfo=UTC)
    assert state["array"] == array.array("i", range(3000))
    assert len(state["chat"]) == 801
    assert state["chat"][7]["content"].startswith("message 7")
    assert (state["mine"], state["other"], state["note"]) == (2, 1, "x" * 300)
    assert [state[f"agent/key-{i:03}"] for i in range(300)] == [{"i": i} for i in range(300)]
    assert state.checkout("v1")["raw"] == b"y" * 5000
    assert state.checkout("what-if")["plan"]["done"] is True
    assert [commit.info for commit in state.log()][-1] == {"author": "golden"}
    state.store.close()


def test_an_earlier_format_is_written_to(state: Versioned) -> None:
    """A new commit lands on top of the old ones."""
    old = state.head
    state["chat"].append({"role": "user", "content": "on"})
    new = state.commit("on")
    assert new is not None
    assert old is not None
    assert new.parent_ids == (old.oid,)
    again = Versioned(state.store)
    assert len(again["chat"]) == 802
    state.store.close()
