"""fsck: every kind of damage is found, and told by branch, commit and key."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from bundle_files import save
from damaged_stores import LONG, TEXT, check_clean, copy, damaged, encrypted, fill, lost, spoil, states, told
from soak import SOAK
from sync_stores import Beside, Once

from vstate import Cache, Disk, Memory, Versioned
from vstate.errors import CorruptObject, VStateError
from vstate.objects.ids import BLOB, ObjectId
from vstate.repo import Repository
from vstate.repo.upkeep import fsck
from vstate.repo.upkeep.damage import LISTED
from vstate.testing import Faulty

# Whole stores


@pytest.mark.parametrize("full", [True, False])
def test_a_whole_store(filled: Mapping[str, bytes], full: bool) -> None:
    """fsck finds a store with all kinds of objects whole, and counts the objects by kind."""
    store = copy(filled)
    report = check_clean(store, full=full)
    letters = Counter(value[:1].decode().lower() for key, value in filled.items() if key.startswith("o/"))
    assert {name[0]: count for name, count in report.objects.items()} == letters
    assert report.refs == 3
    assert report.reflog_lines == sum(key.startswith("reflog/") for key in filled)
    assert dict(store.items()) == filled


def test_orphans_are_counted_and_checked(filled: Mapping[str, bytes]) -> None:
    """Objects that nothing leads to are no damage, unless they are damaged themselves."""
    store = copy(filled)
    repo = Repository(store)
    extra = repo.objects.stored({ObjectId.of(BLOB, b"x" * 300): (BLOB, b"x" * 300)})  # type: ignore[dict-item]
    store.set_many(extra)
    report = repo.fsck()
    assert report.ok
    assert report.orphans == 1
    assert repo.fsck(full=False).orphans == 0
    (key,) = extra
    store.set(key, extra[key][:-1])
    report = repo.fsck()
    assert not report.ok
    assert [damage.id for damage in report.damage] == [key[2:]]
    assert "nothing leads to it" in report.damage[0].reason
    assert (report.lost_in_all, report.broken) == (0, ())
    assert repo.fsck(full=False).ok
    assert repo.fsck(repair=True).ok
    assert key not in store
    assert f"damaged/{key[2:]}" in store


def test_foreign_rows_are_counted(filled: Mapping[str, bytes]) -> None:
    """Rows that vstate did not write are no damage."""
    store = copy(filled)
    store.set_many({"o/x": b"", "o/" + "A" * 64: b"", "note": b"", "r/other/x": b"", "room/x": b""})
    Versioned(store).set_policy("k", "ours")
    report = Repository(store).fsck()
    assert report.ok
    assert report.foreign == 5
    before = dict(store.items())
    Repository(store).fsck(repair=True)
    assert dict(store.items()) == before


# Damage to objects


def every_object(rows: Mapping[str, bytes]) -> list[str]:
    keys = sorted(key for key in rows if key.startswith("o/"))
    by_letter: dict[bytes, list[str]] = {}
    for key in keys:
        by_letter.setdefault(rows[key][:1], []).append(key)
    # Blobs by the hundred are alike.
    return [key for same in by_letter.values() for key in (same if SOAK else same[:2])]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "flipped", "cut", "empty", "swapped", "kind"])
def test_every_damage_to_every_object_is_found(filled: Mapping[str, bytes], how: str) -> None:
    """The report names the object, and lists exactly the keys of every commit that cannot be read. Reading
    one names the object too.
    """
    right = states(filled)
    (undone,) = right.keys() - {commit.id for commit in Repository(copy(filled)).log("main")}
    heads = Repository(copy(filled)).refs.all()
    keys = every_object(filled)
    for number, key in enumerate(keys):
        other = filled[keys[number - 1]]
        store = copy(filled)
        store.transact({key: damaged(filled[key], how, other)}, {})
        before = dict(store.items())
        report = Repository(store).fsck()
        if how == "missing" and key == f"o/{undone}":
            assert report.ok  # for all that anybody knows, gc has removed it
            continue
        assert not report.ok
        assert [damage.id for damage in report.damage] == [key[2:]], str(report)
        assert not report.damage[0].readable
        assert dict(store.items()) == before
        if number % 3 == 0:
            walkable = {item.commit for item in report.lost if item.what.startswith("the commit itself")}
            unread = lost(store, right, key[2:])
            shown = {pair for pair in unread if pair[0] not in walkable or pair[0] == key[2:]}
            assert told(report, right) == shown, (key, str(report))
        broken = {
            name
            for name, oid in heads.items()
            if any(commit == str(oid) for commit, _ in told(report, right))
        }
        assert set(report.broken) == broken


def test_a_commit_of_the_reflog_that_any_object_is_written_over(filled: Mapping[str, bytes]) -> None:
    """A commit that only the reflog names is lost with all its keys, whatever kind of object stands in its
    place.
    """
    right = states(filled)
    (undone,) = right.keys() - {commit.id for commit in Repository(copy(filled)).log("main")}
    others = {
        value[:1]: value for key, value in filled.items() if key.startswith("o/") and key != f"o/{undone}"
    }
    assert len({letter.lower() for letter in others}) == 4
    for other in others.values():
        store = copy(filled)
        store.set(f"o/{undone}", other)
        report = Repository(store).fsck()
        assert [damage.id for damage in report.damage] == [undone]
        assert told(report, right) == {(undone, key) for key in right[undone]}, str(report)


@pytest.mark.slow
def test_damage_that_many_commits_share_is_told_for_each() -> None:
    """A lost value is listed for every commit that has it, the newest first; further ones are counted."""
    store = Memory()
    state = Versioned(store)
    state["old"] = TEXT
    state["new"] = 0
    for number in range(LISTED + 50):
        save(state, f"{number}", new=number)
    store.delete(f"o/{ObjectId.of(BLOB, TEXT.encode())}")
    report = Repository(store).fsck()
    assert report.damaged == 1
    assert report.lost_in_all == LISTED + 50
    assert len(report.lost) == LISTED
    assert [item.commit for item in report.lost] == [commit.id for commit in state.log(limit=LISTED)]
    assert {(item.ref, item.key) for item in report.lost} == {("heads/main", "old")}
    assert "\n  … 950 more (--json lists more)\n" in str(report)


def test_quick_sees_that_blobs_are_missing_but_not_what_they_hold(filled: Mapping[str, bytes]) -> None:
    """`full=False` reads no blob: a missing one is found, a flipped one is not."""
    key = f"o/{ObjectId.of(BLOB, TEXT.encode())}"

    class Guarded(Memory):
        def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
            wanted = list(keys)
            assert not blobs.intersection(wanted)
            return super().get_many(wanted)

    blobs = {key for key, value in filled.items() if key.startswith("o/") and value[:1] in b"bB"}
    store = Guarded()
    store.set_many(filled)
    store.set(key, filled[key][:-1])
    assert Repository(store).fsck(full=False).ok
    store.delete(key)
    report = Repository(store).fsck(full=False)
    assert [damage.id for damage in report.damage] == [key[2:]]
    assert {item.key for item in report.lost} == {"text"}


def test_a_cache_hides_no_damage(filled: Mapping[str, bytes], tmp_path: Path) -> None:
    """fsck checks the store and not the copies in a cache; a repair drops those."""
    memory = copy(filled)
    cache = Cache(memory, directory=tmp_path / "tier")
    state = Versioned(cache)
    assert dict(state)
    assert state.head is not None
    key = f"o/{state.head.root}"
    memory.set(key, filled[key][:-1])
    assert cache.get(key) == filled[key]
    report = Repository(cache).fsck()
    assert [damage.id for damage in report.damage] == [key[2:]]
    assert Repository(cache).fsck(repair=True).ok
    assert key not in memory
    assert cache.get(key) is None
    cache.close()


def test_damage_behind_encryption_is_found(filled: Mapping[str, bytes]) -> None:
    """A row that cannot be decrypted is a damaged object; a repair moves it aside."""
    inner, store = encrypted(filled)
    check_clean(store)
    root = Repository(store).branch("main").root
    spoil(inner, store, f"o/{root}")
    with pytest.raises(CorruptObject):
        store.get(f"o/{root}")
    report = Repository(store).fsck()
    assert [damage.id for damage in report.damage] == [str(root)]
    assert report.broken == ("heads/main",)
    assert Repository(store).fsck(repair=True).ok
    assert store.get(f"o/{root}") is None
    assert store.get(f"damaged/{root}") == b""


# Rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "kind", "reason"),
    [
        ("r/heads/main", b"nonsense", "ref", "is no id of a commit"),
        ("r/heads/main", b"A" * 64, "ref", "is no id of a commit"),
        ("r/heads/main", b"\xff" * 64, "ref", "is no id of a commit"),
        ("r/tags/v1", b"", "ref", "is no id of a commit"),
        ("r/HEAD", b"main", "ref", "is no id of a commit"),
        ("r/HEAD", b"ref: heads/a..b", "ref", "is not a branch name"),
        ("r/HEAD", b"ref: tags/v1", "ref", "is no id of a commit"),
        (
            "reflog/heads/main:000000000000000000000000",
            b"\x93\xc0\xc0\xc4",
            "reflog",
            "does not match its checksum",
        ),
        ("reflog/heads/main:0000000000000000000000", b"\x93\xc0\xc0\x01", "reflog", "has no time"),
        ("reflog/heads/main:then", b"\x93\xc0\xc0\xa1x", "reflog", "has no time"),
        ("shallow/" + "0" * 64, b"\x01", "shallow", "names no parents"),
        ("shallow/x", b"\x90", "shallow", "names no parents"),
        ("arrived/0", b"\x01", "arrival", "is no list of ids"),
        ("trash/" + "0" * 64, b"\x01", "trash", "holds no object"),
        ("format", None, "format", "names no format"),
        ("format", b"\xff", "format", "says that its format is"),
        ("format", b"9" * 5000, "format", "says that its format is"),
    ],
)
def test_rows_that_make_no_sense(
    filled: Mapping[str, bytes], key: str, value: bytes | None, kind: str, reason: str
) -> None:
    """Damage to refs, HEAD, the reflog, ends of histories and the format is found and repaired."""
    store = copy(filled)
    repo = Repository(store)  # before its format is damaged
    store.transact({key: value}, {})
    report = repo.fsck()
    assert [(damage.id, damage.kind) for damage in report.damage] == [(key, kind)], str(report)
    assert reason in report.damage[0].reason
    assert report.lost_in_all == 0
    repaired = repo.fsck(repair=True)
    assert repaired.ok, str(repaired)
    assert repaired.repaired
    check_clean(store)
    if value is not None and kind != "format":
        assert store.get(f"damaged/{key}") == value
    state = Versioned(store)
    assert [commit.message for commit in state.log(limit=2)] == ["fourth", "merged"]
    assert Repository(store).gc().removed == 0


def test_a_ref_of_a_bad_name_is_told(filled: Mapping[str, bytes]) -> None:
    """A ref with a forbidden name can be read, so it stays."""
    store = copy(filled)
    store.set("r/heads/a..b", filled["r/heads/main"])
    report = Repository(store).fsck(repair=True)
    assert not report.ok
    assert [(damage.id, damage.readable) for damage in report.damage] == [("r/heads/a..b", True)]
    assert str(report.damage[0]).endswith(" (no value is lost)")
    assert store.get("r/heads/a..b") == filled["r/heads/main"]


@pytest.mark.parametrize("ref", ["heads/main", "heads/other", "tags/v1"])
def test_a_ref_that_was_overwritten_is_told(ref: str) -> None:
    """With the id of another whole commit, an older or a newer one: the reflog knows of no such move."""
    store = Memory()
    state = Versioned(store)
    for number in range(4):
        state["k"] = number
        state.commit(str(number))
    state.create_branch("other", "HEAD~1")
    state.tag("v1", "HEAD~1")
    check_clean(store)
    right = state.repo.resolve(ref).id
    for commit in state.log():
        store.set(f"r/{ref}", commit.id.encode())
        report = Repository(store).fsck()
        assert report.ok is (commit.id == right)
        if not report.ok:
            (damage,) = report.damage
            assert (damage.id, commit.id in damage.reason, right in damage.reason) == (f"r/{ref}", True, True)


def test_a_ref_to_what_is_no_commit(filled: Mapping[str, bytes]) -> None:
    """A branch that names a tree is broken, and the tree is not to blame."""
    store = copy(filled)
    root = Repository(store).branch("main").root
    store.set("r/heads/main", str(root).encode())
    report = Repository(store).fsck()
    assert report.broken == ("heads/main",)
    assert [(damage.id, damage.kind) for damage in report.damage] == [("r/heads/main", "ref")]
    assert "is no commit but a tree" in report.damage[0].reason
    assert Repository(store).fsck(repair=True).ok
    assert store.get("r/heads/main") == filled["r/heads/main"]
    assert f"o/{root}" in store


# Beside others


@pytest.mark.parametrize(("full", "atomic"), [(True, True), (False, False)])
@pytest.mark.slow
def test_gc_between_any_two_calls_makes_no_damage(
    full: bool, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While gc cuts a history and removes a branch before one call of fsck, whichever, nothing is missing."""
    monkeypatch.setattr(fsck, "_ATTEMPTS", 1)
    memory, random = Memory(), Random(1)
    repo = Repository(memory)
    for i in range(12):
        repo.commit("main", set={f"{i % 7}": random.randbytes(20_000 if i % 9 == 0 else 300)})
    repo.create_branch("side", "main")
    for i in range(4):
        repo.commit("side", set={f"{i % 5}": random.randbytes(20_000 if i % 3 == 0 else 300)})
    rows, calls = dict(memory.items()), 0

    def check(call_of_gc: int) -> None:
        nonlocal calls
        store, calls = Faulty(copy(rows), atomic=atomic), 0

        def meanwhile() -> None:
            nonlocal calls
            calls += 1
            if calls == call_of_gc:
                repo = Repository(store)
                repo.delete_branch("side")
                repo.gc(branch="main", keep_last=5, keep_reflog="0d", grace="0s")

        report = Repository(Beside(store, meanwhile)).fsck(full=full)
        assert report.ok, f"{call_of_gc}: {report}"
        assert not report.damaged, f"{call_of_gc}: {report}"

    check(0)
    assert calls > 20
    for call_of_gc in range(1, calls + 1):
        check(call_of_gc)


