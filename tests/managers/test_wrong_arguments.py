"""Wrong arguments of managers: an error at once, with a clear message, and nothing is stored."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, tzinfo
from math import inf, nan
from typing import Any

import pytest
from loops import in_a_loop

from vstate import InvalidInput, Memory, Versioned
from vstate.errors import InvalidRecord
from vstate.managers import (
    AgentCheckpoint,
    AgentCoordinationState,
    AgentRecoveryManager,
    AgentSnapshot,
    AgentStateStore,
    KnowledgeStateManager,
    Manager,
    OrchestrationStateManager,
    RedisBackend,
    RetryState,
    SpeechStateManager,
    StateConfig,
    StateManager,
    TeamState,
    ToolExecution,
    ToolStateManager,
    WorkflowCheckpoint,
    WorkflowState,
    WorkflowStateManager,
)
from vstate.managers.record import index_time
from vstate.sessions import StateService, VersionedSession


@in_a_loop
async def test_a_key_that_is_none_is_refused_before_it_is_gathered() -> None:
    """Otherwise no later commit would succeed, and all pending changes would be lost with the process."""
    store = Memory()
    async with StateManager(store, config=StateConfig(auto_save=False)) as manager:
        await manager.save("good", 1)
        too_long = "x" * 4096  # a valid key, but not with the part of the manager before it
        for key in (5, None, b"k", ("a", "b"), too_long, "\ud800"):
            for call in (manager.save, manager.update):
                with pytest.raises((TypeError, InvalidInput), match=r"keys are str|too long|surrogate"):
                    await call(key, {})  # type: ignore[arg-type]
        assert await manager.list_keys() == ["good"]
    assert dict(Versioned(store)) == {"state/good": 1}


@pytest.mark.parametrize("duration", [nan, inf, -inf])
@in_a_loop
async def test_a_duration_that_is_no_number_does_not_get_into_the_statistics(duration: float) -> None:
    """It would make every later average useless."""
    async with ToolStateManager() as tools:
        for id in ("a", "b"):
            await tools.start_execution(ToolExecution(execution_id=id, tool_name="t"))
        with pytest.raises(InvalidRecord, match="duration_ms: Input should be a finite number"):
            await tools.complete_execution("a", duration_ms=duration)
        with pytest.raises(InvalidRecord, match="duration_ms"):
            await tools.fail_execution("a", "error", duration_ms=duration)
        await tools.complete_execution("a", duration_ms=4)
        await tools.complete_execution("b", duration_ms=6)
        assert (await tools.get_tool_stats("t")).avg_duration_ms == 5


class Nowhere(tzinfo):
    """A zone that names no offset: in Python such a time is one without a zone."""

    def utcoffset(self, given: datetime | None) -> None:
        return None


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="no tzset here")
def test_a_time_without_a_zone_has_one_place_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in processes of different zones: an index finds their records."""
    naive = datetime(2026, 11, 21, 9)
    places = {index_time(naive.replace(tzinfo=zone)) for zone in (Nowhere(), UTC)}
    for zone in ("UTC0", "JST-9", "EST5"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        places.add(index_time(naive))
    monkeypatch.undo()
    time.tzset()
    assert len(places) == 1


@in_a_loop
async def test_times_at_either_end_of_the_calendar_have_their_place() -> None:
    """datetime.min means "at once" in many programs, and local clocks cannot express it."""
    later = datetime.now(UTC) + timedelta(days=2)  # it is earlier than now in any zone
    times = [datetime.min, datetime(1900, 1, 1), datetime.now(), later, datetime.max]
    async with ToolStateManager() as tools:
        order = list("01234")
        for number, time in reversed(list(enumerate(times))):
            id = str(number)
            await tools.start_execution(ToolExecution(execution_id=id, tool_name="t", started_at=time))
            await tools.fail_execution(id, "error")
            await tools.update_retry_state(RetryState(execution_id=id, next_retry_at=time))
        assert [retry.execution_id for retry in await tools.get_pending_retries()] == order
        assert [one.execution_id for one in await tools.get_execution_history("t")][::-1] == order
    async with AgentStateStore() as agents, WorkflowStateManager() as workflows:
        await workflows.create(WorkflowState(workflow_id="w"))
        for time in times[::2]:
            await agents.save_snapshot(AgentSnapshot(agent_id="a", timestamp=time))
            await workflows.checkpoint(
                WorkflowCheckpoint(workflow_id="w", checkpoint_id=str(time), timestamp=time)
            )
        assert [snapshot.timestamp for snapshot in await agents.list_snapshots("a")] == times[::2]
        assert [made.timestamp for made in await workflows.list_checkpoints("w")] == times[::2]


URL = "redis://:hush@127.0.0.1:1/0"
AGENTS: dict[str, Any] = {"agent_store": AgentStateStore()}

WRONG_SETTINGS: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    *[
        (ToolStateManager, {"cache_ttl": given}, "cache_ttl is a number of seconds")
        for given in (-1, nan, "x")
    ],
    (ToolStateManager, {"cache_results": "no"}, "cache_results is True or False, not 'no'"),
    *[
        (WorkflowStateManager, {"checkpoint_interval": given}, "checkpoint_interval is a whole number from 1")
        for given in (1.5, nan, 0, "5", True)
    ],
    (OrchestrationStateManager, {"sync_interval": "x"}, "sync_interval is a number of seconds above 0"),
    (StateConfig, {"auto_save": "no"}, "auto_save is True or False, not 'no'"),
    (StateConfig, {"ttl": "x"}, "ttl is a number of seconds above 0, or None for ever, not 'x'"),
    (StateConfig, {"save_interval": -1}, "save_interval is a number of seconds from 0 on"),
    (StateConfig, {"backend": 5}, "a store is given as a KVStore, a path or a URL, not as int"),
    (RedisBackend, {"connection_pool_size": 1.5}, "connection_pool_size is a whole number from 1 on"),
    (StateManager, {"config": {"ttl": 5}}, "config is a StateConfig, not a dict"),
    (StateService, {"ttl": "x"}, "ttl is a number of seconds above 0"),
    (StateService, {"ttl": nan}, "ttl is a number of seconds above 0"),
    *[
        (kind, {name: given}, "a store is given as a KVStore, a path or a URL, not as ")
        for kind, name in ((StateManager, "persistence"), (AgentStateStore, "persistence"))
        for given in (5, ["memory"], Versioned())
    ],
    (StateService, {"store": 5}, "a store is given as a KVStore, a path or a URL, not as int"),
    (VersionedSession, {"store": 5}, "a store is given as a KVStore, a path or a URL, not as int"),
    (
        AgentStateStore,
        {"persistence": "redis", "redis_url": 5},
        "the URL of a Redis server is a str",
    ),
    (AgentRecoveryManager, {"agent_store": StateManager()}, "agent_store is an AgentStateStore, not a State"),
    (AgentRecoveryManager, {**AGENTS, "auto_recover": "no"}, "auto_recover is True or False"),
    (AgentRecoveryManager, {**AGENTS, "max_recovery_attempts": "3"}, "is a whole number from 0 on, not '3'"),
    (AgentStateStore, {"persistence": "file", "redis_url": "redis://x"}, "redis_url and key_prefix are for"),
    (AgentStateStore, {"persistence": Memory(), "key_prefix": "x"}, "redis_url and key_prefix are for"),
    # A contradiction shows no password.
    (AgentStateStore, {"persistence": URL, "redis_url": URL}, "not for 'redis:...'"),
    (StateConfig, {"backend": URL, "file_path": "state"}, "not for 'redis:...'"),
    (
        StateManager,
        {"persistence": Memory(), "config": StateConfig(backend=URL)},
        "backend 'redis:...' were both",
    ),
]


