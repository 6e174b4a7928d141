"""A Workspace: edits are staged changes, every move of the state moves the files, and no edit is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from folders import found_in, put
from soak import sized

from vstate import (
    Conflict,
    Disk,
    File,
    InvalidInput,
    Memory,
    MergeConflict,
    NotFound,
    StorageError,
    StoreUnavailable,
    UncommittedChanges,
    Versioned,
    Workspace,
    aio,
)
from vstate.repo.rules.workspaces import workspaces
from vstate.state.base import Companion
from vstate.workspace import directory as directory_module
from vstate.workspace.directory import Directory

Verb = Callable[[Versioned, Versioned], object]


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "project"


def as_at_head(state: Versioned, place: Path) -> bool:
    """Whether the directory has the files of HEAD, and nothing is uncommitted."""
    kept = {key.removeprefix("files/"): value for key, value in state.items("files/")}
    return found_in(place) == kept and not state.has_uncommitted


def test_edits_are_staged_changes(store: Memory, place: Path) -> None:
    """New, changed and deleted files are in status, diff, has_uncommitted and the next commit."""
    state = Versioned(store)
    files = Workspace(state, place)
    first = {"a": File(b"a"), "d/b": File(b"\0b", "executable"), "d/l": File(b"../../out", "link")}
    put(place, first)
    state["k"] = 1
    assert files.status().added == ["a", "d/b", "d/l"]
    assert state.has_uncommitted
    commit = state.commit("both")
    assert commit is not None
    assert dict(files.at("HEAD")) == first
    assert state.commit("nothing") is None
    put(place, {"a": b"A", "d/l": None, "d/b": File(b"\0b")})
    status = files.status()
    assert (status.modified, status.deleted) == (["a", "d/b"], ["d/l"])
    assert str(status).splitlines() == ["~ a", "~ d/b", "- d/l"]
    assert files.diff().modified == ["files/a", "files/d/b"]
    assert [*state.status()] == ["files/a", "files/d/b", "files/d/l"]
    assert state.commit("edits")
    assert as_at_head(state, place)
    assert len(files.at(commit.id)) == 3


def test_an_edit_of_equal_size_within_the_clocks_grain_is_found(store: Memory, place: Path) -> None:
    """A file that changes right after each commit, with the same size and mtime, is found each time."""
    state = Versioned(store)
    Workspace(state, place)
    for number in range(50):
        put(place, {"f": b"%09d" % number})
        os.utime(place / "f", ns=(0, 0))
        assert state.commit("edit"), number
        assert state["files/f"].data == b"%09d" % number


def test_a_sign_that_may_hide_an_edit_is_not_relied_upon(store: Memory, place: Path) -> None:
    """A file as new as the look at it is read again by the next look, until its mtime is older."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"old": b"o", "new": b"n"})
    os.utime(place / "old", ns=(0, 0))
    ahead = time.time_ns() + 10**12
    os.utime(place / "new", ns=(ahead, ahead))
    state.commit("one")
    index = files._directory.index
    assert (index.sign("old") is None, index.sign("new") is None) == (False, True)
    assert not files.status()
    assert index.sign("new") is None
    os.utime(place / "new", ns=(1, 1))
    assert not files.status()
    assert index.sign("new") is not None


def test_a_file_that_is_only_touched_is_no_change(store: Memory, place: Path) -> None:
    """Another mtime, or another inode with the same bytes, makes no commit and no status."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"f": b"same", "g": b"same"})
    state.commit("one")
    os.utime(place / "f", ns=(1, 1))
    put(place, {"g": None})
    put(place, {"g": b"same"})
    assert not files.status()
    assert state.commit("two") is None


def test_an_edit_that_is_taken_back_is_staged_no_more(store: Memory, place: Path) -> None:
    """What status has staged goes again with the edit: of a new, a changed and a deleted file."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a", "b": b"b"})
    state.commit("one")
    put(place, {"a": b"edit", "b": None, "new": b"n"})
    assert len(state.status()) == 3
    put(place, {"a": b"a", "b": b"b", "new": None})
    assert not state.has_uncommitted
    assert not files.status()
    assert "files/new" not in state


def test_a_value_that_the_program_sets_and_an_edit_are_both_kept(store: Memory, place: Path) -> None:
    """The value is committed, and the edit of the same file is an edit of it; a deleted file comes back."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a", "b": b"b"})
    state.commit("one")
    put(place, {"a": b"edit", "b": None})
    state["files/a"] = state["files/b"] = File(b"set")
    state.commit("two")
    assert state["files/a"] == state["files/b"] == File(b"set")
    assert found_in(place) == {"a": File(b"edit"), "b": File(b"set")}
    assert files.status().modified == ["a"]


def test_a_failed_transaction_leaves_the_files(store: Memory, place: Path) -> None:
    """Its keys are undone; edits of files, which it did not make alone, stay edits."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a"})
    assert state.has_uncommitted
    with pytest.raises(ZeroDivisionError):
        with state.transaction("fails"):
            state["k"] = 1
            put(place, {"a": b"edit", "b": b"b"})
            assert files.status().added == ["a", "b"]
            raise ZeroDivisionError
    assert "k" not in state
    put(place, {"a": b"edit again"})
    state.commit("both")
    assert dict(files.at("HEAD")) == found_in(place) == {"a": File(b"edit again"), "b": File(b"b")}


