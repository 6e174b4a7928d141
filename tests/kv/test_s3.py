"""S3 on a real SeaweedFS: the store contract, swaps, round trips and faults."""

import copy
import os
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from protocol_proxies import RequestProxy
from seaweed_server import READER_KEY, SECRET_KEY, S3Place

from vstate import Versioned
from vstate.errors import CorruptStore, InvalidInput, StoreFull, StoreUnavailable
from vstate.kv.s3 import S3

pytestmark = pytest.mark.slow

OBJECT = "o/" + "0123456789abcdef" * 4


@pytest.fixture
def store(s3_place: S3Place) -> Iterator[S3]:
    with s3_place.open() as store:
        yield store


@pytest.fixture
def proxy(s3_place: S3Place) -> Iterator[RequestProxy]:
    endpoint = urlsplit(s3_place.options.get("endpoint", ""))
    if endpoint.scheme != "http" or endpoint.hostname != "127.0.0.1" or endpoint.port is None:
        pytest.skip("needs a server on this machine, without TLS, to stand before")
    with RequestProxy(endpoint.port) as proxy:
        yield proxy


@pytest.fixture
def far(s3_place: S3Place, proxy: RequestProxy) -> Iterator[S3]:
    """The same place through the proxy, by a handle that has done its first requests."""
    with s3_place.open(endpoint=proxy.endpoint, timeout=60) as far:
        far.set_many({f"warm/{number}": b"up" for number in range(64)})
        assert far.compare_and_swap("warm/swap", None, b"up")
        proxy.methods.clear()
        yield far


def _object(number: int) -> str:
    return f"o/{number * 0x9E3779B97F4A7C15 % 2**256:064x}"


def _raw(store: S3, name: str) -> bytes | None:
    stored = store._bucket.read(name)
    return None if stored is None else stored.data


def _answer(status: str, code: str = "") -> bytes:
    """An answer of a server, with an error of this code."""
    body = f"<Error><Code>{code}</Code><Message>secret</Message></Error>" if code else ""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


@contextmanager
def _unknown() -> Iterator[None]:
    """The call inside raises StoreUnavailable, and says that it may or may not have happened."""
    with pytest.raises(StoreUnavailable) as caught:
        yield
    assert caught.value.outcome_unknown


# Stored objects


def test_no_value_is_taken_for_a_deleted_key(store: S3) -> None:
    """Values as short as a tombstone are values, however they were written."""
    for value in map(bytes, (0, 1, 7, 8, 9)):
        store.set_many({"set": value, "swapped": b"old"})
        assert store.compare_and_swap("swapped", b"old", value)
        assert store.transact({"beside": value, "swapped": value, OBJECT: value}, {"swapped": value})
        assert dict(store.items()) == dict.fromkeys(["set", "swapped", "beside", OBJECT], value)
        assert store.present(["set", "swapped", "beside", OBJECT]) == {"set", "swapped", "beside", OBJECT}


def test_a_key_deleted_by_a_swap_is_absent_everywhere(s3_place: S3Place, store: S3) -> None:
    """The tombstone is never visible, and gives way to a new value, also of a handle that does not know of
    it, and to a plain delete.
    """
    store.set("key", b"old")
    assert store.compare_and_swap("key", b"old", None)
    assert len(_raw(store, "key=") or b"") == 8
    assert store.get("key") is None
    assert "key" not in store
    assert store.get_many(["key"]) == {}
    assert store.present(["key"]) == set()
    assert list(store.keys()) == list(store.items()) == []
    assert store.compare_and_swap("key", b"old", b"new") is False
    assert store.compare_and_swap("key", None, None) is True
    assert store.compare_and_swap("key", None, b"new") is True
    assert store.compare_and_swap("key", b"new", None) is True
    with s3_place.open() as other:
        assert other.transact({"key": b"new", "line": b"1"}, {"key": None}) is True
    assert dict(store.items()) == {"key": b"new", "line": b"1"}
    assert store.compare_and_swap("key", b"new", None) is True
    store.delete("key")
    assert _raw(store, "key=") is None


def test_what_is_no_key_is_left_alone(s3_place: S3Place, store: S3) -> None:
    """Objects that others put into the directory are not listed, and stay."""
    store._bucket.write("notes.txt", b"by somebody else")
    store._bucket.write("o/readme", b"by somebody else")
    store.set_many({"a": b"1", OBJECT: b"object"})
    assert sorted(store.keys()) == ["a", OBJECT]
    store.delete_many(list(store.keys()))
    assert _raw(store, "notes.txt") == _raw(store, "o/readme") == b"by somebody else"


