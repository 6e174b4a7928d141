"""Readers: the branches of every adapter read as what they are, without the framework."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from click.testing import CliRunner
from counting import Counting
from integrations.adapters import ADAPTERS, Adapter, Saver
from starlette.testclient import TestClient
from vstate_cli.app import cli

from vstate import Disk, Versioned
from vstate.errors import ReadOnly
from vstate.readers.shown import Shown
from vstate.repo.repository import Repository
from vstate.values import recipes
from vstate.values.budget import Limits
from vstate.values.entry import encode_value
from vstate.viewer.asgi import application

SHOWN = {
    "agent_framework.VstateCheckpointStorage": "state/texts",
    "agent_framework.VstateHistoryProvider": "messages",
    "agentscope.VstateSession": "modules/module",
    "burr.VstatePersister": "texts",
    "claude_agent.VstateSessionStore": "messages",
    "crewai.VstateFlowPersistence": "texts",
    "crewai.VstateProvider": "texts",
    "google_adk.VstateSessionService": "messages",
    "key_value.VstateKeyValue": "value",
    "langgraph.VstateSaver": "messages",
    "llama_index.VstateChatStore": "messages",
    "llama_index.VstateStateStorage": "state",
    "openai_agents.VstateSession": "messages",
    "pydantic_ai.VstateConversationStore": "messages",
    "pydantic_ai_harness.VstateStepStore": "messages",
    "strands.VstateSessionRepository": "agents/a/messages",
}
"""For each adapter the key that shows the texts of its run."""

PLAIN = {"agentscope.VstateSession", "key_value.VstateKeyValue"}
"""The adapters whose keys read by themselves."""

FRAMEWORKS = (
    "agent_framework agents agentscope burr claude_agent_sdk crewai google.adk langchain_core langgraph "
    "kvgit llama_index nontainer ormsgpack pydantic_ai strands workflows"
)

PROGRAM = f"""
import json, sys
for name in {FRAMEWORKS.split()!r}:
    sys.modules[name] = None  # so that an import fails
from click.testing import CliRunner
from starlette.testclient import TestClient
from vstate import Disk
from vstate.repo.repository import Repository
from vstate.viewer.asgi import application
from vstate_cli.app import cli
from vstate_cli.commands.mcp import Tools
for path, lines in json.load(sys.stdin):
    store = Disk(path)
    repo = Repository(store)
    client = TestClient(application(repo), base_url="http://localhost")
    tools = {{each.__name__: each for each in Tools(repo).reading}}
    outcomes = []
    for kind, *words in lines:
        if kind == "view":
            found = client.get("/api/v1/" + words[0], params=words[1])
            outcomes.append([found.status_code - 200, found.text])
        elif kind == "mcp":
            outcomes.append([0, tools[words[0]](**words[1])])
        else:
            found = CliRunner().invoke(cli, [kind, *words, "--store", path])
            outcomes.append([found.exit_code, found.output])
    print(json.dumps(outcomes))
    store.close()
"""


def run(adapter: Adapter, path: str, texts: list[str]) -> tuple[str, str]:
    """A run of the adapter that stores these texts, step by step; a commit in the middle and the last one."""
    handle = adapter.open(path)
    for number in range(len(texts)):
        adapter.write(handle, "ann", texts[: number + 1], number)
    repo = getattr(handle, "repo", None) or handle("ann").repo
    commits = [*repo.log(max(repo.branches().values(), key=lambda commit: commit.order))]
    repo.store.close()
    return commits[len(commits) // 2].id, commits[0].id


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """For each adapter what commands, tools and pages say of a run, in a process without frameworks.

    They say it of the texts, of the last step, and of the rest. Or why the adapter cannot run here.
    """
    found: dict[str, Any] = {}
    runs = []
    for kind in ADAPTERS:
        try:
            adapter = kind()
        except pytest.skip.Exception as reason:
            found[kind.__name__] = str(reason)
            continue
        if adapter.name not in SHOWN:
            found[kind.__name__] = "each of its texts has a key of its own, which reads by itself"
            continue
        path, key = str(tmp_path_factory.mktemp("run") / "s"), SHOWN[adapter.name]
        first, rev = run(adapter, path, ["what is new?", "two cups of tea"])
        at = {"rev": rev, "key": key}
        whole = [["show", rev, key], ["blame", key, "--rev", rev], ["show", rev, key, "--json"]]
        whole += [["mcp", "show", at], ["mcp", "blame", at], ["view", "value", at], ["view", "blame", at]]
        step: list[list[Any]] = [["log", f"{first}..{rev}", "-p", "--json"], ["diff", first, rev]]
        step += [["mcp", "diff", {"old": first, "new": rev}]]
        step += [["mcp", "search", {"rev": rev, "text": "two cups"}], ["show", rev]]
        step += [["view", "diff", {"old": first, "new": rev, "key": key}]]
        others = [["ls", rev], ["log", rev], ["view", "commits", {"rev": rev}]]
        others += [["view", f"commits/{rev}", {}], ["ls", rev, "--raw"]]
        runs.append((adapter, path, [whole, step, others]))
    asked = json.dumps([(path, [*chain(*groups)]) for _, path, groups in runs])
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    for (adapter, _, groups), line in zip(runs, done.stdout.splitlines(), strict=True):
        outcomes = json.loads(line)
        assert [code for code, _ in outcomes] == [0] * len(outcomes), outcomes
        texts = iter([text for _, text in outcomes])
        found[type(adapter).__name__] = adapter.name, [[next(texts) for _ in group] for group in groups]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADAPTERS, ids=lambda kind: kind.__name__)
def test_each_adapter_reads(kind: type[Adapter], seen: dict[str, Any]) -> None:
    """Terminal, JSON, tools of an agent and viewer show a run's texts under a key that a person looks for."""
    if isinstance(seen[kind.__name__], str):
        pytest.skip(seen[kind.__name__])
    name, (whole, step, (*others, raw)) = seen[kind.__name__]
    for text in whole:
        assert "what is new?" in text
    for text in whole + step:
        assert "two cups of tea" in text
    for text in whole + step + others:
        assert "msgpack" not in text
        assert "vstate.reader" not in text
    assert SHOWN[name] in others[0].split("\n")
    assert ("vstate.reader" in raw.split("\n")) is (name not in PLAIN)


