"""Journals: records of plain data on a branch, through writers, refusals and the verbs of the branch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_stores import AgentStore
from counting import Counting
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present
from raising import raised_at

from vstate import Versioned
from vstate.errors import CannotLoad, InvalidInput, LeaseLost, RefMoved
from vstate.kv import Memory
from vstate.patterns.journal import FIRST_SEGMENTS, SEGMENT_BYTES, Journal, Journals
from vstate.repo import Repository
from vstate.repo.writing import BranchChanges
from vstate.testing import Faulty
from vstate.values.growth import Unread


class Newest:
    """An index that may begin with the newest records. It remembers which records it was given."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.known: dict[int, Any] = {}

    @staticmethod
    def width(record: Any) -> int:
        return 1

    def begin(self, position: int) -> None:
        self.start = self.end = position

    def fill(self, position: int, records: Iterable[Any]) -> None:
        self.known.update(enumerate(records, position))

    def add(self, record: Any) -> None:
        self.known[self.end] = record
        self.end += 1

    def at(self, place: int) -> Any:
        if place not in self.known and self.start:
            raise Unread((place, place + 1))
        return self.known.get(place)

    def whole(self) -> list[Any]:
        if self.start:
            raise Unread
        return [self.known[place] for place in sorted(self.known)]


PLAIN = [
    None,
    True,
    2**80,
    float("inf"),
    -0.0,
    "text \ud800",
    b"\0\xff",
    ("tuple", ["list", ()]),
    {"z": 1, "a": {3: (), None: 4, "b": 2.5}},
    {7},
]


def test_records_come_back_with_types_and_order(agent_store: AgentStore) -> None:
    """Every kind of plain data comes back as it was, in the order of its keys, on any store. Complex numbers,
    objects and functions are refused, and nothing is committed.
    """
    Journal(Repository(agent_store()), "t").append(lambda index: PLAIN)
    again = Journal(Repository(agent_store()), "t")
    assert repr(again.refresh()) == repr(PLAIN)
    for record in (1j, Path("/"), len, lambda: None):
        with pytest.raises(InvalidInput, match="plain data"):
            again.append(lambda index, record=record: [1, record])  # type: ignore[misc]
    assert again.append(lambda index: []) is None
    assert len(list(again.repo.log("t"))) == 1


LOADED: list[str] = []


class Forged:
    """Notes each time that it is loaded."""

    def __reduce__(self) -> Any:
        return LOADED.append, ("loaded",)


@pytest.mark.parametrize("value", [[Forged()], [Path("/")], b"no list", ("no", "list"), [np.arange(9000)]])
def test_reading_runs_no_code_of_a_forged_segment(value: Any) -> None:
    """A segment that is no list of plain data is refused by its key, and nothing in it is loaded; so is a key
    of another program, by readers and writers.
    """
    repo = Repository(Memory())
    repo.commit("t", set={"journal/000000000000": value})
    LOADED.clear()  # a commit proves that a new class loads
    with pytest.raises(CannotLoad, match="journal/000000000000"):
        Journal(repo, "t").refresh()
    assert not LOADED
    repo.commit("t", set={"journal/000000000000": [1], "journal/notes": [2]})
    journal = Journal(repo, "t")
    for call in (journal.refresh, lambda: journal.append(lambda index: [3], fresh=True)):
        with pytest.raises(CannotLoad, match="journal/notes"):
            call()


