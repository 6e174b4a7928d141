"""Bundles that are damaged, or made to do harm: refused, and never a wrong value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
import zstandard
from bundle_files import (
    alone,
    bundle_of,
    chain,
    exported,
    forged,
    imported,
    outcomes,
    parts_of,
    refs_of,
    save,
    sealed,
    store_of,
    values_at,
    whole,
)

from vstate import Memory, Versioned
from vstate.errors import InvalidInput, VStateError
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, Object, ObjectId
from vstate.repo import Repository
from vstate.repo.exchange.bundle import Bundle


@pytest.fixture(scope="module")
def small() -> tuple[Mapping[str, bytes], bytes]:
    """A store of a few commits, and it as a bundle."""
    store = Memory()
    state = Versioned(store)
    save(state, "first", text="word " * 40, long=Random(1).randbytes(17_000)[:16_500] * 1)
    save(state, "second", n=1)
    state.tag("v1")
    return dict(store.items()), exported(store, "main", "v1")


def test_every_truncated_or_flipped_bundle_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """An import writes nothing, however much is missing, also if the store has all its objects."""
    rows, data = small
    step = max(1, len(data) // 300)
    places = [*range(150), *range(150, len(data), step), *range(len(data) - 40, len(data))]
    flipped = [data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :] for at in places]
    for number, wrong in enumerate([data + b"\0", *(data[:at] for at in places), *flipped]):
        target = store_of(rows if number % 2 else {})
        before = dict(target.items())
        with pytest.raises(InvalidInput):
            imported(target, wrong)
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
    step = max(1, len(body) // 300)
    arrived = 0
    for at in [*range(150), *range(150, len(body), step)]:
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
    """Bundles by their fault, each with a part of its error."""
    header, frames = parts_of(small[1])
    fields = dict(zip(("refs", "known", "shallow", "counts", "size"), header, strict=True))
    kinds, ids, lengths, payload = frames[0]
    refs, counts = header[0], header[3]
    assert isinstance(refs, list)
    assert isinstance(counts, list)
    bodies = zstandard.ZstdDecompressor().decompress(payload)
    packed, most = zstandard.ZstdCompressor().compress, 64 * 1024 * 1024
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(len(bodies)))

    def head(**wrong: object) -> bytes:
        return forged([*(fields | wrong).values()], frames)

    def frame(**wrong: object) -> bytes:
        parts = {"kinds": kinds, "ids": ids, "lengths": lengths, "payload": payload} | wrong
        return forged(header, [tuple(parts.values()), *frames[1:]])  # type: ignore[list-item]  # forged

    def counted(count: int, *parts: object) -> bytes:
        header = [*(fields | {"counts": [count, 0, 0, 0]}).values()]
        return forged(header, [parts])  # type: ignore[list-item]  # forged

    def ref(name: str, oid: object = refs[0][1]) -> bytes:
        return head(refs=[[name, oid]])

    malformed = "is malformed"
    return {
        "other content": (
            frame(payload=packed(bodies[:-1] + bytes([bodies[-1] ^ 1]))),
            "missing, damaged or no commit",
        ),
        "another kind": (frame(kinds=kinds[:-1] + b"b"), "header says"),
        "an unknown kind": (frame(kinds=b"x" + kinds[1:]), malformed),
        "too few ids": (frame(ids=ids[:-32]), malformed),
        "too many ids": (frame(ids=ids + bytes(32)), malformed),
        "too few kinds": (frame(kinds=kinds[:-1]), malformed),
        "negative lengths": (frame(lengths=[-1, *lengths[1:]]), malformed),
        "other lengths": (frame(lengths=[lengths[0] + 1, *lengths[1:]]), "header says"),
        "lengths of text": (frame(lengths="x" * len(kinds)), malformed),
        "no objects": (frame(kinds=b"", ids=b"", lengths=[]), malformed),
        "a bomb": (frame(payload=packed(bytes(most + 1))), "not as long|is malformed"),
        "a bomb that owns up to it": (
            counted(1, b"b", bytes(32), [most + 1], packed(bytes(most + 1))),
            malformed,
        ),
        "a large frame": (counted(2, b"bb", bytes(64), [3 * 2**20] * 2, b"x"), malformed),
        "no end of a bomb": (frame(payload=endless), "not as long"),
        "no zstd": (frame(payload=b"x" * len(payload)), "cannot be decompressed"),
        "a payload that is too long": (frame(payload=payload + bytes(70_000)), malformed),
        "a frame less": (forged(header, frames[1:]), "header says"),
        "a frame twice": (forged(header, [*frames, *frames]), "header says"),
        "a long head": (sealed(forged(header, [])[:-36] + b"\x80\0\0\0"), "head of a frame is too long"),
        "no end": (forged(header, frames, end=b""), "not a whole bundle"),
        "something behind the end": (forged(header, frames, end=bytes(8)), "header says"),
        "other counts": (head(counts=[*counts[:3], 7]), "header says"),
        "counts of text": (head(counts=["", *counts[1:]]), "numbers"),
        "no counts": (head(counts=[None] * 4), "numbers"),
        "a size of text": (head(size="x"), "numbers"),
        "another size": (head(size=-1 + header[4]), "header says"),  # type: ignore[operator]  # forged
        "negative counts": (head(counts=[-1, *counts[1:]]), "numbers"),
        "too few counts": (head(counts=counts[:3]), "not a whole bundle"),
        "refs out of order": (head(refs=refs[::-1]), "not canonical"),
        "a ref twice": (head(refs=[*refs, refs[-1]]), "not canonical"),
        "a ref elsewhere": (ref("HEAD"), "no name of a branch or a tag"),
        "a ref of a bad name": (ref("heads/../x"), "is not a branch name"),
        "a short id": (ref("heads/x", b"x"), "32 bytes"),
        "a ref to nothing": (ref("heads/x", bytes(32)), "is missing"),
        "a ref to a blob": (ref("heads/x", ids[:32]), "missing, damaged or no commit"),
        "a cut of a commit that it does not hold": (head(shallow=[[bytes(32), []]]), "it ends a history"),
        "a cut with other parents": (head(shallow=[[refs[0][1], [bytes(32)]]]), "is missing"),
        "a cut with a parent that is not older": (
            head(shallow=[[refs[0][1], [refs[0][1]]]]),
            "not dated after its parent",
        ),
        "format 0": (head(format=0), "not a whole bundle"),
        "no header": (sealed(MAGIC + bytes(3)), "cut short|not a whole bundle"),
        "a long header": (sealed(MAGIC + b"\xff" * 4 + bytes(100)), "its header is too long"),
        "no bundle": (sealed(b"PACK" + bytes(100)), "no bundle of vstate"),
        "a newer bundle": (forged(header, frames, magic=b"vstate bundle\n\0\2"), "bundle of format 2"),
        "nothing": (b"", "no bundle of vstate"),
    }


MAGIC = b"vstate bundle\n\0\1"


def test_hostile_bundles_are_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """A malformed bundle moves no ref, and no memory is allocated for an implausible number."""
    for name, (data, reason) in hostile(small).items():
        target = Memory()
        with pytest.raises(InvalidInput, match=reason):
            imported(target, data)
        assert not refs_of(target), name
        assert not list(target.keys("shallow/")), name


def test_what_no_ref_leads_to_is_left_out() -> None:
    """Others take a commit that is there for a sign that all its objects are."""
    store, target = Memory(), Memory()
    head = chain(store, 2).head
    assert head is not None
    extra = Commit(root=ObjectId(b"x" * 32), parent_ids=(), time=head.time, message="made up")
    more = [Object(COMMIT, extra.body), Object(COMMIT, encode([1]))]
    assert outcomes(imported(target, bundle_of(store, "main", *more))) == {"heads/main": "created"}
    assert set(target.keys("o/")) == set(store.keys("o/"))


def test_a_bundle_cuts_off_no_history_but_that_of_its_own_commits() -> None:
    """The parent of another commit is lost here: that is damage, which a bundle cannot hide."""
    store, target = Memory(), Memory()
    chain(store, 1)
    head = chain(target, 2, "mine").head
    assert head is not None
    target.delete(f"o/{head.parent_ids[0]}")
    with pytest.raises(InvalidInput, match="it ends a history at a commit that is missing"):
        imported(target, bundle_of(store, "main", shallow=[[bytes(head.oid), []]]))
    assert Repository(target).fsck().damaged == 1


def test_ends_of_histories_are_looked_up_without_their_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file can name many commits as ends that do not fit into memory together."""
    read, rows_of = list[int](), Bundle._rows_of_frame

    def counted(self: Bundle, number: int) -> dict[str, bytes]:
        read.append(number)
        return rows_of(self, number)

    monkeypatch.setattr(Bundle, "_rows_of_frame", counted)
    bodies = [bytes(1000 + number) for number in range(9)]
    ids = sorted(bytes(ObjectId.of(COMMIT, body)) for body in bodies)
    frames = [alone(b"c", bytes(ObjectId.of(COMMIT, body)), body) for body in bodies]
    header = [[["heads/x", ids[0]]], [], [[oid, []] for oid in ids], [0, 0, 0, 9], sum(map(len, bodies))]
    with pytest.raises(InvalidInput, match="missing, damaged or no commit"):
        imported(Memory(), forged(header, frames))
    assert len(read) == 1