def test_objects_are_stored_alike_and_other_values_never(s3_place: S3Place, store: S3) -> None:
    """Two writers of one object write the same bytes; two of one ref do not, so that each knows its own."""
    stored = set()
    with s3_place.open() as other:
        for handle in (store, other):
            handle.set_many({OBJECT: b"an object", "ref": b"value of a ref"})
            stored.add((_raw(store, f"{OBJECT}="), (_raw(store, "ref=") or b"")[:1]))
            stored.add((b"", _raw(store, "ref=")))
    assert len(stored) == 3
    assert (b"van object", b"s") in stored


def test_a_value_that_is_none_is_damage(store: S3) -> None:
    """A foreign object under the name of a key raises CorruptStore."""
    store._bucket.write("key=", b"written by somebody else")
    with pytest.raises(CorruptStore, match="'key'"):
        store.get("key")


def test_large_values(store: S3) -> None:
    """A value that is uploaded in parts is read back, and so is a swapped value of that size."""
    value = os.urandom(1 << 20) * 20
    store.set(OBJECT, value)
    assert store.compare_and_swap("key", None, value)
    assert store.get(OBJECT) == store.get("key") == value
    assert store.compare_and_swap("key", value, b"small")


def test_a_key_too_long_for_a_bucket_is_refused(store: S3) -> None:
    """A longer name than 1,024 bytes raises InvalidInput and writes nothing."""
    for key in ("x" * 1100, "é" * 200):
        with pytest.raises(InvalidInput, match="shorten"):
            store.set(key, b"value")
        with pytest.raises(InvalidInput, match="shorten"):
            store.transact({OBJECT: b"object", "a": b"1", key: b"value"}, {"a": None})
    assert list(store.keys()) == []


# Listing


def test_a_part_of_a_long_listing(s3_place: S3Place, proxy: RequestProxy) -> None:
    """Keys that begin in mid-part are listed from there on, and no further than they go."""
    with s3_place.open(endpoint=proxy.endpoint) as store:
        keys = [f"log/{number:05}" for number in range(1300)] + [f"log/01000/{number}" for number in range(5)]
        store.set_many(dict.fromkeys([*keys, "log-", "log0", "m"], b"value"))
        proxy.methods.clear()
        assert sorted(store.keys("log/010")) == sorted(key for key in keys if key.startswith("log/010"))
        assert proxy.methods == ["GET"]
        assert sorted(store.keys("log/")) == sorted(keys)
        assert sorted(store.keys("log")) == sorted([*keys, "log-", "log0"])
        assert sorted(store.keys("log-")) == ["log-"]
        seen = []
        for key in store.keys("log/"):
            seen.append(key)
            if len(seen) % 500 == 0:
                store.delete_many(seen[-500:])
        assert sorted(seen) == sorted(keys)


def test_a_listing_goes_on_where_it_was_cut(s3_place: S3Place, proxy: RequestProxy) -> None:
    """A page that fails is asked for again; every key is listed once."""
    with s3_place.open(endpoint=proxy.endpoint) as store:
        keys = [f"n/{number:05}" for number in range(1100)]
        store.set_many(dict.fromkeys(keys, b"value"))
        listing = store.keys("n/")
        listed = [next(listing)]
        proxy.lose("list-type=2", "drop")
        listed += listing
        assert sorted(listed) == keys


def test_present_lists_where_that_is_less(s3_place: S3Place, proxy: RequestProxy) -> None:
    """Two pages of a listing tell which of 1,200 objects exist. A few of many are asked for one by one."""
    with s3_place.open(endpoint=proxy.endpoint) as store:
        there = [_object(number) for number in range(1200)]
        store.set_many(dict.fromkeys(there, b"value of an object"))
        proxy.methods.clear()
        absent = [_object(-number) for number in range(1, 300)]
        assert store.present([*there, *absent]) == set(there)
        assert len(proxy.methods) <= 2
        proxy.methods.clear()
        assert store.present([*there[:10], *absent[:10]]) == set(there[:10])
        assert proxy.methods == ["HEAD"] * 20


# Swaps


def test_one_of_many_creators_wins(s3_place: S3Place) -> None:
    """Eight handles create one key at the same moment. One succeeds, and its value is there."""
    with ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        handles = [stack.enter_context(s3_place.open()) for _ in range(8)]
        created = threads.map(lambda n: handles[n].compare_and_swap("key", None, b"%d" % n), range(8))
        assert [n for n, done in enumerate(created) if done] == [int(handles[0].get("key") or b"-1")]


