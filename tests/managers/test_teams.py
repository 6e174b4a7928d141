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
    first = OrchestrationStateManager(local_store(), sync_interval=1.0)
    async with first as manager, OrchestrationStateManager(local_store()) as other:
        r1 = AgentCoordinationState(agent_id="r1", status="idle", capabilities=["search"], current_task=None)
        w1 = AgentCoordinationState(agent_id="w1", status="idle", capabilities=["write"])
        queue = TaskQueueState(pending=[], in_progress=[], completed=[])
        await manager.create_team(TeamState(team_id="t", agents={"r1": r1, "w1": w1}, task_queue=queue))
        for agent_id in ("r1", "w1"):
            await manager.update_agent_status(
                team_id="t", agent_id=agent_id, status="working", current_task="task_001"
            )
        await manager.update_agent_status(team_id="t", agent_id="r1", status="idle")
        assert await manager.get_available_agents(team_id="t", capability="write") == []
        task = {"id": "task_002", "type": "research", "priority": "high", "data": {"query": "AI"}}
        await manager.enqueue_task(team_id="t", task=task)
        await manager.assign_task(team_id="t", task_id="task_002", agent_id="r1")
        found = present(await other.get_team("t"))
        assert [(agent.status, agent.current_task) for agent in found.agents.values()] == [
            ("working", "task_002"),
            ("working", "task_001"),
        ]
        await other.complete_task(team_id="t", task_id="task_002", result={"found": 3})
        status = await manager.get_queue_status("t")
        assert (len(status.pending), len(status.in_progress), len(status.completed)) == (0, 0, 1)
        assert status.completed[0].items() >= {**task, "assigned_to": "r1", "result": {"found": 3}}.items()
        assert [a.agent_id for a in await manager.get_available_agents("t", "search")] == ["r1"]


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


# Agents and tasks


async def play(manager: OrchestrationStateManager, told: str) -> Any:
    """Carry out commands with a team "crew" of two agents and three tasks; the result of the last one."""
    await manager.create_team(team(2))
    for id in ("t1", "t2", "t3"):
        await manager.enqueue_task("crew", {"id": id})
    found = None
    for command in filter(None, told.split("; ")):
        verb, *words = command.split()
        given = [None if word == "-" else word for word in words]
        match verb:
            case "assign":
                found = await manager.assign_task("crew", *given)
            case "complete":
                found = await manager.complete_task("crew", words[0], agent_id=(*given[1:], None)[0])
            case "fail" | "requeue":
                by, requeue = (*given[1:], None)[0], verb == "requeue"
                found = await manager.fail_task("crew", words[0], "broke", agent_id=by, requeue=requeue)
            case "leave":
                found = await manager.remove_agent("crew", words[0])
            case _:  # AGENT STATUS [TASK]
                found = await manager.update_agent_status("crew", verb, *given)  # type: ignore[arg-type]
    return found


async def picture(manager: OrchestrationStateManager) -> str:
    """Each agent with its status and task, the free ones with a star; then the tasks by status."""
    crew = present(await manager.get_team("crew"))
    agents = [
        f"{agent.agent_id}{'*' * agent.is_available} {agent.status}"
        + (f" {agent.current_task}" if agent.current_task else "")
        for agent in crew.agents.values()
    ]
    assert len(crew.available_agents) + len(crew.busy_agents) == len(agents)
    queue = {name: [task["id"] for task in tasks] for name, tasks in crew.task_queue}
    told = [f"{name} {' '.join(tasks)}" for name, tasks in queue.items() if tasks]
    return ", ".join([*agents, *told])