VERBS: dict[str, Verb] = {
    "rollback": lambda state, other: state.rollback("HEAD~1"),
    "reset": lambda state, other: state.reset("HEAD~2"),
    "undo": lambda state, other: state.undo(),
    "undo and redo": lambda state, other: (state.undo(), state.redo()),
    "switch": lambda state, other: state.switch("side"),
    "switch to a new branch": lambda state, other: state.switch("new", create=True),
    "merge": lambda state, other: state.merge("side"),
    "merge without a commit of its own": lambda state, other: state.merge("ahead"),
    "revert": lambda state, other: state.revert("HEAD"),
    "cherry_pick": lambda state, other: state.cherry_pick("side"),
    "refresh": lambda state, other: (_edit(other), state.refresh()),
    "a commit that lost its race": lambda state, other: (_edit(other), state.update(x=1), state.commit("x")),
    "apply": lambda state, other: (_edit(other), state.apply(lambda s: s.update(x=1))),
    "pull": lambda state, other: (_edit(other), state.pull(other.store)),
    "purge": lambda state, other: _purge(state),
    "a transaction": lambda state, other: _in_transaction(state),
    "a value that the program sets": lambda state, other: (
        state.update({"files/n/n": File(b"n")}),
        state.commit("x"),
    ),
}


def _edit(other: Versioned) -> None:
    other["files/a"] = File(b"other's")
    other["files/o/p"] = File(b"new", "executable")
    other.commit("theirs")


def _purge(state: Versioned) -> None:
    state.expire("files/c", 0.001)
    state.commit("soon over")
    time.sleep(0.01)
    state.purge()


def _in_transaction(state: Versioned) -> None:
    with state.transaction("both"):
        state["files/t"] = File(b"t")


@pytest.fixture
def with_history(store: Memory, place: Path) -> tuple[Versioned, Workspace]:
    state = Versioned(store)
    files = Workspace(state, place)
    for number, changed in enumerate(
        (
            {"a": b"1\n", "gone": b"g", "d/e/f": b"f", "x": File(b"x", "executable")},
            {"a": b"2\n", "gone": None, "d/e/f": None, "b": File(b"a", "link"), "x": File(b"x")},
            {"a": b"3\n", "c": b"c", "d": b"a file now"},
        )
    ):
        put(place, {"d/e/f": None} if number == 2 else {})
        if number == 2:
            os.removedirs(place / "d/e") if (place / "d/e").exists() else None
        put(place, changed)
        state.commit(f"{number}")
    with files.fork("side", place.parent / "side", "HEAD~1") as other:
        put(other.directory, {"s": b"s"})
        other.state.commit("side")
    with state.fork("ahead") as ahead:
        ahead["files/h"] = File(b"h")
        ahead.commit("ahead")
    return state, files


@pytest.mark.parametrize("verb", VERBS)
def test_every_move_of_the_state_moves_the_files(
    verb: str, with_history: tuple[Versioned, Workspace], place: Path, store: Memory
) -> None:
    """Afterwards the directory is as HEAD has it, with executable bits and links, and nothing is edited."""
    state, files = with_history
    VERBS[verb](state, Versioned(store))
    assert as_at_head(state, place)
    assert not files.status()
    assert [row.branch for row in workspaces(store) if row.directory() == files.directory] == [state.branch]
    again = Workspace(Versioned(store), place)  # the index on disk says the same
    assert again.state.commit("nothing") is None


MOVING = [verb for verb in VERBS if verb in ("reset", "undo", "switch", "merge", "revert", "cherry_pick")]


@pytest.mark.parametrize("verb", MOVING)
def test_no_move_overwrites_an_edit(
    verb: str, with_history: tuple[Versioned, Workspace], place: Path, store: Memory
) -> None:
    """UncommittedChanges names the files, and nothing moves until restore(force=True) drops the edits."""
    state, files = with_history
    before, at = found_in(place), state.head
    put(place, {"a": b"edit", "d": None, "n": b"new"})
    edited = found_in(place)
    with pytest.raises(UncommittedChanges) as caught:
        VERBS[verb](state, Versioned(store))
    assert caught.value.keys == ["files/a", "files/d", "files/n"]
    assert (found_in(place), state.head) == (edited, at)
    with pytest.raises(UncommittedChanges):
        files.restore()
    assert files.restore(force=True) == ["a", "d", "n"]
    assert found_in(place) == before
    VERBS[verb](state, Versioned(store))
    assert as_at_head(state, place)


def test_discard_does_not_drop_edits_of_files(with_history: tuple[Versioned, Workspace], place: Path) -> None:
    """discard() refuses while files have edits, but forgets other keys."""
    state, files = with_history
    put(place, {"a": b"edit"})
    state["k"] = 1
    state.discard("k")
    with pytest.raises(UncommittedChanges, match="restore"):
        state.discard()
    with pytest.raises(UncommittedChanges, match="restore"):
        state.discard("files/a")
    files.restore("a", force=True)
    state.discard()
    assert not state.has_uncommitted


def test_rollback_commits_edits_first(with_history: tuple[Versioned, Workspace], place: Path) -> None:
    """The edit is in a commit of its own before the rollback, so nothing is lost."""
    state, files = with_history
    put(place, {"a": b"edit"})
    state.rollback("HEAD~1")
    assert as_at_head(state, place)
    assert files.at("HEAD~1")["a"] == File(b"edit")


