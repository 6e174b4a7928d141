"""An agent on LangGraph whose threads vstate keeps: killed, resumed, forked, and looked at.

    pip install '.[langgraph]'
    python docs/examples/langgraph_agent.py ./threads tea --die-in write    # killed in its second step
    python docs/examples/langgraph_agent.py ./threads tea                   # goes on in that step
    python docs/examples/langgraph_agent.py ./threads coffee --fork tea     # another thread with tea's steps
    vstate -s ./threads log threads/tea --oneline
    vstate -s ./threads show threads/tea notes
    vstate -s ./threads diff threads/tea threads/coffee

The model is a function with fixed answers, so the example needs no network.
"""

from __future__ import annotations

import argparse
import operator
import os
import signal
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from vstate.integrations.langgraph import VstateSaver

ANSWERS = {"tea": "Tea comes from one plant.", "coffee": "Coffee comes from two plants."}


class State(TypedDict):
    """The channels of the graph."""

    topic: str
    notes: Annotated[list[str], operator.add]
    report: str


def build(saver: VstateSaver, die_in: str | None) -> Any:
    """The graph: search, write, check."""

    def step(name: str, state: State) -> None:
        print(f"{name}: {state['topic']}", flush=True)
        if name == die_in:
            os.kill(os.getpid(), signal.SIGKILL)

    def search(state: State) -> dict[str, Any]:
        step("search", state)
        return {"notes": [ANSWERS.get(state["topic"], "Nobody knows.")]}

    def write(state: State) -> dict[str, Any]:
        step("write", state)
        return {"report": f"On {state['topic']}: {' '.join(state['notes'])}"}

    def check(state: State) -> dict[str, Any]:
        step("check", state)
        return {"notes": ["checked"]}

    graph = StateGraph(State)
    for name, node in (("search", search), ("write", write), ("check", check)):
        graph.add_node(name, node)
    for before, after in ((START, "search"), ("search", "write"), ("write", "check"), ("check", END)):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


def main() -> None:
    """Run the agent on a topic, or go on where its last run was killed."""
    parser = argparse.ArgumentParser(description="A small agent on LangGraph.")
    parser.add_argument("store", help="a directory or a URL")
    parser.add_argument("topic", help="also the name of the thread")
    parser.add_argument("--fork", metavar="THREAD", help="begin with the steps of another thread")
    parser.add_argument("--die-in", metavar="STEP", help="search, write or check")
    given = parser.parse_args()
    config: Any = {"configurable": {"thread_id": given.topic}}
    with VstateSaver(given.store) as saver:
        if given.fork:
            saver.copy_thread(given.fork, given.topic)
        agent = build(saver, given.die_in)
        unfinished = agent.get_state(config).next
        result = agent.invoke(None if unfinished else {"topic": given.topic}, config, durability="sync")
    print(result["report"])


if __name__ == "__main__":
    main()
