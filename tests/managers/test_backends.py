"""The backends: stores by name, and files for people to read."""

from __future__ import annotations

import fcntl
import gc
import gzip
import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from present import present
from running import Fork

from vstate import Disk, InvalidInput, Versioned
from vstate.managers import FileBackend, RedisBackend, StateConfig, StateManager
from vstate.managers import files as readable_files
from vstate.managers.files import Names


class Mute:
    """An object with a value."""

    def __init__(self, value: Any) -> None:
        self.value = value


def shown(base: Path) -> dict[str, Any]:
    """The contents of the files by path."""
    files = base / "files"
    return {
        str(path.relative_to(files)): json.loads(path.read_text())
        for path in files.rglob("*")
        if path.is_file() and path.name != ".shown"
    }


def test_a_file_for_each_key_follows_the_branch(tmp_path: Path) -> None:
    """Added, changed, removed; also by a rollback, a merge, and a commit of a program without files."""
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state["a"] = {"n": 1}
        state["agents/b/c"] = [1, 2]
        state.commit()
        assert shown(tmp_path) == {"a.json": {"n": 1}, "agents/b/c.json": [1, 2]}
        state["a"]["n"] = 2
        del state["agents/b/c"]
        state.commit()
        assert shown(tmp_path) == {"a.json": {"n": 2}}
        assert not (tmp_path / "files" / "agents").exists()
        state.rollback()
        assert shown(tmp_path) == {"a.json": {"n": 1}, "agents/b/c.json": [1, 2]}
        with Versioned(Disk(tmp_path), branch="main") as other:
            other["without"] = "files"
            other.commit()
            other.store.close()
        assert "without.json" not in shown(tmp_path)
        state.refresh()
        state["a"] = 3
        state.commit()
        assert shown(tmp_path) == {"a.json": 3, "agents/b/c.json": [1, 2], "without.json": "files"}
        fork = state.fork("other")
        fork["only there"] = 1
        fork.commit()
        assert len(shown(tmp_path)) == 3
        state.merge("other")
        assert len(shown(tmp_path)) == 4


def test_the_files_follow_head(tmp_path: Path) -> None:
    """A checkout of another branch, or of a commit, shows its values; a commit elsewhere does not."""
    with FileBackend(tmp_path) as store, Versioned(store) as state:
        for n in (1, 2):
            state["n"] = n
            state.commit()
        state.switch("what-if", create=True)
        state["n"] = 3
        state.commit()
        assert shown(tmp_path) == {"n.json": 3}
        state.switch("main")
        assert shown(tmp_path) == {"n.json": 2}
        fork = state.fork("elsewhere")
        fork["n"] = 4
        fork.commit()
        assert shown(tmp_path) == {"n.json": 2}
        state.repo.checkout("HEAD~1")
        assert shown(tmp_path) == {"n.json": 1}


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_one_file_with_all_values_of_a_part(tmp_path: Path, format: Any) -> None:
    """It has the newest values of all processes, and is replaced as a whole; other keys are left out."""
    file = tmp_path / "app"

    def read() -> Any:
        data = file.read_bytes()
        return json.loads(data) if format == "json" else msgpack.unpackb(data)

    def opened() -> FileBackend:
        return FileBackend(tmp_path / "store", format, False, file=file, part="app")

    with opened() as store, Versioned(store) as state:
        state.update({"app/b": {"n": [1]}, "app/a": {1, 2}, "other": 1, "app/x/y": "z"})
        state.commit()
        assert read() == {"a": {"$set": [1, 2]}, "b": {"n": [1]}, "x/y": "z"}
        assert list(read()) == ["a", "b", "x/y"]
        before = os.stat(file).st_ino
        with pickle.loads(pickle.dumps(store)) as second, Versioned(second) as other:
            other["app/second"] = "ü"
            other.commit()
            assert os.stat(file).st_ino != before  # replaced, never written in place
        state.refresh()
        del state["app/b"]
        state.commit()
        assert read() == {"a": {"$set": [1, 2]}, "second": "ü", "x/y": "z"}
        file.unlink()
        store.write_files()
        assert "second" in read()
    with opened() as store, Versioned(store) as state:
        assert "second" in read()
        state["app/a"] = 0
        state.commit()
        assert read() == {"a": 0, "second": "ü", "x/y": "z"}
    assert [path.name for path in (tmp_path / "store" / "files").iterdir()] == [".shown"]


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    """It is refused at construction, and stays as it was."""
    (tmp_path / "app_state.json").write_text("mine")
    with pytest.raises(InvalidInput, match="no store of vstate wrote it"):
        StateManager(config=StateConfig(file_path=str(tmp_path / "app_state.json")))
    assert [path.name for path in tmp_path.iterdir()] == ["app_state.json"]
    assert (tmp_path / "app_state.json").read_text() == "mine"