WRITES = ("writes", {"ns": "", "id": "1", "path": "", "task": "t", "writes": []})


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
        {
            "vstate.reader": "langgraph",
            "journal/000000000000": [WRITES] * 2,
            "journal/000000000001": [WRITES],
        },
    ],
    ids=["unknown reader", "no list", "no texts", "no fields", "no record", "two that were merged"],
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


@pytest.mark.parametrize("error", [RecursionError, pickle.PicklingError])
def test_a_state_that_is_too_deep_shows_as_stored(raw: Any, error: Any, monkeypatch: Any) -> None:
    """A forged record may be nested deeper than any pickler goes: each Python has its own error for that."""

    def encode(value: Any, known: Any) -> Any:
        if isinstance(value, dict):
            raise error("too deep")
        return encode_value(value, known)

    monkeypatch.setattr("vstate.readers.shown.encode_value", encode)
    items = [{"turn": 1, "usage": [1]}]
    with Disk(raw(**{"vstate.reader": "openai_agents", "items/000000000000": items})) as store:
        shown = Shown(Repository(store))
        assert shown.entry(shown.resolve("main").root, "items/000000000000") is not None
        assert "too deep" in shown.unread["openai_agents"]


def test_what_was_before_a_deletion_reads_too(tmp_path: Path) -> None:
    """A branch whose newest commit has no key shows the steps before it."""
    pytest.importorskip("langgraph.checkpoint")
    path = str(tmp_path / "s")
    _, rev = run(Saver(), path, ["one", "two"])
    with Disk(path) as store:
        repo = Repository(store)
        (branch,) = repo.branches()
        repo.commit(branch, delete=[key for key, _ in repo.entries(repo.resolve(rev).root)])
        assert [commit.message for commit in Shown(repo).log(branch)][1] == "step 1, end"


def test_a_shown_repository_writes_nothing(raw: Any) -> None:
    """What readers give is for reading: a commit on top of it is refused."""
    with Disk(raw()) as store:
        shown = Shown(Repository(store))
        with pytest.raises(ReadOnly):
            shown.commit("main", set={"plan": 2})
        assert shown.resolve("main").root == Repository(store).resolve("main").root