def test_a_swap_of_what_is_remembered_is_one_request(s3_place: S3Place, proxy: RequestProxy, far: S3) -> None:
    """A handle that read or wrote the key last swaps it with one PUT. Another handle reads it first."""
    assert far.compare_and_swap("key", None, b"1")
    assert far.compare_and_swap("key", b"1", b"2")
    assert far.compare_and_swap("key", b"2", None)
    assert far.compare_and_swap("key", None, b"3")
    assert proxy.methods == ["PUT"] * 4
    with s3_place.open() as other:
        assert other.compare_and_swap("key", b"3", b"4")
        other.set("key", b"5")
    assert far.get("key") == b"5"
    proxy.methods.clear()
    assert far.compare_and_swap("key", b"5", b"6")
    assert proxy.methods == ["PUT"]
    proxy.methods.clear()
    with s3_place.open(endpoint=proxy.endpoint) as fresh:
        assert fresh.compare_and_swap("key", b"wrong", b"7") is False
        assert fresh.compare_and_swap("key", b"6", b"7")
    assert proxy.methods == ["GET", "PUT"]


def test_a_swap_that_hangs_holds_up_others_for_half_their_time(s3_place: S3Place) -> None:
    """Swaps of one process queue for a key, which is a courtesy."""
    with s3_place.open(timeout=3) as store:
        assert store.compare_and_swap("key", None, b"1")
        with ExitStack() as hanging:
            for lock in store._locks:
                hanging.enter_context(lock)
            begin = time.monotonic()
            with ThreadPoolExecutor(1) as another:
                assert another.submit(store.compare_and_swap, "key", b"1", b"2").result()
            assert time.monotonic() - begin > 1.4  # after 3 the swap would have raised


def test_the_same_value_written_anew_is_still_expected(store: S3, far: S3) -> None:
    """A swap is about the value: that somebody wrote the same one again does not make it fail."""
    assert far.compare_and_swap("key", None, b"1")
    assert store.compare_and_swap("key", b"1", b"1")
    assert far.compare_and_swap("key", b"1", b"2") is True
    assert store.compare_and_swap("key", b"2", b"other")
    assert far.compare_and_swap("key", b"2", b"3") is False
    assert far.get("key") == b"other"


@pytest.fixture
def heedless(proxy: RequestProxy, monkeypatch: pytest.MonkeyPatch) -> RequestProxy:
    """A server that ignores conditions, and that nobody has probed."""
    monkeypatch.setattr("vstate.kv.s3.store._conditional", set())
    proxy.left_out = b"if-"
    return proxy


def test_a_server_that_ignores_conditions_is_refused(s3_place: S3Place, heedless: RequestProxy) -> None:
    """Without conditional writes two commits could overwrite each other, so the first swap raises."""
    with s3_place.open(endpoint=heedless.endpoint, skip_signature=True) as store:
        with pytest.raises(InvalidInput, match="conditions"):
            store.compare_and_swap("key", None, b"value")
        with pytest.raises(InvalidInput, match="conditions"):
            store.transact({OBJECT: b"object", "key": b"value"}, {"key": None})
        assert "key" not in store
        heedless.left_out = b""
        assert store.compare_and_swap("key", None, b"value")


@pytest.mark.parametrize("trouble", ["drop", "swallow", "answer"])
def test_no_swap_before_conditions_are_known_to_be_heeded(
    s3_place: S3Place, store: S3, heedless: RequestProxy, trouble: Any
) -> None:
    """A probe whose answer is lost is repeated, and a server that ignores conditions is still refused."""
    store.set("key", b"theirs")
    with s3_place.open(endpoint=heedless.endpoint, skip_signature=True) as mine:
        rule = heedless.lose("/%3Dprobe", trouble, times=2, answer=_answer("429 Too Many Requests"))
        with pytest.raises(InvalidInput, match="conditions"):
            mine.compare_and_swap("key", None, b"value")
        assert rule.left == 0
    with s3_place.open(endpoint=heedless.endpoint, skip_signature=True, timeout=1) as mine:
        heedless.lose("/%3Dprobe", trouble, times=1000, answer=_answer("429 Too Many Requests"))
        with pytest.raises(StoreUnavailable) as caught:
            mine.compare_and_swap("key", None, b"value")
        assert not caught.value.outcome_unknown
    assert store.get("key") == b"theirs"


