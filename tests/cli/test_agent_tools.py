"""The tools that `vstate mcp` gives to agents, and the search for a text."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transcripts
from test_safety import Evil
from vstate_cli.commands.mcp import LONGEST, TOKEN, ToolFailure, Tools

from vstate import Disk, File, Memory, Versioned
from vstate.errors import InvalidInput
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects import tree
from vstate.repo import Repository
from vstate.repo.search import texts
from vstate.repo.search.texts import find_text


@pytest.fixture
def state() -> Versioned:
    state = Versioned(Memory())
    state["plan"] = {"goal": "Find the needle", "steps": ["look", "dig"]}
    state["chat/1"] = [{"role": "user", "content": "Where is the NEEDLE?"}]
    state.commit("begin", trace="4bf92f3577b34da6a3ce929d0e0e4736")
    state["chat/1"].append({"role": "assistant", "content": "In the haystack."})
    state["f/a.py"] = File(b"one\ntwo\x1b[31m\n", "executable")
    state.commit("answered")
    return state


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("log limit=1", "^<id> .HEAD -> main. answered"),
        ("log grep=TRACE:4bf9", "^<id> begin"),
        ("log grep=(", "^nothing$"),
        ("log key=plan patch=1", "^<id> begin"),
        ("diff key=chat/1", "In the haystack."),
        ("show rev=HEAD~1", "begin"),
        ("show key=f/a.py", r"^one / two\\x1b\[31m$"),
        ("diff key=f/a.py", r"^diff --git a/f/a.py b/f/a.py / new file mode 100755 / .* \+two\\x1b\[31m$"),
        ("show key=plan path=.goal", "^'Find the needle'$"),
        ("blame key=chat/1", "^<id> <time> begin .*<id> <time> answered "),
        ("search text=needle", r"^chat/1 \[0\].content: Where .*plan goal: .* 2 places in 3 keys$"),
        ("branches", r"^\* main <time> <id> answered$"),
        ("branches prefix=x", "^nothing$"),
        ("fork name=what-if at=HEAD~1", "^Created branch what-if at <id> begin$"),
        ("undo", "^main is at <id> begin "),
        ("remember name=users/ann/tea text=green", "^<id> remember users/ann/tea$"),
        ("remember name= text=green", "^failed: .*has a name"),
        ("recall", "^nothing$"),
        # A text that looks like an option is a revision, a key or a name, and a path needs a key.
        ("undo branch=main steps=5", "^failed: .*did not exist before"),
        ("log rev=--all", "^failed: "),
        ("log rev=-5", "^failed: "),
        ("diff old=--stat new=HEAD", "^failed: "),
        ("show rev=--json", "^failed: "),
        ("blame key=--json", "^failed: "),
        ("fork name=--delete at=main", "^failed: "),
        ("fork name=main", "^failed: .*already"),
        ("search text=", "^failed: "),
        ("show key=plan\x1b[31m", "^failed: .*no key"),
        ("show path=[0]", "^failed: .*give the key too"),
    ],
)
def test_the_tools_print_what_the_commands_print(state: Versioned, call: str, text: str) -> None:
    """Each tool gives the text of the command of its name, or fails in one line; no argument is an option."""
    name, *words = call.split(" ")
    given: dict[str, Any] = dict(word.split("=") for word in words)
    given |= {name: int(value) for name, value in given.items() if value.isdigit()}
    try:
        found = getattr(Tools(state.repo), name)(**given)
    except ToolFailure as failure:
        found = f"failed: {failure}"
        assert found.isprintable()
    assert re.search(text, transcripts.plain(found)), found


def test_a_list_of_branches_that_ends_early_says_so(state: Versioned) -> None:
    """A line says that there are more. A limit that lists nothing is refused, by each tool that has one."""
    state.create_branch("old", "HEAD~1")
    *listed, more = Tools(state.repo).branches(limit=1).splitlines()
    assert [line.split()[:2] for line in listed] == [["*", "main"]]
    assert more == "… more branches: ask for a longer prefix"
    tools = Tools(state.repo)
    for tool in (tools.log, tools.branches, tools.recall, partial(tools.search, "x")):
        with pytest.raises(ToolFailure, match="limit is 1 or more, not -1"):
            tool(limit=-1)


@pytest.mark.slow
def test_hostile_values_are_bounded(tmp_path: Path) -> None:
    """Nothing is unpickled, a long result ends at the limit, and control characters are escaped."""
    mark = tmp_path / "mark"
    state = Versioned(Memory())
    state["long"] = "\x1b[31m" + "lines\n" * 20_000
    state["many"] = {f"key {i}": "needle" for i in range(2_000)}
    shared: list[Any] = ["needle"]
    for _ in range(60):
        shared = [shared, shared]
    state["wide"] = shared
    state["evil"] = Evil(str(mark))
    state.commit("x" * 200_000)
    mark.rmdir()  # made by the commit, which tries the value
    tools = Tools(state.repo)
    results = [tools.log(), tools.log(patch=True), tools.diff("HEAD", "HEAD"), tools.show()]
    results += [tools.search("line")]
    results += [tools.show(key=key) for key in state] + [tools.blame(key) for key in state]
    results += [tools.search("needle", limit=2_000)]
    assert max(map(len, results)) > LONGEST
    assert max(map(len, results)) < LONGEST + 100
    assert not any("\x1b" in result for result in results)
    assert not mark.exists()


# Search


def test_a_search_says_where_and_how_far_it_came(state: Versioned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts in keys, names and values have a path. A search ends after some places, seconds or parts."""
    state["v"] = {"aim": 1789, "in": {("t", 1): {"deep AIM"}}, "long": "x" * 500 + "aim" + "y" * 500}
    head = state.commit()
    assert head is not None
    find = partial(find_text, state.repo, head)
    assert [(place.key, place.path) for place in find("NEEDLE", "p").places] == [("plan", "goal")]
    assert [(place.path, place.excerpt) for place in find("chat").places] == [(None, "chat/1")]
    assert [place.path for place in find("178").places] == ["aim"]
    aim, deep, long = find("aim").places
    assert (aim.path, aim.excerpt, deep.excerpt, long.path) == ("aim", "aim", "deep AIM", "long")
    assert long.excerpt == "…" + "x" * 60 + "aim" + "y" * 60 + "…"
    found = find("needle", most=1)
    assert (len(found.places), found.is_complete) == (1, False)
    assert not find("needle", seconds=-1).is_complete
    with pytest.raises(InvalidInput):
        find("")
    monkeypatch.setattr(texts, "MOST_PARTS", 2)
    assert find("absent").unread == 3