@pytest.mark.slow
def test_gc_beside_each_call_hides_no_damage() -> None:
    """A blob that is missing is told, although gc removes other commits all the time."""
    memory = Memory()
    repo = Repository(memory)
    repo.commit("main", set={"blob": Random(1).randbytes(300)})
    sides = [f"side-{i}" for i in range(40)]
    for i, side in enumerate(sides):
        repo.commit("main", set={"i": i})
        repo.create_branch(side, "main")
        repo.commit(side, set={"mine": i})
    (blob,) = (key for key, value in memory.items() if key.startswith("o/") and len(value) > 300)

    def meanwhile() -> None:
        if sides:
            Repository(memory).delete_branch(sides.pop())
            Repository(memory).gc(keep_reflog="0d")

    memory.delete(blob)
    report = Repository(Beside(memory, meanwhile)).fsck()
    assert not sides
    assert [damage.id for damage in report.damage] == [blob.removeprefix("o/")]
    assert not report.ok


def test_what_is_committed_meanwhile_is_no_orphan() -> None:
    """A commit that is made during fsck is no orphan."""
    store = Memory()
    state = Versioned(store)
    state.update({f"k{i}": f"{i}" * 200 for i in range(300)})
    state.commit("base")
    commit = Once(lambda: Repository(store).commit("main", set={"new": LONG}))
    report = Repository(store).fsck(progress=commit)
    assert commit.done
    assert report.ok
    assert report.orphans == 0


