"""The benchmarks run, on two cheap workloads. The figures do not matter here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOP = Path(__file__).parent.parent

pytest.importorskip("kvgit", reason="kvgit is not installed; it comes with the extra vstate[bench]")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python at the top of the repository."""
    return subprocess.run([sys.executable, *words], cwd=TOP, capture_output=True, text=True, timeout=500)


def test_options() -> None:
    """--list prints each row once; some rows cannot replace the table of a page, and none is an error."""
    script = """
import sys
from benchmarks.__main__ import main
for options in (["--list"], ["--rows", "import", "--page", "absent.md"], ["--rows", "no such row"]):
    sys.argv[1:] = options
    try:
        main()
    except SystemExit as exit:
        assert exit.code == 2
"""
    done = run("-c", script)
    assert done.returncode == 0, done.stderr
    names = done.stdout.splitlines()
    assert len(names) == len(set(names)) >= 24
    assert "import vstate" in names
    assert "leave out --rows or --page" in done.stderr
    assert "'no such row'; --list shows them" in done.stderr


def test_the_pages_show_the_measured_figures(tmp_path: Path) -> None:
    """The README has the headlines of results.json, and docs/benchmarks.md has all of its rows."""
    pages = {
        tmp_path / page.name: page.read_text("utf-8")
        for page in (TOP / "README.md", TOP / "docs/benchmarks.md")
    }
    for copy, text in pages.items():
        before, mark, after = text.partition("<!-- figures: ")
        which, _, rest = after.partition(" -->")
        copy.write_text(f"{before}{mark}{which} -->{rest[rest.index('<!-- /figures') :]}", "utf-8")
    done = run("-m", "benchmarks", "--measured", *(f"--page={copy}" for copy in pages))
    assert done.returncode == 0, done.stderr
    again = "python -m benchmarks --measured --page README.md --page docs/benchmarks.md"
    for copy, text in pages.items():
        assert text.count("\n| ") > (6 if copy.name == "README.md" else 60)
        assert copy.read_text("utf-8") == text, f"{copy.name} differs from results.json; run `{again}`"


def test_the_page_of_delta_channels_shows_the_measured_figures() -> None:
    """The table of docs/integrations.md is the one of deltas.json."""
    done = run("-c", "from benchmarks.deltas import *; print(table(json.loads(RESULTS.read_text('utf-8'))))")
    assert done.returncode == 0, done.stderr
    page = (TOP / "docs/integrations.md").read_text("utf-8")
    assert f"<!-- deltas -->\n\n{done.stdout}\n<!-- /deltas -->" in page