def test_two_workspaces_of_one_branch_merge(store: Memory, tmp_path: Path) -> None:
    """Each commit merges what the other has committed, both directories end alike, and no conflict loses."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    put(ours, {"a": b"a", "b": b"b"})
    one = Versioned(store, branch="main")
    Workspace(one, ours)
    one.commit("start")
    two = Versioned(store, branch="main")
    Workspace(two, theirs)
    assert found_in(theirs) == found_in(ours)
    put(ours, {"a": b"A"})
    put(theirs, {"b": b"B", "c/d": b"c"})
    one.commit("one")
    two.commit("two")
    one.refresh()
    assert found_in(theirs) == found_in(ours) == {"a": File(b"A"), "b": File(b"B"), "c/d": File(b"c")}
    one.set_policy("files/", "theirs")
    put(ours, {"a": b"A1"})
    put(theirs, {"a": b"A2"})
    one.commit("one")
    with pytest.raises(MergeConflict):
        two.refresh()
    assert found_in(theirs)["a"] == File(b"A2")
    two.commit("two")
    assert found_in(theirs)["a"] == two["files/a"] == File(b"A1")
    assert not two.has_uncommitted


def test_a_move_that_another_handle_did_not_end_is_ended(
    store: Memory, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks next brings the other files to that commit too, and takes none of them for an edit."""
    one, two = Versioned(store, branch="main"), Versioned(store, branch="main")
    files = Workspace(one, place)
    put(place, {"a": b"a", "b": b"b"})
    one.commit("one")
    two.refresh()
    Workspace(two, place)
    with one.fork("elsewhere") as other:
        other.update({"files/a": File(b"A"), "files/b": File(b"B")})
        other.commit("two")
    put_in_place = Directory._put
    left = iter([True, False])

    def interrupted(*arguments: Any) -> None:
        if not next(left):
            raise KeyboardInterrupt
        put_in_place(*arguments)

    monkeypatch.setattr(Directory, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        two.merge("elsewhere")
    monkeypatch.undo()
    assert found_in(place) == {"a": File(b"A"), "b": File(b"b"), ".vstate-new-1": File(b"B")}
    assert not files.status()
    assert found_in(place) == {"a": File(b"A"), "b": File(b"B")}
    assert not two.has_uncommitted
    assert one.refresh() == two.head
    assert found_in(place) == {"a": File(b"A"), "b": File(b"B")}


def test_the_directory_goes_on_when_it_is_opened_again(store: Memory, place: Path) -> None:
    """Unedited files are brought to the branch's newest commit, and conflicting edits are named and kept."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a", "b": b"b", "c": b"c"})
    state.commit("one")
    files.close()
    state["files/a"], state["files/b"] = File(b"A"), File(b"B")
    state.commit("two")
    put(place, {"b": b"edit", "c": b"edit too"})
    with pytest.raises(UncommittedChanges) as caught:
        Workspace(Versioned(store), place)
    assert caught.value.keys == ["files/b"]
    assert found_in(place)["a"] == File(b"a")
    put(place, {"b": b"b"})
    again = Workspace(Versioned(store), place)
    assert found_in(place) == {"a": File(b"A"), "b": File(b"B"), "c": File(b"edit too")}
    assert again.status().modified == ["c"]
    again.close()
    stale = Versioned(store)
    state["files/c"] = File(b"C")
    head = state.commit("three")
    Workspace(Versioned(store), place, force=True)
    assert found_in(place)["c"] == File(b"C")
    Workspace(stale, place)  # takes no other program's files back
    assert (stale.head, found_in(place)["c"]) == (head, File(b"C"))


def test_a_place_that_can_be_no_directory_is_refused(store: Memory, tmp_path: Path) -> None:
    """A file, nothing, and a name below a file raise InvalidInput, and the state has no Workspace then."""
    (tmp_path / "file").write_bytes(b"x")
    state = Versioned(store)
    for place in (tmp_path / "file", "", tmp_path / "file" / "below"):
        with pytest.raises(InvalidInput, match="needs a directory"):
            Workspace(state, place)
    assert not Workspace(state, tmp_path / "project").status()


def test_a_move_whose_files_fail_says_that_the_branch_may_have_moved(store: Memory, place: Path) -> None:
    """Once the fault is mended, a look at the status brings the files to the branch."""
    state = Versioned(store)
    files = Workspace(state, place)
    for text in (b"1", b"2"):
        put(place, {"a": text})
        state.commit(text.decode())
    (place / ".vstate-files" / "index.new").mkdir()
    with pytest.raises(StorageError, match="whether the branch has moved"):
        state.rollback()
    assert state.head.message.startswith("Rollback")
    (place / ".vstate-files" / "index.new").rmdir()
    assert not files.status()
    assert found_in(place) == {"a": File(b"1")}


def test_a_lost_index_loses_no_edit(store: Memory, place: Path) -> None:
    """Without the index, or with a damaged one, what differs from HEAD is an edit."""
    for damage in (b"", b"\x94rubbish", None):
        state = Versioned(store)
        files = Workspace(state, place)
        put(place, {"a": b"a"})
        state.commit("one")
        files.close()
        put(place, {"a": b"edit"})
        index = place / ".vstate-files" / "index"
        index.unlink() if damage is None else index.write_bytes(damage)
        again = Workspace(Versioned(store), place)
        assert found_in(place) == {"a": File(b"edit")}
        assert again.status().modified == ["a"]
        again.restore(force=True)


def test_an_index_that_is_deleted_meanwhile_costs_a_look(store: Memory, place: Path) -> None:
    """As by `git clean -fdx`: the state knows at which commit the files are."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a", "b": b"b", "c": b"c"})
    state.commit("one")
    shutil.rmtree(place / ".vstate-files")
    put(place, {"a": b"edit", "b": None})
    assert (files.status().modified, files.status().added) == (["a"], [])
    state.commit("two")
    assert found_in(place)["a"] == File(b"edit")
    assert not files.status()


def test_refresh_follows_a_directory_to_another_branch(store: Memory, place: Path) -> None:
    """Another state has switched HEAD and the files: an edit of them is none of this state's branch."""
    state, other = Versioned(store), Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a"})
    state.commit("one")
    other.refresh()
    Workspace(other, place)
    other.switch("side", create=True)
    other["files/a"] = File(b"side's")
    other.commit("two")
    put(place, {"a": b"edit"})
    with pytest.raises(Conflict, match="another program has moved"):
        state.commit("on the wrong branch")
    state.refresh()
    assert (state.branch, files.status().modified) == ("side", ["a"])
    state.commit("edit")
    assert as_at_head(state, place)