def test_values_that_json_cannot_hold_are_shown(tmp_path: Path) -> None:
    """Values come from the store: an edit of a file has no effect."""
    values = {
        "set": {1, 2},
        "bytes": b"ab",
        "tuple": (1, "x"),
        "when": datetime(2026, 1, 2),
        "int keys": {1: "a"},
        "nan": float("nan"),
        "half": "\ud800",
        "umlaut": "ü",
        "object": Path("/x"),
    }
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state["v"] = values
        state["surrogate"] = "\ud800"
        state.commit()
        file = tmp_path / "files" / "v.json"
        found = json.loads(file.read_text())
        assert found["set"] == {"$set": [1, 2]}
        assert found["when"] == {"$datetime": "2026-01-02T00:00:00"}
        assert found["int keys"] == {"$dict": [[1, "a"]]}
        assert found["half"] == "\ud800"
        file.write_text("{}")
        again = Versioned(Disk(tmp_path), branch="main")
        assert again["v"]["set"] == {1, 2}
        assert again["v"]["int keys"] == {1: "a"}
        again.store.close()


def test_long_values_have_a_line_for_each_item(tmp_path: Path) -> None:
    """A conversation can be read and searched by line; values that look like a mark are distinguished."""
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        messages = [{"role": "user", "content": f"message ü {n}"} for n in range(1000)]
        state["list"], state["dict"], state["mark"] = messages, {"m": messages, "n": 1}, {"$set": [1]}
        state["set"] = {"items": set(range(5000))}
        state.commit()
        found = shown(tmp_path)
        assert (found["list.json"], found["dict.json"]) == (messages, {"m": messages, "n": 1})
        assert found["mark.json"] == {"$$set": [1]}
        assert len(found["set.json"]["items"]["$set"]) == 5000
        assert len((tmp_path / "files" / "list.json").read_text().splitlines()) == 1002


def test_a_value_too_long_to_be_shown_is_described(tmp_path: Path) -> None:
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state["long"] = bytes(1_500_000)
        state.commit()
    found = shown(tmp_path)["long.json"]
    assert (found["$type"], found["$size"]) == ("bytes", 1_500_000)


@pytest.mark.parametrize(
    "value",
    [2**70, [{"n": -(2**65)}], "\ud800", {"\udc80": 1}, Mute(2**70)],
    ids=["long", "long inside", "surrogate", "surrogate key", "object"],
)
@pytest.mark.parametrize("in_one_file", [False, True])
def test_a_value_that_msgpack_cannot_hold_is_described(tmp_path: Path, value: Any, in_one_file: bool) -> None:
    """The commit succeeds, as do later ones, and the other values are shown."""
    file = tmp_path / "all.msgpack" if in_one_file else None
    with FileBackend(tmp_path / "s", "msgpack", False, file=file) as store, Versioned(store) as state:
        for key, kept in (("odd", value), ("even", 1)):
            state[key] = kept
            state.commit()
    if file is None:
        found = {key: (tmp_path / "s" / "files" / f"{key}.msgpack").read_bytes() for key in ("odd", "even")}
        read = {key: msgpack.unpackb(data) for key, data in found.items()}
    else:
        read = msgpack.unpackb(file.read_bytes())
    assert read["even"] == 1
    assert read["odd"].keys() == {"$type", "$size", "$not_shown"}


