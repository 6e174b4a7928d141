"""ToolStateManager: executions, the cache, retries, and exact statistics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from agent_stores import AgentStore
from clock import standing_still
from loops import in_a_loop
from present import present

from vstate import IllegalTransition, InvalidInput, KeyNotFound
from vstate.managers import (
    RetryState,
    ToolCacheEntry,
    ToolExecution,
    ToolExecutionStatus,
    ToolStateManager,
    parameters_hash,
)


@pytest.fixture
def manager() -> ToolStateManager:
    return ToolStateManager()


def execution(id: str, tool: str = "search", **fields: Any) -> ToolExecution:
    return ToolExecution(execution_id=id, tool_name=tool, **fields)


@in_a_loop
async def test_the_documented_calls(local_store: AgentStore) -> None:
    """The calls in the documentation of agenticaiframework, on every store, and for another manager."""
    first = ToolStateManager(persistence=local_store(), cache_results=True, cache_ttl=3600)
    async with first as manager, ToolStateManager(persistence=local_store()) as other:
        began = datetime.now()
        given = {"status": ToolExecutionStatus.RUNNING, "started_at": began, "parameters": {"q": "AI"}}
        await manager.start_execution(ToolExecution(execution_id="e1", tool_name="web_search", **given))
        running = present(await other.get_execution("e1"))
        assert (running.status, running.started_at) == (ToolExecutionStatus.RUNNING, began)
        await manager.complete_execution(execution_id="e1", result={"results": [1]}, duration_ms=1500)
        (done,) = await other.get_execution_history(tool_name="web_search", limit=100)
        assert (done.status, done.result, done.duration_ms) == ("completed", {"results": [1]}, 1500)

        entry = {"parameters_hash": "abc123", "result": [2], "created_at": datetime.now(), "ttl": 3600}
        await manager.cache_result(ToolCacheEntry(tool_name="web_search", **entry))
        assert present(await other.get_cached_result("web_search", parameters_hash="abc123")).result == [2]
        assert not await other.get_cached_result(tool_name="web_search", parameters={"q": "AI"})

        await manager.start_execution(execution("e2", "web_search"))
        due = {"last_error": "timeout", "next_retry_at": datetime.now(), "backoff_factor": 2.0}
        await manager.update_retry_state(RetryState(execution_id="e2", attempts=2, max_attempts=5, **due))
        (retry,) = await other.get_pending_retries()
        assert retry.next_retry_at == due["next_retry_at"]
        stats = await other.get_tool_stats("web_search")
        assert (stats.total_executions, stats.success_rate, stats.error_rate) == (1, 1.0, 0.0)
        assert (stats.avg_duration_ms, f"{stats.cache_hit_rate:.2%}") == (1500, "50.00%")
        assert await other.invalidate_cache("web_search") == 1


@in_a_loop
async def test_an_execution_ends_once(manager: ToolStateManager) -> None:
    """A second end, a failure after completion and a second start raise, and nothing is counted twice."""
    await manager.start_execution(execution("a"))
    with pytest.raises(IllegalTransition, match="in the status 'running' 'start' is not possible"):
        await manager.start_execution(execution("a"))
    await manager.complete_execution("a", result=1)
    for again in (manager.complete_execution("a", result=2), manager.fail_execution("a", "late")):
        with pytest.raises(IllegalTransition, match="'completed'"):
            await again
    with pytest.raises(IllegalTransition):
        await manager.start_execution(execution("a"))
    with pytest.raises(IllegalTransition):
        await manager.update_retry_state(RetryState(execution_id="a", attempts=1))
    with pytest.raises(KeyNotFound):
        await manager.complete_execution("nobody's")
    kept = present(await manager.get_execution("a"))
    assert (kept.result, kept.error) == (1, None)
    assert await manager.get_pending_retries() == []
    assert (await manager.get_tool_stats("search")).total_executions == 1


@in_a_loop
async def test_statistics(manager: ToolStateManager) -> None:
    """Rates and the average follow from the counts; 0 ms counts, no duration does not, no data is 0."""
    nothing = await manager.get_tool_stats("search")
    assert f"{nothing.success_rate:.2%} {nothing.cache_hit_rate:.2%}" == "0.00% 0.00%"
    assert (nothing.total_executions, nothing.avg_duration_ms) == (0, 0)
    for id, duration in (("a", 100), ("b", 0), ("c", None)):
        await manager.start_execution(execution(id))
        await manager.complete_execution(id, duration_ms=duration)
    await manager.start_execution(execution("d"))
    failed = await manager.fail_execution("d", TimeoutError("too slow"))
    assert (failed.status, failed.error) == (ToolExecutionStatus.FAILED, "too slow")
    await manager.start_execution(execution("e", "search:x"))
    await manager.fail_execution("e", KeyError(), duration_ms=8)
    stats = await manager.get_tool_stats("search")
    assert (stats.total_executions, stats.success_rate, stats.error_rate) == (4, 0.75, 0.25)
    assert stats.avg_duration_ms == 50
    assert (await manager.get_tool_stats("search:x")).error_rate == 1


@in_a_loop
async def test_errors_of_any_text(manager: ToolStateManager) -> None:
    """The record has the whole error, and the log its beginning."""
    error = OSError("no such file: \udcff\n" + "x" * 10_000)
    await manager.start_execution(execution("a"))
    failed = await manager.fail_execution("a", error)
    assert failed.error == present(await manager.get_execution("a")).error == str(error)
    assert present(manager.state.head).message == "execution a: failed: no such file: \ufffd"
    with pytest.raises(IllegalTransition):
        await manager.fail_execution("a", "again")


@in_a_loop
async def test_history(manager: ToolStateManager) -> None:
    """The latest start first, of that tool only; the limit holds, and times without a zone stay so."""
    for n in (8, 12, 3):
        await manager.start_execution(execution(f"e{n}", started_at=datetime(2026, 1, 1, n)))
    aware = datetime(2026, 1, 3, tzinfo=UTC)
    await manager.start_execution(execution("aware", started_at=aware))
    await manager.start_execution(execution("old", started_at=datetime(1960, 1, 1)))
    await manager.start_execution(execution("other", "search:x"))
    history = await manager.get_execution_history("search")
    assert [each.execution_id for each in history] == ["aware", "e12", "e8", "e3", "old"]
    assert (history[0].started_at, history[1].started_at) == (aware, datetime(2026, 1, 1, 12))
    assert [each.execution_id for each in await manager.get_execution_history("search", 2)] == [
        "aware",
        "e12",
    ]
    assert await manager.get_execution_history("search", 0) == []
    assert await manager.get_execution_history("sear") == []


# The cache


@in_a_loop
async def test_parameters_are_matched_by_content(manager: ToolStateManager) -> None:
    """Any order of keys finds the entry, at any depth, and a tuple equals a list; other content does not."""
    given = {"q": "x", "options": {"b": [1, 2], "a": None}}
    await manager.cache_result(ToolCacheEntry(tool_name="s", parameters=given, result=None))
    same = {"options": {"a": None, "b": (1, 2)}, "q": "x"}
    found = await manager.get_cached_result("s", same)
    assert found, "a cached None is a hit"
    assert (found.result, found.parameters_hash) == (None, parameters_hash(same))
    for other in ({**given, "q": "y"}, {"q": "x"}, {}, {**given, "options": {"b": [1.0, 2], "a": None}}):
        assert await manager.get_cached_result("s", other) is None
    assert await manager.get_cached_result("s:x", given) is None


def test_hashes_differ() -> None:
    """1, True, 1.0, "1" and b"1" differ; so do None and an absent key, and an item and a list of it."""
    different: list[dict[str, Any]] = [{"n": n} for n in (1, True, 1.0, "1", b"1", None, [1], {})] + [{}]
    assert len({parameters_hash(each) for each in different}) == len(different)
    assert parameters_hash({"a": 1, "b": 2}) == parameters_hash({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({"a": {"b": [object()]}}, r"parameters\['a'\]\['b'\]\[0\] is a builtins.object"),
        ({"a": {1: 2}}, r"parameters\['a'\] has the key 1"),
        ({"a": 2**64}, "more than 64 bits"),
        ({"a": {1, 2}}, "builtins.set"),
        (["a"], "not a list"),
    ],
)
def test_parameters_that_are_not_plain(parameters: Any, place: str) -> None:
    """They raise, and name the place; they are not hashed by their repr."""
    with pytest.raises(InvalidInput, match=place):
        parameters_hash(parameters)


@in_a_loop
async def test_results_grow_old(local_store: AgentStore) -> None:
    """A result lives for its own ttl, else for the manager's, from its creation on; 0 is not at all."""
    with standing_still() as time:
        async with ToolStateManager(local_store(), cache_ttl=100) as manager:
            now = datetime.now(UTC)

            async def keep(name: str, **fields: Any) -> None:
                await manager.cache_result(ToolCacheEntry(tool_name="s", parameters={"name": name}, **fields))

            async def found() -> list[str]:
                names = ("own", "manager's", "old", "older", "none")
                given = [(name, await manager.get_cached_result("s", {"name": name})) for name in names]
                return [name for name, entry in given if entry is not None]

            await keep("own", ttl=50, created_at=now)
            await keep("manager's", created_at=now)
            await keep("old", created_at=now - timedelta(seconds=80))
            await keep("older", created_at=datetime.now() - timedelta(seconds=101))
            await keep("none", ttl=0)
            assert await found() == ["own", "manager's", "old"]
            time.pass_(30)
            assert await found() == ["own", "manager's"]
            time.pass_(30)
            assert await found() == ["manager's"]
            await keep("own", ttl=50)
            assert await found() == ["own", "manager's"]
            await keep("own", ttl=0)
            assert await found() == ["manager's"]
            time.pass_(1000)
            assert await found() == []
            assert await manager.invalidate_cache("s") == 0


