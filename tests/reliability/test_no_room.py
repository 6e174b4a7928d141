"""A full disk, a quota, a read-only file system and a removed directory: vstate raises an error and loses
nothing.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from clock import standing_still
from preload import compiled
from scripts import Record
from soak import sized
from soundness import check_sound
from story import check_story, tell
from troubles import (
    full_disk,
    limited_files,
    plain_directory,
    quota,
    read_only,
    removed,
    small_disk,
    small_memory,
)

from vstate import Disk, Versioned
from vstate.errors import StorageError, StoreFull, StoreUnavailable

TOLD = 17
MOST_ROOM = 200
LONG_MESSAGE = f"{random.Random(1).randbytes(10_000).hex()} {TOLD + 2}"
"""Long enough that even a merge of existing values takes some pages."""


@dataclass(frozen=True)
class Setting:
    """The place of the store, its trouble, and the error that vstate raises.

    `by_room`: with more room the trouble comes later. `survived`: the handle works again afterwards.
    """

    place: Callable[[Path], AbstractContextManager[Path]]
    trouble: Callable[[Path, int], AbstractContextManager[None]]
    raises: type[StorageError]
    by_room: bool
    survived: bool = True


SETTINGS = {
    "full ext4": Setting(small_disk, full_disk, StoreFull, True),
    "full tmpfs": Setting(small_memory, full_disk, StoreFull, True),
    "limited files": Setting(plain_directory, limited_files, StoreFull, True),
    "read-only file system": Setting(small_disk, read_only, StoreUnavailable, False, survived=False),
    "removed directory": Setting(plain_directory, removed, StoreUnavailable, False),
}


def commit(state: Versioned) -> None:
    state.commit(LONG_MESSAGE)


def merge(state: Versioned) -> None:
    state.merge("side", message=LONG_MESSAGE)


def gc(state: Versioned) -> None:
    state.repo.gc(keep_reflog="0s")


OPERATIONS = {"commit": commit, "merge": merge, "gc": gc}


def fill(disk: Disk) -> None:
    """A story, a branch that continues it, and garbage."""
    state = Versioned(disk)
    for number in range(1, TOLD + 1):
        tell(state, number)
        state.commit(str(number))
    side = state.fork("side")
    tell(side, TOLD + 2)
    side.commit("side")
    tell(state, TOLD + 1)
    state.commit(str(TOLD + 1))
    junk = state.fork("junk")
    for number in range(10):
        junk[f"junk/{number}"] = random.Random(number).randbytes(3000)
        junk.commit("junk")
    state.delete_branch("junk")


def rooms(name: str) -> range:
    # gc writes to most pages of the file, so it fails at very many amounts of room.
    return range(0, MOST_ROOM, sized(24 if name == "gc" else 10, 1))


def prepare(name: str, state: Versioned) -> None:
    if name == "commit":
        tell(state, TOLD + 2)


def finished(name: str, disk: Disk) -> None:
    """The operation is done, nothing is lost, and the store can be written to."""
    last = TOLD + (1 if name == "gc" else 2)
    assert check_story(disk, every=1) == last
    objects = check_sound(disk)
    if name == "gc":
        assert len(list(disk.keys("o/"))) == objects
    state = Versioned(disk)
    tell(state, last + 1)
    assert state.commit(str(last + 1)) is not None
    assert check_story(disk) == last + 1


def attempt(name: str, state: Versioned) -> StorageError | None:
    try:
        OPERATIONS[name](state)
    except StorageError as error:
        return error
    return None


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_store_that_cannot_write(
    setting: str, name: str, tmp_path: Path, fast_path: Path, record: Record
) -> None:
    """With any amount of room, an operation succeeds, or raises and works once there is room again."""
    chosen = SETTINGS[setting]
    raised: Counter[str] = Counter()
    where = fast_path if chosen.place is plain_directory else tmp_path
    with chosen.place(where) as place, standing_still():  # two attempts write the same rows then
        for room in rooms(name) if chosen.by_room else (0,):
            store = place / f"store-{room}"
            with Disk(store) as disk:
                fill(disk)
                state = Versioned(disk)
                prepare(name, state)
                with chosen.trouble(store, room):
                    error = attempt(name, state)
                    if error is None:
                        break
                    raised[type(error).__name__] += 1
                    assert isinstance(error, chosen.raises), error
                    again = attempt(name, state)
                    assert isinstance(again, chosen.raises), again
                    if not chosen.survived:
                        disk.close()
                if chosen.survived:
                    # Changes that could not be written are still staged.
                    assert attempt(name, state) is None
                    finished(name, disk)
            if not chosen.survived:
                with Disk(store) as disk:
                    state = Versioned(disk)
                    prepare(name, state)
                    assert attempt(name, state) is None
                    finished(name, disk)
            with Disk(store) as disk:
                check_sound(disk)
            for file in store.iterdir():
                file.unlink()
            store.rmdir()
        else:
            assert not chosen.by_room, f"it never succeeded: {raised}"
    assert raised
    record(**raised)


OVER_A_QUOTA = """
import ctypes, errno, os, sys
from vstate import Disk, StoreFull, Versioned
library = ctypes.CDLL(sys.argv[2])
state = Versioned(Disk(sys.argv[1]))
state["k"] = "kept"
state.commit()
for number in (errno.EDQUOT, errno.ENOSPC, errno.EFBIG):
    library.full_disk_allow(sys.argv[1].encode(), 20_000, number)
    told = []
    for size in (10_000, 10_000, 10_000, 10_000):
        state[f"k{number}"] = os.urandom(size)
        try:
            state.commit()
        except StoreFull as error:
            told.append(str(error))
    library.full_disk_allow(b"", 0, 0)
    assert told and "nothing was written" in told[0], told
    assert state.commit() is not None
