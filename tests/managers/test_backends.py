"""The backends: stores by name, and a file for people to read."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from present import present
from running import Fork

from vstate import Disk, File, InvalidInput, Versioned
from vstate.managers import FileBackend, RedisBackend, StateConfig, StateManager, readable_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new" / "app.json"


def opened(file: Path, part: str = "") -> FileBackend:
    return FileBackend(file.parent.parent / "store", file=file, part=part)


def shown(file: Path) -> Any:
    return json.loads(file.read_text())


def test_the_file_has_all_values_of_a_part(file: Path) -> None:
    """It has the newest values of all processes, sorted, and is replaced as a whole."""
    with opened(file, "app") as store, Versioned(store) as state:
        state.update({"app/b": {"n": [1]}, "app/a": {1, 2}, "other": 1, "app/x/y": "z"})
        state.commit()
        assert list(shown(file).items()) == [("a", {"$set": [1, 2]}), ("b", {"n": [1]}), ("x/y", "z")]
        before = os.stat(file).st_ino
        with pickle.loads(pickle.dumps(store)) as second, Versioned(second) as other:
            other["app/second"] = "ü"
            other.commit()
            assert os.stat(file).st_ino != before  # replaced, never written in place
        state.refresh()
        del state["app/b"]
        state.commit()
        assert shown(file) == {"a": {"$set": [1, 2]}, "second": "ü", "x/y": "z"}
        file.write_text("")  # a power cut, for example
        store.write_file()
        assert "second" in shown(file)
    with opened(file, "app") as store, Versioned(store) as state:
        state["app/a"] = 0
        state.commit()
        assert shown(file) == {"a": 0, "second": "ü", "x/y": "z"}


def test_the_file_follows_head(file: Path) -> None:
    """The file follows a rollback, a checkout, a merge, another program's commit, and a gc of its commit."""
    with opened(file) as store, Versioned(store) as state:
        for n in (1, 2):
            state["n"] = n
            first = present(state.commit())
        state.rollback()
        assert shown(file) == {"n": 1}
        state.switch("what-if", create=True)
        state["n"] = 3
        state.commit()
        assert shown(file) == {"n": 3}
        state.switch("main")
        assert shown(file) == {"n": 1}
        fork = state.fork("elsewhere")
        fork["m"] = 4
        fork.commit()
        assert shown(file) == {"n": 1}
        state.merge("elsewhere")
        assert shown(file) == {"m": 4, "n": 1}
        plain = Versioned(Disk(file.parent.parent / "store"), branch="main")
        plain.reset(first)
        plain.delete_branch("elsewhere")
        assert plain.repo.gc(keep_reflog=timedelta(0)).removed
        plain.store.close()
        state.refresh()
        state["d"] = 4
        state.commit()
        assert shown(file) == {"n": 2, "d": 4}
        state.repo.checkout("HEAD~1")
        assert shown(file) == {"n": 2}


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    """It is refused at construction, and stays as it was."""
    (tmp_path / "app_state.json").write_text("mine")
    with pytest.raises(InvalidInput, match="no store of vstate wrote it"):
        StateManager(config=StateConfig(file_path=str(tmp_path / "app_state.json")))
    assert [path.name for path in tmp_path.iterdir()] == ["app_state.json"]
    assert (tmp_path / "app_state.json").read_text() == "mine"


LONG = [{"role": "user", "content": f"message ü {n}"} for n in range(1000)]


@pytest.mark.parametrize(
    ("value", "as_json"),
    [
        ({1, 2}, {"$set": [1, 2]}),
        ({"when": datetime(2026, 1, 2)}, {"when": {"$datetime": "2026-01-02T00:00:00"}}),
        ({1: "a"}, {"$dict": [[1, "a"]]}),
        ({"$set": [1]}, {"$$set": [1]}),  # it only looks like a mark
        ("ü \ud800", "ü \ud800"),
        (LONG, LONG),
        (File("ü\n".encode() * 60, "executable"), "ü\n" * 60),
        ({"items": set(range(5000))}, {"items": {"$set": list(range(5000))}}),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "replace").decode(),
)
def test_any_value_is_shown(file: Path, value: Any, as_json: Any) -> None:
    """As `vstate show --json` shows it. Values come from the store: an edit of the file has no effect."""
    with opened(file) as store, Versioned(store, branch="main") as state:
        state["v"] = value
        state.commit()
        assert shown(file) == {"v": as_json}
        file.write_text("{}")
        with Versioned(Disk(file.parent.parent / "store"), branch="main") as again:
            assert again["v"] == value
            again.store.close()


