"""Stores in front of stores pass on every call of the contract, and every call that it gets later."""

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from vstate import errors
from vstate.kv import Cache, Disk, Encrypted, KVStore, Memory, Prefixed, ReadOnly, Tiered
from vstate.kv.wrapper import StoreWrapper
from vstate.testing import Faulty

SECRET = bytes(32)
KEY = "o/" + "ab" * 32
REF = "r/heads/main"
ROWS = {KEY: b"object", REF: b"1"}

CALLS: dict[str, Callable[[KVStore], object]] = {
    "get": lambda store: store.get(REF),
    "get_many": lambda store: store.get_many([REF, "absent"]),
    "__contains__": lambda store: KEY in store,
    "present": lambda store: store.present([KEY, REF, "absent"]),
    "keys": lambda store: sorted(store.keys("r/")),
    "items": lambda store: dict(store.items("o/")),
    "set": lambda store: store.set(REF, b"2"),
    "set_many": lambda store: store.set_many({REF: b"2", KEY: b"object"}),
    "delete": lambda store: store.delete(KEY),
    "delete_many": lambda store: store.delete_many([KEY, REF]),
    "compare_and_swap": lambda store: store.compare_and_swap(REF, b"1", b"2"),
    "transact": lambda store: store.transact({REF: b"2", KEY: None}, {REF: b"1"}),
    "exclusively": lambda store: store.exclusively(lambda: {REF: b"2", KEY: None}),
    "transactional": lambda store: store.transactional,
    "remote": lambda store: store.remote,
    "ordered": lambda store: store.ordered,
    "keeps_packs": lambda store: store.keeps_packs,
    "listening": lambda store: store.listening(REF).__enter__(),
    "forget": lambda store: store.forget(KEY),
    "uncached": lambda store: type(store.uncached()).__name__,
    "check": lambda store: list(store.check()),
    "size": lambda store: store.size(),
    "pack": lambda store: store.pack(lambda key, value: value, [KEY]),
    "release": lambda store: store.release(),
    "scrub": lambda store: store.scrub([KEY])[1],
    "location": lambda store: store.location.partition(" (")[0],
    "directory": lambda store: store.directory,
    "close": lambda store: store.close(),
}
"""A call for each thing that a KVStore can do."""

WRITES = {"set", "set_many", "delete", "delete_many", "compare_and_swap", "transact", "exclusively"}
WRITES |= {"release", "pack", "scrub"}

WRAPPERS: dict[str, Callable[[KVStore], KVStore]] = {
    "Cache": Cache,
    "Encrypted": lambda store: Encrypted(store, SECRET),
    "Faulty": Faulty,
    "Prefixed": lambda store: Prefixed(store, "a", owns=True),
    "ReadOnly": ReadOnly,
    "Tiered": lambda store: Tiered(Memory(), store),
}

OWN = {
    # A failure of the store behind would not reach it.
    "Faulty": {"uncached"},
    # Encrypted names have no order, and ciphertexts nothing in common.
    "Encrypted": {"ordered", "keeps_packs", "pack"},
    # The store does not know these keys as those of objects.
    "Prefixed": {"keeps_packs", "pack"},
}

BESIDE = {"forget"}
"""The calls that a call may also use."""


class Behind(Memory):
    """A Memory that answers as no default of KVStore does."""

    def listening(self, key: str) -> AbstractContextManager[Any]:
        return nullcontext("it hears")

    def check(self) -> Iterator[str]:
        return iter(["a find"])

    def size(self) -> int:
        return 5

    def uncached(self) -> KVStore:
        return Memory()

    @property
    def ordered(self) -> bool:
        return True

    @property
    def keeps_packs(self) -> bool:
        return True

    @property
    def location(self) -> str:
        return "behind"

    @property
    def directory(self) -> str:
        return "behind"


