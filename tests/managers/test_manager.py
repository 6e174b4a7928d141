"""Manager, the base class: change, read, history, close; and its persistence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from agent_stores import AgentStore
from loops import in_a_loop
from servers import with_options

import vstate.managers
from vstate import Disk, InvalidInput, Memory, StoreUnavailable, Versioned
from vstate.managers import (
    AgentCheckpoint,
    AgentSnapshot,
    AgentStateStore,
    FileBackend,
    KnowledgeStateManager,
    Manager,
    MemoryBackend,
    OrchestrationStateManager,
    SourceState,
    SpeechStateManager,
    StateConfig,
    StateManager,
    STTState,
    TeamState,
    ToolCacheEntry,
    ToolExecution,
    ToolStateManager,
    WorkflowState,
    WorkflowStateManager,
    parameters_hash,
)
from vstate.patterns.paths import join_path
from vstate.sessions import StateModule, StateService, VersionedSession


class Notes(Manager):
    """The smallest manager."""

    part = "notes"

    async def add(self, name: str, text: str) -> str:
        def add(part: Any) -> str:
            part[name] = part.get(name, "") + text
            return str(part[name])

        return await self.change(add, f"add to {name}", by="test")


@in_a_loop
async def test_a_change_is_one_commit_in_the_managers_part(local_store: AgentStore) -> None:
    """With its message and info; `vstate log` and a plain state see it."""
    async with Notes(local_store()) as notes:
        assert await notes.add("a", "1") == "1"
        assert await notes.add("a", "2") == "12"
        assert await notes.read(dict) == {"a": "12"}
        history = await notes.history("a")
        assert [commit.message for commit in history] == ["add to a"] * 2
        assert history[0].info == {"by": "test"}
        assert len(await notes.history("a", limit=1)) == 1
        assert notes.state.branch == "main"
    with Versioned(local_store(), branch="main") as state:
        assert dict(state) == {"notes/a": "12"}
        assert len(list(state.log())) == 2


@in_a_loop
async def test_changes_at_once_are_all_kept(agent_store: AgentStore) -> None:
    """Tasks of one manager, and of several on one store."""
    managers = [Notes(agent_store()) for _ in range(3)]
    await asyncio.gather(*(managers[n % 3].add("a", "x") for n in range(30)))
    assert await managers[1].read(lambda part: part["a"]) == "x" * 30
    history = await managers[2].history("a")
    assert len(history) == 30, "history starts at the newest commit of any manager"
    for manager in managers:
        await manager.close()


@in_a_loop
async def test_every_way_to_say_where(
    tmp_path: Path, redis_url: str, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word, a path, a URL, a store."""
    monkeypatch.chdir(tmp_path)
    redis = with_options(redis_url, [f"prefix={redis_prefix}"])
    for given in (
        "file",
        tmp_path / "p",
        str(tmp_path / "s"),
        "./word",
        "tools",
        f"disk:{tmp_path / 'd'}",
        redis,
        Disk("x"),
    ):
        async with Notes(given) as notes:
            await notes.add("a", "1")
        async with Notes(given) as again:
            assert await again.read(dict) == {"a": "1"}
    assert {path.name for path in tmp_path.iterdir()} == {"state", "p", "s", "word", "tools", "d", "x"}
    for memory in ("memory", "memory:", MemoryBackend()):
        async with Notes(memory) as notes:
            assert await notes.add("a", "1") == "1"
    async with Notes("file", path=str(tmp_path / "elsewhere")) as notes:
        await notes.add("a", "1")
    assert (tmp_path / "elsewhere" / "vstate.db").exists()
    async with Notes("redis", redis_url=redis) as notes:
        assert await notes.read(dict) == {"a": "1"}


@in_a_loop
async def test_a_store_that_is_not_there_yet_is_reached_by_a_later_call(tmp_path: Path) -> None:
    """A manager is made without its server, and works once the server is there."""
    (tmp_path / "store").write_text("in the way")
    notes = Notes(tmp_path / "store")
    with pytest.raises(InvalidInput):
        await notes.add("a", "1")
    (tmp_path / "store").unlink()
    assert await notes.add("a", "1") == "1"
    await notes.close()
    down = Notes("redis", redis_url="redis://127.0.0.1:1")
    for call in (lambda: down.add("a", "1"), lambda: down.read(dict), lambda: down.history("a")):
        with pytest.raises(StoreUnavailable):
            await call()
    await down.close()


