"""Threads of LangGraph: a chat that grows, in vstate's checkpointer and in LangGraph's own for SQLite."""

from __future__ import annotations

import operator
import sqlite3
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from benchmarks.harness import Row, Sides, Target, processor_seconds, seconds, workload
from benchmarks.subjects import size_of
from benchmarks.values import messages
from vstate.integrations.langgraph import VstateSaver

PUTS = 500
LAST = 50
CHARACTERS = 450
READS = 20
THREADS = 3000
THREADS_OF_A_USER = 10

BYTES = "LangGraph, 500 steps of a chat, disk: bytes"
PUT = "LangGraph, 500 steps of a chat, disk: a step"
PUT_LAST = "LangGraph, 500 steps of a chat, disk: one of the last 50 steps"
GET = "LangGraph, 500 steps of a chat, disk: get the newest again"
GET_FIRST = "LangGraph, 500 steps of a chat, disk: the first get after opening"
LIST = "LangGraph, 500 steps of a chat, disk: list all"
GET_OBJECTS = "LangGraph, 500 messages of LangChain, disk: get the newest again"
TURNS = 200
LENGTH = 2000
IN_SQLITE = "500 steps of a chat, beside `SqliteSaver`"
WITH_DELTA = f"{TURNS} turns of a graph with `DeltaChannel`, beside `SqliteSaver`; processor time of a turn"

FILTERED = "LangGraph, 3,000 threads, disk: list the 10 checkpoints of a user"

CONFIG: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}

Saver = BaseCheckpointSaver[Any]


def step(saver: Saver, config: Any, number: int, chat: list[Any]) -> Any:
    """Save a checkpoint with one channel, as a graph does after each step."""
    checkpoint = empty_checkpoint()
    checkpoint["id"] = f"{number:036}"
    checkpoint["channel_values"] = {"messages": chat}
    checkpoint["channel_versions"] = {"messages": number}
    metadata: Any = {"source": "loop", "step": number, "parents": {}}
    return saver.put(config, checkpoint, metadata, {"messages": number})


def talk(saver: Saver, make: Callable[[dict[str, str]], Any]) -> list[float]:
    """The seconds of each step of a chat that gets one message a step."""
    chat: list[Any] = []
    samples: list[float] = []
    config = CONFIG

    def once() -> None:
        nonlocal config
        config = step(saver, config, len(chat), chat)

    for message in islice(messages(length=CHARACTERS), PUTS):
        chat = [*chat, make(message)]
        samples.append(seconds(once))
    return samples


def as_object(message: dict[str, str]) -> Any:
    """The message as LangChain's class for its role."""
    return (HumanMessage if message["role"] == "user" else AIMessage)(message["content"])


