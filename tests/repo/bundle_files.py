"""Bundles, read and written by docs/format.md without the library."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import msgpack
import zstandard
from blake3 import blake3

from vstate import Commit, KVStore, Memory, Versioned
from vstate.objects.canonical import encode
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, Object, ObjectId
from vstate.repo import Repository
from vstate.repo.exchange.bundle import BundleReport
from vstate.repo.objects import kind_of


def large(number: int, length: int = 30_000) -> bytes:
    return Random(7).randbytes(length) + number.to_bytes(4, "big") + Random(8).randbytes(length // 2)


def save(state: Versioned | KVStore, message: str = "", **values: object) -> Commit:
    """Set these values, and commit; in a store, on the branch of HEAD."""
    state = Versioned(state) if isinstance(state, KVStore) else state
    state.update(values)
    made = state.commit(message)
    assert made is not None
    return made


def chain(store: KVStore, count: int = 4, branch: str = "main", start: int = 0) -> Versioned:
    """A branch of so many commits more, with values of all sizes."""
    state = Versioned(store, branch=branch)
    for number in range(start, start + count):
        state[f"own/{number}"] = f"value {number} " * 20
        state["small"] = number
        state["shared"] = large(number)
        state.commit(f"c{number}")
    return state


def exported(store: KVStore, *revs: str, **options: object) -> bytes:
    file = io.BytesIO()
    Repository(store).export(file, revs or ("main",), **options)  # type: ignore[arg-type]
    return file.getvalue()


def imported(store: KVStore, data: bytes, **options: object) -> BundleReport:
    return Repository(store).import_bundle(io.BytesIO(data), **options)  # type: ignore[arg-type]


def outcomes(report: BundleReport) -> dict[str, str]:
    return {ref.name: ref.outcome for ref in report.refs}


def refs_of(store: KVStore) -> dict[str, str]:
    return {name: str(oid) for name, oid in Repository(store).refs.all().items()}


def whole(store: KVStore) -> None:
    report = Repository(store).fsck()
    assert report.ok, str(report)
    assert report.orphans == 0


def values_at(store: KVStore) -> dict[str, dict[str, object]]:
    """Every commit that a ref leads to with its values."""
    repo, state = Repository(store), Versioned(store, branch="elsewhere")
    found = {}
    for oid in repo.refs.all().values():
        for commit in repo.log(oid):
            if commit.id not in found:
                found[commit.id] = dict(state.checkout(commit))
    return found


def equal(left: KVStore, right: KVStore) -> None:
    """The same refs, objects and values."""
    assert refs_of(left) == refs_of(right)
    assert set(left.keys("o/")) == set(right.keys("o/"))
    assert values_at(left) == values_at(right)


# The file, read by its specification


def parsed(
    data: bytes,
) -> tuple[list[object], list[tuple[bytes, bytes, bytes]], list[list[tuple[bytes, bytes, bytes]]]]:
    """The header, all objects (letter, id, body), and these by frame, as docs/format.md says where they
    stand.
    """
    assert data[:14] == b"vstate bundle\n"
    assert data[14:16] == b"\0\1"
    at = 16
    size = int.from_bytes(data[at : at + 4], "big")
    header = msgpack.unpackb(data[at + 4 : at + 4 + size])
    at += 4 + size
    frames = []
    while (size := int.from_bytes(data[at : at + 4], "big")) != 0:
        kinds, ids, lengths, packed = msgpack.unpackb(data[at + 4 : at + 4 + size])
        at += 4 + size
        bodies = zstandard.ZstdDecompressor().decompress(data[at : at + packed])
        at += packed
        frame, begin = [], 0
        for i, length in enumerate(lengths):
            frame.append((kinds[i : i + 1], ids[32 * i : 32 * i + 32], bodies[begin : begin + length]))
            begin += length
        assert begin == len(bodies)
        frames.append(frame)
    assert data[at + 4 :] == blake3(data[: at + 4]).digest()
    return header, [item for frame in frames for item in frame], frames


def links_of(letter: bytes, body: bytes) -> Iterator[bytes]:
    """The ids that an object names, found without the library."""
    if letter == b"b":
        return
    fields = msgpack.unpackb(body)
    if letter == b"i":
        yield from (fields[1][i : i + 32] for i in range(0, len(fields[1]), 32))
    elif letter == b"c":
        yield from ([fields[0]] if fields[0] else [])
        yield from fields[1]
    elif fields[0]:
        yield from fields[2]
    else:
        for item in fields[2]:
            entry = msgpack.unpackb(item)
            if entry[0] == 0:
                continue
            for part in entry[1] if entry[0] == 1 else [entry[1]]:
                if isinstance(part, list):
                    yield part[0]


def sealed(body: bytes) -> bytes:
    """With the right end behind it: damage on purpose."""
    return body + blake3(body).digest()


def store_of(rows: Mapping[str, bytes]) -> Memory:
    store = Memory()
    store.set_many(rows)
    return store


Frame = tuple[bytes, bytes, list[int], bytes]


def forged(
    header: Sequence[object],
    frames: Sequence[Frame],
    *,
    magic: bytes = b"vstate bundle\n\0\1",
    end: bytes = bytes(4),
) -> bytes:
    """A bundle of these parts, each as it is given."""
    head = encode(list(header))
    data = magic + len(head).to_bytes(4, "big") + head
    for kinds, ids, lengths, payload in frames:
        head = encode([kinds, ids, lengths, len(payload)])
        data += len(head).to_bytes(4, "big") + head + payload
    return sealed(data + end)


def parts_of(data: bytes) -> tuple[list[object], list[Frame]]:
    header, _, frames = parsed(data)
    return header, [
        (
            b"".join(letter for letter, _, _ in frame),
            b"".join(oid for _, oid, _ in frame),
            [len(body) for _, _, body in frame],
            zstandard.ZstdCompressor().compress(b"".join(body for _, _, body in frame)),
        )
        for frame in frames
    ]


def alone(letter: bytes, oid: bytes, body: bytes) -> Frame:
    """A frame of one object."""
    return letter, oid, [len(body)], zstandard.ZstdCompressor().compress(body)


def bundle_of(store: KVStore, branch: str, *more: Object, **fields: object) -> bytes:
    """A bundle with a branch, and with all objects of a store and more, unchecked."""
    repo, objects = Repository(store), []
    for key, row in store.items("o/"):
        kind = kind_of(row)
        assert kind is not None
        objects.append(Object(kind, repo.objects.read(kind, bytes.fromhex(key[2:]))))
    objects += more
    header = {
        "refs": [[f"heads/{branch}", bytes.fromhex(refs_of(store)[f"heads/{branch}"])]],
        "prerequisites": [],
        "shallow": [],
        "counts": [sum(each.kind is kind for each in objects) for kind in (BLOB, INDEX, TREE, COMMIT)],
        "size": sum(len(each.body) for each in objects),
    }
    frames = [
        alone(kind.code.encode(), bytes(ObjectId.of(kind, body)), bytes(body)) for kind, body in objects
    ]
    return forged([*(header | fields).values()], frames)
