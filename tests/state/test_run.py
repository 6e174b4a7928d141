"""Runs: a step that was done is not done again, after a kill, a rollback, a lost race, or a lost lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from clock import standing_still
from errands import Errand, Ledger
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import sized

from vstate import (
    ABSENT,
    Commit,
    Disk,
    EffectUnknown,
    ForkedRunWarning,
    InvalidInput,
    KVStore,
    LeaseHeld,
    LeaseLost,
    Memory,
    MergeConflict,
    NotFound,
    RefMoved,
    RunChanged,
    StoreUnavailable,
    UncommittedChanges,
    Unpicklable,
    Versioned,
    events,
    open_store,
    task,
)
from vstate.repo.repository import Repository
from vstate.repo.runs import read_run
from vstate.state import run as runs
from vstate.testing import Faulty


class Declined(Exception):
    """A payment was not made."""


class Shop:
    """A program that pays once, and what it has paid."""

    def __init__(self, store: KVStore | None = None, branch: str | None = None) -> None:
        self.state = Versioned(store or Memory(), branch=branch)
        if self.state.head is None:
            self.state.update({"orders": 0, "log": []})
            self.state.commit("begin")
        self.keys: list[str] = []
        self.fails: list[BaseException] = []
        self.ttl = 30.0

    def quote(self, order: int) -> dict[str, int]:
        self.state["orders"] += 1
        return {"amount": order * 10}

    def charge(self, quote: dict[str, int], idempotency_key: str) -> dict[str, int]:
        self.keys.append(idempotency_key)
        self.state["log"].append("charged")
        if self.fails:
            raise self.fails.pop(0)
        return {"receipt": len(self.keys)}

    def order(self, stop: str = "", **options: Any) -> dict[str, int]:
        """Do the order, and stop before this place, as a program that is killed there."""
        with self.state.run("order-17", ttl=self.ttl) as run:
            if stop == "quote":
                raise KeyboardInterrupt
            quote = run.step(self.quote, 5)
            self.state["log"].append("between")
            if stop == "charge":
                raise KeyboardInterrupt
            receipt: dict[str, int] = run.step(self.charge, quote, once=True, **options)
            self.state["receipt"] = receipt
            if stop == "end":
                raise KeyboardInterrupt
        return receipt


DONE = {"orders": 1, "log": ["between", "charged"], "receipt": {"receipt": 1}}


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KVStore]:
    with ExitStack() as stack:
        yield Memory() if request.param == "memory" else stack.enter_context(Disk(tmp_path / "store"))


def check_going_back(shop: Shop) -> None:
    """Stop the order everywhere, and then move its branch in each way: it is paid once."""
    state, begin = shop.state, shop.state.head
    assert begin is not None
    for stop in ("quote", "charge", "end", "end", "charge"):
        with pytest.raises(KeyboardInterrupt):
            shop.order(stop)
        assert not state.has_uncommitted
    shop.order()
    shop.order()
    assert dict(state) == DONE
    assert len(shop.keys) == 1
    without_steps = {"orders": 0, "log": ["between"], "receipt": {"receipt": 1}}
    # The edits of the program between steps are made again, and those in the steps are not.
    state.rollback(begin)
    assert dict(state) == {"orders": 0, "log": []}
    shop.order()
    assert dict(state) == without_steps
    shop.order()
    assert dict(state) == without_steps
    state.undo(steps=2)
    assert dict(state) == DONE
    shop.order()
    assert dict(state) == DONE
    state.reset(begin)
    shop.order()
    assert dict(state) == without_steps
    assert len(shop.keys) == 1
    state.create_branch("side", begin)
    side = Versioned(state.store, branch="side")
    side["aside"] = 1
    side.commit()
    state.merge("side")
    shop.order()
    assert dict(state) == {**without_steps, "aside": 1}
    assert len(shop.keys) == 1


def test_a_step_is_done_once_wherever_the_branch_goes(store: KVStore) -> None:
    """Stops, rollback, undo, reset and merge of the state's branch: the recorded receipt comes back."""
    check_going_back(Shop(store))


def test_a_step_is_done_once_on_servers(server_url: str) -> None:
    """The same on Redis and PostgreSQL; on S3, which has no transactions, a step with edits says so."""
    with open_store(server_url) as store:
        if store.transactional:
            check_going_back(Shop(store))
            return
        with pytest.raises(InvalidInput, match="no transactions"):
            Shop(store).order()


def test_a_step_and_the_edits_are_one_transaction(store: KVStore) -> None:
    """The commit of the state and the record come in one transaction, and each step has its own."""
    faulty = Faulty(store)
    shop = Shop(faulty)
    with shop.state.run("order-17") as run:
        for number in range(3):
            before = [call for call in faulty.calls if call == "transact"]
            run.step(shop.quote, number)
            transactions = len([call for call in faulty.calls if call == "transact"]) - len(before)
            assert transactions == 1
            assert shop.state.head is not None
            assert shop.state.head.message == f"order-17: quote#{number + 1}: done"
    assert [commit.message for commit in shop.state.log("runs/order-17")] == [
        "ended",
        "quote#3: done",
        "quote#2: done",
        "quote#1: done",
    ]


