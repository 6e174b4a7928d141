"""Run the reliability tests and print their figures: `make reliability`.

With VSTATE_SOAK set, it runs the long variants. `--page docs/reliability.md` also puts the table into that
page. Further arguments go to pytest. PYTHONPATH has to hold the directory `tests`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts import HERE
from soak import SOAK, sized

MARKS = ("<!-- soak -->", "<!-- /soak -->") if SOAK else ("<!-- figures -->", "<!-- /figures -->")


@dataclass
class Outcome:
    """The outcome of a test function, over all its variants."""

    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def sum(self, *names: str) -> str:
        """The sum of a figure over all variants, with commas."""
        return f"{round(sum(sum(self.figures[name]) for name in names)):,}"

    def each(self, name: str) -> str:
        return f"{round(self.figures[name][0]):,}"


@dataclass(frozen=True)
class Row:
    """A line of the table: the trouble, the test, and a function that words the figures."""

    trouble: str
    test: str
    say: Callable[[Outcome], str]


ROWS = [
    Row(
        "SIGKILL at a random moment of a commit, a commit that lost a race, merge, update, two updates in "
        "one transaction, import, gc, gc that cuts histories, forgetting, and of opening and closing",
        "test_kills.py::test_kills",
        lambda o: (
            f"{o.sum('kills')} kills ({o.sum('in its COMMIT')} in an SQLite COMMIT, {o.sum('inside one')} "
            f"elsewhere in a transaction, {o.sum('before a transaction')} before, "
            f"{o.sum('after it, not acknowledged yet')} after one): 0 of {o.sum('acknowledged')} "
            "acknowledged commits lost or damaged"
        ),
    ),
    Row(
        "Power cut after an acknowledgement: ext4 on a loop device, copied and mounted anew",
        "test_power_loss.py::test_images_at_acknowledgements",
        lambda o: f"{o.sum('images')} images: 0 commits lost, 0 damaged",
    ),
    Row(
        "The same without syncs, which has to find losses",
        "test_power_loss.py::test_images_without_syncs_lose_commits",
        lambda o: (
            f"`fsync` that does nothing: {o.each('lossy of 3, no fsync')} of 3 images lost commits; "
            f'`durability="process"`: {o.each("lossy of 3, process")} of 3'
        ),
    ),
    Row(
        "Power cut under a running writer: ext4 shut down without writing its journal, and mounted anew",
        "test_power_loss.py::test_a_file_system_that_is_shut_down",
        lambda o: (
            f"{o.sum('shutdowns')} shutdowns: 0 of {o.sum('acknowledged')} acknowledged commits lost; the "
            f"writer got an error of vstate {o.sum('a vstate error')} times, SIGBUS {o.sum('SIGBUS')} times"
        ),
    ),
    Row(
        "Power cut on a simulated disk: at any moment, any unsynced sectors are lost",
        "test_power_loss.py::test_any_unsynced_part_may_be_lost",
        lambda o: (
            f"{o.sum('cuts')} cuts among {o.sum('writes')} writes of {o.sum('commits')} commits: 0 commits "
            "lost, 0 stores damaged"
        ),
    ),
    Row(
        'The same with `durability="process"`, which has to find losses',
        "test_power_loss.py::test_a_simulated_disk_without_syncs_loses_commits",
        lambda o: f"{o.sum('missing')} acknowledged commits and tags missing",
    ),
    Row(
        f"Each `fsync` and `fdatasync` of {sized(24, 50)} commits fails once, or also every later one, or "
        "the process dies; then the power is cut, and the data of the failed sync is lost",
        "test_failing_syncs.py::test_each_sync_fails",
        lambda o: (
            f"{o.sum('syncs')} failing syncs, {o.sum('StoreUnavailable')} errors of vstate, {o.sum('cuts')} "
            "power cuts: 0 acknowledged commits lost"
        ),
    ),
    Row(
        "Each call of the store fails, before its work or after a write; the program goes on",
        "test_interruptions.py::test_a_failure_at_each_call",
        lambda o: (
            f"{o.sum('faults')} faults in {o.passed // 2} operations, with and without transactions: all "
            "right"
        ),
    ),
    Row(
        "The process dies in each writing call, with every subset of the call's writes done; of many writes "
        "with the most telling subsets and random ones",
        "test_interruptions.py::test_a_crash_in_each_call",
        lambda o: (
            f"{o.sum('crashes')} crashes in {o.passed // 2} operations, with and without transactions: "
            "all right"
        ),
    ),
    Row(
        "A full ext4, a full tmpfs, a limit on file sizes, a file system that became read-only, and a "
        "removed directory, during commit, merge and gc, at every amount of room in steps of "
        + sized("12 KB; for gc of 32 KB", "4 KB"),
        "test_no_room.py::test_a_store_that_cannot_write",
        lambda o: (
            f"{o.sum('StoreFull')} StoreFull and {o.sum('StoreUnavailable')} StoreUnavailable raised; "
            "nothing lost, all done once there was room"
        ),
    ),
    Row(
        f"A quota (`size_limit`) at every {sized('third ', '')}number of pages, during commit, merge and gc",
        "test_no_room.py::test_a_quota",
        lambda o: f"{o.sum('StoreFull')} StoreFull raised; nothing lost; gc never refused",
    ),
    Row(
        sized(
            "Every 13th byte of a store's file damaged, one at a time, with all its bits inverted; fsck "
            "repairs after every eighth",
            "Every byte of a store's file damaged, one at a time, with all its bits inverted and with each "
            "bit alone; then fsck repairs",
        ),
        "test_flips.py::test_every_byte_of_the_file",
        lambda o: (
            f"{o.sum('read', 'fsck', 'harmless')} damaged: {o.sum('read')} found by reading, {o.sum('fsck')} "
            f"by fsck, {o.sum('harmless')} harmless (SQLite does not use the byte); 0 wrong values, 0 "
            f"crashes; `fsck --repair` after {o.sum('mended', 'left', 'refused')} of them: {o.sum('mended')} "
            f"in order then, {o.sum('left')} reported as still damaged, {o.sum('refused')} cannot be opened; "
            "0 wrong values"
        ),
    ),
    Row(
        sized("Every 251st byte", "Every byte")
        + " of SQLite's log damaged, one at a time, as a killed process left it",
        "test_flips.py::test_bytes_of_the_log",
        lambda o: (
            f"{o.sum('read', 'fsck', 'harmless', 'older')} damaged: 0 wrong values, 0 crashes; in "
            f"{o.sum('older')} cases the store is that of an earlier commit (see below)"
        ),
    ),
    Row(
        "Processes that count in one key with `apply`",
        "test_many_writers.py::test_processes_that_count",
        lambda o: (
            f"{o.sum('counter')} increments, 0 lost, in {o.sum('seconds')} s; the smallest share of a "
            f"process in any {o.each('window')} commits in a row: {o.figures['share'][0]:.1%}"
        ),
    ),
    Row(
        "Writers beside a process that runs gc all the time; then fsck",
        "test_many_writers.py::test_writers_beside_gc",
        lambda o: (
            f"{o.sum('seconds')} s, {o.sum('gc')} runs of gc, {o.sum('objects removed')} objects removed "
            f"beside {o.sum('commit', 'count', 'what_if', 'rollback')} commits: 0 missing, 0 dangling"
        ),
    ),
    Row(
        "The same with threads on a store without transactions",
        "test_many_writers.py::test_writers_beside_gc_without_transactions",
        lambda o: (
            f"{o.sum('seconds')} s, {o.sum('gc')} runs of gc, {o.sum('objects removed')} objects removed: "
            "0 missing, 0 dangling"
        ),
    ),
    Row(
        "Random branches, tags, commits, merges with policies, update, rollback, reset, undo, redo, gc, gc "
        "that cuts histories, and reopening, compared with a model after each step; in memory, on Disk, and "
        "without transactions",
        "test_history_machine.py::test_histories",
        lambda o: f"{o.sum('steps')} steps, no difference",
    ),
]


def outcomes(file: Path) -> dict[str, Outcome]:
    """The results of pytest, by `module.py::function`."""
    found: dict[str, Outcome] = defaultdict(Outcome)
    for case in ElementTree.parse(file).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        outcome = found[f"{module}.py::{case.get('name', '').partition('[')[0]}"]
        outcome.seconds += float(case.get("time", 0))
        if (skipped := case.find("skipped")) is not None:
            outcome.skipped.append(skipped.get("message", ""))
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
        else:
            outcome.passed += 1
        for figure in case.iter("property"):
            outcome.figures[figure.get("name", "")].append(float(figure.get("value", "0")))
    return found


def table(found: dict[str, Outcome]) -> str:
    """The figures in Markdown."""
    lines = ["| trouble | test | measured |", "|---|---|---|"]
    for row in ROWS:
        module, _, function = row.test.partition("::")
        lines.append(f"| {row.trouble} | `{module}`: `{function}` | {_said(row, found.get(row.test))} |")
    return "\n".join(lines)


def _said(row: Row, outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    if outcome.failed:
        return f"**failed**: {outcome.failed} of {outcome.failed + outcome.passed}"
    skipped = f"skipped: {'; '.join(sorted(set(outcome.skipped)))}" if outcome.skipped else ""
    if not outcome.passed:
        return skipped
    return row.say(outcome) + (f" ({skipped})" if skipped else "")


def put_into(page: Path, text: str) -> None:
    """Replace the text between the two marks of the page."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not mark or not end:
        raise ValueError(f"{page} has no {MARKS[0]} … {MARKS[1]}")
    page.write_text(f"{before}{mark}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the reliability tests and print their figures.")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="also put the table into this Markdown page"
    )
    options, others = parser.parse_known_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(HERE),
            f"--junitxml={file}",
            "-o",
            "junit_family=xunit1",
        ]
        status = subprocess.run([*command, "-q", *others], cwd=HERE.parent.parent).returncode
        if not file.exists():
            return status
        found = outcomes(file)
    text = table(found)
    seconds = time.monotonic() - began
    print(f"\n{text}\n\n{'Soak' if SOAK else 'Test command'}: {seconds:.0f} s on {os.cpu_count()} cores")
    if options.page is not None:
        put_into(options.page, text)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