def test_an_append_writes_one_segment_and_long_records_one_of_their_own() -> None:
    """Records share a segment up to its size; a new one and a longer record begin another."""
    journal = Journal(Repository(Memory()), "t", marks={"mark": "x"})
    assert journal.rewrite(lambda index: []) is None
    for number in range(40):
        journal.append(lambda index, number=number: [(number, "x" * 1000)])  # type: ignore[misc]
    journal.append(lambda index: [b"y" * 3 * SEGMENT_BYTES])
    journal.append(lambda index: ["last"])
    commit = present(journal.head)
    keys = [key for key, _ in journal.repo.entries(commit.root)]
    assert keys == [*(f"journal/{number:012}" for number in (*range(0, 40, 8), 40, 41)), "mark"]
    (first,) = [each for each in journal.repo.log("t") if not each.parents]
    assert [*journal.repo.changes(first)] == ["journal/000000000000", "mark"]
    assert list(journal.repo.changes(commit)) == ["journal/000000000041"]
    assert len(Journal(journal.repo, "t").refresh()) == 42


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["append", "append", "append", "append", "drop", "back", "clear"]),
            st.integers(0, 6000),
        ),
        max_size=40,
    )
)
def test_two_writers_agree_with_a_list(steps: list[tuple[int, str, int]]) -> None:
    """Appends, rewrites and rollbacks by three journals leave the records of a plain list with each.

    One begins with the newest records, and finds any other one if it is asked for.
    """
    repo = Repository(Memory())
    journals: list[Journal[Any]] = [Journal(repo, "t"), Journal(repo, "t"), Journal(repo, "t", Newest)]
    model: list[Any] = []
    for who, what, number in steps:
        journal = journals[who]
        if model and number % 3:
            place = number % len(model)
            assert journals[2].find(methodcaller("at", place)) == model[place]
        elif number % 5:
            journals[2] = Journal(repo, "t", Newest)
            journals[2].find(lambda index: None)
        if what == "append":
            records = [(number, "x" * number), number]
            journal.append(lambda index, records=records: records)  # type: ignore[misc]
            model = [*model, *records]
        elif what == "drop":
            journal.rewrite(lambda index: all_of(index)[1::2])
            model = model[1::2]
        elif what == "clear":
            journal.rewrite(lambda index: [])
            model = []
        elif (newest := repo.newest("t")) is not None and newest.parent_ids:
            repo.rollback("t", newest.parent_ids[0])
            model = list(Journal(repo, "t").refresh())
    assert [all_of(journal.refresh()) for journal in journals] == [model] * 3


def all_of(index: Any) -> list[Any]:
    return index.whole() if isinstance(index, Newest) else list(index)


def test_an_index_that_needs_the_newest_records_reads_no_others() -> None:
    """A cold journal reads a few segments, and another one for each record that it is asked for."""
    store = Counting(Memory())
    writer = Journal(Repository(store), "t")
    for number in range(40):
        block = random.Random(number).randbytes(SEGMENT_BYTES)
        writer.append(lambda index, block=block: [block])  # type: ignore[misc]  # mypy infers no default
    cold = Journal(Repository(store), "t", Newest)
    for place, more in ((39, 0), (0, 1), (0, 1)):
        assert cold.find(methodcaller("at", place)) == writer.index[place]
        assert sum(length > 1000 for length in store.lengths) == FIRST_SEGMENTS + more
    cold.append(lambda index: [f"{index.end} records before"])
    writer.append(lambda index: ["more"])
    assert cold.find(lambda index: (index.at(40), index.at(41))) == ("40 records before", "more")
    assert sum(length > 1000 for length in store.lengths) == FIRST_SEGMENTS + 1
    assert cold.refresh().whole() == writer.refresh()


@pytest.mark.parametrize(
    "change",
    [
        lambda old: ["y" * SEGMENT_BYTES, *old[1:]],
        lambda old: [*old[:-1], "y" * SEGMENT_BYTES],
        lambda old: old[:2],
        lambda old: old[:8],
        lambda old: old[3:],
        lambda old: [],
    ],
    ids=["the first", "the last", "the end gone", "the newest gone", "the beginning gone", "all gone"],
)
def test_newest_records_follow_a_rewrite(change: Any) -> None:
    """A journal that has read the newest records sees what another one changes before and in these."""
    writer = Journal(Repository(Memory()), "t")
    writer.append(lambda index: [f"{place}" * SEGMENT_BYTES for place in range(12)])
    cold = Journal(writer.repo, "t", Newest)
    assert cold.find(lambda index: (index.at(11), index.at(4)))[1][0] == "4"
    writer.rewrite(change)
    for place in (len(writer.index) - 1, 4, 0):
        expected = writer.index[place] if 0 <= place < len(writer.index) else None
        assert cold.find(methodcaller("at", place)) == expected
    assert cold.refresh().whole() == writer.index