def test_each_server_is_probed(s3_place: S3Place, heedless: RequestProxy) -> None:
    """A bucket of the same name is another one elsewhere, by whatever option it is reached."""
    endpoint = s3_place.options["endpoint"]
    options = {name: value for name, value in s3_place.options.items() if name != "endpoint"}
    for name in ("endpoint_url", "AWS_ENDPOINT_URL"):
        with S3(s3_place.url, options={**options, name: endpoint}) as sound:
            assert sound.compare_and_swap(name, None, b"value")
        elsewhere = {**options, name: heedless.endpoint, "skip_signature": True}
        with S3(s3_place.url, options=elsewhere) as store, pytest.raises(InvalidInput, match="conditions"):
            store.compare_and_swap(name, None, b"other")


# Round trips


@pytest.mark.parametrize("room", ["", "room/00000000000000a1/"])
def test_a_transaction_with_objects_takes_two_round_trips(proxy: RequestProxy, far: S3, room: str) -> None:
    """Objects first, for they must be there before the ref leads to them, then the rest in one go."""
    with proxy.rounds(1, 2):
        assert far.transact({room + OBJECT: b"object", "line": b"1", "ref": b"new"}, {"ref": None})
    with proxy.rounds(2, 2):
        assert far.transact(
            {room + _object(1): b"object", "line2": b"1", "ref": b"newer"}, {"ref": b"new", "gc": None}
        )
    assert sorted(proxy.methods) == ["GET", "PUT", "PUT", "PUT"]


def test_an_unknown_ref_is_read_beside_the_objects(store: S3, proxy: RequestProxy, far: S3) -> None:
    """A handle that has not seen the ref takes as long. If the ref differs, only objects are written."""
    store.set("ref", b"old")
    with proxy.rounds(2, 2):
        assert far.transact({OBJECT: b"object", "line": b"1", "ref": b"new"}, {"ref": b"old"})
    with proxy.rounds(2):
        assert (
            far.transact({_object(1): b"object", "late": b"1", "ref": b"newer"}, {"ref": b"wrong"}) is False
        )
    assert "late" not in far


def test_many_are_read_at_a_time(proxy: RequestProxy, far: S3) -> None:
    """A hundred keys take four round trips, and deleting them one."""
    keys = [_object(number) for number in range(100)]
    with proxy.rounds(32, 32, 32, 4):
        far.set_many(dict.fromkeys(keys, b"value"))
    with proxy.rounds(32, 32, 32, 4):
        assert len(far.get_many(keys)) == 100
    with proxy.rounds(1):
        far.delete_many(keys)
    assert proxy.methods == ["POST"]


def test_a_lost_race_changes_nothing_that_was_there(store: S3, far: S3) -> None:
    """After a failed swap new keys may exist, but earlier values are unchanged."""
    assert far.transact({"ref": b"1", "policy": b"old"}, {"ref": None})
    store.set("ref", b"2")
    writes = {OBJECT: b"object", "ref": b"3", "line": b"moved", "policy": b"new", "gone": None}
    assert far.transact(writes, {"ref": b"1"}) is False
    rest = {key: value for key, value in store.items() if not key.startswith("warm/")}
    assert rest.pop("line", b"moved") == b"moved"
    assert rest == {OBJECT: b"object", "ref": b"2", "policy": b"old"}
    assert far.transact(writes, {"ref": b"2"}) is True
    assert far.get_many(["ref", "line", "policy"]) == {"ref": b"3", "line": b"moved", "policy": b"new"}


def test_who_loses_takes_nothing_from_who_wins(store: S3, proxy: RequestProxy, far: S3) -> None:
    """Two transactions set the same row. The row has the value of the transaction whose swap succeeded."""
    far.set("ref", b"old")

    def win() -> None:
        give_up = time.monotonic() + 60
        while "line" not in store and time.monotonic() < give_up:
            time.sleep(0.01)
        assert store.transact({"line": b"theirs", "ref": b"theirs"}, {"ref": b"old"})

    proxy.lose("/ref%3D", "answer", answer=_answer("429 Too Many Requests"), meanwhile=win)
    assert far.transact({"line": b"ours", "ref": b"ours"}, {"ref": b"old"}) is False
    assert store.get_many(["ref", "line"]) == {"ref": b"theirs", "line": b"theirs"}


# Faults


