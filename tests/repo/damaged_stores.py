"""A store with all kinds of objects, damage to it, and the resulting losses, found by reading all keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from random import Random

from blake3 import blake3

from vstate import KVStore, Memory, Versioned
from vstate.errors import CorruptObject, NotFound
from vstate.kv import Encrypted
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.repo import Repository
from vstate.repo.upkeep.fsck import FsckReport

TEXT = "word " * 30
LONG = Random(3).randbytes(20_000)


def fill(store: KVStore) -> Versioned:
    """Every kind of object, raw and compressed; merges, tags, branches, a reset; several heights of tree."""
    state = Versioned(store)
    state.update({f"k{i:03}": i for i in range(120)})
    state["text"] = TEXT
    state["long"] = LONG
    state["list"] = [TEXT, bytearray(LONG)]
    state.commit("first")
    state.tag("v1")
    state["k001"] = "changed" * 30
    state.commit("second " + "x" * 300)
    side = state.fork("side")
    side["k100"] = "y" * 500
    del side["text"]
    side.commit("on the side")
    state["k002"] = "z" * 400
    state.commit("third")
    state.merge("side", message="merged")
    state["k003"] = LONG + b"more"
    state.commit("fourth")
    state["k004"] = "gone" * 100
    state.commit("was reset")
    state.reset("HEAD~1")
    return state


class Shuffled(Memory):
    """Lists its keys in no order that anybody could use, as a KVStore may."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter(sorted(super().keys(prefix), key=lambda key: blake3(key.encode()).digest()))


def copy(rows: Mapping[str, bytes]) -> Memory:
    memory = Shuffled() if shuffling else Memory()
    memory.set_many(rows)
    return memory


shuffling = False


def states(rows: Mapping[str, bytes]) -> dict[str, dict[str, object]]:
    """Every commit of a whole store with its keys and values."""
    repo = Repository(copy(rows))
    found = {}
    for key in rows:
        commit = repo.objects.find_commit(ObjectId.parse(key[2:])) if key.startswith("o/") else None
        if commit is not None:
            found[commit.id] = {
                name: repo.inspect(name, data) for name, data in tree.scan(repo.objects.nodes, commit.root)
            }
    return found


def lost(store: KVStore, right: Mapping[str, Mapping[str, object]], damaged: str) -> set[tuple[str, str]]:
    """The keys of each commit that cannot be read: by trying each. An error names the damaged object."""
    found = set()
    for commit, values in right.items():
        for key, value in values.items():
            repo = Repository(store)
            try:
                read = repo.resolve(ObjectId.parse(commit))
                data = tree.lookup(repo.objects.node, read.root, key)
                assert data is not None
                assert repr(repo.inspect(key, data)) == repr(value)
            except (CorruptObject, NotFound) as error:
                if isinstance(error, CorruptObject) and error.id != damaged:
                    raise
                found.add((commit, key))
    return found


_RANGE = re.compile(r"[\d,]+ keys? from (?P<first>'.*?')(?: to before (?P<before>'.*?')| on)")


def told(report: FsckReport, right: Mapping[str, Mapping[str, object]]) -> set[tuple[str, str]]:
    """The keys of each commit that a report says are lost."""
    found = set()
    assert report.lost_in_all == len(report.lost)
    for item in report.lost:
        keys = sorted(right[item.commit])
        if item.key is not None:
            assert item.key in keys
            keys = [item.key]
        elif match := _RANGE.fullmatch(item.what):
            first = ast.literal_eval(match["first"])
            before = ast.literal_eval(match["before"]) if match["before"] else None
            keys = [key for key in keys if key >= first and (before is None or key < before)]
            assert item.what.startswith(f"{len(keys):,} key")
        found.update((item.commit, key) for key in keys)
    return found


def damaged(value: bytes, how: str, other: bytes) -> bytes | None:
    middle = len(value) // 2
    return {
        "missing": None,
        "flipped": value[:middle] + bytes([value[middle] ^ 16]) + value[middle + 1 :],
        "cut": value[:-1],
        "empty": b"",
        "swapped": other,
        "kind": value[:1].swapcase() + value[1:],
    }[how]


def check_clean(store: KVStore, **options: bool) -> FsckReport:
    report = Repository(store).fsck(**options)
    assert report.ok, str(report)
    assert (report.damaged, report.lost_in_all, report.broken, report.foreign) == (0, 0, (), 0)
    assert "nothing is damaged" in str(report)
    return report


def mended(store: KVStore) -> FsckReport:
    """The report of a repair, after which all is well."""
    report = Repository(store).fsck(repair=True)
    assert report.ok, str(report)
    return report


def messages(store: KVStore, branch: str = "main") -> list[str]:
    return [commit.message.split()[0] for commit in Repository(store).log(branch)]


def encrypted(rows: Mapping[str, bytes]) -> tuple[Memory, Encrypted]:
    """A store in memory, and a store with these rows behind encryption, which writes there."""
    inner = Memory()
    store = Encrypted(inner, b"k" * 32)
    store.set_many(rows)
    return inner, store


def place_of(inner: Memory, store: Encrypted, key: str) -> str:
    """The key of a row in the store behind encryption."""
    value, names = store.get(key), set(inner.keys())
    assert value is not None
    store.delete(key)
    (name,) = names - set(inner.keys())
    store.set(key, value)
    return name


def spoil(inner: Memory, store: Encrypted, key: str) -> None:
    """Change the last byte of a row behind encryption."""
    name = place_of(inner, store, key)
    row = inner.get(name)
    assert row is not None
    inner.set(name, row[:-1] + bytes([row[-1] ^ 1]))
