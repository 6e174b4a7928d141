"""Troubles: context managers that keep a store from writing."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from loop_image import loop_image, run, why_not

from vstate import Disk

STEP = 4096
"""Bytes between two amounts of room: SQLite writes pages of this size."""

Trouble = Callable[[Path, int], object]
"""A context manager. It gets the store's directory and the number of steps of room to leave."""


@contextmanager
def full_disk(store: Path, room: int) -> Iterator[None]:
    """A file beside the store takes all room but this much."""
    filler = store.parent / "filler"
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
    try:
        for size in (1 << 20, 1 << 16, 4096, 512):
            piece = bytes(size)
            try:
                while True:
                    os.write(descriptor, piece)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        os.fsync(descriptor)
        taken = os.fstat(descriptor).st_size
        os.ftruncate(descriptor, max(0, taken - room * STEP))
        yield
    finally:
        os.close(descriptor)
        filler.unlink()


@contextmanager
def limited_files(store: Path, room: int) -> Iterator[None]:
    """No file of this process may grow beyond the log's present size and this much more."""
    import resource  # not on Windows

    log = store / "vstate.db-wal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = log.stat().st_size if log.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room * STEP, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(store: Path, room: int) -> Iterator[None]:
    """The kernel finds an error in the file system, and refuses all writes.

    At the end the file system is mounted anew. No file may be open there then.
    """
    place = store.parent
    device = next(
        line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if f" {place} " in line
    )
    (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("made by a test")
    try:
        yield
    finally:
        run("umount", place)
        run("mount", "-t", "ext4", "-o", "errors=remount-ro", device, place)


@contextmanager
def removed(store: Path, room: int) -> Iterator[None]:
    """The directory is moved away, and put back at the end."""
    aside = store.with_name("aside")
    store.rename(aside)
    try:
        yield
    finally:
        if store.exists():  # the store must not have been made anew
            raise AssertionError(f"{store} was made anew: {os.listdir(store)}")
        aside.rename(store)


# Places for the store


@contextmanager
def plain_directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


@contextmanager
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 3 MB."""
    place = tmp_path / "tmpfs"
    place.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place)
    except OSError as error:
        pytest.skip(f"a tmpfs cannot be mounted here: {error}")
    try:
        yield place
    finally:
        run("umount", place)


@contextmanager
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system of 8 MB."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with loop_image(tmp_path / "image", tmp_path / "ext4") as image:
        image.make(8)
        image.mount("errors=remount-ro")
        yield image.place


def quota(disk: Disk, room: int) -> Disk:
    """The same store with a quota of its present size and this much more."""
    with closing(sqlite3.connect(Path(disk.location) / "vstate.db")) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    return Disk(disk.location, size_limit=(pages + room) * STEP)