def test_msgpack_files_and_their_compression(tmp_path: Path) -> None:
    """The same in msgpack; opening a store with another format writes all files anew."""
    value = {"n": 1, "text": ["a"] * 100}
    with FileBackend(tmp_path, format="msgpack") as store, Versioned(store, branch="main") as state:
        state["agents/a"] = value
        state["agents/b"] = 1
        state.commit()
    file = tmp_path / "files" / "agents" / "a.msgpack.gz"
    assert msgpack.unpackb(gzip.decompress(file.read_bytes())) == value
    with FileBackend(tmp_path, "msgpack", False) as store, Versioned(store, branch="main") as state:
        state["agents/b"] = 2
        state.commit()
    names = {path.name for path in (tmp_path / "files" / "agents").iterdir()}
    assert names == {"a.msgpack", "b.msgpack"}
    assert msgpack.unpackb((tmp_path / "files" / "agents" / "a.msgpack").read_bytes()) == value
    for format, name in (("json", "a.json.gz"), ("msgpack", "a.msgpack.gz")):  # said, so done
        with FileBackend(tmp_path, format=format, compression=True) as store:  # type: ignore[arg-type]
            store.write_files()
        names = {path.name for path in (tmp_path / "files" / "agents").iterdir()}
        assert names == {name, name.replace("a", "b", 1)}
        text = gzip.decompress((tmp_path / "files" / "agents" / name).read_bytes())
        assert (json.loads(text) if format == "json" else msgpack.unpackb(text)) == value
    with pytest.raises(InvalidInput, match="'json' or 'msgpack'"):
        FileBackend(tmp_path, format="yaml")  # type: ignore[arg-type]


def test_keys_that_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    """In the original "x:y" and "x_y" shared a file, and so did "a/b" and "a__b". No file is outside."""
    keys = ["x:y", "x_y", "a/b", "a__b", "A", "a", "../out", "/etc/passwd", ".shown", "a.json/b", "a//b"]
    keys += ["%", "", " ", "é", "e\u0301", "日本", "C:\\x", "nul\0"]
    keys += ["k" * 300, "k" * 299 + "l", "d/" * 900]
    with FileBackend(tmp_path / "base") as store, Versioned(store, branch="main") as state:
        for key in keys:
            state[f"n/{key}"] = key
        state.commit()
        found = shown(tmp_path / "base")
        assert sorted(found.values()) == sorted(keys)
        assert {path.name for path in tmp_path.iterdir()} == {"base"}
        for key in keys:
            del state[f"n/{key}"]
        state["rest"] = 1
        state.commit()
    assert shown(tmp_path / "base") == {"rest.json": 1}
    assert sorted(path.name for path in (tmp_path / "base" / "files").iterdir()) == [".shown", "rest.json"]


@given(st.lists(st.text(), min_size=2, max_size=2, unique=True), st.booleans())
@example(["a.json/b", "a"], False)
@example(["A", "a"], True)
@example(["ß" * 101, "ß" * 102], False)
def test_no_two_keys_share_a_file_nor_leave_the_directory(keys: list[str], ignores_case: bool) -> None:
    names = Names(ignores_case=ignores_case)
    paths = [names.path(key, ".json") for key in keys]
    assert len({path.lower() if ignores_case else path for path in paths}) == 2
    for path in paths:
        parts = path.split(os.sep)
        assert not {"", ".", ".."} & set(parts)
        assert not path.startswith(os.sep)
        assert all(len(os.fsencode(part)) < 255 and "\0" not in part for part in parts)
        assert not any("." in part for part in parts[:-1])


