"""An agent that can be killed at any moment and goes on from there. Read this program first.

It has no language model: a fixed policy decides the next call. Its tools are real: they read the sources of
the Python standard library on this machine, to answer the question in GOAL. Every tool call is a `@task`, so
every call is one commit. All knowledge of the agent lives in one mapping, a `Versioned`:

    plan            a dataclass: its progress, the modules that it read, how many others need each module
    messages        a list that grows with every call
    seen            a set: the names of all modules met so far
    index           a dict: the name of a definition -> the modules that define it
    notes/<module>  a dict for each module that was read
    findings        the answer, once there is one

Nothing below says "save" or "load". The tasks edit lists, sets, dicts and the dataclass in place, and vstate
commits them.

    python research_agent.py --crash-at 23      call 23 is killed half-way, with SIGKILL
    python research_agent.py                    goes on with call 23
    vstate log                                  the calls, as commits
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vstate import Disk, Versioned, task

GOAL = "What is http.server made of, and how well is it documented?"
START = "http.server"
MODULES_TO_READ = 30
LIBRARY = Path(os.__file__).parent

State = MutableMapping[str, Any]


@dataclass
class Plan:
    """The agent's goal and progress; the policy looks at nothing else."""

    goal: str
    policy: str = "most needed first"
    calls: int = 1
    read: list[str] = field(default_factory=list)
    needed_by: Counter[str] = field(default_factory=Counter)
    reflected_after: int = 0
    finished: bool = False


# The tools read files and know nothing of the state.


def source_of(module: str) -> Path | None:
    """The file of a standard library module; None if the module is written in C or absent."""
    path = LIBRARY.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def examine(path: Path) -> dict[str, Any]:
    """The facts about one source file, found without running it."""
    with tokenize.open(path) as file:
        text = file.read()
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    definitions = [*functions, *(node for node in nodes if isinstance(node, ast.ClassDef))]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    imports = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imports |= {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) if node.module and not node.level
    }
    longest = max(lengths, key=lambda name: (lengths[name], name), default=None)
    return {
        "lines": text.count("\n"),
        "names": sorted({node.name for node in definitions}),
        "definitions": len(definitions),
        "documented": sum(ast.get_docstring(node) is not None for node in definitions),
        "marks": sum(text.count(mark) for mark in ("TODO", "XXX", "FIXME")),
        "longest": f"{longest} ({lengths[longest]})" if longest else "",
        "imports": sorted(imports),
    }


# The tasks. All changes of a call are in the state when the call returns, or none of them.


@task
def start(goal: str, *, state: State) -> str:
    """Write down the goal and the first module."""
    state["messages"] = [{"role": "user", "content": goal}]
    crash_if_due(1)
    state["plan"] = Plan(goal, needed_by=Counter({START: 1}))
    state["seen"] = {START}
    state["index"] = {}
    return goal


@task
def read(module: str, path: Path, *, state: State) -> str:
    """Read one module, take notes, and remember the modules that it imports."""
    plan, notes = state["plan"], examine(path)
    state[f"notes/{module}"] = notes
    for name in notes["names"]:
        state["index"].setdefault(name, []).append(module)
    said = f"{notes['lines']} lines, {notes['documented']} of {notes['definitions']} definitions documented"
    state["messages"].append({"role": "tool", "call": f"read {module}", "content": said})
    crash_if_due(plan.calls + 1)
    state["seen"].update(notes["imports"])
    plan.needed_by.update(notes["imports"])
    plan.read.append(module)
    plan.calls += 1
    return f"{module}: {said}"


@task
def reflect(*, state: State) -> str:
    """Sum up after five more modules."""
    plan = state["plan"]
    said = f"{len(plan.read)} modules read, {len(state['seen'])} met; most needed: {ranking(plan)[0]}"
    state["messages"].append({"role": "assistant", "content": said})
    crash_if_due(plan.calls + 1)
    plan.reflected_after = len(plan.read)
    plan.calls += 1
    return said


@task
def tabulate(*, state: State) -> str:
    """Turn the notes into a table with one row a module, the most needed first."""
    plan = state["plan"]
    state["findings"] = {"modules": []}
    for module in ranking(plan):
        notes = state[f"notes/{module}"]
        row = {key: notes[key] for key in ("lines", "definitions", "documented", "marks", "longest")}
        state["findings"]["modules"].append({"module": module, "needed by": plan.needed_by[module], **row})
    crash_if_due(plan.calls + 1)
    names = [name for name in state["index"] if not name.startswith("_")]
    names.sort(key=lambda name: (-len(state["index"][name]), name))
    state["findings"]["shared names"] = {name: len(state["index"][name]) for name in names[:5]}
    plan.calls += 1
    return f"{len(state['findings']['modules'])} rows"