def test_a_value_too_long_to_be_shown_is_described(file: Path) -> None:
    with opened(file) as store, Versioned(store, branch="main") as state:
        state["long"] = bytes(1_500_000)
        state.commit()
    found = shown(file)["long"]
    assert (found["$type"], found["$size"]) == ("bytes", 1_500_000)


@pytest.mark.parametrize("by", ["a directory in the way", "another process that holds it"])
def test_a_file_that_cannot_be_written_holds_up_no_commit(
    file: Path, by: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a warning, since the commit is safe. The next commit makes up for it."""
    monkeypatch.setattr(readable_file, "PATIENCE", 0.1)
    with opened(file) as store, Versioned(store, branch="main") as state:
        state["a"] = 1
        state.commit()
        with Path(store.location, ".shown").open("rb") as held:
            if by == "a directory in the way":
                file.unlink()
                (file / "x").mkdir(parents=True)
            else:
                fcntl.flock(held, fcntl.LOCK_EX)
            state["b"] = 2
            state.commit()
        assert "is behind, the store is not" in caplog.text
        assert state["b"] == 2
        if file.is_dir():
            (file / "x").rmdir()
            file.rmdir()
        state["a"] = 3
        state.commit()
        assert shown(file) == {"a": 3, "b": 2}


def test_opening_a_store_writes_no_file(file: Path) -> None:
    with Disk(file.parent.parent / "store") as disk, Versioned(disk, branch="main") as state:
        state["a"] = 1
        state.commit()
    opened(file).close()
    assert not file.exists()


@pytest.mark.slow
def test_a_file_of_writers_beside_each_other_shows_the_newest(file: Path) -> None:
    """Whichever process writes last, it never goes back to an earlier commit, and is never half written."""

    def write(name: int) -> None:
        def count(state: Any) -> None:
            state["count"] = state.get("count", 0) + 1
            state[f"by/{name}"] = list(range(state["count"]))

        with opened(file) as store, Versioned(store, branch="main") as state:
            for _ in range(15):
                state.apply(count, attempts=1000)

    with opened(file) as store, Versioned(store, branch="main") as state:
        state["count"] = 0
        state.commit()
    forks = [Fork(partial(write, n)) for n in range(3)]
    last = 0
    with ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(fork.end) for fork in forks]
        while not all(end.done() for end in ends):
            count = shown(file)["count"]
            assert count >= last
            last = count
    assert [end.result() for end in ends] == [(0, "")] * 3
    with Versioned(file.parent.parent / "store") as state:
        assert shown(file) == dict(state)
        assert state["count"] == 45


def test_the_address_of_redis(redis_url: str, redis_prefix: str) -> None:
    """`db` beside the URL, unless the URL has one; threads wait for a pool of few connections."""
    base = redis_url.rsplit("/", 1)[0]
    with RedisBackend(base, db=0, key_prefix=redis_prefix, connection_pool_size=1) as store:
        threads = [threading.Thread(target=store.set, args=(f"k{n}", b"v")) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(store.keys())) == 8
        assert "/0" in store.location
    for wrong in (
        {"url": f"{base}/1", "db": 0},
        {"url": f"{base}?db=1", "db": 0},
        {"connection_pool_size": 0},
    ):
        with pytest.raises(InvalidInput):
            RedisBackend(**wrong)  # type: ignore[arg-type]
    assert "/3" in RedisBackend("redis://localhost?socket_timeout=5", db=3).location


def test_a_wrong_path_or_url_raises_and_leaves_nothing_behind() -> None:
    """No half-made store stays that fails again, unseen, when it is dropped."""
    for wrong in (None, 5):
        with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object, not"):
            FileBackend(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="the URL of a Redis server is a str, not"):
            RedisBackend(wrong)  # type: ignore[arg-type]
    gc.collect()
