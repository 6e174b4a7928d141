"""Indexes of records: found in order, without reads of others, after puts, merges, rollbacks and expiry."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from agent_stores import AgentStore
from clock import standing_still
from pydantic import BaseModel

from vstate import Live, Versioned
from vstate.errors import InvalidInput, InvalidRecord, KeyNotFound
from vstate.patterns import Records, scope


class Job(BaseModel):
    id: str
    queue: str = "a"
    rank: int = 0
    done: bool = False


class Doc(BaseModel):
    owner: str
    name: str
    size: int = 0


def jobs_in(state: Any) -> Records[Job]:
    return Records(
        state,
        Job,
        key="id",
        index={"waiting": lambda job: None if job.done else (job.queue, job.rank), "all": lambda job: ()},
    )


def waiting(records: Records[Job], *within: str | int) -> list[str]:
    return [job.id for job in records.indexed("waiting", *within)]


@pytest.fixture(params=["namespace", "live"])
def state(request: pytest.FixtureRequest) -> Any:
    return scope(Versioned(), "a", "") if request.param == "namespace" else Live()


RANKS = (-(1 << 63), -(1 << 63) + 2, -(1 << 63) + 16, -(10**6), -1, 0, 1, 9, 10, 10**6, (1 << 63) - 1)
TEXTS = ("", "A", "a b", "a-b", "a", "a0")  # as keys: before a slash come some characters


def test_found_in_the_order_of_the_index(state: Any) -> None:
    """By text and number, negative ones too; within a place; and only records with a place."""
    jobs = jobs_in(state)
    for queue in sorted(TEXTS):
        for rank in sorted(RANKS, key=str):
            jobs.put(Job(id=f"{queue}/{rank}", queue=queue, rank=rank))
    jobs.put(Job(id="u", done=True))
    assert waiting(jobs) == [f"{queue}/{rank}" for queue in TEXTS for rank in RANKS]
    assert waiting(jobs, "a") == [f"a/{rank}" for rank in RANKS]
    assert waiting(jobs, "a", 9) == ["a/9"]
    assert waiting(jobs, "c") == []
    assert [job.id for job in jobs.indexed("all")] == list(jobs)
    with pytest.raises(InvalidInput, match="no index 'wating'; there are: waiting, all"):
        next(jobs.indexed("wating"))
    with pytest.raises(InvalidInput, match="there are: none"):
        next(Records(state, Job, key="id").indexed("waiting"))


async def odd(job: Job) -> str:
    return job.queue


@pytest.mark.parametrize(
    ("place", "message"),
    [
        *(
            (lambda job, place=place: place, r"not (a|float|NoneType)")
            for place in (1.5, [1], (1, 2.0), (None,))
        ),
        (odd, "the function of index 'odd' must be a plain function"),
    ],
)
def test_a_function_that_returns_no_place(state: Any, place: Any, message: str) -> None:
    """TypeError, and nothing is written; no coroutine is left unawaited."""
    records = Records(state, Job, key="id", index={"odd": place})
    with pytest.raises(TypeError, match=message):
        records.put(Job(id="a"))
    assert len(state) == 0


def test_a_place_that_cannot_be_found_out(state: Any) -> None:
    """Nothing is written, and nothing moves."""
    numbers = Records(state, Job, key="id", index={"rank": lambda job: (1 << 62) * job.rank})
    numbers.put(Job(id="a", rank=1))
    for write in (numbers.put, numbers.add):
        with pytest.raises(InvalidInput, match="64 bits, and 9223372036854775808 has more"):
            write(Job(id="b", rank=2))
    with pytest.raises(InvalidInput):
        numbers.change("a", rank=-3)
    assert [job.rank for job in numbers.indexed("rank")] == [1]
    queues = Records(state, Job, key="id", index={"queue": lambda job: job.queue})
    for id in "ab":
        with pytest.raises(InvalidInput, match="too long"):
            queues.put(Job(id=id, queue="a" * 4096))
    assert list(numbers) == ["a"]


def test_the_keys_of_an_index_are_no_record_s(state: Any) -> None:
    """No id or place is mistaken for another; len, ids and values count records only."""
    texts = ["", "%", "%index", "index", "waiting", "a/b", "a", "b", "//", "%2f", "\x00", "a//b", "ä"]
    docs = Records(
        state,
        Doc,
        key=("owner", "name"),
        index={"%": lambda doc: (doc.name, doc.owner), "one/name": lambda doc: doc.name},
    )
    wanted = {(owner, name) for owner in texts for name in texts}
    for owner, name in wanted:
        docs.put(Doc(owner=owner, name=name))
    for each in (docs, Records(state, Doc, key=("owner", "name"))):
        assert (len(each), set(each), len(list(each.values()))) == (len(wanted), wanted, len(wanted))
    for text in texts:
        assert {doc.owner for doc in docs.indexed("%", text)} == set(texts)
        assert {(doc.owner, doc.name) for doc in docs.indexed("one/name", text)} == {(t, text) for t in texts}
        assert [doc.name for doc in docs.indexed("%", text, text)] == [text]
    assert docs.count("%index") == len(texts)
    docs.clear()
    assert len(state) == 0


@pytest.mark.slow
def test_only_found_records_are_read(local_store: AgentStore) -> None:
    """Of two thousand records two are in the index, and no other value is read, in a snapshot neither."""
    state = Versioned(local_store(), branch="main")
    jobs = jobs_in(scope(state, "jobs"))
    for number in range(2_000):
        jobs.put(Job(id=f"{number:05}", done=number not in (17, 1_900)))
    first = state.commit()
    again = Versioned(local_store(), branch="main")
    jobs = jobs_in(scope(again, "jobs"))
    assert waiting(jobs) == ["00017", "01900"]
    assert len(again._handle.at.table.slots) == 2
    jobs.change("00017", done=True)
    again.commit()
    assert again.diff("HEAD~1", "HEAD").modified == ["jobs/00017"]
    assert again.diff("HEAD~1", "HEAD").removed == ["jobs/%index/waiting/a/8000000000000000//00017"]
    assert waiting(jobs_in(scope(again.checkout(first), "jobs"))) == ["00017", "01900"]


def test_a_record_that_has_not_moved(local_store: AgentStore) -> None:
    """A change that keeps the place writes the record only; a change without effect is no commit."""
    state = Versioned(local_store(), branch="main")
    docs = Records(state, Doc, key=("owner", "name"), index={"name": lambda doc: doc.name})
    docs.put(Doc(owner="a", name="x"))
    state.commit()
    docs.change(("a", "x"), size=3)
    state.commit()
    assert list(state.diff("HEAD~1", "HEAD")) == ["a/x"]
    docs.put(docs["a", "x"])
    assert [doc.size for doc in docs.indexed("name")] == [3]
    assert state.commit() is None


class Ticket(BaseModel):
    id: str
    urgency: str
    done: bool = False


def test_a_migration_that_moves_records(local_store: AgentStore) -> None:
    """A record of an older version is found only at its right place, and again after a put."""
    state = Versioned(local_store(), branch="main")
    old = jobs_in(state)
    for id, rank in (("a", 1), ("b", 2), ("c", 3)):
        old.put(Job(id=id, rank=rank))
    tickets = Records(
        state,
        Ticket,
        key="id",
        version=2,
        migrate={1: lambda data: {"id": data["id"], "urgency": "low" if data["rank"] > 1 else "high"}},
        index={"waiting": lambda ticket: None if ticket.done else ticket.urgency},
    )
    assert list(tickets.indexed("waiting")) == []
    tickets.put(tickets["c"])
    assert [ticket.id for ticket in tickets.indexed("waiting")] == ["c"]
    tickets.reindex()
    assert [ticket.id for ticket in tickets.indexed("waiting")] == ["a", "b", "c"]
    tickets.change("a", done=True)
    assert [ticket.id for ticket in tickets.indexed("waiting", "low")] == ["b", "c"]
    assert [key for key in state if "waiting" in key] == ["%index/waiting/low//b", "%index/waiting/low//c"]


@pytest.mark.parametrize("name", ["__delitem__", "__contains__"])
def test_a_record_that_expires_as_it_is_deleted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The record is gone, as requested."""
    with standing_still() as time:
        state = Versioned()
        jobs = jobs_in(state)
        for id in "ab":
            jobs.put(Job(id=id))
        jobs.expire("b", 60)
        state.commit()
        call = getattr(Versioned, name)

        def slowly(self: Versioned, key: Any) -> Any:
            if name == "__delitem__":
                time.pass_(61)
                return call(self, key)
            found = call(self, key)
            time.pass_(61)
            return found

        monkeypatch.setattr(Versioned, name, slowly)
        assert jobs.discard("b") is False
        jobs.clear()
        assert list(state) == []