def test_each_lost_answer_and_each_failure_of_the_store(tmp_path: Path) -> None:
    """The store fails at each call of an order, before it and after it: the next entries finish it once."""
    store = Faulty(Memory())
    shop = Shop(store)
    opened = len(store.calls)
    shop.order()
    calls = len(store.calls) - opened
    assert calls > 10
    for number in range(1, calls + 1):
        for after in (False, True):
            memory = Memory()
            store = Faulty(memory, after=after)
            shop = Shop(store)
            shop.ttl = 1.0  # of a lease that is not given back
            store.fail_at = len(store.calls) + number
            for _ in range(9):
                try:
                    shop.order()
                    break
                except (StoreUnavailable, LeaseLost):
                    shop.state = Versioned(memory)
                except EffectUnknown as unknown:
                    with shop.state.run("order-17") as run:
                        if unknown.key in shop.keys:
                            run.resolve(unknown.step, {"receipt": 1})
                        else:
                            run.retry(unknown.step)
            assert len(shop.keys) == 1, (number, after)
            state = dict(Versioned(memory))
            # A receipt that a person brings has no edits of the call with it.
            assert state in (DONE, {**DONE, "log": ["between"]}), (number, after)


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), faults=st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=4))
def test_a_run_that_is_interrupted_ends_as_one_that_is_not(
    tmp_path_factory: pytest.TempPathFactory, seed: int, faults: list[tuple[int, bool]]
) -> None:
    """A random program of steps, with a fault of the store in each of its first entries, has one outcome."""
    directory = tmp_path_factory.mktemp("errand")
    unharmed, memory, left = Memory(), Memory(), list(faults)
    wanted = Errand(seed, Ledger(directory / "calm")).finish(lambda: unharmed)
    errand = Errand(seed, Ledger(directory / "ledger"), ttl=1.0)

    def open_faulty() -> KVStore:
        if not left:
            return memory
        number, after = left.pop()
        return Faulty(memory, number, after=after)

    found = errand.finish(open_faulty)
    assert errand.ledger.amounts() == errand.payments()
    resolved = [entry for entry in wanted["log"] if entry not in found["log"]]
    assert all(str(entry).startswith("paid ") for entry in resolved)
    wanted["log"] = [entry for entry in wanted["log"] if entry not in resolved]
    assert found == wanted


ITEMS = st.lists(
    st.tuples(st.sampled_from(["", "fails", "once"]), *[st.booleans()] * 3), min_size=1, max_size=4
)
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["go on", "go on", "roll back", "fork", "fork, go on and merge"]),
        st.randoms(use_true_random=False),
        st.booleans(),
        st.integers(0, 12),
    ),
    max_size=5,
)


def begun() -> tuple[Versioned, Commit]:
    """A state with one commit, and that commit."""
    state = Versioned(Memory(), branch="main")
    state["begin"] = []
    commit = state.commit("begin")
    assert commit is not None
    return state, commit


class Plan:
    """A program of steps with edits before, in and after them, in any order. It counts each edit."""

    def __init__(self, items: list[tuple[str, bool, bool, bool]], store: KVStore) -> None:
        self.items = dict(enumerate(items))
        self.store = store
        self.tried: set[int] = set()

    def enter(self, order: list[int], left: float, branch: str = "main") -> None:
        """Do the steps in this order, and stop at one of the edits or steps."""
        state = Versioned(self.store, branch=branch)

        def go_on() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        def edit(name: str) -> None:
            state[name] = state.get(name, 0) + 1

        def work(number: int) -> None:
            edit(f"in {number}")
            if self.items[number][0] != "once":
                go_on()
            if self.items[number][0] == "fails" and number not in self.tried:
                self.tried.add(number)
                raise Declined

        with state.run("r", of="main") as run:
            assert state["begin"] == []  # a value that may have been edited, and was not
            for number in order:
                kind, before, after, caught = self.items[number]
                go_on()
                if before:
                    edit(f"before {number}")
                try:
                    run.step(work, number, key=str(number), once=kind == "once")
                except Declined:
                    go_on()
                    if caught:
                        edit(f"failed {number}")
                    continue
                if after:
                    edit(f"after {number}")
                assert state["begin"] == []
            go_on()
            edit("end")


