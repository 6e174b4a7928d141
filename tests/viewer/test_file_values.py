"""Files as values in the viewer: texts with numbers, pictures, both versions, merges and edits."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from viewers import PICTURE, Look, Serve

from vstate import File, Memory, Versioned, Workspace
from vstate.repo.repository import Repository
from vstate.viewer.values import Values

pytestmark = pytest.mark.slow


def png(width: int) -> bytes:
    """A picture of one black line."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, 1, 8, 0, 0, 0, 0)
    lines = zlib.compress(bytes(width + 1))
    return PICTURE[:8] + chunk(b"IHDR", head) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


@pytest.fixture
def files(state: Versioned) -> Versioned:
    """A state with two commits of files, and a branch that changed the same ones."""
    state["f/a.py"] = File(b"one\ntwo\nthree\n")
    state["f/run"], state["f/last"] = File(b"go\n"), File(b"a.py", "link")
    state["f/pic"] = File(PICTURE)
    state.commit("begin")
    state.create_branch("other")
    state["f/a.py"], state["f/run"] = File(b"1\ntwo\nthree\n"), File(b"go\n", "executable")
    state["f/pic"] = File(png(3))
    state.commit("more")
    with Versioned(state.store, branch="other") as other:
        other["f/a.py"] = File(b"one\ntwo\nIII\n")
        other.commit("other")
    return state


def test_answers_about_files(files: Versioned, serve: Serve) -> None:
    """A file is its text or its bytes, with its kind as the type, and what changed by line."""
    serve(write=True).rows(
        """
        /keys?prefix=f/ ? items[*].[name, type] -> [["a.py", "file"], ["last", "link"], ["pic", "file"],
            ... ["run", "executable"]]
        /value?key=f/a.py ? [type, view.kind, view.text, view.lines]
            -> ["file", "text", "1\\ntwo\\nthree\\n", 3]
        /value?key=f/run ? [type, view.text] -> ["executable", "go\\n"]
        /value?key=f/last ? [type, view.text] -> ["link", "a.py"]
        /value?key=f/pic ? [type, view.kind, view.picture, view.media] -> ["file", "bytes", true, "image/png"]
        /diff?new=main&key=f/a.py ? details[0].hunks[0].lines[*].[sign, pieces[0].text]
            -> [["-", "one"], ["+", "1"], [" ", "two"]]
        /diff?new=main~1&key=f/a.py ? details[0].[kind, hunks[0].lines[*].[sign, pieces[0].text]]
            -> ["added", [["+", "one"], ["+", "two"], ["+", "three"], [" ", ""]]]
        /diff?new=main&key=f/run ? details[*].[old.text, new.text, note]
            -> [["file", "executable", "the kind of the file"]]
        /diff?new=main&key=f/pic ? details[0].pictures -> true
        /diff?new=main&key=f/a.py ? details[0].pictures -> null
        /search?text=TWO ? places[*].[key, path] -> [["f/a.py", ""]]
        /blame?key=f/a.py ? parts[*].commit.message -> ["more", "begin", "begin"]
        """
    )


def test_conflicts_in_files_are_resolved(files: Versioned, serve: Serve) -> None:
    """Without a policy a side is chosen; the policy text merges by line, and the result is shown before."""
    viewer = serve(write=True)
    viewer.rows(
        """
        /merge?ours=main&theirs=other ? conflicts[*].[key, base.text, ours.text, theirs.text]
            -> [["f/a.py", "one↵two↵three↵", "1↵two↵three↵", "one↵two↵III↵"]]
        /merge?ours=main&theirs=other&take_theirs=f/a.py ? conflicts[0].result.text -> "one↵two↵III↵"
        /merge?ours=main&theirs=other&policy=text ? [strategy, conflicts[0].result.text]
            -> ["merge", "1↵two↵III↵"]
        """
    )
    head = viewer.get("/merge?ours=main&theirs=other")["ours"]
    body = {"branch": "main", "rev": "other", "seen": head, "policy": "text"}
    assert viewer.ask("/merge", body)[0] == 200
    files.refresh()
    assert files["f/a.py"] == File(b"1\ntwo\nIII\n")


