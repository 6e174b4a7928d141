"""Sessions and memories of agno on vstate: the answers of its SQLite db, owners, races and deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Memory, NotFound
from vstate.kv.base import OBJECT_PREFIX

pytest.importorskip("agno.db.base", reason="agno is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")

from agno.agent import Agent
from agno.db.base import SessionType
from agno.db.schemas import UserMemory
from agno.db.sqlite import SqliteDb
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession, TeamSession

from vstate.integrations.agno import VstateDb

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


class Echo(Model):
    """A model that answers with its prompt."""

    def invoke(self, *args: Any, messages: Any, **options: Any) -> ModelResponse:
        return ModelResponse(role="assistant", content=f"You said: {messages[-1].content}")

    async def ainvoke(self, *args: Any, **options: Any) -> ModelResponse:
        return self.invoke(*args, **options)

    def invoke_stream(self, *args: Any, **options: Any) -> Iterator[ModelResponse]:
        yield self.invoke(*args, **options)

    async def ainvoke_stream(self, *args: Any, **options: Any) -> Any:
        yield self.invoke(*args, **options)

    def _parse_provider_response(self, response: Any, **options: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


def session(id: str = "s", user: str | None = "ann", **data: Any) -> AgentSession:
    return AgentSession(session_id=id, agent_id="a", user_id=user, session_data=data, created_at=1)


def output(id: str, text: str = "text") -> RunOutput:
    return RunOutput(run_id=id, agent_id="a", content=text, created_at=1, status=RunStatus.completed)


# The same answers as the SQLite db of agno

IDS, USERS, WORDS = (
    st.sampled_from("st"),
    st.sampled_from([None, "ann", "bob"]),
    st.sampled_from(["x", "Xy", "z"]),
)
TYPES = st.sampled_from([SessionType.AGENT, SessionType.TEAM])
CALLS = st.one_of(
    st.builds(
        lambda id, user, word, team: (
            "upsert_session",
            TeamSession(session_id=f"{id}-team", team_id="c", user_id=user, created_at=1)
            if team
            else session(id, user, session_name=word),
        ),
        IDS,
        USERS,
        WORDS,
        st.booleans(),
    ),
    st.builds(
        lambda id, user, word: ("rename_session", id, SessionType.AGENT, word, user), IDS, USERS, WORDS
    ),
    st.builds(lambda id, run, word: ("upsert_run", output(f"{id}{run}", word), id, "ann"), IDS, IDS, WORDS),
    st.builds(lambda id, user: ("delete_session", id, user), IDS, USERS),
    st.builds(
        lambda id, word: (
            "upsert_user_memory",
            UserMemory(
                memory_id=id, memory=word, topics=[word], user_id="ann" if id == "s" else "bob", created_at=1
            ),
        ),
        IDS,
        WORDS,
    ),
    st.builds(lambda id, user: ("delete_user_memory", id, user), IDS, USERS),
)


def told(db: Any, name: str, *args: Any) -> Any:
    """The result of a call, without the times of its own clock."""
    try:
        found = getattr(db, name)(*args)
    except Exception:
        return "refused"
    return (
        getattr(found, "session_data", None)
        or getattr(found, "memory", None)
        or found is None
        or found is True
    )


def answers(db: Any) -> list[Any]:
    found: list[Any] = [sorted(db.get_all_memory_topics(user)) for user in (None, "ann", "bob")]
    for user in (None, "ann", "bob"):
        for kind in (None, SessionType.AGENT, SessionType.TEAM):
            for name in (None, "x"):
                rows = db.get_sessions(kind, user, session_name=name, sort_by="session_id", sort_order="asc")
                found.append(
                    [(row.session_id, row.user_id, row.session_data, row.created_at) for row in rows]
                )
                found.append([[(run.run_id, run.content) for run in row.runs or ()] for row in rows])
        page = db.get_sessions(
            user_id=user, limit=1, page=2, sort_by="session_id", sort_order="asc", deserialize=False
        )
        found.append(([row["session_id"] for row in page[0]], page[1]))
        memories = db.get_user_memories(user, search_content="x", sort_by="memory_id")
        found.append([(each.memory_id, each.memory, each.user_id, each.created_at) for each in memories])
        found.append(sorted((row["user_id"], row["total_memories"]) for row in db.get_user_memory_stats()[0]))
    for id in ("ss", "st", "no"):
        run = db.get_run(id)
        row = db.get_run(id, deserialize=False)
        found.append(
            run
            and (run.content, row["session_id"], row["status"], row["run_index"], row["run_data"]["run_id"])
        )
    return found


@given(st.lists(CALLS, max_size=10))
@settings(deadline=None, max_examples=8)  # each is a file of SQLite
def test_the_answers_are_those_of_the_sqlite_db(calls: list[Any]) -> None:
    """Both dbs answer alike after any calls of users, also to rows of others, and after a second opening."""
    with TemporaryDirectory() as directory:
        backend = Memory()
        ours, theirs = VstateDb(backend), SqliteDb(db_file=str(Path(directory) / "s.db"))
        for name, *args in calls:
            if name == "upsert_run":
                owner = getattr(theirs.get_session(args[1], SessionType.AGENT), "user_id", None)
                if owner not in (None, args[2]):  # theirs takes runs of other users: see the next test
                    continue
            expected = told(theirs, name, *args)
            assert told(ours, name, *args) == expected, (name, args)
            if name.startswith(
                "delete"
            ):  # a program that has deleted reads before it begins anew, as agents do
                ours.get_session(args[0])
                ours.get_user_memory(args[0])
        expected = answers(theirs)
        assert answers(ours) == expected
        assert answers(VstateDb(backend)) == expected
        theirs.close()


# Beyond the SQLite db: owners, deletions, races


def test_rows_of_another_user() -> None:
    """No session, run or memory is changed, read or deleted by another user's id."""
    db = VstateDb()
    db.upsert_session(session())
    db.upsert_run(output("r"), "s", "ann")
    db.upsert_user_memory(UserMemory(memory_id="m", memory="tea", user_id="ann"))
    heads = db.repo.branch_ids()
    assert db.upsert_session(session(user="bob", more=1)) is None
    assert db.upsert_session(session(user=None, more=1)) is None
    db.upsert_run(output("r", "edited"), "s", "bob")
    assert db.rename_session("s", None, "mine", "bob") is None
    assert db.upsert_user_memory(UserMemory(memory_id="m", memory="milk", user_id="bob")) is None
    assert not db.delete_session("s", "bob")
    db.delete_sessions(["s"], "bob")
    db.delete_user_memories(["m"], "bob")
    assert db.get_session("s", user_id="bob") is db.get_user_memory("m", user_id="bob") is None
    assert db.get_sessions(user_id="bob") == db.get_user_memories("bob") == []
    assert db.repo.branch_ids() == heads


