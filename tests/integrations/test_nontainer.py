"""Workspaces of nontainer on vstate: two programs, merges, deletions, tags, and what loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vstate import CannotLoad, Disk, Memory
from vstate.readers.shown import Shown

pytest.importorskip("nontainer", reason="nontainer is not installed")

from nontainer import Workspace
from nontainer.errors import CommitNotFoundError, NotSupportedError, SessionIdError, WorkspaceError

from vstate.integrations.nontainer import VstateProvider


class Note:
    """A value of the program."""


def opened(store: Any, session: str = "ann", **options: Any) -> VstateProvider:
    return VstateProvider.open(store, session=session, **options)


def wrote(provider: VstateProvider, path: str, text: str) -> str:
    provider.fs.write(path, text.encode())
    head: str = provider.commit({"tool": "write"})
    return head


def test_a_session_in_the_log(example: Any, commands: Any) -> None:
    """The commands of the page name the files by their paths."""
    assert example("nontainer")["merged"].conflicts == ("/workspace/plan.md",)
    log, shown = commands("nontainer")
    assert "ws-git: a plan" in log
    assert "<<<<<<<" in shown


def test_two_programs_in_one_session() -> None:
    """Both changes stay. A file that both changed is refused, nothing is committed, and a refresh goes on."""
    store = Memory()
    one, two = opened(store), opened(store)
    wrote(one, "/a.txt", "one")
    wrote(two, "/b.txt", "two")
    assert sorted(two.fs.list("/")) == ["a.txt", "b.txt"]
    one.refresh()
    wrote(one, "/a.txt", "once more")
    head = one.head
    two.fs.write("/a.txt", b"late")
    with pytest.raises(WorkspaceError, match=r"files=\['a.txt'\]"):
        two.commit()
    assert two.branch_head("ann") == head
    two.refresh()
    assert two.fs.read("/a.txt") == b"once more"
    assert not two.dirty


def test_a_session_that_was_deleted(tmp_path: Path) -> None:
    """A program that had it open commits nothing, also if the session begins anew. No byte is left."""
    provider = opened(tmp_path / "s")
    wrote(provider, "/a.txt", "the secret of ann")
    other = opened(tmp_path / "s", "bob")
    VstateProvider.delete(tmp_path / "s", ["ann", "nobody"])
    anew = None
    for _ in range(2):
        with pytest.raises(WorkspaceError):
            wrote(provider, "/a.txt", "late")
        assert ("ann" in other.repo.branches) is (anew is not None)
        anew = opened(tmp_path / "s")
    assert anew is not None
    assert anew.fs.list("/") == []
    for each in (provider, other, anew):
        each.close()
    assert b"the secret of ann" not in b"".join(
        path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("session", ["a/b", "", " ", "ü☃", "..", "a\0"])
def test_no_session_begins_under_a_wrong_id(session: str) -> None:
    """The error comes before the first commit."""
    store = Memory()
    with pytest.raises(SessionIdError):
        opened(store, session)
    assert not opened(store).repo.branches.keys() - {"ann"}


def test_one_id_is_no_list_of_ids() -> None:
    """The sessions that are named by its characters stay."""
    store = Memory()
    for session in "kid":
        opened(store, session)
    with pytest.raises(TypeError, match=r"write \['kid'\]"):
        VstateProvider.delete(store, "kid")
    assert len(opened(store, "k").repo.branches) == 3


def test_what_loads() -> None:
    """A value of another class is stored. It loads only if the program allows its class."""
    store = Memory()
    provider = opened(store)
    provider.kv["__cache__/x"] = Note()
    provider.commit()
    with pytest.raises(CannotLoad):
        opened(store).kv["__cache__/x"]
    assert isinstance(opened(store, allow=[f"{__name__}.Note"]).kv["__cache__/x"], Note)


def test_a_merge() -> None:
    """A commit with two parents and markers. The cache stays as it is here, and apply undoes a change."""
    one = opened(Memory())
    wrote(one, "/a.txt", "first\nsecond\n")
    two = one.fork("bob")
    two.kv["__cache__/note"] = "bob's"
    theirs = wrote(two, "/a.txt", "first\nof bob\n")
    ours = wrote(one, "/a.txt", "first\nof ann\n")
    outcome = one.merge("bob", info={"why": "a test"})
    assert outcome.conflicts == ("/a.txt",)
    assert b"<<<<<<<" in one.fs.read("/a.txt")
    assert "__cache__/note" not in one.kv
    found = one.commit_at(outcome.commit)
    assert found.parents == (ours, theirs)
    assert found.info["why"] == "a test"
    assert one.merge("bob").commit == one.head  # nothing is new
    assert one.apply(outcome.commit, ours).merged
    assert one.fs.read("/a.txt") == b"first\nof ann\n"


def test_a_contested_key_stops_a_merge() -> None:
    """A key of no file that both sides set is named, and nothing is changed."""
    one = opened(Memory())
    two = one.fork("bob")
    for number, each in enumerate((one, two)):
        each.kv["setting"] = number
        each.commit()
    head = one.head
    assert one.merge("bob").conflicts == ("setting",)
    assert (one.head, one.kv["setting"]) == (head, 0)


def test_tags() -> None:
    """A tag of a session keeps its info, is a tag of the store, and opens a session that takes no commits."""
    provider = opened(Memory())
    head = wrote(provider, "/a.txt", "first")
    provider.tag("v1/beta", info={"by": "ann"})
    wrote(provider, "/a.txt", "second")
    assert provider.tags() == {"v1/beta": head}
    assert [*provider.repo.repo.tags()] == ["nontainer/ann/v1/beta"]
    assert provider.tag_info("v1/beta").info == {"by": "ann"}
    frozen = provider.at_tag("v1/beta")
    assert frozen.fs.read("/a.txt") == b"first"
    with pytest.raises(NotSupportedError):
        frozen.commit()
    provider.delete_tag("v1/beta")
    with pytest.raises(CommitNotFoundError):
        provider.at_tag("v1/beta")


def test_how_a_session_reads() -> None:
    """The files are shown by their paths, other keys as they are, and the rows of files not at all."""
    provider = opened(Memory())
    provider.kv["__vfs_no path"] = 1
    head = wrote(provider, "/d/ü.txt", "text")
    shown = Shown(provider.repo.repo)
    keys = [key for key, _ in shown.entries(shown.resolve(head).root)]
    assert keys == ["__vfs_no path", "files/d/ü.txt"]


def test_an_id_of_another_branch_is_none() -> None:
    """A commit is named by its id alone: a name could be one of any branch of the store."""
    provider = opened(Memory())
    for name in ("HEAD", "nontainer/ann", "0" * 64, "abc"):
        with pytest.raises(CommitNotFoundError):
            provider.files_at(name)


def test_keep_is_a_rule_for_sessions(tmp_path: Path) -> None:
    """`keep` holds for the branches of sessions."""
    opened(tmp_path / "s", keep="30d").close()
    with Disk(tmp_path / "s") as store:
        from vstate.repo.repository import Repository

        assert [*Repository(store).keeps()] == ["nontainer/*"]


def test_a_workspace_goes_on(tmp_path: Path) -> None:
    """A workspace that is opened again has its files, and the agent's own commits."""
    with Workspace(opened(tmp_path / "s")) as workspace:
        workspace.terminal("echo hello > a.txt")
        workspace.index.commit("first")
    with Workspace(opened(tmp_path / "s")) as workspace:
        assert workspace.terminal("cat a.txt").stdout == "hello\n"
        assert [each.info["message"] for each in workspace.index.log()] == ["first"]