@pytest.mark.parametrize(("kind", "options", "told"), WRONG_SETTINGS)
def test_a_wrong_setting_raises_at_once(
    kind: Callable[..., object], options: dict[str, Any], told: str
) -> None:
    """Not by the first call, or never."""
    with pytest.raises((InvalidInput, TypeError), match=re.escape(told)) as caught:
        kind(**options)
    assert "hush" not in str(caught.value)


LONG = "x" * 1_000_000
NO_DICTS = ("", [], [("id", "x")], 0, False, (pair for pair in [("id", "x")]))
LIMIT = "limit is a whole number from 0 on, or None for no limit, not "
AGE = "older_than is a number of seconds from 0 on, not "

Call = Callable[[Any], Any]

Agents, Flows, Knowledge = AgentStateStore, WorkflowStateManager, KnowledgeStateManager
Speech, States, Teams, Tools = SpeechStateManager, StateManager, OrchestrationStateManager, ToolStateManager

WRONG_CALLS: list[tuple[type[Manager], Call, str]] = [
    # dict("") and dict([]) are empty dicts, and an empty task is a mistake.
    *[(Teams, lambda it, x=x: it.enqueue_task("t", x), "task is a dict") for x in NO_DICTS],
    *[(Flows, lambda it, x=x: it.update_context("w", x), "context is a dict") for x in NO_DICTS],
    *[(Speech, lambda it, x=x: it.create_session(config=x), "config is a dict") for x in NO_DICTS],
    *[(States, lambda it, x=x: it.update("k", x), "changes is a dict, not a") for x in NO_DICTS],
    # Otherwise every later call of the manager would fail as it begins the subscription.
    *[
        (
            StateManager,
            lambda it, given=given: it.subscribe(*given),
            "subscribe takes a pattern and a function",
        )
        for given in ((None, print), (5, print), (b"*", print), ("*", None), ("*", "print"), (print, "*"))
    ],
    (Agents, lambda it: it.list_snapshots("a", limit=-1), LIMIT + "-1"),
    (Agents, lambda it: it.list_checkpoints("a", limit="1"), LIMIT + "'1'"),
    (Agents, lambda it: it.history("checkpoints/a/c", limit=-1), LIMIT + "-1"),
    (Tools, lambda it: it.get_execution_history("t", limit="1"), LIMIT + "'1'"),
    (States, lambda it: it.rollback("k", steps="1"), "steps is a whole number from 1 on, not '1'"),
    (States, lambda it: it.rollback(key=5), "a state's keys are str, not int: 5"),
    # Infinity is none: a hundred years find the sources that were never synced.
    *[(Knowledge, lambda it, age=age: it.needs_resync("k", age), AGE) for age in (-1, nan, inf, 1e300, "x")],
    (Speech, lambda it: it.create_session(None), "makes no AudioSession: session_type: Input"),
    (Teams, lambda it: it.enqueue_task("t", {"id": 5}), "a task's id is a text, not 5"),
    *[
        (
            Teams,
            lambda it, more=more: it.update_agent_status("t", "a", **more),
            "record 'a'",
        )
        for more in ({"status": 5}, {"status": "idle", "current_task": 5})
    ],
    (
        Flows,
        lambda it: it.list_workflows("nope"),
        "'nope' is no WorkflowStatus; these are: pend",
    ),
    # Of a long text the beginning is quoted.
    (Speech, lambda it: it.create_session(streaming_mode=LONG), "xxx'..."),
    (Teams, lambda it: it.enqueue_task("t", {"id": "1", "priority": LONG}), "xxx'..."),
    (Teams, lambda it: it.assign_task("t", agent_id="long"), "xxx'..."),
]


