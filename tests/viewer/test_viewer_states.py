"""The page beside changes of the store, in a file, in a notebook, and when the viewer ends."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from running import load_module
from viewers import Look, Serve, Viewer, viewing

from vstate import Disk, Versioned
from vstate.repo.repository import Repository

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]


def test_why_the_agent_said_that(look: Look, tmp_path: Path) -> None:
    """The way of docs/viewer.md leads from a word to the commit of a wrong belief, and to what came of it."""
    load_module(TOP / "docs" / "screenshots.py").make_store(tmp_path / "tea-shop")
    with viewing(tmp_path / "tea-shop") as viewer:
        page = look(viewer)
        page.keyboard.press("/")
        page.keyboard.type("opens")
        page.locator(".found li", has_text="memory/hours").get_by_role("link").click()
        page.locator(".crumbs", has_text="memory/hours").wait_for()
        page.keyboard.press("b")
        page.locator(".blame-commit a", has_text="read a photo").first.click()
        page.locator(".commit-title h2", has_text="read a photo").wait_for()
        page.locator(".datum", has_text="tool=look").wait_for()
        page.locator(".key-name", has_text="chat").click()
        page.locator(".crumbs", has_text="chat").wait_for()
        page.keyboard.press("f")
        page.locator(".commit", has_text="answered turn 24").wait_for()
        for turn in (23, 24):
            page.keyboard.press("ArrowRight")
            page.locator(".commit-title h2", has_text=f"answered turn {turn}").wait_for()
        page.locator(".message.is-new", has_text="We open at 10.").wait_for()


def test_long_values_in_a_file(
    bare: Page, tmp_path: Path, state: Versioned, run_vstate: Callable[..., str]
) -> None:
    """A file holds some pages of a long value, and says so; its newest messages are there at once."""
    state["chat"] = [{"role": "user", "content": f"message {i}"} for i in range(250)]
    state["long chat"] = [{"role": "user", "content": f"message {i}"} for i in range(3000)]
    state["text"] = "".join(f"line {i}\n" for i in range(20_000))
    state["table"] = [{"a": i, "b": i} for i in range(3000)]
    state.commit("begin", outcome="good")
    run_vstate("view", str(tmp_path / "store"), "--export", str(tmp_path / "history.html"))
    bare.goto(f"{(tmp_path / 'history.html').as_uri()}#/?key=chat")
    bare.locator(".message", has_text="message 249").wait_for()
    bare.get_by_role("button", name="200 earlier messages").click()
    bare.locator(".message", has_text="message 100").first.wait_for()
    bare.locator(".key", has_text="long chat").click()
    bare.get_by_text("This file holds the beginning of the value.").wait_for()
    bare.locator(".message", has_text="message 1099").wait_for()
    bare.locator(".key", has_text="text").click()
    bare.get_by_role("button", name="more characters").click()
    bare.get_by_role("button", name=re.compile(r"^\d,\d+ more characters")).click()
    bare.locator("pre", has_text="line 19999").wait_for()
    bare.locator(".key", has_text="table").click()
    bare.get_by_text("1,100 rows").wait_for()
    bare.get_by_role("searchbox").fill("info:outcome=bad")
    bare.get_by_role("searchbox").press("Enter")
    bare.get_by_text("by key: and by text only").wait_for()


def test_a_frame_of_a_notebook(bare: Page, small: Path) -> None:
    """In the sandboxed frame that a notebook shows, commits, keys, tabs and links lead as elsewhere."""
    with Versioned(Disk(small)) as state:
        frame_html = state.view()._repr_html_()
    bare.set_content(f"<h1>A notebook</h1>{frame_html}")
    frame = bare.frame_locator("iframe")
    frame.locator(".commit-title h2", has_text="planned").wait_for()
    frame.locator(".commit", has_text="scored").click()
    frame.locator(".commit-title h2", has_text="scored").wait_for()
    frame.locator(".key-name", has_text="plan").click()
    frame.get_by_role("tab", name="Life").click()
    frame.get_by_text("2 commits changed this key").wait_for()
    frame.get_by_role("tab", name="Value").click()
    frame.get_by_role("link", name="steps").click()
    frame.locator(".crumbs", has_text="steps").wait_for()


def test_the_link_on_a_page_of_another_site(browser: Any, viewer: Viewer, tmp_path: Path) -> None:
    """The address that was printed opens the viewer from a web terminal too, and stays out of the history."""
    (tmp_path / "page.html").write_text(f'<a href="{viewer.url}">open</a>')
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.get_by_role("link", name="open").click()
    page.locator(".commit-title h2", has_text="planned").wait_for()
    assert "token" not in page.url
    context.close()


def test_many_tabs(browser: Any, viewer: Viewer) -> None:
    """Tabs that nobody sees hold no connection: the eighth loads as the first did."""
    context = browser.new_context()
    for number in range(8):
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto(viewer.url if number == 0 else viewer.base)
        page.locator(".commit-title h2", has_text="planned").wait_for()
        # Every tab of a headless browser is in sight.
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    context.close()


def test_a_list_that_is_gone(look: Look, viewer: Viewer) -> None:
    """A list that the server keeps no longer is made anew when the next rows are needed."""
    page = look(viewer, "fold=0")
    page.get_by_text("put 3", exact=True).wait_for()
    for i in range(9):
        viewer.get(f"/commits?grep=nothing{i}")
    page.evaluate("dispatchEvent(new Event('vstate-place'))")
    page.goto(f"{viewer.base}/#/?fold=0&rev={viewer.get('/commits?limit=1')['rows'][0]['id']}")
    page.get_by_text("put 3", exact=True).wait_for()


def test_a_branch_and_a_tag_of_one_name(look: Look, state: Versioned, serve: Serve) -> None:
    """Both can be chosen."""
    state["a"] = 1
    state.commit("tagged")
    state.tag("x")
    state["a"] = 2
    state.commit("on the branch")
    state.create_branch("x")
    page = look(serve())
    page.get_by_role("link", name="HEAD · main").click()
    page.get_by_role("cell", name="x", exact=True).get_by_role("link").click()
    page.locator(".commit-title h2", has_text="on the branch").wait_for()
    page.keyboard.press("n")
    page.get_by_role("link", name="tags/x").click()
    page.locator(".commit-title h2", has_text="tagged").wait_for()


def test_a_store_whose_main_is_empty(look: Look, tmp_path: Path, serve: Serve) -> None:
    """The branches come first, newest first, with the names that people know; a click opens one."""
    with Disk(tmp_path / "store") as store:
        repo = Repository(store)
        for number in range(120):
            for text in ("begin", f"turn of {number}"):
                repo.commit(f"threads/session%20{number}", message=text, set={"n": f"{text} {number}"})
    page = look(serve())
    page.get_by_role("heading", name="120 branches in threads/").wait_for()
    rows = page.locator("table.branches tr")
    assert rows.count() == 50
    assert "threads/session 1192 commits" in rows.first.inner_text().replace("\t", "").replace("\n", "")
    assert "turn of 119" in rows.first.inner_text()
    page.get_by_text("70 more branches").wait_for()
    page.get_by_label("Find a branch").fill("session 17")
    page.get_by_role("link", name="threads/session 17", exact=True).click()
    page.locator(".commit-title h2", has_text="turn of 17").wait_for()
    assert page.locator(".commit-list [role=option]").count() == 2
    page.locator("a.branch", has_text="threads/session 17").wait_for()
    page.go_back()
    page.get_by_role("heading", name="120 branches in threads/").wait_for()


def test_answers_follow_the_refs(look: Look, tmp_path: Path, state: Versioned, serve: Serve) -> None:
    """A branch that moves leaves the head of the old commit, and comparisons with it are made anew."""
    state["a"] = 1
    state.commit("one")
    state.create_branch("other")
    state["a"] = 2
    state.commit("two")
    viewer = serve()
    page = look(viewer)
    page.locator(".commit-title .ref", has_text="main").wait_for()
    state["a"] = 3
    state.commit("three")
    page.locator(".commit-title h2", has_text="three").wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator(".commit-title h2", has_text="two").wait_for()
    page.locator(".commit-title .ref").wait_for(state="detached")
    page.goto(f"{viewer.base}/#/?against=other")
    page.locator(".facts", has_text="0 added").wait_for()
    with Versioned(Disk(tmp_path / "store"), branch="other") as other:
        other["b"] = 1
        other.commit("beside")
    page.locator(".facts", has_text="1 removed").wait_for()


def test_a_value_that_stays_is_not_drawn_anew(look: Look, state: Versioned, serve: Serve) -> None:
    """Who reads a long conversation keeps the place while commits change other keys."""
    state["chat"] = [{"role": "user", "content": f"message {i}"} for i in range(90)]
    state.commit("begin")
    state["other"] = 0
    state.commit("other")
    page = look(serve(), "key=chat")
    page.locator(".message", has_text="message 89").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('.chat').id = 'kept'")
    for i in range(2):
        state["other"] = f"now {i}"
        state.commit(f"now {i}")
        page.locator(".commit-title h2", has_text=f"now {i}").wait_for()
    page.locator("#kept .message", has_text="message 89").wait_for()


def test_a_filter_without_a_match(look: Look, viewer: Viewer) -> None:
    """The list says that nothing fits; the content stays that of HEAD."""
    page = look(viewer, "grep=nowhere")
    page.get_by_text("No commit meets these conditions.").wait_for()
    page.locator(".commit-title h2", has_text="planned").wait_for()
    assert page.get_by_text("This store has no commits yet").count() == 0


def test_a_dialog_ends_with_its_subject(look: Look, writer: Viewer) -> None:
    """The dialog of an edit closes when the way back leads to no key."""
    page = look(writer)
    page.locator(".key", has_text="notes").click()
    page.get_by_role("button", name="Edit this value").click()
    page.get_by_role("dialog").wait_for()
    page.go_back()
    page.get_by_role("dialog").wait_for(state="detached")
    page.locator(".key", has_text="plan").click()
    page.locator(".crumbs", has_text="plan").wait_for()


def test_the_viewer_ends(look: Look, writer: Viewer) -> None:
    """The page says that its viewer has ended, and what to do."""
    page = look(writer)
    page.locator(".commit-title h2", has_text="planned").wait_for()
    writer.end()
    page.locator(".banner", has_text="The viewer has ended").wait_for()


def test_the_store_is_deleted(look: Look, writer: Viewer, tmp_path: Path) -> None:
    """The page says so within some second, without a click, and follows no more."""
    page = look(writer)
    page.get_by_role("button", name="following").wait_for()
    shutil.rmtree(tmp_path / "store")
    page.locator(".banner", has_text="was removed").wait_for(timeout=3000)
    page.get_by_role("button", name="follow", exact=True).wait_for()


def test_enter_opens_what_the_field_names(look: Look, viewer: Viewer) -> None:
    """A branch, a tag, or the first place of a text, also before the search has ended; else it filters."""
    page = look(viewer, "fold=0")
    field = page.get_by_role("searchbox")
    for text, found in (
        ("other", ".commit-title .ref >> text=other"),
        ("v1", ".commit-title h2 >> text=answered"),
    ):
        field.fill(text)
        field.press("Enter")
        page.locator(found).wait_for()
    page.goto(f"{viewer.base}/#/?fold=0")
    page.locator(found).wait_for(state="detached")  # the page is at HEAD again
    field.fill("act")
    field.press("Enter")  # the search has not begun
    page.locator(".crumbs", has_text="[2]").wait_for()
    field.fill("scored")
    field.press("Enter")
    page.get_by_text("filtered: message:scored").wait_for()
    page.get_by_text("No commit meets").wait_for(state="detached")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.get_by_text("filtered: message:scored").wait_for(state="detached")


def test_escape_leaves_one_thing_after_the_other(look: Look, viewer: Viewer) -> None:
    """The part, the key, the other side of the diff, the filter, the commit; the title names the place."""
    page = look(viewer, "rev=other&key=plan&path=steps&against=v1&info=model%3Dsmall")
    for gone, title in (
        ("path=", "plan · store · vstate"),
        ("key=", "main · store · vstate"),
        ("against=", "main · store · vstate"),
        ("info=", "main · store · vstate"),
        ("rev=", "main · store · vstate"),
    ):
        assert gone in page.url
        page.keyboard.press("Escape")
        page.wait_for_function("gone => !location.hash.includes(gone)", arg=gone)
        page.wait_for_function("title => document.title === title", arg=title)


def test_to_what_changed_in_a_table(look: Look, state: Versioned, serve: Serve) -> None:
    """A button scrolls to each changed cell; numbers are on the right."""
    rows = [{"name": f"row {n}", "value": n} for n in range(400)]
    state["rows"] = rows
    state.commit("begin")
    state["rows"][300]["value"] = -1
    state["rows"][20]["value"] = -2
    state.commit("changed")
    page = look(serve(), "key=rows")
    page.get_by_role("button", name="go to change 1 of 2").click()
    page.locator("td.is-changed", has_text="-2").wait_for()
    page.get_by_role("button", name="go to change 2 of 2").click()
    cell = page.locator("td.is-changed", has_text="-1")
    cell.wait_for()
    assert cell.evaluate("cell => getComputedStyle(cell).textAlign") == "right"


def test_a_part_has_its_own_life_and_blame(look: Look, viewer: Viewer) -> None:
    """Blame and Life of a part are those of the part, also when its key changed more often."""
    page = look(viewer, "key=plan&path=steps&tab=blame")
    page.locator(".blame tr", has_text="steps[2]").locator(".blame-commit", has_text="planned").wait_for()
    assert page.locator(".blame tr").count() == 4  # with the head
    page.keyboard.press("l")
    page.get_by_text("2 commits of the 2 that changed this key").wait_for()
    page.goto(f"{viewer.base}/#/?key=plan&tab=life")
    page.locator(".life-text", has_text="+ steps[2]: 'act'").wait_for()
    page.goto(f"{viewer.base}/#/?key=plan&tab=blame")
    page.get_by_role("button", name="unfold steps").click()
    page.locator(".blame tr", has_text="steps[0]").last.wait_for()
    lefts = [cell.bounding_box()["x"] for cell in page.locator(".blame-text").all()]
    assert len(lefts) == 6
    assert len(set(lefts)) == 1
    page.goto(f"{viewer.base}/#/?key=plan&path=goal&tab=life")
    page.get_by_text("1 commit of the 2 that changed this key").wait_for()
    page.locator(".versions a").click()
    page.locator(".commit-title h2", has_text="begin").wait_for()
    page.get_by_role("tab", name="Diff", selected=True).wait_for()


def test_a_long_message_leaves_room_for_the_versions_of_a_value(look: Look, tmp_path: Path) -> None:
    """In the life of a key, the column of the values is as wide as that of a message without spaces."""
    with Versioned(tmp_path / "store") as state:
        state["text"] = "words " * 20
        state.commit("read('/" + "long/" * 50 + "')")
    with viewing(tmp_path / "store") as viewer:
        box = look(viewer, "key=text&tab=life").locator(".life-text").bounding_box()
        assert box is not None
        assert box["width"] > 200


def test_a_fork_leaves_the_page_where_it_is(look: Look, writer: Viewer) -> None:
    """After a fork or a tag, the page shows the same commit, with its new name."""
    page = look(writer, "rev=v1", refused=True)
    page.get_by_role("button", name="Fork here").click()
    page.get_by_label("name of the branch").fill("other")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_text("already").wait_for()
    page.get_by_label("name of the branch").fill("side")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_text("The new branch side would stand at").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Fork here").click()
    page.locator(".commit-title .ref", has_text="side").wait_for()
    assert page.locator(".commit-title h2").inner_text() == "answered"
    assert "branch=" not in page.url


def test_edits(look: Look, tmp_path: Path, state: Versioned, serve: Serve) -> None:
    """Only what can be edited is offered, and what was typed stays when the name of the branch is taken."""
    state["plain"] = {"flag": True, "big": 2**70}
    state["text"] = "a\r\nb"
    state["price"] = {"amount": 3, "exact": Decimal("1.5")}
    state.commit("begin")
    state.create_branch("edit")
    viewer = serve(write=True)
    page = look(viewer, "key=plain", refused=True)

    def edit(place: str, crumb: str) -> None:
        page.goto(f"{viewer.base}/#/?{place}")
        page.locator(".crumbs", has_text=crumb).wait_for()  # until then the page is at the last place
        page.get_by_role("button", name="Edit this value").click()

    page.locator(".part", has_text="flag").wait_for()
    assert page.get_by_role("button", name="Edit this value").count() == 0
    edit("key=price&path=amount", "amount")
    page.get_by_role("dialog").get_by_text("holds an object").wait_for()
    page.get_by_role("button", name="cancel").click()
    edit("key=text", "text")
    page.get_by_role("dialog").get_by_text("cannot keep the line ends").wait_for()
    page.get_by_role("button", name="cancel").click()
    edit("key=plain&path=flag", "flag")
    see = page.get_by_role("button", name="see what changes")
    assert see.is_disabled()  # the value as it is
    page.get_by_label("bool").select_option("False")
    assert page.get_by_label("on the new branch").input_value() == "edit-2"
    page.get_by_label("on the new branch").fill("edit")
    see.click()
    page.get_by_role("dialog").get_by_text("already").wait_for()
    assert page.get_by_label("bool").input_value() == "False"
    page.get_by_role("button", name="cancel").click()
    edit("key=plain&path=big", "big")
    page.get_by_label("int").fill(str(2**70 + 1))
    with Versioned(Disk(tmp_path / "store")) as state:  # the page follows, and the form stays
        state["other"] = 1
        state.commit("made meanwhile")
    page.locator(".commit-title h2", has_text="made meanwhile").wait_for()
    see.click()
    page.locator("dialog .side.is-added", has_text=str(2**70 + 1)).wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Edit this value").click()
    page.locator(".commit-title h2", has_text="Edit plain big").wait_for()
    with Versioned(Disk(tmp_path / "store"), branch="edit-2") as state:
        assert state["plain"] == {"flag": True, "big": 2**70 + 1}


def test_odd_keys(look: Look, state: Versioned, serve: Serve) -> None:
    """The empty key has a value, a diff, a life and a pin as others; white space in keys is seen."""
    state[""], state["a\nb"], state["a b"] = {"in": 1}, 2, 3
    state.commit("begin")
    page = look(serve(write=True))
    page.locator(".key").first.wait_for()
    assert page.locator(".key-name").all_inner_texts() == ['""', '"a\\nb"', "a b"]
    page.locator(".key").first.click()
    page.locator(".part", has_text="in").wait_for()
    page.keyboard.press("p")
    page.locator(".pin").wait_for()
    page.keyboard.press("d")
    page.locator(".detail").wait_for()
    page.keyboard.press("l")
    page.get_by_text("1 commit changed this key").wait_for()
    page.locator(".key").nth(1).click()
    page.keyboard.press("p")
    page.locator(".pin", has_text='"a\\nb"').wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Diff", selected=True).wait_for()
    assert page.get_by_role("tab").count() == 1


def test_a_merge_is_in_the_address(look: Look, viewer: Viewer) -> None:
    """The policy, and the sides that were taken, are part of the place; with nothing to merge, nothing is."""
    page = look(viewer, "page=merge")
    page.get_by_role("button", name="take theirs").click()
    page.locator(".merge-side.is-result", has_text="7.5").wait_for()
    page.go_back()  # takes the choice back, and stays on the page
    page.locator(".merge-side.is-result").wait_for(state="detached")
    page.get_by_role("button", name="take theirs", pressed=False).wait_for()
    page.go_forward()
    page.locator(".merge-side.is-result", has_text="7.5").wait_for()
    again = look(viewer, page.url.partition("#/?")[2])
    again.locator(".merge-side.is-result", has_text="7.5").wait_for()
    again.get_by_label("policy").select_option("ours")
    third = look(viewer, again.url.partition("#/?")[2])
    third.locator(".merge-side.is-result").wait_for()
    third.locator(".merge-form select").nth(1).select_option("v1")
    third.get_by_text("There is nothing to merge.").wait_for()
    third.locator(".merge-form select").first.select_option("other")
    assert third.get_by_label("policy").input_value() == "ours"


def test_arrows_step_beside_a_conversation(look: Look, state: Versioned, serve: Serve) -> None:
    """After a click in a conversation, the arrows still lead to other commits."""
    state["chat"] = [{"role": "user", "content": f"message {i}"} for i in range(30)]
    state.commit("begin")
    state["chat"].append({"role": "assistant", "content": "answer"})
    state.commit("answered")
    page = look(serve(), "key=chat")
    page.get_by_role("button", name="go to what is new").click()
    page.keyboard.press("ArrowLeft")
    page.locator(".commit-title h2", has_text="begin").wait_for()
    page.keyboard.press("ArrowRight")
    page.locator(".message.is-new", has_text="answer").wait_for()
    page.keyboard.press("d")
    page.locator(".side.is-added", has_text="assistant: answer").wait_for()