def test_one_id_is_no_list_of_ids() -> None:
    """The rows that are named by its characters stay."""
    db = VstateDb()
    db.upsert_session(session("s"))
    db.upsert_user_memory(UserMemory(memory_id="m", memory="tea"))
    for delete in (db.delete_sessions, db.delete_user_memories):
        with pytest.raises(TypeError, match=r"write \['sm'\]"):
            delete("sm")
    assert len(db.repo.branches()) == 2


def test_an_agent_in_the_log(example: Any, commands: Any) -> None:
    """The log and the diff of the page show the runs. A later run goes on from the stored history."""
    agent = example("agno", model=Echo(id="echo"))["agent"]
    log, diff = commands("agno")
    assert "run COMPLETED: You said: Now backwards." in log
    assert "You said: Now backwards." in diff
    assert asyncio.run(agent.arun("Again.")).content == "You said: Again."
    stored = agent.get_session(session_id="s1")
    said = ["Sort the list.", "Now backwards.", "Again."]
    assert [each.content for each in stored.runs] == [f"You said: {text}" for text in said]


def test_a_session_that_was_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """A run that began before the deletion stores nothing. No object of session and memory is left."""
    backend = Memory()
    db, other = VstateDb(backend), VstateDb(backend)
    agent = Agent(model=Echo(id="echo"), db=db, session_id="s", user_id="ann")
    agent.run("the secret")
    db.upsert_user_memory(UserMemory(memory_id="m", memory="the secret", user_id="ann"))
    assert other.delete_session("s", "ann")
    other.clear_memories()
    assert not list(db.repo.view.keys(OBJECT_PREFIX))
    with pytest.raises(NotFound):
        db.upsert_run(output("late"), "s", "ann")
    with pytest.raises(NotFound):
        db.upsert_session(session())
    assert db.get_session("s") is None
    db.upsert_session(session())  # it has read that the session is gone


def test_runs_beside_one_another(tmp_path: Path) -> None:
    """Threads and dbs write runs, names and rows of one session: no run and no name is lost."""
    dbs = [VstateDb(tmp_path), VstateDb(tmp_path)]
    dbs[0].upsert_session(session(first=1))

    def write(number: int) -> None:
        db = dbs[number % 2]
        db.upsert_run(output(f"r{number}"), "s", "ann")
        db.upsert_user_memory(UserMemory(memory_id="m", memory=f"{number}", user_id="ann"))
        if number == 7:
            db.rename_session("s", None, "named")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(30)))
    found = VstateDb(tmp_path).get_session("s")
    assert {each.run_id for each in found.runs} == {f"r{number}" for number in range(30)}
    assert found.session_data == {"first": 1, "session_name": "named"}
    assert len([*dbs[0].repo.log("agno/memories/" + "m")]) == 30


def test_what_the_caller_does_with_rows() -> None:
    """A change of a given or returned row changes nothing stored. agno's encoder gives the values' form."""
    db, made = VstateDb(), session(deep={"n": 1}, pair=(1, 2))
    db.upsert_session(made)
    made.session_data["deep"]["n"] = 2
    db.get_session("s").session_data["deep"]["n"] = 3
    db.get_sessions()[0].session_data["deep"]["n"] = 4
    assert db.get_session("s").session_data == {"deep": {"n": 1}, "pair": [1, 2]}
    with pytest.raises(TypeError, match="JSON"):
        db.upsert_session(session(value=object()))


def test_what_is_not_stored() -> None:
    """Every other method of a db raises NotImplementedError, with its name."""
    db = VstateDb()
    for name in ("get_traces", "upsert_knowledge_content", "get_runs", "get_metrics", "upsert_learning"):
        with pytest.raises(NotImplementedError, match=f"VstateDb stores sessions and memories: {name}"):
            getattr(db, name)()