def test_gc_may_remove_the_commit_of_the_directory(store: Memory, place: Path) -> None:
    """If the commit where the files were is gone, unedited files go on, and every edit is in doubt."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a" * 500, "b": b"b" * 500, "e": b"e" * 500})
    state.commit("one")
    files.close()
    other = Versioned(store)
    other["files/a"] = File(b"A" * 500)
    del other["files/b"]
    other.commit("two")
    other.repo.squash("main")
    other.repo.gc(keep_reflog="0s", grace="0s")
    put(place, {"e": b"edit"})
    with pytest.raises(UncommittedChanges, match="files/e"):
        Workspace(Versioned(store), place)
    put(place, {"e": b"e" * 500})
    Workspace(Versioned(store), place)
    assert found_in(place) == {"a": File(b"A" * 500), "e": File(b"e" * 500)}


def test_status_says_what_is_left_out(store: Memory, place: Path) -> None:
    """Sockets, fifos, git repositories and stores are named; ignored files are not, and tracked ones stay."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(
        place,
        {"sub/.git": b"gitdir: x", "sub/x": b"x", ".git/config": b"c", "st/vstate.db": b"", "st/y": b"y"},
    )
    put(place, {"in/i": b"i"})
    Workspace(Versioned(Memory()), place / "in")
    put(
        place, {".gitignore": b"*.o\n/build/\n", "d/.gitignore": b"!keep.o\n", "d/.vstateignore": b"secret\n"}
    )
    put(
        place,
        {"x.o": b"", "d/keep.o": b"k", "d/drop.o": b"", "d/secret": b"", "build/a/b": b"", "d/build/c": b"c"},
    )
    os.mkfifo(place / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(place)
        bound.bind("sock")
        os.chdir(here)
    status = files.status()
    assert status.added == [".gitignore", "d/.gitignore", "d/.vstateignore", "d/build/c", "d/keep.o"]
    assert status.left_out == {
        ".git": "git's own", "fifo": "a fifo", "sock": "a socket",
        "in/": "another workspace", "st/": "a vstate store", "sub/": "a git repository",
    }  # fmt: skip
    state.commit("one")
    put(place, {"d/.gitignore": b"keep.o\n", "d/keep.o": b"tracked", "d/.git/HEAD": b"git init"})
    assert files.status().modified == ["d/.gitignore", "d/keep.o"]


NAMES = [
    "a b", "ä", "a\u0308", "100%", "%41", "new\nline", "tab\t", "日本", "-", "a\\b", '"', "é/è", "\x7f",
    os.fsdecode(b"\xff\xfe"), os.fsdecode(b"dir\xe9/f\xc3"), "x" * 255,
]  # fmt: skip


def test_names_of_every_kind_are_kept_exactly(store: Memory, tmp_path: Path) -> None:
    """Also those that are not UTF-8, and those that look like the quoting of such."""
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, {name: os.fsencode(name) for name in NAMES})
    put(one, {"l": File(b"bad\xff", "link")})
    state = Versioned(store)
    files = Workspace(state, one)
    state.commit("names")
    Workspace(Versioned(store), two)
    assert found_in(one) == found_in(two)
    assert len(found_in(two)) == len(NAMES) + 1
    assert dict(files.at("HEAD")) == found_in(two)
    assert "files/%FF%FE" in state
    assert not files.status().refused


HOSTILE = [
    "..", "../evil", "a/../../evil", "/evil", "//evil", "a//b", "", ".", "a/.", "x\0y",
    ".git/config", ".GIT/config", "sub/.git/hooks/x", ".gi\u200ct/config", ".git./config", "git~1/x",
    ".vstate-files/index", ".vstate-new-0", "vstate.db", ".vstate/vstate.db", "VSTATE.DB-wal",
    "%2E%2E/evil", "%C3%A9", "a%2Fb", "%41", "%ff", "link/evil", "link/sub/evil", "there/evil", "up/evil",
    "store/evil", "y" * 300,
]  # fmt: skip


def test_a_hostile_store_cannot_write_outside(store: Memory, tmp_path: Path) -> None:
    """Names that climb out, or belong to git or vstate, are refused, and so is every way through a link."""
    outside, place = tmp_path / "outside", tmp_path / "in" / "project"
    put(outside, {"keep": b"k", "sub/keep": b"k"})
    put(
        place,
        {"there": File(os.fsencode(outside), "link"), "store/vstate.db": b"s", "up": File(b"..", "link")},
    )
    author = Versioned(store)
    author["files/ok"] = File(b"ok")
    author["files/link"] = File(os.fsencode(outside), "link")
    author["files/up"] = File(b"..", "link")
    for name in HOSTILE:
        author[f"files/{name}"] = File(b"evil")
    author["files/object"] = {"no": "file"}
    author.commit("hostile")
    files = Workspace(Versioned(store), place)
    assert found_in(outside) == {"keep": File(b"k"), "sub/keep": File(b"k")}
    assert sorted(os.listdir(tmp_path / "in")) == ["project"]
    assert found_in(tmp_path / "in")["project/ok"] == File(b"ok")
    assert {*found_in(place)} == {"ok", "link", "there", "up", "store/vstate.db"}
    refused = files.status().refused
    assert {*refused} == {*(f"files/{name}" for name in HOSTILE), "files/object"}
    assert all(refused.values())
    assert files.state.commit("nothing but the link that is new here")
    assert {*files.state.checkout("HEAD").keys()} >= {f"files/{name}" for name in HOSTILE}