def test_garbage_that_is_needed_again_is_read_where_it_waits() -> None:
    """An object in the trash of a store without transactions counts as present if a ref leads to it again."""
    memory = Memory()
    store = Faulty(memory, atomic=False)
    fill(store)
    repo = Repository(store)
    head = repo.branch("main")
    repo.move_branch("main", "main~2")
    repo.gc(keep_reflog="0")
    assert f"trash/{head.id}" in memory
    memory.set("r/heads/main", head.id.encode())
    check_clean(store)
    check_clean(store, full=False)
    key = f"trash/{head.root}"
    row = memory.get(key) or b""
    memory.set(key, row[:-1])
    report = Repository(store).fsck()
    assert [damage.id for damage in report.damage] == [str(head.root)]
    assert Repository(store).fsck(repair=True).ok
    assert memory.get(f"damaged/{head.root}") == row[8:-1]


# Disk


@pytest.fixture
def disk_file(tmp_path: Path) -> Path:
    """The file of a closed store of everything, with some free pages."""
    with Disk(tmp_path / "disk") as disk:
        fill(disk)
        disk.set_many({f"x/{i}": bytes(5000) for i in range(40)})
        disk.delete_many([f"x/{i}" for i in range(40)])
    return tmp_path / "disk" / "vstate.db"


