"""VstateSaver with LangGraph's DeltaChannel, beside LangGraph's own saver with whole values, as the truth."""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Annotated, Any, TypedDict

import pytest
from counting import Counting
from soak import sized

pytest.importorskip("langgraph.graph", reason="langgraph is not installed")
pytest.importorskip("langgraph.channels.delta", reason="this langgraph has no DeltaChannel")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="langgraph-checkpoint-sqlite is not installed")

from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, interrupt
from test_langgraph_saver import Secret, named

from vstate import Memory, NotFound
from vstate.integrations.langgraph import VstateSaver, tables
from vstate.repo import Repository

RUNS = ("one", "two", "three", "four")


class Truth(InMemorySaver):
    """LangGraph's saver in memory, with the deletions that it lacks: with whole values they are these."""

    def _keep(self, stays: Callable[[dict[str, Any], str], bool], threads: Sequence[str] = ()) -> None:
        for thread in threads or list(self.storage):
            for saved in self.storage[thread].values():
                kept = {id: each for id, each in saved.items() if stays(saved, id)}
                for id in [*saved]:
                    if id not in kept:
                        del saved[id]

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._keep(lambda saved, id: self.serde.loads_typed(saved[id][1]).get("run_id") not in run_ids)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._keep(lambda saved, id: id == max(saved), thread_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for ns, saved in self.storage[source_thread_id].items():
            self.storage[target_thread_id][ns].update(saved)
        for (thread, ns, id), writes in [*self.writes.items()]:
            if thread == source_thread_id:
                self.writes[target_thread_id, ns, id].update(writes)
        for (thread, *of), blob in [*self.blobs.items()]:
            if thread == source_thread_id:
                self.blobs[target_thread_id, *of] = blob  # type: ignore[index]


def added(old: Any, writes: Sequence[Any]) -> Any:
    """The reducer of a delta channel of lists, or of dicts."""
    if isinstance(old, dict):
        return {name: value for each in (old, *writes) for name, value in each.items()}
    return [*old, *chain.from_iterable(writes)]


def graph(saver: Any, *, delta: bool, every: int) -> Any:
    """A graph with parallel nodes and a subgraph. Its channels store their values at different steps."""

    def channel(kind: Any, every: int) -> Any:
        whole = operator.or_ if kind is dict else operator.add
        return Annotated[kind, DeltaChannel(added, kind, snapshot_frequency=every) if delta else whole]

    inner = StateGraph(TypedDict("Inner", {"text": str, "log": channel(list, 2)}))
    kinds = {"messages": channel(list, 7), "files": channel(dict, every), "never": channel(list, 2)}
    built = StateGraph(TypedDict("State", {"text": str, **kinds}))

    def say(name: str) -> Callable[[Any], Any]:
        def node(state: Any) -> Any:
            count = len(state["messages"])
            return {"messages": [f"{name} {count}"], "files": {name: count, f"{name} {count}": state["text"]}}

        return node

    inner.add_node("note", lambda state: {"log": [state["text"], len(state["log"])]})
    inner.add_edge(START, "note")
    for name in ("a", "b", "last"):
        built.add_node(name, say(name))
    built.add_node("sub", inner.compile(checkpointer=True))
    for before, after in (
        (START, "b"),
        (START, "a"),
        ("a", "sub"),
        ("b", "sub"),
        ("sub", "last"),
        ("last", END),
    ):
        built.add_edge(before, after)
    return built.compile(checkpointer=saver)


class Side:
    """A graph with its saver, and what its program does."""

    def __init__(self, saver: Any, *, delta: bool, durability: str = "sync", every: int = 100) -> None:
        self.saver = saver
        self.graph = graph(saver, delta=delta, every=every)
        self.durability: Any = durability

    def run(self, name: str, thread: str = "t", config: Any = None) -> None:
        """One turn, of a run of this name."""
        config = config or {"configurable": {"thread_id": thread}}
        given = {"text": name, "messages": [name], "files": {"input": name}}
        self.graph.invoke(given, {**config, "metadata": {"run_id": name}}, durability=self.durability)

    def ends_of(self, name: str) -> Any:
        """The config of the last checkpoint of a run."""
        return next(
            found.config
            for found in self.graph.get_state_history(named())
            if found.metadata["run_id"] == name
        )

    def history(self, thread: str = "t") -> dict[str, list[Any]]:
        """The states of a thread and of its subgraph, the newest first."""
        return {
            ns: [
                (found.metadata.get("step"), found.metadata.get("run_id"), found.values, found.next)
                for found in self.graph.get_state_history(named(thread, ns))
                if found.metadata.get("step") != -2  # the first, empty one of a delta channel
            ]
            for ns in ("", "sub")
        }


def a_copy_whose_source_goes(side: Side) -> None:
    side.saver.delete_for_runs(["two"])
    side.saver.copy_thread("t", "u")
    side.saver.delete_thread("t")
    side.saver.copy_thread("u", "t")


def a_copy_onto_a_thread(side: Side) -> None:
    side.saver.delete_for_runs(["one", "three"])
    side.run("other", "u")
    side.saver.copy_thread("t", "u")
    side.saver.copy_thread("u", "t")


def copies_that_need_different_parts(side: Side) -> None:
    for number in range(6):
        side.run(f"{number}")
    side.saver.copy_thread("t", "u")
    side.saver.delete_for_runs([*RUNS, "0", "1"])
    side.saver.prune(["u"])
    side.saver.copy_thread("u", "t")
    side.saver.copy_thread("t", "u")


def a_fork(side: Side) -> None:
    side.run("fork", config=side.ends_of("two"))
    side.run("five")
    side.saver.delete_for_runs(["three", "two", "fork"])


def a_fork_that_goes(side: Side) -> None:
    side.run("fork", config=side.ends_of("two"))
    side.saver.delete_for_runs(["fork"])


def a_run_after_each(side: Side) -> None:
    for number in range(5):
        side.saver.delete_for_runs([[*RUNS, "0", "1", "2"][number + 1]])
        side.run(f"{number}")


def an_update(side: Side) -> None:
    side.graph.update_state(named(), {"messages": ["by hand"]}, as_node="last")
    side.saver.delete_for_runs(["four", "three"])


SCENARIOS: dict[str, Callable[[Side], object]] = {
    "nothing": lambda side: None,
    "first": lambda side: side.saver.delete_for_runs(["one"]),
    "middle": lambda side: side.saver.delete_for_runs(["two"]),
    "end": lambda side: side.saver.delete_for_runs(["four"]),
    "all but the last": lambda side: side.saver.delete_for_runs([*RUNS[:3]]),
    "twice": lambda side: [side.saver.delete_for_runs([name]) for name in ("two", "two", "three")],
    "backwards": lambda side: [side.saver.delete_for_runs([name]) for name in ("three", "two", "four")],
    "prune": lambda side: side.saver.prune(["t"]),
    "then a prune": lambda side: [side.saver.delete_for_runs(["two"]), side.saver.prune(["t"])],
    "prune, then a run": lambda side: [
        side.saver.prune(["t"]),
        side.run("five"),
        side.saver.delete_for_runs(["four"]),
    ],
    "copy": a_copy_whose_source_goes,
    "copy onto": a_copy_onto_a_thread,
    "copies": copies_that_need_different_parts,
    "fork": a_fork,
    "fork that goes": a_fork_that_goes,
    "runs after": a_run_after_each,
    "update": an_update,
}


HOW = ["exit", "encrypted"]
EACH_ONCE = [("plain", name) for name in SCENARIOS]
EACH_ONCE += [(HOW[number % 2], name) for number, name in enumerate(SCENARIOS)]


@pytest.mark.parametrize(("how", "name"), sized(EACH_ONCE, [*product(["plain", *HOW], SCENARIOS)]))
def test_what_is_left_is_as_with_whole_values(name: str, how: str) -> None:
    """After deletions, prunes, copies and forks each state that is left is as it was, and the next run."""
    store = Memory()
    serde = EncryptedSerializer(Secret()) if how == "encrypted" else None
    durability = "exit" if how == "exit" else "sync"
    truth = Side(Truth(), delta=False, durability=durability)
    ours = Side(VstateSaver(store, serde=serde), delta=True, durability=durability)
    for side in (truth, ours):
        for run in RUNS:
            side.run(run)
        SCENARIOS[name](side)
    for thread in ("t", "u"):
        left = truth.history(thread)
        assert ours.history(thread) == left
        cold = Side(VstateSaver(store, serde=serde), delta=True, durability=durability)
        assert cold.history(thread) == left
    for side in (truth, cold):
        side.run("next")
        side.saver.delete_for_runs(["four"])
    assert cold.history() == truth.history()
    assert Repository(store).fsck().ok


@pytest.fixture
def side() -> Side:
    """Ours, after four runs."""
    side = Side(VstateSaver(Memory()), delta=True)
    for run in RUNS:
        side.run(run)
    return side


def test_of_a_deleted_run_only_what_later_ones_are_computed_from_stays(side: Side) -> None:
    """It has values and writes of delta channels, no metadata, and goes with the last one that needs it."""
    ids = [found.checkpoint["id"] for found in side.saver.list(named(), filter={"run_id": "two"})]
    side.saver.delete_for_runs(["two"])
    thread = side.saver._journal("t").refresh()
    links = {saved.id: saved for (ns, _), saved in thread.links.items() if not ns}
    assert links.keys() == {*ids}
    for link in links.values():
        assert side.saver.serde.loads_typed(link.metadata) == {}
        assert {*link.values} <= {"messages", "files"}
        assert {write.channel for write in thread.writes("", link.id)} <= {"messages", "files"}
        assert side.saver.get_tuple(named(id=link.id)) is None
    side.saver.prune(["t"])
    assert side.saver._journal("t").refresh().links
    side.saver.delete_for_runs(["four"])
    thread = side.saver._journal("t").refresh()
    assert not thread.links
    assert not thread.all()


def test_a_deleted_checkpoint_takes_no_write(side: Side) -> None:
    """A late worker in another process adds nothing to what later checkpoints are computed from."""
    (config, *_) = (found.config for found in side.saver.list(named(), filter={"run_id": "two"}))
    side.saver.delete_for_runs(["two"])
    before = side.history()
    other = VstateSaver(side.saver.repo.store)
    with pytest.raises(NotFound, match="was deleted"):
        other.put_writes(config, [("messages", ["late"])], "another task")
    assert side.history() == before


def test_a_delta_channel_that_was_never_written_keeps_nothing(side: Side) -> None:
    """Once the channels in use have a whole value, a prune leaves the newest checkpoint alone."""
    for name in ("messages", "files"):
        value = side.graph.get_state(named()).values[name]
        side.graph.update_state(named(), {name: Overwrite(value)}, as_node="last")
    side.saver.prune(["t"])
    links = [id for ns, id in side.saver._journal("t").refresh().links if not ns]
    assert len(links) == 1


def test_the_first_state_reads_back_to_the_last_values_alone() -> None:
    """A cold thread is read from its end to the checkpoint that has values, and not to its beginning."""
    store = Counting(Memory())
    side = Side(VstateSaver(store), delta=True, every=5)
    for number in range(60):
        side.run(f"{number} " + "text " * 200)
    rows = []
    for read in (lambda cold: cold.graph.get_state(named()), lambda cold: [*cold.saver.list(named())]):
        store.rows.clear()
        read(Side(VstateSaver(store), delta=True, every=5))
        rows.append(len(store.rows))
    assert 4 * rows[0] < rows[1]


def trips_of_a_cold_read(count: int) -> int:
    """How often the history of so many channels asks the store, whose values lie apart in the thread."""
    store, chance, values = Counting(Memory()), Random(1), dict[str, str]()
    saver, config, versions = VstateSaver(store), named(), dict[str, int]()
    channels = [f"c{number}" for number in range(count)]

    def put(config: Any, *new: str) -> Any:
        versions.update(dict.fromkeys(new, number := max(versions.values(), default=0) + 1))
        given: Any = {"id": f"{number:08}", "channel_values": {**values}, "channel_versions": {**versions}}
        return saver.put(config, {**empty_checkpoint(), **given}, {"step": number}, {**versions})

    for name in channels:
        for each in (name, *["other"] * 5):
            values[each] = chance.randbytes(8_000).hex()
            config = put(config, each)
    values.update({name: values[name] + "x" for name in channels})
    config = put(put(config, *channels), "other")
    cold = VstateSaver(store)
    store.trips = 0
    found = cold.get_delta_channel_history(config=config, channels=channels)
    assert all(found[name]["seed"] == values[name] for name in channels)
    return store.trips


def test_the_values_of_many_channels_are_read_together() -> None:
    """A cold read takes few more trips for 12 channels than for 3."""
    assert trips_of_a_cold_read(12) <= trips_of_a_cold_read(3) + 4


def test_an_export_has_what_its_checkpoints_are_computed_from(side: Side, tmp_path: Path) -> None:
    """LangGraph's own saver reads the thread with its deleted run from the file."""
    side.saver.delete_for_runs(["two"])
    tables.write_sqlite(side.saver.repo, tmp_path / "back.sqlite")
    connection = sqlite3.connect(tmp_path / "back.sqlite", check_same_thread=False)
    theirs = Side(SqliteSaver(connection), delta=True)
    assert theirs.graph.get_state(named()).values == side.graph.get_state(named()).values
    mine, found = side.history(), theirs.history()
    assert [each for each in found[""] if each[1]] == mine[""]
    assert [each for each in found["sub"] if each[1]] == mine["sub"]
    connection.close()


@pytest.mark.parametrize("delta", [True, False], ids=["delta", "whole"])
def test_an_exported_thread_goes_on_in_langgraphs_saver_and_comes_back(delta: bool, tmp_path: Path) -> None:
    """Each saver answers the question that the one before left open, as one saver alone does."""
    whole = Annotated[list, DeltaChannel(added, list, snapshot_frequency=3) if delta else operator.add]
    builder = StateGraph(TypedDict("State", {"log": whole, "first": str}))
    builder.add_node("say", lambda state: {"log": [f"said {len(state['log'])}"], "first": state["log"][0]})
    builder.add_node("ask", lambda state: {"log": [interrupt("more?")]})
    builder.add_edge(START, "say")
    builder.add_edge(START, "ask")

    def history(saver: Any) -> list[Any]:
        states = builder.compile(checkpointer=saver).get_state_history(named())
        return [(each.values, each.next, [asked.value for asked in each.interrupts]) for each in states]

    def go_on(saver: Any, text: str) -> None:
        compiled = builder.compile(checkpointer=saver)
        if compiled.get_state(named()).next:
            compiled.invoke(Command(resume=f"answer {text}"), named())
        compiled.invoke({"log": [text]}, named())

    truth, ours, again = InMemorySaver(), VstateSaver(Memory()), VstateSaver(Memory())
    for text in RUNS:
        go_on(truth, text)
    go_on(ours, "one")
    go_on(ours, "two")
    file = tmp_path / "back.sqlite"
    tables.write_sqlite(ours.repo, file)
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        go_on(SqliteSaver(connection), "three")
    for saver in (ours, again):
        before = len(list(saver.list(named())))
        report = tables.take_sqlite(saver.repo, file)
        assert (report.written, report.left_out) == (report.checkpoints - before, ())
        go_on(saver, "four")
        assert history(saver) == history(truth)