def test_a_thread_of_langgraph_reads_step_by_step(tmp_path: Path) -> None:
    """The subjects name nodes, messages, interrupts and resumes; the state has next nodes and questions."""
    graph = pytest.importorskip("langgraph.graph")
    types = pytest.importorskip("langgraph.types")
    from langchain_core.messages import AIMessage, HumanMessage

    from vstate.integrations.langgraph import VstateSaver

    def buy(state: Any) -> Any:
        call = {"id": "1", "name": "search", "args": {"q": "tea"}}
        return {"messages": [AIMessage("I found it", tool_calls=[call])], "left": 7}

    def approve(state: Any) -> Any:
        return {"messages": [AIMessage(f"you said {types.interrupt('approve?')}")]}

    def child(state: Any) -> Any:
        return {"messages": [AIMessage("from below")]}

    class State(graph.MessagesState):
        left: int

    below = graph.StateGraph(State).add_node(child)
    below.add_edge(graph.START, "child")
    builder = graph.StateGraph(State).add_node(buy).add_node(approve)
    builder.add_node("sub", below.compile(checkpointer=True))
    for before, after in ((graph.START, "buy"), ("buy", "approve"), ("approve", "sub")):
        builder.add_edge(before, after)
    config = {"configurable": {"thread_id": "ann"}}
    with VstateSaver(tmp_path / "s") as saver:
        compiled = builder.compile(checkpointer=saver)
        compiled.invoke({"messages": [HumanMessage("Buy tea")], "left": 10}, config)
        shown = Shown(saver.repo)
        asked = shown.resolve("threads/ann")
        stored = {key: shown.inspect(key, entry.raw) for key, entry in shown.entries(asked.root)}
        assert stored["left"] == 7
        assert len(stored["messages"]) == 2
        assert {name: stored["checkpoint"][name] for name in ("step", "next", "waits")} == {
            "step": 1,
            "next": ["approve"],
            "waits": ["approve?"],
        }
        compiled.invoke(types.Command(resume="yes"), config)
        subjects = [commit.message for commit in shown.log("threads/ann")]
        keys = [key for key, _ in shown.entries(shown.resolve("threads/ann").root)]
    assert set(subjects) >= {
        "input: 1 message · “Buy tea”, left=10",
        "buy: 1 message · “I found it”, left=7",
        "approve: waits: approve?",
        "resumes: yes",
        "approve: 1 message · “you said yes”",
        "step 1, next: approve",
        "sub/child: 1 message · “from below”",
        "step 3, end · assistant: “from below”",
    }
    assert {"left", "messages", "checkpoint", "sub/messages"} <= {*keys}


def test_a_delta_channel_reads_as_the_value_that_a_step_stored(tmp_path: Path) -> None:
    """It is a chat or a list, and a search finds each part. A join that waits for nothing more is next."""
    channels = pytest.importorskip("langgraph.channels")
    graph = pytest.importorskip("langgraph.graph")
    from langchain_core.messages import HumanMessage

    from vstate.integrations.langgraph import VstateSaver

    def added(old: list[Any], writes: list[list[Any]]) -> list[Any]:
        return [*old, *chain.from_iterable(writes)]

    whole = Annotated[list, channels.DeltaChannel(added, list, snapshot_frequency=1)]
    builder = graph.StateGraph(TypedDict("State", {"messages": whole, "log": whole}))
    for name in "abc":
        builder.add_node(name, lambda state: {"messages": [HumanMessage("hi")], "log": ["at", "the", "tea"]})
    builder.add_edge(graph.START, "a")
    builder.add_edge(graph.START, "b")
    builder.add_edge(["a", "b"], "c")
    path, config = str(tmp_path / "s"), {"configurable": {"thread_id": "ann"}}
    with VstateSaver(path) as saver:
        builder.compile(checkpointer=saver, interrupt_before=["c"]).invoke({"log": []}, config)
        waits = Shown(saver.repo).resolve("threads/ann").message
        builder.compile(checkpointer=saver).invoke(None, config)

    def told(*words: str) -> str:
        return CliRunner().invoke(cli, [*words, "--store", path]).stdout

    assert waits == "step 1, next: c"
    assert told("show", "threads/ann", "log") == f"{['at', 'the', 'tea'] * 3}\n"
    assert told("show", "threads/ann", "messages").startswith("3 messages\n[0] user  hi\n")
    assert "step 2, end · user: “hi”" in told("log", "threads/ann")
    assert told("grep", "the", "threads/ann").count("log [") == 3


class Far(Counting):
    remote = True


def test_a_long_thread_takes_few_round_trips(tmp_path: Path) -> None:
    """The segments of a journal come in batches: a subject and a state of 300 steps take 25 round trips."""
    pytest.importorskip("langgraph.checkpoint")
    path = str(tmp_path / "s")
    _, rev = run(Saver(), path, [f"text {number} " + "x" * 200 for number in range(300)])
    with Disk(path) as store:
        counted = Far(store)
        shown = Shown(Repository(counted))
        commit = shown.resolve(rev)
        assert commit.message == "step 299, end"
        entry = shown.entry(commit.root, "messages")
        assert entry is not None
        assert len([*Repository(store).view.keys("o/")]) > 300
        assert counted.trips <= 25
        assert len(str(shown.inspect("messages", entry.raw))) > 20_000


def test_commits_of_many_threads_are_read_where_they_lie(tmp_path: Path) -> None:
    """A walk back through threads reads no state, and no other room; their states need each segment once."""
    pytest.importorskip("langgraph.checkpoint")
    saver = Saver()
    with Disk(tmp_path / "s") as store:
        handle = saver.open(store)
        for number in range(3):
            for thread in range(40):
                saver.write(handle, f"t{thread}", [*"abc"[: number + 1]], number)
        counted = Counting(store)
        shown = Shown(Repository(counted))
        commits = [commit for name, _ in shown.newest_branches() for commit in shown.log(name)]
        assert len(commits) == 200
        walked = sum(counted.rows.values())
        assert walked <= 850
        assert all(commit.root is not None for commit in commits)
        assert sum(counted.rows.values()) - walked <= 240  # a tree each, and a segment of each thread


