"""Encrypted: the store contract over Memory and Disk, and the protection from an untrusted store."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from running import at_once

from vstate import Versioned
from vstate.errors import (
    AlreadyExists,
    CorruptObject,
    CorruptStore,
    InvalidInput,
    NotFound,
    Unpicklable,
    UnsupportedFormat,
    VStateError,
)
from vstate.kv import Cache, Disk, Encrypted, KVStore, Memory, open_store
from vstate.kv.base import is_object
from vstate.kv.encrypted import MARK, fingerprint, generate_key, load_key, save_key
from vstate.repo.repository import Repository

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
OBJECT = "o/" + "ab" * 32
OTHER = "o/" + "cd" * 32
ROOM = "room/00000000000000a1/"


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def store(memory: Memory) -> Encrypted:
    return Encrypted(memory, KEY)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "store.key"
    save_key(path, KEY)
    return path


# The view of the store behind

GOLDEN = {
    "encryption": (
        "312063303864656561346631626434376137383962616465646239643637346666643137663738333337376430"
        "643964626439616230333032623931303139376662"
    ),
    "o/a3fe95577c54ed0376f856c1c551deef1b6f41e70d693ba713e730beaf85277c": (
        "ef8d466a1054fa3f37ed2ad1c4f895a5f991fb8100ca5204f6c5ff012e3cedbd9dfac1"
    ),
    "a17a60ec/22f7e6b8948ce60ac0ac624a33d252965a3977edaa18eb": (
        "abe6403e0dc691532852213710914d65b9e38c31feaf4a2623138fde22"
    ),
    "7ac87144/37bb2a13bce683f33ac8051010add2010cde7ff1f875e0f9d1849edb88": (
        "81d61fd0d36c896f757ce1be9aca5f6ada4f1f28d424e0ec2c3282fe2a5541be87"
    ),
    "room/00000000000000a1/o/a3fe95577c54ed0376f856c1c551deef1b6f41e70d693ba713e730beaf85277c": (
        "946f35e7b8d4e6f5734f963370c6bdb30119746f7c0bbb73a7b6751a0fad8c120836e6"
    ),
    "room/00000000000000a1/7ac87144/37bb2a13bce683f33ac8051010add2010cde7ff1f875e0f9d1849edb88": (
        "c3eff8a23ef0fcfc1a348332f2d0f4257ff4c61f943fd41c54a91908339690209f"
    ),
}


def test_golden_rows(store: Encrypted, memory: Memory) -> None:
    """The same name and value give these rows, in every version."""
    store.set_many({OBJECT: b"object", "r/heads/main": b"main", "format": b""})
    store.set_many({ROOM + OBJECT: b"object", ROOM + "r/heads/main": b"main"})
    assert {name: row.hex() for name, row in memory.items()} == GOLDEN


def test_equal_data_is_stored_once(store: Encrypted, memory: Memory) -> None:
    """The same value under the same name is the same row, by any handle.

    Under another name the row differs.
    """
    store.set(OBJECT, b"value")
    before = dict(memory.items())
    Encrypted(memory, KEY).set(OBJECT, b"value")
    assert dict(memory.items()) == before
    store.set(OTHER, b"value")
    assert len({row[12:] for row in memory._values.values()}) == 3


def test_a_listing_reads_one_part_of_the_store(
    store: Encrypted, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`keys("r/heads/")` lists the keys that begin with "r/", but no objects and no reflog. A room has parts
    of its own.
    """
    store.set_many({OBJECT: b"", "r/heads/main": b"1", "r/tags/v1": b"2", "reflog/heads/main:1": b""})
    store.set_many({f"{ROOM}{key}": b"" for key in (OBJECT, OTHER, "format", "r/heads/main", "reflog/x:1")})
    asked: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "keys", lambda self, prefix: asked.append(prefix) or iter(()))
        for prefix in ("r/heads/", "r/tags/", OBJECT[:10], ROOM, ROOM + "r/", ROOM + "o/", "room/000"):
            assert list(store.keys(prefix)) == []
    assert asked[0] == asked[1]
    assert [len(list(memory.keys(place))) for place in asked[1:]] == [2, 0, 1, 5, 1, 0, 2, 0, 5]


