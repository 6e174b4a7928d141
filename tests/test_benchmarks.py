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


def benchmarks(*options: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks` at the top of the repository."""
    command = [sys.executable, "-m", "benchmarks", *options]
    return subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=500)


def test_list_names_every_row() -> None:
    """--list prints the name of each row once."""
    done = benchmarks("--list")
    assert done.returncode == 0, done.stderr
    names = done.stdout.splitlines()
    assert len(names) == len(set(names)) >= 24
    assert "import vstate" in names


def test_chosen_rows_are_measured_and_written(tmp_path: Path) -> None:
    """The table has the chosen rows, and the JSON file their samples, medians and ratios.

    A peer has samples where it is installed. Elsewhere the output says why not.
    """
    file = tmp_path / "results.json"
    chosen = "^(open a store and read one key, 10,000 keys|1,000 events.*)$"
    done = benchmarks("--rows", chosen, "--repeat", "1", "--json", str(file), "--scratch", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "open a store and read" in done.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["versions"]["kvgit"] == "0.4.3"
    reading, events, growth = report["rows"]
    assert {"vstate", "kvgit"} <= set(reading["samples"])
    for peer in ("doltlite", "prollytree"):
        assert (peer in reading["samples"]) != (f"{peer} is not measured: " in done.stdout)
        assert find_spec(peer) or f"{peer} is not measured: its package is not installed" in done.stdout
    assert len(reading["samples"]["vstate"]) == 1
    (target,) = reading["targets"]
    ratio = reading["medians"]["vstate"] / reading["medians"]["kvgit"]
    assert target["reached"] == pytest.approx(ratio)
    assert target["met"] == (ratio <= 0.03)
    assert events["unit"] == "bytes"
    assert events["medians"]["vstate"] > 0
    assert growth["unit"] == "ratio"


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
    done = benchmarks("--measured", *(f"--page={copy}" for copy in pages))
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
    command = [sys.executable, "-m", "benchmarks.where", "--cases", "append to a chat list"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert lines[0] == ["ms of one core", "append to a chat list"]
    cells = {name: 0.0 if cell == "–" else float(cell) for name, cell in lines[2:]}
    whole = cells.pop("in all")
    modules = [name.strip("`") for name in cells if name.endswith(".py`")]
    assert "values/pickling.py" in modules
    assert [name for name in modules if not (TOP / "vstate" / name).exists()] == []
    assert sum(cells.values()) == pytest.approx(whole, abs=0.1 * len(cells))


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--rows", "import", "--page", "absent.md"], "--rows"), (["--rows", "no such row"], "--list")],
)
def test_a_usage_error(options: list[str], word: str) -> None:
    """Some rows cannot replace the table of all rows in a page; a pattern without a match names --list."""
    done = benchmarks(*options)
    assert done.returncode == 2
    assert word in done.stderr
