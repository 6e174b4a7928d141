"""Bundles that are damaged, or made to do harm: refused, and never a wrong value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import zstandard
from bundle_files import (
    exported,
    forged,
    imported,
    outcomes,
    parsed,
    parts_of,
    refs_of,
    sealed,
    store_of,
    values_at,
    whole,
)

from vstate import Memory, Versioned
from vstate.errors import (
    InvalidInput,
    UnsupportedFormat,
    VStateError,
)
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, Kind, ObjectId
from vstate.repo import Repository


@pytest.fixture(scope="module")
def small() -> tuple[Mapping[str, bytes], bytes]:
    """A store of a few commits, and it as a bundle."""
    store = Memory()
    state = Versioned(store)
    state["text"] = "word " * 40
    state["long"] = Random(1).randbytes(17_000)[:16_500] * 1
    state.commit("first")
    state["n"] = 1
    state.commit("second")
    state.tag("v1")
    return dict(store.items()), exported(store, "main", "v1")


def test_every_truncation_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """An import of a truncated bundle writes nothing, however much is missing."""
    _, data = small
    step = max(1, len(data) // 1500)
    for end in [*range(0, len(data), step), *range(len(data) - 40, len(data))]:
        target = Memory()
        with pytest.raises(InvalidInput):
            imported(target, data[:end])
        assert not list(target.keys())
    with pytest.raises(InvalidInput):
        imported(Memory(), data + b"\0")


def test_every_flipped_byte_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """A bundle with a flipped byte is refused, also if the store has all its objects."""
    rows, data = small
    step = max(1, len(data) // 1500)
    for at in [*range(400), *range(400, len(data), step), *range(len(data) - 40, len(data))]:
        flipped = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        target = Memory()
        if at % 2:
            target.set_many(rows)
        before = dict(target.items())
        with pytest.raises(InvalidInput):
            imported(target, flipped)
        assert dict(target.items()) == before


@pytest.mark.slow
def test_no_flip_that_the_end_agrees_with_makes_a_wrong_value(
    small: tuple[Mapping[str, bytes], bytes],
) -> None:
    """A forger of the end too can leave objects out or rename refs, and never change a value."""
    rows, data = small
    body = data[:-32]
    right = {key: value for key, value in rows.items() if key.startswith("o/")}
    states = values_at(store_of(rows))
    step = max(1, len(body) // 1200)
    arrived = 0
    for at in [*range(300), *range(300, len(body), step)]:
        target = Memory()
        try:
            imported(target, sealed(body[:at] + bytes([body[at] ^ (1 << at % 8)]) + body[at + 1 :]))
        except VStateError:
            assert not refs_of(target)
        else:
            arrived += 1
            whole(target)
            assert all(states[commit] == values for commit, values in values_at(target).items())
        assert set(target.keys("o/")) <= right.keys()
    assert arrived < 60


def hostile(small: tuple[Mapping[str, bytes], bytes]) -> dict[str, tuple[bytes, str]]:
    header, frames = parts_of(small[1])
    needed, refs, known, shallow, counts, size = header
    kinds, ids, lengths, payload = frames[0]
    assert isinstance(refs, list)
    assert isinstance(counts, list)
    bodies = zstandard.ZstdDecompressor().decompress(payload)
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024 + 1))
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(len(bodies)))
    swapped = zstandard.ZstdCompressor().compress(bodies[:-1] + bytes([bodies[-1] ^ 1]))
    one = [needed, refs, known, shallow, [1, 0, 0, 0], size]

    def with_header(*fields: object) -> bytes:
        return forged(fields, frames)

    def with_frame(*frame: object) -> bytes:
        return forged(header, [frame, *frames[1:]])  # type: ignore[list-item]

    return {
        "other content": (with_frame(kinds, ids, lengths, swapped), "does not match its id"),
        "another kind": (
            with_frame(kinds[:-1] + b"b", ids, lengths, payload),
            "does not match its id|header says",
        ),
        "an unknown kind": (with_frame(b"x" + kinds[1:], ids, lengths, payload), "is malformed"),
        "too few ids": (with_frame(kinds, ids[:-32], lengths, payload), "is malformed"),
        "too many ids": (with_frame(kinds, ids + bytes(32), lengths, payload), "is malformed"),
        "too few kinds": (with_frame(kinds[:-1], ids, lengths, payload), "is malformed"),
        "negative lengths": (with_frame(kinds, ids, [-1, *lengths[1:]], payload), "is malformed"),
        "other lengths": (with_frame(kinds, ids, [lengths[0] + 1, *lengths[1:]], payload), "not as long"),
        "lengths of text": (with_frame(kinds, ids, "x" * len(kinds), payload), "is malformed"),
        "no objects": (with_frame(b"", b"", [], payload), "is malformed"),
        "a bomb": (with_frame(kinds, ids, lengths, bomb), "not as long|is malformed"),
        "a bomb that owns up to it": (
            forged(one, [(b"b", bytes(32), [64 * 1024 * 1024 + 1], bomb)]),
            "is malformed",
        ),
        "a large frame": (
            forged(
                [needed, refs, known, shallow, [2, 0, 0, 0], size],
                [(b"bb", bytes(64), [3 * 2**20] * 2, b"x")],
            ),
            "is malformed",
        ),
        "no end of a bomb": (with_frame(kinds, ids, lengths, endless), "not as long"),
        "no zstd": (with_frame(kinds, ids, lengths, b"x" * len(payload)), "cannot be decompressed"),
        "a payload that is too long": (
            with_frame(kinds, ids, lengths, payload + bytes(70_000)),
            "is malformed",
        ),
        "a frame less": (forged(header, frames[1:]), "header says"),
        "a frame twice": (forged(header, [*frames, *frames]), "header says"),
        "a long head": (
            sealed(forged(header, [])[: -32 - 4] + (2**31).to_bytes(4, "big")),
            "head of a frame is too long",
        ),
        "no end": (forged(header, frames, end=b""), "not a whole bundle"),
        "something behind the end": (forged(header, frames, end=bytes(8)), "header says"),
        "other counts": (with_header(needed, refs, known, shallow, [*counts[:3], 7], size), "header says"),
        "counts of text": (with_header(needed, refs, known, shallow, ["", *counts[1:]], size), "numbers"),
        "no counts": (with_header(needed, refs, known, shallow, [None] * 4, size), "numbers"),
        "a size of text": (with_header(needed, refs, known, shallow, counts, "x"), "numbers"),
        "another size": (with_header(needed, refs, known, shallow, counts, size + 1), "header says"),
        "negative counts": (
            with_header(needed, refs, known, shallow, [-1, *counts[1:]], size),
            "numbers",
        ),
        "too few counts": (with_header(needed, refs, known, shallow, counts[:3], size), "not a whole bundle"),
        "refs out of order": (with_header(needed, refs[::-1], known, shallow, counts, size), "not canonical"),
        "a ref twice": (
            with_header(needed, [*refs, refs[-1]], known, shallow, counts, size),
            "not canonical",
        ),
        "a ref elsewhere": (
            with_header(needed, [["HEAD", refs[0][1]]], known, shallow, counts, size),
            "no name of a branch or a tag",
        ),
        "a ref of a bad name": (
            with_header(needed, [["heads/../x", refs[0][1]]], known, shallow, counts, size),
            "is not a branch name",
        ),
        "a short id": (with_header(needed, [["heads/x", b"x"]], known, shallow, counts, size), "32 bytes"),
        "a ref to nothing": (
            with_header(needed, [["heads/x", bytes(32)]], known, shallow, counts, size),
            "is missing",
        ),
        "a ref to a blob": (
            with_header(needed, [["heads/x", ids[:32]]], known, shallow, counts, size),
            "is no commit but a",
        ),
        "a cut of a commit that it does not hold": (
            with_header(needed, refs, known, [[bytes(32), []]], counts, size),
            "it ends a history",
        ),
        "a cut with other parents": (
            with_header(needed, refs, known, [[refs[0][1], [bytes(32)]]], counts, size),
            "it ends a history",
        ),
        "format 0": (with_header(0, refs, known, shallow, counts, size), "not a whole bundle"),
        "no header": (sealed(b"vstate bundle\n\0\1" + bytes(3)), "cut short|not a whole bundle"),
        "a long header": (
            sealed(b"vstate bundle\n\0\1" + b"\xff" * 4 + bytes(100)),
            "its header is too long",
        ),
        "no bundle": (sealed(b"PACK" + bytes(100)), "no bundle of vstate"),
        "a newer bundle": (forged(header, frames, magic=b"vstate bundle\n\0\2"), "bundle of format 2"),
        "nothing": (b"", "no bundle of vstate"),
    }


def test_hostile_bundles_are_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """A malformed bundle moves no ref, and no memory is allocated for an implausible number."""
    for name, (data, reason) in hostile(small).items():
        target = Memory()
        with pytest.raises(InvalidInput, match=reason):
            imported(target, data)
        assert not refs_of(target), name
        assert not list(target.keys("shallow/")), name


def senseless() -> dict[str, tuple[list[tuple[Kind, bytes]], str]]:
    """Objects whose contents match their ids, the tree last, and the faults in them."""
    one, blob = encode([0, 1]), b"x" * 500
    oid = bytes(ObjectId.of(BLOB, blob))
    index = encode([1, oid * 2, [2**33, 500]])
    stream = [bytes(ObjectId.of(INDEX, index)), 2**33 + 500]
    leaf = encode([0, ["b"], [one], []])
    low = encode([1, ["a", "b"], [bytes(ObjectId.of(TREE, leaf))] * 2, [1, 1]])
    return {
        "keys out of order": ([(TREE, encode([0, ["b", "a"], [one, one], []]))], "its keys do not ascend"),
        "another length": (
            [(BLOB, blob), (TREE, encode([0, ["a"], [encode([2, [oid, 10_000], 10_000, "bytes"])], []]))],
            "has 500 bytes, not 10000",
        ),
        "a chunk of another length": (
            [
                (BLOB, blob),
                (INDEX, index),
                (TREE, encode([0, ["a"], [encode([2, stream, stream[1], "bytes"])], []])),
            ],
            f"has 500 bytes, not {2**33}",
        ),
        "a node in the wrong place": ([(TREE, leaf), (TREE, low)], "does not begin with 'a'"),
        "an entry of nothing": ([(TREE, encode([0, ["a"], [encode([9, 9])], []]))], "the entry of 'a'"),
    }


@pytest.mark.parametrize("case", senseless())
def test_a_branch_is_not_moved_to_what_cannot_be_read(case: str) -> None:
    """Every object is present and matches its id, and the state is senseless all the same."""
    store = Memory()
    state = Versioned(store)
    state["a"] = 1
    base = state.commit("base")
    assert base is not None
    objects, reason = senseless()[case]
    kind, body = objects[-1]
    commit = Commit(
        root=ObjectId.of(kind, body),
        parent_ids=(base.oid,),
        time=base.time + timedelta(seconds=1),
        message="made up",
    )
    objects = [*objects, (COMMIT, commit.body)]
    data = forged(
        [
            5,
            [["heads/main", bytes(commit.oid)]],
            [bytes(base.oid)],
            [],
            [sum(kind is one for one, _ in objects) for kind in (BLOB, INDEX, TREE, COMMIT)],
            sum(len(body) for _, body in objects),
        ],
        [
            (
                kind.code.encode(),
                bytes(ObjectId.of(kind, body)),
                [len(body)],
                zstandard.ZstdCompressor().compress(body),
            )
            for kind, body in objects
        ],
    )
    with pytest.raises(InvalidInput, match=reason):
        imported(store, data)
    assert refs_of(store) == {"heads/main": str(base.oid)}
    assert Repository(store).fsck().damaged == 0


def test_a_ref_to_a_tree_that_is_here_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """A ref to a whole object that is no commit is refused."""
    store = Memory()
    imported(store, small[1])
    before = refs_of(store)
    tree = Repository(store).branch("main").root
    assert tree is not None
    with pytest.raises(InvalidInput, match="is no commit but a tree"):
        imported(store, forged([5, [["heads/x", bytes(tree)]], [], [], [0, 0, 0, 0], 0], []))
    assert refs_of(store) == before


@pytest.mark.slow
def test_an_incomplete_bundle_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """Without any one object no ref moves; with that object in the store all refs arrive."""
    rows, data = small
    header, objects, _ = parsed(data)
    needed, refs, known, shallow, counts, size = header
    assert isinstance(counts, list)
    for left_out, (letter, oid, body) in enumerate(objects):
        frames = []
        for number, (kind, other, content) in enumerate(objects):
            if number != left_out:
                payload = zstandard.ZstdCompressor().compress(content)
                frames.append((kind, other, [len(content)], payload))
        fewer = list(counts)
        fewer[b"bitc".index(letter)] -= 1
        incomplete = forged([needed, refs, known, shallow, fewer, size - len(body)], frames)
        target = Memory()
        with pytest.raises(InvalidInput, match=oid.hex()):
            imported(target, incomplete)
        assert not refs_of(target)
        target.set(f"o/{oid.hex()}", rows[f"o/{oid.hex()}"])
        assert set(outcomes(imported(target, incomplete)).values()) == {"created"}
        whole(target)


def test_a_bundle_of_a_newer_store_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """The header names the format that a store needs, and a newer one is refused."""
    header, frames = parts_of(small[1])
    with pytest.raises(UnsupportedFormat):
        imported(Memory(), forged([99, *header[1:]], frames))


class Trap:
    """Loading it would be seen."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(TRAP),)


TRAP = Path("/nonexistent")


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an export nor an import runs code that loading a value would run."""
    monkeypatch.setitem(globals(), "TRAP", tmp_path / "sprung")
    store, target = Memory(), Memory()
    state = Versioned(store)
    state["trap"] = [Trap(), "x" * 20_000]
    state.commit("trap")
    (tmp_path / "sprung").rmdir()  # the commit loads the first value of a class, before it is stored
    imported(target, exported(store))
    assert not (tmp_path / "sprung").exists()
    assert Versioned(target)["trap"][0] is None  # the result of os.mkdir
    assert (tmp_path / "sprung").exists()
