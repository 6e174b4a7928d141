"""The page of the adapters: a test of each framework runs its examples."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from page import PAGE, examples, lines
from running import imported_packages

HERE = Path(__file__).parent
TESTS = "".join(path.read_text("utf-8") for path in HERE.glob("test_*.py"))


def test_each_example_is_run_by_a_test() -> None:
    """A test calls `example` for each program under each heading of the page."""
    programs = {(title, str(n or "")) for title, each in examples().items() for n in range(len(each))}
    assert set(re.findall(r'\bexample\("([^"]+)"(?:, (\d+))?', TESTS)) == programs


def test_the_commands_of_each_section_are_run_by_a_test() -> None:
    """A test calls `commands` for each heading with lines `$ vstate …`."""
    assert set(re.findall(r'\bcommands\("([^"]+)"\)', TESTS)) == lines().keys()


DISTRIBUTIONS = {
    "agent_framework": "agent-framework-core",
    "agents": "openai-agents",
    "agentscope": "agentscope",
    "agno": "agno",
    "burr": "apache-burr",
    "claude_agent_sdk": "claude-agent-sdk",
    "crewai": "crewai",
    "deepagents": "deepagents",
    "google": "google-adk",
    "key_value": "py-key-value-aio",
    "langgraph": "langgraph",
    "llama_index": "llama-index-core",
    "nontainer": "nontainer",
    "openai": "openai-agents",
    "pydantic_ai": "pydantic-ai-slim",
    "pydantic_ai_harness": "pydantic-ai-harness",
    "strands": "strands-agents",
    "workflows": "llama-index-workflows",
}
"""The distribution, or one that requires it, of each package that the page's programs import."""


def test_each_extra_brings_what_its_programs_import() -> None:
    """So does it for the whole agents that a section of the page leads to."""
    extras = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    seen = 0
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        named = re.search(r"\[([a-z-]+)\]'", section)
        if named is None:
            continue
        programs = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        programs += [
            (PAGE.parent / path).read_text("utf-8") for path in re.findall(r"\((examples/\w+\.py)", section)
        ]
        packages = set().union(*map(imported_packages, programs)) - sys.stdlib_module_names - {"vstate"}
        brought = {re.split(r"[<>=\[;]", requirement)[0] for requirement in extras[named[1]]}
        assert {DISTRIBUTIONS[package] for package in packages} <= brought, named[1]
        seen += bool(packages)
    assert seen > 7