@task
def answer(*, state: State) -> str:
    """Answer the question from the table."""
    plan, rows = state["plan"], state["findings"]["modules"]
    documented, definitions = (sum(row[key] for row in rows) for key in ("documented", "definitions"))
    said = (
        f"{START} leads to {len(state['seen'])} modules. The {len(rows)} that were read have "
        f"{sum(row['lines'] for row in rows):,} lines and lean most on {rows[0]['module']}; "
        f"{100 * documented // definitions}% of their {definitions:,} definitions are documented."
    )
    state["findings"]["answer"] = said
    crash_if_due(plan.calls + 1)
    state["messages"].append({"role": "assistant", "content": said})
    plan.finished = True
    plan.calls += 1
    return "answered"


@task
def change_policy(policy: str, *, state: State) -> None:
    """Choose the next module in another way from now on."""
    state["plan"].policy = policy


# The agent: a policy that looks at the plan and names the next call, and a loop that makes the calls.


def ranking(plan: Plan) -> list[str]:
    """The modules read so far, the most needed first."""
    return sorted(plan.read, key=lambda module: (-plan.needed_by[module], module))


def next_module(plan: Plan) -> tuple[str, Path]:
    """The next module to read: one that the agent met and has not read."""
    sources = {module: source_of(module) for module in plan.needed_by if module not in plan.read}
    found = [(module, path) for module, path in sources.items() if path is not None]
    if plan.policy == "smallest first":
        return min(found, key=lambda item: (item[1].stat().st_size, item[0]))
    return min(found, key=lambda item: (-plan.needed_by[item[0]], item[0]))


def next_call(state: State) -> Callable[[], str] | None:
    """The next call; None after the last. It follows from the state alone, so resuming needs no code."""
    if "plan" not in state:
        return lambda: start(GOAL, state=state)
    plan = state["plan"]
    if plan.finished:
        return None
    if len(plan.read) - plan.reflected_after == 5:
        return lambda: reflect(state=state)
    if len(plan.read) < MODULES_TO_READ:
        return lambda: read(*next_module(plan), state=state)
    if "findings" not in state:
        return lambda: tabulate(state=state)
    return lambda: answer(state=state)


def work(state: State, say: Callable[[str], None], every: int = 1) -> None:
    """Make calls until none is left, and say the result of each one whose number `every` divides."""
    while call := next_call(state):
        said = call()
        if state["plan"].calls % every == 0:
            say(f"  call {state['plan'].calls:2}  {said}")


crash_at = 0


def crash_if_due(call: int) -> None:
    """Kill the process if `call` is due. A task calls this half-way, between its edits."""
    if call == crash_at:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def show(findings: dict[str, Any]) -> None:
    """Print the top of the table, and the answer."""
    print(f"\n{'module':<18}{'needed by':>9}{'lines':>8}{'documented':>15}{'marks':>7}   longest function")
    for row in findings["modules"][:5]:
        documented = f"{row['documented']} of {row['definitions']}"
        numbers = f"{row['needed by']:>9}{row['lines']:>8,}{documented:>15}{row['marks']:>7}"
        print(f"{row['module']:<18}{numbers}   {row['longest']}")
    print(f"\nNames that most modules define: {', '.join(findings['shared names'])}")
    print(findings["answer"])


def main() -> None:
    global crash_at
    parser = argparse.ArgumentParser(description=GOAL)
    parser.add_argument("--store", default=".vstate", metavar="DIR", help="where the state lives (.vstate)")
    parser.add_argument("--crash-at", type=int, default=0, metavar="N", help="kill this process in call N")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="print the Nth, 2Nth, ... call only"
    )
    parser.add_argument("--quiet", action="store_true", help="print the results only")
    options = parser.parse_args()
    crash_at = options.crash_at
    say: Callable[[str], None] = (lambda line: None) if options.quiet else print

    with Disk(options.store) as store:
        state = Versioned(store, branch="main")
        done = state["plan"].calls if state.head else 0
        say(
            f"{GOAL}\n{done} calls are in {options.store}"
            + (f", as of commit {state.head.short}" if done else "")
        )
        work(state, say, options.every)
        show(state["findings"])

        # Would another choice ten calls ago have been better? The whole past is there: fork it and see.
        crash_at = 0
        policy = "smallest first"
        if "what-if" in state.branches():
            other = Versioned(store, branch="what-if")
        else:
            other = state.fork("what-if", at="main~10")
        if other["plan"].policy != policy:
            say(f"\nBack to call {other['plan'].calls}, and on from there on another branch, {policy}:")
            change_policy(policy, state=other)
        work(other, say, options.every)
        diff = state.diff("main", "what-if")
        print(f"\nThe branch what-if differs from main in {len(diff)} keys: {diff.stat()}")


if __name__ == "__main__":
    main()