fresh = Versioned(Disk(sys.argv[1]))
assert fresh["k"] == "kept" and len(fresh) == 4 and fresh.repo.fsck().ok
"""


def test_a_quota_of_the_system(tmp_path: Path, run_python: Callable[..., str]) -> None:
    """Each error of the system for a full disk is StoreFull. The change lands once there is room."""
    environment = compiled("full_disk.c", tmp_path)
    script = tmp_path / "script.py"
    script.write_text(OVER_A_QUOTA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", environment["LD_PRELOAD"])
        run_python(script, tmp_path / "store", environment["LD_PRELOAD"])


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_quota(name: str, fast_path: Path, record: Record) -> None:
    """At any quota, an operation succeeds, or raises StoreFull and works with a larger quota. gc always
    succeeds.
    """
    refused = 0
    for room in rooms(name):
        store = fast_path / f"store-{room}"
        with Disk(store) as disk:
            fill(disk)
            with quota(disk, room) as limited:
                state = Versioned(limited)
                prepare(name, state)
                error = attempt(name, state)
                assert error is None or isinstance(error, StoreFull), error
                assert error is None or name != "gc", error
            if error is None:
                break
            refused += 1
            state = Versioned(disk)
            prepare(name, state)
            assert attempt(name, state) is None
            finished(name, disk)
    else:
        raise AssertionError("it never succeeded")
    assert refused or name == "gc"
    record(StoreFull=refused)


def test_a_directory_that_is_gone_for_good(tmp_path: Path) -> None:
    """Without its directory a handle only raises. A new store can be made at the same path."""
    store = tmp_path / "store"
    with Disk(store) as disk:
        fill(disk)
        state = Versioned(disk)
        other = Versioned(disk)
        tell(state, TOLD + 2)
        for file in store.iterdir():
            file.unlink()
        store.rmdir()
        for name in OPERATIONS:
            handle = state if name == "commit" else other
            assert isinstance(attempt(name, handle), StoreUnavailable), name
        assert not os.path.exists(store)
    with Disk(store) as disk:
        fill(disk)
        check_story(disk, every=1)
