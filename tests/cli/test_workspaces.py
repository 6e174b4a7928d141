"""`vstate files`, and the verbs of the terminal, which take the files of workspaces along."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from folders import found_in, put

from vstate import Disk, File, Versioned, Workspace
from vstate.objects.canonical import encode_checked
from vstate.repo.rules.workspaces import note_workspace, workspaces

MOVES = {
    "rollback": ["rollback"],
    "reset": ["reset", "HEAD~1"],
    "undo": ["undo"],
    "revert": ["revert", "HEAD"],
    "switch": ["switch", "side"],
    "checkout of a branch": ["checkout", "side"],
    "checkout of a commit": ["checkout", "HEAD~1"],
    "checkout of a key": ["checkout", "HEAD~1", "--", "files/a"],
    "merge": ["merge", "side"],
    "cherry-pick": ["cherry-pick", "side"],
    "erase": ["erase", "files/a", "--yes"],
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two commits and a branch aside, and its workspace; no program has them open."""
    with Versioned(Disk(tmp_path / "store")) as state:
        files = Workspace(state, tmp_path / "files")
        put(tmp_path / "files", {"a": b"1", "gone": b"g"})
        state.commit("one")
        with files.fork("side", tmp_path / "side") as other:
            put(tmp_path / "side", {"s": File(b"s", "executable")})
            other.state.commit("side")
        put(tmp_path / "files", {"a": b"2", "gone": None})
        state.commit("two")
    return tmp_path / "store"


@pytest.fixture
def place(store: Path) -> Path:
    """The workspace of the store."""
    return store.parent / "files"


def head_of(place: Path) -> dict[str, File]:
    with Versioned(Disk(place.parent / "store")) as state:
        return {key.removeprefix("files/"): value for key, value in state.items("files/")}


@pytest.mark.parametrize("name", MOVES)
def test_a_verb_takes_the_files_along_and_no_edit(name: str, place: Path, vstate: Any) -> None:
    """The verb says so; while a file is edited, it refuses, and nothing moves."""
    before = found_in(place)
    put(place, {"a": b"edit"})
    assert "uncommitted changes of 'files/a'" in vstate.fails(*MOVES[name])
    assert found_in(place) == before | {"a": File(b"edit")}
    assert "Restored 1 file" in vstate("files", "restore", "HEAD", "--force")
    assert found_in(place) == before
    result = vstate.run(*MOVES[name])
    assert result.exit_code == 0, result.output
    assert f"the files in {place} went along" in result.stderr
    assert found_in(place) == head_of(place) != before
    result = vstate.run("switch", "main")
    assert result.exit_code == 0
    assert found_in(place) == head_of(place)
    assert vstate.json("files")[0]["branch"] == "main"


def test_erase_takes_the_files_of_every_branch_along(place: Path, vstate: Any) -> None:
    """The file goes from each directory of the branches. A dry run says so much, also beside an edit."""
    side = place.parent / "side"
    put(side, {"s": b"edit"})
    assert "would erase" in vstate("erase", "files/a", "--all-branches", "--dry-run")
    assert "uncommitted changes of 'files/s'" in vstate.fails("erase", "files/a", "--all-branches", "--yes")
    put(side, {"s": File(b"s", "executable")})
    result = vstate.run("erase", "files/a", "--all-branches", "--yes")
    assert f"the files in {side} went along" in result.stderr
    assert "a" not in found_in(place).keys() | found_in(side).keys()
    assert "~" not in vstate("files", "--directory", str(side))


def test_redo_takes_the_files_along(place: Path, vstate: Any) -> None:
    """After an undo, the files are again as they were."""
    before = found_in(place)
    vstate.run("undo")
    assert found_in(place) != before
    vstate.run("redo")
    assert found_in(place) == before


def test_two_agents_merge_texts_and_choose_in_the_terminal(place: Path, vstate: Any) -> None:
    """Lines that each changed alone are merged; for a line that both changed, the terminal names a side."""
    side, old = place.parent / "side", b"1\n2\n3\n4\n5\n"
    with Versioned(Disk(place.parent / "store")) as state, Workspace(state, place) as files:
        put(place, {"both": old, "mine": old, "yours": old})
        state.commit("texts")
        with files.fork("agent", side) as other:
            put(side, {"both": b"one\n2\n3\n4\n5\n", "mine": b"theirs\n", "yours": b"yours\n", "new": b"n"})
            other.state.commit("theirs")
        put(place, {"both": b"1\n2\n3\n4\nfive\n", "mine": b"mine\n", "yours": b"ours\n"})
        state.commit("ours")
    before = found_in(place)
    result = vstate.run("merge", "agent")
    assert result.exit_code == 1
    assert "conflict files/mine: both sides changed lines 1 to 5" in result.output
    assert "-1\n" in result.output
    assert "+theirs" in result.output
    assert "in conflict on 'files/mine', 'files/yours'" in result.stderr
    assert found_in(place) == before
    assert vstate.run("merge", "agent", "--ours", "files/mine", "--theirs", "files/yours").exit_code == 0
    texts = {"both": b"one\n2\n3\n4\nfive\n", "mine": b"mine\n", "yours": b"yours\n", "new": b"n"}
    assert found_in(place) == before | {name: File(text) for name, text in texts.items()}
    with Versioned(Disk(place.parent / "store"), branch="agent") as agent, Workspace(agent, side):
        agent.merge("main")
        assert found_in(side) == found_in(place)


