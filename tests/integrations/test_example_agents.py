"""The examples docs/examples/*_agent.py, as a reader of the docs runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from running import dull_messages, load_module, program, run_forked
from vstate_cli.app import cli

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def vstate(store: Path, *arguments: str) -> str:
    """The output of the command."""
    return CliRunner().invoke(cli, ["-s", str(store), *arguments], catch_exceptions=False).stdout


@pytest.mark.slow
def test_the_agent_of_langgraph_is_killed_resumed_forked_and_looked_at(tmp_path: Path) -> None:
    """A killed run goes on at its step, a fork has the steps before, and the command shows both."""
    pytest.importorskip("langgraph.graph", reason="langgraph is not installed: pip install langgraph")

    def run(*arguments: str, code: int = 0) -> list[str]:
        return run_forked(program(script, store, *arguments), code=code).splitlines()

    script = EXAMPLES / "langgraph_agent.py"
    load_module(script)  # its imports take seconds
    store = tmp_path / "threads"
    assert run("tea", "--die-in", "write", code=-9) == ["search: tea", "write: tea"]
    assert run("tea") == ["write: tea", "check: tea", "On tea: Tea comes from one plant."]
    forked = run("coffee", "--fork", "tea")
    assert forked[:3] == ["search: coffee", "write: coffee", "check: coffee"]
    assert forked[3] == "On coffee: Tea comes from one plant. checked Coffee comes from two plants."
    log = vstate(store, "log", "threads/tea", "--oneline")
    assert "step 3, end" in log
    assert "step -1 (input)" in log
    assert "Coffee comes from two plants." in vstate(store, "diff", "threads/tea", "threads/coffee")
    assert "Coffee" not in vstate(store, "show", "threads/tea", "notes")
    assert not dull_messages(store)
    assert "step 1" in vstate(store, "blame", "notes", "--rev", "threads/tea")


@pytest.mark.slow
def test_the_agent_of_openai_is_killed_resumed_forked_and_looked_at(tmp_path: Path) -> None:
    """A killed turn goes on at its tool, a fork has the turns before, and the command shows both."""
    pytest.importorskip("agents", reason="openai-agents is not installed")

    def run(*arguments: str, code: int = 0) -> list[str]:
        return run_forked(program(script, store, *arguments), code=code).splitlines()

    script = EXAMPLES / "openai_agent.py"
    load_module(script)  # its imports take seconds
    store = tmp_path / "chats"
    assert run("tea", "--crash-at", "2", code=-9) == ["search: tea", "check: tea"]
    assert run("tea") == ["check: tea", "Tea comes from one plant."]
    assert run("coffee")[2:] == ["Coffee comes from two plants."]
    other = ("water", "--branch", "other")
    assert run(*other, "--fork", "2", "--crash-at", "1", code=-9) == ["search: water"]
    assert run(*other) == ["search: water", "check: water", "Nobody knows."]
    log = vstate(store, "log", "openai/ann/main", "--oneline").splitlines()
    assert len(log) == 10
    assert [line.split(maxsplit=1)[1] for line in log[1:5]] == [
        "assistant: “Coffee comes from two plants.”  ~1",
        'assistant: check({"topic": "coffee"})  ~1',
        'assistant: search({"topic": "coffee"})  ~1',
        "user: “coffee”  ~1",
    ]
    assert not dull_messages(store)
    diff = vstate(store, "diff", "openai/ann/main", "openai/ann/other")
    assert "~ [6].content: 'coffee' -> 'water'" in diff
    assert "one plant" not in diff
    blame = vstate(store, "blame", "messages", "[8].output", "--rev", "openai/ann/main")
    assert blame.startswith(log[3].split()[0])
    assert "Coffee comes" in blame