def test_a_swap_that_failed_before_it_was_lost_is_false(store: S3, proxy: RequestProxy, far: S3) -> None:
    """Somebody else was faster and the answer is lost: whether ours was overwritten cannot be found out."""
    far.set("key", b"old")
    store.set("key", b"theirs")
    proxy.lose("/key%3D", "swallow")
    with _unknown():
        far.compare_and_swap("key", b"old", b"ours")
    assert store.get("key") == b"theirs"


@pytest.mark.parametrize(("code", "error"), [("NoSuchKey", None), ("NoSuchBucket", StoreUnavailable)])
def test_a_swap_of_what_is_gone(
    store: S3, proxy: RequestProxy, far: S3, code: str, error: type[Exception] | None
) -> None:
    """Some services answer 404 if the object to replace is gone. The swap returns False, and nothing else."""
    far.set("key", b"old")
    store.delete("key")
    proxy.lose("PUT", "answer", answer=_answer("404 Not Found", code))
    if error is None:
        assert far.compare_and_swap("key", b"old", b"new") is False
    else:
        with pytest.raises(error, match="no bucket"):
            far.compare_and_swap("key", b"old", b"new")


def test_a_read_that_is_refused_after_a_lost_answer(store: S3, proxy: RequestProxy, far: S3) -> None:
    """The swap was done and its answer is lost. Then the right to read is gone: the outcome stays open."""
    far.set("key", b"old")
    refuse = partial(proxy.lose, "GET", "answer", times=9, answer=_answer("403 Forbidden"))
    proxy.lose("/key%3D", "swallow", meanwhile=refuse)
    with _unknown():
        far.compare_and_swap("key", b"old", b"new")
    assert store.get("key") == b"new"


def test_equal_values_of_two_writers_are_told_apart(store: S3, proxy: RequestProxy, far: S3) -> None:
    """That somebody else wrote the very bytes that a lost swap was to write is not taken for its success."""
    far.set("key", b"old")
    proxy.lose("/key%3D", "drop")
    assert store.compare_and_swap("key", None, b"x") is False
    assert store.compare_and_swap("key", b"old", b"same")
    with _unknown():
        far.compare_and_swap("key", b"old", b"same")


def test_a_swap_that_comes_late_does_nothing(store: S3, proxy: RequestProxy, far: S3) -> None:
    """The network delays a request until after the repeated swap. Its condition fails then."""
    far.set("key", b"old")
    rule = proxy.lose("/key%3D", "delay")
    assert far.compare_and_swap("key", b"old", b"new") is True
    assert store.compare_and_swap("key", b"new", b"newer") is True
    proxy.release(rule)
    assert store.get("key") == b"newer"


def test_an_answer_that_makes_no_sense_leaves_the_outcome_open(proxy: RequestProxy, far: S3) -> None:
    """The write was accepted, without the mark that a store needs: nobody knows whether it is there."""
    far.set("key", b"old")
    proxy.lose("PUT", "answer", answer=_answer("200 OK"))
    with _unknown():
        far.compare_and_swap("key", b"old", b"new")


@pytest.mark.parametrize("status", ["503 Slow Down", "507 Insufficient Storage", "501 Not Implemented"])
def test_a_line_that_cannot_be_written_leaves_the_outcome_open(
    store: S3, proxy: RequestProxy, far: S3, status: str
) -> None:
    """The swap was done and a write beside it was not: the error does not say that nothing was written."""
    proxy.lose("/line%3D", "answer", times=100, answer=_answer(status))
    far._bucket.timeout = 0.5
    with _unknown():
        far.transact({"line": b"1", "ref": b"new"}, {"ref": None})
    assert store.get("ref") == b"new"


def test_an_object_that_cannot_be_written_stops_the_swap(store: S3, proxy: RequestProxy, far: S3) -> None:
    """If an object cannot be written, the ref stays, and the error says that nothing moved."""
    proxy.lose(f"/{OBJECT}", "swallow", times=100)
    far._bucket.timeout = 0.5
    with pytest.raises(StoreUnavailable) as caught:
        far.transact({OBJECT: b"object", _object(1): b"object", "line": b"1", "ref": b"new"}, {"ref": None})
    assert not caught.value.outcome_unknown
    assert store.get_many(["ref", "line"]) == {}


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Slow Down", "429 Too Many Requests"])
def test_a_server_in_passing_trouble_is_asked_again(proxy: RequestProxy, far: S3, status: str) -> None:
    """An answer "later" is waited for, by swaps too."""
    proxy.lose("/key%3D", "answer", times=2, answer=_answer(status))
    assert far.compare_and_swap("key", None, b"1") is True
    proxy.lose("/key%3D", "answer", times=2, answer=_answer(status))
    assert far.get("key") == b"1"


