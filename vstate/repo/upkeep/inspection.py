"""Inspection: one check of a whole store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ObjectId
from vstate.objects.stream import keep_freed_memory
from vstate.repo.core import Core
from vstate.repo.idset import IdList
from vstate.repo.names.refs import REF, REFLOG
from vstate.repo.objects import kind_of
from vstate.repo.upkeep.damage import Damage, Loss, Lost
from vstate.repo.upkeep.metadata import Metadata, is_foreign, object_id
from vstate.repo.upkeep.reach import UpkeepProgress
from vstate.repo.upkeep.salvage import Salvage, Unreadable
from vstate.repo.upkeep.verifier import Verifier
from vstate.repo.walk import BATCH

_ORPHANS_READ = 16


class Inspection:
    """One check of a whole store: all damage, and the keys that are lost by it.

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
                self.metadata,
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
            self._tell_losses()

    def _tell_losses(self) -> None:
        refs = self.metadata.refs
        self.broken += [name for name, oid in refs.items() if not self.loss.is_whole(oid)]
        logged = (
            (REFLOG + ref, oid)
            for ref, line in self.metadata.lines()
            for oid in line.commits
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
        lines = self.metadata.lines(check=True)
        self._extend((REFLOG + ref, oid) for ref, line in lines for oid in line.commits)
        self.metadata.compare_with_reflogs()
        if self.full:
            # The commits that were made meanwhile, so that their objects do not count as orphans.
            now = Metadata(self.salvage, lambda damage: None)
            now.read_refs()
            self._extend((REF + name, oid) for name, oid in now.refs.items())
            self._check_orphans()
        self.metadata.check_stamp()

    def _extend(self, commits: Iterable[tuple[str, ObjectId]]) -> None:
        """Check the objects that these commits need too, each with the row that names it."""
        new = {oid: row for row, oid in commits if oid not in self.verifier.reached}
        if new:
            self.metadata.read_ends()  # their histories may have new ends
            self.verifier.extend((row, oid) for oid, row in new.items())

    def _check_orphans(self) -> None:
        """Check the objects that nothing leads to, and count the rows that vstate did not write."""
        orphans = IdList()
        for key in self.salvage.keys(""):
            oid = object_id(key)
            if oid is None:
                self.foreign += is_foreign(key)
            elif oid not in self.verifier.reached:
                orphans.add(oid)
        ids = iter(orphans)
        while batch := list(islice(ids, _ORPHANS_READ)):
            rows = self.salvage.rows([OBJECT_PREFIX + oid.hex() for oid in batch])
            for oid in batch:
                row = rows.get(OBJECT_PREFIX + oid.hex())
                if row is not None:  # gc has not removed it
                    self._check_orphan(oid, row)
            self._progress("checking", len(self.verifier.reached) + self.orphans)

    def _check_orphan(self, oid: ObjectId, row: bytes | Unreadable) -> None:
        self.orphans += 1
        kind = self.salvage.kind_of_whole(oid, row)
        if kind is COMMIT:
            self.orphaned_commits.append(oid)
        elif kind is None:
            found = kind_of(row) if isinstance(row, bytes) else None
            reason = "its content does not match its id" if isinstance(row, bytes) else row.reason
            self.verifier.mark_bad(found.name if found else "object", oid, f"{reason}; nothing leads to it")
