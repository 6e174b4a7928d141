"""Erasing: keys, parts of values and events go from every commit, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from histories import Tangle, needed, objects_of, sound
from soak import sized

from vstate import Commit, KVStore
from vstate.objects.ids import ObjectId
from vstate.repo import Repository


class Old(NamedTuple):
    """A commit as it was: what must stay of it."""

    entries: dict[str, bytes]
    message: str
    time: Any
    order: int
    info: Any
    events: Any
    parents: tuple[str, ...]


def as_it_was(repo: Repository, commit: Commit) -> Old:
    parents = tuple(map(str, repo.history.parents(commit)))
    entries = {key: entry.raw if hasattr(entry, "raw") else entry for key, entry in states(repo, commit)}
    events = [(event.kind, event.time, event.data, event.namespace) for event in commit.events]
    return Old(entries, commit.message, commit.time, commit.order, commit.info, events, parents)


def states(repo: Repository, commit: Commit) -> Iterator[tuple[str, Any]]:
    from vstate.objects import tree

    return tree.scan(repo.objects.nodes, commit.root)


def everything(repo: Repository) -> dict[str, Old]:
    """All commits that refs and reflogs lead to, by id."""
    starts = list(repo.refs.all().values())
    for key, row in repo.view.items("reflog/"):
        starts += [oid for oid in repo.refs.parse_line(key, row).commits if repo.objects.is_stored(oid)]
    return {each.id: as_it_was(repo, each) for each in repo.history.ancestors(*starts)}


def moves(repo: Repository, refs: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    """The lines of each reflog without their commits."""
    return {ref: [(line.time, line.action, line.order) for line in repo.refs.reflog(ref)] for ref in refs}


@pytest.mark.parametrize("seed", range(sized(8, 1000)))
@pytest.mark.slow
def test_a_key_goes_and_nothing_else_changes(store: KVStore, seed: int) -> None:
    """After any history each old id leads to a commit with the same state, but for the key; all is sound."""
    tangle = Tangle(store, seed)
    tangle.grow(sized(30, 60))
    repo = Repository(store)
    before, refs = everything(repo), repo.refs.all()
    logs = moves(repo, [*refs, "HEAD"])
    labels = repo.labels()
    report = repo.erase("k1", "theirs", all_branches=True)
    assert not report.traces
    assert not report.kept_by
    repo = Repository(store)
    for digits, old in before.items():
        commit = repo.resolve(ObjectId.parse(digits))
        assert repo.resolve(digits) == repo.resolve(digits[:20]) == commit
        found = as_it_was(repo, commit)
        kept = {key: entry for key, entry in old.entries.items() if key not in ("k1", "theirs")}
        parents = tuple(repo.resolve(parent).id for parent in old.parents)
        assert found == old._replace(entries=kept, parents=parents)
    assert repo.refs.all() == {ref: repo.resolve(oid).oid for ref, oid in refs.items()}
    assert moves(repo, [*refs, "HEAD"]) == logs
    assert repo.labels() == labels
    assert objects_of(store) == needed(store)
    sound(store)
    again = repo.erase("k1", "theirs", all_branches=True)
    assert (again.commits, again.versions, again.refs) == (0, 0, ())