def test_files_that_cannot_be_written_are_a_warning_and_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is safe, so it does not fail."""
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state["a"] = 1
        state.commit()
        in_the_way = tmp_path / "files" / "b.json"
        (in_the_way / "x").mkdir(parents=True)
        state["b"] = 2
        state.commit()
        assert "are behind, the store is not" in caplog.text
        assert state["b"] == 2
        (in_the_way / "x").rmdir()
        in_the_way.rmdir()
        state["a"] = 3
        state.commit()
        assert shown(tmp_path) == {"a.json": 3, "b.json": 2}


@pytest.mark.parametrize("lost", ["nothing", "the note", "the commit of the note"])
def test_files_of_before_a_power_cut_are_written_anew(tmp_path: Path, lost: str) -> None:
    """Files are not synced: `write_files` repairs empty, torn, missing and earlier ones."""
    files = tmp_path / "files"
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state.update({"a": 1, "b": {"c": [1, 2]}, "d/e": 3, "f": 4})
        state.commit()
    (files / "a.json").write_bytes(b"")
    (files / "b.json").write_bytes(b'{\n  "c": [\0\0')
    (files / "d" / "e.json").unlink()
    (files / "f.json").write_text("3")
    if lost == "the note":
        (files / ".shown").write_bytes(b"")
    elif lost == "the commit of the note":
        (files / ".shown").write_bytes(b"\0" * 100)
    else:
        (files / "gone.json").write_text("0")
        (files / "d" / ".e.json.0123").write_text("half")
    with FileBackend(tmp_path) as store:
        store.write_files()
    assert shown(tmp_path) == {"a.json": 1, "b.json": {"c": [1, 2]}, "d/e.json": 3, "f.json": 4}


def test_opening_a_store_writes_no_files(tmp_path: Path) -> None:
    """In a directory without files."""
    with Disk(tmp_path) as store, Versioned(store, branch="main") as state:
        state["a"] = 1
        state.commit()
    FileBackend(tmp_path).close()
    assert not (tmp_path / "files").exists()


def test_who_sits_on_the_files_holds_up_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that was stopped while it wrote files; the next commit completes them."""
    monkeypatch.setattr(readable_files, "PATIENCE", 0.1)
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state["a"] = 1
        state.commit()
        with (tmp_path / "files" / ".shown").open("rb") as sitting:
            fcntl.flock(sitting, fcntl.LOCK_EX)
            state["a"] = 2
            state.commit()
        assert "are behind" in caplog.text
        assert shown(tmp_path) == {"a.json": 1}
        state["b"] = 3
        state.commit()
        assert shown(tmp_path) == {"a.json": 2, "b.json": 3}


def test_gc_of_the_commit_that_the_files_show(tmp_path: Path) -> None:
    """The commit in the note may be gone; the files are right all the same."""
    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state["a"] = 1
        first = present(state.commit())
        state["b"] = 2
        state.commit()
        plain = Versioned(Disk(tmp_path), branch="main")
        plain.reset(first)
        assert plain.repo.gc(keep_reflog=timedelta(0)).removed
        plain["c"] = 3
        plain.commit()
        plain.store.close()
        state.refresh()
        state["d"] = 4
        state.commit()
        assert shown(tmp_path) == {"a.json": 1, "c.json": 3, "d.json": 4}


@pytest.mark.slow
def test_files_of_writers_beside_each_other_show_the_newest(tmp_path: Path) -> None:
    """Whichever process writes last, files never go back to an earlier commit, and none is half written."""

    def write(name: int) -> None:
        def count(state: Any) -> None:
            state["count"] = state.get("count", 0) + 1
            state[f"by/{name}"] = list(range(state["count"]))

        with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
            for _ in range(15):
                state.apply(count, attempts=1000)

    with FileBackend(tmp_path) as store, Versioned(store, branch="main") as state:
        state["count"] = 0
        state.commit()
    forks = [Fork(partial(write, n)) for n in range(3)]
    with ThreadPoolExecutor(3) as threads:
        ends = [threads.submit(fork.end) for fork in forks]
        while not all(end.done() for end in ends):
            json.loads((tmp_path / "files" / "count.json").read_text())
    assert [end.result() for end in ends] == [(0, "")] * 3
    found = shown(tmp_path)
    with Versioned(tmp_path) as state:
        assert state["count"] == 45
        assert found == {"count.json": 45, **{f"by/{n}.json": state[f"by/{n}"] for n in range(3)}}


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
    assert "/3" in RedisBackend("redis://localhost", db=3).location


def test_a_wrong_path_or_url_raises_and_leaves_nothing_behind() -> None:
    """No half-made store stays that fails again, unseen, when it is dropped."""
    for wrong in (None, 5):
        with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object, not"):
            FileBackend(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="the URL of a Redis server is a str, not"):
            RedisBackend(wrong)  # type: ignore[arg-type]
    gc.collect()