PICTURES = {
    "": "a0* idle, a1* idle, pending t1 t2 t3",
    # Without a named agent any free one gets the task, if there are any.
    "assign; assign; assign": "a0 working t1, a1 working t2, pending t3, in_progress t1 t2",
    "assign t2 a1": "a0* idle, a1 working t2, pending t1 t3, in_progress t2",
    "assign; complete t1": "a0* idle, a1* idle, pending t2 t3, completed t1",
    "assign; complete t1 a0": "a0* idle, a1* idle, pending t2 t3, completed t1",
    "assign; fail t1": "a0* idle, a1* idle, pending t2 t3, failed t1",
    # A task goes back to its old place.
    "assign; assign; requeue t1": "a0* idle, a1 working t2, pending t1 t3, in_progress t2",
    "assign t1 a1; leave a1": "a0* idle, pending t1 t2 t3",
    # Any text is a status. A task stays until the agent is free, or the call changes it.
    "a0 working t1; a0 thinking": "a0 thinking t1, a1* idle, pending t1 t2 t3",
    "a0 working t1; a0 thinking -": "a0 thinking, a1* idle, pending t1 t2 t3",
    "a0 working t1; a0 available": "a0* available, a1* idle, pending t1 t2 t3",
    "a0 working t1; a0 idle": "a0* idle, a1* idle, pending t1 t2 t3",
    "assign; a0 blocked": "a0 blocked t1, a1* idle, pending t2 t3, in_progress t1",
    "assign; a0 idle t1": "a0 idle t1, a1* idle, pending t2 t3, in_progress t1",
    # A task that was only noted gives way to an assigned one, if the call names the agent.
    "a0 busy theirs; assign t1 a0": "a0 working t1, a1* idle, pending t2 t3, in_progress t1",
    "a0 idle t2; assign t2 a0": "a0 working t2, a1* idle, pending t1 t3, in_progress t2",
    "a0 busy theirs; a1 busy; assign": "a0 busy theirs, a1 busy, pending t1 t2 t3",
}


@pytest.mark.parametrize("told", PICTURES)
@in_a_loop
async def test_agents_and_tasks(manager: OrchestrationStateManager, told: str) -> None:
    await play(manager, told)
    assert await picture(manager) == PICTURES[told]


IMPOSSIBLE = {
    "complete t1": "complete",
    "fail t1": "fail",
    "assign t1 a0; assign t1 a1": "assign",
    "assign t1 a0; assign t2 a0": r"working at 't1'.*possible are: complete or fail 't1'$",
    "assign t1 a0; assign - a0": "working at 't1'",
    "assign t1 a0; complete t1 a1": "'t1' by 'a0'",
    "assign t1 a0; fail t1 a1": "'t1' by 'a0'",
    "assign t1 a0; complete t1; complete t1": "complete",
    "assign t1 a0; complete t1; fail t1": "fail",
    "a0 blocked; assign t1 a0": r"'blocked'.*possible are: be idle$",
    # The first task would be in progress for ever.
    "assign t1 a0; a0 idle": r"fail_task\(\.\.\., requeue=True\), of 't1' first",
    "assign t1 a0; a0 available": "of 't1' first",
    "assign t1 a0; a0 working -": "of 't1' first",
    "assign t1 a0; a0 working t2": "of 't1' first",
}


@pytest.mark.parametrize("told", IMPOSSIBLE)
@in_a_loop
async def test_what_cannot_be_raises(manager: OrchestrationStateManager, told: str) -> None:
    """And changes nothing."""
    with pytest.raises(IllegalTransition, match=IMPOSSIBLE[told]):
        await play(manager, told)
    before, _, _ = told.rpartition("; ")
    async with OrchestrationStateManager() as again:
        await play(again, before)
        assert await picture(manager) == await picture(again)


@in_a_loop
async def test_the_results_of_a_task(manager: OrchestrationStateManager) -> None:
    """Its error, its result, and who did it."""
    given = await play(manager, "assign t1 a0")
    assert (given["id"], given["status"], given["assigned_to"]) == ("t1", "in_progress", "a0")
    again = await manager.fail_task("crew", "t1", "timeout", requeue=True)
    assert (again["status"], again["error"], "assigned_to" in again) == ("pending", "timeout", False)
    await manager.assign_task("crew")
    failed = await manager.fail_task("crew", "t1", error="no use")
    assert (failed["status"], failed["error"], failed["assigned_to"]) == ("failed", "no use", "a0")
    with pytest.raises(AlreadyExists):
        await manager.add_agent("crew", AgentCoordinationState(agent_id="a0"))
    working = await manager.update_agent_status("crew", "a0", AgentCoordinationStatus.WORKING)
    assert working.status == "working"


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