def test_a_ref_to_a_tree_that_is_here_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """A ref to a whole object that is no commit is refused."""
    store = Memory()
    imported(store, small[1])
    before = refs_of(store)
    tree = Repository(store).branch("main").root
    assert tree is not None
    with pytest.raises(InvalidInput, match="missing, damaged or no commit"):
        imported(store, forged([[["heads/x", bytes(tree)]], [], [], [0, 0, 0, 0], 0], []))
    assert refs_of(store) == before


@pytest.mark.slow
def test_an_incomplete_bundle_is_refused(small: tuple[Mapping[str, bytes], bytes]) -> None:
    """Without any one object no ref moves; with that object in the store the branch arrives."""
    rows, _ = small
    for key in [key for key in rows if key.startswith("o/")]:
        incomplete = bundle_of(store_of({other: rows[other] for other in rows.keys() - {key}}), "main")
        target = Memory()
        with pytest.raises(InvalidInput, match=key[2:]):
            imported(target, incomplete)
        assert not refs_of(target)
        target.set(key, rows[key])
        assert outcomes(imported(target, incomplete)) == {"heads/main": "created"}
        whole(target)


class Trap:
    """Loading it would be seen."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(TRAP),)


TRAP = Path("/nonexistent")


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an export nor an import runs code that loading a value would run."""
    monkeypatch.setitem(globals(), "TRAP", tmp_path / "sprung")
    store, target = Memory(), Memory()
    save(store, "trap", trap=[Trap(), "x" * 20_000])
    (tmp_path / "sprung").rmdir()  # the commit loads the first value of a class, before it is stored
    imported(target, exported(store))
    assert not (tmp_path / "sprung").exists()
    assert Versioned(target)["trap"][0] is None  # the result of os.mkdir
    assert (tmp_path / "sprung").exists()