def test_twins_are_refused_where_the_file_system_folds_names(
    store: Memory, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two names that such a file system takes for one, the first is written, and the other named."""
    monkeypatch.setattr(Directory, "_folds", lambda self: True)
    author = Versioned(store)
    for name in ("A", "a", "d/é", "d/e\u0301", "D/x"):
        author[f"files/{name}"] = File(name.encode())
    author.commit("twins")
    files = Workspace(Versioned(store), place)
    assert {*found_in(place)} == {"A", "D/x", "d/e\u0301"}
    assert {*files.status().refused} == {"files/a", "files/d/é"}


def test_a_directory_in_the_way_is_never_deleted(store: Memory, place: Path) -> None:
    """A file whose place a directory with files of its own has is refused; an empty directory gives way."""
    state = Versioned(store)
    put(place, {"d/mine": b"m"})
    (place / "e").mkdir(parents=True)
    state["files/d"] = state["files/e"] = File(b"file")
    state.commit("one")
    files = Workspace(state, place)
    assert found_in(place) == {"d/mine": File(b"m"), "e": File(b"file")}
    assert {*files.status().refused} == {"files/d"}


def test_restore_brings_files_of_any_commit(with_history: tuple[Versioned, Workspace], place: Path) -> None:
    """Of the paths given, or all; what differs from HEAD is an edit then, and the state stays."""
    state, files = with_history
    at = state.head
    assert files.restore("a", rev="HEAD~2") == ["a"]
    assert files.status().modified == ["a"]
    with pytest.raises(NotFound, match="nowhere"):
        files.restore("nowhere")
    with pytest.raises(UncommittedChanges, match="files/a"):
        files.restore("a")
    assert files.restore("a", force=True) == ["a"]
    put(place, {"d": None})
    with pytest.raises(UncommittedChanges, match="files/d"):
        files.restore("d")
    files.restore("d", force=True)
    assert files.restore(rev="HEAD~2") == ["a", "b", "c", "d", "d/e/f", "gone", "x"]
    assert found_in(place) == dict(files.at("HEAD~2"))
    assert state.head == at
    state.commit("as before")
    assert as_at_head(state, place)


def test_fork_is_a_branch_with_a_directory_of_its_own(
    with_history: tuple[Versioned, Workspace], place: Path, tmp_path: Path
) -> None:
    """Two agents work in two directories, and a merge brings the work together."""
    state, files = with_history
    before = found_in(place)
    with files.fork("try", tmp_path / "try") as other:
        assert found_in(other.directory) == before
        put(other.directory, {"c": b"tried\n"})
        put(place, {"b": b"went on\n"})
        other.state.commit("try")
        state.commit("on")
    state.merge("try")
    assert found_in(place) == before | {"b": File(b"went on\n"), "c": File(b"tried\n")}
    assert "Workspace" in repr(files)


def test_what_a_closed_workspace_left_is_no_loss(store: Memory, place: Path, recwarn: Any) -> None:
    """Closing the state warns of keys, and not of edits that stay in the directory."""
    state = Versioned(store)
    files = Workspace(state, place)
    put(place, {"a": b"a"})
    assert state.has_uncommitted
    state.close()
    assert not recwarn.list
    assert Workspace(Versioned(store), place).status().added == ["a"]
    files.close()


def test_a_closed_workspace_tells_no_edits_and_makes_none(store: Memory, place: Path) -> None:
    """`status` would miss the edits, and what `restore` stages would stay staged."""
    state = Versioned(store)
    put(place, {"a": b"a"})
    with Workspace(state, place) as files:
        state.commit("one")
    put(place, {"a": b"b"})
    for call in (files.status, partial(files.restore, force=True)):
        with pytest.raises(InvalidInput, match="closed"):
            call()
    assert found_in(place) == {"a": File(b"b")}
    assert not state.has_uncommitted


def test_autocommit_commits_the_files(store: Memory, place: Path) -> None:
    """A state that commits at its end commits the edits too."""
    with Versioned(store, autocommit=True) as state:
        Workspace(state, place)
        put(place, {"a": b"a"})
    assert Versioned(store)["files/a"] == File(b"a")


def test_wrong_arguments_are_refused(store: Memory, place: Path, tmp_path: Path) -> None:
    """A prefix without a slash, a second Workspace of the keys or directory, a store there, no state."""
    state = Versioned(store)
    Workspace(state, place)
    Workspace(state, tmp_path / "second", "other/")
    with pytest.raises(InvalidInput, match="slash"):
        Workspace(state, place, "files")
    with pytest.raises(InvalidInput, match="already"):
        Workspace(state, tmp_path / "third")
    (tmp_path / "alias").symlink_to(place)
    with pytest.raises(InvalidInput, match="already"):
        Workspace(state, tmp_path / "alias", "third/")
    on_disk = Versioned(tmp_path / "store")
    with pytest.raises(InvalidInput, match="is a store"):
        Workspace(on_disk, tmp_path / "store")
    with pytest.raises(TypeError, match="Versioned"):
        Workspace({}, place)  # type: ignore[arg-type]


def test_a_directory_that_is_gone_is_no_deletion(store: Memory, place: Path) -> None:
    """Where the directory was removed or not mounted, nothing is committed as deleted."""
    state = Versioned(store)
    Workspace(state, place)
    put(place, {"a": b"a"})
    state.commit("one")
    place.rename(place.parent / "elsewhere")
    with pytest.raises(NotFound, match="gone"):
        state.commit("two")
    (place.parent / "elsewhere").rename(place)
    assert state.commit("two") is None


def test_text_is_the_policy_of_files(store: Memory, place: Path) -> None:
    """A branch gets it when a Workspace opens, unless the branch has a policy for the files."""
    state = Versioned(store)
    Workspace(state, place)
    assert state.policies() == {"files/": "text"}
    other = Versioned(Memory())
    other.set_policy("", "theirs")
    Workspace(other, place.parent / "other")
    assert other.policies() == {"": "theirs"}


def test_a_workspace_with_await(tmp_path: Path) -> None:
    """The names are those of Workspace, and the files go where the awaited state goes."""

    async def main() -> None:
        async with aio.Versioned(Memory()) as state:
            files = await aio.Workspace(state, tmp_path / "p", "src/")
            put(tmp_path / "p", {"a": b"a"})
            assert (await files.status()).added == ["a"]
            await state.commit("one")
            put(tmp_path / "p", {"a": b"b"})
            await files.restore(force=True)
            assert dict(await files.at("HEAD")) == found_in(tmp_path / "p")
            put(tmp_path / "p", {"b": b"b"})
            await state.commit("two")
            async with files.fork("side", tmp_path / "q", "HEAD~1") as other:
                put(tmp_path / "q", {"c": b"c"})
                await other.state.commit("three")
            assert sorted(found_in(tmp_path / "q")) == ["a", "c"]
            await state.merge("side")
            assert sorted(found_in(tmp_path / "p")) == ["a", "b", "c"]
            await files.close()
            async with aio.Workspace(state, tmp_path / "p", "src/"):
                put(tmp_path / "p", {"a": b"c"})
            assert await state.commit("four") is None

    asyncio.run(main())
    ours, theirs, called = (
        {name for name in dir(each) if not name.startswith("_")}
        for each in (aio.Workspace, Workspace, Companion)
    )
    assert ours == (theirs - called | {"close"}) - {"directory"}


def test_a_workspace_whose_entry_is_cancelled_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is cancelled just as it opens: the state goes with no directory, and another try may enter."""
    opened, cancelled, begin = threading.Event(), threading.Event(), Workspace.__init__

    def begin_late(*args: Any, **options: Any) -> None:
        begin(*args, **options)
        opened.set()
        assert cancelled.wait(60)

    async def main() -> None:
        async with aio.Versioned(Memory()) as state:
            with monkeypatch.context() as patched:
                patched.setattr(Workspace, "__init__", begin_late)
                task = asyncio.create_task(aio.Workspace(state, tmp_path).__aenter__())
                assert await asyncio.to_thread(opened.wait, 60)
                task.cancel()
                cancelled.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with aio.Workspace(state, tmp_path) as files:
                assert not (await files.status()).added

    asyncio.run(main())


def test_a_git_repository_is_a_workspace(store: Memory, tmp_path: Path) -> None:
    """Its own directory and its submodules are left out, and git finds every file as it was."""
    place = tmp_path / "repo"
    put(place, {"a": b"a\n", "s/b": File(b"b", "executable")})
    git: list[str] = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always"]

    def run(*command: str) -> str:
        return subprocess.run([*git, *command], cwd=place, check=True, capture_output=True, text=True).stdout

    put(tmp_path / "lib", {"l": b"l"})
    for directory in (tmp_path / "lib", place):
        subprocess.run([*git, "init", "-q"], cwd=directory, check=True)
        subprocess.run([*git, "add", "."], cwd=directory, check=True)
        subprocess.run([*git, "commit", "-qm", "x"], cwd=directory, check=True)
    run("submodule", "--quiet", "add", str(tmp_path / "lib"), "lib")
    run("commit", "-qm", "with a submodule")
    state = Versioned(store)
    files = Workspace(state, place)
    state.commit("one")
    assert {*files.at("HEAD")} == {"a", "s/b", ".gitmodules"}
    assert files.status().left_out == {".git": "git's own", "lib/": "a git repository"}
    put(place, {"a": b"edit", "new": b"n"})
    state.commit("two")
    state.rollback("HEAD~1")
    assert run("status", "--porcelain") == ""


def test_an_edit_that_looks_as_our_stale_head_is_no_old_file(tmp_path: Path) -> None:
    """Another state took the files back, and somebody wrote again what this one had: refresh() goes there."""
    place = tmp_path / "p"
    with Disk(tmp_path / "store") as store, Versioned(store) as state, Workspace(state, place):
        for text in (b"one", b"two"):
            put(place, {"a": text})
            state.commit("a text")
        with Versioned(store) as other, Workspace(other, place):
            other.rollback()
            assert found_in(place)["a"].data == b"one"
        put(place, {"a": b"two"})
        state["k"] = 1
        for refused in (state.commit, state.status, state.undo):
            with pytest.raises(Conflict, match=r"another program has moved .* refresh\(\)"):
                refused()
        state.refresh()
        assert [*state.status()] == ["files/a", "k"]
        state.commit("both")
        assert found_in(place)["a"].data == state["files/a"].data == b"two"


PROGRAM = """
import os, sys
from vstate import Conflict, Disk, Versioned, Workspace
state = Versioned(Disk(sys.argv[1]))
files = Workspace(state, sys.argv[2])
def commit(message):
    while True:
        try:
            return state.commit(message)
        except Conflict:
            state.refresh()
def work(name, turns):
    for turn in range(turns):
        with open(f"{files.directory}/{name}{turn}", "w") as file:
            file.write(name)
        if turn:
            os.unlink(f"{files.directory}/{name}{turn - 1}")
        commit(f"{name} {turn}")
for line in sys.stdin:
    print(eval(line), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path, place: Path) -> Iterator[Callable[[], Callable[[str], str]]]:
    """Starts another process with the store and directory, which evaluates what it is given."""
    Disk(tmp_path / "store").close()
    command = [sys.executable, "-c", PROGRAM, tmp_path / "store", place]
    with ExitStack() as processes:

        def begin() -> Callable[[str], str]:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.enter_context(process)
            given, answers = process.stdin, process.stdout
            assert given is not None
            assert answers is not None

            def call(line: str) -> str:
                print(line, file=given, flush=True)
                return answers.readline()

            return call

        yield begin


def test_two_programs_have_one_directory(
    tmp_path: Path, place: Path, start: Callable[[], Callable[[str], str]]
) -> None:
    """A file that the other has committed and deleted stays away, and an edit on top of its commit is one."""
    program = start()
    program("0")
    with Versioned(Disk(tmp_path / "store")) as state, Workspace(state, place) as files:
        put(place, {"a": b"one\n", "new": b"n"})
        assert files.status().added == ["a", "new"]
        program("state.commit('both')")
        put(place, {"new": None})
        program("state.commit('new is gone')")
        state["k"] = 1
        state.commit("other things")
        assert as_at_head(state, place)
        assert [*found_in(place)] == ["a"]
        put(place, {"a": b"two\n"})
        program("[state.refresh(), state.commit('two')]")
        put(place, {"a": b"three\n"})
        with pytest.raises(Conflict, match=r"another program has moved .* refresh\(\)"):
            state.commit("on a stale head")
        state.refresh()
        assert files.status().modified == ["a"]
        state.commit("three")
        assert as_at_head(state, place)


def test_another_program_waits_while_files_are_committed(
    tmp_path: Path, place: Path, start: Callable[[], Callable[[str], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the look for edits until the index has the commit; so it deletes no file that is about to land."""
    program = start()
    program("0")
    state = Versioned(Disk(tmp_path / "store"))
    Workspace(state, place)
    with ThreadPoolExecutor(1) as pool:
        publish = state.repo.publish_all
        theirs: list[Future[str]] = []

        def publish_late(*arguments: Any, **options: Any) -> bool:
            theirs.append(pool.submit(program, "state.commit('theirs')"))
            time.sleep(1)
            assert not theirs[0].done()
            return publish(*arguments, **options)

        monkeypatch.setattr(state.repo, "publish_all", publish_late)
        put(place, {"a": b"ours"})
        ours = state.commit("ours")
        assert theirs[0].result() == "None\n"
    assert (state.refresh(), as_at_head(state, place)) == (ours, True)


def test_two_programs_commit_one_directory_at_once(
    tmp_path: Path, place: Path, start: Callable[[], Callable[[str], str]]
) -> None:
    """Each commits what both edit and delete meanwhile, and the branch ends as the directory is."""
    turns = sized(5, 500)
    programs = [start(), start()]
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda name, call: call(f"work({name!r}, {turns})"), "ab", programs)
        assert [*done] == ["None\n", "None\n"]
    for call in programs:
        assert call("commit('the end')")
    with Versioned(Disk(tmp_path / "store")) as state:
        Workspace(state, place)
        assert {*found_in(place)} == {f"a{turns - 1}", f"b{turns - 1}"}
        assert as_at_head(state, place)


