"""Inspection: one check of a whole store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ObjectId
from vstate.objects.room import keep_freed_memory
from vstate.repo.core import Core
from vstate.repo.names.refs import REF, REFLOG
from vstate.repo.objects import kind_of
from vstate.repo.upkeep.damage import LISTED, Damage, Loss, Lost
from vstate.repo.upkeep.gc import UpkeepProgress
from vstate.repo.upkeep.metadata import Metadata, is_foreign, object_id
from vstate.repo.upkeep.salvage import Salvage
from vstate.repo.upkeep.verifier import READERS, Verifier
from vstate.repo.walk import BATCH

_ORPHANS_READ = 16
_REFLOG_READ = 256


class Inspection:
    """One check of a whole store."""

    def __init__(self, repo: Core, full: bool, progress: UpkeepProgress) -> None:
        self.full = full
        self._progress = progress
        self._history = repo.history
        self.salvage = Salvage(repo.store)
        self._store = self.salvage.store
        self.metadata = Metadata(self.salvage, self._found)
        self.damage: list[Damage] = []
        self.damaged = 0
        self._unknown = 0  # damage that no earlier repair has dealt with
        self.orphaned_commits: list[ObjectId] = []
        self.orphans = self.foreign = 0
        self.lost: list[Lost] = []
        self.lost_in_all = 0
        self.broken: list[str] = []
        self.cut: dict[ObjectId, Commit] = {}

    @property
    def ok(self) -> bool:
        """Whether all damage is known from an earlier repair, and all refs and histories are whole."""
        return not (self._unknown or self.broken or self.cut)

    def run(self) -> None:
        """Check everything once."""
        keep_freed_memory()  # each batch of blobs takes the memory of an earlier one
        with ThreadPoolExecutor(1 + READERS) as threads:
            # SQLite and BLAKE3 release the interpreter lock, so these run side by side.
            files = threads.submit(lambda: list(self._store.check())) if self.full else None
            self.verifier = Verifier(
                self.salvage,
                self.metadata.parents,
                self._found,
                whole_blobs=self.full,
                readers=threads,
                progress=lambda count: self._progress("checking", count),
                next_commits=self._next_commits,
                read_ends=self.metadata.read_ends,
            )
            self.metadata.read()
            self.verifier.extend((REF + name, oid) for name, oid in self.metadata.refs.items())
            self._check_reflog()
            self.metadata.find_lost_refs()
            if self.full:
                self._catch_up()
                self._look_at_all_keys()
            self.metadata.check_stamp()
            for text in files.result() if files is not None else ():
                self._found(Damage("", "file", text, readable=True))
        for text in dict.fromkeys(self.salvage.unlisted.values()):
            self._found(Damage("", "file", text))
        self.loss = Loss(self._store, self.metadata.parents, self.verifier.bad)
        self.broken = list(self.metadata.broken)
        if self.damaged:
            refs = self.metadata.refs
            self.broken += [name for name, oid in refs.items() if not self.loss.is_whole(oid)]
            self.lost, self.lost_in_all, self.cut = self.loss.below([*refs.items(), *self._logged_commits()])

    def _next_commits(self, oid: ObjectId) -> Sequence[ObjectId]:
        """The commits before this one, to read with it from a store that is far away."""
        return self._history.names_before(oid, BATCH) if self._store.remote else ()

    def is_outdated(self) -> bool:
        """Whether an object that was missing or damaged is whole by now."""
        for oid in self.verifier.bad:
            if oid in self.verifier.malformed or oid in self.verifier.inconsistent:
                continue
            if self.salvage.kind_of_whole(oid, self.salvage.stored(oid)) is not None:
                return True
        return False

    def _found(self, damage: Damage) -> None:
        if damage.id in self.metadata.lost:
            damage = replace(damage, known=True)
        else:
            self._unknown += 1
        self.damaged += 1
        if len(self.damage) < LISTED:
            self.damage.append(damage)

    def _check_reflog(self) -> None:
        """Check the commits that the reflog names, except those that gc has removed."""
        batch: dict[ObjectId, str] = {}
        for ref, ids in self.metadata.check_lines():
            batch.update({oid: REFLOG + ref for oid in ids if oid not in self.verifier.reached})
            if len(batch) >= _REFLOG_READ:
                self._extend(self._present_commits(batch))
                batch = {}
        self._extend(self._present_commits(batch))

    def _extend(self, roots: Sequence[tuple[str, ObjectId]]) -> None:
        """Check the objects that these commits need. Their histories may have new ends."""
        if roots:
            self.metadata.read_ends()
            self.verifier.extend(roots)

    def _present_commits(self, ids: Mapping[ObjectId, str]) -> list[tuple[str, ObjectId]]:
        rows = self.salvage.rows([OBJECT_PREFIX + oid.hex() for oid in ids])
        found = []
        for oid, ref in ids.items():
            row = rows.get(OBJECT_PREFIX + oid.hex())
            other = isinstance(row, bytes) and kind_of(row) not in (COMMIT, None)
            # A damaged object of another kind has overwritten the commit.
            if row is not None and not (other and self.salvage.kind_of_whole(oid, row) is not None):
                found.append((ref, oid))
        return found

    def _logged_commits(self) -> Iterator[tuple[str, ObjectId]]:
        for ref, ids in self.metadata.lines():
            for oid in ids:
                if oid in self.verifier.reached:
                    yield REFLOG + ref, oid

    def _catch_up(self) -> None:
        """Check the commits that were made meanwhile, so that their objects do not count as orphans."""
        now = Metadata(self.salvage, lambda damage: None)
        now.read()
        new = [(REF + name, oid) for name, oid in now.refs.items() if oid not in self.verifier.reached]
        self._extend(new)

    def _look_at_all_keys(self) -> None:
        """Check the objects that nothing leads to, and count the rows that vstate did not write."""
        orphans: list[ObjectId] = []
        for key in self.salvage.keys(""):
            oid = object_id(key)
            if oid is None:
                self.foreign += is_foreign(key)
            elif oid not in self.verifier.reached:
                orphans.append(oid)
            if len(orphans) == _ORPHANS_READ:
                self._check_orphans(orphans)
                orphans.clear()
        self._check_orphans(orphans)

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
                self.verifier.mark_bad(
                    "object" if kind is None else kind.name, oid, f"{reason}; nothing leads to it"
                )
        self._progress("checking", len(self.verifier.reached) + self.orphans)
