"""fsck: checks a whole store, reports damage and losses, and repairs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from vstate.errors import CorruptStore, VStateError
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.ids import COMMIT, KINDS, ObjectId
from vstate.repo.core import Core
from vstate.repo.names.refs import REF, REFLOG, Sweep
from vstate.repo.objects import kind_of
from vstate.repo.upkeep.damage import Damage, Loss, Lost
from vstate.repo.upkeep.gc import UpkeepProgress
from vstate.repo.upkeep.metadata import Metadata, is_foreign, object_id
from vstate.repo.upkeep.repair import Repair
from vstate.repo.upkeep.salvage import Salvage
from vstate.repo.upkeep.verifier import READERS, Verifier

LISTED = 1000
"""How many damages, and how many losses, a report lists. It counts the others."""

_ATTEMPTS = 3
_ORPHANS_READ = 16
_REFLOG_READ = 256


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The findings of `fsck`, and its repairs.

    `ok`: nothing is damaged, or this or an earlier repair has dealt with all damage; values that a repair
    could not save are still in `lost`. `objects` are numbers by kind, `bytes` the bytes of their bodies.
    `orphans` are objects that nothing leads to, `foreign` rows that vstate did not write. `damage` and `lost`
    list the first thousand of `damaged` and `lost_in_all`. `broken` are the refs that lead to a state that
    cannot be read whole. `repaired` lists the repairs that were made, `left` those that could not be made.
    """

    ok: bool
    full: bool
    objects: Mapping[str, int]
    bytes: int
    refs: int
    reflog_lines: int
    orphans: int
    foreign: int
    damage: Sequence[Damage]
    damaged: int
    lost: Sequence[Lost]
    lost_in_all: int
    broken: Sequence[str]
    repaired: Sequence[str]
    left: Sequence[str]
    seconds: float

    def __str__(self) -> str:
        lines = [self.summary()]
        for title, items, count in (
            ("damage", self.damage, self.damaged),
            ("lost", self.lost, self.lost_in_all),
            ("repaired", self.repaired, len(self.repaired)),
            ("left", self.left, len(self.left)),
        ):
            lines += [f"{title}: {item}" for item in items]
            if count > len(items):
                lines.append(f"{title}: and {count - len(items):,} more")
        return "\n".join(lines)

    def summary(self) -> str:
        """In one line: the extent of the check, and its result."""
        kinds = ", ".join(_counted(count, name) for name, count in self.objects.items())
        looked = f"{kinds}, {self.bytes:,} bytes" + ("" if self.full else " (blobs not read)")
        others = f"{_counted(self.refs, 'ref')}, {_counted(self.reflog_lines, 'reflog line')}"
        if self.full:
            others += f", {_counted(self.orphans, 'orphan')}"
        if self.foreign:
            others += f", {_counted(self.foreign, 'foreign row')}"
        state = "nothing is damaged" if not self.damaged else f"{self.damaged:,} damaged"
        if self.repaired:
            state += " before the repair; " + ("all is well now" if self.ok else "some still are")
        elif self.damaged and self.ok:
            state += ", all known from an earlier repair"
        return f"{looked}; {others}: {state} ({self.seconds:.2f} s)"


def check(
    repo: Core,
    *,
    full: bool = True,
    repair: bool = False,
    progress: UpkeepProgress | None = None,
) -> FsckReport:
    """As `Repository.fsck` promises."""
    began = time.monotonic()
    first = _inspected(repo, full, progress)
    ok, broken = first.ok, first.broken
    repaired: list[str] = []
    left: list[str] = []
    if repair and (not first.ok or first.metadata.healed):
        for _ in range(_ATTEMPTS):
            if not first.is_outdated():
                break
            first = _inspected(repo, full, progress)
        ok, broken, repaired, left = _repaired(repo, first, full, progress)
    verifier = first.verifier
    return FsckReport(
        ok=ok,
        full=full,
        objects={kind.name: verifier.counts[kind] for kind in reversed(KINDS)},
        bytes=verifier.bytes,
        refs=len(first.metadata.raw_refs),
        reflog_lines=first.metadata.reflog_lines,
        orphans=first.orphans,
        foreign=first.foreign,
        damage=tuple(first.damage),
        damaged=first.damaged,
        lost=tuple(first.lost),
        lost_in_all=first.lost_in_all,
        broken=tuple(broken),
        repaired=tuple(repaired),
        left=tuple(left),
        seconds=time.monotonic() - began,
    )


def _repaired(
    repo: Core, found: Inspection, full: bool, progress: UpkeepProgress | None
) -> tuple[bool, list[str], list[str], list[str]]:
    """Repair; whether all is well now, the refs still broken, the repairs made, and those not made."""
    done: list[str] = []
    for _ in range(_ATTEMPTS):
        work = Repair(repo, found)
        work.run()
        done += work.done
        try:
            found = _inspected(repo, full, progress)
        except VStateError as error:  # the report still has to list the repairs
            return False, found.broken, done, [*work.left, f"the store cannot be checked again: {error}"]
        if not (found.verifier.cut and work.done):
            break  # otherwise the repair has brought back history, which has lost parents of its own
    return found.ok, found.broken, done, work.left + work.still_broken(found)


def _inspected(repo: Core, full: bool, progress: UpkeepProgress | None) -> Inspection:
    for _ in range(_ATTEMPTS):
        sweep = _sweep(repo)
        inspection = Inspection(repo, full, progress or (lambda step, count: None))
        inspection.run()
        if inspection.ok or _sweep(repo) == sweep:
            break  # otherwise gc may have removed the missing objects meanwhile
    return inspection


def _sweep(repo: Core) -> Sweep | None:
    try:
        return repo.refs.sweep()
    except CorruptStore:
        return None  # the inspection reports it


class Inspection:
    """One check of a whole store."""

    def __init__(self, repo: Core, full: bool, progress: UpkeepProgress) -> None:
        self.full = full
        self._progress = progress
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

    @property
    def ok(self) -> bool:
        """Whether all damage is known from an earlier repair, and all refs and histories are whole."""
        return not (self._unknown or self.broken or self.verifier.cut)

    def run(self) -> None:
        """Check everything once."""
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
            )
            self.metadata.read()
            self.verifier.extend((REF + name, oid) for name, oid in self.metadata.refs.items())
            self._check_reflog()
            self.metadata.find_lost_refs()
            if self.full:
                self._catch_up()
                self._look_at_all_keys()
            self.metadata.check_stamp(signed=self.verifier.signed, expiring=self.verifier.expiring)
            for text in files.result() if files is not None else ():
                self._found(Damage("", "file", text, readable=True))
        for text in dict.fromkeys(self.salvage.unlisted.values()):
            self._found(Damage("", "file", text))
        self.loss = Loss(self._store, self.metadata.parents, self.verifier.bad, self.verifier.bad_links)
        self.broken = list(self.metadata.broken)
        if self.damaged:
            refs = self.metadata.refs
            self.broken += [name for name, oid in refs.items() if not self.loss.is_whole(oid)]
            self.lost, self.lost_in_all = self.loss.below([*refs.items(), *self._logged_commits()], LISTED)

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


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith('x') else 's'}"
