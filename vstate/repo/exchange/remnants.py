"""Remnants: commits that no ref and no reflog leads to, and that gc is removing piece by piece."""

from __future__ import annotations

from itertools import chain

from vstate.kv.base import KVStore
from vstate.objects.ids import ObjectId
from vstate.repo.history import History
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import Refs
from vstate.repo.upkeep.damage import Loss
from vstate.repo.upkeep.metadata import Metadata, commits_in
from vstate.repo.upkeep.salvage import Salvage


class Remnants:
    """Tells remnants from other commits of a store.

    A remnant may lack objects: no history continues with it.
    """

    def __init__(self, store: KVStore, history: History) -> None:
        self._store = store
        self._history = history
        self._kept: IdSet | None = None

    def __contains__(self, oid: ObjectId) -> bool:
        """Whether a commit of the store is a remnant. The first call walks all histories of the store."""
        if self._kept is None:
            self._kept = self._find_kept()
        return oid not in self._kept

    def _find_kept(self) -> IdSet:
        salvage = Salvage(self._store)
        lines = Metadata(salvage, lambda damage: None).lines()
        logged = chain.from_iterable(commits_in(line) for _, line in lines)
        kept = IdSet()
        loss = Loss(salvage.store, self._history.parents)
        for _ in loss.ancestors(*Refs(self._store).all().values(), *logged, seen=kept):
            pass
        return kept
