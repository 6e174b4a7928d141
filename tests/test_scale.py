"""`make scale` measures real threads: the copies that fill a store are as real puts would have left them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "langgraph.checkpoint.sqlite", reason="LangGraph is not installed; it comes with the extra vstate[bench]"
)

from benchmarks.scale.copies import Copy, Original, original_of, rows_of, write
from benchmarks.scale.service import STEPS, day, table
from benchmarks.scale.threads import branch_of, config_of, talk
from vstate.integrations.langgraph import VstateSaver
from vstate.kv import Disk, KVStore, Memory
from vstate.repo.names.refs import HEADS
from vstate.repo.rooms import new_room

# The words of the chats come from the docstrings of modules, some of which have names that warn.
pytestmark = pytest.mark.filterwarnings("ignore:typing:DeprecationWarning")

TOP = Path(__file__).parent.parent
NAMES = [f"thread {number}" for number in range(12)]
USERS = 3
SECOND = 1_000_000


def user_of(number: int) -> str:
    return f"user {number % USERS}"


def originals(store: KVStore) -> dict[str, Original]:
    """The threads of all names, which real puts have written."""
    saver = VstateSaver(store)
    for number, name in enumerate(NAMES):
        talk(saver, name, user_of(number), number)
    return {name: original_of(saver.repo, branch_of(name)) for name in NAMES}


@pytest.fixture
def multiplied(tmp_path: Path) -> Any:
    """A store with copies of threads: a second lies between two of them, and the last name is the newest."""
    found = originals(Memory())
    with Disk(tmp_path / "store") as store, VstateSaver(store) as saver:
        saver.repo.stamp()
        copies = [
            Copy(found[name], branch_of(name), new_room(), number * SECOND - 60 * SECOND)
            for number, name in enumerate(NAMES)
        ]
        assert list(write(store, copies)) == [len(NAMES)]
        yield saver


def texts(saver: VstateSaver, name: str) -> list[list[str]]:
    """The messages of each checkpoint of a thread."""
    chats = [one.checkpoint["channel_values"]["messages"] for one in saver.list(config_of(name))]
    return [[message["content"] for message in chat] for chat in chats]


def test_a_copy_has_the_rows_that_puts_have_written() -> None:
    """A copy with the same name, room and times is equal to its original, row by row."""
    for seed in count():
        saver = VstateSaver(Memory())
        talk(saver, "one", "somebody", seed)
        original = original_of(saver.repo, branch_of("one"))
        if all(commit.oid[-1] for commit in original.commits):  # no row of the commit graph
            break
    assert saver.repo.rooms is not None
    room = saver.repo.rooms.room_of(HEADS + branch_of("one"))
    written = dict(saver.repo.store.items())
    del written["format"]
    assert rows_of(Copy(original, branch_of("one"), room, 0)) == written


def test_a_row_that_a_copy_would_lack_is_refused() -> None:
    """A thread that shares its room with a branch is no original: its rows name more than a copy has."""
    saver = VstateSaver(Memory())
    talk(saver, "one", "somebody", 1)
    saver.repo.create_branch("two", branch_of("one"))
    with pytest.raises(ValueError, match=r"has a row \S+, which is not copied"):
        original_of(saver.repo, branch_of("one"))


def test_a_store_of_copies_is_whole_and_reads_as_a_real_one(multiplied: VstateSaver) -> None:
    """fsck finds nothing, each thread has its checkpoints, and the lists give what real threads give."""
    real = VstateSaver(Memory())
    for number, name in enumerate(NAMES):
        talk(real, name, user_of(number), number)
    checked = multiplied.repo.fsck()
    assert (checked.ok, checked.orphans, checked.refs) == (True, 0, len(NAMES))
    for name in NAMES:
        assert texts(multiplied, name) == texts(real, name)
    for wanted in ({"user": "user 1"}, {"source": "loop"}, {"user": "nobody"}):
        one, other = (
            {str(found.config) for found in saver.list(None, filter=wanted)} for saver in (multiplied, real)
        )
        assert one == other
    newest = [branch for branch, _ in multiplied.repo.newest_branches("threads/")]
    assert newest == [branch_of(name) for name in reversed(NAMES)]


def test_copies_are_deleted_collected_and_continued(multiplied: VstateSaver) -> None:
    """A deleted copy leaves no row, gc cuts copies off as a rule says, and a put goes on with one."""
    store, rooms = multiplied.repo.store, multiplied.repo.rooms
    assert rooms is not None
    first, second, *_ = NAMES
    start = f"room/{rooms.room_of(HEADS + branch_of(first)):016x}/"
    multiplied.delete_thread(config_of(first)["configurable"]["thread_id"])
    assert not [key for key in store.keys("") if key.startswith(start) or branch_of(first) in key]

    whole = texts(multiplied, second)
    multiplied.repo.keep("threads/*", last=1)
    report = multiplied.repo.gc(keep_reflog="0s")
    assert (report.shallow, report.rooms) == (len(NAMES) - 1, len(NAMES))
    assert texts(multiplied, second) == whole
    found = multiplied.get_tuple(config_of(second))
    assert found is not None
    multiplied.put_writes(found.config, [("messages", "more")], "task")
    assert multiplied.get_tuple(config_of(second)).pending_writes == [("task", "messages", "more")]
    assert multiplied.repo.fsck().ok


@pytest.mark.slow
def test_a_service_keeps_what_it_has_answered(tmp_path: Path) -> None:
    """Both sides answer requests, and each thread has all steps of its requests when the day is over."""
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
    """A row for each operation has its figures at both sizes, and the page says which goals hold."""
    page, file, picture = tmp_path / "page.md", tmp_path / "scale.json", tmp_path / "scale.svg"
    page.write_text("before\n\n<!-- scale -->\nold\n<!-- /scale -->\n\nafter\n", "utf-8")
    command = [sys.executable, "-m", "benchmarks.scale", "--sizes", "20,40", "--samples", "1", "--turns", "1"]
    places = [f"--page={page}", f"--json={file}", f"--picture={picture}", f"--scratch={tmp_path}"]
    done = subprocess.run([*command, *places], cwd=TOP, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text("utf-8"))
    disk, postgres = report["stores"]
    assert disk["sizes"] == postgres["sizes"] == [20, 40]
    put = next(row for row in disk["rows"] if row["name"].startswith("`put`"))
    ratio = put["medians"][1] / put["medians"][0]
    assert put["ratios"] == pytest.approx([1, ratio])
    assert put["holds"] is (ratio <= put["at_most"])
    text = page.read_text("utf-8")
    assert text.startswith("before\n\n<!-- scale -->\n\n| Disk | 20 | 40 |")
    assert text.endswith("<!-- /scale -->\n\nafter\n")
    assert all(text.count(f"\n| {row['name']} |") == 2 for row in disk["rows"])
    times = [row for row in disk["rows"] if row["unit"] == "seconds"]
    assert picture.read_text("utf-8").count("<polyline") == len(times)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.md", "scale.json", "scale.svg"]