def with_bytes(file: Path, at: int, new: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(at)
        opened.write(new)


def test_a_damaged_list_of_free_pages_is_found(disk_file: Path) -> None:
    """fsck finds damage that the next commit would overwrite, although every value can still be read."""
    data = disk_file.read_bytes()
    trunk = int.from_bytes(data[32:36], "big")
    assert trunk
    with_bytes(disk_file, (trunk - 1) * 4096 + 8, (2).to_bytes(4, "big"))  # a page of the table
    with Disk(disk_file.parent) as disk:
        report = Repository(disk).fsck()
        assert not report.ok
        assert {(damage.kind, damage.readable) for damage in report.damage} == {("file", True)}
        assert report.lost_in_all == 0
        assert Repository(disk).fsck(full=False).ok


def test_a_row_that_cannot_be_read_costs_no_other(disk_file: Path, filled: Mapping[str, bytes]) -> None:
    """Where SQLite refuses a page, only the objects on it are lost."""
    with Disk(disk_file.parent) as disk:
        right = states(dict(disk.items()))
        root = Repository(disk).branch("main").root
        assert root is not None
        key = b"\xff" + root
    data = disk_file.read_bytes()
    places = [match.start() for match in re.finditer(re.escape(key), data)]
    page = max(place // 4096 for place in places if data[place // 4096 * 4096] == 13)  # of the table
    with_bytes(disk_file, page * 4096, b"\x63")
    with Disk(disk_file.parent) as disk:
        report = Repository(disk).fsck()
        assert not report.ok
        assert str(root) in {damage.id for damage in report.damage}
        assert "heads/main" in report.broken
        wanted = {damage.id for damage in report.damage if damage.kind in ("blob", "index", "tree", "commit")}
        assert 0 < len(wanted) < 40
        assert right


@pytest.mark.slow
def test_closing_the_store_ends_a_check_of_its_file(tmp_path: Path) -> None:
    """Ctrl-C does not wait until SQLite has read the whole file."""
    with Disk(tmp_path / "s", durability="process") as disk, ThreadPoolExecutor() as threads:
        disk.set_many({f"x/{i}": bytes(200_000) for i in range(300)})
        check = threads.submit(lambda: list(disk.check()))
        began = time.monotonic()
        disk.close()
        assert isinstance(check.exception(30), VStateError | None)
        assert time.monotonic() - began < 30


@pytest.mark.slow
def test_many_rows_that_make_no_sense_are_told_in_linear_time() -> None:
    """Twenty thousand damaged lines take seconds and not minutes."""
    store = Memory()
    save(store, "c", k=1)
    store.set_many({f"reflog/heads/main:{i:016x}00000000": b"x" for i in range(20_000)})
    began = time.process_time()
    assert Repository(store).fsck().damaged == 20_000
    assert time.process_time() - began < 15
