"""The graph: rows that hold many commits, which walks rely on no further than the commits' ids prove."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
import zstandard
from bundle_files import store_of

from vstate import Cache, CorruptStore, KVStore, Memory
from vstate.kv import Encrypted, Prefixed, ReadOnly
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.canonical import decode, encode
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, Object, ObjectId
from vstate.objects.segment import Segment
from vstate.repo import Repository, graph
from vstate.repo.clone import clone
from vstate.repo.graph import GRAPH, read_segment
from vstate.repo.history import History
from vstate.repo.objects import Objects
from vstate.testing import Faulty

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few commits, so that small histories have many."""
    monkeypatch.setattr(graph, "_RANKS", (64, 256, 1024))
    monkeypatch.setattr(graph, "_MOST", 8)
    monkeypatch.setattr(graph, "_KEPT", 2)


def random_history(store: KVStore, random: Random) -> list[Commit]:
    """Commits with up to three parents each, mostly one, and often of one time; oldest first."""
    commits: list[Commit] = []
    for number in range(random.randrange(2, 60)):
        near = commits[-random.choice([1, 2, 5, 60]) :]
        parents = random.sample(near, min(len(near), random.choice([0, 1, 1, 1, 1, 1, 2, 3])))
        earliest = max((parent.time for parent in parents), default=BEGAN)
        time = earliest + timedelta(microseconds=random.choice([1, 1, 2, 50]))
        commits.append(Commit(None, tuple(parent.oid for parent in parents), time, f"{number}"))
    store.set_many(Objects(store).stored({commit.oid: Object(COMMIT, commit.body) for commit in commits}))
    return commits


def fresh(store: KVStore) -> History:
    return History(Objects(store))