@in_a_loop
async def test_closing(tmp_path: Path) -> None:
    """A second close is allowed, later calls raise; its own store is closed, the program's is not."""
    given = Disk(tmp_path / "given")
    for persistence in (given, tmp_path / "own", "memory"):
        notes = Notes(persistence)
        await notes.add("a", "1")
        await notes.close()
        await notes.close()
        for call in (lambda notes=notes: notes.add("a", "1"), lambda notes=notes: notes.read(dict)):
            with pytest.raises(InvalidInput, match="this Notes is closed"):
                await call()
    assert given.get("format") is not None
    given.close()
    own = FileBackend(tmp_path / "own")
    notes = Notes(own)
    await notes.close()
    assert own.get("format") is not None
    own.close()


def test_managers_are_imported_when_they_are_asked_for(run_python: Callable[..., str]) -> None:
    run_python("""
import sys
import vstate
assert not [name for name in sys.modules if name.startswith(("pydantic", "vstate.managers", "asyncio"))]
""")


def test_the_package_exports_the_public_names_of_its_modules() -> None:
    """Its names are those in the `__all__` of its modules."""
    files = Path(vstate.managers.__file__).parent.glob("[a-z]*.py")
    modules = [import_module(f"vstate.managers.{file.stem}") for file in files]
    names = [name for module in modules for name in getattr(module, "__all__", ())]
    assert sorted(vstate.managers.__all__) == sorted(names)


Branched = Callable[..., Any]


@pytest.mark.parametrize("persistence", ["given", "path", "file"])
@in_a_loop
async def test_closing_waits_for_the_calls_under_way(persistence: str, tmp_path: Path) -> None:
    """Each has happened when it returns; later calls raise."""
    store = {"given": Disk(tmp_path), "path": tmp_path, "file": "file"}[persistence]
    notes = Notes(store, path=str(tmp_path))  # type: ignore[arg-type]
    await notes.add("first", "1")
    under_way = [asyncio.create_task(notes.add(str(n), "1")) for n in range(20)]
    await asyncio.sleep(0.005)
    closing = asyncio.create_task(notes.close())
    await asyncio.sleep(0)
    with pytest.raises(InvalidInput, match="this Notes is closed"):
        await notes.add("later", "1")
    await asyncio.gather(closing, notes.close(), *under_way)
    async with Notes(tmp_path) as again:
        assert await again.read(len) == 21
    if isinstance(store, Disk):
        store.close()


