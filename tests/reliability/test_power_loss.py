"""Power cuts: every acknowledged commit is on the disk, and the store is whole at any moment."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from loop_image import MEGABYTES, loop_image, why_not
from preload import compiled
from scripts import HERE, LONGEST, Record, run_script
from simulated_disk import Line, SimulatedDisk, read_record
from soak import sized
from soundness import check_sound
from story import check_story, tell
from story_writer import FAILED, is_tagged

from vstate import Disk, Versioned
from vstate.errors import VStateError

IMAGES = sized(6, 500)
SHUTDOWNS = sized(6, 500)
COMMITS = sized(130, 300)
CUTS = sized(30, 20_000)

pytestmark = pytest.mark.timeout(LONGEST)


@pytest.fixture
def needs_loop_devices() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@contextmanager
def writer(
    directory: Path, durability: str, how: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that commits. It is killed at the end."""
    path = os.pathsep.join(filter(None, [str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, str(HERE / "story_writer.py"), str(directory), durability, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def available(pipe: IO[bytes]) -> bytes:
    """The bytes that can be read without waiting."""
    found = b""
    while select.select([pipe], [], [], 0)[0]:
        part = os.read(pipe.fileno(), 65536)
        if not part:
            break
        found += part
    return found


def missing_from(store: Path, acknowledged: Sequence[int], *, fsck: bool = True) -> list[str]:
    """Open the store that a power cut left, check it, and commit once more. Returns the missing commits and
    tags.

    Raises if the store is damaged.
    """
    if not (store / "vstate.db").exists():
        return [f"commit {n}" for n in acknowledged]
    with Disk(store) as disk:
        found = check_story(disk, looked_at=5)
        check_sound(disk, fsck=fsck)
        state = Versioned(disk, branch="main")
        tags = state.tags()
        missing = [f"commit {n}" for n in acknowledged if n > found]
        missing += [f"tag {n}" for n in acknowledged if is_tagged(n) and f"t{n}" not in tags]
        tell(state, found + 1)
        assert state.commit(str(found + 1)) is not None
        check_story(disk)
    return missing


def missing_or_damaged(store: Path, acknowledged: Sequence[int]) -> list[str]:
    """The same for the control, where the store may also be damaged."""
    try:
        return missing_from(store, acknowledged)
    except (VStateError, AssertionError, ValueError) as error:
        return [repr(error)]


def images_at_acknowledgements(
    tmp_path: Path,
    count: int,
    durability: str,
    look: Callable[[Path, Sequence[int]], list[str]],
    **environment: str,
) -> list[list[str]]:
    """Copy the image `count` times while a writer waits after an acknowledgement.

    Returns the losses of each copy.
    """
    chance = random.Random(11)
    lost = []
    with loop_image(tmp_path / "image", tmp_path / "mounted") as image:
        image.make(MEGABYTES + count // 2)  # its history grows with each image
        image.mount()
        with writer(image.place / "new" / "store", durability, "STEP", **environment) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            acknowledged = 0
            for number in range(count):
                for _ in range(chance.randrange(1, 12) if number else 1):
                    if acknowledged:
                        process.stdin.write(b"go on\n")
                    acknowledged = int(process.stdout.readline())
                image.copy_at_one_moment(tmp_path / "copy")
                with loop_image(tmp_path / "copy", tmp_path / "copied") as copy:
                    copy.mount()
                    lost.append(look(copy.place / "new" / "store", range(1, acknowledged + 1)))
    return lost


@pytest.mark.usefixtures("needs_loop_devices")
def test_images_at_acknowledgements(tmp_path: Path, record: Record) -> None:
    """A disk that is copied after an acknowledgement and mounted anew holds that commit and all before it."""
    lost = images_at_acknowledgements(tmp_path, IMAGES, "power", missing_from)
    assert lost == [[]] * IMAGES
    record(images=IMAGES)


@pytest.mark.usefixtures("needs_loop_devices")
def test_images_without_syncs_lose_commits(tmp_path: Path, record: Record) -> None:
    """The control: with an fsync that does nothing, and with durability "process", the same test finds
    losses.
    """
    environment = compiled("faulty_disk.c", tmp_path)
    environment["FAULTY_DISK_SKIPS_SYNCS"] = "1"
    for name, durability, variables in (("no fsync", "power", environment), ("process", "process", {})):
        place = tmp_path / durability
        place.mkdir()
        lost = images_at_acknowledgements(place, 3, durability, missing_or_damaged, **variables)
        assert any(lost), name
        record(**{f"lossy of 3, {name}": sum(map(bool, lost))})


@pytest.mark.usefixtures("needs_loop_devices")
def test_a_file_system_that_is_shut_down(tmp_path: Path, record: Record) -> None:
    """A file system that is cut off from its disk under a writer, and mounted anew, holds every acknowledged
    commit.
    """
    chance = random.Random(13)
    endings: Counter[str] = Counter()
    acknowledged = 0
    with loop_image(tmp_path / "image", tmp_path / "mounted") as image:
        for number in range(SHUTDOWNS):
            if number % 25 == 0:
                image.close()
                image.make()
            image.mount()
            with writer(image.place / "store", "power", "RUN") as process:
                assert process.stdout is not None
                heard = process.stdout.readline()
                time.sleep(chance.uniform(0, 0.05))
                heard += available(process.stdout)
                # Later acknowledgements do not count. During the shutdown an fsync was seen to succeed in
                # part; a power cut leaves no machine that could report it.
                image.shut_down()
                _, error = process.communicate(timeout=200)
            # The shared memory beside SQLite's log is a file of the same file system, and may be gone too.
            status = process.returncode
            assert status in (FAILED, -signal.SIGBUS), f"{status}: {error.decode()[-3000:]}"
            endings["a vstate error" if status == FAILED else "SIGBUS"] += 1
            numbers = [int(line) for line in heard[: heard.rfind(b"\n")].split()]
            image.unmount()
            image.mount()
            assert missing_from(image.place / "store", numbers) == []
            acknowledged += len(numbers)
            image.unmount()
    record(shutdowns=SHUTDOWNS, acknowledged=acknowledged, **endings)


def recorded(durability: str, record: Path, store: Path, environment: dict[str, str]) -> list[Line]:
    """The record of a writer of `COMMITS` commits."""
    run_script("story_writer.py", store, durability, COMMITS, record, **environment)
    return list(read_record(record))


def test_a_simulated_disk_without_syncs_loses_commits(
    tmp_path: Path, fast_path: Path, record: Record
) -> None:
    """The control: with durability "process" a simulated power cut loses acknowledged commits."""
    environment = compiled("faulty_disk.c", tmp_path)
    lines = recorded("process", tmp_path / "record", fast_path / "store", environment)
    while lines.pop().kind != "s":  # before the last sync: a checkpoint, or the end of the store
        pass
    while lines[-1].kind != "a":  # up to an acknowledgement
        lines.pop()
    disk = SimulatedDisk()
    for line in lines:
        disk.feed(line)
    disk.cut(fast_path / "cut", random.Random(19), kept=0.0)
    missing = missing_or_damaged(fast_path / "cut", range(1, disk.acknowledged + 1))
    assert missing
    record(missing=len(missing))


def test_any_unsynced_part_may_be_lost(tmp_path: Path, fast_path: Path, record: Record) -> None:
    """A power cut may lose any unsynced sectors, at any moment. All acknowledged commits are there."""
    environment = compiled("faulty_disk.c", tmp_path)
    lines = recorded("power", tmp_path / "record", fast_path / "store", environment)
    chance = random.Random(17)
    disk = SimulatedDisk()
    fed = 0
    for place in sorted(chance.choices(range(1, len(lines) + 1), k=CUTS)):
        for line in lines[fed:place]:
            disk.feed(line)
        fed = place
        disk.cut(fast_path / "cut", chance, kept=chance.choice((0.0, 0.3, 0.7, 1.0)))
        acknowledged = range(1, disk.acknowledged + 1)
        missing = missing_from(fast_path / "cut", acknowledged, fsck=sized(place % 10 == 0, True))
        assert missing == [], f"cut at line {place} of {len(lines)}"
    record(cuts=CUTS, writes=sum(line.kind == "w" for line in lines), commits=COMMITS)