@pytest.mark.parametrize("line", ["*\\", "a/*\\", "\ufeffb"])
def test_a_rule_that_git_passes_over(tmp_path: Path, line: str) -> None:
    """It ignores nothing, and no call fails; a mark at the beginning of the file is no part of the rule."""
    with Versioned(Memory()) as state, Workspace(state, tmp_path / "p") as files:
        put(tmp_path / "p", {".gitignore": line.encode() + b"\n", "a": b"a", "b": b"b"})
        assert files.status().added == [".gitignore", "a", *(["b"] if "*" in line else [])]


def test_a_link_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    """As a file that cannot be written; the others are."""
    state = Versioned(Memory())
    state.update({"files/z": File(b"a\0b", "link"), "files/y": File(b"y")})
    state.commit("hostile")
    with Workspace(state, tmp_path / "p") as files:
        assert sorted(found_in(tmp_path / "p")) == ["y"]
        assert "files/z" in files.status().refused


def test_a_directory_whose_time_was_set_back(tmp_path: Path) -> None:
    """As tar and rsync do: a file that came into it is found."""
    with Versioned(Memory()) as state, Workspace(state, tmp_path / "p") as files:
        put(tmp_path / "p", {"d/a": b"a"})
        os.utime(tmp_path / "p" / "d", (1, 1))
        state.commit("one")
        assert files.status().added == []
        put(tmp_path / "p", {"d/b": b"b"})
        os.utime(tmp_path / "p" / "d", (1, 1))
        assert files.status().added == ["d/b"]


