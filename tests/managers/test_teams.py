"""OrchestrationStateManager: teams, their agents, and tasks that run exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest
from agent_stores import AgentStore
from hypothesis import given
from hypothesis import strategies as st
from loops import in_a_loop
from present import present
from running import Fork
from soak import sized

from vstate import AlreadyExists, IllegalTransition, InvalidInput, KeyNotFound
from vstate.managers import (
    AgentCoordinationState,
    AgentCoordinationStatus,
    OrchestrationStateManager,
    TaskQueueState,
    TeamState,
)
from vstate.managers.teams import place


@pytest.fixture
def manager() -> OrchestrationStateManager:
    return OrchestrationStateManager()


def team(agents: int = 2, team_id: str = "crew", **fields: Any) -> TeamState:
    """A team of idle agents a0, a1, …"""
    members = {f"a{n}": AgentCoordinationState(agent_id=f"a{n}") for n in range(agents)}
    return TeamState(team_id=team_id, agents=members, **fields)


async def ids(manager: OrchestrationStateManager, status: str = "pending") -> list[str]:
    """The ids of the tasks in one status, in order."""
    queue = await manager.get_queue_status("crew")
    return [task["id"] for task in getattr(queue, status)]


# Teams


@in_a_loop
async def test_the_documented_calls(local_store: AgentStore) -> None:
    """The calls in the documentation of agenticaiframework, on every store, and for a second manager."""
    async with OrchestrationStateManager(local_store(), sync_interval=1.0) as manager:
        await manager.create_team(
            TeamState(
                team_id="research",
                agents={
                    "r1": AgentCoordinationState(
                        agent_id="r1", status="idle", capabilities=["search"], current_task=None
                    ),
                    "w1": AgentCoordinationState(agent_id="w1", status="idle", capabilities=["write"]),
                },
                task_queue=TaskQueueState(pending=[], in_progress=[], completed=[]),
            )
        )
        for agent_id in ("r1", "w1"):
            await manager.update_agent_status(
                team_id="research", agent_id=agent_id, status="working", current_task="task_001"
            )
        await manager.update_agent_status(team_id="research", agent_id="r1", status="idle")
        assert [a.agent_id for a in await manager.get_available_agents(team_id="research")] == ["r1"]
        assert await manager.get_available_agents(team_id="research", capability="write") == []
        task = {"id": "task_002", "type": "research", "priority": "high", "data": {"query": "AI"}}
        await manager.enqueue_task(team_id="research", task=task)
        await manager.assign_task(team_id="research", task_id="task_002", agent_id="r1")

        async with OrchestrationStateManager(local_store()) as other:
            found = present(await other.get_team("research"))
            assert {id: agent.status for id, agent in found.agents.items()} == {
                "r1": "working",
                "w1": "working",
            }
            assert found.agents["r1"].current_task == "task_002"
            await other.enqueue_task(team_id="research", task={"id": "task_003"})
            await other.assign_task(team_id="research", task_id="task_003", agent_id="w1")  # from task_001
            await other.complete_task(team_id="research", task_id="task_003")
            await other.complete_task(team_id="research", task_id="task_002", result={"found": 3})

        queue = await manager.get_queue_status("research")
        assert (len(queue.pending), len(queue.in_progress), len(queue.completed)) == (0, 0, 2)
        assert queue.completed[1].items() >= {**task, "assigned_to": "r1", "result": {"found": 3}}.items()
        assert [a.agent_id for a in await manager.get_available_agents("research", "search")] == ["r1"]


@in_a_loop
async def test_teams_come_and_go(manager: OrchestrationStateManager) -> None:
    """Extra fields are kept; a second team with the same id is refused; a deleted team leaves nothing."""
    await manager.create_team(team(mode="parallel", shared_context={"goal": "win"}))
    await manager.create_team(team(1, "other"))
    await manager.enqueue_task("crew", {"id": "t"})
    with pytest.raises(AlreadyExists, match=r"^there is a team 'crew' already$"):
        await manager.create_team(team())
    found = present(await manager.get_team("crew"))
    assert found.model_extra == {"mode": "parallel", "shared_context": {"goal": "win"}}
    assert (list(found.agents), len(found.task_queue.pending)) == (["a0", "a1"], 1)
    assert [t.team_id for t in await manager.list_teams()] == ["crew", "other"]
    await manager.delete_team("crew")
    assert await manager.get_team("crew") is None
    assert [t.team_id for t in await manager.list_teams()] == ["other"]
    assert [key async for key in manager.state.keys("teams/")] == [
        "teams/agents/other/a0",
        "teams/state/other",
    ]


@in_a_loop
async def test_a_team_can_bring_its_queue(manager: OrchestrationStateManager) -> None:
    """Tasks in any status, also as bare ids; an agent under the id of another is refused."""
    queue = TaskQueueState(
        pending=["p1", {"id": "p2", "priority": "high", "assigned_to": "a1"}],
        in_progress=[{"id": "i", "assigned_to": "a1"}],
        completed=[{"id": "c"}],
        failed=[{"id": "f"}],
    )
    made = await manager.create_team(team(task_queue=queue))
    assert [task["id"] for task in made.task_queue.pending] == ["p2", "p1"]
    assert "assigned_at" not in made.task_queue.pending[0], "nobody is at it"
    assert (made.task_queue.total_tasks, made.task_queue.completion_rate) == (5, 0.2)
    done = await manager.complete_task("crew", "i", agent_id="a1")
    assert done["status"] == "completed"
    with pytest.raises(InvalidInput, match="one id"):
        await manager.create_team(TeamState(team_id="x", agents={"a": AgentCoordinationState(agent_id="b")}))
    assert await manager.get_team("x") is None


@in_a_loop
async def test_an_unknown_team_agent_or_task(manager: OrchestrationStateManager) -> None:
    """An unknown team, agent or task raises KeyNotFound; only `get_team` returns None."""
    assert await manager.get_team("crew") is None
    for call in (
        manager.delete_team("crew"),
        manager.get_available_agents("crew"),
        manager.update_agent_status("crew", "a0", "idle"),
        manager.add_agent("crew", AgentCoordinationState(agent_id="a")),
        manager.enqueue_task("crew", {"id": "t"}),
        manager.assign_task("crew"),
        manager.get_queue_status("crew"),
        anext(manager.watch_agents("crew")),
    ):
        with pytest.raises(KeyNotFound, match=r"^no team 'crew'$"):
            await call
    await manager.create_team(team())
    for call, absent in (
        (manager.update_agent_status("crew", "nobody", "idle"), "AgentCoordinationState 'nobody'"),
        (manager.remove_agent("crew", "nobody"), "AgentCoordinationState 'nobody'"),
        (manager.assign_task("crew", agent_id="nobody"), "AgentCoordinationState 'nobody'"),
        (manager.assign_task("crew", "nothing"), "Task 'nothing'"),
        (manager.complete_task("crew", "nothing", agent_id="a0"), "Task 'nothing'"),
    ):
        with pytest.raises(KeyNotFound, match=f"^no {absent}$"):
            await call


# Agents


@in_a_loop
async def test_agents_join_and_leave(manager: OrchestrationStateManager) -> None:
    """The task of a removed agent goes back to its old place."""
    await manager.create_team(team(1))
    await manager.add_agent("crew", AgentCoordinationState(agent_id="new", capabilities=["search"]))
    with pytest.raises(AlreadyExists):
        await manager.add_agent("crew", AgentCoordinationState(agent_id="new"))
    for id in ("first", "second"):
        await manager.enqueue_task("crew", {"id": id})
    assert await manager.assign_task("crew", agent_id="new")
    assert await ids(manager) == ["second"]
    await manager.remove_agent("crew", "new")
    assert await ids(manager) == ["first", "second"]
    assert [agent.agent_id for agent in await manager.get_available_agents("crew")] == ["a0"]
    again = present(await manager.assign_task("crew"))
    assert (again["id"], again["assigned_to"]) == ("first", "a0")


@in_a_loop
async def test_the_status_of_an_agent(manager: OrchestrationStateManager) -> None:
    """Any text or enum member is a status; the task stays until the agent is free, or the call changes it."""
    await manager.create_team(team(1))
    agent = await manager.update_agent_status("crew", "a0", AgentCoordinationStatus.WORKING, "t1")
    assert (agent.status, agent.current_task, agent.is_available) == ("working", "t1", False)
    agent = await manager.update_agent_status("crew", "a0", "thinking hard")
    assert (agent.status, agent.current_task) == ("thinking hard", "t1")
    assert await manager.get_available_agents("crew") == []
    agent = await manager.update_agent_status("crew", "a0", "thinking hard", None)
    assert agent.current_task is None
    await manager.update_agent_status("crew", "a0", "working", "t2")
    for free in ("idle", "available"):
        agent = await manager.update_agent_status("crew", "a0", free)
        assert (agent.status, agent.current_task, agent.is_available) == (free, None, True)
    found = present(await manager.get_team("crew"))
    assert ([a.agent_id for a in found.available_agents], found.busy_agents) == (["a0"], [])


@in_a_loop
async def test_a_noted_task_gives_way_to_an_assigned_one(manager: OrchestrationStateManager) -> None:
    """Also if it is pending. A task in progress does not, nor does a status without a task."""
    await manager.create_team(team(1))
    for id in ("t1", "t2", "t3"):
        await manager.enqueue_task("crew", {"id": id})
    for status, noted, task_id in (("busy", "their own", "t1"), ("idle", "t2", "t2")):
        await manager.update_agent_status("crew", "a0", status, noted)
        assert await manager.assign_task("crew") is None  # a call that names no agent leaves it alone
        assert await manager.assign_task("crew", task_id, "a0")
        with pytest.raises(IllegalTransition, match=f"possible are: complete or fail '{task_id}'$"):
            await manager.assign_task("crew", "t3", "a0")
        await manager.complete_task("crew", task_id)
    await manager.update_agent_status("crew", "a0", "busy")
    with pytest.raises(IllegalTransition, match=r"'busy'.*possible are: be idle$"):
        await manager.assign_task("crew", "t3", "a0")


@in_a_loop
async def test_agents_are_watched(local_store: AgentStore) -> None:
    """Every `sync_interval` seconds, with changes of other processes; deleting the team ends it."""
    with pytest.raises(InvalidInput, match="sync_interval"):
        OrchestrationStateManager(sync_interval=0)
    async with (
        OrchestrationStateManager(local_store(), sync_interval=0.01) as manager,
        OrchestrationStateManager(local_store()) as other,
    ):
        await other.create_team(team())
        watch = manager.watch_agents("crew")
        assert [(await anext(watch)).agent_id for _ in range(2)] == ["a0", "a1"]
        await other.update_agent_status("crew", "a1", "working")
        assert (await anext(watch)).status == "working"
        await other.add_agent("crew", AgentCoordinationState(agent_id="new"))
        assert (await anext(watch)).agent_id == "new"
        await other.delete_team("crew")
        with pytest.raises(KeyNotFound):
            await anext(watch)


# Tasks


ORDER = [
    ("ten", 10),
    ("critical", "critical"),
    ("two", 2),
    ("high", "high"),
    ("half", 0.5),
    ("normal", "normal"),
    ("none", None),
    ("low", "low"),
    ("minus ten", -10),
]


@in_a_loop
async def test_the_order_of_tasks(local_store: AgentStore) -> None:
    """Highest priority first, words among numbers, the first one within a priority, from any process."""
    first, second = OrchestrationStateManager(local_store()), OrchestrationStateManager(local_store())
    async with first as one, second as two:
        await one.create_team(team(1))
        for n in (3, 8, 1, 5, 0, 7, 2, 6, 4):  # critical and 2 are equal, as are normal and no priority
            id, priority = ORDER[n]
            await (one, two)[n % 2].enqueue_task("crew", {"id": id, "priority": priority})
        expected = [id for id, _ in ORDER]
        assert await ids(one) == expected
        for id in expected:
            assert present(await two.assign_task("crew", agent_id="a0"))["id"] == id
            await one.complete_task("crew", id)
        assert await ids(one, "completed") == expected


@given(
    st.lists(
        st.tuples(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)), st.integers(0))
    )
)
def test_a_place_sorts_as_it_should(tasks: list[tuple[float, int]]) -> None:
    """By priority, the highest first, and by time; zero, minus zero and no priority are one."""
    at = [
        (min(max(p, -1e300), 1e300), datetime.fromtimestamp(0, UTC) + timedelta(microseconds=m % 10**15))
        for p, m in tasks
    ]
    places = sorted((place(p, moment), -float(p), moment) for p, moment in at)
    now = datetime.now(UTC)
    assert place(-0.0, now) == place(0.0, now) == place("normal", now) == place(None, now)
    for (_, p, moment), (_, q, later) in pairwise(places):
        assert (p, moment) <= (q, later)


@in_a_loop
async def test_the_id_of_a_task(manager: OrchestrationStateManager) -> None:
    """From "id" or "task_id"; a new one without them; never used twice, even after the task has ended.

    A wrong priority is refused.
    """
    await manager.create_team(team())
    assert await manager.enqueue_task("crew", {"id": "a"}) == "a"
    assert await manager.enqueue_task("crew", {"task_id": "b", "data": 1}) == "b"
    made = await manager.enqueue_task("crew", {"data": 2})
    other = await manager.enqueue_task("crew", {"data": 2})
    assert len({made, other, "a", "b"}) == 4
    assert await ids(manager) == ["a", "b", made, other]
    await manager.assign_task("crew", "a")
    await manager.complete_task("crew", "a")
    with pytest.raises(AlreadyExists):
        await manager.enqueue_task("crew", {"id": "a"})
    for priority in (True, False, "huge", nan, inf, 10**400, [1]):
        with pytest.raises(InvalidInput, match=r"critical, urgent, .*, low, not "):
            await manager.enqueue_task("crew", {"id": "x", "priority": priority})


@in_a_loop
async def test_impossible_moves(manager: OrchestrationStateManager) -> None:
    """A second end, an unassigned task, the task of another agent, a second task, and the reverse."""
    await manager.create_team(team(3))
    for id in ("t1", "t2", "t3"):
        await manager.enqueue_task("crew", {"id": id})
    with pytest.raises(IllegalTransition, match="complete"):
        await manager.complete_task("crew", "t1")
    await manager.assign_task("crew", "t1", "a0")
    head = manager.state.head
    with pytest.raises(IllegalTransition, match="assign"):
        await manager.assign_task("crew", "t1", "a1")
    for task_id in ("t2", None):
        with pytest.raises(IllegalTransition, match="working at 't1'"):
            await manager.assign_task("crew", task_id, "a0")
    for end in (manager.complete_task, manager.fail_task):
        with pytest.raises(IllegalTransition, match="'t1' by 'a0'"):
            await end("crew", "t1", agent_id="a1")
    assert await manager.history("tasks/crew/t1", limit=1) == [head]
    await manager.complete_task("crew", "t1", agent_id="a0")
    for end in (manager.complete_task, manager.fail_task):
        with pytest.raises(IllegalTransition):
            await end("crew", "t1")
    await manager.update_agent_status("crew", "a0", "blocked")
    with pytest.raises(IllegalTransition, match="blocked"):
        await manager.assign_task("crew", "t2", "a0")
    assert (await ids(manager), await ids(manager, "completed")) == (["t2", "t3"], ["t1"])


@in_a_loop
async def test_a_free_agent_is_found(manager: OrchestrationStateManager) -> None:
    """Without a named agent any free one gets the task; None if none is free, or if there is no task."""
    await manager.create_team(team(2))
    assert await manager.assign_task("crew") is None
    for id in ("t1", "t2", "t3"):
        await manager.enqueue_task("crew", {"id": id})
    given = [await manager.assign_task("crew") for _ in range(3)]
    assert [task and (task["id"], task["assigned_to"]) for task in given] == [
        ("t1", "a0"),
        ("t2", "a1"),
        None,
    ]


@in_a_loop
async def test_a_failed_task(manager: OrchestrationStateManager) -> None:
    """The task keeps its error, or goes back to its old place; the agent is free again."""
    await manager.create_team(team(1))
    for id in ("t1", "t2"):
        await manager.enqueue_task("crew", {"id": id})
    await manager.assign_task("crew")
    again = await manager.fail_task("crew", "t1", "timeout", requeue=True)
    assert (again["status"], again["error"], "assigned_to" in again) == ("pending", "timeout", False)
    assert await ids(manager) == ["t1", "t2"]
    await manager.assign_task("crew")
    failed = await manager.fail_task("crew", "t1", error="no use")
    assert (failed["status"], failed["error"], failed["assigned_to"]) == ("failed", "no use", "a0")
    assert (await ids(manager, "failed"), await ids(manager)) == (["t1"], ["t2"])
    assert [agent.agent_id for agent in await manager.get_available_agents("crew")] == ["a0"]


# Many processes


async def pull(store: str, me: int, enqueued: int) -> None:
    """Enqueue so many tasks, and run tasks until none is left. Each that was run is printed."""
    async with OrchestrationStateManager(store) as manager:
        for n in range(enqueued):
            await manager.enqueue_task("crew", {"id": f"{me}-{n}"})
        while (task := await manager.assign_task("crew", agent_id=f"a{me}")) is not None:
            print(task["id"])
            await manager.complete_task("crew", task["id"], str(me), agent_id=f"a{me}")


@pytest.mark.slow
def test_processes_run_each_task_once(shared_store: AgentStore) -> None:
    """None runs twice, and none is lost of those that the processes enqueue meanwhile."""
    url, own, processes, tasks = shared_store.url, 3, sized(3, 8), sized(12, 920)
    assert url is not None

    async def prepare() -> None:
        async with OrchestrationStateManager(url) as manager:
            queue = TaskQueueState(pending=[{"id": f"t{n}", "priority": n % 3} for n in range(tasks)])
            await manager.create_team(team(processes, task_queue=queue))

    async def left() -> TaskQueueState:
        async with OrchestrationStateManager(url) as manager:
            assert len(await manager.get_available_agents("crew")) == processes
            return await manager.get_queue_status("crew")

    asyncio.run(prepare())
    forks = [Fork(lambda me=me: asyncio.run(pull(url, me, own))) for me in range(processes)]
    printed = [run_by.end()[1].split() for run_by in forks]
    ran = Counter(id for ids in printed for id in ids)
    all_of_them = [f"t{n}" for n in range(tasks)]
    all_of_them += [f"{me}-{n}" for me in range(processes) for n in range(own)]
    assert ran == dict.fromkeys(all_of_them, 1)
    queue = asyncio.run(left())
    assert (queue.pending, queue.in_progress, queue.failed) == ([], [], [])
    assert {task["id"]: task["result"] for task in queue.completed} == {
        id: str(me) for me, ids in enumerate(printed) for id in ids
    }


@in_a_loop
async def test_an_agent_leaves_no_task_by_its_status(manager: OrchestrationStateManager) -> None:
    """The first task would be in progress for ever. Other statuses are allowed."""
    await manager.create_team(team(1))
    for id in ("t1", "t2"):
        await manager.enqueue_task("crew", {"id": id})
    await manager.assign_task("crew", "t1", "a0")
    head = manager.state.head
    for status, task in (("idle", ...), ("available", ...), ("working", None), ("working", "t2")):
        with pytest.raises(IllegalTransition, match=r"fail_task\(\.\.\., requeue=True\), of 't1' first"):
            await manager.update_agent_status("crew", "a0", status, task)
    assert manager.state.head == head
    await manager.update_agent_status("crew", "a0", "blocked")
    agent = await manager.update_agent_status("crew", "a0", "idle", "t1")
    assert not agent.is_available
    await manager.complete_task("crew", "t1")
    agent = await manager.update_agent_status("crew", "a0", "idle")
    assert agent.is_available