def test_a_workspace_of_another_branch_stays(place: Path, vstate: Any) -> None:
    """A directory that was opened on a branch of its own does not go where HEAD goes."""
    aside = place.parent / "side"
    before = found_in(aside)
    vstate.run("rollback")
    assert found_in(aside) == before
    vstate.run("switch", "side")
    assert found_in(aside) == found_in(place) == before


def test_files_shows_restores_and_exports(place: Path, vstate: Any) -> None:
    """Each directory with its branch and edits; paths of a commit; all files of one in a new directory."""
    put(place, {"a": b"edit", "new": b"n", os.fsdecode(b"\xff"): b"x"})
    os.mkfifo(place / "fifo")
    shown = vstate("files").splitlines()
    assert shown[:4] == [f"{place} on main", "  + new", "  + %FF", "  ~ a"]
    listed = {each["directory"]: each for each in vstate.json("files")}
    assert listed[str(place)]["modified"] == ["a"]
    assert listed[str(place)]["added"] == ["new", "%FF"]
    assert listed[str(place)]["left_out"] == {"fifo": "a fifo"}
    assert listed[str(place.parent / "side")]["branch"] == "side"
    assert vstate.json("files", "-d", str(place.parent / "side")) == [listed[str(place.parent / "side")]]
    assert "is no workspace" in vstate.fails("files", "-d", "nowhere")
    assert "--force" in vstate.fails("files", "restore", "HEAD", "a")
    assert "did you mean: vstate files restore HEAD a?" in vstate.fails("files", "restore", "a")
    assert vstate.json("files", "restore", "HEAD~1", "gone", "a", "--force")["files"] == ["a", "gone"]
    assert found_in(place)["a"] == File(b"1")
    assert "No file differs" in vstate("files", "restore", "HEAD~1", "a")
    out = str(place.parent / "out")
    assert vstate.json("files", "export", "side", out) == {
        "directory": out,
        "files": ["a", "gone", "s"],
        "refused": {},
    }
    assert found_in(out) == found_in(place.parent / "side")
    assert sorted(os.listdir(out)) == ["a", "gone", "s"]
    assert "not empty" in vstate.fails("files", "export", "side", out)


def test_workspaces_that_are_not_here_are_named_only(place: Path, vstate: Any) -> None:
    """Those of other hosts and directories that are gone are listed, and no verb looks for them."""
    with Disk(place.parent / "store") as store:
        row = next(row for row in workspaces(store) if row.directory() == str(place))
        note_workspace(store, row._replace(host="elsewhere"))
    place.rename(place.parent / "moved")
    assert [each["here"] for each in vstate.json("files")] == [False, False, True]
    assert vstate.run("undo").stderr == ""
    assert "0 of the directories here" in vstate.fails("files", "restore", "HEAD")


def test_a_copy_of_a_store_leaves_the_directories_alone(place: Path, vstate: Any) -> None:
    """They go with the original, also after it is moved, and when it is brought back from a backup."""
    store, before = place.parent / "store", found_in(place)
    copy = shutil.copytree(store, place.parent / "copy")
    backup = shutil.copytree(store, place.parent / "backup")
    for command in (["rollback"], ["erase", "files/a", "--yes"]):
        assert vstate.run("-s", str(copy), *command).exit_code == 0
    assert found_in(place) == before
    store.rename(moved := place.parent / "moved")
    assert vstate.run("-s", str(moved), "rollback").exit_code == 0
    assert found_in(place) == (older := {"a": File(b"1"), "gone": File(b"g")})
    shutil.rmtree(moved)
    backup.rename(moved)
    assert [each["here"] for each in vstate.json("-s", str(moved), "files")] == [True, True]
    assert vstate.run("-s", str(moved), "rollback").exit_code == 0
    assert found_in(place) == older


def test_a_row_of_a_workspace_without_its_store(place: Path, vstate: Any) -> None:
    """Such a row has five fields, and counts as a row of this store."""
    with Disk(place.parent / "store") as store:
        for row in workspaces(store):
            store.set(row.key, encode_checked([*row[:5]]))
    assert vstate.run("rollback").exit_code == 0
    assert found_in(place) == {"a": File(b"1"), "gone": File(b"g")}


def test_fsck_finds_a_damaged_row_of_a_workspace(place: Path, vstate: Any) -> None:
    """A row that names no workspace is damage, and a repair moves it aside."""
    with Disk(place.parent / "store") as store:
        store.set("workspace/" + "0" * 32, b"rubbish")
    assert "workspace" in vstate.run("fsck").output
    assert vstate.run("fsck", "--repair").exit_code in (0, 1)
    assert vstate.run("fsck").exit_code == 0


def test_no_command_loads_a_value(place: Path, vstate: Any) -> None:
    """A pickle that would run code lies at the key of a file, and moves and restores go around it."""
    evil = place.parent / "evil"
    with Versioned(Disk(place.parent / "store")) as state:
        Workspace(state, place)
        state["files/evil"] = [File(b"x"), MakesDirectory(str(evil))]
        state.commit("three")
    evil.rmdir()  # the commit has loaded it once, to see that it loads
    out = str(place.parent / "out")
    lines = (["undo"], ["redo"], ["files"], ["files", "restore", "HEAD"], ["files", "export", "HEAD", out])
    for line in lines:
        assert vstate.run(*line).exit_code == 0
    assert not evil.exists()


class MakesDirectory:
    """A value whose loading makes a directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)