@pytest.mark.slow
@settings(max_examples=sized(60, 4000), deadline=None)
@given(items=ITEMS, entries=ENTRIES)
def test_edits_are_made_once_or_the_run_says_that_it_changed(
    items: list[tuple[str, bool, bool, bool]], entries: list[Any]
) -> None:
    """Programs that stop anywhere, come in another order, go back, and go on in forks that are merged."""
    state, begin = begun()
    plan, whole = Plan(items, state.store), list(range(len(items)))
    moves = any(how != "go on" for how, *_ in entries)
    try:
        for number, (how, chance, shuffles, stop) in enumerate(entries):
            order = chance.sample(whole, len(whole)) if shuffles else whole
            state.refresh()
            if how == "roll back":
                state.rollback(begin)
            branch = f"fork-{number}" if "fork" in how else "main"
            if branch != "main":
                state.create_branch(branch)
            with suppress(KeyboardInterrupt):
                plan.enter(order, stop, branch)
            if "merge" in how:
                with suppress(KeyboardInterrupt):
                    plan.enter(order, stop + 2)
                state.refresh()
                state.merge(branch)
        plan.enter(whole, 99)
        plan.enter(whole, 99)
    except RunChanged:
        assert any(shuffles for _, _, shuffles, _ in entries) or any(kind == "fails" for kind, *_ in items)
        return
    state.refresh()
    for number, (_, before, after, _) in enumerate(items):
        assert state.get(f"before {number}", 0) == before
        assert state.get(f"after {number}", 0) == after
        assert state.get(f"failed {number}", 0) <= 1
        assert state.get(f"in {number}", 0) in ([0, 1] if moves else [1])
    assert state["end"] == 1


@pytest.mark.parametrize(
    ("kind", "edits", "stop", "order", "changes"),
    [
        ("", "after", 4, [1, 0, 2], "work[0]"),
        ("", "before", 4, [1, 0, 2], "work[0]"),
        ("", "after", 4, [0, 2, 1], "work[2]"),
        ("", "none", 4, [1, 0, 2], None),
        ("", "before", 4, [0, 1, 2], None),
        ("", "after", 99, [0, 1, 2], "work[2]"),
        ("", "none", 99, [0, 1, 2], "the end"),
        ("fails", "after", 5, [0, 1], "work[1]"),
        ("fails", "none", 5, [0, 1], None),
    ],
)
def test_edits_of_which_nobody_can_tell(
    kind: str, edits: str, stop: int, order: list[int], changes: str | None
) -> None:
    """Steps in another order, one that succeeds late, and more steps than the run had when it ended."""
    state, _ = begun()
    before, after = edits == "before", edits == "after"
    plan = Plan([(kind, before, after, True), *[("", before, after, True)] * 2], state.store)
    with suppress(KeyboardInterrupt):
        plan.enter([0, 1], stop)
    if changes is not None:
        with pytest.raises(RunChanged, match="may have these edits already") as raised:
            plan.enter(order, 99)
        assert (raised.value.step, raised.value.recorded) == (changes, ())
        return
    plan.enter(order, 99)
    state.refresh()
    wanted = {"begin", "end", *(f"in {number}" for number in order), *["failed 0"] * (kind == "fails")}
    wanted.update(f"before {number}" for number in order if before)
    assert state.keys() == wanted
    assert {state[key] for key in wanted - {"begin"}} == {1}


@pytest.mark.parametrize("kind", ["", "fails"])
def test_a_rollback_is_the_way_out(kind: str) -> None:
    """The same program goes on after it: one that had ended and got a step, or whose step succeeds late."""
    state, begin = begun()
    plan = Plan([(kind, False, True, True), ("", False, True, True)], state.store)
    plan.enter([0, 1][: 1 + (kind == "fails")], 99)
    with pytest.raises(RunChanged, match="Roll the state back"):
        plan.enter([0, 1], 99)
    state.refresh()
    state.rollback(begin)
    for _ in range(2):
        plan.enter([0, 1], 99)
    state.refresh()
    made = {"after 0", "after 1", "end"} | (set() if kind else {"in 1"})
    assert {key: state[key] for key in state if key != "begin"} == dict.fromkeys(made, 1)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_merge_brings_the_place_of_a_step_without_a_record(goes_on: bool) -> None:
    """A fork has edits before a step that was interrupted. After a merge that step is known still."""
    state, _ = begun()

    def enter(branch: str, interrupts: bool = False, only: str = "abc") -> None:
        at = Versioned(state.store, branch=branch)

        def work(name: str) -> str:
            if interrupts and name == "b":
                raise KeyboardInterrupt
            return name

        with at.run("r", of="main") as run:
            for name in only:
                if name != "c":
                    at[name] = at.get(name, 0) + 1
                with suppress(KeyboardInterrupt):
                    run.step(work, name, key=name)

    state.create_branch("fork")
    enter("fork", interrupts=True)
    if goes_on:
        enter("main", only="a")
    state.refresh()
    state.merge("fork")
    enter("main")
    state.refresh()
    assert {name: state[name] for name in state if name != "begin"} == {"a": 1, "b": 1}