def test_nothing_shows_in_the_file(tmp_path: Path) -> None:
    """No name, value, message or id of a repository is in the bytes of the database."""
    secrets = ["agent-name", "the secret plan", "what was done", "feature-branch"]
    with Encrypted(Disk(tmp_path), KEY) as store:
        state = Versioned(store)
        state["agent-name"] = {"text": "the secret plan"}
        state["long"] = "the secret plan " * 5000
        commit = state.commit("what was done", who="agent-name")
        assert commit is not None
        state.create_branch("feature-branch")
        names = list(store.keys())
    seen = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(seen) > 10_000
    for text in [*secrets, commit.id, "heads/", "reflog", "agent", "secret"]:
        assert text.encode() not in seen
        assert text.encode().hex().encode() not in seen
    assert commit.oid not in seen
    for name in names:
        # "format" is a word of SQLite's own.
        assert name == "format" or name.encode() not in seen
        assert not name.startswith("o/") or bytes.fromhex(name[2:]) not in seen
    with Disk(tmp_path) as disk:
        assert "encryption" in list(disk.keys())


def test_names_of_objects_and_long_names(store: Encrypted, memory: Memory) -> None:
    """A name of an object becomes another one, so that stores and caches treat it as they do. Any other name
    of n bytes takes 2n + 43, which no store of vstate's minds.
    """
    names = {f"o/{number * 7919 % 2**256:064x}" for number in range(300)}
    long = "r/" + "é" * 10_000
    store.set_many(dict.fromkeys([*names, long], b"value"))
    there = set(memory.keys("o/"))
    assert len(there) == 300
    assert all(re.fullmatch("o/[0-9a-f]{64}", name) for name in there)
    assert there.isdisjoint(names)
    assert list(store.keys("r/")) == [long]
    assert {len(name) for name in memory.keys()} == {66, len(MARK), 2 * len(long.encode()) + 43}  # noqa: SIM118


# The powers of an untrusted store

CONTENTS = {
    OBJECT: b"one object",
    OTHER: b"another object",
    "r/heads/main": b"a" * 64,
    "r/heads/next": b"b" * 64,
    "format": b"1",
    "reflog/heads/main:1": b"",
    ROOM + OBJECT: b"one object",
    ROOM + "r/heads/main": b"a" * 64,
    f"{ROOM}room/": b"",
}


damaged = pytest.raises((CorruptObject, CorruptStore))