def in_sqlite(directory: Path) -> SqliteSaver:
    """LangGraph's saver for SQLite, which syncs each commit, as vstate does."""
    directory.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(directory / "checkpoints.db", check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    connection.execute("PRAGMA synchronous = FULL")
    return saver


def close(saver: Any) -> None:
    """Close a saver, so that no log counts as bytes."""
    saver.close() if isinstance(saver, VstateSaver) else saver.conn.close()


def read_again(saver: Saver) -> float:
    """The median seconds of a read of the newest checkpoint, of many in one program."""
    saver.get_tuple(CONFIG)
    return statistics.median(seconds(partial(saver.get_tuple, CONFIG)) for _ in range(READS))


@workload(
    Row(BYTES, "bytes", (Target(1.2e6),), headline=IN_SQLITE),
    Row(PUT, "seconds", (Target(0.8, side="langgraph"),), headline=IN_SQLITE),
    Row(PUT_LAST, "seconds", (Target(0.6, side="langgraph"),)),
    Row(GET, "seconds", (Target(0.9, side="langgraph"),)),
    Row(GET_FIRST, "seconds", (Target(2.0, side="langgraph"),)),
    Row(LIST, "seconds", (Target(1.0, side="langgraph"),)),
    Row(GET_OBJECTS, "seconds", (Target(0.3, side="langgraph"),)),
    rounds=2,
)
def threads(scratch: Path) -> Iterator[Sides]:
    rounds = iter(range(1000))

    def on(make: Callable[[Path], Any]) -> dict[str, float]:
        directory = scratch / str(next(rounds))
        saver = make(directory)
        samples = talk(saver, dict)
        again, listed = read_again(saver), seconds(lambda: sum(1 for _ in saver.list(CONFIG)))
        close(saver)
        size = size_of(directory)
        saver = make(directory)
        saver.get_tuple({"configurable": {"thread_id": "another", "checkpoint_ns": ""}})
        first = seconds(partial(saver.get_tuple, CONFIG))
        close(saver)
        saver = make(scratch / str(next(rounds)))
        talk(saver, as_object)
        objects = read_again(saver)
        close(saver)
        return {
            BYTES: float(size),
            PUT: statistics.median(samples),
            PUT_LAST: statistics.median(samples[-LAST:]),
            GET: again,
            GET_FIRST: first,
            LIST: listed,
            GET_OBJECTS: objects,
        }

    yield {"vstate": lambda: on(VstateSaver), "langgraph": lambda: on(in_sqlite)}


def added(chat: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """The reducer of the channel: the messages in order."""
    return [*chat, *chain.from_iterable(writes)]


class Whole(TypedDict):
    """The state of a graph whose checkpoints have the whole chat."""

    messages: Annotated[list[Any], operator.add]


class Changes(TypedDict):
    """The state of a graph whose checkpoints have the changes of a channel, and a snapshot now and then."""

    messages: Annotated[list[Any], DeltaChannel(added)]


GRAPHS = {
    f"LangGraph, {TURNS} turns of a graph, disk": (Whole, ""),
    f"LangGraph, {TURNS} turns of a graph with DeltaChannel, disk": (Changes, WITH_DELTA),
}
TURNS_BYTES, TURN, TURNS_GET = "bytes", "processor time of a turn", "processor time of the first state"


@workload(
    *(
        Row(f"{graph}: {what}", unit, (Target(at_most, side="langgraph"),), headline=headline)
        for graph, (_, headline) in GRAPHS.items()
        for what, unit, at_most in ((TURNS_BYTES, "bytes", 1.0), (TURN, "seconds", 1.05))
    ),
    *(Row(f"{graph}: {TURNS_GET}", "seconds", (Target(3.0, side="langgraph"),)) for graph in GRAPHS),
    rounds=1,
)
def turns_of_a_graph(scratch: Path) -> Iterator[Sides]:
    rounds = iter(range(1000))
    texts = [message["content"] for message in islice(messages(length=LENGTH), 2 * TURNS)]
    config: Any = {"configurable": {"thread_id": "1"}}

    def talk_in(graph: str, make: Callable[[Path], Any]) -> dict[str, float]:
        directory = scratch / str(next(rounds))
        saver = make(directory)
        built = StateGraph(GRAPHS[graph][0])
        built.add_node("answer", lambda state: {"messages": [AIMessage(texts[len(state["messages"])])]})
        built.add_edge(START, "answer")
        compiled = built.compile(checkpointer=saver)

        def turn(number: int) -> None:
            compiled.invoke({"messages": [HumanMessage(texts[2 * number])]}, config)

        samples = [processor_seconds(turn, number) for number in range(TURNS)]
        assert len(compiled.get_state(config).values["messages"]) == 2 * TURNS
        close(saver)
        size = size_of(directory)
        saver = make(directory)
        compiled = built.compile(checkpointer=saver)
        compiled.get_state({"configurable": {"thread_id": "another"}})
        first = processor_seconds(compiled.get_state, config)
        close(saver)
        figures = {TURNS_BYTES: float(size), TURN: statistics.median(samples), TURNS_GET: first}
        return {f"{graph}: {what}": figure for what, figure in figures.items()}

    def on(make: Callable[[Path], Any]) -> dict[str, float]:
        return {row: figure for graph in GRAPHS for row, figure in talk_in(graph, make).items()}

    yield {"vstate": lambda: on(VstateSaver), "langgraph": lambda: on(in_sqlite)}


@workload(Row(FILTERED, "seconds", (Target(0.02),)))
def threads_of_a_user(scratch: Path) -> Iterator[Sides]:
    savers = {"vstate": VstateSaver(scratch / "vstate"), "langgraph": in_sqlite(scratch / "sqlite")}
    for number in range(THREADS):
        config: Any = {"configurable": {"thread_id": f"thread {number}", "checkpoint_ns": ""}}
        metadata: Any = {
            "source": "input",
            "step": -1,
            "user": f"user {number % (THREADS // THREADS_OF_A_USER)}",
        }
        for saver in savers.values():
            saver.put(config, empty_checkpoint(), metadata, {})

    def on(saver: Any) -> dict[str, float]:
        def read() -> None:
            assert sum(1 for _ in saver.list(None, filter={"user": "user 17"})) == THREADS_OF_A_USER

        return {FILTERED: seconds(read)}

    yield {side: partial(on, saver) for side, saver in savers.items()}
    for saver in savers.values():
        close(saver)