@pytest.mark.parametrize("merges", [False, True])
def test_edits_that_a_reset_took_back_and_a_merge_brings(merges: bool) -> None:
    """After a reset, the run goes on in another order: it has not all edits, until a fork is merged."""
    state, begin = begun()
    plan = Plan([("", True, False, False)] * 3, state.store)
    with suppress(KeyboardInterrupt):
        plan.enter([0, 1], 4)
    state.refresh()
    state.create_branch("fork")
    state.reset(begin)
    with suppress(KeyboardInterrupt):
        plan.enter([1, 2], 4)
    if not merges:
        with pytest.raises(RunChanged) as raised:
            plan.enter([0, 1, 2], 99)
        assert raised.value.step == "work[0]"
        return
    state.refresh()
    state.merge("fork")
    plan.enter([0, 1, 2], 99)
    state.refresh()
    assert {name: state[name] for name in state if name != "begin"} == dict.fromkeys(
        ["end", *(f"{place} {number}" for place in ("before", "in") for number in range(3))], 1
    )


# Steps whose effect is unknown


def test_an_intent_without_a_result() -> None:
    """An exception leaves a step open: it carries the intent, and neither resolves itself nor is called."""
    shop = Shop()
    shop.fails = [TimeoutError("no answer")]
    with pytest.raises(TimeoutError):
        shop.order()
    before = time.time()
    for _ in range(2):
        with pytest.raises(EffectUnknown, match=r"no answer.*run\.resolve\('charge#1', RESULT\)") as raised:
            shop.order()
    unknown = raised.value
    assert (unknown.run, unknown.step, unknown.key) == ("order-17", "charge#1", shop.keys[0])
    assert unknown.arguments == (({"amount": 50},), {})
    assert unknown.time.timestamp() <= before
    assert shop.state.runs()[0].open == ["charge#1"]
    assert dict(shop.state) == {"orders": 1, "log": []}
    with shop.state.run("order-17") as run:
        with pytest.raises(InvalidInput, match="charge#1"):
            run.resolve("charge#2", None)
        assert run.resolve("charge#1", {"receipt": 7}) == {"receipt": 7}
        with pytest.raises(InvalidInput):
            run.retry("charge#1")
    assert shop.order() == {"receipt": 7}
    assert len(shop.keys) == 1


@pytest.mark.parametrize("answer", [ABSENT, {"receipt": 9}])
def test_a_function_that_finds_out(answer: Any) -> None:
    """`check` gets the intent. ABSENT has the step called with the same key; another answer is the result."""
    shop, asked = Shop(), []

    def check(intent: runs.Intent) -> Any:
        asked.append(intent)
        return answer

    shop.fails = [TimeoutError()]
    with pytest.raises(TimeoutError):
        shop.order(check=check)
    assert not asked
    receipt = shop.order(check=check)
    assert asked[0].key == shop.keys[0]
    assert asked[0].arguments == (({"amount": 50},), {})
    assert len(set(shop.keys)) == 1
    if answer is ABSENT:
        assert receipt == {"receipt": 2}
        assert dict(shop.state) == {**DONE, "receipt": receipt}
    else:
        assert (receipt, len(shop.keys)) == (answer, 1)
    assert shop.order() == receipt


def test_an_exception_that_says_that_nothing_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of `not_done` is retried at once, and by the next run, with the same key; others are not."""
    monkeypatch.setattr(runs, "_FIRST_PAUSE", 0.001)
    shop = Shop()
    shop.fails = [Declined(), Declined(), Declined()]
    with pytest.raises(Declined):
        shop.order(not_done=Declined, retries=1)
    assert len(shop.keys) == 2
    assert shop.order(not_done=(Declined, OSError), retries=1) == {"receipt": 4}
    assert len(set(shop.keys)) == 1
    other = Shop()
    other.fails = [Declined(), TimeoutError(), Declined()]
    with pytest.raises(TimeoutError):
        other.order(not_done=Declined, retries=5)
    assert len(other.keys) == 2
    with pytest.raises(EffectUnknown):
        other.order(not_done=Declined, retries=5)


def test_a_second_call_in_the_same_block_is_the_same_step() -> None:
    """A program that catches the exception and calls again does not pay twice."""
    shop = Shop()
    shop.fails = [TimeoutError()]
    with shop.state.run("r") as run:
        with pytest.raises(TimeoutError):
            run.step(shop.charge, {"amount": 1}, once=True)
        with pytest.raises(EffectUnknown):
            run.step(shop.charge, {"amount": 1}, once=True)
        assert len(shop.keys) == 1
        run.resolve("charge#1", "found")
        assert run.step(shop.charge, {"amount": 1}, once=True) == "found"
        assert run.step(shop.charge, {"amount": 1}, once=True) == {"receipt": 2}
        assert [step.id for step in run.steps] == ["charge#1", "charge#2"]

    def fail(intent: runs.Intent) -> None:
        raise ConnectionError

    shop.fails = [TimeoutError()]
    with shop.state.run("t") as run:
        for error in (TimeoutError, ConnectionError, ConnectionError):
            with pytest.raises(error):
                run.step(shop.charge, {"amount": 1}, once=True, check=fail)
        assert run.step(shop.charge, {"amount": 1}, once=True, check=lambda intent: "asked") == "asked"
        assert [step.id for step in run.steps] == ["charge#1"]


# Failures


def test_a_failure_undoes_the_edits_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The edits of a failed attempt are undone, those before stay; the next run calls the step again."""
    monkeypatch.setattr(runs, "_FIRST_PAUSE", 0.001)
    state, fails = Versioned(Memory()), [OSError("a"), OSError("b"), OSError("c")]
    state["n"] = 0

    def work() -> int:
        state["n"] += 1
        if fails:
            raise fails.pop(0)
        value: int = state["n"]
        return value

    state.commit()
    with state.run("r") as run:
        state["before"] = 1
        with pytest.raises(OSError, match="b"):
            run.step(work, retries=1)
        assert (state["n"], state["before"]) == (0, 1)
        (step,) = run.steps
        assert (step.status, step.attempts, step.error) == ("failed", 2, "OSError: b")
        run.step(int, 3)
    assert dict(state) == {"n": 0, "before": 1}
    with state.run("r") as run:
        state["before"] = 2  # of a part of the program that the state has
        assert run.step(work, retries=1) == 1
        assert (run.steps[0].status, run.steps[0].attempts) == ("done", 4)
    assert dict(state) == {"n": 1, "before": 1}


