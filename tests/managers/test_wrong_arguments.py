"""Wrong arguments of managers: an error at once, with a clear message, and nothing is stored."""

from __future__ import annotations

import re
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
async def test_only_a_dict_is_a_dict() -> None:
    """dict("") and dict([]) are empty dicts, and an empty task is a mistake."""
    async with OrchestrationStateManager() as teams, WorkflowStateManager() as workflows:
        await teams.create_team(TeamState(team_id="t"))
        await workflows.create(WorkflowState(workflow_id="w"))
        async with SpeechStateManager() as speech, StateManager() as states:
            for given in ("", [], [("id", "x")], 0, False, (pair for pair in [("id", "x")])):
                for name, call in (
                    ("task", lambda given: teams.enqueue_task("t", given)),
                    ("context", lambda given: workflows.update_context("w", given)),
                    ("config", lambda given: speech.create_session(config=given)),
                    ("changes", lambda given: states.update("k", given)),
                ):
                    with pytest.raises(TypeError, match=f"{name}.* is a dict, not a"):
                        await call(given)
            assert (await states.list_keys(), await speech.list_active()) == ([], [])
        assert (await teams.get_queue_status("t")).total_tasks == 0


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


@in_a_loop
async def test_a_subscription_to_nothing_is_refused_at_once() -> None:
    """Otherwise every later call of the manager would fail as it begins the subscription."""
    async with StateManager() as manager:
        for pattern, function in (
            (None, print),
            (5, print),
            (b"*", print),
            ("*", None),
            ("*", "print"),
            (print, "*"),
        ):
            with pytest.raises(TypeError, match="subscribe takes a pattern and a function, not"):
                manager.subscribe(pattern, function)  # type: ignore[arg-type]
        await manager.save("k", 1)
        assert await manager.get("k") == 1


@in_a_loop
async def test_a_limit_is_a_number_from_0_on() -> None:
    """A count below zero, or a text of the command line, raises an error that names the argument."""
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
            with pytest.raises(InvalidInput, match=r"limit is a whole number from 0 on, .* not -1"):
                await call(-1)
            with pytest.raises(InvalidInput, match=r"limit is a whole number from 0 on, .* not '1'"):
                await call("1")


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


def test_a_time_in_a_zone_that_names_no_offset_is_one_without_a_zone() -> None:
    """As in Python: it is not compared with a time with an offset, nor equal to one."""

    class Nowhere(tzinfo):
        def utcoffset(self, given: datetime | None) -> None:
            return None

    time = datetime(2026, 11, 21, 9)
    assert (
        index_time(time.replace(tzinfo=Nowhere())) == index_time(time) == index_time(time.replace(tzinfo=UTC))
    )


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


@pytest.mark.parametrize("age", [-1, nan, inf, 1e300])
@in_a_loop
async def test_an_age_is_a_number_of_seconds(age: float) -> None:
    """Infinity is none: a hundred years find the sources that were never synced."""
    async with KnowledgeStateManager() as knowledge:
        with pytest.raises(InvalidInput, match="older_than is a number of seconds from 0 on, not"):
            await knowledge.needs_resync("kb", age)


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
        "the URL of a Redis server is a str, not int",
    ),
]


@pytest.mark.parametrize(("kind", "options", "told"), WRONG_SETTINGS)
def test_a_wrong_setting_raises_at_once(
    kind: Callable[..., object], options: dict[str, Any], told: str
) -> None:
    """Not by the first call, or never."""
    with pytest.raises((InvalidInput, TypeError), match=re.escape(told)):
        kind(**options)


def test_agents_are_recovered_from_their_own_store() -> None:
    """Another manager has no checkpoints, and would fail in the middle of a recovery."""
    with pytest.raises(TypeError, match="agent_store is an AgentStateStore, not a StateManager"):
        AgentRecoveryManager(agent_store=StateManager())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="auto_recover is True or False"):
        AgentRecoveryManager(AgentStateStore(), auto_recover="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="max_recovery_attempts is a whole number from 0 on, not '3'"):
        AgentRecoveryManager(AgentStateStore(), max_recovery_attempts="3")  # type: ignore[arg-type]


@in_a_loop
async def test_of_a_long_text_the_beginning_is_quoted() -> None:
    """A megabyte in place of a word does not make the message a megabyte long."""
    long = "x" * 1_000_000
    async with SpeechStateManager() as speech, OrchestrationStateManager() as teams:
        await teams.create_team(
            TeamState(team_id="t", agents={"a": AgentCoordinationState(agent_id="a", status=long)})
        )
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: speech.create_session(streaming_mode=long),
            lambda: teams.enqueue_task("t", {"id": "1", "priority": long}),
            lambda: teams.assign_task("t", agent_id="a"),
        ]
        for call in calls:
            with pytest.raises(InvalidInput, match=r"xxx'?\.\.\.") as caught:
                await call()
            assert len(str(caught.value)) < 1000


@in_a_loop
async def test_arguments_of_a_wrong_kind_raise_clear_errors() -> None:
    """None shows an error of pydantic or of Python."""
    async with SpeechStateManager() as speech, StateManager() as states, KnowledgeStateManager() as knowledge:
        await states.save("k", 1)
        calls: list[tuple[Callable[[], Awaitable[object]], str]] = [
            (lambda: speech.create_session(None), "makes no AudioSession: session_type: Input should be"),  # type: ignore[arg-type]
            (lambda: states.rollback("k", steps="1"), "steps is a whole number from 1 on, not '1'"),  # type: ignore[arg-type]
            (lambda: states.rollback(key=5), "a state's keys are str, not int: 5"),  # type: ignore[arg-type]
            (lambda: knowledge.get_stale_sources("k", "x"), "older_than is a number of seconds from 0 on"),  # type: ignore[arg-type]
        ]
        for call, told in calls:
            with pytest.raises((InvalidInput, TypeError), match=re.escape(told)):
                await call()
    async with OrchestrationStateManager() as teams:
        await teams.create_team(TeamState(team_id="t", agents={"a": AgentCoordinationState(agent_id="a")}))
        for options in ({"status": 5}, {"status": "idle", "current_task": 5}):
            with pytest.raises(InvalidRecord, match="the record 'a' is not valid"):
                await teams.update_agent_status("t", "a", **options)


def test_a_contradiction_about_the_store_shows_no_password() -> None:
    """The URL that is passed twice may hold a password."""
    url = "redis://:hush@127.0.0.1:1/0"
    calls: list[Callable[[], object]] = [
        lambda: AgentStateStore(url, redis_url=url),
        lambda: StateConfig(backend=url, file_path="state"),
        lambda: StateManager(Memory(), config=StateConfig(backend=url)),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match=r"'redis:\.\.\.'") as caught:
            call()
        assert "hush" not in str(caught.value)
