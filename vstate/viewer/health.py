"""Health: where the bytes of a store are, its signatures, and the results of gc and fsck."""

from __future__ import annotations

from dataclasses import asdict
from heapq import nlargest
from itertools import islice
from time import monotonic
from typing import Any, Final

from vstate.errors import CorruptObject, VStateError
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.repo.rules.signing import PublicKey, check
from vstate.repo.upkeep.reach import UpkeepProgress
from vstate.viewer.changing import Trial

_SECONDS: Final = 2.0  # for the sizes of all branches
_MOST_KEYS: Final = 200_000
_SHOWN: Final = 50
_CHECKED: Final = 1000  # commits whose signatures are counted
_SHOWN_DAMAGE: Final = 100

Answer = dict[str, Any]


def health(repo: Repository) -> Answer:
    """The sizes by key at HEAD and by branch, and the signatures of the newest commits.

    Sizes are those of whole values, in bytes. Equal values are stored once, and compressed, so a store takes
    less. Of many keys, the first 200,000 are added up: `measured`. Branches that were not looked at in time
    are counted in `left_out`, and those that cannot be read in `damaged`.
    """
    end = monotonic() + _SECONDS
    by_key: list[tuple[str, int]] = []
    branches: list[Answer] = []
    left_out = damaged = 0
    try:
        head = repo.commit_at(repo.refs.head())
        if head is not None:
            by_key = [(key, entry.size) for key, entry in islice(repo.entries(head.root), _MOST_KEYS)]
    except CorruptObject:  # its branch is counted below
        head = None
    for name, oid in repo.refs.list(HEADS).items():
        if monotonic() > end:
            left_out += 1
            continue
        try:
            commit = repo.objects.commit(oid)
            sizes = [entry.size for _, entry in islice(repo.entries(commit.root), _MOST_KEYS)]
        except CorruptObject:
            damaged += 1
            continue
        branches.append(
            {
                "name": name,
                "keys": _count(repo, commit, len(sizes)),
                "measured": len(sizes),
                "bytes": sum(sizes),
                "time": commit.time.isoformat(),
            }
        )
    return {
        "keys": 0 if head is None else _count(repo, head, len(by_key)),
        "measured": len(by_key),
        "bytes": sum(size for _, size in by_key),
        "largest": [
            {"key": key, "bytes": size} for key, size in nlargest(_SHOWN, by_key, key=lambda e: e[1])
        ],
        "branches": sorted(branches, key=lambda branch: -branch["bytes"])[:_SHOWN],
        "branch_count": len(branches) + left_out + damaged,
        "left_out": left_out,
        "damaged": damaged,
        "signatures": _signatures(repo, head),
    }


def _count(repo: Repository, commit: Commit, measured: int) -> int:
    """The number of keys. With very many, those that have expired are counted too."""
    return measured if measured < _MOST_KEYS else tree.count(repo.objects.node, commit.root)


def _signatures(repo: Repository, head: Commit | None) -> Answer:
    """How many of the newest commits are signed, by key."""
    counts: dict[str, int] = {}
    seen = 0
    try:
        for commit in () if head is None else islice(repo.history.ancestors(head.oid), _CHECKED):
            seen += 1
            found = signature(commit)
            name = found["status"] if found["status"] in ("none", "invalid") else found["key"]
            counts[name] = counts.get(name, 0) + 1
    except CorruptObject:
        pass  # those before the damage are counted
    return {"commits": seen, "by_key": [{"key": key, "commits": count} for key, count in counts.items()]}


def signature(commit: Commit) -> Answer:
    """Whether the signature of a commit is good, and its key."""
    if commit.signature is None:
        return {"status": "none", "key": None}
    raw = commit.signature.signer
    key = str(PublicKey(raw)) if len(raw) == 32 else raw.hex()
    try:
        return {"status": "valid" if check(commit) == "good" else "invalid", "key": key}
    except VStateError as error:  # without the package cryptography
        return {"status": "unchecked", "key": key, "reason": str(error)}


def _gc(repo: Repository, progress: UpkeepProgress) -> Answer:
    """What `gc` would remove."""
    report = Repository(Trial(repo.store)).gc(dry_run=True, progress=progress)
    return asdict(report) | {"text": "; ".join(report.lines())}


def _fsck(repo: Repository, progress: UpkeepProgress) -> Answer:
    """The damage that `fsck` finds; it repairs nothing."""
    report = repo.fsck(progress=progress)
    damage = [str(each) for each in islice(report.damage, _SHOWN_DAMAGE)]
    lost = [str(each) for each in islice(report.lost, _SHOWN_DAMAGE)]
    return {
        "ok": report.ok,
        "text": report.summary(),
        "damage": damage,
        "lost": lost,
        "damaged": report.damaged,
        "seconds": report.seconds,
    }


JOBS: Final = {"gc": _gc, "fsck": _fsck}
"""The long work by name. Each calls its progress now and then, which may raise to end it."""
