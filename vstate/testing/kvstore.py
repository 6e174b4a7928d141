"""KVStoreTests: the tests that every store passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

import pytest

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore

OBJECT = "o/" + "0123456789abcdef" * 4
ROOM = "room/00000000fe0a00ff/"
ODD_KEYS = [
    "a",
    "A",
    "a/b",
    "a/b/c",
    "a%b",
    "axb",
    "a_b",
    "a*b",
    "a?b",
    "a[b]",
    "a\\b",
    "a'b\"c",
    "a b",
    " a",
    "a\nb",
    "é",
    "e\u0301",
    "ß",
    "SS",
    "\ud7ff",
    "\ue000",
    "\uffff",
    *(f"plane/{chr(plane * 0x10000 + 0x61)}" for plane in range(17)),
    "plane/\U0010ffff",
    "long/" + "x" * 500,
    "long/" + "x" * 499 + "y",
    OBJECT,
    OBJECT.upper(),
    "o/" + OBJECT[2:].upper(),
    OBJECT[:-1],
    OBJECT + "0",
    "o/" + " 0" * 32,
    "o/",
    "o",
    *("r", "r/", "roo", "room", "room/", "room/xyz", "room/0", "room/00/a", "roomy/0000000000000001/a"),
    *(
        "room/0000000000000001",
        "room/00000000000000001/a",
        "room/00000000FE0A00FF/a",
        "ROOM/00000000fe0a00ff/a",
    ),
    *(ROOM + key for key in ("", "a", "A", "o", "o/", OBJECT, OBJECT.upper(), OBJECT[:-1], OBJECT + "0")),
    *(
        ROOM + key
        for key in ("r/heads/x", "reflog/heads/x:1", "room/", "é", "\uffff", "plane/\U0010ffff", ROOM)
    ),
    *(f"room/{number:016x}/{key}" for number in (0, 1, 2**64 - 1) for key in ("a", OBJECT)),
    ROOM + ROOM + OBJECT,
]
PREFIXES = [
    *("", "a", "A", "a%", "a_", "a*", "a?", "a[", "a\\", "a'", "a/", "%", "_", "*", "e", "é"),
    *("plane/", "plane/\U0010ffff", "\ud7ff", "\ue000", "\uffff", "long/xxx", "absent"),
    *("o", "o/", "O/", "o/0123456789A", "o/ "),
    *(OBJECT[:5], OBJECT[:6], OBJECT[:-1], OBJECT, OBJECT + "0"),
    *("r", "ro", "room", "room/", "room/0", "room/f", "room/x", "room/00000000F", "ROOM/"),
    *(ROOM[:-2], ROOM[:-1], ROOM, ROOM[:-1] + "0", "room/ffffffffffffffff", "room/0000000000000000/"),
    *(ROOM + prefix for prefix in ("o", "o/", "o/01", "o/012", OBJECT, "r", "r/heads/", "é", "\uffff", ROOM)),
]
ROOMS = ("", ROOM)
"""What the keys of a test begin with: outside rooms, and in one."""


class KVStoreTests:
    """Inherit from this class and give it a fixture `store`; pytest runs all its tests against that store:

        class TestMine(KVStoreTests):
            @pytest.fixture
            def store(self, tmp_path):
                with MyStore(tmp_path) as store:
                    yield store

    `store` must be empty. If it keeps its contents, give a fixture `reopen` too: a function that opens
    another handle on the same contents each time it is called.
    """

    @pytest.fixture
    def store(self) -> Any:
        raise NotImplementedError("give the subclass a fixture `store` that returns an empty store")

    @pytest.fixture
    def reopen(self) -> Callable[[], KVStore] | None:
        return None

    # get, set, delete

    def test_the_last_value_set_is_read_back(self, store: KVStore) -> None:
        """It may be longer, shorter, the same or empty, and hold any bytes. A key never set is None. A store
        does not know that objects never change.
        """
        for key in ("key", OBJECT, ROOM + OBJECT):
            assert store.get(key) is None
            for value in (b"one", b"three", b"", b"", bytes(range(256)), b"two", b""):
                store.set(key, value)
                assert store.get(key) == value
                assert type(store.get(key)) is bytes
                assert store.get_many([key]) == dict(store.items(key)) == {key: value}
                assert key in store
        assert sorted(store.keys("o/")) == [OBJECT]

    def test_five_megabytes(self, store: KVStore) -> None:
        """A value may be large."""
        value = bytes(range(250)) * 20_000
        store.set("key", value)
        assert store.get("key") == value

    def test_delete(self, store: KVStore) -> None:
        """A deleted key is absent everywhere. It may be absent before."""
        store.set("key", b"value")
        for _ in range(2):
            store.delete("key")
            assert store.get("key") is None
            assert "key" not in store
            assert list(store.keys()) == list(store.keys("any/")) == []

    def test_the_value_is_no_alias(self, store: KVStore) -> None:
        """Changing a bytearray that was set does not change the store."""
        value: Any = bytearray(b"before")
        store.set("set", value)
        store.set_many({"many": value})
        store.compare_and_swap("swap", None, value)
        store.transact({"transact": value, OBJECT: value}, {})
        value[:] = b"after!"
        found = {key: store.get(key) for key in ("set", "many", "swap", "transact", OBJECT)}
        assert found == dict.fromkeys(found, b"before"), (
            "a write keeps the caller's bytearray: use check_value"
        )
        assert {type(value) for value in found.values()} == {bytes}

    # keys

    def test_odd_keys(self, store: KVStore) -> None:
        """Every str without NUL and lone surrogates is a key of its own, case and normal form included."""
        expected = {key: str(number).encode() for number, key in enumerate(ODD_KEYS)}
        for key, value in expected.items():
            store.set(key, value)
        assert {key: store.get(key) for key in ODD_KEYS} == expected
        assert sorted(store.keys()) == sorted(ODD_KEYS)
        assert dict(store.items()) == expected
        for key in ODD_KEYS[::2]:
            store.delete(key)
        assert sorted(store.keys()) == sorted(ODD_KEYS[1::2])

    def test_a_prefix_is_taken_literally(self, store: KVStore) -> None:
        """`keys` and `items` list exactly the keys that start with the prefix; no character is a wildcard."""
        store.set_many(dict.fromkeys(ODD_KEYS, b"value"))
        for prefix in PREFIXES:
            expected = sorted(key for key in ODD_KEYS if key.startswith(prefix))
            assert sorted(store.keys(prefix)) == expected, prefix
            assert sorted(key for key, _ in store.items(prefix)) == expected, prefix

    def test_keys_come_in_order(self, store: KVStore) -> None:
        """A store with transactions and an index lists keys ascending, as Python compares them."""
        if not (store.transactional and store.ordered):
            pytest.skip("the store does not list its keys in order")
        names = [f"n/{key}" for key in (*ODD_KEYS, *map(str, range(1100)))]
        store.set_many(dict.fromkeys(names, b"value"))
        assert list(store.keys("n/")) == [key for key, _ in store.items("n/")] == sorted(names)

    def test_keys_lists_each_of_many_once(self, store: KVStore) -> None:
        """A listing too long for one page has every key once."""
        objects = {f"o/{number * 2654435761 % 2**256:064x}": b"object" for number in range(300)}
        others = {f"n/{number:05}": b"other" for number in range(1100)}
        outside, inside = {**objects, "n/1": b""}, {f"{ROOM}{key}": value for key, value in others.items()}
        store.set_many({**outside, **inside})
        assert sorted(store.keys()) == sorted([*outside, *inside])
        assert sorted(store.keys("o/")) == sorted(objects)
        assert sorted(store.keys(ROOM)) == sorted(store.keys(f"{ROOM}n/")) == sorted(inside)
        expected = [(f"{ROOM}n/{number:05}", b"other") for number in range(1000, 1100)]
        assert sorted(store.items(f"{ROOM}n/01")) == expected

    def test_the_store_may_change_during_keys(self, store: KVStore) -> None:
        """Deleting keys while they are listed, as garbage collection does, neither fails nor skips a key."""
        for prefix in ("n/", ROOM):
            wanted = [*(f"{prefix}{number}" for number in range(50)), f"{prefix}{OBJECT}"]
            store.set_many(dict.fromkeys([*wanted, "other"], b"value"))
            listed = []
            for key in store.keys(prefix):
                listed.append(key)
                store.delete(key)
            assert sorted(listed) == sorted(wanted)
            assert list(store.keys()) == ["other"]

    def test_a_wrong_key_is_refused(self, store: KVStore) -> None:
        """A key that is no str, or that UTF-8 or C cannot hold, raises InvalidInput and writes nothing."""
        calls: dict[str, Callable[[Any], object]] = {
            "get": lambda key: store.get(key),
            "set": lambda key: store.set(key, b"value"),
            "delete": lambda key: store.delete(key),
            "keys": lambda key: list(store.keys(key)),
            "compare_and_swap": lambda key: store.compare_and_swap(key, None, b"value"),
            "get_many": lambda key: store.get_many([key]),
            "set_many": lambda key: store.set_many({key: b"value"}),
            "delete_many": lambda key: store.delete_many([key]),
            "transact, of a write": lambda key: store.transact({"good": b"value", key: b"value"}, {}),
            "transact, of an expectation": lambda key: store.transact({"good": b"value"}, {key: None}),
        }
        wrong = ("nul\0inside", "surrogate\ud800", None, 7, b"bytes", ("a",))
        accepted = _not_refused(store, calls, wrong, InvalidInput)
        assert not accepted, "call check_key(key) first in every method: " + "; ".join(accepted)

    def test_a_wrong_value_is_refused(self, store: KVStore) -> None:
        """A value that is not bytes raises TypeError and writes nothing."""
        calls: dict[str, Callable[[Any], object]] = {
            "set": lambda value: store.set("key", value),
            "set_many": lambda value: store.set_many({"key": value}),
            "compare_and_swap": lambda value: store.compare_and_swap("key", None, value),
            "transact": lambda value: store.transact({"key": value}, {}),
        }
        accepted = _not_refused(store, calls, ("text", 7, ["list"]), TypeError)
        assert not accepted, "call check_value(value) in every method that writes: " + "; ".join(accepted)

    def test_every_kind_of_bytes_is_a_value(self, store: KVStore) -> None:
        """Bytes, those of a subclass, and views of bytes are read back as bytes, however they were set."""

        class Special(bytes):
            pass

        kinds: list[Any] = [
            Special(b"a value"),
            bytearray(b"a value"),
            memoryview(b"a value"),
            memoryview(b"a- -v-a-l-u-e")[::2],
        ]
        writes: list[Callable[[str, Any], object]] = [
            lambda key, value: store.set(key, value),
            lambda key, value: store.set_many({key: value}),
            lambda key, value: store.compare_and_swap(key, store.get(key), value),
            lambda key, value: store.transact({key: value}, {}),
            lambda key, value: store.exclusively(lambda: {key: value}) or store.set(key, value),
        ]
        store.set(OBJECT, b"an earlier value")
        for number, (kind, write) in enumerate(product(kinds, writes)):
            for key in ("key", f"o/{number:064x}"):
                write(key, kind)
                assert store.get(key) == store.get_many([key])[key] == bytes(kind)
                assert isinstance(store.get(key), bytes)

    # pack

    @pytest.mark.parametrize("room", ROOMS, ids=["outside rooms", "in a room"])
    def test_packed_objects_are_as_before(self, store: KVStore, room: str) -> None:
        """They are read, listed, written again and deleted as ever; none comes or goes by packing."""
        values = {f"{room}o/{number:064x}": b"b" + str(number).encode() * 50 for number in range(40)}
        odd, absent = f"{room}o/{'e' * 64}", f"{room}o/{'f' * 64}"
        rows = {**values, odd: b"as it was", f"{room}key": b"value", f"{room}o/short": b"value"}
        store.set_many(rows)
        for keys in ([*rows, absent], [], None):
            store.pack(lambda key, value: None if key == odd else value, keys)
            assert {key: store.get(key) for key in (*rows, absent)} == {**rows, absent: None}
        first, second, third, *_ = rows
        store.set(first, rows[first])
        store.delete(second)
        store.pack(lambda key, value: value)
        store.release()
        del rows[second]
        assert store.get_many([*rows, second]) == dict(store.items()) == rows
        assert store.present([*rows, second]) == set(store.keys()) == set(rows)
        store.set(second, b"back")
        assert store.get(second) == b"back"
        assert store.compare_and_swap(third, b"another value", None) is False
        assert store.compare_and_swap(third, rows[third], None) is True
        assert store.get(third) is None

    def test_what_is_deleted_leaves_no_trace(self, store: KVStore) -> None:
        """`scrub` finds nothing of deleted objects, and leaves all other rows as they are."""
        rows = {f"o/{number:064x}": b"%d" % number * 3000 for number in range(40)}
        rows |= {f"room/00000000000000a1/o/{number:064x}": b"room" * number for number in range(20)}
        store.set_many({**rows, "r/heads/main": b"1"})
        store.pack(lambda key, value: value)
        gone = [key for number, key in enumerate(rows) if number % 2]
        store.delete_many(gone)
        place, found = store.scrub(gone)
        assert place
        assert not found
        left = {key: row for key, row in rows.items() if key not in gone} | {"r/heads/main": b"1"}
        assert dict(store.items()) == left

    # compare_and_swap

    def test_a_swap_compares_and_writes(self, store: KVStore) -> None:
        """It is done exactly if the value is the expected one. None is absence; an empty value is not."""
        values = (None, b"", b"old")
        for value, expected, new in product(values, values, (None, b"", b"new")):
            if value is None:
                store.delete("key")
            else:
                store.set("key", value)
            assert store.compare_and_swap("key", expected, new) is (value == expected)
            assert store.get("key") == (new if value == expected else value)
            assert list(store.keys()) == ([] if store.get("key") is None else ["key"])

    def test_swap_is_atomic_among_threads(self, store: KVStore) -> None:
        """Eight threads that increment one counter lose no increment. One of them creates it."""
        creators: list[int] = []

        def increment(thread: int) -> None:
            if store.compare_and_swap("counter", None, b"0"):
                creators.append(thread)
            for _ in range(10):
                while True:
                    old = store.get("counter") or b"0"
                    if store.compare_and_swap("counter", old, b"%d" % (int(old) + 1)):
                        break

        assert _in_threads(8, increment) == []
        assert store.get("counter") == b"80"
        assert len(creators) == 1

    def test_swap_is_apart_from_plain_writes(self, store: KVStore) -> None:
        """A value that was set stays until a swap that expected it takes it away."""
        taken: dict[bytes | None, bytes | None] = {}
        seen: list[tuple[bytes, bytes | None]] = []

        def swap() -> None:
            for number in range(40):
                old, new = store.get("key"), b"swap %d" % number
                if store.compare_and_swap("key", old, new):
                    taken[new] = old

        def write() -> None:
            for number in range(40):
                value = b"set %d" % number
                store.set("key", value)
                seen.append((value, store.get("key")))

        assert _in_threads(2, lambda thread: (swap, write)[thread]()) == []
        for value, found in seen:
            while found != value:
                assert found in taken, f"{value!r} was overwritten by a swap that expected something else"
                found = taken[found]

    # the given methods

    def test_get_many(self, store: KVStore) -> None:
        """`get_many` returns the present keys, from any iterable."""
        contents = {f"n/{number}": str(number).encode() for number in range(250)} | {OBJECT: b"object"}
        store.set_many(contents)
        assert store.get_many(iter([*contents, "absent", "o/" + "f" * 64])) == contents
        assert store.get_many(["n/1", "n/1"]) == {"n/1": b"1"}
        assert store.get_many([]) == {}

    def test_set_many_and_delete_many(self, store: KVStore) -> None:
        """`set_many` sets all, overwriting; `delete_many` deletes all, absent ones too."""
        store.set("a", b"old")
        store.set_many({"a": b"1", "b": b"2", "c": b"3"})
        assert dict(store.items()) == {"a": b"1", "b": b"2", "c": b"3"}
        store.delete_many(iter(["a", "c", "absent"]))
        assert dict(store.items()) == {"b": b"2"}
        store.set_many({})
        store.delete_many([])
        assert dict(store.items()) == {"b": b"2"}

    def test_present(self, store: KVStore) -> None:
        """`present` returns those of the keys that are present, from any iterable."""
        store.set_many({f"n/{number}": b"" for number in range(250)} | {OBJECT: b"object"})
        wanted = [OBJECT, "absent", "o/" + "f" * 64, *(f"n/{number}" for number in range(240, 260))]
        assert store.present(iter(wanted)) == {OBJECT, *(f"n/{number}" for number in range(240, 250))}
        assert store.present([]) == set()
        assert OBJECT in store
        assert "absent" not in store

    def test_uncached_and_forget_are_about_copies(self, store: KVStore) -> None:
        """`uncached` has the same contents, and a write to it is seen. `forget` keeps the value."""
        store.set_many({OBJECT: b"object", "r/heads/main": b"1"})
        behind = store.uncached()
        assert dict(behind.items()) == dict(store.items())
        behind.set("a", b"1")
        assert store.get("a") == b"1"
        store.forget(OBJECT)
        store.forget("absent")
        assert store.get(OBJECT) == b"object"

    def test_check_finds_nothing(self, store: KVStore) -> None:
        """An undamaged store has nothing to report, before and after writing."""
        assert list(store.check()) == []
        store.set_many({f"o/{number:064x}": b"x" * 500 for number in range(50)})
        store.delete_many([f"o/{number:064x}" for number in range(25)])
        assert list(store.check()) == []
        assert len(list(store.keys())) == 25

    def test_location_and_repr(self, store: KVStore) -> None:
        """A store names its type and its place in words."""
        assert type(store).__name__ in repr(store)
        assert isinstance(store.location, str)
        assert store.location

    # transact

    def test_transact_writes_everything_or_moves_no_ref(self, store: KVStore) -> None:
        """With its expectation met, `transact` sets, swaps and deletes; with a wrong one it swaps nothing and
        deletes nothing.
        """
        for room in ROOMS:
            ref, stale = f"{room}r/heads/main", f"{room}o/{'f' * 64}"
            store.set_many({ref: b"old", stale: b"x"})
            set_now = {room + OBJECT: b"object", ref: b"new", f"{room}reflog/1": b"moved"}
            writes = {**set_now, stale: None, f"{room}absent": None}
            assert store.transact(writes, {ref: b"theirs"}) is False
            assert (store.get(ref), store.get(stale)) == (b"old", b"x")
            assert store.transact(writes, {ref: b"old"}) is True
            assert dict(store.items(room)) == set_now

    def test_transact_swaps_as_a_swap_does(self, store: KVStore) -> None:
        """None is an expectation, and a write."""
        for expected, new, done in [
            (None, b"1", True),
            (None, b"2", False),
            (b"wrong", None, False),
            (b"1", None, True),
        ]:
            before = store.get("r/heads/new")
            assert store.transact({"r/heads/new": new}, {"r/heads/new": expected}) is done
            assert store.get("r/heads/new") == (new if done else before)

    def test_transact_checks_what_it_does_not_write(self, store: KVStore) -> None:
        """An expectation may be about a key that stays as it is."""
        store.set("format", b"1")
        assert store.transact({"r/heads/main": b"a"}, {"format": b"2"}) is False
        assert store.transact({"r/heads/main": b"a"}, {"format": None}) is False
        assert store.get("r/heads/main") is None
        assert store.transact({"r/heads/main": b"a"}, {"format": b"1", "r/heads/main": None}) is True
        assert dict(store.items()) == {"format": b"1", "r/heads/main": b"a"}

    @pytest.mark.parametrize("room", ROOMS, ids=["outside rooms", "in a room"])
    def test_exclusively_writes_what_the_plan_returns(self, store: KVStore, room: str) -> None:
        """The plan reads committed values and its writes are done; or nothing happens and it is False. An
        exception of the plan comes out, and nothing is written.
        """
        ref = f"{room}r/heads/main"
        before: dict[str, bytes] = {room + OBJECT: b"object", ref: b"old"}
        store.set_many(before)
        seen: list[bytes | None] = []

        def plan() -> dict[str, bytes | None]:
            seen.append(store.get(ref))
            return {ref: b"new", "added": b"1", room + OBJECT: None}

        def fail() -> dict[str, bytes | None]:
            raise KeyError("stop")

        if store.exclusively(dict):
            with pytest.raises(KeyError):
                store.exclusively(fail)
            assert dict(store.items()) == before
            assert store.exclusively(plan)
            assert set(seen) == {b"old"}
            assert dict(store.items()) == {ref: b"new", "added": b"1"}
        else:
            assert store.exclusively(fail) is False
            assert dict(store.items()) == before

    def test_exclusively_loses_no_increment(self, store: KVStore) -> None:
        """Between a plan's reading and its writing nobody else writes."""
        if not store.exclusively(dict):
            pytest.skip("the store cannot keep other writers out")
        store.set("n", b"0")

        def increment() -> dict[str, bytes | None]:
            return {"n": str(int(store.get("n") or b"0") + 1).encode()}

        def work(_: int) -> None:
            for _ in range(25):
                store.exclusively(increment)

        assert _in_threads(4, work) == []
        assert store.get("n") == b"100"

    def test_transact_without_expectations(self, store: KVStore) -> None:
        """Without expectations everything is written. Without writes, expectations are only checked."""
        assert store.transact({"a": b"1", "b": None}, {}) is True
        assert store.transact({}, {}) is True
        assert store.transact({}, {"a": b"1"}) is True
        assert store.transact({}, {"a": b"2"}) is False
        assert dict(store.items()) == {"a": b"1"}

    def test_two_swaps_happen_as_one_or_not_at_all(self, store: KVStore) -> None:
        """A store swaps two keys as one, or raises InvalidInput having written nothing."""
        store.set_many({"r/heads/a": b"1", "r/heads/b": b"1"})
        before = dict(store.items())
        assert_wrong = {"r/heads/a": b"1", "r/heads/b": b"0"}
        try:
            assert store.transact({"r/heads/a": b"2", "r/heads/b": b"2"}, assert_wrong) is False
        except InvalidInput:
            assert dict(store.items()) == before
            return
        assert dict(store.items()) == before
        assert store.transact({"r/heads/a": b"2", "r/heads/b": b"2"}, before) is True
        assert dict(store.items()) == {"r/heads/a": b"2", "r/heads/b": b"2"}

    def test_transact_is_atomic_among_threads(self, store: KVStore) -> None:
        """Threads that each move a ref with transactions lose no move, and no object of one."""
        ref = f"{ROOM}r/heads/main"

        def move(thread: int) -> None:
            for number in range(8):
                while True:
                    old = store.get(ref)
                    new = (old or b"") + b"x"
                    name = f"{ROOM}o/{thread * 100 + number:064x}"
                    if store.transact({name: new, ref: new}, {ref: old}):
                        break

        assert _in_threads(4, move) == []
        assert store.get(ref) == b"x" * 32
        assert len(list(store.keys(f"{ROOM}o/"))) == 32

    def test_two_transacts_cannot_both_expect_what_the_other_writes(self, store: KVStore) -> None:
        """An expectation about a key that is not written holds as well until the writes are done."""
        if not store.transactional:
            pytest.skip("the store has no transactions")
        for _ in range(20):
            store.set_many({"a": b"0", "b": b"0"})
            results: list[bool] = []

            def write(thread: int, results: list[bool] = results) -> None:
                mine, other = ("a", "b")[:: 1 - 2 * thread]
                results.append(store.transact({mine: b"1"}, {other: b"0"}))

            assert _in_threads(2, write) == []
            assert sorted(results) == [False, True]

    # durability

    def test_contents_survive_reopening(self, store: KVStore, reopen: Callable[[], KVStore] | None) -> None:
        """Another handle sees every written key, and no deleted one."""
        if reopen is None:
            pytest.skip("the store offers no `reopen`: it does not keep its contents")
        store.set_many(dict.fromkeys(ODD_KEYS, b"value"))
        store.set("deleted", b"value")
        store.delete("deleted")
        assert store.transact({"r/heads/main": b"1", OBJECT: b"object"}, {"r/heads/main": None})
        expected = dict.fromkeys(ODD_KEYS, b"value") | {"r/heads/main": b"1", OBJECT: b"object"}
        with reopen() as beside:
            assert dict(beside.items()) == expected
        store.close()
        with reopen() as later:
            assert dict(later.items()) == expected

    def test_two_handles_see_each_other(self, store: KVStore, reopen: Callable[[], KVStore] | None) -> None:
        """A write of one handle is the next read of the other, and swaps are atomic among both."""
        if reopen is None:
            pytest.skip("the store offers no `reopen`: it does not keep its contents")
        with reopen() as other:
            for number in range(5):
                store.set("r/heads/main", str(number).encode())
                assert other.get("r/heads/main") == str(number).encode()
            assert other.compare_and_swap("r/heads/main", b"4", b"5") is True
            assert store.compare_and_swap("r/heads/main", b"4", b"6") is False
            assert store.get("r/heads/main") == b"5"
            other.delete("r/heads/main")
            assert store.get("r/heads/main") is None


def _not_refused(
    store: KVStore,
    calls: Mapping[str, Callable[[Any], object]],
    arguments: Iterable[object],
    refusal: type[Exception],
) -> list[str]:
    """A sentence for each call that takes a wrong argument, raises another error, or leaves a key behind."""
    found = []
    for argument in arguments:
        for name, call in calls.items():
            try:
                call(argument)
            except refusal:
                outcome = ""
            except Exception as error:  # of any kind: it is told, by name
                outcome = f"raised {type(error).__name__} instead of {refusal.__name__}"
            else:
                outcome = f"did not raise {refusal.__name__}"
            if left := list(store.keys()):
                outcome = f"{outcome or 'raised'} and wrote {left!r}"
                store.delete_many(left)
            if outcome:
                found.append(f"{name} with {argument!r} {outcome}")
    return found


def _in_threads(count: int, work: Callable[[int], object]) -> list[BaseException]:
    """Run `work(0)` to `work(count - 1)` at once; return the errors that they raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