def test_every_change_of_a_row_is_found(store: Encrypted, memory: Memory) -> None:
    """Each bit counts, and a row that is cut: the value raises, and names the object. A row under a name that
    was changed is found when it is listed, or when the object is read.
    """
    store.set_many(CONTENTS)
    for key in CONTENTS:
        name = store._cipher.name(key)
        row = memory._values[name]
        for bit in range(8 * len(row)):
            changed = bytearray(row)
            changed[bit // 8] ^= 1 << bit % 8
            memory.set(name, bytes(changed))
            with pytest.raises(CorruptObject if is_object(key) else CorruptStore) as caught:
                store.get(key)
            if isinstance(caught.value, CorruptObject):
                assert caught.value.id == key[-64:]
        for length in range(len(row)):
            memory.set(name, row[:length])
            with damaged:
                store.get_many([key])
        memory.delete(name)
        for at in range(len(name)):
            if name[at] != "/":
                moved = name[:at] + ("1" if name[at] == "0" else "0") + name[at + 1 :]
                memory.set(moved, row)
                with damaged:
                    dict(store.items())
                memory.delete(moved)
        memory.set(name, row)
    assert {key: store.get(key) for key in CONTENTS} == store.get_many(CONTENTS) == dict(store.items())
    assert dict(store.items()) == CONTENTS


def test_swapped_and_moved_rows_are_found(store: Encrypted, memory: Memory) -> None:
    """A row fails under any other name, whether that name exists, is deleted, or has an earlier version."""
    absent = ("absent", "r/heads/absent", "o/" + "ef" * 32, "room/00000000000000a2/r/heads/main")
    store.set_many({**CONTENTS, "r/heads/next": b"an earlier value"})
    earlier = memory._values[store._cipher.name("r/heads/next")]
    store.set_many(CONTENTS)
    rows = {key: memory._values[store._cipher.name(key)] for key in CONTENTS}
    for key, other in product(CONTENTS, (*CONTENTS, *absent)):
        name = store._cipher.name(other)
        # An earlier row under its own name is a replay: see below.
        for row in (rows[key], *((earlier,) if other != "r/heads/next" else ())):
            if other != key or row is earlier:
                memory.set(name, row)
                with damaged:
                    store.get(other)
                with damaged:
                    dict(store.items())
        memory.compare_and_swap(name, memory.get(name), rows.get(other))
    assert dict(store.items()) == CONTENTS


def test_a_replay_and_a_deletion_are_not_found(store: Encrypted, memory: Memory) -> None:
    """The store can bring back an earlier value of a name, or delete it; docs/security.md says so."""
    store.set("r/heads/main", b"old")
    old = dict(memory.items())
    store.set("r/heads/main", b"new")
    for name, row in old.items():
        memory.set(name, row)
    assert store.get("r/heads/main") == b"old"
    memory.delete(store._cipher.name("r/heads/main"))
    assert store.get("r/heads/main") is None


def test_foreign_rows_are_refused(store: Encrypted, memory: Memory) -> None:
    """A row whose name this key did not make is damage, not something to skip. Every name of an object's form
    stands for one, and there is no value for it.
    """
    store.set("r/heads/main", b"1")
    for name in ("o/" + "a" * 63, "o/", "a/b", "x", "Encryption", "00000000/00", "o/" + "A" * 64):
        memory.set(name, b"row")
        with pytest.raises(CorruptStore, match="was not written with this key"):
            list(store.keys())
        assert store.get("r/heads/main") == b"1"
        memory.delete(name)
    memory.set(OBJECT, b"planted")
    (key,) = store.keys("o/")
    with pytest.raises(CorruptObject, match="cannot be decrypted"):
        store.get(key)


def test_a_damaged_copy_in_a_cache_is_read_again(tmp_path: Path) -> None:
    """Behind a cache whose copy is damaged stands the store."""
    memory = Memory()
    cache = Cache(memory)
    store = Encrypted(cache, KEY)
    store.set(OBJECT, b"value")
    name = store._cipher.name(OBJECT)
    cache._memory._values[name] = b"damaged" * 10
    assert store.get(OBJECT) == b"value"
    assert store.get_many([OBJECT, OTHER]) == {OBJECT: b"value"}


# Keys

WRITES: dict[str, Callable[[KVStore], object]] = {
    "set": lambda store: store.set("a", b"1"),
    "set_many": lambda store: store.set_many({"a": b"1"}),
    "compare_and_swap": lambda store: store.compare_and_swap("a", None, b"1"),
    "transact": lambda store: store.transact({"a": b"1"}, {"a": None}),
    "exclusively": lambda store: store.exclusively(lambda: {"a": b"1"}),
}
OTHERS: dict[str, Callable[[KVStore], object]] = {
    "get": lambda store: store.get("a"),
    "get_many": lambda store: store.get_many(["a"]),
    "in": lambda store: "a" in store,
    "keys": lambda store: list(store.keys()),
    "items": lambda store: list(store.items()),
    "delete": lambda store: store.delete("a"),
    "delete_many": lambda store: store.delete_many(["a"]),
    "swap": lambda store: store.compare_and_swap("a", None, None),
    "transact a deletion": lambda store: store.transact({"a": None}, {}),
}


@pytest.mark.parametrize("use", [*WRITES, *OTHERS])
def test_a_wrong_key_never_looks_like_an_empty_store(memory: Memory, use: str) -> None:
    """It is refused as the store is opened, with both fingerprints and neither key. Of two handles that open
    an empty store, the second writer gets the error, and so does its reader. Any first write marks the store.
    """
    first, second = Encrypted(memory, KEY), Encrypted(memory, OTHER_KEY)
    assert second.get("a") is None
    WRITES.get(use, WRITES["set"])(first)
    assert (memory.get(MARK) or b"").startswith(b"1 " + fingerprint(KEY).encode())
    with pytest.raises(InvalidInput, match="another key"):
        {**WRITES, **OTHERS}[use](second)
    assert dict(first.items()) == dict(Encrypted(memory, KEY).items()) == {"a": b"1"}
    with pytest.raises(InvalidInput, match="another key") as caught:
        Encrypted(memory, OTHER_KEY)
    assert fingerprint(KEY) in str(caught.value)
    assert fingerprint(OTHER_KEY) in str(caught.value)
    assert KEY.hex() not in str(caught.value)


def test_looking_at_an_empty_store_writes_nothing(store: Encrypted, memory: Memory) -> None:
    """The mark comes with the first write, not before."""
    assert store.get("a") is None
    assert list(store.keys("r/")) == list(store.items()) == []
    assert "a" not in store
    store.delete("a")
    store.delete_many(["a", "b"])
    store.set_many({})
    assert store.compare_and_swap("a", None, None)
    assert not store.compare_and_swap("a", b"1", None)
    assert store.transact({"a": None}, {"b": None})
    assert not store.transact({}, {"b": b""})
    assert store.exclusively(dict)
    for wrong in (lambda: store.set("a\0", b""), lambda: store.transact({"a": b"", "b\0": b""}, {})):
        with pytest.raises(InvalidInput):
            wrong()
    assert list(memory.keys()) == []


def test_a_store_that_is_not_encrypted(memory: Memory) -> None:
    """An Encrypted store refuses to be opened as a plain one, also without its mark, and names the way."""
    with Versioned(memory) as state:
        state["k"] = 1
        state.commit()
    with pytest.raises(InvalidInput, match="is not encrypted"):
        Encrypted(memory, KEY)
    other = Memory()
    Encrypted(other, KEY).set("a", b"1")
    other.delete(MARK)
    with pytest.raises(InvalidInput, match="is not encrypted, and not empty"):
        Encrypted(other, KEY)


def test_an_encrypted_store_opened_without_its_key(store: Encrypted, memory: Memory) -> None:
    """A repository over the encrypted rows names the way to open them."""
    Versioned(store).commit("nothing")
    Repository(memory)
    state = Versioned(store)
    state["k"] = 1
    state.commit()
    with pytest.raises(InvalidInput, match=r"is encrypted: open it through Encrypted\(store, key\)"):
        Repository(memory)
    assert Versioned(Encrypted(memory, KEY))["k"] == 1


@pytest.mark.parametrize(
    ("mark", "error"),
    [(b"", CorruptStore), (b"x", CorruptStore), (b"0 ab", CorruptStore), (b"\xff", CorruptStore)]
    + [(b"2 ab", UnsupportedFormat), (b"1 ab", InvalidInput), (b"1", InvalidInput)],
)
def test_marks_that_make_no_sense(memory: Memory, mark: bytes, error: type[VStateError]) -> None:
    """A mark of a newer version, or of none, is refused as such."""
    memory.set(MARK, mark)
    with pytest.raises(error):
        Encrypted(memory, KEY)


def test_key_files(tmp_path: Path, key_file: Path, memory: Memory) -> None:
    """A file of one line, for its owner only, which is never overwritten."""
    assert load_key(key_file) == KEY
    assert key_file.read_text() == f"vstate encryption key 1: {KEY.hex()}\n"
    assert key_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(AlreadyExists, match="choose another name"):
        save_key(key_file, OTHER_KEY)
    assert load_key(key_file) == KEY
    Encrypted(memory, key_file).set("a", b"1")
    assert Encrypted(memory, str(key_file)).get("a") == Encrypted(memory, KEY).get("a") == b"1"
    assert len({generate_key() for _ in range(10)}) == 10
    with pytest.raises(NotFound, match="vstate key new"):
        load_key(tmp_path / "absent")


CONTENT = [b"", b"\n", KEY, KEY.hex().encode(), b"x" * 100_000]
CONTENT += [b"vstate encryption key " + rest for rest in (b"1: 00", b"1: " + b"g" * 64, b"2: " + b"0" * 64)]


def test_what_is_no_key(tmp_path: Path, key_file: Path, memory: Memory) -> None:
    """A key has 32 bytes; its file has one line, and only its owner may read it. No error shows the key."""
    no_key: list[Any] = [b"", b"short", bytes(33), "", 7, None, KEY.hex()]
    for key in no_key:
        with pytest.raises((InvalidInput, NotFound)):
            Encrypted(memory, key)
    for mode in (0o640, 0o604, 0o610, 0o777) if os.name == "posix" else ():
        key_file.chmod(mode)
        with pytest.raises(InvalidInput, match="chmod 600"):
            load_key(key_file)
    path = tmp_path / "file"
    for content in CONTENT:
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(InvalidInput) as caught:
            load_key(path)
        assert KEY.hex() not in str(caught.value)


def test_a_key_file_that_is_none(tmp_path: Path) -> None:
    """A directory and a pipe are no key files, and reading them does not block."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe", "nul\0"):
        with pytest.raises(InvalidInput):
            load_key(path)
    with pytest.raises(InvalidInput, match="cannot be made"):
        save_key(tmp_path / "absent" / "file", KEY)


def test_the_key_is_nowhere(store: Encrypted, key_file: Path) -> None:
    """Not in the repr, and a pickle is refused rather than made with the key in it."""
    assert repr(store) == "Encrypted(Memory(0 keys))"
    with pytest.raises(TypeError, match="open it again"):
        pickle.dumps(store)
    state = Versioned()
    state["store"] = store
    with pytest.raises(Unpicklable):
        state.commit()
    with Encrypted(Memory(), key_file) as other:
        assert repr(other) == "Encrypted(Memory(0 keys))"


# Around it


def test_urls_that_are_refused(tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing store, a missing key file and an unknown option make nothing."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"encrypted:STORE\?key_file=PATH"):
        open_store("encrypted:store")
    with pytest.raises(InvalidInput, match="no option"):
        open_store(f"encrypted:store?speed=1&key_file={key_file}")
    with pytest.raises(NotFound):
        open_store(f"encrypted:store?key_file={key_file}", create=False)
    assert not (tmp_path / "store").exists()
    with pytest.raises(NotFound, match="no key file"):
        open_store("encrypted:store?key_file=absent")


def test_many_handles_begin_one_store(tmp_path: Path) -> None:
    """Writers that find an empty store at once agree on its mark, and lose nothing."""
    start = Barrier(4)

    def count(_: int) -> None:
        with Encrypted(Disk(tmp_path / "store"), KEY) as store:
            start.wait()
            for _ in range(20):
                old = store.get("count")
                while not store.compare_and_swap("count", old, str(int(old or b"0") + 1).encode()):
                    old = store.get("count")

    at_once(count, range(4))
    with Disk(tmp_path / "store") as disk, Encrypted(disk, KEY) as store:
        assert dict(store.items()) == {"count": b"80"}
        assert len(list(disk.keys())) == 2