def test_a_failure_that_cannot_be_recorded() -> None:
    """The caller gets the failure all the same, with a note of what the store said."""
    store = Faulty(Memory())

    def work() -> None:
        store.fail_at = len(store.calls) + 1
        raise Declined

    with Versioned(store) as state, state.run("r") as run:
        with pytest.raises(Declined) as raised:
            run.step(work)
        assert "recorded that step work#1 failed" in raised.value.__notes__[0]


def test_results_and_arguments_that_cannot_be_stored() -> None:
    """Arguments that no pickle takes call nothing; such a result undoes the edits, and is called again."""
    shop = Shop()
    with shop.state.run("r") as run:
        with pytest.raises(Unpicklable, match="the arguments of step quote"):
            run.step(shop.quote, threading.Lock())  # type: ignore[arg-type]
        with pytest.raises(Unpicklable, match="the result of step allocate_lock"):
            run.step(threading.Lock, name="allocate_lock")
        with pytest.raises(InvalidInput, match="once=True"):
            run.step(shop.quote, 1, check=len)

        async def later() -> None: ...

        with pytest.raises(TypeError, match="plain function"):
            run.step(later, once=True)
        assert not run.steps
        with pytest.raises(TypeError, match="idempotency_key"):  # which a step gets with once=True alone
            run.step(shop.charge, {"amount": 1})


def test_arguments_that_the_function_changes() -> None:
    """The record has the arguments as they were before the call, and a result that nobody can edit."""
    state = Versioned(Memory())

    def drain(items: list[int]) -> list[int]:
        taken, items[:] = [*items], []
        return taken

    for _ in range(2):
        with state.run("r") as run:
            for _ in range(2):
                found = run.step(drain, [1, 2], key="k")
                assert found == [1, 2]
                found.append(3)


# A program that has changed


class Point:
    """Compared by its fields."""

    def __init__(self, x: int) -> None:
        self.x = x


shared = ["a long text"] * 2


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ((1, 2), (1, 3), False),
        (("x",), ("x", None), False),
        (({"a", "b", "c", "dd"},), ({"dd", "c", "b", "a"},), True),
        (({"a": 1, "b": 2},), ({"b": 2, "a": 1},), True),
        ((shared,), (["a long text", "a long " + "text"[:]],), True),
        ((Point(1),), (Point(1),), True),
        ((Point(1),), (Point(2),), False),
    ],
)
def test_arguments_are_compared_by_value(one: Any, other: Any, is_same: bool) -> None:
    """Equal arguments give the recorded result, whatever their pickles; others raise RunChanged."""
    state = Versioned(Memory())

    def work(*args: Any) -> str:
        return "result"

    with state.run("r") as run:
        run.step(work, *one)
    with state.run("r") as run:
        if is_same:
            assert run.step(work, *other) == "result"
            return
        with pytest.raises(RunChanged, match=r"undo the change") as raised:
            run.step(work, *other)
    error = raised.value
    assert (error.run, error.step) == ("r", "work#1")
    assert error.recorded[0] == error.now[0] == f"{__name__}.{work.__qualname__}"
    assert len(error.recorded[1]) == len(one)
    assert error.now[1] is not None


def test_another_function_and_another_order() -> None:
    """A function of another place is a change; a step of another name is new; keys make the order free."""
    state, called = Versioned(Memory()), []

    def one(x: int) -> int:
        called.append(x)
        return x

    def other(x: int) -> int:
        return -x

    with state.run("r") as run:
        assert [run.step(one, x, key=str(x)) for x in (1, 2, 3)] == [1, 2, 3]
        run.step(one, 4, name="work")
    with state.run("r") as run:
        assert [run.step(one, x, key=str(x)) for x in (3, 5, 1, 2)] == [3, 5, 1, 2]
        assert run.step(other, 6) == -6
        with pytest.raises(RunChanged, match=r"one.*other"):
            run.step(other, 4, name="work")
    assert called == [1, 2, 3, 4, 5]