def test_a_search_goes_on_behind_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged value counts as unread. The time is looked at inside of a value too."""
    state = Versioned()
    state["a"], state["b"], state["c"] = "x" * 20_000, "aim", ["y"] * 1000
    commit = state.commit()
    assert commit is not None
    entry = state.repo.parse_entry("a", tree.lookup(state.repo.objects.node, commit.root, "a") or b"")
    state.store.delete(OBJECT_PREFIX + next(entry.links).id.hex())
    repo = Repository(state.store)
    found = find_text(repo, commit, "aim")
    assert [place.key for place in found.places] == ["b"]
    assert (found.keys, found.unread) == (3, 1)
    times = iter(range(1000))
    monkeypatch.setattr(texts, "monotonic", lambda: next(times))
    found = find_text(repo, commit, "absent", "c", seconds=50)
    assert (found.keys, found.is_complete) == (1, False)


# Over the protocol


def test_memories_come_back_with_the_commit_that_changed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By words or by the beginning of a name, newest text first; what a program stored there shows too."""
    state = Versioned(Memory())
    tools = Tools(state.repo)
    assert tools.recall() == "nothing"
    for name, text in (("ann/tea", "green\nno sugar"), ("ann/tea", "black\x1b[31m"), ("bob", "likes Tea")):
        tools.remember(name, text)
    assert tools.remember("bob", "likes Tea") == "it is there already\n"
    state.refresh()
    state["memories/by a program"], state["memories/no text"] = "told", {"a": 1}
    state.commit("set")
    found = transcripts.plain(tools.recall("TEA"))
    assert re.fullmatch(
        "ann/tea <id> remember ann/tea .* / bla.* / bob <id> remember bob .* / likes Tea", found
    )
    assert "\x1b" not in found
    assert "by a program" in tools.recall(name="by ")
    other = state.fork("other")
    other["memories/ann/tea"] = "white tea"
    other.commit("white")
    state["memories/bob"] = "likes tea no more"
    state.commit("no more")
    state.merge("other")
    merged = transcripts.plain(tools.recall("tea"))
    assert re.fullmatch("ann/tea <id> white .* / white tea / bob <id> no more .* / likes tea no more", merged)
    assert tools.recall("memories") == "nothing"
    monkeypatch.setattr("vstate_cli.commands.mcp.MOST_SECONDS", -1)
    assert "bob\n    likes tea no more\n… without a commit: changed earlier" in tools.recall("no more")
    assert tools.recall(limit=1).endswith("ask for a longer name, or for other words\n")
    assert [commit.message for commit in state.log() if "remember" in commit.message] == [
        "remember bob",
        "remember ann/tea",
        "remember ann/tea",
    ]