class Noting(StoreWrapper):
    """A store that notes its calls and their keys."""

    def __init__(self, store: KVStore) -> None:
        super().__init__(store)
        self.calls: list[str] = []
        self.names: set[str] = set()

    def _pass_on(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.calls.append(name)
        return super()._pass_on(name, *map(self._seen, arguments), **options)

    def uncached(self) -> KVStore:
        self.calls.append("uncached")
        return self._store.uncached()

    def close(self) -> None:
        self.calls.append("close")

    def _seen(self, argument: Any) -> Any:
        if callable(argument):
            return lambda *given: self._seen(argument(*given))
        if isinstance(argument, str):
            self.names.add(argument)
        elif isinstance(argument, Iterable) and not isinstance(argument, bytes):
            argument = dict(argument) if isinstance(argument, Mapping) else list(argument)
            self.names.update(argument)
        return argument


PROPERTIES = {"transactional", "remote", "ordered", "keeps_packs", "location", "directory"}


def test_every_capability_is_called() -> None:
    """A new method of the contract must be added to CALLS, and so to the tests below."""
    assert {name for name in vars(KVStore) if not name.startswith("_")} | {"__contains__"} == CALLS.keys()


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_everything_is_passed_on(wrapper: str, method: str) -> None:
    """The store behind gets the same call and its answer is returned: a default of KVStore could be slower
    or differ. All names are mapped, or none. A store that writes nothing gets no write.
    """
    behind = Behind()
    # A call that only reads and forgets puts no row into its store.
    writer = behind if wrapper == "ReadOnly" else WRAPPERS[wrapper](behind)
    writer.set_many(ROWS)
    before = dict(behind.items())
    notes = Noting(behind)
    store = WRAPPERS[wrapper](notes)
    notes.calls.clear()
    notes.names.clear()
    if wrapper == "ReadOnly" and method in WRITES:
        with pytest.raises(errors.ReadOnly, match=r"opened to be read only: .* without ReadOnly\("):
            CALLS[method](store)
        assert dict(behind.items()) == before
        assert notes.calls == []
        return
    model = Behind()
    model.set_many(ROWS)
    answer, expected = CALLS[method](store), CALLS[method](model)
    if method in OWN.get(wrapper, ()):
        assert notes.calls == []
        return
    assert set(notes.calls) - (BESIDE - {method}) == {method} - PROPERTIES
    if method != "uncached":  # which may be in front of it
        assert answer == expected
    if wrapper == "Prefixed":
        assert all(name.startswith("a/") for name in notes.names)
    elif wrapper == "Encrypted":
        assert not any(name in {*ROWS, "absent", "update main"} for name in notes.names)
    if method in WRITES:
        assert dict(WRAPPERS[wrapper](behind).items()) == dict(model.items())
    else:
        assert dict(behind.items()) == before


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "Faulty"])
def test_only_stores_are_behind(wrapper: str) -> None:
    """A path is no store. The message says so, with advice."""
    with pytest.raises(
        errors.InvalidInput, match=f"{wrapper} stands in front of a KVStore, not of a str: open"
    ):
        WRAPPERS[wrapper]("path")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrapper", ["Encrypted", "ReadOnly"])
def test_uncached_is_in_front_of_what_is_behind_a_cache(wrapper: str) -> None:
    """`uncached` reads past the cache, and is the same kind of wrapper; `forget` reads past it once."""
    memory = Memory()
    WRAPPERS["Cache" if wrapper == "ReadOnly" else wrapper](memory).set_many(ROWS)
    cached = WRAPPERS[wrapper](Cache(memory))
    assert cached.get(KEY) == b"object"
    memory.delete_many(list(memory.keys("o/")))
    assert cached.get(KEY) == b"object"
    behind = cached.uncached()
    assert type(behind) is type(cached)
    assert (behind.get(KEY), behind.get(REF)) == (None, b"1")
    assert behind.uncached() is behind
    cached.forget(KEY)
    assert cached.get(KEY) is None


PICKLED: dict[str, Callable[[Path], KVStore]] = {
    "Disk": lambda path: Disk(path / "far", size_limit=10**6, durability="process", timeout=5),
    "Cache": lambda path: Cache(Disk(path / "far"), 1000, path / "near", 10**6),
    "Prefixed": lambda path: Prefixed(Disk(path / "far"), "a", owns=True),
    "ReadOnly": lambda path: ReadOnly(Disk(path / "far")),
    "Tiered": lambda path: Tiered(Disk(path / "near"), Disk(path / "far")),
}


@pytest.mark.parametrize("again", [copy.copy, lambda store: pickle.loads(pickle.dumps(store))])
@pytest.mark.parametrize("kind", PICKLED)
def test_a_pickled_store_is_opened_again(
    kind: str, again: Callable[[KVStore], KVStore], tmp_path: Path
) -> None:
    """A pickle or a copy is another handle on the same store, with the same options."""
    with PICKLED[kind](tmp_path) as store:
        writer = Disk(tmp_path / "far") if kind == "ReadOnly" else store
        writer.set_many(ROWS)
        with again(store) as other:
            assert other.get_many(ROWS) == ROWS
            assert pickle.dumps(other) == pickle.dumps(store)
    assert b"vstate.kv.disk.store" not in pickle.dumps(store)  # the place to import it from is vstate.kv.disk
