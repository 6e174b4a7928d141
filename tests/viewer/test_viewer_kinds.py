"""Each kind of value in a real browser: frames, arrays, pictures, conversations; signatures and idle time."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clock import standing_still
from viewers import PICTURE, Look, Serve

from vstate import Disk, SigningKey, Versioned

pytestmark = pytest.mark.slow

GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAAAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==")
DRAW = """kind => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [3, 2];
    return canvas.toDataURL(kind);
}"""


def test_frames_and_arrays(pandas: Any, look: Look, state: Versioned, serve: Serve) -> None:
    """A frame is a table with its changed cells; an array has a range and drawings; both differ by place."""
    prices = pandas.DataFrame(
        {"item": ["ink", "pen", "cup"], "price": [4.5, 2.0, 7.25]}, index=["a", "b", "c"]
    )
    numbers = np.linspace(0.0, 1.0, 1000)
    state["prices"], state["numbers"] = prices, numbers
    state["long"] = np.arange(1_200_000, dtype=np.int32)
    state.commit()
    later, changed = prices.copy(), numbers.copy()
    later.loc["b", "price"] = 3.0
    changed[10:20] = -1.0
    state["prices"], state["numbers"] = later, changed
    state.commit()
    viewer = serve()
    page = look(viewer, "key=prices")
    page.locator("td.is-changed", has_text="3.0").wait_for()
    assert page.locator("td.is-changed").count() == 1
    assert page.locator("thead th").all_inner_texts() == ["item\nstr", "price\nfloat64"]
    page.keyboard.press("d")
    page.locator(".detail-path", has_text="price.b").wait_for()
    assert page.locator(".side").all_inner_texts() == ["before:\n2.0", "after:\n3.0"]
    page.goto(f"{viewer.base}/#/?key=numbers&tab=diff")
    page.locator(".detail-path", has_text="[10:20]").wait_for()
    page.goto(f"{viewer.base}/#/?key=numbers")
    page.locator(".facts", has_text="from -1.0 to 1.0").wait_for()
    assert page.locator(".charts svg").count() == 2
    page.goto(f"{viewer.base}/#/?key=long")
    page.locator(".facts", has_text=re.compile("a sample is drawn, from 0 to 1")).wait_for()
    page.get_by_label("from element").fill("1199999")
    page.get_by_label("from element").press("Enter")
    page.locator(".element", has_text="[1199999] 1199999").wait_for()


def test_pictures(look: Look, browser: Any, state: Versioned, serve: Serve) -> None:
    """PNG, JPEG, WebP and GIF are shown as pictures, as bytes and in base64."""
    page = browser.new_page()
    urls = {kind: page.evaluate(DRAW, f"image/{kind}") for kind in ("jpeg", "webp", "png")}
    page.close()
    jpeg, webp = (base64.b64decode(urls[kind].partition(",")[2]) for kind in ("jpeg", "webp"))
    sizes = {
        "gif": "1 × 1",
        "jpeg": "3 × 2",
        "png": "1 × 1",
        "text": "3 × 2",
        "url": "3 × 2",
        "webp": "3 × 2",
    }
    state["gif"], state["jpeg"], state["png"], state["webp"] = GIF, jpeg, PICTURE, webp
    state["text"], state["url"] = base64.b64encode(jpeg).decode(), urls["png"]
    state.commit()
    page = look(serve())
    for name, size in sizes.items():
        page.locator(".key-name", has_text=re.compile(f"^{name}$")).click()
        page.locator(".crumbs", has_text=name).wait_for()
        page.locator("figcaption", has_text=size).wait_for()


def test_signatures_and_idle_time(look: Look, tmp_path: Path, serve: Serve) -> None:
    """Signed commits have their key; a long time without commits is a dashed line, and takes no room."""
    key = SigningKey.generate()
    with standing_still() as time:
        with Versioned(Disk(tmp_path / "store")) as state:
            state["k"] = 0
            state.commit("begin")
        with Versioned(Disk(tmp_path / "store"), sign=key) as state:
            for hours in range(5):
                time.pass_(3600 * (hours + 1))
                state["k"] = hours + 1
                state.commit(f"hour {hours}")
    viewer = serve()
    page = look(viewer)
    row = page.locator(".commit", has_text="5 × hour 4")
    row.get_by_text("over 14 h").wait_for()
    row.get_by_text("idle 60 min").wait_for()
    assert row.locator(".lane.is-idle").count() == 1
    page.keyboard.press("f")
    page.locator(".commit", has_text="hour 4").get_by_text("idle 5 h").wait_for()
    signed = page.locator(".commit", has_text="✓")
    assert signed.count() == 5
    page.get_by_role("searchbox").fill(f"author:{key.public}")
    page.get_by_role("searchbox").press("Enter")
    page.get_by_text("begin", exact=True).wait_for(state="detached")
    page.goto(f"{viewer.base}/#/?page=health")
    page.locator("tr", has_text="not signed").wait_for()
    page.locator("tr", has_text="ed25519:").locator(".number", has_text="5").wait_for()