def test_a_key_that_is_used_twice() -> None:
    """The second call gets the result of the first; what was edited between them is made once."""
    shop = Shop()

    def program(stop: bool) -> None:
        with shop.state.run("r") as run:
            for number in range(2):
                assert run.step(shop.quote, 1, key="k") == {"amount": 10}
                shop.state["log"].append(number)
            if stop:
                raise KeyboardInterrupt
            run.step(shop.quote, 2)

    for stop in (True, True, False, False):
        try:
            program(stop)
        except KeyboardInterrupt:
            pass
    assert dict(shop.state) == {"orders": 2, "log": [0, 1]}


# One holder at a time


def test_a_run_has_one_holder(store: KVStore) -> None:
    """A second handle waits for the first to leave the run, or gets LeaseHeld, and then has its records."""
    one, two = Shop(store), Shop(store)
    with one.state.run("order-17") as run:
        with pytest.raises(LeaseHeld), two.state.run("order-17", wait=0):
            pass
        thread = threading.Thread(target=two.order)
        thread.start()
        run.step(one.quote, 5)
        time.sleep(0.05)
        assert thread.is_alive()
    thread.join()
    assert dict(Versioned(store)) == DONE
    assert two.keys
    assert not one.keys


@pytest.mark.parametrize(
    "stops", ["before the step", "in the step", "in check=", "before a retry", "and nothing is done"]
)
def test_a_holder_that_lost_its_lease_commits_nothing(
    stops: str, store: KVStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stops, another takes the run over: a step of the first raises LeaseLost."""
    one, two = Shop(store), Shop(store)

    def lapse() -> None:
        """As after a stop of `one` that outlasts its lease: by its clock, and by that of who waits for it."""
        keeper = run._lease._tenure
        keeper._until = 0.0
        one.state.repo.leases.give_back("runs/order-17", keeper._owner)

    def take_over(*_: object) -> Any:
        lapse()
        two.order(check=lambda intent: ABSENT)
        return ABSENT

    with pytest.raises(LeaseLost), one.state.run("order-17") as run:
        quote = run.step(one.quote, 5)
        one.state["log"].append("lost")
        if stops == "before the step":
            take_over()
            run.step(one.charge, quote)
        if stops == "in the step":
            run.step(take_over, name="slow")
        if stops == "in check=":
            one.fails = [TimeoutError()]
            with pytest.raises(TimeoutError):
                run.step(one.charge, quote, once=True)
            run.step(one.charge, quote, once=True, check=take_over)
        if stops == "before a retry":
            monkeypatch.setattr(runs.Backoff, "pause", take_over)
            one.fails = [Declined()]
            run.step(one.charge, quote, once=True, retries=1, not_done=Declined)

        def enter() -> None:
            one.state["lost"] = 1
            lapse()
            with two.state.lease("runs/order-17"):
                pass

        run.step(enter)
    assert not one.state.has_uncommitted
    assert len(one.keys) == (stops in ("in check=", "before a retry"))
    two.order()
    assert dict(Versioned(store)) == DONE
    assert [step.id for step in read_run(two.state.repo, "order-17")[2]] == ["quote#1", "charge#1"]


def test_two_steps_of_one_run_that_race(store: KVStore) -> None:
    """A commit of somebody else comes into a step: the record lands with the merge, or not at all."""
    shop, other = Shop(store), Versioned(store)

    def race(key: str) -> str:
        other.apply(lambda state: state.update({key: "other"}))
        shop.state["log"] = [*shop.state["log"], key]
        return key

    with shop.state.run("r") as run:
        assert run.step(race, "beside") == "beside"
    assert shop.state["beside"] == "other"
    with pytest.raises(MergeConflict, match="enter the run again"), shop.state.run("r") as run:
        assert run.step(race, "beside") == "beside"
        run.step(race, "log")
    assert dict(shop.state) == {"orders": 0, "log": ["beside"], "beside": "other"}
    assert [step.id for step in read_run(shop.state.repo, "r")[2]] == ["race#1"]
    shop.state.refresh()
    assert shop.state["log"] == "other"


def test_a_conflict_at_the_end_and_a_branch_that_goes() -> None:
    """If the end of the block conflicts, or the run's branch is gone, nothing is left staged."""
    shop = Shop()
    with pytest.raises(MergeConflict), shop.state.run("r") as run:
        run.step(shop.quote, 1)
        Versioned(shop.state.store, branch="main").apply(lambda other: other.update(log="other"))
        shop.state["log"] = "ours"
    assert not shop.state.has_uncommitted
    assert not shop.state.runs()[0].ended

    def forget() -> None:
        shop.state["orders"] = 7
        shop.state.delete_branch("runs/r")

    with pytest.raises(RefMoved), shop.state.run("r") as run:
        run.step(forget)
    assert not shop.state.has_uncommitted
    assert dict(shop.state) == {"orders": 1, "log": "other"}


def test_an_error_before_the_call_leaves_no_intent() -> None:
    """A staged value that cannot be stored stops the step before its intent is committed."""
    shop = Shop()

    def stage(value: object) -> None:
        with shop.state.run("r") as run:
            shop.state["bad"] = value
            run.step(shop.charge, {}, once=True)

    with pytest.raises(Unpicklable, match="bad"):
        stage(threading.Lock())
    assert shop.keys == []
    assert shop.state.runs() == []
    stage("good")
    assert len(shop.keys) == 1


# Forks and branches


def test_a_fork_is_another_run() -> None:
    """A run on another branch has an id of its own, and says so, unless it is told which run it is."""
    shop = Shop()
    shop.order()
    fork = Shop(shop.state.store, branch="fork") if shop.state.create_branch("fork") else shop
    with pytest.warns(ForkedRunWarning, match="'order-17@fork'"):
        assert fork.order() == {"receipt": 1}
    assert (len(shop.keys), len(fork.keys)) == (1, 1)
    assert [run.id for run in shop.state.runs()] == ["order-17@fork", "order-17"]
    with fork.state.run("order-17", of="main") as run:
        assert run.id == "order-17"
        assert run.step(fork.quote, 5) == {"amount": 50}
    shop.order()
    assert (len(shop.keys), len(fork.keys)) == (1, 1)


def test_names_that_a_run_cannot_have() -> None:
    """A name is any text. A branch of the program's own is left alone."""
    state = Versioned(Memory())
    for name in ("a/b", "50 %", "ein Übel", "x" * 150):
        with state.run(name) as run:
            run.step(len, name)
        assert state.runs()[0].id == name
    state["a"] = 1
    state.commit()
    state.create_branch("runs/mine")
    with pytest.raises(InvalidInput, match="no record of one"), state.run("mine"):
        pass
    assert len(state.runs()) == 4
    for name in ("", "x" * 300):
        with pytest.raises(InvalidInput), state.run(name):
            pass
    with pytest.raises(NotFound, match="50 %"):
        read_run(state.repo, "50%")


def test_where_a_step_cannot_be() -> None:
    """Not outside of its run, nor inside a transaction, a task or a step; the state has to be clean."""
    shop = Shop()
    state = shop.state
    run = state.run("r")
    with pytest.raises(InvalidInput, match="not entered"):
        run.step(shop.quote, 1)
    state["a"] = 1
    with pytest.raises(UncommittedChanges, match="run"), run:
        pass
    state.discard()
    with pytest.raises(InvalidInput, match="has been entered"), run:
        pass

    @task
    def work(*, state: Versioned) -> None:
        run.step(shop.quote, 1)

    with state.run("r") as run:
        with pytest.raises(InvalidInput, match="transaction of its own"):
            run.step(lambda: run.step(shop.quote, 1), name="outer")
        with pytest.raises(InvalidInput), state.transaction():
            run.step(shop.quote, 1)
        with pytest.raises(InvalidInput):
            work(state=state)
        state.create_branch("other")
        for _ in range(2):
            with pytest.raises(InvalidInput, match="go back"):
                run.step(lambda: (state.switch("other"), shop.quote(1)), name="leave")
            assert state.branch == "other"
            assert state["orders"] == 0
        assert [step.id for step in run.steps] == ["outer#1"]
        state.switch("main")
    with pytest.raises(InvalidInput, match="not entered"):
        run.resolve("quote#1", 1)
    assert state["orders"] == 0


def test_runs_within_runs_and_events() -> None:
    """A run inside a run is its own; events of a part of the program that is done are not recorded twice."""
    state = Versioned(Memory())
    state["n"] = 0
    state.commit()

    def add() -> None:
        state["n"] += 1

    def program(stop: bool) -> None:
        with state.run("outer") as outer:
            state.record("began")
            outer.step(add)
            with state.run("inner") as inner:
                state.record("inner")
                inner.step(add)
            if stop:
                raise KeyboardInterrupt
            outer.step(add)

    for stop in (True, True, False, False):
        try:
            program(stop)
        except KeyboardInterrupt:
            pass
    assert state["n"] == 3
    assert [event.kind for event in events(state)] == ["began", "inner"]


def test_a_store_without_transactions() -> None:
    """There a step may not edit the state, which says so and records nothing; other steps are done once."""
    shop = Shop(Faulty(Memory(), atomic=False))
    with pytest.raises(InvalidInput, match="no transactions"), shop.state.run("r") as run:
        run.step(shop.quote, 1)
    assert dict(shop.state) == {"orders": 0, "log": []}
    for _ in range(2):
        with shop.state.run("r") as run:
            assert run.step(len, "four") == 4
            assert run.step(shop.keys.append, "paid", once=True) is None
    assert shop.keys == ["paid"]


@pytest.mark.parametrize("away", [0, 2])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("has_edits", [False, True])
def test_an_answer_that_is_lost_inside_the_block(has_edits: bool, after: bool, away: int) -> None:
    """The store fails in the commit of a step; the next step of the program finds out what landed."""
    memory = Memory()
    store = Faulty(memory, after=after, away=away)
    shop = Shop(store)
    done = 0
    with shop.state.run("r") as run:
        for number in range(3):
            if number == 1:
                at = store.fail_at = len(store.calls) + 1
            try:
                run.step(shop.quote if has_edits else len, number if has_edits else "x", key=f"{number}")
                done += 1
            except StoreUnavailable:
                assert number == 1
            store.fail_at = None
        assert store.calls[at - 1] == "transact"
    steps = [step.id for step in read_run(shop.state.repo, "r")[2]]
    assert len(steps) == 2 + after
    assert done in (2, 2 + after)
    assert Versioned(memory)["orders"] == (len(steps) if has_edits else 0)


def test_a_long_run_is_read_in_a_few_calls() -> None:
    """A run of 300 steps is resumed with as many calls of the store as one of 30, edits between them too."""
    store = Faulty(Memory())
    state = Versioned(store)
    counts = []
    for number in (30, 300):
        for _ in range(2):
            before = len(store.calls)
            with state.run(f"{number}") as run:
                for x in range(number):
                    state["edit"] = x
                    assert run.step(str, x * 10**200) == str(x * 10**200)
        counts.append(len(store.calls) - before)
    assert counts[1] <= counts[0] < 20


@pytest.mark.parametrize("end", ["arguments", "result"])
def test_a_record_that_was_erased(end: str) -> None:
    """The step says so, and its function is not called."""
    shop = Shop()
    shop.order()
    shop.state.repo.erase(f"step/charge#1/{end}", branch="runs/order-17")
    with pytest.raises(NotFound, match=f"charge#1/{end}' of run 'order-17' is gone.*another run"):
        shop.order()
    assert len(shop.keys) == 1
    assert not shop.state.has_uncommitted


def test_the_record_of_an_open_step_is_not_erased() -> None:
    """Otherwise the next run would pay again. A step that is done, or was resolved, may be erased."""
    shop = Shop()
    shop.fails = [OSError("no answer")]
    with pytest.raises(OSError, match="no answer"):
        shop.order()
    repo, rows = shop.state.repo, dict(shop.state.store.items())
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="'charge#1' of run 'order-17' is open: resolve it"):
            repo.erase("step/charge*", all_branches=True, dry_run=dry_run)
    assert dict(shop.state.store.items()) == rows
    assert repo.erase("step/quote*", branch="runs/order-17").commits
    with shop.state.run("order-17") as run:
        run.resolve("charge#1", {"receipt": 1})
    assert repo.erase("step/charge*", branch="runs/order-17").commits