def test_a_record_that_is_not_valid_is_no_obstacle_to_another_one(state: Any) -> None:
    """It can be replaced and deleted, and only a read of it raises."""
    jobs = jobs_in(state)
    jobs.put(Job(id="a"))
    state["a"] = {"id": "a", "rank": "much"}
    with pytest.raises(InvalidRecord):
        waiting(jobs)
    jobs.put(Job(id="b"))
    jobs.put(Job(id="a", rank=3))
    assert waiting(jobs) == ["b", "a"]
    state["b"] = {"id": "b", "rank": "much"}
    del jobs["b"]
    assert waiting(jobs) == ["a"]
    with pytest.raises(KeyNotFound):
        del jobs["b"]
    state["b"] = "not valid"
    jobs.clear()
    assert list(state) == []
    jobs.put(Job(id="a", rank=1))
    Records(state, Job, key="id").put(Job(id="a", rank=2))
    assert waiting(jobs) == []  # a place that was followed in vain
    state["a"] = "no record"
    jobs.put(Job(id="b"))
    assert next(jobs.indexed("waiting")).id == "b"


def test_records_are_changed_during_the_iteration(state: Any) -> None:
    """Each is found once, in the old order, even if it moves to the end."""
    jobs = jobs_in(state)
    for rank, id in enumerate("abcd"):
        jobs.put(Job(id=id, rank=rank))
    seen = []
    for job in jobs.indexed("waiting"):
        seen.append(job.id)
        jobs.change(job.id, rank=job.rank + 100)
        jobs.discard("c")
    assert seen == ["a", "b", "d"]
    assert waiting(jobs) == ["a", "b", "d"]


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_write_that_is_interrupted(state: Any, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """After an interruption at any step, the record is found, in its old or new form."""
    jobs = jobs_in(state)
    jobs.put(Job(id="a", rank=1))
    steps = 0

    def counted(step: Any) -> Any:
        def counting(self: Any, *args: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > last:
                raise KeyboardInterrupt
            return step(self, *args)

        return counting

    with monkeypatch.context() as patch:
        for name in ("__setitem__", "__delitem__"):
            patch.setattr(type(state), name, counted(getattr(type(state), name)))
        with pytest.raises(KeyboardInterrupt) if last < 3 else nullcontext():
            jobs.put(Job(id="a", rank=2))
    assert steps == min(last + 1, 3)
    (job,) = jobs_in(state).indexed("waiting")
    assert job.rank == (1 if last < 2 else 2)


def test_a_place_that_is_written_in_two_ways(state: Any) -> None:
    """A text and a tuple of it are one place: a record that moves between them keeps its hint."""
    jobs = Records(state, Job, key="id", index={"queue": lambda job: (job.queue,) if job.done else job.queue})
    for done in (False, True, False):
        jobs.put(Job(id="x", done=done))
        assert [job.done for job in jobs.indexed("queue", "a")] == [done]