def test_a_file_with_nearly_our_name_is_left_alone(tmp_path: Path) -> None:
    """Only what vstate writes beside a file is removed after a kill."""
    with Versioned(Memory()) as state, Workspace(state, tmp_path / "p") as files:
        put(tmp_path / "p", {".vstate-new-ideas.md": b"precious", ".vstate-new-7": b"left by a kill"})
        assert ".vstate-new-ideas.md" in files.status().left_out
    assert sorted(found_in(tmp_path / "p")) == [".vstate-new-ideas.md"]


@pytest.mark.parametrize("name", ["a", "new", "ignored"])
def test_restore_overwrites_no_edit_that_came_after_its_scan(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nor a file that is new at the path since, nor an ignored one, which no scan sees."""
    state = Versioned(Memory())
    files = Workspace(state, place)
    put(place, {"a": b"1", "new": b"1", "ignored": b"1"})
    state.commit("one")
    put(place, {"a": b"2", "new": None, "ignored": None, ".gitignore": b"ignored"})
    state.commit("two")
    if name == "ignored":
        put(place, {name: b"edit"})
    scan = Directory.scan

    def scan_and_edit(*arguments: Any) -> object:
        found = scan(*arguments)
        put(place, {name: b"edit"})
        return found

    monkeypatch.setattr(Directory, "scan", scan_and_edit)
    with pytest.raises(UncommittedChanges, match=f"files/{name}"):
        files.restore(rev="HEAD~1")
    assert found_in(place)[name] == File(b"edit")
    monkeypatch.undo()
    files.restore(rev="HEAD~1", force=True)
    assert found_in(place)[name] == File(b"1")


def test_an_edit_between_the_look_of_a_move_and_its_writes_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that somebody writes just before the move writes or deletes it is an edit."""
    state = Versioned(Memory())
    files = Workspace(state, place)
    for name in ("a", "new"):
        put(place, {"a": name.encode(), name: name.encode()})
        state.commit(name)
    edits, write = {"a": File(b"edit"), "new": File(b"edit")}, Directory.write

    def edit_and_write(*arguments: Any) -> None:
        put(place, edits)
        write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "write", edit_and_write)
        state.undo()
    assert found_in(place) == edits
    assert (files.status().modified, files.status().added) == (["a"], ["new"])