def test_a_place_that_no_record_has_raises() -> None:
    """`find` reads the whole journal, and then raises an error that names the place."""
    journal = Journal(Repository(Memory()), "t")
    journal.append(lambda index: ["x" * SEGMENT_BYTES] * 9)
    with pytest.raises(InvalidInput, match="lacks"):
        Journal(journal.repo, "t", Newest).find(lambda index: index.at(99))


def test_a_plan_that_lost_a_race_is_made_again() -> None:
    """A removal by another writer stays one: the plan runs again with the index that lacks the records."""
    repo = Repository(Memory())
    stale, other = Journal(repo, "t"), Journal(repo, "t")
    stale.append(lambda index: ["a", "b"])
    other.rewrite(lambda index: ["b"])
    seen: list[list[str]] = []

    def plan(index: list[str]) -> list[str]:
        seen.append(list(index))
        return [f"c after {len(index)}"]

    stale.append(plan)
    assert seen == [["a", "b"], ["b"]]
    assert other.refresh() == ["b", "c after 1"]
    repo.delete_branch("t")
    stale.append(lambda index: ["anew"])
    assert other.refresh() == ["anew"]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_plan_that_is_refused_changes_no_other_branch(atomic: bool) -> None:
    """The plan refuses the index of the newest commit, also where the store has no transactions."""
    repo = Repository(Faulty(Memory(), atomic=atomic))
    stale, other = Journal(repo, "t"), Journal(repo, "t")
    others = [BranchChanges("shared", set={"n": 1})]

    def plan(index: list[str]) -> list[str]:
        assert index == ["a"]
        return ["b"]

    stale.append(lambda index: ["a"])
    other.append(lambda index: ["overtakes"])
    with pytest.raises(AssertionError):
        stale.append(plan, others=others)
    assert repo.newest("shared") is None
    other.rewrite(lambda index: ["a"])
    stale.append(plan, others=others, fresh=True)
    assert repo.newest("shared") is not None
    assert other.refresh() == ["a", "b"]


@pytest.mark.parametrize("atomic", [True, False])
def test_an_append_without_its_lease_changes_no_other_branch(atomic: bool) -> None:
    """It raises LeaseLost before any branch changes, also where the store has no transactions."""
    state = Versioned(store := Faulty(Memory(), atomic=atomic))
    with state.lease("x", ttl=60) as lease, suppress(LeaseLost):
        journal = Journal(state.repo, "t", guard=lease)
        journal.append(lambda index: ["a"])
        store.delete(*store.keys("lease/"))
        with pytest.raises(LeaseLost):
            journal.append(lambda index: ["b"], others=[BranchChanges("shared", set={"n": 1})])
    assert state.repo.newest("shared") is None


def test_a_history_that_is_cut_off_keeps_the_journal() -> None:
    """Each commit holds all records, so gc may cut the history off, and a snapshot reads them."""
    repo = Repository(Memory())
    journal = Journal(repo, "t")
    for number in range(10):
        journal.append(lambda index, number=number: [number])  # type: ignore[misc]
    repo.gc(branch="t", keep_last=1, keep_reflog="0s")
    assert Journal(repo, "t").refresh() == list(range(10))
    repo.create_branch("copy", "t")
    assert Journal(repo, "copy").refresh() == list(range(10))


class Ended:
    """A lock that an interruption ends the wait for."""

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        pass


def test_an_interrupted_append_happens_then_or_never() -> None:
    """No later call carries out an append whose caller was interrupted while it waited."""
    journal = Journal(Repository(Memory()), "t")
    lock, journal.lock = journal.lock, Ended()  # type: ignore[assignment]  # a lock all the same
    with pytest.raises(KeyboardInterrupt):
        journal.append(lambda index: ["interrupted"])
    journal.lock = lock
    journal.append(lambda index: ["later"])
    assert journal.index == ["later"]


def test_an_error_of_a_plan_is_not_tried_again() -> None:
    """A plan that lost a race for another branch raises its own error."""
    journal = Journal(Repository(Memory()), "t")
    calls: list[int] = []

    def plan(index: Any) -> list[Any]:
        calls.append(1)
        assert len(calls) == 1
        raise RefMoved("heads/other", expected=None, actual=None)

    with pytest.raises(RefMoved):
        journal.append(plan)