@pytest.mark.parametrize(("kind", "call", "told"), WRONG_CALLS)
@in_a_loop
async def test_a_wrong_argument_raises(kind: type[Manager], call: Call, told: str) -> None:
    """An error that names it, not one of pydantic or of Python, and nothing is stored."""
    async with kind() as manager:
        if isinstance(manager, OrchestrationStateManager):
            statuses = {"a": "idle", "long": LONG}
            agents = {id: AgentCoordinationState(agent_id=id, status=text) for id, text in statuses.items()}
            await manager.create_team(TeamState(team_id="t", agents=agents))
        if isinstance(manager, WorkflowStateManager):
            await manager.create(WorkflowState(workflow_id="w"))
        head = manager.state.head
        with pytest.raises((InvalidInput, TypeError, InvalidRecord), match=re.escape(told)) as caught:
            await call(manager)
        assert len(str(caught.value)) < 1000
        assert await manager.read(lambda part: part.root.head) == head


@in_a_loop
async def test_a_limit() -> None:
    """At most so many, from 0 on."""
    async with AgentStateStore() as agents, ToolStateManager() as tools:
        await agents.save_snapshot(AgentSnapshot(agent_id="a"))
        await agents.save_checkpoint(AgentCheckpoint(agent_id="a", checkpoint_id="c"))
        await tools.start_execution(ToolExecution(execution_id="e", tool_name="t"))
        calls: list[Callable[[Any], Awaitable[list[Any]]]] = [
            lambda limit: agents.list_snapshots("a", limit=limit),
            lambda limit: agents.list_checkpoints("a", limit=limit),
            lambda limit: agents.history("checkpoints/a/c", limit=limit),
            lambda limit: tools.get_execution_history("t", limit=limit),
        ]
        for call in calls:
            assert [len(await call(limit)) for limit in (0, 1, 5, None)] == [0, 1, 1, 1]