def test_names_are_synced_before_the_index_has_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one whose names changed, and those above: after a power cut, an old name is no edit."""
    state = Versioned(Memory())
    Workspace(state, place)
    put(place, {"a": b"1", "d/e/f": b"1", "same/s": b"1"})
    state.commit("one")
    put(place, {"d/e/f": None, "n/w": b"1"})
    state.commit("two")
    done: list[Any] = []
    rename, sync = os.rename, os.fsync
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", lambda old, new, **given: done.append(new) or rename(old, new, **given))
        patched.setattr(os, "fsync", lambda fd: done.append(os.fstat(fd).st_ino) or sync(fd))
        state.undo()
    inodes = [(place / name).stat().st_ino for name in ("", "d", "d/e")]
    assert done == ["index", "f", *inodes, "index"]
    assert not (place / "n").exists()


def test_a_file_that_cannot_be_changed_is_an_edit(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As git has it: the others go along, and status names the file until somebody restores it."""
    state = Versioned(Memory())
    files = Workspace(state, place)
    for text in (b"1", b"2"):
        put(place, {"a": text, "b": text} | ({"c": text} if text == b"2" else {}))
        for path in found_in(place):
            os.utime(place / path, (1, 1))  # older than the clock's grain, so the index has the sign
        state.commit("all")
    rename, unlink = os.rename, os.unlink

    def refused(name: str) -> None:
        if name in ("a", "c"):
            raise PermissionError(errno.EACCES, "not allowed")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", lambda old, new, **given: refused(new) or rename(old, new, **given))
        patched.setattr(os, "unlink", lambda name, **given: refused(name) or unlink(name, **given))
        state.undo()
        assert files.restore(force=True) == []
    assert found_in(place) == {"a": File(b"2"), "b": File(b"1"), "c": File(b"2")}
    assert (files.status().modified, files.status().added) == (["a"], ["c"])
    assert files.restore(force=True) == ["a", "c"]
    assert as_at_head(state, place)


def test_a_call_that_waits_for_itself_gets_an_error(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that commits another state of the directory fails after a while, and all is staged still."""
    monkeypatch.setattr(directory_module, "_MOST_SECONDS", 0.1)
    store = Disk(tmp_path / "store")
    state, other = Versioned(store), Versioned(store)
    Workspace(state, place)
    Workspace(other, place)
    remove = state.before_commit(lambda state: other.commit("inside"))
    put(place, {"a": b"a"})
    with pytest.raises(StoreUnavailable, match="holds the files") as caught:
        state.commit("outside")
    assert not caught.value.outcome_unknown
    remove()
    assert state.commit("outside") == other.refresh()
    assert as_at_head(state, place)
    assert as_at_head(other, place)


def test_several_directories_are_held_in_one_order(
    store: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever a program opens first; else two programs could wait for each other."""
    second = set()
    open_ = Directory._open

    def noted(directory: Directory, opened: ExitStack) -> None:
        if any(each._is_held for each in made):
            second.add(os.path.basename(directory.path))
        made.append(directory)
        open_(directory, opened)

    made: list[Directory] = []
    monkeypatch.setattr(Directory, "_open", noted)
    for names in ("ab", "ba"):
        state = Versioned(store)
        for name in names:
            Workspace(state, tmp_path / name, f"{name}/")
        state[names] = 1
        state.commit("both")
    assert second == {"b"}


CHILD = """
import os, signal, sys
from vstate import Disk, Versioned, Workspace
state = Versioned(Disk(sys.argv[1]))
files = Workspace(state, sys.argv[2])
with files._directory.held():
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read(1)
    state["child"] = 1
    state.commit("of the child")
"""


def test_a_forked_child_does_not_hold_the_directory(tmp_path: Path, place: Path) -> None:
    """If the holder is killed, its child neither keeps others out nor waits for itself."""
    Disk(tmp_path / "store").close()
    command = [sys.executable, "-c", CHILD, tmp_path / "store", place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.wait(20) == -signal.SIGKILL
        with Versioned(Disk(tmp_path / "store")) as state, Workspace(state, place):
            put(place, {"a": b"a"})
            assert state.commit("while the child waits")
            process.communicate(b"x", timeout=20)
            state.refresh()
            assert state["child"] == 1
            assert as_at_head(state, place)


def test_a_note_that_cannot_be_written_stops_the_commit(
    store: Memory, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is a StorageError, and the next commit has the edits."""
    state = Versioned(store)
    Workspace(state, place)
    put(place, {"a": b"a"})

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="No space left"):
            state.commit("no room")
    assert state.commit("room")
    assert as_at_head(state, place)
