"""A log that does not belong to the file beside it: told at opening, and nothing is changed."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from soak import SOAK

from vstate import Disk, Versioned
from vstate.errors import CorruptStore
from vstate.kv.disk import database, log
from vstate.kv.disk.connections import usable_identity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

BUSY = """
import os, sys
from vstate import Disk
with Disk(sys.argv[1]) as disk:
    while True:
        disk.set_many({f"{sys.argv[2]}/{i}": os.urandom(3000) for i in range(50)})
"""


def write(path: Path, commits: int, *, killed: bool, size: int = 3000) -> None:
    """Commit in a child process, which closes the store, or ends as if it were killed."""
    child = os.fork()
    if not child:
        status = 1
        try:
            state = Versioned(Disk(path))
            for i in range(commits):
                state["n"] = state.get("n", 0) + 1
                state[f"k{i % 50}"] = os.urandom(size)
                state.commit(str(state["n"]))
            if not killed:
                state.store.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each `store` is a copy of."""
    place = tmp_path_factory.mktemp("made")
    write(place / "store", 30, killed=False)
    shutil.copytree(place / "store", place / "copy")
    write(place / "store", 150, killed=True)
    return place


@pytest.fixture
def store(tmp_path: Path, made: Path) -> Path:
    """A store of 30 commits, a copy of it beside it, and a log with the end of 150 more commits."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "store"


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def swap_with_another_store(store: Path, commits: int) -> None:
    write(store.parent / "other", commits, killed=False)
    shutil.copy(store.parent / "other" / "vstate.db", store)


CHANGES: dict[str, Callable[[Path], object]] = {
    "the copy is put back": lambda store: shutil.copy(store.parent / "copy" / "vstate.db", store),
    "the copy is moved back": lambda store: os.replace(store.parent / "copy/vstate.db", store / "vstate.db"),
    "the file is cut": lambda store: os.truncate(store / "vstate.db", size(store) // 8 // 4096 * 4096),
    "the file is gone": lambda store: (store / "vstate.db").unlink(),
    "the file is empty": lambda store: os.truncate(store / "vstate.db", 0),
    "another store": lambda store: swap_with_another_store(store, 20),
    "a bigger store": lambda store: swap_with_another_store(store, 400),
}


def size(store: Path) -> int:
    return (store / "vstate.db").stat().st_size


@pytest.mark.parametrize("without_index", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_log_of_another_file_is_told(store: Path, change: str, without_index: bool) -> None:
    """The error names the log and the way out; every file stays, and the way out works."""
    CHANGES[change](store)
    if without_index:
        (store / "vstate.db-shm").unlink()
    before = contents(store)
    for _ in range(2):
        with pytest.raises(CorruptStore, match=r"belongs to another file.*remove vstate\.db-wal") as caught:
            Disk(store)
        assert "put back the file" in str(caught.value)
        after = contents(store)
        assert {**after, "vstate.db-shm": b""} == {**before, "vstate.db-shm": b""}
    for name in ("vstate.db-wal", "vstate.db-shm"):
        (store / name).unlink(missing_ok=True)
    write(store.parent / "whole", 3, killed=False)
    shutil.copy(store.parent / "whole" / "vstate.db", store)
    with Disk(store) as disk:
        assert Versioned(disk)["n"] == 3


KILLED = [("as it is", 1), ("copied", 40), ("without the index", 400), ("with an old index", 400)]
if SOAK:
    KILLED = list(product([how for how, _ in KILLED], [1, 3, 40, 70, 150, 400]))


@pytest.mark.parametrize(("how", "commits"), KILLED)
def test_the_log_of_a_killed_program_is_its_own(tmp_path: Path, commits: int, how: str) -> None:
    """However much was copied into the file before the kill, the store opens with all commits."""
    write(tmp_path / "first", 30, killed=False)
    write(tmp_path / "first", commits, killed=True)
    store = tmp_path / "first"
    if how == "copied":
        store = Path(shutil.copytree(store, tmp_path / "second", copy_function=shutil.copyfile))
    elif how == "without the index":
        (store / "vstate.db-shm").unlink()
    elif how == "with an old index":
        (store / "vstate.db-shm").write_bytes(os.urandom(32768))
    with Disk(store) as disk:
        assert Versioned(disk)["n"] == 30 + commits
        assert list(disk.check()) == []


SESSIONS = list(product([20, 60, 200], [1, 2, 3, 5])) if SOAK else [(20, 5), (200, 1)]


@pytest.mark.parametrize(("before", "commits"), SESSIONS)
@pytest.mark.parametrize("put", [shutil.copy, os.replace])
def test_a_backup_of_before_the_last_session(
    tmp_path: Path, before: int, commits: int, put: Callable[[Path, Path], object]
) -> None:
    """A copy of about the same size is refused too, however few commits are in between and in the log."""
    store, backup = tmp_path / "store", tmp_path / "backup"
    write(store, before, killed=False, size=3)
    shutil.copy(store / "vstate.db", backup)
    write(store, commits, killed=False, size=3)
    write(store, 1, killed=True, size=3)
    put(backup, store / "vstate.db")
    files = contents(store)
    with pytest.raises(CorruptStore, match=r"belongs to another file.*remove vstate\.db-wal"):
        Disk(store)
    assert {**contents(store), "vstate.db-shm": b""} == {**files, "vstate.db-shm": b""}


def test_a_backup_of_just_before_the_log_goes_on_with_it(tmp_path: Path) -> None:
    """The file as it was when the log began is the file of the log."""
    write(tmp_path / "store", 30, killed=False)
    shutil.copy(tmp_path / "store" / "vstate.db", tmp_path)
    write(tmp_path / "store", 5, killed=True)
    shutil.copy(tmp_path / "vstate.db", tmp_path / "store")
    with Disk(tmp_path / "store") as disk:
        assert Versioned(disk)["n"] == 35
        assert list(disk.check()) == []


def test_the_first_commit_after_a_release_names_the_log_itself(tmp_path: Path) -> None:
    """A release cuts the log off. The next commit is one transaction, and the file has a new name by then."""
    with Disk(tmp_path / "store") as disk:
        disk.set("k", b"1")
        writer = disk._writer.connection
        assert writer is not None
        for number in range(3):
            disk.release()
            (before,) = writer.execute("SELECT names FROM log").fetchall()
            statements: list[str] = []
            writer.set_trace_callback(statements.append)
            disk.set("k", b"%d" % number)
            writer.set_trace_callback(None)
            assert [each.split()[0] for each in statements] == ["BEGIN", "INSERT", "UPDATE", "COMMIT"]
            ((after,),) = writer.execute("SELECT names FROM log").fetchall()
            assert after[: log.NAME_BYTES] not in before[0]


def test_a_release_waits_for_a_commit_that_is_under_way(tmp_path: Path) -> None:
    """The commit notes the salt of its log: without it, it would not see that it begins a log anew."""
    with Disk(tmp_path) as disk:
        disk.set("key", b"1")
        with disk._writer.lock:
            salt = disk._writer.salt
            release = threading.Thread(target=disk.release)
            release.start()
            release.join(0.5)
            assert disk._writer.salt == salt is not None
        release.join()
        assert disk._writer.salt is None


def test_a_file_that_another_process_makes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that found no file, and then the one of another process, knows this one from then on."""
    looks = []

    def other_first(path: str) -> object:
        found = usable_identity(path)
        looks.append(found)
        if len(looks) == 1:
            write(tmp_path, 1, killed=False)
        return found

    monkeypatch.setattr(database, "usable_identity", other_first)
    with Disk(tmp_path) as disk:
        assert disk.get("absent") is None
    assert looks[0] is None