@pytest.mark.parametrize(
    ("options", "kept"), [({"cache_ttl": None}, True), ({"cache_results": False}, False)]
)
@in_a_loop
async def test_results_for_ever_or_not_at_all(options: dict[str, Any], kept: bool) -> None:
    """A cache that is off counts no misses either."""
    with standing_still() as time:
        async with ToolStateManager(**options) as manager:
            await manager.cache_result(ToolCacheEntry(tool_name="s", parameters={}, result=1))
            time.pass_(10**9)
            assert bool(await manager.get_cached_result("s", {})) is kept
            assert (await manager.get_tool_stats("s")).cache_hit_rate == kept
            assert (manager.state.head is not None) is kept


@in_a_loop
async def test_a_hash_of_ones_own(manager: ToolStateManager) -> None:
    """The hash is kept, also beside `parameters`; an entry with neither is refused."""
    both = ToolCacheEntry(tool_name="s", parameters_hash="mine", parameters={"q": 1}, result=2)
    assert both.parameters_hash == "mine"
    await manager.cache_result(both)
    assert await manager.get_cached_result("s", parameters_hash="mine")
    assert await manager.get_cached_result("s", {"q": 1}) is None
    with pytest.raises(InvalidInput, match="parameters_hash"):
        await manager.cache_result(ToolCacheEntry(tool_name="s"))


