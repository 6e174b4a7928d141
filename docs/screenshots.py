"""Take the pictures of the viewer anew: `make screenshots`. It needs Chromium and the extra dev.

The store is that of an assistant in a shop. Somewhere a wrong belief got into its memory.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, Playwright, sync_playwright

from vstate import Disk, Versioned

IMAGES = Path(__file__).parent / "images"
HOURS = ["opens at 9", "closes at 18", "is closed on Sundays"]
QUESTIONS = [
    ("When do you open?", "hours", "We open at {opens}."),
    ("Do you have green tea?", "stock", "Yes: {tea} packs are on the shelf."),
    ("What does the blue mug cost?", "prices", "It costs {mug} euros."),
]

ITEMS = ["green tea", "blue mug", "iron pot", "spoon"]


def picture() -> bytes:
    """A PNG of a door with a sign, 160 by 120 pixels."""
    rows = bytearray()
    for y in range(120):
        rows.append(0)  # no filter
        for x in range(160):
            is_door, is_sign = 50 < x < 110 and y > 20, 62 < x < 98 and 38 < y < 56
            rows += (
                b"\xf4\xf1\xe6"
                if is_sign
                else b"\x5b\x3a\x29"
                if is_door
                else bytes((180 + y // 3, 205, 215))
            )
    head = struct.pack(">2I5B", 160, 120, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(rows))), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def make_store(path: Path) -> None:
    """Sixty turns of an assistant; one of them takes a sign of the shop next door for its own."""
    random.seed(7)
    with Versioned(Disk(path)) as state:
        state["plan"] = {"goal": "answer customers of the tea shop", "steps": ["read the signs", "answer"]}
        state["memory/hours"] = {"opens": 9, "closes": 18, "source": "the sign at the door"}
        state["memory/prices"] = {"mug": 12.5, "pot": 34.0}
        state["memory/stock"] = {"tea": 40, "mug": 7}
        state["chat"] = [{"role": "system", "content": "You answer the customers of a tea shop."}]
        state["score"] = 0.5
        state["sales/daily"] = np.round(
            40 + 12 * np.sin(np.arange(2000) / 60) + np.random.default_rng(7).normal(0, 4, 2000), 1
        )
        state["sales/orders"] = [
            {"item": ITEMS[i % 4], "pieces": 1 + i % 3, "euros": 4.5 * (1 + i % 5), "paid": i % 7 > 0}
            for i in range(120)
        ]
        state["photos/door"] = picture()
        state.commit("begin", model="small-2")
        for turn in range(60):
            question, key, answer = QUESTIONS[turn % 3]
            if turn == 23:
                state["memory/hours"]["opens"] = 10
                state["memory/hours"]["source"] = "a photo of the street"
                state.commit("read a photo", model="small-2", tool="look")
            facts = {**state["memory/hours"], **state["memory/stock"], **state["memory/prices"]}
            function = {"name": "recall", "arguments": json.dumps({"about": key})}
            call = {"id": f"call-{turn}", "function": function}
            found = json.dumps(state[f"memory/{key}"])
            state["chat"] += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": found},
                {"role": "assistant", "content": answer.format(**facts)},
            ]
            state["score"] = round(0.6 + 0.3 * math.sin(turn / 9) + random.random() / 20, 3)
            state.commit(f"answered turn {turn}", model="small-2")
            if turn == 40:
                state.tag("evening")
                state.create_branch("what-if", at="HEAD~3")
        state.switch("what-if")
        state["plan"]["steps"].append("ask the owner when signs disagree")
        state["memory/stock"]["tea"] = 38
        state.commit("another policy", model="large-1")
        state.switch("main")
        state["memory/stock"]["tea"] = 31
        state["sales/orders"][3]["paid"] = state["sales/orders"][7]["paid"] = False
        state["sales/orders"][5]["euros"] = 27.5
        state.commit("counted the shelf")


PICTURES = {
    "view": "all=1&key=chat",
    "diff": "all=1&find=photo&key=memory/hours&tab=diff&beside=1",
    "life": "key=score&tab=life",
    "blame": "key=memory/hours&tab=blame",
    "merge": "page=merge&theirs=what-if",
    "health": "page=health",
    "table": "key=sales/orders",
    "array": "key=sales/daily",
    "search": "key=plan",
    "write": "find=photo&key=memory/hours&all=1",
    "dark": "all=1&fold=0&against=evening&beside=1",
    "narrow": "pane=value&key=chat",
}


def take(page: Page, base: str, name: str, place: str) -> None:
    """One picture."""
    page.goto("about:blank")
    page.goto(f"{base}/#/?{place}")
    page.locator(".commit").first.wait_for(state="attached")
    if "find=" in place:
        page.get_by_text("read a photo", exact=True).click()
        page.locator("h2", has_text="read a photo").wait_for()
    if name == "search":
        page.keyboard.press("/")
        page.keyboard.type("opens")
        page.locator(".found li").first.wait_for()
    if name == "write":
        page.get_by_role("button", name="Revert this commit").click()
        page.get_by_role("dialog").get_by_text("modified").wait_for()
    page.wait_for_timeout(700)
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"{name}.png  {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


def take_all(playwright: Playwright, url: str, writing_url: str) -> None:
    """All pictures, of the viewers at these addresses: one for reading, and one that may write."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    for name, place in PICTURES.items():
        scheme = "dark" if name == "dark" else "light"
        width = 390 if name == "narrow" else 1280
        page = browser.new_page(viewport={"width": width, "height": 760}, color_scheme=scheme)
        page.set_default_timeout(10_000)
        address = writing_url if name == "write" else url
        page.goto(address)
        take(page, address.partition("/?")[0], name, place)
        page.close()
    browser.close()


def main() -> None:
    """Take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = Path(folder) / "agents" / "tea-shop"
        make_store(store)
        with viewing(store) as url, viewing(store, "--write") as writing_url:
            take_all(playwright, url, writing_url)


@contextmanager
def viewing(store: Path, *options: str) -> Iterator[str]:
    """A viewer of the store; its address."""
    command = [sys.executable, "-m", "vstate_cli", "view", str(store), "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
