"""Stores and servers for the tests of the viewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason='the viewer needs the extra view: pip install "vstate[view]"')

from viewers import PICTURE, Viewer, viewing

from vstate import Disk, Versioned


@pytest.fixture(scope="session")
def make_small() -> Callable[[Path], None]:
    """A function that makes a store with branches, a merge, a tag, a chat, a table and a picture."""

    def make(path: Path) -> None:
        with Versioned(Disk(path)) as state:
            state["plan"] = {"goal": "learn", "steps": ["read", "think"], "pair": (1, 2.5)}
            state["notes"] = "first line\nsecond line\nthird line\n"
            state["chat"] = [{"role": "user", "content": "What is 2+2?"}]
            state["score/a"], state["score/b"] = 1, 2.5
            state["table"] = [{"name": f"row {i}", "value": i * i} for i in range(250)]
            state["picture"] = PICTURE
            state["bytes"] = bytes(range(256)) * 8
            state.commit("begin", model="small")
            state["chat"].append(
                {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            )
            state["chat"].append({"role": "tool", "tool_call_id": "c1", "content": "4"})
            state.commit("answered")
            state.tag("v1")
            state.create_branch("other")
            for i in range(12):
                state["score/a"] = i
                state.commit(f"put {i}")
            state.switch("other")
            state["notes"] = "first line\nother words\nthird line\n"
            state["score/b"] = 7.5
            del state["bytes"]
            state.commit("other way")
            state.switch("main")
            state["score/b"] = 9.5
            state.commit("scored")
            state["plan"]["steps"].append("act")
            state.commit("planned")

    return make


_CALL = {"id": "c1", "function": {"name": "calc", "arguments": '{"x": 4}'}}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, make_small: Callable[[Path], None]) -> Path:
    path = tmp_path_factory.mktemp("small") / "store"
    make_small(path)
    return path


@pytest.fixture(scope="module")
def viewer(small: Path) -> Iterator[Viewer]:
    """A viewer of the small store, for reading."""
    with viewing(small) as found:
        yield found