def test_two_agents_merge_in_the_page(look: Look, state: Versioned, serve: Serve, tmp_path: Path) -> None:
    """Conflicts of two directories: a person takes a side of one text, and writes the other anew.

    A third text is merged by line. The merge is one commit, and both directories are brought to it.
    """
    names, texts = ("both.md", "taken.md", "written.md"), "one\ntwo\nthree\n"
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    for name in names:
        (one / name).write_text(texts)
    with Workspace(state, one) as files:
        state.commit("begin")
        with files.fork("second", two) as other:
            for place, lines in ((one, ("1\ntwo\nthree\n", "mine\n")), (two, ("one\ntwo\n3\n", "theirs\n"))):
                for name, text in zip(names, (lines[0], lines[1], lines[1]), strict=True):
                    (place / name).write_text(text)
            state.commit("the first agent")
            other.state.commit("the second agent")
            page = look(serve(write=True), "page=merge")
            written = page.locator(".conflict", has_text="written.md")
            written.locator(".is-ours", has_text="mine").wait_for()
            written.locator(".is-theirs", has_text="theirs").wait_for()
            assert page.locator(".conflict .is-removed").count() == 2  # the policy text has merged the third
            written.get_by_role("link", name="edit theirs").click()
            row = page.locator(".beside tr", has_text="mine")
            row.wait_for()
            assert row.locator("td").all_text_contents() == ["mine", "theirs"]
            page.get_by_role("button", name="Edit this value").click()
            page.get_by_label("str").fill("mine and theirs\n")
            page.get_by_role("button", name="see what changes").click()
            page.get_by_role("dialog").get_by_role("button", name="Edit this value").click()
            page.locator(".beside", has_text="mine and theirs").wait_for()
            page.get_by_role("link", name="merge", exact=True).click()
            page.locator(".merge-form select").nth(1).select_option("edit")
            for name, side in (("taken.md", "take ours"), ("written.md", "take theirs")):
                page.locator(".conflict", has_text=name).get_by_role("button", name=side).click()
            page.get_by_role("button", name="Merge", exact=True).click()
            page.get_by_text("There is nothing to merge.").wait_for()
            state.refresh()
            other.state.merge("main")
    for place in (one, two):
        found = [(place / name).read_text() for name in names]
        assert found == ["1\ntwo\n3\n", "mine\n", "mine and theirs\n"]


def test_a_file_is_edited_as_its_text(files: Versioned, serve: Serve) -> None:
    """The edit keeps the kind of the file, and goes to a branch of its own."""
    viewer = serve(write=True)
    body = {"rev": "main", "key": "f/run", "type": "str", "value": "stop é\n", "branch": "edit"}
    assert viewer.ask("/edit", body)[0] == 200
    assert viewer.ask("/edit", body | {"branch": "same", "value": "go\n"})[1]["to"] is None
    assert viewer.ask("/edit", body | {"branch": "two", "value": 5, "type": "int"})[0] == 400
    with Versioned(files.store, branch="edit") as edited:
        assert edited["f/run"] == File("stop é\n".encode(), "executable")


def test_of_a_long_file_only_a_page_is_read() -> None:
    """A long file is a text or bytes by its beginning, and its pages put together are the file."""
    # The beginning that is looked at ends inside a character.
    text = ("東" * 3_000 + "".join(f"line {n} of a long text, 東京\n" for n in range(700_000))).encode()
    state = Versioned(Memory())
    state["text"], state["data"] = File(text), File(random.Random(1).randbytes(17_000_000))
    state.commit("long")
    values, commit = Values(Repository(state.store)), state.repo.resolve("HEAD")
    for key, kind in (("text", "text"), ("data", "bytes")):
        pages: list[Any] = []
        first: int | None = 0
        while first is not None and len(pages) < 5:
            found = values.page(commit, key, "", before=None, first=first, limit=1000)
            assert (found["type"], found["view"]["kind"]) == ("file", kind)
            view = found["view"]
            pages.append(view["text"].encode() if kind == "text" else base64.b64decode(view["data"]))
            first = view["next"]
        assert state[key].data.startswith(b"".join(pages))


def test_the_page_of_a_file(look: Look, files: Versioned, serve: Serve) -> None:
    """Lines have numbers, two versions stand beside each other, and so do two pictures."""
    viewer = serve(write=True)
    page = look(viewer, "key=f/a.py")
    lines = page.locator(".numbered span")
    lines.first.wait_for()
    assert lines.all_text_contents() == ["1\n", "two\n", "three\n"]
    number = "span => getComputedStyle(span, '::before').content"
    assert lines.last.evaluate(number) == "counter(line)"
    page.get_by_role("button", name="Edit this value").click()
    page.get_by_label("str").fill("four\n")
    page.get_by_role("button", name="see what changes").click()
    page.get_by_role("dialog").get_by_text("1 modified").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Edit this value").click()
    page.locator(".numbered span", has_text="four").wait_for()
    page.goto(f"{viewer.base}/#/?rev=main&key=f/a.py&tab=diff")
    page.locator(".line.is-removed", has_text="one").wait_for()
    page.keyboard.press("s")
    page.locator(".beside td.is-removed", has_text="one").wait_for()
    page.goto(f"{viewer.base}/#/?rev=main&key=f/pic&tab=diff")
    page.locator("figcaption", has_text="1 × 1").wait_for()
    page.locator("figcaption", has_text="3 × 1").wait_for()
    with Versioned(files.store, branch="edit") as edited:
        assert edited["f/a.py"] == File(b"four\n")
