"""Take the pictures of the viewer anew: `make screenshots`. It needs Chromium and the extra dev.

The store is that of an assistant in a shop. Somewhere a wrong belief got into its memory.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, Playwright, sync_playwright

from vstate import Disk, Versioned

IMAGES = Path(__file__).parent / "images"
HOURS = ["opens at 9", "closes at 18", "is closed on Sundays"]
QUESTIONS = [
    ("When do you open?", "hours", "We open at {opens}."),
    ("Do you have green tea?", "stock", "Yes: {tea} packs are on the shelf."),
    ("What does the blue mug cost?", "prices", "It costs {mug} euros."),
]


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
        state.commit("counted the shelf")


PICTURES = {
    "view": "all=1&key=chat",
    "diff": "all=1&find=photo&key=memory/hours&tab=diff&beside=1",
    "life": "key=score&tab=life",
    "blame": "key=memory/hours&tab=blame",
    "merge": "page=merge&theirs=what-if",
    "health": "page=health",
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
    page.wait_for_timeout(700)
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"{name}.png  {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


def take_all(playwright: Playwright, url: str) -> None:
    """All pictures, of the viewer at this address."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    for name, place in PICTURES.items():
        scheme = "dark" if name == "dark" else "light"
        width = 390 if name == "narrow" else 1280
        page = browser.new_page(viewport={"width": width, "height": 760}, color_scheme=scheme)
        page.set_default_timeout(10_000)
        page.goto(url)
        take(page, url.partition("/?")[0], name, place)
        page.close()
    browser.close()


def main() -> None:
    """Take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        store = Path(folder) / "tea-shop"
        make_store(store)
        command = [sys.executable, "-m", "vstate_cli", "view", str(store), "--json"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            take_all(playwright, url)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
