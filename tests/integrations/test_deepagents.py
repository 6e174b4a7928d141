"""Files of Deep Agents on vstate: commits of its tools, threads, a commit that fails."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from page import Commands, Example
from running import all_at_once

from vstate import InvalidInput, Memory, MergeConflict, Versioned, Workspace

pytest.importorskip("deepagents", reason="deepagents is not installed")

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from vstate.integrations.deepagents import VstateBackend


class Scripted(GenericFakeChatModel):
    """A model that gives these messages, whatever its tools are."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def scripted(*calls: tuple[str, dict[str, Any]]) -> Scripted:
    messages = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": str(n), "type": "tool_call"}])
        for n, (name, args) in enumerate(calls)
    ]
    return Scripted(messages=iter([*messages, AIMessage("done")]))


@pytest.fixture
def backend(tmp_path: Path) -> VstateBackend:
    return VstateBackend(Workspace(Versioned(Memory()), tmp_path / "project"))


def messages(backend: VstateBackend) -> list[str]:
    return [commit.message for commit in backend.workspace.state.log()]


def test_the_example_and_commands_of_the_docs(example: Example, commands: Commands) -> None:
    """The programs print the lines of their comments. The commands show the edits."""
    made = example("Deep Agents", model=scripted())
    made["state"].undo()
    made["state"].repo.store.close()
    example("Deep Agents", 1)
    log, diff, remembered = commands("Deep Agents")
    assert log.splitlines()[0].endswith("edit /notes.md  ~1")
    assert "-Call Bob.\n+Call Ann.\n" in diff
    assert [line.strip() for line in remembered.splitlines() if "Call" in line] == [
        "-Call Bob.",
        "+Call Ann.",
    ]


def test_the_tools_of_an_agent(backend: VstateBackend) -> None:
    """A run of an agent commits each change that its tools make, and none for a read."""
    path = {"file_path": "/a/notes.md"}
    calls = [
        ("write_file", {**path, "content": "one\ntwo\n"}),
        ("edit_file", {**path, "old_string": "two", "new_string": "TWO"}),
        ("read_file", path),
        ("ls", {"path": "/"}),
    ]
    agent = create_deep_agent(model=scripted(*calls), backend=backend)
    result = asyncio.run(agent.ainvoke({"messages": [("user", "go")]}))
    assert result["messages"][-1].content == "done"
    assert "TWO" in result["messages"][-4].content
    assert ".vstate" not in result["messages"][-2].content
    assert messages(backend) == ["edit /a/notes.md", "write /a/notes.md"]
    assert backend.workspace.at("HEAD")["a/notes.md"].text() == "one\nTWO\n"


def test_one_commit_a_call(backend: VstateBackend) -> None:
    """An upload is one commit of all its files; a call that changes nothing makes none."""
    backend.upload_files([("/a/one", b"1"), ("/two", b"2")])
    assert sorted(backend.workspace.at("HEAD")) == ["a/one", "two"]
    assert backend.write("/two", "2").error is None
    assert backend.edit("/two", "absent", "3").error
    assert backend.delete("/absent").error
    backend.delete("/a")
    assert messages(backend) == ["delete /a", "upload /a/one, /two"]


def test_the_own_directory_of_the_workspace_is_not_listed(backend: VstateBackend) -> None:
    """Lists and searches leave out the files by which a Workspace knows the edits."""
    backend.write("/notes.md", "text")
    assert [each["path"] for each in backend.ls("/").entries] == ["/notes.md"]
    assert [each["path"] for each in backend.glob("**/*").matches] == ["/notes.md"]


def test_no_call_destroys_the_whole_directory_or_what_the_workspace_knows(backend: VstateBackend) -> None:
    """The result is an error, whatever leads there, and nothing is changed; also not what no commit has."""
    place = Path(backend.workspace.directory)
    backend.write("/d/notes.md", "text")
    (place / ".env").write_text("KEY=1")
    (place / "self").symlink_to(".")
    before = sorted(place.rglob("*"))
    for path in ("/", "", ".", "/./", "//", "/d/..", "/self", "/.vstate-files", "/self/.vstate-files/index"):
        assert backend.delete(path).error, path
    for path in ("/.vstate-files/index", "/.Vstate-Files/new", "/self/.vstate-files/lock"):
        assert backend.write(path, "text").error
        assert backend.edit(path, "", "text").error
        assert backend.upload_files([(path, b"bytes")])[0].error == "invalid_path"
    assert sorted(place.rglob("*")) == before


def test_a_closed_workspace_takes_no_change(backend: VstateBackend, tmp_path: Path) -> None:
    """InvalidInput before a file is changed, for nothing would be committed; also after a fork's block."""
    backend.write("/notes.md", "one")
    with backend.workspace.fork("try", tmp_path / "elsewhere") as fork:
        forked = VstateBackend(fork)
    backend.workspace.state.close()
    for closed in (backend, forked):
        for change in (
            partial(closed.write, "/notes.md", "two"),
            partial(closed.edit, "/notes.md", "one", "two"),
            partial(closed.delete, "/notes.md"),
            partial(closed.upload_files, [("/notes.md", b"two")]),
        ):
            with pytest.raises(InvalidInput, match="closed"):
                change()
        assert closed.read("/notes.md").file_data["content"] == "one"


def test_edits_of_threads(backend: VstateBackend) -> None:
    """Edits of one file by threads follow one another: none is lost, and each is a commit."""
    backend.write("/list", "".join(f"<{n}>\n" for n in range(8)))
    all_at_once(*(lambda n=n: backend.edit("/list", f"<{n}>", "done") for n in range(8)))
    assert backend.read("/list").file_data["content"].split() == ["done"] * 8
    assert len(messages(backend)) == 9


def test_a_commit_that_fails(backend: VstateBackend) -> None:
    """The call raises, and the next commit has the edit."""
    state = backend.workspace.state
    backend.write("/notes.md", "one")
    Versioned(state.repo.store).apply(lambda other: other.update(x=1), message="elsewhere")
    state["x"] = 2
    with pytest.raises(MergeConflict):
        backend.write("/notes.md", "two")
    del state["x"]
    state.refresh()
    backend.write("/more.md", "more")
    assert backend.workspace.at("HEAD")["notes.md"].text() == "two"
