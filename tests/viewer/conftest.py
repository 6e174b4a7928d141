"""Stores and servers for the tests of the viewer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

pytest.importorskip("uvicorn", reason="the viewer needs the extra view: pip install '.[view]'")

from viewers import PICTURE, Look, Serve, Viewer, viewing

from vstate import Disk, Versioned

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with branches, a merge, a tag, a chat, a table and a picture, which no test changes."""
    path = tmp_path_factory.mktemp("small") / "store"
    with Versioned(Disk(path)) as state:
        state["plan"] = {"goal": "learn", "steps": ["read", "think"], "pair": (1, 2.5)}
        state["notes"] = "first line\nsecond line\nthird line\n"
        state["chat"] = [{"role": "user", "content": "What is 2+2?"}]
        state["score/a"], state["score/b"] = 1, 2.5
        state["table"] = [{"name": f"row {i}", "value": i * i} for i in range(250)]
        state["picture"] = PICTURE
        state["bytes"] = bytes(range(256)) * 8
        state.commit("begin", model="small")
        state["chat"].append({"role": "assistant", "content": "", "tool_calls": [_CALL]})
        state["chat"].append({"role": "tool", "tool_call_id": "c1", "content": "4"})
        state.commit("answered")
        state.tag("v1")
        state.create_branch("other")
        for i in range(12):
            state["score/a"] = i
            state.commit(f"put {i}")
        state.switch("other")
        state["notes"] = "first line\nother words\nthird line\n"
        state["score/b"] = 7.5
        del state["bytes"]
        state.commit("other way")
        state.switch("main")
        state["score/b"] = 9.5
        state.commit("scored")
        state["plan"]["steps"].append("act")
        state.commit("planned")
    return path


_CALL = {"id": "c1", "function": {"name": "calc", "arguments": '{"x": 4}'}}


@pytest.fixture(scope="module")
def viewer(small: Path) -> Iterator[Viewer]:
    """A viewer of the small store, for reading."""
    with viewing(small) as found:
        yield found


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Versioned]:
    """A state of the test's own."""
    with Disk(tmp_path / "store") as store, Versioned(store) as state:
        yield state


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A function that starts a viewer of the test's own store, which `state` writes to."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(viewing(tmp_path / "store", **options))


@pytest.fixture
def writer(tmp_path: Path, small: Path, serve: Serve) -> Viewer:
    """A viewer of a small store of the test's own, for writing."""
    shutil.copytree(small, tmp_path / "store")
    return serve(write=True)


@pytest.fixture(scope="module")  # an event loop runs until its end, beside which no other can begin
def browser() -> Iterator[Any]:
    """A real Chromium; without one the test is skipped, and in CI it fails."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright import sync_api as playwright
    except ModuleNotFoundError:
        _missing("the package playwright: pip install playwright")
    if path is None:
        _missing("a browser: apt install chromium")
    with playwright.sync_playwright() as running:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        found = running.chromium.launch(executable_path=path, args=options)
        yield found
        found.close()


def _missing(what: str) -> NoReturn:
    if "VSTATE_BROWSER" in os.environ:
        pytest.fail(f"VSTATE_BROWSER is set, and this test needs {what}")
    pytest.skip(f"needs {what}")


@pytest.fixture
def look(browser: Any) -> Iterator[Look]:
    """A function that opens the page of a viewer. No error may come on the console of the page.

    With `refused`, the server may refuse a change.
    """
    contexts, errors = [], []

    def open_page(
        viewer: Viewer | None,
        place: str = "",
        *,
        width: int = 1440,
        height: int = 900,
        refused: bool = False,
        **given: Any,
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **given)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        # The browser reports refused requests, as for a pinned key that is absent, and a store that is gone.
        expected = re.compile(f"status of (4({'00|04|09' if refused else '04'})|503)|net::ERR")
        page.on(
            "console",
            lambda message: (
                errors.append(message.text)
                if message.type == "error" and not (viewer and expected.search(message.text))
                else None
            ),
        )
        page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
        if viewer is not None:
            page.goto(viewer.url)
            page.locator(".commit-list").wait_for()
        if place and viewer is not None:
            page.goto(f"{viewer.base}/#/?{place}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def bare(look: Look) -> Page:
    """A page that shows no viewer yet."""
    return look(None)


@pytest.fixture
def run_vstate() -> Callable[..., str]:
    """A function that runs the command, which must succeed; its output."""

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "vstate_cli", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    return run
