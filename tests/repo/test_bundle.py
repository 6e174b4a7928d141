"""Bundles: commits arrive with the same ids and values."""

from __future__ import annotations

import io
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random

import pytest
from bundle_files import (
    chain,
    equal,
    exported,
    imported,
    large,
    links_of,
    outcomes,
    parsed,
    refs_of,
    save,
    values_at,
    whole,
)
from histories import Tangle
from hypothesis import given, settings
from hypothesis import strategies as st

from vstate import Disk, KVStore, Memory, Versioned
from vstate.errors import CorruptObject, InvalidInput, NotFound
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, INDEX, KINDS, TREE, Object, ObjectId
from vstate.repo import Repository

# The file, read by its specification


def test_the_layout() -> None:
    """Header, frames and end are where docs/format.md puts them; an object follows those that it names."""
    store = Memory()
    state = chain(store, 6)
    state.update({f"many/{i}": f"{i}" * 200 for i in range(300)})
    state.commit("many")
    state.tag("v1")
    side = state.fork("side", "HEAD~2")
    save(side, "side", shared=large(99))
    header, objects, frames = parsed(exported(store, "main", "side", "v1"))
    assert header[:2] == [sorted([name, bytes.fromhex(oid)] for name, oid in refs_of(store).items()), []]
    counts = Counter(letter for letter, _, _ in objects)
    assert header[2:] == [
        [],
        [counts[letter] for letter in (b"b", b"i", b"t", b"c")],
        sum(len(o[2]) for o in objects),
    ]
    kinds = {kind.code.encode(): kind for kind in KINDS}
    seen: set[bytes] = set()
    for letter, oid, body in objects:
        assert oid not in seen
        assert ObjectId.of(kinds[letter], body) == oid
        assert set(links_of(letter, body)) <= seen
        seen.add(oid)
    assert {f"o/{oid.hex()}" for oid in seen} == set(store.keys("o/"))
    assert all(sum(len(body) for _, _, body in frame) <= 4 * 1024 * 1024 for frame in frames)


