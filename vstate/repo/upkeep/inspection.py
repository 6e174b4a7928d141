"""Inspection: one check of a whole store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ObjectId
from vstate.objects.room import keep_freed_memory
from vstate.repo.core import Core
from vstate.repo.names.refs import REF, REFLOG
from vstate.repo.objects import kind_of
from vstate.repo.upkeep.damage import Damage, Loss, Lost
from vstate.repo.upkeep.gc import UpkeepProgress
from vstate.repo.upkeep.metadata import Metadata, commits_in, is_foreign, object_id
from vstate.repo.upkeep.salvage import Salvage
from vstate.repo.upkeep.verifier import Verifier
from vstate.repo.walk import BATCH

_ORPHANS_READ = 16
_REFLOG_READ = 256


class Inspection:
    """One check of a whole store: everything that is wrong, and what is lost by it.

    `damage` are all findings, and `lost` and `cut` what `Loss.below` makes of them. `broken` are the refs
    that lead to a state that cannot be read whole. `metadata`, `verifier` and `loss` tell more.
    """

    def __init__(self, repo: Core, full: bool, progress: UpkeepProgress) -> None:
        self.full = full
        self._progress = progress
        self.salvage = Salvage(repo.store)
        self.metadata = Metadata(self.salvage, self._found)
        self.damage: list[Damage] = []
        self.orphaned_commits: list[ObjectId] = []
        self.orphans = self.foreign = 0
        self.lost: Sequence[Lost] = ()
        self.lost_in_all = 0
        self.cut: Mapping[ObjectId, Commit] = {}
        keep_freed_memory()  # each batch of blobs takes the memory of an earlier one
        with ThreadPoolExecutor(1) as threads:
            # SQLite and BLAKE3 release the interpreter lock, so this runs beside the rest.
            files = threads.submit(lambda: list(self.salvage.store.check() if full else ()))
            self.verifier = Verifier(
                self.salvage,
                self.metadata.parents,
                self._found,
                whole_blobs=full,
                progress=lambda count: progress("checking", count),
                # From a store that is far away the commits before each are read with it.
                next_commits=lambda oid: repo.history.names_before(oid, BATCH) if repo.store.remote else (),
            )
            self._check()
            for text in files.result():
                self._found(Damage("", "file", text, readable=True))
        for text in dict.fromkeys(self.salvage.unlisted.values()):
            self._found(Damage("", "file", text))
        self.loss = Loss(self.salvage.store, self.metadata.parents, self.verifier.bad)
        self.broken = list(self.metadata.broken)
        if self.damage:
            refs = self.metadata.refs
            self.broken += [name for name, oid in refs.items() if not self.loss.is_whole(oid)]
            logged = (
                (REFLOG + ref, oid)
                for ref, line in self.metadata.lines()
                for oid in commits_in(line)
                if oid in self.verifier.reached
            )
            self.lost, self.lost_in_all, self.cut = self.loss.below([*refs.items(), *logged])

    @property
    def ok(self) -> bool:
        """Whether all damage is known from an earlier repair, and all refs and histories are whole."""
        return all(damage.known for damage in self.damage) and not (self.broken or self.cut)

    def is_outdated(self) -> bool:
        """Whether an object that was missing or damaged is whole by now."""
        return any(
            self.salvage.kind_of_whole(oid, self.salvage.stored(oid)) is not None
            for oid in self.verifier.bad
            if oid not in self.verifier.malformed and oid not in self.verifier.inconsistent
        )

    def _found(self, damage: Damage) -> None:
        self.damage.append(replace(damage, known=damage.id in self.metadata.lost))

    def _check(self) -> None:
        self.metadata.read()
        self.verifier.extend((REF + name, oid) for name, oid in self.metadata.refs.items())
        self._check_reflog()
        self.metadata.compare_with_reflogs()
        if self.full:
            # The commits that were made meanwhile, so that their objects do not count as orphans.
            now = Metadata(self.salvage, lambda damage: None)
            now.read()
            self._extend({oid: REF + name for name, oid in now.refs.items()})
            self._look_at_all_keys()
        self.metadata.check_stamp()

    def _check_reflog(self) -> None:
        """Check the commits that the reflog names, except those that gc has removed."""
        batch: dict[ObjectId, str] = {}
        for ref, ids in self.metadata.check_lines():
            batch.update({oid: REFLOG + ref for oid in ids if oid not in self.verifier.reached})
            if len(batch) >= _REFLOG_READ:
                self._extend(self._present(batch))
                batch = {}
        self._extend(self._present(batch))

    def _present(self, commits: Mapping[ObjectId, str]) -> Mapping[ObjectId, str]:
        rows = self.salvage.rows([OBJECT_PREFIX + oid.hex() for oid in commits])
        found = {}
        for oid, name in commits.items():
            row = rows.get(OBJECT_PREFIX + oid.hex())
            # Also a commit that another object was written over. A repair may log an id of no commit.
            if row is not None and self.salvage.kind_of_whole(oid, row) in (COMMIT, None):
                found[oid] = name
        return found

    def _extend(self, commits: Mapping[ObjectId, str]) -> None:
        """Check the objects that these commits need, by the rows that name them."""
        roots = [(name, oid) for oid, name in commits.items() if oid not in self.verifier.reached]
        if roots:
            self.metadata.read_ends()  # their histories may have new ends
            self.verifier.extend(roots)

    def _look_at_all_keys(self) -> None:
        """Check the objects that nothing leads to, and count the rows that vstate did not write."""
        keys = self.salvage.keys("")
        while batch := list(islice(keys, BATCH)):
            ids = {key: object_id(key) for key in batch}
            self.foreign += sum(oid is None and is_foreign(key) for key, oid in ids.items())
            orphans = [oid for oid in ids.values() if oid is not None and oid not in self.verifier.reached]
            for begin in range(0, len(orphans), _ORPHANS_READ):
                self._check_orphans(orphans[begin : begin + _ORPHANS_READ])

    def _check_orphans(self, ids: Sequence[ObjectId]) -> None:
        rows = self.salvage.rows([OBJECT_PREFIX + oid.hex() for oid in ids])
        for oid in ids:
            row = rows.get(OBJECT_PREFIX + oid.hex())
            if row is None:
                continue  # gc has removed it
            self.orphans += 1
            whole = self.salvage.kind_of_whole(oid, row)
            if whole is COMMIT:
                self.orphaned_commits.append(oid)
            if whole is None:
                kind = kind_of(row) if isinstance(row, bytes) else None
                reason = row.reason if not isinstance(row, bytes) else "its content does not match its id"
                name = "object" if kind is None else kind.name
                self.verifier.mark_bad(name, oid, f"{reason}; nothing leads to it")
        self._progress("checking", len(self.verifier.reached) + self.orphans)
