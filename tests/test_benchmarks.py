"""The benchmarks run, on two cheap workloads. The figures do not matter here."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from running import imported_packages

pytestmark = pytest.mark.slow

TOP = Path(__file__).parent.parent

pytest.importorskip("kvgit", reason="kvgit is not installed; it comes with the extra vstate[bench]")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python at the top of the repository."""
    return subprocess.run([sys.executable, *words], cwd=TOP, capture_output=True, text=True, timeout=500)


def test_chosen_rows_are_measured_and_written(tmp_path: Path) -> None:
    """The table has the chosen rows, and the JSON file their samples, medians and ratios.

    A peer that is not installed is named, with the reason.
    """
    file = tmp_path / "results.json"
    chosen = "^(merge of two branches with one change each, 1,000 keys, memory|1,000 events.*)$"
    done = run(
        "-m", "benchmarks", "--rows", chosen, "--repeat", "1", "--json", str(file), "--scratch", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "merge of two branches" in done.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["versions"]["kvgit"] == "0.4.3"
    events, growth, merging = sorted(report["rows"], key=lambda row: str(row["name"]))
    assert [len(merging["samples"][side]) for side in ("vstate", "kvgit")] == [1, 1]
    for peer in ("doltlite", "prollytree"):
        assert find_spec(peer) or f"{peer} is not measured: its package is not installed" in done.stdout
    (target,) = merging["targets"]
    ratio = merging["medians"]["vstate"] / merging["medians"]["kvgit"]
    assert target["reached"] == pytest.approx(ratio)
    assert target["met"] == (ratio <= 0.6)
    assert events["unit"] == "bytes"
    assert events["medians"]["vstate"] > 0
    assert growth["unit"] == "ratio"


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


def test_the_extra_bench_has_the_packages_that_the_benchmarks_import() -> None:
    """`make bench` works after an installation of `.[bench]` alone, servers included."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]

    def names(requirements: list[str]) -> set[str]:
        """The names of the packages; the extras of vstate stand for their packages."""
        found: set[str] = set()
        for requirement in requirements:
            if own := re.match(r"vstate\[(.*)\]", requirement):
                found |= names([one for extra in own[1].split(",") for one in extras[extra]])
            else:
                found.add(re.split(r"[^\w-]", requirement)[0])
        return found

    installed = names(project["dependencies"] + extras["bench"])
    servers = [TOP / "tests" / name for name in ("postgres_server.py", "redis_server.py")]
    files = [*(TOP / "benchmarks").glob("*.py"), *servers]
    used = set().union(*(imported_packages(file.read_text("utf-8")) for file in files))
    ours = {"benchmarks", "vstate", *(file.stem for file in (TOP / "tests").glob("*.py"))}
    # The sessions of the Agents SDK are measured only where it is installed.
    providers = {"agents": ["openai-agents"], **importlib.metadata.packages_distributions()}
    missing = {
        package
        for package in used - ours - sys.stdlib_module_names
        if not installed & set(providers.get(package, [package]))
    }
    assert not missing


def test_the_time_of_a_slow_row_is_shown_by_module() -> None:
    """The lines name modules of vstate, and add up to the last one."""
    done = run("-m", "benchmarks.where", "--cases", "append to a chat list")
    assert done.returncode == 0, done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert lines[0] == ["ms of one core", "append to a chat list"]
    cells = {name: 0.0 if cell == "–" else float(cell) for name, cell in lines[2:]}
    whole = cells.pop("in all")
    modules = [name.strip("`") for name in cells if name.endswith(".py`")]
    assert "values/pickling.py" in modules
    assert [name for name in modules if not (TOP / "vstate" / name).exists()] == []
    assert sum(cells.values()) == pytest.approx(whole, abs=0.1 * len(cells))
