"""Soundness: the checks that every store must pass after any accident."""

from __future__ import annotations

from vstate import KVStore
from vstate.objects.ids import COMMIT, Kind
from vstate.repo import Repository
from vstate.repo.upkeep.reach import Reach


def check_sound(store: KVStore, *, fsck: bool = True) -> int:
    """Read and verify every reachable object and all reflog lines. Returns the number of objects.

    Reading starts at the refs, so a missing object is found. `fsck`, which goes its own way through the
    store, must find no damage either.
    """
    repo = Repository(store)
    repo.refs.head()
    reach = Reach(repo.objects, repo.history)
    for kind, ids in reach.extend(repo.refs.all().values()):
        _read(repo, kind, ids)
    for key, value in store.items("reflog/"):
        repo.refs.parse_line(key, value)
    if fsck:
        report = repo.fsck()
        assert report.ok, str(report)
    return len(reach)


def _read(repo: Repository, kind: Kind, ids: list) -> None:
    if kind is COMMIT:
        repo.objects.commits(ids)
    else:
        repo.objects.read_many(kind, ids)
