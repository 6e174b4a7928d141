"""Disk: the store contract, and real processes, kills, quotas and damage."""

import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from soak import SOAK

from vstate.errors import CorruptStore, InvalidInput, NotFound, StoreFull, StoreUnavailable, UnsupportedFormat
from vstate.kv import Disk
from vstate.kv.disk.database import LOG_BYTES
from vstate.kv.disk.store import MAX_VALUE_BYTES


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    point = tmp_path / "mounted"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(point)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def _object(number: int) -> str:
    return f"o/{number * 0x9E3779B97F4A7C15 % 2**256:064x}"


def _start(program: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def _sql(directory: Path, statement: str) -> None:
    """Carry out a statement in the file of the store."""
    connection = sqlite3.connect(directory / "vstate.db")
    connection.execute(statement)
    connection.close()


# Opening


def test_create_false_makes_nothing(tmp_path: Path) -> None:
    """Without `create`, a missing directory, a directory without a store and an empty file are NotFound, and
    so is a pickle of a store that was removed. With it, directories are made with their parents.
    """
    with pytest.raises(NotFound, match="no store at"):
        Disk(tmp_path / "absent", create=False)
    with pytest.raises(NotFound, match="no store at"):
        Disk(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "vstate.db").touch()
    with pytest.raises(NotFound, match="empty"):
        Disk(tmp_path, create=False)
    with Disk(tmp_path / "a" / "b" / "c") as store:
        assert store.get("key") is None
        pickled = pickle.dumps(store)
    assert os.listdir(tmp_path / "a" / "b" / "c") == ["vstate.db"]
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(NotFound):
        pickle.loads(pickled)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
def test_durability_sets_synchronous(directory: Path, durability: Any, synchronous: int) -> None:
    """The writing connection syncs at every commit, or at checkpoints; the log is on and bounded in both."""
    with Disk(directory, durability=durability) as store:
        store.set("key", b"value")
        connection = store._writer.connection
        assert connection is not None
        for name, value in [
            ("synchronous", synchronous),
            ("journal_mode", "wal"),
            ("journal_size_limit", LOG_BYTES),
            ("busy_timeout", 0),
        ]:
            assert connection.execute(f"PRAGMA {name}").fetchone() == (value,)


# Keys and size


def test_a_value_that_is_there_already_costs_no_write(directory: Path) -> None:
    """Setting the same bytes again dirties no page, so the log stays as it is."""
    with Disk(directory) as store:
        store.set_many({_object(number): b"x" * 3000 for number in range(10)})
        before = os.stat(directory / "vstate.db-wal")
        assert store.transact({_object(number): b"x" * 3000 for number in range(10)}, {})
        after = os.stat(directory / "vstate.db-wal")
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        store.set(_object(1), b"y")
        assert store.get(_object(1)) == b"y"
        assert os.stat(directory / "vstate.db-wal").st_size > before.st_size


@pytest.mark.slow
def test_size_counts_the_log(directory: Path) -> None:
    """`size` is the bytes on the disk, and small rows cost little beside their own bytes. A huge transaction
    does not leave a huge log.
    """
    with Disk(directory, durability="process") as store:
        assert store.size() == sum(
            entry.stat().st_size for entry in directory.glob("*") if entry.suffix != ".db-shm"
        )
        store.set_many({_object(number): os.urandom(500) for number in range(2000)})
    with Disk(directory, durability="process") as store:
        assert 1_000_000 < store.size() < 1_400_000
        store.set("huge", bytes(3 * LOG_BYTES))
        store.delete("huge")
        for number in range(3):
            store.set("small", str(number).encode())
        assert os.stat(directory / "vstate.db-wal").st_size <= LOG_BYTES


def test_a_value_beyond_sqlite_is_refused(directory: Path) -> None:
    """More than a row of SQLite can hold raises InvalidInput."""
    with Disk(directory) as store:
        with pytest.raises(InvalidInput, match="at most"):
            store.set("key", bytes(MAX_VALUE_BYTES + 1))
        assert "key" not in store


# Threads, processes, forks, kills


@pytest.mark.slow
def test_processes_may_make_the_same_store_at_once(tmp_path: Path) -> None:
    """Of processes that make one store at the same moment, none mistakes the half-made one."""
    program = """if True:
        import sys, time
        from vstate.kv import Disk
        for number in range(20):
            while time.monotonic() < float(sys.argv[2]) + number * 0.015:
                pass
            with Disk(f"{sys.argv[1]}/{number}") as store:
                store.compare_and_swap("key", None, b"value")
                assert store.get("key") == b"value"
        """
    processes = [_start(program, tmp_path, time.monotonic() + 0.5) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=300)
    assert [process.returncode for process in processes] == [0, 0, 0]


# Quota and full disks


def _fill(store: Disk, value_bytes: int = 10_000) -> int:
    """Commit objects with a ref until the store is full; how many commits were done."""
    count = 0
    while True:
        old = None if count == 0 else str(count).encode()
        try:
            writes = {_object(count): os.urandom(value_bytes), "ref": str(count + 1).encode()}
            assert store.transact(writes, {"ref": old})
        except StoreFull:
            return count
        count += 1
        assert count < 10_000


def _holds(store: Disk, count: int) -> bool:
    """Whether the store holds what `_fill` has committed."""
    return store.get("ref") == b"%d" % count and set(store.keys("o/")) == set(map(_object, range(count)))


def test_a_quota_stops_writes_and_loses_nothing(directory: Path) -> None:
    """Beyond `size_limit` a transaction does nothing. Stored data stays, and deleting makes room. A store
    that is over a new, lower limit can be read and emptied, but takes no more.
    """
    with Disk(directory, size_limit=300_000) as store:
        count = _fill(store)
        assert count > 10
        with pytest.raises(StoreFull, match=r"size_limit of 300,000 bytes"):
            store.set("more", bytes(50_000))
        assert _holds(store, count)
        store.delete_many([_object(number) for number in range(5)])
        store.set("more", bytes(30_000))
        assert store.get("more") == bytes(30_000)
    assert os.stat(directory / "vstate.db").st_size <= 300_000
    with Disk(directory, size_limit=50_000) as store:
        assert len(list(store.keys("o/"))) == count - 5
        with pytest.raises(StoreFull):
            store.set("more", os.urandom(50_000))
        store.delete_many(["more", _object(5)])
        store.set("more", b"small")
    with Disk(directory, size_limit=10_000_000) as store:
        store.set("raised", bytes(500_000))
        assert store.get("ref") == b"%d" % count


def test_a_deletion_that_fails_lends_no_room(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion may take some pages beyond the limit. After one that failed, the limit is as before."""
    with Disk(directory, size_limit=300_000) as store:
        count = _fill(store)
        limit = store._database.spare_pages

        @contextmanager
        def failing(connection: sqlite3.Connection) -> Iterator[None]:
            with limit(connection):
                raise StoreUnavailable("no deletion")
            yield

        monkeypatch.setattr(store._database, "spare_pages", failing)
        with pytest.raises(StoreUnavailable, match="no deletion"):
            store.delete("ref")
        monkeypatch.undo()
        for _ in range(20):
            with pytest.raises(StoreFull):
                store.set("more", os.urandom(30_000))
        assert store.get("ref") == b"%d" % count


def test_a_full_disk_loses_nothing(mounted: Path) -> None:
    """When the file system is full, a transaction does nothing, and deleting other files makes room."""
    ballast = mounted / "ballast"
    ballast.write_bytes(bytes(200_000))
    with Disk(mounted / "store") as store:
        count = _fill(store)
        with pytest.raises(StoreFull, match=r"disk .* is full"):
            store.set("more", os.urandom(100_000))
        assert _holds(store, count)
        ballast.unlink()
        store.set("more", b"fits again")
    with Disk(mounted / "store") as store:
        assert store.get("more") == b"fits again"
        assert len(list(store.keys("o/"))) == count


# Damage and obstacles


NOT_VSTATES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "text": (
        lambda place: (place / "vstate.db").write_bytes(b"just some text, and no database\n" * 100),
        CorruptStore,
        "restore it from a copy",
    ),
    "a header": (
        lambda place: (place / "vstate.db").write_bytes(b"SQLite format 3\0" + bytes(5000)),
        CorruptStore,
        "restore it from a copy",
    ),
    "theirs": (lambda place: _sql(place, "CREATE TABLE theirs (x)"), InvalidInput, "another program"),
    "old": (lambda place: _made(place, 3), UnsupportedFormat, "3 .*before the first release"),
    "new": (lambda place: _made(place, 99), UnsupportedFormat, "99 .*upgrade"),
}


def _made(directory: Path, form: int) -> None:
    Disk(directory).close()
    _sql(directory, f"PRAGMA user_version={form}")


@pytest.mark.parametrize("kind", NOT_VSTATES)
def test_a_file_that_is_no_store_of_this_version(directory: Path, kind: str) -> None:
    """It is refused, with words, and stays as it is."""
    make, error, words = NOT_VSTATES[kind]
    directory.mkdir()
    make(directory)
    before = (directory / "vstate.db").read_bytes()
    with pytest.raises(error, match=words) as caught:
        Disk(directory)
    assert not isinstance(caught.value, CorruptStore) or caught.value.location == str(directory)
    assert (directory / "vstate.db").read_bytes() == before


@pytest.mark.parametrize("damage", ["garbage", "truncated", "table gone"])
def test_a_damaged_database(directory: Path, damage: str) -> None:
    """Damage inside the file is CorruptStore when it is met, in reads and in writes."""
    with Disk(directory) as store:
        store.set_many({_object(number): os.urandom(2000) for number in range(300)})
    file = directory / "vstate.db"
    if damage == "garbage":
        with file.open("r+b") as opened:
            opened.seek(4096)
            opened.write(os.urandom(file.stat().st_size - 4096))
    elif damage == "truncated":
        os.truncate(file, 8192)
    else:
        _sql(directory, "DROP TABLE kv")

    new = {_object(number): b"new" for number in range(300, 600)}
    old = [_object(number) for number in range(300)]
    for use in (lambda store: store.get_many(old), lambda store: store.set_many(new)):
        with pytest.raises(CorruptStore), Disk(directory) as store:
            use(store)


def test_a_damaged_index_finds_no_other_key(directory: Path) -> None:
    """`present` names keys that were asked for only, whichever byte at the end of the index is inverted."""
    with Disk(directory) as store:
        store.set_many({_object(number): b"value" for number in range(20)})
    file = directory / "vstate.db"
    data = file.read_bytes()
    end = next(page for page in range(4096, len(data), 4096) if data[page] == 10) + 4096  # a leaf of an index
    asked = {_object(number) for number in range(20)}
    for place in range(end - 200, end, 1 if SOAK else 7):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        with suppress(CorruptStore), Disk(directory) as store:
            assert store.present(asked) <= asked


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """A file where the directory or its parent should be, or a directory where the file should be."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "odd" / "vstate.db").mkdir(parents=True)
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "odd"):
        for create in (True, False):
            with pytest.raises(InvalidInput, match="choose another directory"):
                Disk(path, create=create)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_read_only_file_system(mounted: Path) -> None:
    """A place that cannot be written to raises an error with advice, for an old store and a new one."""
    Disk(mounted / "store").close()
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with pytest.raises(StoreUnavailable, match="writable"):
        Disk(mounted / "store").set("key", b"value")
    with pytest.raises(StoreUnavailable, match="writable"):
        Disk(mounted / "new")


def test_a_removed_directory(directory: Path) -> None:
    """Reads of refs and writes fail, rather than use a file that was moved away. A restored store works."""
    with Disk(directory) as store:
        store.set("ref", b"value")
        store.close()
    with Disk(directory) as store:
        assert store.get("ref") == b"value"
        store.set("ref", b"new")
        directory.rename(directory.with_name("moved"))
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="was removed"):
                store.get("ref")
            with pytest.raises(StoreUnavailable, match="was removed"):
                store.set("ref", b"newer")
            assert not directory.exists()
        directory.mkdir()
        with pytest.raises(StoreUnavailable, match="was removed"):
            store.set("ref", b"newer")
        assert os.listdir(directory) == []
        directory.rmdir()
        directory.with_name("moved").rename(directory)
        assert store.get("ref") == b"new"
        store.set("ref", b"newer")
    shutil.rmtree(directory)
    with Disk(directory) as store:
        assert store.get("ref") is None