def test_no_room_is_store_full(proxy: RequestProxy, far: S3) -> None:
    """A quota raises StoreFull, from plain writes and from swaps, and at once."""
    for answer in (_answer("403 Forbidden", "QuotaExceeded"), _answer("507 Insufficient Storage")):
        proxy.lose("PUT", "answer", times=3, answer=answer)
        for call in (
            lambda: far.set("key", b"value"),
            lambda: far.compare_and_swap("key", None, b"value"),
            lambda: far.transact({"key": b"value"}, {"key": None}),
        ):
            with pytest.raises(StoreFull, match="no room") as caught:
                call()
            assert "secret" not in str(caught.value)


# Errors and secrets


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"access_key_id": "nobody-here"}, "InvalidAccessKeyId"),
        ({"secret_access_key": "wrong-one-here"}, "SignatureDoesNotMatch"),
        ({"access_key_id": READER_KEY}, "AccessDenied"),
    ],
)
def test_credentials_that_do_not_do(s3_place: S3Place, options: dict[str, str], words: str) -> None:
    """StoreUnavailable has the server's message and advice, no secret, and no driver error behind it."""
    if "endpoint" not in s3_place.options or not s3_place.options["endpoint"].startswith("http://127.0.0.1"):
        pytest.skip("needs the identities of the tests' own server")
    with s3_place.open(**options) as store:
        for call in (lambda: store.set("key", b"1"), lambda: store.compare_and_swap("key", None, b"1")):
            with pytest.raises(StoreUnavailable, match=words) as caught:
                call()
            assert "environment" in str(caught.value)
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__
            for secret in (SECRET_KEY, *options.values()):
                assert secret not in str(caught.value)


def test_a_bucket_that_is_not_there(s3_place: S3Place) -> None:
    """A missing bucket is not an empty store."""
    with S3("s3://no-such-bucket/path", options=s3_place.options) as store:
        calls: list[Callable[[], object]] = [
            lambda: "key" in store,
            lambda: store.present(["a", "b"]),
            lambda: store.get("key"),
            lambda: list(store.keys()),
            lambda: store.delete_many(["key"]),
            lambda: store.get_many(["a", "b"]),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable, match="no bucket at s3://no-such-bucket/path: create it"):
                call()


def test_pickling(s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No repr, location or pickle has the value of an option. With credentials in the environment, a pickled
    handle is another one on the same store.
    """
    with s3_place.open() as store:
        assert repr(store) == f"S3('{s3_place.url}')"
        assert store.location == s3_place.url
        with pytest.raises(InvalidInput, match="environment") as caught:
            pickle.dumps(store)
        assert SECRET_KEY not in str(caught.value)
    options = dict(s3_place.options)
    for name in ("access_key_id", "secret_access_key"):
        if name in options:
            monkeypatch.setenv(f"AWS_{name.upper()}", options.pop(name))
    with S3(s3_place.url, options=options, timeout=7) as store:
        store.set("key", b"value")
        for other in (pickle.loads(pickle.dumps(store)), copy.copy(store)):
            with other:
                assert other.get("key") == b"value"
                assert pickle.dumps(other) == pickle.dumps(store)


def test_what_is_saved_at_exit_is_saved(s3_url: str, run_python: Callable[..., str]) -> None:
    """A program that commits as the interpreter ends, which has no threads any more, has committed."""
    program = """if True:
        import atexit, sys
        from vstate import Versioned
        state = Versioned(sys.argv[1])
        def save():
            state.update({f"list/{number}": list(range(number)) for number in range(100)})
            print(state.commit("at exit") is not None)
        atexit.register(save)
        """
    assert run_python(program, s3_url).split() == ["True"]
    with Versioned(s3_url) as state:
        assert state["list/99"] == list(range(99))
        assert [commit.message for commit in state.log()] == ["at exit"]


def test_little_is_remembered(s3_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle keeps no copies of many values or of large ones."""
    monkeypatch.setattr("vstate.kv.s3.store._MARKED_KEYS", 64)
    with s3_place.open() as store:
        store.set_many({f"n/{number}": bytes(1000) for number in range(80)})
        store.set_many({f"large/{number}": bytes(10_000) for number in range(10)})
        known = store._marks._keys.items()
    assert len(known) == 64
    assert sum(len(value or b"") for _, (value, _) in known) == 64 * 1000