def test_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame ends at so many bytes or objects; an object that is larger has one to itself."""
    from vstate.repo.exchange import bundle_export

    monkeypatch.setattr(bundle_export, "FRAME_BYTES", 20_000)
    monkeypatch.setattr(bundle_export, "FRAME_OBJECTS", 10)
    store = Memory()
    state = chain(store, 3)
    state.commit("big", note="x" * 30_000)
    state.record("k", text="y" * 30_000)
    state.commit("big")
    data = exported(store)
    _, _, frames = parsed(data)
    sizes = [sum(len(body) for _, _, body in frame) for frame in frames]
    assert all(size <= 20_000 or len(frame) == 1 for size, frame in zip(sizes, frames, strict=True))
    assert max(map(len, frames)) == 10
    assert max(sizes) > 20_000
    target = Memory()
    imported(target, data)
    equal(store, target)


def test_the_same_commits_give_the_same_bytes(tmp_path: Path) -> None:
    """A bundle has the same bytes from any store with the same commits."""
    store = Memory()
    chain(store, 5).tag("v1", "HEAD~2")
    data = exported(store, "main", "v1")
    assert exported(store, "v1", "main") == data
    target = Disk(tmp_path / "store")
    imported(target, data)
    assert exported(target, "main", "v1") == data
    path = tmp_path / "a.bundle"
    report = Repository(target).export(path, ["main", "v1"])
    assert path.read_bytes() == data
    assert report.file_bytes == len(data)
    target.close()


# Round trips


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_random_histories_arrive(seed: int, steps: int) -> None:
    """Every branch and tag with its history: the same ids, the same states, nothing besides."""
    store, target = Memory(), Memory()
    names = tangled(store, seed, steps)
    Repository(store).gc(keep_reflog="0")
    report = imported(target, exported(store, *names))
    assert set(outcomes(report).values()) == {"created"}
    assert report.written == report.objects
    equal(store, target)
    whole(target)
    again = imported(target, exported(store, *names))
    assert (again.written, set(outcomes(again).values())) == (0, {"unchanged"})


def tangled(store: KVStore, seed: int, steps: int) -> list[str]:
    """Make a history of any shape; the names of its refs."""
    tangle = Tangle(store, seed)
    tangle.grow(steps)
    tangle.repo.checkout(tangle.repo.branch_names()[0])
    return sorted(refs_of(store))


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 8), min_size=2, max_size=4))
def test_incremental_bundles_chain(seed: int, parts: list[int]) -> None:
    """Each bundle continues where the last one ended. Without the last one it is refused, with the missing
    commit.
    """
    store, target, chance = Memory(), Memory(), Random(seed)
    since: list[str] = []
    sizes = 0
    for number, steps in enumerate(parts):
        names = more(store, chance, steps, number) if number else tangled(store, seed, steps)
        data = exported(store, *names, since=since)
        if number:
            empty = Memory()
            with pytest.raises(NotFound, match="continues from commit") as caught:
                imported(empty, data)
            assert caught.value.name in set(since)
            assert not list(empty.keys())
        report = imported(target, data)
        sizes += report.objects
        assert not report.diverged
        since = [str(oid) for oid in Repository(store).refs.all().values()]
    assert refs_of(store) == refs_of(target)
    assert values_at(store) == values_at(target)
    whole(target)
    assert sizes >= len(list(target.keys("o/")))


def more(store: KVStore, chance: Random, steps: int, number: int) -> list[str]:
    """Go on with every branch; tags stay."""
    for branch in Repository(store).branches():
        state = Versioned(store, branch=branch)
        for step in range(steps):
            state[f"k{chance.randrange(12)}"] = chance.choice([step, large(step), f"{number}{step}" * 90])
            state.commit(f"{branch} {number} {step}")
    return sorted(refs_of(store))


# Outcomes for refs


def test_refs_move_only_ahead() -> None:
    """Branches are created, moved ahead, unchanged, ahead or diverged; tags and HEAD do not move."""
    store, target = Memory(), Memory()
    chain(store, 3).tag("v1")
    first = exported(store, "main", "v1")
    state = chain(store, 2, start=3)
    second = exported(store, "main", "v1")
    state.tag("v2", "v1")
    without_objects = exported(store, "v2", since=["main"])

    def brought(data: bytes, **options: object) -> tuple[str, ...]:
        return tuple(outcomes(imported(target, data, **options)).values())

    assert brought(first) == ("created", "created")
    assert brought(second) == ("moved", "unchanged")
    assert brought(without_objects) == ("created",)
    assert brought(first) == ("ahead", "unchanged")
    mine = chain(target, 1, start=50)
    assert brought(second) == ("ahead", "unchanged")
    before = refs_of(target)
    state = chain(store, 1, start=60)
    state.delete_tag("v1")
    state.tag("v1")
    other = chain(store, 1, "other").head
    Repository(target).checkout(before["heads/main"])
    third = exported(store, "main", "other", "v1")
    assert [ref.name for ref in imported(target, third).diverged] == ["heads/main", "tags/v1"]
    assert refs_of(target) == {**before, "HEAD": before["heads/main"], "heads/other": other and other.id}
    assert brought(third, prefix="theirs/") == ("created", "created", "created")
    mine.merge("theirs/main", policy="ours")
    whole(target)
    line = next(Repository(target).refs.reflog("heads/theirs/main"))
    assert line.action.startswith("import: ")


@pytest.mark.parametrize("prefix", ["../", " ", "a..", "-", "x" * 200])
def test_a_prefix_has_to_make_names(prefix: str) -> None:
    """Nothing is imported under a prefix that makes bad names."""
    store, target = Memory(), Memory()
    chain(store, 1)
    with pytest.raises(InvalidInput, match="is not a branch name"):
        imported(target, exported(store), prefix=prefix)
    assert not list(target.keys())


def test_what_may_be_exported() -> None:
    """Branches, tags and HEAD can be exported as they are, any other revision under a name."""
    store = Memory()
    state = chain(store, 3)
    state.tag("v1")
    state.create_branch("v2")
    repo = Repository(store)

    def names(*revs: object, **options: object) -> list[str]:
        return [ref.name for ref in repo.export(io.BytesIO(), revs, **options).refs]  # type: ignore[arg-type]

    assert names("HEAD") == ["heads/main"]
    assert names("main", "v1", "v2", "main") == ["heads/main", "heads/v2", "tags/v1"]
    assert names("tags/v1", "heads/v2") == ["heads/v2", "tags/v1"]
    for rev in ("main~1", repo.resolve("main~1")):
        assert names(rev, as_branch="before") == ["heads/before"]
    for rev in ("main~1", repo.resolve("main").id, repo.resolve("main"), "main@{0}"):
        with pytest.raises(InvalidInput, match="no branch and no tag"):
            names(rev)
    for revs, name, error, message in (
        (["nowhere"], None, NotFound, "no revision 'nowhere'"),
        ([], None, InvalidInput, "name a branch or a tag to export"),
        (["main", "v1"], "x", InvalidInput, "names one revision"),
        (["main"], "a b", InvalidInput, "is not a branch name"),
    ):
        with pytest.raises(error, match=message):
            names(*revs, as_branch=name)
    repo.checkout(repo.resolve("main~1").id)
    with pytest.raises(InvalidInput, match="'HEAD' is no branch"):
        names("HEAD")
    state.tag("main", "HEAD~1")
    with pytest.raises(InvalidInput, match="both a branch and a tag"):
        names("main")
    assert names("heads/main", "tags/main") == ["heads/main", "tags/main"]
    with pytest.raises(NotFound, match="no commit yet"):
        Repository(Memory()).export(io.BytesIO(), ["HEAD"])


# Files


def test_a_file_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    """An export that fails keeps the file that was there, and leaves nothing beside it."""
    store = Memory()
    chain(store, 3)
    path = tmp_path / "a.bundle"
    Repository(store).export(path, ["main"])
    before = path.read_bytes()
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    blob = next(key for key, value in store.items("o/") if value[:1] in b"bB")
    store.set(blob, b"b?")
    for lost in (blob, f"o/{Repository(store).branch('main').root}"):
        with pytest.raises(CorruptObject):
            Repository(store).export(path, ["main"])
        store.delete(lost)
    with pytest.raises(CorruptObject):
        Repository(store).export(path, ["main"])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.bundle"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """An export makes no directory, and an import names the file."""
    with pytest.raises(OSError, match="No such file or directory"):
        chain(Memory(), 1).repo.export(tmp_path / "nowhere" / "a.bundle", ["main"])
    with pytest.raises(NotFound, match="no file"):
        Repository(Memory()).import_bundle(tmp_path / "nowhere")


@pytest.mark.slow
def test_an_export_beside_gc_begins_again(tmp_path: Path) -> None:
    """An object that gc removes at any moment of an export is no damage."""
    for moment in count():
        directory, steps = tmp_path / str(moment), count()
        with Disk(directory) as disk, Disk(directory) as other:
            chain(disk, 6)

            def collect(*_: object, at: int = moment, other: Disk = other, steps: count[int] = steps) -> None:
                if next(steps) == at:
                    Repository(other).gc(branch="main", keep_last=1, keep_reflog="0s")

            file = io.BytesIO()
            Repository(disk).export(file, ["main"], progress=collect)
        target = Memory()
        imported(target, file.getvalue())
        whole(target)
        if next(steps) <= moment:
            break
    assert moment > 5


def test_where_the_output_is_no_plain_file(tmp_path: Path) -> None:
    """A symlink stays one, a pipe is written to and read, and who may read a file stays as it was."""
    store = Memory()
    chain(store, 2)
    repo = Repository(store)
    real = tmp_path / "real"
    real.write_bytes(b"old")
    real.chmod(0o600)
    (tmp_path / "link").symlink_to(real)
    repo.export(tmp_path / "link", ["main"])
    assert (tmp_path / "link").is_symlink()
    assert real.read_bytes() == exported(store)
    assert real.stat().st_mode & 0o777 == 0o600
    pipe, target = tmp_path / "pipe", Memory()
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        read = threads.submit(pipe.read_bytes)
        repo.export(pipe, ["main"])
        assert read.result(100) == exported(store)
        threads.submit(pipe.write_bytes, exported(store))
        Repository(target).import_bundle(pipe)
    assert pipe.is_fifo()
    equal(store, target)


def test_a_link_that_is_too_long_is_damage() -> None:
    """An index that names a blob of 8 GB is not exported, and says which it is."""
    repo = Repository(Memory())
    blob = ObjectId.of(BLOB, b"x" * 500)
    index = encode([1, bytes(blob) * 2, [2**33, 500]])
    entry = encode([2, [bytes(ObjectId.of(INDEX, index)), 2**33 + 500], 2**33 + 500, "bytes"])
    tree = encode([0, ["a"], [entry], []])
    commit = Commit(root=ObjectId.of(TREE, tree), parent_ids=(), time=datetime.now(UTC), message="")
    bodies = [(BLOB, b"x" * 500), (INDEX, index), (TREE, tree), Object(COMMIT, commit.body)]
    objects = {ObjectId.of(kind, body): Object(kind, body) for kind, body in bodies}
    repo.store.set_many(repo.objects.stored(objects))
    repo.refs.compare_and_swap("heads/main", expected=None, new=commit.oid, action="made up")
    with pytest.raises(CorruptObject, match="8589934592 bytes"):
        repo.export(io.BytesIO(), ["main"])
