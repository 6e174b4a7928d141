"""The page of the viewer in a real browser, by keyboard and by mouse."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from soak import sized
from viewers import Look, Serve, Viewer

from vstate import Disk, Versioned
from vstate.repo.repository import Repository

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.slow

MANY = sized(600, 10_000)


def messages(page: Page) -> list[str]:
    return page.locator(".commit-message").all_inner_texts()


def content(page: Page, text: str | re.Pattern[str]) -> None:
    page.locator(".content").get_by_text(text).first.wait_for()


def test_commits_and_keyboard(look: Look, viewer: Viewer) -> None:
    """Branches are lanes, runs of alike commits one row; arrow keys step, and the address is the place."""
    page = look(viewer, "all=1")
    page.get_by_text("other way").first.wait_for()
    assert messages(page) == ["planned", "scored", "other way", "11 × put 11", "put 0", "answered", "begin"]
    assert page.locator(".commit .lane").count() == 9
    assert page.locator(".ref.is-current").first.inner_text() == "main"
    page.keyboard.press("ArrowLeft")
    page.locator(".commit-title h2", has_text="scored").wait_for()
    page.keyboard.press("ArrowRight")
    page.locator(".commit-title h2", has_text="planned").wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator(".commit-title h2", has_text="scored").wait_for()
    address = page.url
    page.keyboard.press("f")
    page.get_by_text("put 7", exact=True).wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("an older or a newer commit").wait_for()
    page.keyboard.press("Escape")
    again = look(viewer, address.partition("#/?")[2])
    again.locator(".commit-title h2", has_text="scored").wait_for()


def test_folded_rows_open(look: Look, viewer: Viewer) -> None:
    """A folded row opens by a second click, and the rows in it can be chosen."""
    page = look(viewer)
    row = page.get_by_text("12 × put 11")
    row.click()
    row.click()
    page.get_by_text("put 5", exact=True).click()
    page.locator(".commit-title h2", has_text="put 5").wait_for()
    inside = viewer.get("/commits?grep=put%208")["rows"][0]["id"]
    page = look(viewer, f"rev={inside}")
    page.locator(".commit.is-selected", has_text="put 8").wait_for()
    page = look(viewer, "rev=v1")  # also by name
    page.locator(".commit.is-selected", has_text="answered").wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator(".commit-title h2", has_text="begin").wait_for()


def test_keys(look: Look, viewer: Viewer) -> None:
    """The keys are a tree with marks and sizes; removed keys are struck; only the changed ones can stay."""
    page = look(viewer, "rev=other&all=1")
    page.locator(".key.is-gone", has_text="bytes").wait_for()
    page.get_by_text("score/", exact=True).click()
    page.get_by_role("treeitem").filter(has_text=re.compile("^~?b")).first.wait_for()
    page.keyboard.press("o")
    page.locator(".key", has_text="chat").wait_for(state="detached")
    names = page.locator(".key-name").all_inner_texts()
    assert names == ["bytes", "notes", "score/", "b"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.locator(".key.is-selected").wait_for()


def test_values(look: Look, viewer: Viewer) -> None:
    """Each kind of value has its view: parts, texts, tables, pictures, bytes."""
    page = look(viewer, "key=plan")
    page.locator(".part.is-modified", has_text="steps").get_by_role("button").click()
    page.locator(".part.is-added", has_text="act").wait_for()
    page.get_by_role("link", name="steps").first.click()
    page.locator(".crumbs", has_text="steps").wait_for()
    page.locator(".key", has_text="table").click()
    page.locator("th", has_text="name").first.wait_for()
    page.locator(".table-box").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    page.get_by_text("row 249").wait_for()
    page.locator(".key", has_text="picture").click()
    page.locator("figcaption", has_text="1 × 1").wait_for()
    page.goto(f"{viewer.base}/#/?rev=v1&key=bytes")
    content(page, re.compile("00000010  10 11 12"))
    page.goto(f"{viewer.base}/#/?rev=v1&key=notes")
    content(page, re.compile("second line"))
    page.locator(".key", has_text="chat").click()
    call = page.locator(".message.is-new .call")
    call.wait_for()
    assert re.sub(r"\s+", "", call.inner_text()) == 'calc({"x":4})→4'


def test_diff(look: Look, viewer: Viewer) -> None:
    """Changes inside a text are shown by word, one below or beside the other, and against a merge base."""
    page = look(viewer, "rev=other&all=1&key=notes&tab=diff")
    page.locator("mark.is-added", has_text="other").wait_for()
    page.keyboard.press("s")
    page.locator(".beside td.is-removed", has_text="second line").wait_for()
    page.goto(f"{viewer.base}/#/?rev=other&all=1")
    content(page, "Changes of this commit")
    page.get_by_label("against").fill("main")
    page.get_by_label("against").press("Enter")
    page.locator(".changed-key", has_text="plan").wait_for()
    page.get_by_role("button", name="merge base").click()
    content(page, "against the merge base")
    page.locator(".changed-key", has_text="plan").wait_for(state="detached")


def test_life_blame_and_pins(look: Look, viewer: Viewer) -> None:
    """A number is a line over its versions; each part has its commit; a pinned key stays in sight."""
    page = look(viewer, "key=score/a&fold=0")
    page.keyboard.press("l")
    page.locator(".chart-line").wait_for()
    page.get_by_text("13 commits changed this key").wait_for()
    page.keyboard.press("p")
    page.locator(".pin", has_text="11").wait_for()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    page.locator(".pin", has_text="9").wait_for()
    page.goto(f"{viewer.base}/#/?key=chat&tab=blame")
    page.locator(".blame-commit a", has_text="answered").click()
    page.locator(".commit-title h2", has_text="answered").wait_for()


def test_filter_and_search(look: Look, viewer: Viewer) -> None:
    """The field filters commits by text, key and info, and finds texts in values."""
    page = look(viewer, "fold=0")
    page.keyboard.press("/")
    page.keyboard.type("think")
    page.locator(".found a", has_text="steps[1]").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".crumbs", has_text="[1]").wait_for()
    assert page.get_by_role("searchbox").input_value() == ""  # what is only searched for is no filter
    page.keyboard.press("/")
    page.keyboard.type("row")
    page.get_by_role("button", name="17 more in table").click()
    page.locator(".found a", has_text="row 19").wait_for()
    page.get_by_role("searchbox").fill("v1")
    page.locator(".found a", has_text="Go to the commit").wait_for()
    page.mouse.click(1000, 800)
    page.locator(".found").wait_for(state="detached")
    page.keyboard.press("/")
    page.keyboard.type(viewer.get("/commits/v1")["short"])
    page.keyboard.press("Enter")
    page.locator(".commit-title h2", has_text="answered").wait_for()
    page.get_by_role("searchbox").fill("key:chat info:model=small")
    page.get_by_role("searchbox").press("Enter")
    page.get_by_text("put 3", exact=True).wait_for(state="detached")
    assert messages(page) == ["begin"]
    page.get_by_role("link", name="show all").click()
    page.get_by_text("put 3", exact=True).wait_for()
    page = look(viewer, "rev=other")  # of another branch: the list shows all
    page.locator(".commit.is-selected", has_text="other way").wait_for()


def test_live(look: Look, writer: Viewer, tmp_path: Path) -> None:
    """A commit of another process appears by itself; a page that does not follow stays where it is."""
    page = look(writer)
    page.locator(".commit-title h2", has_text="planned").wait_for()
    with Versioned(Disk(tmp_path / "store")) as state:
        state["new"] = 1
        state.commit("made meanwhile")
    page.locator(".commit-title h2", has_text="made meanwhile").wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator(".commit-title h2", has_text="planned").wait_for()
    with Versioned(Disk(tmp_path / "store")) as state:
        state["new"] = 2
        state.commit("and again")
    page.get_by_text("and again").first.wait_for()
    assert page.locator(".commit-title h2").inner_text() == "planned"


def test_merge_and_health(look: Look, viewer: Viewer) -> None:
    """A merge shows base, ours and theirs, and the result of a policy; gc and fsck tell their results."""
    page = look(viewer)
    page.keyboard.press("m")
    page.locator(".conflict", has_text="score/b").wait_for()
    sides = page.locator(".merge-side dd").all_inner_texts()
    assert sides == ["2.5", "9.5", "7.5"]
    page.get_by_label("policy").select_option("theirs")
    page.locator(".merge-side.is-result", has_text="7.5").wait_for()
    content(page, "What the branch would get")
    page.keyboard.press("Escape")
    page.keyboard.press("h")
    page.get_by_role("button", name="Check every object").click()
    content(page, re.compile("nothing is damaged"))
    page.get_by_role("button", name="What would gc free?").click()
    content(page, re.compile("would remove"))
    page.locator(".sizes", has_text="table").first.wait_for()


def test_changes(look: Look, writer: Viewer, tmp_path: Path, state: Versioned) -> None:
    """With --write a change shows first what it does, and is made then."""
    page = look(writer, "key=plan&path=pair[0]")
    page.get_by_role("button", name="Edit this value").click()
    page.get_by_label("int").fill("41")
    page.get_by_role("button", name="see what changes").click()
    page.get_by_role("dialog").get_by_text("1 modified").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Edit this value").click()
    page.locator(".commit-title h2", has_text="Edit plan pair[0]").wait_for()
    page.goto(f"{writer.base}/#/?rev=v1")
    page.get_by_role("button", name="Roll main back to this").click()
    page.get_by_role("dialog").get_by_text("steps[2]").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Roll main").click()
    page.locator(".commit-title h2", has_text="Rollback to").wait_for()
    with Versioned(Disk(tmp_path / "store"), branch="edit") as edited:
        assert edited["plan"]["pair"] == (41, 2.5)
    state.refresh()
    assert state["plan"]["steps"] == ["read", "think"]


EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202eevil\x1b[31m"


def test_a_hostile_store(look: Look, state: Versioned, serve: Serve) -> None:
    """Markup of the store is shown as text, and characters that turn or hide text are written out."""
    state[f"k{EVIL}"] = {EVIL: [EVIL], "name": EVIL}
    state["chat"] = [{"role": EVIL, "content": EVIL}, {"role": "user", "content": "javascript:alert(3)"}]
    state["table"] = [{EVIL: EVIL, "b": 1}, {EVIL: "x", "b": 2}]
    state["svg"] = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(4)'/>" * 9
    state.commit(EVIL, note=EVIL)
    state.create_branch("a<b>c")
    page = look(serve())
    page.get_by_text("\\u202eevil\\u001b[31m").first.wait_for()
    for key in ("chat", "table", "svg"):
        page.locator(".key", has_text=key).first.click()
        page.locator(".value").wait_for()
        for tab in ("d", "l", "b", "v"):
            page.keyboard.press(tab)
            page.wait_for_timeout(100)
    assert page.evaluate("document.querySelectorAll('#app img, #app script').length") == 0
    assert "\u202e" not in page.locator("body").inner_text()


def test_an_empty_store(look: Look, state: Versioned, serve: Serve) -> None:
    """A store without commits says so, and shows the first commit, though the events begin after it."""
    page = look(serve())
    held: list[Route] = []
    page.route("**/api/v1/events", lambda route: held.append(route))
    page.reload()
    content(page, re.compile("no commits yet"))
    state["k"] = 1
    state.commit("the first")
    page.wait_for_timeout(200)
    held[0].continue_()
    page.locator(".commit-title h2", has_text="the first").wait_for()


def test_many_commits(look: Look, tmp_path: Path, serve: Serve) -> None:
    """Rows of a long history are made as they are seen; the end is reached by one jump."""
    repo = Repository(Disk(tmp_path / "store", durability="process"))
    for i in range(MANY):
        repo.commit("main", set={"k": i}, message=f"{'turn' if i % 2 else 'rest'} {i}")
    repo.store.close()
    page = look(serve())
    page.get_by_text(f"{MANY:,} commits", exact=True).wait_for()
    assert page.locator(".commit").count() < 60
    page.locator(".commit-list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    page.get_by_text("rest 0", exact=True).wait_for()
    with Versioned(Disk(tmp_path / "store")) as state:
        state["k"] = -1
        state.commit("newer")
    page.get_by_text(f"{MANY + 1:,} commits", exact=True).wait_for()
    page.get_by_text("rest 0", exact=True).click()  # the list has not moved by more than a row
    page.locator(".commit-title h2", has_text="rest 0").wait_for()
    page.keyboard.press("ArrowRight")
    page.locator(".commit-title h2", has_text="turn 1").wait_for()
    page.keyboard.press("g")
    page.locator(".commit-title h2", has_text="newer").wait_for()
    for _ in range(30):  # as a key that is held down: no step is lost
        page.keyboard.press("ArrowLeft")
    page.locator(".commit-title h2", has_text=f"rest {MANY - 30}").wait_for()


def test_a_file(bare: Page, small: Path, tmp_path: Path, run_vstate: Callable[..., str]) -> None:
    """An exported page opens from disk: it has commits, keys, values, changes, pictures and versions.

    It tells of nothing outside of its range. Keys may have names that all objects of JavaScript have.
    """
    file, store = tmp_path / "history.html", tmp_path / "store"
    shutil.copytree(small, store)
    with Versioned(Disk(store)) as state:
        state["constructor"], state["__proto__"], state[""] = {"toString": 1}, 2, 3
        state.create_branch("v1", "v1")  # as the tag
        state.commit("odd names")
    run_vstate("view", str(store), "--export", str(file))
    assert '"name":"other"' not in file.read_text("utf-8")
    bare.goto(file.as_uri())
    bare.locator(".commit-title h2", has_text="odd names").wait_for()
    bare.locator(".key", has_text="constructor").click()
    bare.locator(".part.is-added", has_text="toString").wait_for()
    bare.keyboard.press("l")
    bare.get_by_text("1 commit changed this key").wait_for()
    bare.keyboard.press("v")
    bare.locator(".key", has_text="__proto__").click()
    bare.locator(".leaf", has_text="2").wait_for()
    bare.keyboard.press("ArrowLeft")
    bare.locator(".commit-title h2", has_text="planned").wait_for()
    bare.keyboard.press("Escape")
    content(bare, "steps[2]")
    bare.locator(".key", has_text="plan").click()
    bare.locator(".part.is-modified", has_text="steps").wait_for()
    bare.locator(".key", has_text="chat").click()
    bare.locator(".call", has_text="calc").wait_for()
    assert bare.locator(".message.is-new").count() == 0  # in this commit
    bare.locator(".key", has_text="picture").click()
    bare.locator("figcaption", has_text="1 × 1").wait_for()
    bare.keyboard.press("l")
    bare.get_by_text("1 commit changed this key").wait_for()
    bare.keyboard.press("b")  # blame needs the server
    bare.get_by_role("tab", name="Life", selected=True).wait_for()
    bare.keyboard.press("ArrowLeft")
    bare.locator(".commit-title h2", has_text="scored").wait_for()
    bare.keyboard.press("/")
    bare.keyboard.type("think")
    bare.locator(".found a", has_text="steps[1]").click()
    bare.locator(".crumbs", has_text="[1]").wait_for()
    assert bare.get_by_role("tab", name="Blame").count() == 0
    bare.keyboard.press("l")  # the file has the versions of whole keys
    assert bare.get_by_role("tab").all_inner_texts() == ["Value", "Diff"]
    for name in ("heads/v1", "tags/v1"):
        bare.goto(f"{file.as_uri()}#/?branch={name}")
        bare.get_by_text("2 commits", exact=True).wait_for()
    bare.goto(f"{file.as_uri()}#/?key=&tab=diff")
    bare.locator(".detail", has_text="3").wait_for()
    bare.goto(f"{file.as_uri()}#/?rev=other")
    bare.locator(".commit-head .error").wait_for()


@pytest.mark.parametrize(
    ("width", "places"),
    [
        (1440, ["all=1", "key=chat&rev=v1", "key=table", "key=notes&rev=other&tab=diff", "page=merge"]),
        (360, ["page=health&pane=value", "pane=keys", "key=chat&pane=value"]),
    ],
)
def test_accessible(look: Look, viewer: Viewer, width: int, places: list[str]) -> None:
    """axe-core finds no violation, on a wide and a narrow screen, light and dark in turn."""
    from axe_playwright_python.sync_playwright import Axe

    page = look(viewer, width=width)
    for number, place in enumerate(places):
        page.emulate_media(color_scheme="dark" if number % 2 else "light")
        page.goto(f"{viewer.base}/#/?{place}")
        page.locator(".part, .message, .table-value, .changed-key, .page, .key").first.wait_for(
            state="attached"
        )
        page.wait_for_timeout(200)
        result = Axe().run(page)
        assert not result.violations_count, result.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
