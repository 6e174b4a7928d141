"""LangGraph's savers with a coding agent's thread: the bytes that they store, and their processor time.

`python -m benchmarks.deltas` runs the agent with whole values in its checkpoints, and with `DeltaChannel`. A
turn has the shape that LangChain has measured: a question, a reply with tool calls, two files of 30 KB, a
tool result of 4 KB, and a reply of 20 KB. Each tenth turn has a tool result of 80 KB, which becomes a file.
The channel `messages` has the chat, and the channel `files` the files. No saver waits for the disk. The times
on PostgreSQL include the server's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph

from benchmarks.langgraph_threads import close, in_sqlite
from benchmarks.machine import file_system, machine, versions
from benchmarks.report import figure
from benchmarks.scale.report import put_into
from benchmarks.scale.stores import ProcessorTime
from benchmarks.servers import size_of_tables
from benchmarks.subjects import size_of
from benchmarks.values import messages
from vstate import Disk
from vstate.integrations.langgraph import VstateSaver

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from postgres_server import UNSYNCED, PostgresServer

RESULTS = Path(__file__).parent / "deltas.json"
TURNS = (20, 50, 100, 200)
EVERY = 50
LAST = 10
FIRSTS = 3
CONFIG: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}

SAVERS = {
    "SqliteSaver": False,
    "VstateSaver on Disk": False,
    "PostgresSaver": True,
    "VstateSaver on PostgreSQL": True,
}
"""By the name of each saver, whether it is on PostgreSQL."""


@cache
def text(number: int, length: int) -> str:
    """A text like one of a chat. Each number gives a text of its own."""
    return next(messages(number, length))["content"]


def added(old: Any, writes: Sequence[Any]) -> Any:
    """The reducer of both channels: it appends messages, and puts files under their names."""
    if isinstance(old, dict):
        return {name: value for each in (old, *writes) for name, value in each.items()}
    return [*old, *chain.from_iterable(writes)]


class Whole(TypedDict):
    """The agent's state. Each checkpoint has the whole value of a channel that changed."""

    messages: Annotated[list[Any], operator.add]
    files: Annotated[dict[str, Any], operator.or_]


class Deltas(TypedDict):
    """The agent's state. Checkpoints have the changes of a channel, and its whole value each 50 updates."""

    messages: Annotated[list[Any], DeltaChannel(added, snapshot_frequency=EVERY)]
    files: Annotated[dict[str, Any], DeltaChannel(added, snapshot_frequency=EVERY)]


STATES = {"whole values": Whole, "`DeltaChannel`": Deltas}


def agent(saver: Any, state: str) -> Any:
    """The agent as a graph of two nodes, `model` and `tools`."""

    def model(state: Any) -> Any:
        turn = sum(isinstance(message, HumanMessage) for message in state["messages"])
        if isinstance(state["messages"][-1], HumanMessage):
            calls: list[Any] = [
                {"name": name, "args": {"path": f"src/{turn}"}, "id": f"{name} {turn}"}
                for name in ("write", "run")
            ]
            return {"messages": [AIMessage("", tool_calls=calls)]}
        return {"messages": [AIMessage(text(turn, 20_000))]}

    def tools(state: Any) -> Any:
        turn = sum(isinstance(message, HumanMessage) for message in state["messages"])
        files = {f"src/{turn}/{part}.py": {"content": text(-turn - part, 30_000)} for part in (1, 2)}
        if turn % 10 == 0:
            files[f"large_tool_results/{turn}"] = {"content": text(turn, 80_000)}
        results = [("write", "written"), ("run", text(turn, 4_000))]
        return {
            "messages": [ToolMessage(found, tool_call_id=f"{name} {turn}") for name, found in results],
            "files": files,
        }

    built = StateGraph(STATES[state])
    built.add_node("model", model)
    built.add_node("tools", tools)
    built.add_edge(START, "model")
    built.add_conditional_edges(
        "model", lambda state: "tools" if state["messages"][-1].tool_calls else END, ["tools", END]
    )
    built.add_edge("tools", "model")
    return built.compile(checkpointer=saver)


def ask(graph: Any, turn: int) -> None:
    graph.invoke({"messages": [HumanMessage(f"Question {turn}")]}, CONFIG)


class Given(InMemorySaver):
    """A saver that counts the bytes that LangGraph gives it: new values of channels, checkpoints, writes."""

    bytes = 0

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        found = super().put(config, checkpoint, metadata, new_versions)
        versions = checkpoint["channel_versions"]
        for place, (_, blob) in [*self.blobs.items()]:
            if new_versions.get(place[2]) == place[3]:
                self.bytes += len(blob)
            elif versions.get(place[2]) != place[3] and place[2] in checkpoint["channel_values"]:
                del self.blobs[place]  # no state reads it again
        self.bytes += len(self.storage["1"][""][checkpoint["id"]][0][1])
        return found

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.bytes += sum(len(self.serde.dumps_typed(value)[1]) for _, value in writes)
        super().put_writes(config, writes, task_id, task_path)