def test_a_log_that_began_anew_in_the_middle_of_a_session(tmp_path: Path) -> None:
    """Whoever copied the log into the file, the next commit gives the file a new name in the new log."""
    with Disk(tmp_path / "store") as disk:
        file = tmp_path / "store" / "vstate.db"
        disk.set("a", b"1")
        for mode in ("PASSIVE", "RESTART", "TRUNCATE"):
            shutil.copy(file, tmp_path / "before")
            sqlite3.connect(file).execute(f"PRAGMA wal_checkpoint({mode})")
            disk.set("b", mode.encode())
            copy = Path(shutil.copytree(file.parent, tmp_path / mode))
            with Disk(copy) as copied:
                assert copied.get("b") == mode.encode()
            copy = Path(shutil.copytree(file.parent, tmp_path / f"{mode}-spliced"))
            shutil.copy(tmp_path / "before", copy / "vstate.db")
            with pytest.raises(CorruptStore, match="belongs to another file"):
                Disk(copy)


def test_killed_writers_among_others(tmp_path: Path) -> None:
    """A store opens while others write it and copy its log, and after all of them were killed."""
    write(tmp_path / "store", 1, killed=False)
    writers = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", BUSY, tmp_path / "store", str(number)])
        for number in range(3)
    ]
    try:
        for number in range(60 if SOAK else 20):
            with Disk(tmp_path / "store") as disk:
                disk.set("other", b"1")
                mode = "TRUNCATE" if number % 7 == 0 else "PASSIVE"
                file = tmp_path / "store" / "vstate.db"
                sqlite3.connect(file).execute(f"PRAGMA wal_checkpoint({mode})")
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    for _ in range(2):
        with Disk(tmp_path / "store") as disk:
            assert list(disk.check()) == []