@pytest.mark.slow
def test_an_agent_remembers_over_http(tmp_path: Path) -> None:
    """A real server and the package's own client, which has the token; without it nobody is answered."""
    mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")
    httpx = pytest.importorskip("httpx2")
    streamable = pytest.importorskip("mcp.client.streamable_http")
    store, token = tmp_path / "store", "t" * 20
    command = [sys.executable, "-m", "vstate_cli", "-s", str(store), "mcp", "--http"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), TOKEN: token}
    with Versioned(store) as state:
        state["n"] = 1
        state.commit("begin")
    command += ["--allow-write", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            told = json.loads(server.stdout.readline())
            assert told["token"] == token
            refused = httpx.post(told["url"], json={})
            assert (refused.status_code, "Authorization: Bearer" in refused.text) == (401, True)
            with_token = {"Authorization": f"Bearer {token}"}
            assert httpx.post(told["url"], json={}, headers={**with_token, "Host": "evil"}).status_code == 421

            async def remember() -> list[str]:
                async with httpx.AsyncClient(headers=with_token, timeout=60) as http:
                    transport = streamable.streamable_http_client(told["url"], http_client=http)
                    async with mcp.Client(transport, read_timeout_seconds=60) as client:
                        calls = [
                            ("remember", {"name": "tea", "text": "green"}),
                            ("recall", {"text": "GREEN"}),
                        ]
                        results = [await client.call_tool(name, given) for name, given in calls]
                        return [result.content[0].text for result in results]

            kept, recalled = asyncio.run(remember())
        finally:
            server.send_signal(signal.SIGINT)
    assert "remember tea" in kept
    assert "green" in recalled
    with Versioned(store) as state:
        assert state["memories/tea"] == "green"


@pytest.mark.slow
def test_an_agent_reads_its_history_over_stdio(tmp_path: Path) -> None:
    """The client of the package mcp calls the tools of a real server, which writes only if it may."""
    mcp = pytest.importorskip("mcp", reason="the package mcp is not installed")
    store = tmp_path / "store"
    with Versioned(store) as state:
        state["plan"] = {"goal": "Find the needle", "steps": ["look"]}
        state.commit("begin")

    async def session(*options: str) -> tuple[set[str], list[Any]]:
        command = ["-m", "vstate_cli", "-s", str(store), "mcp", *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        server = mcp.StdioServerParameters(command=sys.executable, args=command, env=environment)
        async with mcp.Client(server, read_timeout_seconds=60) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            calls = [("log", {}), ("search", {"text": "needle"}), ("show", {"key": "nope"})]
            calls += [("log", {"revision": "HEAD"})]
            calls += [("fork", {"name": "what-if"}), ("undo", {"branch": "what-if"})]
            results = [await client.call_tool(name, arguments) for name, arguments in calls if name in names]
            return names, [(result.is_error, result.content[0].text) for result in results]

    names, results = asyncio.run(session())
    reading = {"log", "diff", "show", "blame", "search", "branches"}
    assert names == reading
    assert "begin" in results[0][1]
    assert results[1] == (False, "plan goal: Find the needle\n1 place in 1 key\n")
    assert results[2][0]
    assert "no key 'nope'" in results[2][1]
    assert results[3][0], "an argument of another name is refused"
    assert "revision" in results[3][1]
    with Disk(store) as disk:
        before = dict(disk.items())
    names, results = asyncio.run(session("--allow-write"))
    assert names == {*reading, "remember", "recall", "fork", "undo"}
    assert results[4][1].startswith("Created branch what-if")
    assert results[5][0], "the branch has no move before its creation"
    with Disk(store) as disk:
        assert set(Repository(disk).branches()) == {"main", "what-if"}
        assert dict(disk.items()).items() >= before.items()


@pytest.mark.slow
def test_an_interrupt_ends_a_server_that_waits_for_a_line(tmp_path: Path) -> None:
    """Ctrl-C ends the command at once, as a client's signal does."""
    pytest.importorskip("mcp", reason="the package mcp is not installed")
    Versioned(tmp_path / "store").close()
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    with subprocess.Popen(
        [sys.executable, "-m", "vstate_cli", "-s", str(tmp_path / "store"), "mcp"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        print(json.dumps(call), file=server.stdin, flush=True)
        assert "vstate" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == -signal.SIGINT


def test_options_of_http_need_http(vstate: Any) -> None:
    """A port without --http is an error, and no server that waits on standard input."""
    assert "go with --http" in vstate.run("mcp", "--port", "8123").stderr


def test_without_the_package_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, vstate: Any
) -> None:
    """`vstate mcp` fails with the name of the extra."""
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert "pip install '.[mcp]'" in vstate.fails("mcp")