@contextmanager
def opened(name: str, address: str) -> Iterator[Any]:
    """The saver of this name. `address` is its directory, or the URL of its database."""
    if name == "PostgresSaver":
        with PostgresSaver.from_conn_string(address) as saver:
            saver.setup()
            yield saver
        return
    if name == "SqliteSaver":
        found: Any = in_sqlite(Path(address))
        found.conn.execute("PRAGMA synchronous = OFF")
    else:
        found = VstateSaver(address if SAVERS[name] else Disk(address, durability="process"))
    yield found
    close(found)
    if name != "SqliteSaver":
        found.repo.store.close()  # so that no log counts as bytes


def first_state(name: str, address: str, state: str, turns: int, clock: ProcessorTime) -> float:
    """The processor time of `get_state` on a thread, in a process that has not read this thread before."""
    ask(warm := agent(InMemorySaver(), state), 1)
    warm.get_state(CONFIG)
    with opened(name, address) as saver:
        graph = agent(saver, state)
        graph.get_state({"configurable": {"thread_id": "another"}})
        start = clock()
        found = graph.get_state(CONFIG)
        spent = clock() - start
        assert len(found.values["messages"]) == 5 * turns
    return spent


def measured(name: str, address: str, state: str, turns: int, clock: ProcessorTime) -> dict[str, float]:
    """Run so many turns, and return the figures by the names in `TITLES`."""

    def size() -> float:
        return float(size_of_tables(address) if SAVERS[name] else size_of(Path(address)))

    samples = []
    with opened(name, address) as saver:
        graph = agent(saver, state)
        for turn in range(1, turns + 1):
            start = clock()
            ask(graph, turn)
            samples.append(clock() - start)
    found = {"bytes": size(), "turn": statistics.median(samples[-LAST:])}
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        firsts = [pool.apply(first_state, (name, address, state, turns, clock)) for _ in range(FIRSTS)]
    found["first"] = statistics.median(firsts)
    if name.startswith("Vstate"):
        with opened(name, address) as saver:
            saver.repo.gc()
        if SAVERS[name]:
            with psycopg.connect(address, autocommit=True) as sql:
                sql.execute("VACUUM FULL")
        found["after gc"] = size()
    return found


def given(state: str, turns: int) -> float:
    """The bytes that LangGraph gives to a saver in so many turns."""
    graph = agent(saver := Given(), state)
    for turn in range(1, turns + 1):
        ask(graph, turn)
    return float(saver.bytes)


def everything(scratch: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Measure each saver, with each state and number of turns.

    A row has one kind of figure of one saver: `what` is a name in `TITLES`.
    """
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}

    def take(what: str, name: str, state: str, turns: int, value: float) -> None:
        found.setdefault((what, name), {}).setdefault(state, {})[str(turns)] = value
        print(f"{turns:4} turns, {state:16} {name:26} {what}: {value:.6g}", flush=True)

    for state in STATES:
        for turns in sizes:
            take("given", "", state, turns, given(state, turns))
            for name, on_server in SAVERS.items():
                with tempfile.TemporaryDirectory(dir=scratch) as place:
                    if on_server:
                        with server_in(scratch) as server:
                            clock = ProcessorTime(server.process.pid)
                            figures = measured(name, server.dsn, state, turns, clock)
                    else:
                        figures = measured(name, place, state, turns, ProcessorTime())
                for what, value in figures.items():
                    take(what, name, state, turns, value)
    return [{"what": what, "saver": name, "figures": figures} for (what, name), figures in found.items()]


@contextmanager
def server_in(scratch: Path) -> Iterator[Any]:
    server = PostgresServer(scratch / "template", **UNSYNCED)
    try:
        yield server
    finally:
        server.stop()


TITLES = {
    "given": "bytes given to the saver",
    "bytes": "bytes stored",
    "after gc": "bytes stored, after `gc`",
    "turn": "processor time of a turn",
    "first": "processor time of the first state in a process",
}


def table(report: Mapping[str, Any]) -> str:
    """The figures as a table in Markdown. Each state and number of turns has a column."""
    sizes = report["turns"]
    states = [*STATES]
    heads = [f"{state}: {size}" if size == sizes[0] else str(size) for state in states for size in sizes]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    for what, title in TITLES.items():
        for row in report["rows"]:
            if row["what"] == what:
                unit: Any = "seconds" if what in ("turn", "first") else "bytes"
                found = row["figures"]
                cells = [figure(found[state].get(str(size)), unit) for state in states for size in sizes]
                lines.append(f"| {', '.join(filter(None, (title, row['saver'])))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deltas", description=__doc__)
    parser.add_argument("--turns", default=",".join(map(str, TURNS)), metavar="N,N", help="(20,50,100,200)")
    parser.add_argument("--json", type=Path, metavar="FILE", default=RESULTS, help=f"({RESULTS})")
    parser.add_argument("--page", type=Path, metavar="FILE", help="also put the table into this page")
    parser.add_argument(
        "--scratch", type=Path, default=Path("build/benchmarks"), metavar="DIR", help="make the stores in DIR"
    )
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    sizes = [*map(int, options.turns.split(","))]
    report = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(file_system(options.scratch)),
        "versions": versions(),
        "turns": sizes,
        "rows": everything(options.scratch, sizes),
    }
    options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(report))
    if options.page is not None:
        put_into(options.page, "deltas", table(report))


if __name__ == "__main__":
    main()