@in_a_loop
async def test_a_close_that_is_cancelled_is_ended_by_the_next(tmp_path: Path) -> None:
    """And it fails none of the calls that it waited for."""
    notes = Notes("file", path=str(tmp_path))
    await notes.add("a", "1")
    own = notes.state.sync.store
    begun, over = threading.Event(), threading.Event()

    def wait_and_write(part: Any) -> bool:
        begun.set()
        part["b"] = over.wait(60)
        return True

    writing = asyncio.create_task(notes.change(wait_and_write, "b"))
    await asyncio.to_thread(begun.wait, 60)
    closing = asyncio.create_task(notes.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not writing.done()
    over.set()
    assert await writing, "its store is open until it has ended"
    await notes.close()
    with pytest.raises(InvalidInput, match="closed"):
        own.get("format")
    await notes.close()


@pytest.mark.parametrize("made", [WorkflowStateManager, VersionedSession])
def test_repr_says_where_and_no_secret(made: Any, tmp_path: Path) -> None:
    """Open or not, of a path or a URL; also that of a config, which may have a URL."""
    name = made.__name__
    assert repr(made("redis://:hush@127.0.0.1:1/0")) == f"<{name} on redis:...>"
    assert repr(made(tmp_path)) == f"<{name} on {tmp_path}>"
    for field in ("redis_url", "backend"):
        assert "hush" not in repr(StateConfig(**{field: "redis://:hush@127.0.0.1:1/0"}))


IDS = ["a", "ab", "a/b", "a:b", "a_b", "a%2fb", "", "..", "ä %2f"]

Of = Callable[[Any, str], Any]

KEEPERS: dict[str, tuple[Branched, Of, Of, Of | None]] = {
    "agents": (
        AgentStateStore,
        lambda it, id: it.save_checkpoint(AgentCheckpoint(agent_id=id, checkpoint_id="c", state=id)),
        lambda it, id: it.list_checkpoints(id),
        lambda it, id: it.delete(id),
    ),
    "snapshots": (
        AgentStateStore,
        lambda it, id: it.save_snapshot(AgentSnapshot(agent_id=id)),
        lambda it, id: it.list_snapshots(id),
        lambda it, id: it.delete(id),
    ),
    "teams": (
        OrchestrationStateManager,
        lambda it, id: it.create_team(TeamState(team_id=id, agents={id: {"agent_id": id}})),
        lambda it, id: it.get_available_agents(id),
        lambda it, id: it.delete_team(id),
    ),
    "knowledge": (
        KnowledgeStateManager,
        lambda it, id: it.update_source_state(SourceState(source_id=id, knowledge_base_id=id)),
        lambda it, id: it.get_sources(id),
        None,
    ),
    "executions": (
        ToolStateManager,
        lambda it, id: it.start_execution(ToolExecution(execution_id=id, tool_name=id)),
        lambda it, id: it.get_execution_history(id),
        None,
    ),
    "cache": (
        ToolStateManager,
        lambda it, id: it.cache_result(ToolCacheEntry(tool_name=id, parameters={})),
        lambda it, id: it.read(lambda part: [key for key in part if key == join_path("cache", id, HASH)]),
        lambda it, id: it.invalidate_cache(id),
    ),
    "speech": (
        SpeechStateManager,
        lambda it, id: it.update_stt_state(STTState(session_id=id)),
        lambda it, id: it.read(lambda part: [key for key in part if key == join_path("stt", id)]),
        None,
    ),
    "rounds": (
        StateService,
        lambda it, id: it.save_state(id, {}),
        lambda it, id: it.list_rounds(id),
        lambda it, id: it.delete_state(id),
    ),
}
HASH = parameters_hash({})


@pytest.mark.parametrize("kept", KEEPERS)
@in_a_loop
async def test_ids_that_look_alike_never_mix(kept: str) -> None:
    """In the original "a" got the checkpoints of "ab", and deleting "a" deleted them."""
    kind, write, found, delete = KEEPERS[kept]
    async with kind(Memory()) as keeper:
        for id in IDS[1:]:
            await write(keeper, id)
        if kept != "teams":  # which raises for an unknown one
            assert await found(keeper, "a") == []
        await write(keeper, "a")
        if delete is not None:
            await delete(keeper, "a")
        for id in IDS[1:]:
            assert len(await found(keeper, id)) == 1


async def write_checkpoint(manager: Any) -> None:
    await manager.save_checkpoint(AgentCheckpoint(agent_id="a", checkpoint_id="c"))


WRITERS: dict[str, tuple[Branched, Callable[[Any], Any]]] = {
    "agents": (AgentStateStore, write_checkpoint),
    "workflows": (WorkflowStateManager, lambda it: it.create(WorkflowState(workflow_id="w"))),
    "teams": (OrchestrationStateManager, lambda it: it.create_team(TeamState(team_id="t"))),
    "knowledge": (KnowledgeStateManager, lambda it: it.change(lambda part: part.update(k=1), "note")),
    "tools": (ToolStateManager, lambda it: it.change(lambda part: part.update(k=1), "note")),
    "speech": (SpeechStateManager, lambda it: it.change(lambda part: part.update(k=1), "note")),
    "state": (StateManager, lambda it: it.save("k", 1)),
    "sessions": (VersionedSession, lambda it: it.save_session_state("s", box=StateModule())),
    "users": (StateService, lambda it: it.save_state("u", {})),
}


@pytest.mark.parametrize("part", WRITERS)
@in_a_loop
async def test_it_writes_to_the_branch_of_head_or_to_a_named_one(part: str) -> None:
    """The branch is that of HEAD when it opens: a later checkout does not split its reads from its writes."""
    kind, write = WRITERS[part]
    store = Memory()
    state = Versioned(store)
    state["x"] = 1
    state.commit()
    state.switch("what-if", create=True)

    def has(branch: str) -> bool:
        return any(key.startswith(part) for key in Versioned(store, branch=branch))

    async with kind(store) as follower:
        state.switch("main")
        await write(follower)
        assert (has("main"), has("what-if"), follower.state.branch) == (False, True, "what-if")
        await follower.state.read(lambda state: None)
        assert follower.state.branch == "what-if"
    async with kind(store, branch="other") as named:
        await write(named)
    assert (has("main"), has("other")) == (False, True)
    async with kind(store) as again:
        await write(again)
    assert has("main")