def test_an_encrypted_thread_reads_as_far_as_it_can(tmp_path: Path) -> None:
    """The channels keep their names and encrypted values, and the subjects are the stored messages."""
    encrypted = pytest.importorskip("langgraph.checkpoint.serde.encrypted")
    from langgraph.checkpoint.base import empty_checkpoint

    from vstate.integrations.langgraph import VstateSaver

    class Mirror:
        def encrypt(self, text: bytes) -> tuple[str, bytes]:
            return "mirror", text[::-1]

        def decrypt(self, name: str, text: bytes) -> bytes:
            return text[::-1]

    saver = VstateSaver(tmp_path / "s", serde=encrypted.EncryptedSerializer(Mirror()))
    config = {"configurable": {"thread_id": "ann", "checkpoint_ns": ""}}
    made = {**empty_checkpoint(), "channel_values": {"secret": ["a" * 50]}, "channel_versions": {"secret": 1}}
    with saver:
        config = saver.put(config, made, {"source": "loop", "step": 3}, {"secret": 1})
        saver.put_writes(config, [("secret", "b")], "task", "~__pregel_pull, buy")
        shown = Shown(saver.repo)
        head = shown.resolve("threads/ann")
        assert [commit.message for commit in shown.log(head)] == ["buy: secret (msgpack+mirror)", "loop 3"]
        keys = {key: shown.inspect(key, entry.raw) for key, entry in shown.entries(head.root)}
    assert keys["secret"][0] == "msgpack+mirror"
    assert keys.keys() == {"checkpoint", "secret", "pending/buy/secret"}


def test_a_forged_thread_costs_little(tmp_path: Path) -> None:
    """A value that repeats a part of the journal without end shows as it is stored, at once."""
    part = b"x" * 8000
    ranges = (0, len(part)) * 100_000  # 800 MB
    fields = {"ns": "", "id": "1", "parent": None, "metadata": ("null", b""), "checkpoint": ("null", b"")}
    fields["values"] = {"messages": (1, "utf-8", b"", ranges)}
    with Versioned(Disk(tmp_path / "s")) as state:
        state["vstate.reader"] = "langgraph"
        state["journal/000000000000"] = [("checkpoint", fields, ("bytes", part))]
        state.commit("forged")
        shown = Shown(state.repo)
        assert shown.entry(shown.resolve("main").root, "journal/000000000000") is not None
    assert "too many to show" in shown.unread["langgraph"]


def test_the_pairs_of_a_value_stay_in_a_merge() -> None:
    """Data of another serializer is moved as it is stored, and not as it is shown."""
    value = [("msgpack", b"\x91\x01"), ("utf-8", b"a")]
    assert recipes.read(pickle.dumps(value, 5), (), Limits()) == (value, True)


def test_a_change_in_the_viewer_shows_the_state(tmp_path: Path) -> None:
    """A rollback of a thread previews its channels. An edit of one is refused, and says why."""
    pytest.importorskip("langgraph.checkpoint")
    path = str(tmp_path / "s")
    _, rev = run(ADAPTERS[0](), path, ["one", "two", "three"])
    with Disk(path) as store:
        client = TestClient(application(Repository(store), write=True), base_url="http://localhost")
        branch = next(iter(Repository(store).branches()))
        body = {"branch": branch, "seen": rev, "rev": f"{rev}~3", "preview": True}
        changed = client.post("/api/v1/rollback", json=body).json()["changes"]["changes"]
        assert {"messages", "pending/messages"} <= {each["key"] for each in changed}
        edit = {"branch": "new", "rev": rev, "key": "messages", "path": "", "type": "str", "value": "x"}
        refused = client.post("/api/v1/edit", json=edit)
    assert refused.status_code == 404
    assert "only the program of the branch changes it" in refused.json()["error"]


def test_commands_name_a_commit_by_its_subject(tmp_path: Path) -> None:
    """A command that writes says what the newest step did, in the words of the log."""
    pytest.importorskip("langgraph.checkpoint")
    run(Saver(), path := str(tmp_path / "s"), ["one", "two"])
    with Disk(path) as store:
        (branch,) = Repository(store).branches()
    for line in (["branch", "-v"], ["tag", "v1", branch], ["switch", branch], ["status"]):
        result = CliRunner().invoke(cli, [*line, "--store", path])
        assert (result.exit_code, result.stderr) == (0, "")
        assert "step 1, end" in result.stdout
