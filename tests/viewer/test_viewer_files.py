"""The files of the page."""

from __future__ import annotations

import hashlib
import json
import re

from vstate.viewer.page import STATIC, joined_script

MOST = 124_000  # bytes
MOST_STYLE = 25_000


def test_own_code_is_small() -> None:
    """Our own modules have fewer bytes than MOST in all; the style and the vendored files come on top."""
    assert sum(file.stat().st_size for file in STATIC.glob("*.js")) < MOST
    assert (STATIC / "style.css").stat().st_size < MOST_STYLE


def test_vendored_files() -> None:
    """Each vendored file is as its package has it: its hash is listed, with version and licence."""
    vendor = STATIC / "vendor"
    listed = json.loads((vendor / "VENDORED.json").read_text())
    scripts = {file.name for file in vendor.glob("*.js")}
    assert scripts == set(listed)
    for name, entry in listed.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == entry["sha256"]
        assert entry["version"]
        assert entry["licenses"]


def test_nothing_is_markup() -> None:
    """No module writes markup of its own: every text of a store is a text node."""
    for file in STATIC.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", file.read_text())


def test_joined_script() -> None:
    """The modules become one script, each after those that it imports."""
    script = joined_script("file", "main")
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert script.index("module_api = ") < script.index("module_keys = ") < script.index("module_main = ")
