"""Readers: the branches of every adapter read as what they are, without the framework."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from integrations.adapters import ADAPTERS, Adapter
from vstate_cli.app import cli

from vstate import Disk, Versioned
from vstate.errors import ReadOnly
from vstate.readers.shown import Shown
from vstate.repo.repository import Repository

SHOWN = {
    "agent_framework.VstateCheckpointStorage": "state/texts",
    "agent_framework.VstateHistoryProvider": "messages",
    "agentscope.VstateSession": "modules/module",
    "burr.VstatePersister": "texts",
    "crewai.VstateFlowPersistence": "texts",
    "crewai.VstateProvider": "texts",
    "google_adk.VstateSessionService": "messages",
    "langgraph.VstateSaver": "messages",
    "llama_index.VstateChatStore": "messages",
    "llama_index.VstateStateStorage": "state",
    "openai_agents.VstateSession": "messages",
    "pydantic_ai.VstateConversationStore": "messages",
    "strands.VstateSessionRepository": "agents/a/messages",
}
"""For each adapter the key that shows the texts of its run."""

PLAIN = {"agentscope.VstateSession"}
"""The adapters whose keys read by themselves."""

FRAMEWORKS = (
    "agent_framework agents agentscope burr crewai google.adk langchain_core langgraph llama_index ormsgpack "
    "pydantic_ai strands workflows"
)

PROGRAM = f"""
import json, sys
for name in {FRAMEWORKS.split()!r}:
    sys.modules[name] = None  # so that an import fails
from click.testing import CliRunner
from vstate_cli.app import cli
for line in json.loads(sys.argv[1]):
    found = CliRunner().invoke(cli, line)
    print(json.dumps([found.exit_code, found.output]))
"""


def without_frameworks(*lines: list[str]) -> list[str]:
    """What these commands print in a process that can import no framework."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in outcomes] == [0] * len(lines), outcomes
    return [text for _, text in outcomes]


@pytest.fixture(params=ADAPTERS, ids=lambda kind: kind.__name__)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return request.param()  # type: ignore[no-any-return]


def run(adapter: Adapter, path: str, texts: list[str]) -> str:
    """A run of the adapter that stores these texts, step by step; its branch."""
    handle = adapter.open(path)
    for number in range(len(texts)):
        adapter.write(handle, "ann", texts[: number + 1], number)
    repo = getattr(handle, "repo", None) or handle("ann").repo
    branch = max(repo.branches().values(), key=lambda commit: commit.order)
    repo.store.close()
    return str(branch.id)


def test_each_adapter_reads(adapter: Adapter, tmp_path: Path) -> None:
    """The terminal and JSON show a run's texts under a key that a person looks for, and no stored record."""
    path, key = str(tmp_path / "s"), SHOWN[adapter.name]
    rev = run(adapter, path, ["what is new?", "two cups of tea"])
    words: list[list[str]] = [["log", rev], ["show", rev], ["show", rev, key], ["diff", f"{rev}~1", rev]]
    words += [["blame", key, "--rev", rev], ["ls", rev], ["ls", rev, "--raw"]]
    log, show, value, diff, blame, keys, raw = without_frameworks(
        *([*line, "--store", path] for line in words)
    )
    (document,) = without_frameworks(["show", rev, key, "--json", "--store", path])
    assert key in keys.split("\n")
    for text in (value, blame, document):
        assert "what is new?" in text
        assert "two cups of tea" in text
    assert "two cups" in show + diff
    for text in (log, show, value, diff, blame, keys, document):
        assert "msgpack" not in text
        assert "vstate.reader" not in text
    assert ("vstate.reader" in raw.split("\n")) is (adapter.name not in PLAIN)


@pytest.fixture
def raw(tmp_path: Path) -> Callable[..., str]:
    """A store whose main says that it has a reader."""

    def make(**keys: Any) -> str:
        path = str(tmp_path / "s")
        with Versioned(Disk(path)) as state:
            state.update(keys)
            state["plan"] = "stored"
            state.commit("as it was said")
        return path

    return make


@pytest.mark.parametrize(
    "keys",
    [
        {"vstate.reader": "of 2099"},
        {"vstate.reader": "langgraph", "journal/000000000000": "no records"},
        {"vstate.reader": "langgraph", "journal/000000000000": [("checkpoint", {"ns": 1})]},
        {"vstate.reader": "langgraph", "journal/000000000000": [("checkpoint", {"ns": "", "id": "1"})]},
        {"vstate.reader": "langgraph", "journal/000000000000": [(), 3]},
    ],
    ids=["unknown reader", "no list", "no texts", "no fields", "no record"],
)
def test_a_record_that_no_reader_reads_shows_as_stored(raw: Any, keys: dict[str, Any]) -> None:
    """A commit of a later vstate, or a malformed one, shows its stored keys and message, and why."""
    path = raw(**keys)
    result = CliRunner().invoke(cli, ["show", "main", "plan", "--store", path])
    assert result.exit_code == 0
    assert "stored" in result.stdout
    assert "could not read a commit" in result.stderr
    listed = CliRunner().invoke(cli, ["log", "main", "--store", path]).stdout
    assert "as it was said" in listed
    reason = CliRunner().invoke(cli, ["show", "main", "vstate.reader", "--store", path]).stdout
    assert "the stored keys are shown, because the reader failed" in reason


def test_a_shown_repository_writes_nothing(raw: Any) -> None:
    """What readers give is for reading: a commit on top of it is refused."""
    with Disk(raw()) as store:
        shown = Shown(Repository(store))
        with pytest.raises(ReadOnly):
            shown.commit("main", set={"plan": 2})
        assert shown.resolve("main").root == Repository(store).resolve("main").root