@in_a_loop
async def test_invalidating(manager: ToolStateManager) -> None:
    """Exactly the named tool and parameters: {} is not all, and "s" is not "s:x"."""
    for tool in ("s", "s:x", "s/x", "sx"):
        for parameters in ({}, {"q": 1}, {"q": 2}):
            await manager.cache_result(ToolCacheEntry(tool_name=tool, parameters=parameters))
    assert await manager.invalidate_cache("s", {}) == 1
    assert await manager.invalidate_cache("s", {}) == 0
    assert await manager.get_cached_result("s", {}) is None
    assert await manager.get_cached_result("s", {"q": 1}) is not None
    assert await manager.invalidate_cache("s") == 2
    for tool in ("s:x", "s/x", "sx"):
        assert await manager.invalidate_cache(tool) == 3


# Retries


@in_a_loop
async def test_retries(manager: ToolStateManager) -> None:
    """The first due first, until the execution runs again or has no attempts left."""
    naive, aware = datetime(2026, 1, 2, 12), datetime(2025, 12, 31, 12, tzinfo=UTC)
    await manager.start_execution(execution("a"))
    await manager.fail_execution("a", "no")
    await manager.update_retry_state(RetryState(execution_id="a", attempts=1, next_retry_at=naive))
    await manager.update_retry_state(RetryState(execution_id="b", attempts=2, next_retry_at=aware))
    await manager.update_retry_state(RetryState(execution_id="c", attempts=3, max_attempts=3))
    pending = await manager.get_pending_retries()
    assert [(retry.execution_id, retry.next_retry_at) for retry in pending] == [
        ("b", aware),
        ("a", naive),
    ]
    assert present(await manager.get_execution("a")).status is ToolExecutionStatus.RETRYING

    await manager.start_execution(execution("a", attempt=2))
    assert [retry.execution_id for retry in await manager.get_pending_retries()] == ["b"]
    assert [each.attempt for each in await manager.get_execution_history("search")] == [2]
    await manager.complete_execution("a", result="at last")
    assert [retry.execution_id for retry in await manager.get_pending_retries()] == ["b"]
    stats = await manager.get_tool_stats("search")
    assert (stats.total_executions, stats.success_rate) == (2, 0.5)


# The layers below


@in_a_loop
async def test_a_completed_execution_leaves_no_retry(manager: ToolStateManager) -> None:
    await manager.start_execution(ToolExecution(execution_id="e", tool_name="t"))
    await manager.fail_execution("e", "timeout")
    await manager.update_retry_state(RetryState(execution_id="e", attempts=1))
    assert await manager.read(lambda tools: list(tools.keys("retries/"))) == ["retries/e"]
    await manager.complete_execution("e")
    assert await manager.read(lambda tools: list(tools.keys("retries/"))) == []
