"""Disk and the users of one machine: who may only read leaves nothing behind, and a group shares a store."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from vstate import Disk, Versioned
from vstate.errors import NotFound, StoreUnavailable
from vstate.kv import KVStore, open_store
from vstate.kv.files import replace_file
from vstate.managers import FileBackend
from vstate.sessions.json_session import SessionFiles

T = TypeVar("T")

OWNER, OTHER, GROUP = 10001, 10002, 10001

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs Linux and root, to become other users"
)


def as_user(user: int, work: Callable[[], T], *, umask: int = 0o022, group: int = GROUP) -> T:
    """The result of a function that runs as this user, in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(umask)
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            answer: tuple[Any, BaseException | None] = work(), None
        except BaseException as error:
            answer = None, error
        os.write(writing, pickle.dumps(answer))
        os._exit(0)  # as a killed process: it closes nothing
    os.close(writing)
    with open(reading, "rb") as pipe:
        result, error = pickle.load(pipe)
    os.waitpid(child, 0)
    if error is not None:
        raise error
    return result


@pytest.fixture(autouse=True, scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import all that is imported late: other users may be unable to read the files of this Python."""
    path = tmp_path_factory.mktemp("loaded") / "store"
    commit(path)
    look(path)
    open_store(f"readonly:{path}").close()
    for write in (replace, save_session, write_files):
        write(tmp_path_factory.mktemp("loaded"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the owner in which anybody may look."""
    path = Path(tempfile.mkdtemp(prefix="vstate-users-"))
    os.chown(path, OWNER, GROUP)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def replace(path: Path) -> None:
    replace_file(path / "file", b"contents")


def save_session(path: Path) -> None:
    SessionFiles(path, "s1", "").save({"memory": {}})


def write_files(path: Path) -> None:
    with FileBackend(path) as store, Versioned(store, branch="main") as state:
        state["n"] = state.get("n", 0) + 1
        state.commit()


left_open: list[Versioned] = []


def listed(path: Path) -> dict[str, tuple[int, int, str]]:
    """The owner, the group and the mode of each file."""
    found = {name: os.stat(path / name) for name in os.listdir(path)}
    return {n: (f.st_uid, f.st_gid, oct(stat.S_IMODE(f.st_mode))) for n, f in sorted(found.items())}


def commit(path: Path, *, close: bool = True) -> None:
    state = Versioned(Disk(path))
    state["n"] = state.get("n", 0) + 1
    state["more"] = os.urandom(5000)
    state.commit(f"commit {state['n']}")
    state.close()
    if close:
        state.store.close()
    else:
        left_open.append(state)


def look(path: Path) -> int:
    with Disk(path, create=False) as disk:
        assert list(disk.check()) == []
        return int(Versioned(disk)["n"])


def make_clean(path: Path) -> None:
    as_user(OWNER, lambda: commit(path))


def make_killed(path: Path) -> None:
    as_user(OWNER, lambda: commit(path, close=False))


def make_copied(path: Path) -> None:
    make_killed(path)
    (path / "vstate.db-shm").unlink()


def forbid(path: Path, stack: ExitStack) -> None:
    path.chmod(0o555)


def share(path: Path, stack: ExitStack) -> None:
    path.chmod(0o1777)  # anybody may make files, but not change those of others


def mount_read_only(path: Path, stack: ExitStack) -> None:
    if subprocess.run(["mount", "--bind", path, path], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    stack.callback(subprocess.run, ["umount", "-l", path], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)


def open_read_only(path: Path) -> KVStore:
    return open_store(f"readonly:{path}")


READERS = [(make_killed, keep_out) for keep_out in (forbid, share, mount_read_only)]
READERS += [(make_clean, share), (make_clean, mount_read_only), (make_copied, forbid)]


@pytest.mark.parametrize(("made", "keep_out"), READERS)
def test_who_may_only_read_leaves_nothing_behind(
    place: Path, made: Callable[[Path], None], keep_out: Callable[[Path, ExitStack], None]
) -> None:
    """A reader sees the last commit, cannot write, and makes no file; the owner goes on afterwards."""
    path = place / "store"
    made(path)

    def work(opener: Callable[[Path], Any]) -> int:
        state = Versioned(opener(path))
        seen = state["n"]
        with pytest.raises(Exception, match=r"read-only for this user|to be read only"):
            commit(path) if opener is Disk else state.store.set("key", b"value")
        return int(seen)

    before = listed(path)
    with ExitStack() as stack:
        keep_out(path, stack)
        for opener in (Disk, open_read_only):
            assert as_user(OTHER, partial(work, opener)) == 1
        assert as_user(OTHER, lambda: look(path)) == 1
        assert listed(path) == before
    path.chmod(0o755)
    as_user(OWNER, lambda: commit(path))
    assert as_user(OTHER, lambda: look(path)) == 2


@pytest.mark.parametrize("keep_out", [forbid, share])
def test_a_reader_sees_each_commit_of_others(
    place: Path, keep_out: Callable[[Path, ExitStack], None]
) -> None:
    """A reader that is open sees what a writer commits, while the writer is open and after it has closed."""
    path = place / "store"
    make_clean(path)
    path.chmod(0o1777)

    def work() -> None:
        with Disk(path) as disk:
            while there.recv():
                there.send(Versioned(disk)["n"])

    forking = multiprocessing.get_context("fork")
    here, there = forking.Pipe()
    reader = forking.Process(target=as_user, args=(OTHER, work))
    reader.start()
    for number, close in enumerate((True, False, True, False, False, True), start=1):
        here.send(True)
        assert here.poll(20)
        assert here.recv() == number
        as_user(OWNER, partial(commit, path, close=close))
    here.send(False)
    reader.join(20)
    assert reader.exitcode == 0


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_files_have_the_modes_of_the_umask_and_the_group_of_the_directory(place: Path, umask: int) -> None:
    """The files of a store, and the directory itself, are as open as the umask says."""
    os.chown(place, OWNER, OTHER)
    place.chmod(0o2777)
    as_user(OWNER, lambda: commit(place / "store", close=False), umask=umask)
    mode = 0o666 & ~umask
    assert set(listed(place / "store")) == {"vstate.db", "vstate.db-wal", "vstate.db-shm"}
    assert set(listed(place / "store").values()) == {(OWNER, OTHER, oct(mode))}
    assert stat.S_IMODE(os.stat(place / "store").st_mode) == (0o777 & ~umask) | 0o2000


def test_a_group_shares_a_store(place: Path) -> None:
    """Two users of a group look and commit in turns, killed or not, with any umask after the first. Root may
    do so too, and the files stay the owner's.
    """
    place.chmod(0o2775)
    path = place / "store"
    turns = [(OWNER, 0o002), (OTHER, 0o022), (0, 0o022), (OWNER, 0o077), (OTHER, 0o002)]
    for number, (user, umask) in enumerate(turns):
        for each in (OWNER, OTHER):
            if number:
                assert as_user(each, lambda: int(Versioned(Disk(path))["n"])) == number
        group = GROUP if user else 0
        as_user(user, lambda: commit(path, close=False), umask=umask, group=group)
        assert {owner for owner, _, _ in listed(path).values()} <= {OWNER, OTHER}
    assert look(path) == len(turns)


@pytest.mark.parametrize("write", [replace, save_session, write_files])
def test_files_that_root_writes_stay_usable(place: Path, write: Callable[[Path], None]) -> None:
    """A file that root replaces keeps its owner, and the owner of the directory goes on with all others."""
    for user in (OWNER, 0, OWNER):
        as_user(user, lambda: write(place), group=GROUP if user else 0)
    (place / "file").unlink(missing_ok=True)
    shutil.rmtree(place / "below", ignore_errors=True)
    as_user(OWNER, (place / "below").mkdir)
    for user in (0, OWNER):
        as_user(user, lambda: write(place / "below"), group=GROUP if user else 0)
    assert {each[:2] for name, each in listed(place).items() if name == "file"} <= {(OWNER, GROUP)}


def test_what_may_not_be_read_is_told(place: Path) -> None:
    """A store of another user with a strict umask, and an empty place, are errors that say what is wrong."""
    path = place / "store"
    as_user(OWNER, lambda: commit(path, close=False), umask=0o077)
    path.chmod(0o755)
    with pytest.raises(StoreUnavailable, match="to read, make the directory and its files readable"):
        as_user(OTHER, lambda: look(path))
    with pytest.raises(NotFound):
        as_user(OTHER, lambda: look(place / "missing"))
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        as_user(OTHER, lambda: commit(place / "missing"))