def test_a_clock_that_was_ahead() -> None:
    """A run begins on a commit of the future, and a reset leads behind it: the edits are made once."""
    shop = Shop()
    begin = shop.state.head
    assert begin is not None
    with standing_still() as clock:
        clock.pass_(time.time())
        shop.state["ahead"] = 1
        shop.state.commit()
    shop.order()
    shop.state.reset(begin)
    for _ in range(2):
        shop.order()
        assert shop.state["log"] == ["between"]


def test_readable_forms() -> None:
    """A run and its records say what they are; the records are named tuples."""
    shop = Shop()
    run = shop.state.run("order-17")
    assert repr(run) == "<Run 'order-17' on branch 'main', 0 steps, not entered>"
    shop.order()
    with shop.state.run("order-17") as run:
        assert repr(run) == "<Run 'order-17' on branch 'main', 2 steps>"
        assert [(step.id, step.position, step.status) for step in run.steps] == [
            ("quote#1", 1, "done"),
            ("charge#1", 2, "done"),
        ]
    (info,) = shop.state.runs()
    assert (info.id, info.branch, info.steps, info.open, info.ended) == ("order-17", "main", 2, [], True)
    assert info.began <= info.time
    assert isinstance(shop.state.repo, Repository)


def test_two_open_calls_of_one_name_are_not_called_again() -> None:
    """Calls of other arguments are other steps. Each finds its own intent, whichever is made again first."""
    paid: list[str] = []

    def pay(who: str) -> None:
        paid.append(who)
        raise TimeoutError

    with Versioned(Memory()) as state, state.run("pay") as run:
        for who in ("ann", "ben"):
            with pytest.raises(TimeoutError):
                run.step(pay, who, once=True)
        for who in ("ben", "ann"):
            with pytest.raises(EffectUnknown):
                run.step(pay, who, once=True)
    assert paid == ["ann", "ben"]