def test_equal_records_of_other_types_are_other_records() -> None:
    """A rewrite of 1 to True, or of the order of keys, is stored, and a reader sees it."""
    journal = Journal(Repository(Memory()), "t")
    journal.append(lambda index: [1, {"a": 1, "b": 2}])
    reader = Journal(journal.repo, "t")
    reader.refresh()
    assert journal.rewrite(lambda index: [True, {"b": 2, "a": 1}]) is not None
    for each in (journal, reader, Journal(journal.repo, "t")):
        assert repr(each.refresh()) == "[True, {'b': 2, 'a': 1}]"


@pytest.mark.slow
def test_an_exception_at_any_line_beside_other_threads_writes_no_record_twice() -> None:
    """A call of one thread is ended at each of its lines, while another waits: each record is there once."""
    store = Memory()
    journal, outcomes = Journal(Repository(store), "t"), list[str]()
    journal.append(lambda index: ["first"])
    with ThreadPoolExecutor(2) as threads:
        for line in count(1):
            with journal.lock:
                ended = threads.submit(
                    raised_at, lambda line=line: journal.append(lambda _: [f"a{line}"]), line, TimeoutError
                )
                waiting = threads.submit(journal.append, lambda _, line=line: [f"b{line}"])
            passed, error = ended.result()
            assert waiting.result() is not None
            outcomes += [f"b{line}"] + ([] if error is not None else [f"a{line}"])
            if passed < line:
                break
    records = Journal(Repository(store), "t").refresh()
    assert max(Counter(records).values()) == 1
    assert {*outcomes} <= {*records} == {*journal.refresh()}


def test_an_exception_at_any_line_of_a_read_leaves_nothing_half_read() -> None:
    """After a read of new records that ended anywhere, the next one finds each record once."""
    for line in count(1):
        store = Memory()
        writer, reader = (Journal(Repository(store), "t") for _ in range(2))
        for _ in range(2):
            writer.append(lambda known: [len(known), "and"])
            passed, _ = raised_at(reader.refresh, line, TimeoutError)
        assert [*reader.refresh()] == [0, "and", 2, "and"]
        if passed < line:
            break


def test_a_fork_shares_the_segments_before_its_end(local_store: AgentStore) -> None:
    """A fork has the records that its function makes, on top of the newest commit, and goes on alone."""
    repo = Repository(local_store())
    journal = Journal(repo, "main")
    journal.append(lambda index: [f"{number} " + "x" * 400 for number in range(200)])
    made = journal.fork("side", lambda index: index[:150], message="fork")
    assert made.parents == (repo.branch("main").id,)
    side = Journal(repo, "side")
    side.append(lambda index: ["new"], fresh=True)
    assert side.refresh() == [*journal.refresh()[:150], "new"]
    assert len(journal.index) == 200
    shared = repo.diff(repo.branch("main").root, made.root)
    assert len(shared.modified) == 1
    with pytest.raises(RefMoved):
        journal.fork("side", lambda index: index)
    with pytest.raises(InvalidInput, match="no record"):
        Journal(repo, "empty").fork("other", lambda index: index)


def test_journals_that_were_used_long_ago_are_let_go() -> None:
    """No more than so many stay in memory, and with so many bytes; the bytes are counted now and then."""
    repo = Repository(Memory())

    def used(journals: Journals[Any], count: int) -> list[str]:
        for number in range(count):
            journals[f"t{number}"].append(lambda index: ["x" * 1000])
        return [*journals._used]

    assert used(Journals(lambda branch: Journal(repo, branch), most=3), 5) == ["t2", "t3", "t4"]
    few = used(Journals(lambda branch: Journal(repo, branch), most=100, most_bytes=4000), 64)
    assert 1 <= len(few) <= 16 + 4
    assert few[-1] == "t63"
    assert len(used(Journals(lambda branch: Journal(repo, branch), most=100, most_bytes=4000), 15)) <= 5


def test_long_records_are_read_together() -> None:
    """The chunks of many long records come in some round trips, and not in some for each record."""
    store = Counting(Memory())
    records = [random.Random(number).randbytes(30_000) for number in range(20)]
    Journal(Repository(store), "main").append(lambda index: records)
    store.trips = 0
    assert Journal(Repository(store), "main").refresh() == records
    assert store.trips < 12
