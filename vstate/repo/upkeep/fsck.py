"""fsck: checking all that a store holds, saying what is lost, and repairing what can be repaired."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from vstate.errors import CorruptStore, VStateError
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.ids import COMMIT, ID_BYTES, KINDS, ObjectId
from vstate.repo.core import Core
from vstate.repo.names.refs import REF, REFLOG, Sweep
from vstate.repo.objects import kind_of
from vstate.repo.upkeep.damage import Damage, Loss, Lost
from vstate.repo.upkeep.gc import Progress
from vstate.repo.upkeep.metadata import Rows, is_foreign, object_id
from vstate.repo.upkeep.repair import Repair
from vstate.repo.upkeep.salvage import Salvage
from vstate.repo.upkeep.verifier import READERS, Verifier

LISTED = 1000
"""How many damages, and how many losses, a report lists; it counts the others."""

_ATTEMPTS = 3
_ORPHANS_READ = 16
_REFLOG_READ = 256


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What `fsck` found and did.

    `ok`: nothing is damaged, or all that was is repaired, or was so by an earlier repair; what that could not
    save is still in `lost`. `objects` are counted by kind, `bytes` are those of their bodies; `orphans` are
    objects that nothing leads to, `foreign` rows that are not vstate's. `damage` and `lost` list the first
    thousand of `damaged` and `lost_in_all`. `broken` are the refs that lead to a state that cannot be read
    whole. `repaired` and `left` say what repair did and could not do.
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
        """In one line: what was checked, and whether it is whole."""
        kinds = ", ".join(_counted(count, name) for name, count in self.objects.items())
        looked = f"{kinds}, {self.bytes:,} bytes" + ("" if self.full else " (blobs not read)")
        others = f"{_counted(self.refs, 'ref')}, {_counted(self.reflog_lines, 'reflog line')}"
        if self.full:
            others += f", {_counted(self.orphans, 'orphan')}"
        if self.foreign:
            others += f", {_counted(self.foreign, 'foreign row')}"
        state = "nothing is damaged" if not self.damaged else f"{self.damaged:,} damaged"
        if self.repaired:
            state += " before the repair, and now " + ("all is well" if self.ok else "some still are")
        elif self.damaged and self.ok:
            state += ", all of which an earlier repair has seen to"
        return f"{looked}; {others}: {state} ({self.seconds:.2f} s)"


def check(
    repo: Core,
    *,
    full: bool = True,
    repair: bool = False,
    progress: Progress | None = None,
) -> FsckReport:
    """As `Repository.fsck` promises."""
    began = time.monotonic()
    first = _inspected(repo, full, progress)
    ok, broken = first.ok, first.broken
    repaired: list[str] = []
    left: list[str] = []
    if repair and (not first.ok or first.rows.healed):
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
        refs=len(first.rows.raw_refs),
        reflog_lines=first.rows.reflog_lines,
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
    repo: Core, found: Inspection, full: bool, progress: Progress | None
) -> tuple[bool, list[str], list[str], list[str]]:
    """Repair what was found: whether all is well now, the refs that are broken still, and what repair says."""
    done: list[str] = []
    for _ in range(_ATTEMPTS):
        work = Repair(repo, found)
        work.run()
        done += work.done
        try:
            found = _inspected(repo, full, progress)
        except VStateError as error:  # what was done is not to be lost with it
            return False, found.broken, done, [*work.left, f"it cannot be checked again: {error}"]
        if not (found.verifier.cut and work.done):
            break  # otherwise history that is there again has ends of its own
    return found.ok, found.broken, done, work.left + work.still_broken(found)


def _inspected(repo: Core, full: bool, progress: Progress | None) -> Inspection:
    for _ in range(_ATTEMPTS):
        sweep = _sweep(repo)
        inspection = Inspection(repo, full, progress or (lambda what, count: None))
        inspection.run()
        if inspection.ok or _sweep(repo) == sweep:
            break  # otherwise gc removed something meanwhile, perhaps what is said to be missing
    return inspection


def _sweep(repo: Core) -> Sweep | None:
    try:
        return repo.refs.sweep()
    except CorruptStore:
        return None  # which the inspection finds, too


class Inspection:
    """One look at a whole store."""

    def __init__(self, repo: Core, full: bool, progress: Progress) -> None:
        self.full = full
        self._progress = progress
        self.salvage = Salvage(repo.store)
        self._store = self.salvage.store
        self.rows = Rows(self.salvage, self._found)
        self.damage: list[Damage] = []
        self.damaged = 0
        self._unknown = 0  # damage that no earlier repair has seen to
        self.orphaned_commits: list[ObjectId] = []
        self.orphans = self.foreign = 0
        self.lost: list[Lost] = []
        self.lost_in_all = 0
        self.broken: list[str] = []

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged but what is known to be lost, every ref leads to a whole state, and
        every history can be walked.
        """
        return not (self._unknown or self.broken or self.verifier.cut)

    def run(self) -> None:
        """Look at everything, once."""
        with ThreadPoolExecutor(1 + READERS) as threads:
            # SQLite and BLAKE3 leave the interpreter alone while they work, so these do run side by side.
            files = threads.submit(lambda: list(self._store.check())) if self.full else None
            self.verifier = Verifier(
                self.salvage,
                self.rows.parents,
                self._found,
                whole_blobs=self.full,
                readers=threads,
                progress=lambda count: self._progress("checking", count),
            )
            self.rows.read()
            self.verifier.extend((REF + name, oid) for name, oid in self.rows.refs.items())
            self._check_reflog()
            self.rows.find_lost_refs()
            if self.full:
                self._catch_up()
                self._look_at_all_keys()
            self.rows.check_stamp(signed=self.verifier.signed, expiring=self.verifier.expiring)
            for text in files.result() if files is not None else ():
                self._found(Damage("", "file", text, readable=True))
        for text in dict.fromkeys(self.salvage.unlisted.values()):
            self._found(Damage("", "file", text))
        self.loss = Loss(self._store, self.rows.parents, self.verifier.bad, self.verifier.bad_links)
        self.broken = list(self.rows.broken)
        if self.damaged:
            refs = self.rows.refs
            self.broken += [name for name, oid in refs.items() if not self.loss.is_whole(oid)]
            self.lost, self.lost_in_all = self.loss.below([*refs.items(), *self._logged_commits()], LISTED)

    def is_outdated(self) -> bool:
        """Whether an object that was missing or damaged is whole by now."""
        ids = self.verifier.bad_ids
        for start in range(0, len(ids), ID_BYTES):
            oid = ObjectId(ids[start : start + ID_BYTES])
            if oid in self.verifier.nonsense or oid in self.verifier.misleading:
                continue
            if self.salvage.kind_of_whole(oid, self.salvage.stored(oid)) is not None:
                return True
        return False

    def _found(self, damage: Damage) -> None:
        if damage.id in self.rows.lost:
            damage = replace(damage, known=True)
        else:
            self._unknown += 1
        self.damaged += 1
        if len(self.damage) < LISTED:
            self.damage.append(damage)

    def _check_reflog(self) -> None:
        """Check the commits that the reflog names; those that gc has removed are none that are missing."""
        batch: dict[ObjectId, str] = {}
        for ref, ids in self.rows.check_lines():
            batch.update({oid: REFLOG + ref for oid in ids if oid not in self.verifier.reached})
            if len(batch) >= _REFLOG_READ:
                self._extend(self._present_commits(batch))
                batch = {}
        self._extend(self._present_commits(batch))

    def _extend(self, roots: Sequence[tuple[str, ObjectId]]) -> None:
        """Check also what these commits need, which were found after histories were looked at."""
        if roots:
            self.rows.read_ends()
            self.verifier.extend(roots)

    def _present_commits(self, ids: Mapping[ObjectId, str]) -> list[tuple[str, ObjectId]]:
        rows = self.salvage.rows([OBJECT_PREFIX + oid.hex() for oid in ids])
        found = []
        for oid, ref in ids.items():
            row = rows.get(OBJECT_PREFIX + oid.hex())
            other = isinstance(row, bytes) and kind_of(row) not in (COMMIT, None)
            # What is in its place, and not what its id says, is a commit that was overwritten.
            if row is not None and not (other and self.salvage.kind_of_whole(oid, row) is not None):
                found.append((ref, oid))
        return found

    def _logged_commits(self) -> Iterator[tuple[str, ObjectId]]:
        for ref, ids in self.rows.lines():
            for oid in ids:
                if oid in self.verifier.reached:
                    yield REFLOG + ref, oid

    def _catch_up(self) -> None:
        """Check what was committed meanwhile too, so that it is not taken for orphans."""
        now = Rows(self.salvage, lambda damage: None)
        now.read()
        new = [(REF + name, oid) for name, oid in now.refs.items() if oid not in self.verifier.reached]
        self._extend(new)

    def _look_at_all_keys(self) -> None:
        """Check the objects that nothing leads to, and count the rows that are not vstate's."""
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
                self.verifier.lose(
                    "object" if kind is None else kind.name, oid, f"{reason}; nothing leads to it"
                )
        self._progress("checking", len(self.verifier.reached) + self.orphans)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith('x') else 's'}"
