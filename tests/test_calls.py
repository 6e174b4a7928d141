"""Calls: how many Python calls of vstate an operation goes through. They do not depend on the machine.

A limit may only fall. `make calls` prints the counts, and the calls in their order with `WAY=commit`. No
function on these ways is long: a count does not fall by pasting functions together.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

import vstate
from vstate import Disk, Versioned

ROOT = Path(vstate.__file__).parent

LIMITS = {
    "commit": (82, 27),
    "memory": (68, 21),
    "update": (114, 27),
    "read": (39, 13),
    "step": (151, 29),
    "open": (78, 25),
    "put": (109, 26),
    "put_writes": (98, 26),
    "get": (27, 10),
    "first": (118, 21),
}
"""The most calls of an operation, and the most files that they are in."""


CHANCE = 3
"""Calls of work that falls into an operation now and then, such as the copy of the log."""

MOST_LINES = 40
"""Lines of code in the body of a function: without its signature, docstring, comments and empty lines."""


class Way(NamedTuple):
    """The calls of an operation in their order: depth, file and name; and the functions that were called."""

    calls: list[tuple[int, str, str]]
    functions: set[CodeType]

    @property
    def count(self) -> tuple[int, int]:
        """The number of calls, and of the files that they are in."""
        return len(self.calls), len({file for _, file, _ in self.calls})


def way_of(operation: Callable[[], object]) -> Way:
    calls: list[tuple[int, str, str]] = []
    functions: set[CodeType] = set()
    depth = 0

    def see(frame: Any, event: str, _: object) -> None:
        nonlocal depth
        depth += (event == "call") - (event == "return")
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT):
            calls.append((depth, str(file.relative_to(ROOT)), frame.f_code.co_qualname))
            functions.add(frame.f_code)

    sys.setprofile(see)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return Way(calls, functions)


def lines_in(function: CodeType) -> int:
    """The lines of code in its body."""
    source = textwrap.dedent(inspect.getsource(function))
    (made,) = ast.parse(source).body
    assert isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef)
    body = made.body[1:] if ast.get_docstring(made) is not None else made.body
    lines = source.splitlines()[body[0].lineno - 1 : body[-1].end_lineno]
    return sum(not line.strip().startswith("#") for line in lines if line.strip())


@contextmanager
def operations(directory: Path) -> Iterator[dict[str, Callable[[], object]]]:
    """The operations, warm: each was done before."""
    with ExitStack() as stack:
        disk = Disk(directory / "store")
        state = stack.enter_context(Versioned(disk))
        state.update({f"k/{i:05d}": {"n": i} for i in range(10_000)})
        state.commit("all")
        memory = stack.enter_context(Versioned())
        memory.update({f"k/{i:05d}": i for i in range(1000)})
        memory.commit("all")

        numbers = itertools.count(10_000)

        def commit() -> None:
            state["k/05000"] = {"n": next(numbers)}  # a value that nobody holds once it is set
            state.commit("x")

        def commit_to_memory() -> None:
            memory["k/00500"] = next(numbers)
            memory.commit("x")

        def count() -> None:
            counter.apply(lambda now: now.update(c=now.get("c", 0) + 1))

        def opened() -> None:
            with Versioned(Disk(directory / "store")):
                pass

        for i in range(20):
            state[f"k/{i * 7:05d}"] = {"n": -i}
            state.commit("x")
            memory[f"k/{i:05d}"] = -i
            memory.commit("x")
        run = stack.enter_context(stack.enter_context(Versioned(Disk(directory / "runs"))).run("r"))
        for _ in range(20):
            run.step(len, "x")
        fresh = stack.enter_context(Versioned(disk))
        counter = stack.enter_context(Versioned(Disk(directory / "counted")))
        counter.update({f"k/{i:05d}": i for i in range(10_000)})
        counter.commit("all")
        for _ in range(3):
            count()
        opened()
        assert fresh["k/00001"]
        found = {
            "commit": commit,
            "memory": commit_to_memory,
            "update": count,
            "read": lambda: fresh["k/07001"],
            "step": lambda: run.step(len, "x"),
            "open": opened,
        }
        yield found | _of_langgraph(directory, stack)


def _of_langgraph(directory: Path, stack: ExitStack) -> dict[str, Callable[[], object]]:
    base = pytest.importorskip("langgraph.checkpoint.base")
    from vstate.integrations.langgraph import VstateSaver

    saver = stack.enter_context(VstateSaver(directory / "threads"))

    def checkpoint(number: int) -> dict[str, Any]:
        values = {"messages": [f"m {k} " + "x" * 80 for k in range(number)], "step": number}
        made = base.empty_checkpoint() | {"id": f"1f0{number:05d}-0000-6000-8000-000000000000"}
        return made | {"channel_values": values, "channel_versions": {"messages": number, "step": number}}

    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

    def put(number: int) -> Any:
        metadata, versions = {"source": "loop", "step": number}, {"messages": number, "step": number}
        return saver.put(config, checkpoint(number), metadata, versions)

    cold: list[Any] = [{"configurable": {"thread_id": f"cold {n}", "checkpoint_ns": ""}} for n in range(3)]
    for each in cold:
        saver.put(each, checkpoint(5), {"source": "loop", "step": 5}, {"messages": 5, "step": 5})
    numbers = itertools.count(10)
    for number in range(1, 10):
        config = put(number)
        saver.put_writes(config, [("messages", "w")], f"t{number}")
    newest = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    other = stack.enter_context(VstateSaver(directory / "threads"))
    other.get_tuple(cold.pop())
    return {
        "put": lambda: put(next(numbers)),
        "put_writes": lambda: saver.put_writes(config, [("messages", "w")], f"t{next(numbers)}"),
        "get": lambda: saver.get_tuple(newest),
        "first": lambda: other.get_tuple(cold.pop()),
    }


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Way]:
    with operations(tmp_path_factory.mktemp("calls")) as found:
        ways = {name: way_of(operation) for name, operation in found.items()}
        for name, way in ways.items():
            if way.count[0] > LIMITS[name][0] + CHANCE:  # one commit of 256 writes a segment of the graph too
                ways[name] = way_of(found[name])
    return ways


def test_no_function_on_these_ways_is_long(ways: dict[str, Way]) -> None:
    """None has more lines of code than a page; so it stays, whatever the counts of calls."""
    functions = {each for way in ways.values() for each in way.functions if each.co_name.isidentifier()}
    assert not {each.co_qualname for each in functions if lines_in(each) > MOST_LINES}


def test_no_operation_takes_more_calls(ways: dict[str, Way]) -> None:
    """Each within its limit; a limit that is far above its count is lowered."""
    assert ways.keys() == LIMITS.keys()
    for name, (calls, files) in {name: way.count for name, way in ways.items()}.items():
        most_calls, most_files = LIMITS[name]
        assert calls <= most_calls + CHANCE, name
        assert files <= most_files, name
        assert calls >= most_calls - 5, f"{name} takes {calls} calls: lower its limit"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, operations(Path(directory)) as found:
        for name, operation in found.items():
            way = way_of(operation)
            print(f"{name:12} {way.count[0]:4} calls in {way.count[1]:3} files, of at most {LIMITS[name]}")
            if name in sys.argv[1:]:
                print(*("  " * depth + f"{called}  {file}" for depth, file, called in way.calls), sep="\n")
