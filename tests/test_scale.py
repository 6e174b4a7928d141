"""`make scale` measures real threads: the copies that fill a store are as real puts would have left them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from soak import sized

pytest.importorskip(
    "langgraph.checkpoint.sqlite", reason="LangGraph is not installed; it comes with the extra vstate[bench]"
)

from benchmarks.scale import service
from benchmarks.scale.service import STEPS, day, table
from benchmarks.scale.threads import config_of
from vstate.integrations.langgraph import VstateSaver

# The words of the chats come from the docstrings of modules, some of which have names that warn.
pytestmark = pytest.mark.filterwarnings("ignore:typing:DeprecationWarning")

TOP = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_service_keeps_what_it_has_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides answer requests, and each thread has all steps of its requests when the day is over."""
    monkeypatch.setattr(service, "ARRIVALS", 0.5)  # a busy machine answers only a few requests
    sides = day(tmp_path, 60, 1.0)
    with VstateSaver(tmp_path / "vstate") as saver:
        new = [name for worker in sides[0].of_worker for name in worker if name.startswith("new")]
        assert new
        for name in new:
            found = saver.get_tuple(config_of(name))
            assert found is not None
            assert len(found.checkpoint["channel_values"]["messages"]) == found.metadata["step"] + 1
            assert (found.metadata["step"] + 1) % STEPS == 0
        assert saver.repo.fsck().ok
    ours, theirs = table(sides, 60).splitlines()[2:]
    assert ours.startswith(f"| vstate | {len(sides[0].requests):,} | ")
    assert theirs.startswith(f"| `SqliteSaver` | {len(sides[1].requests):,} | ")


@pytest.mark.slow
def test_the_command_writes_the_figures_the_table_and_the_picture(tmp_path: Path) -> None:
    """A row for each operation has its figures at both sizes, and the page says which goals hold.

    On Disk; in a soak on PostgreSQL too.
    """
    page, file, picture = tmp_path / "page.md", tmp_path / "scale.json", tmp_path / "scale.svg"
    page.write_text("before\n\n<!-- scale -->\nold\n<!-- /scale -->\n\nafter\n", "utf-8")
    command = [sys.executable, "-m", "benchmarks.scale", "--sizes", "20,40", "--samples", "1", "--turns", "1"]
    command += ["--stores", sized("disk", "disk,postgres")]
    places = [f"--page={page}", f"--json={file}", f"--picture={picture}", f"--scratch={tmp_path}"]
    done = subprocess.run([*command, *places], cwd=TOP, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text("utf-8"))
    disk, *others = report["stores"]
    assert all(store["sizes"] == [20, 40] for store in report["stores"])
    put = next(row for row in disk["rows"] if row["name"].startswith("`put`"))
    ratio = put["medians"][1] / put["medians"][0]
    assert put["ratios"] == pytest.approx([1, ratio])
    assert put["holds"] is (ratio <= put["at_most"])
    text = page.read_text("utf-8")
    assert text.startswith("before\n\n<!-- scale -->\n\n| Disk | 20 | 40 |")
    assert text.endswith("<!-- /scale -->\n\nafter\n")
    assert all(text.count(f"\n| {row['name']} |") == 1 + len(others) for row in disk["rows"])
    times = [row for row in disk["rows"] if row["unit"] == "seconds"]
    assert picture.read_text("utf-8").count("<polyline") == len(times)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.md", "scale.json", "scale.svg"]