def test_a_log_that_begins_anew_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end, with the name of the file, may be missing then: it is read once more."""
    file, read = tmp_path / "store" / "vstate.db", log.read
    reads: list[int] = []

    def interrupted(path: str, page: int) -> log.Log:
        reads.append(page)
        found = read(path, page)
        if len(reads) > 1:
            return found
        sqlite3.connect(file).execute("PRAGMA wal_checkpoint(RESTART)")
        disk.set("b", b"2")
        return found._replace(names=(bytes(16),))

    with Disk(tmp_path / "store") as disk:
        disk.set("a", b"1")
        sqlite3.connect(file).execute("PRAGMA wal_checkpoint(PASSIVE)")  # the file has its name from here on
        monkeypatch.setattr(log, "read", interrupted)
        with Disk(tmp_path / "store") as other:
            assert other.get("b") == b"2"
    assert len(reads) == 2


def test_names_that_were_never_committed(tmp_path: Path) -> None:
    """After a power cut the end of a log may hold anything: if it gives no name, it fits its file."""
    write(tmp_path / "store", 30, killed=False)
    write(tmp_path / "store", 1, killed=True)
    log = tmp_path / "store" / "vstate.db-wal"
    frames = bytearray(log.read_bytes())
    for start in range(32, len(frames), 24 + 4096):
        frames[start + 24 : start + 24 + 4096] = bytes(4096)
    log.write_bytes(frames)
    with Disk(tmp_path / "store") as disk:
        assert Versioned(disk)["n"] == 30


def test_damage_beside_a_log_names_the_log(store: Path) -> None:
    """Damage that shows later than at opening says that there was a log; without one it does not."""
    with (store / "vstate.db").open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size(store) - 4096))

    def read() -> None:
        with Disk(store) as disk:
            dict(disk.items())

    with pytest.raises(CorruptStore, match=r"a log, vstate\.db-wal, was beside it"):
        read()
    with pytest.raises(CorruptStore, match=r"restore it from a copy$"):
        read()


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """Each command of docs/backup.md does what the page says."""
    page = (Path(__file__).parents[2] / "docs" / "backup.md").read_text("utf-8")
    clone, check, *commands = re.findall(r"^\$ ((?!.*://).+)$", page, re.MULTILINE)
    assert len(commands) == 4

    def run(command: str) -> None:
        words = command.replace("vstate ", f"{sys.executable} -m vstate_cli ", 1)
        command = words if command.startswith("vstate ") else command
        subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True)

    def count() -> int:
        with Disk(tmp_path / "agent") as disk:
            return int(Versioned(disk)["n"])

    write(tmp_path / "agent", 30, killed=False)
    write(tmp_path / "agent", 5, killed=True)
    run(clone)
    run(check)
    write(tmp_path / "agent", 150, killed=True)
    run(commands[0])
    run(commands[1])
    assert count() == 35
    shutil.copytree(tmp_path / "agent", tmp_path / "copy")
    write(tmp_path / "agent", 150, killed=True)
    run(commands[2])
    run(commands[3])
    assert count() == 35