@pytest.mark.parametrize("ranks", [(64, 256, 1024), (10, 40, 160)], ids=["in memory", "far away"])
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.slow
def test_walks_find_what_a_search_of_all_commits_finds(
    seed: int, ranks: tuple[int, ...], small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merge bases, ancestry, first parents and logs, in histories of any shape, with rows and without."""
    monkeypatch.setattr(graph, "_RANKS", ranks)
    random = Random(seed)
    store = Memory() if ranks[0] == 64 else Far(Memory(), atomic=False)
    commits = random_history(store, random)
    parents = {commit.oid: commit.parent_ids for commit in commits}
    orders = {commit.oid: commit.order for commit in commits}

    def below(starts: Iterable[ObjectId], ends: Iterable[ObjectId] = (), most: int = 3) -> set[ObjectId]:
        """The starts and the commits before them, by so many parents at most; none from the ends on."""
        found, waiting = set[ObjectId](), list(starts)
        while waiting:
            if (oid := waiting.pop()) not in found and oid not in ends:
                found.add(oid)
                waiting += parents[oid][:most]
        return found

    heads = random.sample(list(parents), min(len(parents), 4))
    for _ in range(2):
        history = fresh(store)
        for _ in range(30):
            one, other = random.choices(list(parents), k=2)
            common = below([one]) & below([other])
            best = {oid for oid in common if not any(oid in below([each]) for each in common - {oid})}
            bases = history.merge_bases(one, other)
            assert set(bases) == best
            assert history.is_ancestor(one, other) is (one in below([other]))
            starts, excluded = (random.sample(list(parents), random.randrange(3)) for _ in range(2))
            for found, wanted in (
                (history.outside(starts, excluded), below(starts) - below(excluded)),
                (
                    history.outside(starts, excluded, first_parent=True),
                    below(starts, most=1) - below(excluded),
                ),
                (history.ancestors(one, until=lambda oid, end=other: oid == end), below([one], [other])),
            ):
                walked = [commit.oid for commit in found]
                assert set(walked) == wanted
                assert len(walked) == len(wanted)
                for walk in (walked, bases):
                    assert [orders[oid] for oid in walk] == sorted(
                        (orders[oid] for oid in walk), reverse=True
                    )
        for commit in commits:
            to, steps = history.back(commit.oid, random.randrange(1, 9))
            at = commit.oid
            for _ in range(steps):
                at = parents[at][0]
            assert at == to
        fresh(store).index(heads)


class Far(Faulty):
    """A store whose segments have ranks."""

    remote = True


# Rows

COMMITS = 100


def history(store: KVStore) -> list[Commit]:
    """A hundred commits and a branch that parted from them at the first, after gc; the log of the hundred."""
    repo = commits(store)
    repo.gc()
    assert rows(store)
    return log(store)


def commits(store: KVStore) -> Repository:
    repo = Repository(store)
    repo.commit("main", set={"i": -1})
    repo.create_branch("side", "main")
    repo.commit("side", set={"side": True})
    for i in range(1, COMMITS):
        repo.commit("main", set={"i": i}, message=f"commit {i}")
    return repo


def rows(store: KVStore) -> dict[str, bytes]:
    return dict(store.items(GRAPH))


def bases(store: KVStore) -> list[ObjectId]:
    repo = Repository(store)
    return repo.history.merge_bases(repo.branch("main").oid, repo.branch("side").oid)


def reads(store: KVStore, walk: Callable[[KVStore], object]) -> int:
    """How many calls of the store a walk takes, if nothing is read ahead."""
    counted = Faulty(store)
    walk(counted)
    return len(counted.calls)


def log(store: KVStore) -> list[Commit]:
    return list(Repository(store).log("main"))


FRONTS: dict[str, Callable[[KVStore], KVStore]] = {
    "none": lambda store: store,
    "cache": Cache,
    "prefixed": lambda store: Prefixed(store, "tenant"),
    "encrypted": lambda store: Encrypted(store, bytes(range(32))),
    "no transactions": lambda store: Faulty(store, atomic=False),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.slow
def test_walks_read_rows_in_place_of_commits(front: str, small: None) -> None:
    """After gc, through any store in front of another."""
    store = FRONTS[front](Memory())
    expected = history(store)
    bare = Memory()
    bare.set_many({key: value for key, value in store.items() if not key.startswith(GRAPH)})
    for walk in (bases, log, lambda store: Repository(store).resolve(f"main~{COMMITS - 1}")):
        assert walk(store) == walk(bare)
        assert reads(store, walk) < reads(bare, walk) * 0.7
    assert log(store) == log(ReadOnly(store)) == log(Far(store, atomic=False)) == expected


def test_commits_write_rows_where_each_key_takes_a_request(small: None) -> None:
    """In such a store a program that commits writes the graph too; in any other one gc does."""
    far, near = Far(Memory(), atomic=False), Memory()
    for store in (far, near):
        commits(store)
    assert rows(far)
    assert not rows(near)


def test_a_clone_brings_its_rows(small: None) -> None:
    store, copy = Memory(), Memory()
    history(store)
    clone(store, copy)
    assert rows(copy) == rows(store)


def _nonsense(rows: dict[str, bytes]) -> dict[str, bytes]:
    return dict.fromkeys(rows, b"nonsense")


def _shuffled(rows: dict[str, bytes]) -> dict[str, bytes]:
    keys = sorted(rows)
    return dict(zip(keys, [rows[key] for key in keys[1:] + keys[:1]], strict=True))


def _relinked(rows: dict[str, bytes]) -> dict[str, bytes]:
    """Each commit in a row is said to have another parent."""
    forged = {}
    for key, row in rows.items():
        begins, ends, links = decode(zstandard.decompress(row))
        links[0] = [bytes(32)]
        begins[-1], links = begins[0], [*links, [2]]
        forged[key] = zstandard.compress(encode([begins, ends, links]))
    return forged


def _shortened(rows: dict[str, bytes]) -> dict[str, bytes]:
    return {key: row[:-1] for key, row in rows.items()}


def _enormous(rows: dict[str, bytes]) -> dict[str, bytes]:
    return dict.fromkeys(rows, zstandard.compress(bytes(100_000_000)))


@pytest.mark.parametrize("spoil", [_nonsense, _shuffled, _relinked, _shortened, _enormous])
@pytest.mark.slow
def test_a_bad_row_misleads_nobody(
    spoil: Callable[[dict[str, bytes]], dict[str, bytes]], small: None
) -> None:
    """Damaged and forged rows change no walk. fsck reports them, and gc writes right ones."""
    store = Memory()
    expected, right = history(store), rows(store)
    found = bases(store)
    store.set_many(spoil(right))
    assert log(store) == expected
    assert bases(store) == found
    report = Repository(store).fsck()
    assert {damage.id for damage in report.damage} == right.keys()
    assert all(damage.readable and damage.kind == "graph" for damage in report.damage)
    Repository(store).gc()
    assert Repository(store).fsck().ok
    assert reads(store, bases) < COMMITS


def test_more_commits_in_a_row_change_nothing(small: None) -> None:
    """A row with commits that its newest one does not lead to is good, and they appear in no walk."""
    store, other = Memory(), Memory()
    expected = history(store)
    history(other)
    for key, row in rows(store).items():
        more = [decode(zstandard.decompress(part)) for part in [next(iter(rows(other).values())), row]]
        joined = [first + second for first, second in zip(*more, strict=True)]
        store.set(key, zstandard.compress(encode(joined)))
    assert log(store) == expected
    assert bases(store) == [expected[-1].oid]


def test_an_id_among_other_data_is_no_parent() -> None:
    """A row that takes bytes of a commit's info for the id of a parent is refused."""
    fake = bytes(range(32))
    commit = Commit(None, (), BEGAN, "message", {"bytes": fake})
    begin, end = commit.body.split(b"\xc4\x20" + fake)
    with pytest.raises(ValueError, match="other data"):
        Segment(zstandard.compress(encode([[begin], [end], [[fake]]])))


def test_a_cut_history_leaves_no_copy(small: None) -> None:
    """After gc has cut a history short, no row holds one of the commits that are gone."""
    store = Memory()
    history(store)
    repo = Repository(store)
    repo.delete_branch("side")
    repo.gc(branch="main", keep_last=COMMITS // 2, keep_reflog="0d")
    kept = log(store)
    assert len(kept) == COMMITS // 2
    held = {oid.hex() for key, row in rows(store).items() for oid in read_segment(key, row).ids}
    assert held
    assert held <= {key.removeprefix(OBJECT_PREFIX) for key in store.keys(OBJECT_PREFIX)}
    assert repo.fsck().ok


def test_a_handle_that_has_rows_in_memory_learns_of_a_cut(small: None) -> None:
    """Its log ends without an error, with each commit once: rows in memory link to others."""
    store = Memory()
    repo = Repository(store)
    for number in range(200):
        repo.commit("main", set={"n": number}, message=str(number))
    repo.gc()
    for back, steps in ((0, 3), (40, 60), (80, 150), (120, 3), (160, 60)):
        handle = Repository(store_of(dict(store.items())))
        head = handle.resolve("main").oid
        handle.history.merge_bases(handle.resolve(f"main~{back}").oid, handle.resolve("main~199").oid)
        log = handle.log("main")
        found = [next(log) for _ in range(steps)]
        Repository(handle.store).gc(branch="main", keep_last=20, keep_reflog="0s", grace="0s")
        found += log
        assert [commit.message for commit in found[:20]] == [str(number) for number in range(199, 179, -1)]
        assert len({commit.oid for commit in found}) == len(found)
        assert found[0].oid == head


def test_old_damage_stops_no_commit(small: None) -> None:
    """A commit that would write a row goes on without it if an old commit cannot be read."""
    store = Far(Memory(), atomic=False)
    lost = history(store)[COMMITS // 2]
    store.delete_many([*rows(store), OBJECT_PREFIX + lost.id])
    for i in range(COMMITS):
        assert Repository(store).commit("main", set={"i": [i]})
    assert rows(store)


def test_a_walk_stands_still_for_no_row(small: None) -> None:
    """A row that the store itself cannot read counts as absent."""

    class Unreadable(Memory):
        def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
            keys = list(keys)
            if any(key.startswith(GRAPH) for key in keys):
                raise CorruptStore(self.location, "a page is damaged")
            return super().get_many(keys)

    made, store = Memory(), Unreadable()
    expected = history(made)
    store.set_many(dict(made.items()))
    assert log(store) == expected
