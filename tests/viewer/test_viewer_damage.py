"""The viewer and the tools of `vstate mcp` on damaged stores: answers that name the damage, in time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from soak import sized
from starlette.datastructures import QueryParams
from viewers import Serve
from vstate_cli.commands import mcp
from vstate_cli.commands.mcp import ToolFailure, Tools

from vstate import Disk, Memory, Versioned, VStateError
from vstate.repo import Repository
from vstate.viewer import life
from vstate.viewer.asgi import status_of
from vstate.viewer.health import JOBS
from vstate.viewer.life import blame_document
from vstate.viewer.parameters import Parameters
from vstate.viewer.reading import Reading

pytestmark = pytest.mark.slow

QUERIES = [
    ("/store", {}),
    ("/refs", {}),
    ("/branches", {}),
    *(("/commits", query) for query in ({}, {"all": "1", "fold": "1", "count": "1"}, {"key": "list"})),
    *(("/keys", query) for query in ({}, {"since": "v1"}, {"prefix": "k"})),
    *(("/value", {"key": key}) for key in ("list", "long", "text", "k5")),
    *(("/history", {"key": key}) for key in ("list", "k5")),
    *(("/blame", {"key": key}) for key in ("list", "text")),
    *(("/diff", query) for query in ({"new": "main"}, {"old": "v1", "new": "side", "base": "1"})),
    ("/diff", {"new": "main", "key": "list"}),
    ("/search", {"text": "word"}),
    ("/health", {}),
    ("/merge", {"ours": "main", "theirs": "side"}),
]
TOOLS: list[tuple[str, dict[str, Any]]] = [
    *(("log", given) for given in ({}, {"patch": True}, {"key": "list"})),
    *(("diff", given) for given in ({"old": "v1", "new": "side"}, {"key": "list"})),
    *(("show", given) for given in ({}, {"key": "list"}, {"key": "long"})),
    *(("blame", {"key": key}) for key in ("list", "text")),
    *(("search", {"text": text}) for text in ("word", "v1")),
    ("branches", {}),
]


@pytest.fixture(scope="module")
def whole() -> dict[str, bytes]:
    """The rows of a small store with objects of each kind, a merge, a tag, labels and policies."""
    state = Versioned(Memory())
    state.update({f"k{n}": n for n in range(60)})
    state["text"], state["long"] = "word\n" * 300, bytes(range(256)) * 200
    state["list"] = [{"n": n, "text": "word " * 9} for n in range(200)]
    state.commit("first")
    state.tag("v1")
    state.set_policy("k", "theirs")
    side = state.fork("side")
    side["k5"] = "side"
    side.commit("side")
    state["list"].append("more")
    state.commit("second")
    state.merge("side")
    state.repo.commit("main", set={"k9": "third"}, labels={"a": 1})
    return dict(state.store.items())


def damages(rows: dict[str, bytes]) -> Iterator[tuple[str, Memory]]:
    """Each row in turn: missing, cut, or other bytes; in a soak each of these."""
    for number, (key, row) in enumerate(rows.items()):
        if key == "format":
            continue  # such a store cannot be opened
        hows = (None, row[: len(row) // 2], b"\xff" * len(row))
        for how in sized([hows[number % 3]], [*hows]):
            store = Memory()
            store.set_many(rows)
            store.delete(key) if how is None else store.set(key, how)
            yield f"{key}: {how!r:.20}", store


def test_no_answer_is_a_500(whole: dict[str, bytes]) -> None:
    """Whatever row is damaged, each address and each tool answers, or names the damage."""
    told, servers_faults = 0, []
    for name, store in damages(whole):
        repo = Repository(store)
        reading, tools = Reading(repo), Tools(repo)
        calls: list[Callable[[], object]] = [
            *(
                partial(reading.answers[path], Parameters(QueryParams(query), repo))
                for path, query in QUERIES
            ),
            *(partial(reading.commit, rev) for rev in ("main", "v1", "main~1")),
            *(partial(function, repo, lambda *_: None) for function in JOBS.values()),
            *(partial(getattr(tools, tool), **given) for tool, given in TOOLS),
        ]
        for call in calls:
            try:
                call()
            except VStateError as error:
                told += 1
                if status_of(error) >= 500:
                    servers_faults.append((name, call, error))
            except ToolFailure:
                told += 1
    assert not servers_faults
    assert told > 300


def test_every_address_and_tool_is_asked() -> None:
    """The lists above leave none out."""
    assert {path for path, _ in QUERIES} == {*Reading(Repository(Memory())).answers}
    assert {name for name, _ in TOOLS} == {tool.__name__ for tool in Tools(Repository(Memory())).reading}
    assert all(inspect.signature(function).parameters for function in JOBS.values())


def test_damage_is_logged(
    whole: dict[str, bytes], tmp_path: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The server answers 422 with the damage, and writes a line about it."""
    with Disk(tmp_path / "store") as store:
        store.set_many(whole)
        store.set("r/heads/main", b"nonsense")
    viewer = serve()
    status, answer = viewer.ask("/commits?rev=main")
    assert (status, "heads/main holds no commit id" in answer["error"]) == (422, True)
    assert "/commits: " in caplog.text


@pytest.mark.parametrize("value", ["".join(f"line {n}\n" for n in range(100_000)), [*range(40_000)]])
def test_blame_ends_in_time(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blame of many parts gives up after its seconds, with advice, in the viewer and in the tools."""
    monkeypatch.setattr(life, "_BLAMING", 0.01)
    monkeypatch.setattr(mcp, "MOST_SECONDS", 0.01)
    state = Versioned()
    for n in range(8):
        state["k"] = value[n:]
        state.commit(str(n))
    for call in (lambda: blame_document(state.repo, state.repo.branch("main"), "k", ""), blamed(state)):
        begun = time.thread_time()
        answer = call()
        assert time.thread_time() - begun < 2
        assert answer["error"].endswith("give more time")


def blamed(state: Versioned) -> Callable[[], dict[str, Any]]:
    def call() -> dict[str, Any]:
        try:
            return {"error": Tools(state.repo).blame("k")}
        except ToolFailure as error:
            return {"error": str(error)}

    return call
