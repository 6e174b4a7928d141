"""Sync beside damage, failures and other processes: refs lead to whole commits, and all arrive in the end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from bundle_files import chain, equal, large, refs_of, save, store_of, values_at, whole
from histories import opened
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import SOAK
from sync_stores import WAYS, Hooked, Once, Torn, cloned, push, statuses

from vstate import KVStore, Memory, Versioned
from vstate.errors import AlreadyExists, CorruptObject, Diverged, StoreUnavailable
from vstate.repo import Repository
from vstate.repo.clone import clone
from vstate.repo.upkeep.reach import Reach
from vstate.testing import Faulty

pytestmark = pytest.mark.slow

# Damage


def test_a_damaged_object_goes_nowhere() -> None:
    """A transfer finds a damaged object of any kind, and no ref moves."""
    store = Memory()
    chain(store, 3)
    whole_rows = dict(store.items())
    for key in store.keys("o/"):
        store.set(key, whole_rows[key][:-1] + bytes([whole_rows[key][-1] ^ 1]))
        target = Memory()
        with pytest.raises(CorruptObject):
            push(store, target)
        assert refs_of(target) == {}
        with pytest.raises(CorruptObject):
            Repository(target).fetch(store, remote="origin")
        assert refs_of(target) == {}
        store.set(key, whole_rows[key])
        push(store, target)
        equal(store, target)


def test_damage_there_keeps_nothing_else_out() -> None:
    """A tag there with a lost commit, or a damaged tree there, does not stop a push."""
    store = Memory()
    chain(store, 4)
    target = cloned(store)
    other = Repository(target)
    other.create_tag("broken", "main~2")
    target.delete(f"o/{other.resolve('main~2').root}")
    target.delete(f"o/{refs_of(target)['tags/broken']}")
    chain(store, 2, start=4)
    push(store, target)
    assert refs_of(target)["heads/main"] == refs_of(store)["heads/main"]
    back = cloned(store)
    back.delete(f"o/{Repository(back).resolve('main').root}")
    chain(store, 1, start=6)
    assert Repository(back).fetch(store, remote="o").refs[0].status == "created"
    assert Versioned(back, branch="fresh").checkout("o/main")["small"] == 6


# Interrupted


def interrupt(attempt: Callable[[int], tuple[Faulty, KVStore]], check: Callable[[KVStore], None]) -> int:
    """Let the store fail at each of its calls in turn; how often. Each time all commits there are whole."""
    for fail_at in range(1, 1000):
        faulty, target = attempt(fail_at)
        report = Repository(target).fsck()
        assert report.ok, f"call {fail_at} of {faulty.calls}: {report}"
        repo = Repository(target)
        for kind, ids in Reach(repo.objects, repo.history).extend(list(repo.objects.commit_ids(""))):
            repo.objects.read_many(kind, ids)
        check(target)
        if len(faulty.calls) < fail_at:
            break
    return fail_at


FAULTS: dict[str, Callable[[Memory, int], Faulty]] = {
    "before": Faulty,
    "after": lambda target, at: Faulty(target, at, after=True),
    "even rows": lambda target, at: Torn(target, at, 0),
    "odd rows": lambda target, at: Torn(target, at, 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_interrupted_at_every_call_of_the_target(small_batches: None, fault: str) -> None:
    """Whichever call fails, every commit there is whole, and the next push brings the rest.

    This also holds if any part of a batch was written when the batch failed, without transactions.
    """
    store = Memory()
    chain(store, 2)
    base = dict(cloned(store).items())
    chain(store, 2, start=2)

    def attempt(fail_at: int) -> tuple[Faulty, KVStore]:
        target = store_of(base)
        faulty = FAULTS[fault](target, fail_at)
        with suppress(StoreUnavailable):
            push(store, faulty)
        return faulty, Faulty(target, atomic=faulty.transactional)

    def again(target: KVStore) -> None:
        push(store, target)
        equal(store, target)
        whole(target)

    assert interrupt(attempt, again) > 20


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_interrupted_at_every_call_of_the_source(small_batches: None, after: bool) -> None:
    """The same for a fetch from a store that fails, which is left as it was."""
    store = Memory()
    chain(store, 2)
    base = dict(cloned(store).items())
    chain(store, 4, start=2)
    before = dict(store.items())

    def attempt(fail_at: int) -> tuple[Faulty, KVStore]:
        target, faulty = store_of(base), Faulty(store, fail_at, after=after)
        with suppress(StoreUnavailable):
            Repository(target).fetch(faulty, remote="origin")
        return faulty, target

    def again(target: KVStore) -> None:
        Versioned(target).pull(store)
        whole(target)
        assert dict(store.items()) == before

    assert interrupt(attempt, again) > 15


def test_interrupted_at_every_call_of_a_clone(small_batches: None, tmp_path: Path) -> None:
    """A repeated clone goes on; only a complete one is refused."""
    with Versioned(tmp_path / "there") as state:
        for i in range(4):
            save(state, f"{i}", k=i)
        state.tag("v1")
        state.fork("side")
        right = refs_of(state.store)

    def attempt(fail_at: int) -> tuple[Faulty, KVStore]:
        target = Memory()
        faulty = Faulty(target, fail_at)
        with suppress(StoreUnavailable):
            clone(tmp_path / "there", faulty)
        return faulty, target

    def again(target: KVStore) -> None:
        try:
            clone(tmp_path / "there", target)
        except AlreadyExists:
            assert target.get("r/HEAD") is not None
        found = refs_of(target)
        assert {name: found[name] for name in right} == right
        assert found["remotes/origin/side"] == right["heads/side"]
        whole(target)

    assert interrupt(attempt, again) > 15


def test_an_answer_that_was_lost_is_looked_up() -> None:
    """If a store cannot say whether the ref moved, the push reads the ref."""
    store, target = Memory(), Memory()
    chain(store, 2)

    def lost(message: str) -> StoreUnavailable:
        return StoreUnavailable(message, outcome_unknown=True)

    calls = Faulty(Memory())
    push(store, calls)
    at = len(calls.calls) - calls.calls[::-1].index("transact")
    assert statuses(push(store, Faulty(target, at, lost, after=True))) == {"heads/main": "created"}
    with pytest.raises(StoreUnavailable):
        push(store, Faulty(Memory(), at, lost))
    equal(store, target)


# Others at work


def test_of_two_pushers_one_wins_and_the_other_is_told() -> None:
    """The second one to move the ref pulls, and then pushes both."""
    store = Memory()
    chain(store, 2)
    target, second = cloned(store), cloned(store)
    chain(store, 1, start=10)
    state = Versioned(second)
    save(state, "mine", mine=1)
    with pytest.raises(Diverged):
        push(second, Hooked(target, Once(lambda: push(store, target), "r/heads/main")))
    assert refs_of(target) == refs_of(store)
    assert state.pull(target).strategy == "merge"
    state.push(target)
    assert Versioned(target)["mine"] == 1
    Repository(target).gc(keep_reflog="0")
    whole(target)


def test_what_moved_before_a_push_ended_early_is_noted() -> None:
    """The first branch has moved and is noted, although others have moved the second one meanwhile."""
    store = Memory()
    chain(store, 2)
    chain(store, 2, "side")
    target = cloned(store)
    chain(store, 1, start=10)
    chain(store, 1, "side", start=20)
    overtake = Once(lambda: chain(target, 1, "side", start=30), "r/heads/main")
    with pytest.raises(Diverged):
        Repository(store).push(Hooked(target, overtake), ["main", "side"], remote="there")
    assert refs_of(target)["heads/main"] == refs_of(store)["heads/main"]
    assert refs_of(store)["remotes/there/main"] == refs_of(store)["heads/main"]
    assert "remotes/there/side" not in refs_of(store)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_many_pushers_lose_nothing(kind: str, tmp_path: Path) -> None:
    """Many threads pull and push until each has succeeded, and no commit is lost."""
    with opened(kind, tmp_path) as target:
        state = Versioned(target)
        state["n"] = 0
        state.set_policy("n", "counter")
        state.commit("zero")

        def work(name: int) -> None:
            mine = Versioned(cloned(target))
            for i in range(3):
                mine["n"] += 1
                mine[f"{name}/{i}"] = large(i)
                mine.commit(f"{name}/{i}")
                while True:
                    mine.pull(target)
                    try:
                        mine.push(target)
                        break
                    except Diverged:
                        pass

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        state = Versioned(target)
        assert (state["n"], len(state)) == (12, 13)
        Repository(target).gc(keep_reflog="0", grace="0")
        whole(target)


@pytest.mark.parametrize(
    ("way", "atomic", "moment"),
    [("push", True, "first"), ("push", True, "each"), ("push", False, "each"), ("push", True, "last"),
     ("push", False, "last"), ("bundle", True, "each"), ("bundle", True, "last")],
)  # fmt: skip
def test_gc_on_the_target_meanwhile(small_batches: None, way: str, atomic: bool, moment: str) -> None:
    """Objects that gc removes meanwhile are sent again, before a ref leads to them."""
    store = Memory()
    chain(store, 6)
    memory = Memory()
    chain(memory, 2, "theirs")
    runs, collecting = list[int](), list[bool]()

    def collect(key: str) -> None:
        last = key == "r/heads/main"
        wanted = {"first": not runs, "each": len(runs) < 25, "last": last and len(runs) < 2}[moment]
        if wanted and not collecting:
            collecting.append(True)
            runs.append(Repository(Faulty(memory, atomic=atomic)).gc(keep_reflog="0", grace="1h").removed)
            collecting.clear()

    WAYS[way](store, Hooked(memory, collect, atomic=atomic))
    assert runs
    assert not atomic or moment == "first" or max(runs) > 0
    assert refs_of(memory)["heads/main"] == refs_of(store)["heads/main"]
    target = Faulty(memory, atomic=atomic)
    report = Repository(target).fsck()
    assert report.ok, str(report)
    for _ in range(2):
        Repository(target).gc(keep_reflog="0", grace="0")
    whole(target)


class Vanishing(Memory):
    """Another process deletes a tag, right after the read of it with this number."""

    reads_left = 0

    def get(self, key: str) -> bytes | None:
        value = super().get(key)
        if key == "r/tags/v1":
            self.reads_left -= 1
            if self.reads_left == 0:
                Repository(self).delete_tag("v1")
        return value


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_tag_that_goes_while_it_is_fetched_leads_to_nothing_that_is_missing(number: int) -> None:
    """The fetch leaves it, or brings it with its objects."""
    store, target = Memory(), Vanishing()
    chain(store, 2).tag("v1")
    Repository(store).commit("other", set={"n": 1})
    chain(target, 1, "mine")
    Repository(target).create_tag("v1", "mine")
    target.reads_left = number
    Repository(target).fetch(store, "other", remote="o", tags=True)
    whole(target)


def test_gc_on_the_source_meanwhile() -> None:
    """A fetch looks up a branch again that was moved and swept meanwhile."""
    store, memory = Memory(), Memory()
    state = chain(store, 4)

    def rewrite() -> None:
        state.reset("HEAD~2")
        Repository(store).gc(keep_reflog="0")

    report = Repository(Hooked(memory, Once(rewrite, "o/"))).fetch(store, remote="origin")
    assert report.refs[0].new == refs_of(store)["heads/main"]
    Repository(memory).gc(keep_reflog="0")
    whole(memory)


# Everything at random

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.just("push"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("pull"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("gc"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("back"), st.integers(0, 2), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=500 if SOAK else 10)
@given(_steps, st.booleans())
def test_histories_at_random_end_equal(steps: list[tuple[str, int, int]], atomic: bool) -> None:
    """Three stores that commit, go back, pull, merge, push and collect garbage agree in the end."""
    memories = [Memory() for _ in range(3)]
    stores = [Faulty(memory, atomic=atomic) for memory in memories]
    first = Versioned(stores[0])
    save(first, "first", shared=0)
    for store in stores[1:]:
        clone(stores[0], store)
    states = [Versioned(store, branch="main") for store in stores]
    for number, (step, here, other) in enumerate(steps):
        state = states[here]
        state.refresh()
        if step == "commit":
            state[f"key/{other}"] = large(number) if number % 3 else number
            state.commit(f"{number}")
        elif step == "back":
            state.rollback(list(state.log())[-1])
        elif step == "gc":
            state.repo.gc(keep_reflog="0", grace="0")
        elif step == "pull":
            state.pull(stores[other], policy="theirs")
        else:
            try:
                (ref,) = state.push(stores[other]).refs
                assert ref.new == refs_of(memories[other])["heads/main"] == (state.head and state.head.id)
            except Diverged:
                heads = [refs_of(memory)["heads/main"] for memory in memories]
                assert heads[here] != heads[other]
        for store in stores:
            assert Repository(store).fsck().ok
    for state in [*states, *states]:
        state.refresh()
        for store in stores:
            state.pull(store, policy="ours")
            state.push(store)
    assert refs_of(memories[0]) == refs_of(memories[1]) == refs_of(memories[2])
    assert values_at(memories[0]) == values_at(memories[1]) == values_at(memories[2])
    for store in stores:
        for _ in range(2):
            Repository(store).gc(keep_reflog="0", grace="0")
        whole(store)
