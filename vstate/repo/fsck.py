"""fsck: checking all that a store holds, saying what is lost, and repairing what can be repaired."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vstate.errors import CorruptObject, CorruptStore, InvalidInput
from vstate.kv.encrypted import MARK as ENCRYPTION
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, KINDS, ObjectId
from vstate.repo.damage import Damage, Loss, Lost
from vstate.repo.gc import Progress
from vstate.repo.history import SHALLOW, SHALLOW_FORMAT, parse_shallow_row
from vstate.repo.objects import DAMAGED, PREFIX, TRASH, kind_of
from vstate.repo.policies import PREFIX as POLICY
from vstate.repo.refs import (
    CHECK_DIGITS,
    HEAD,
    HEADS,
    REFLOG,
    SWEEP,
    TAGS,
    Refs,
    check_ref_name,
    line_check,
)
from vstate.repo.refs import PREFIX as REF
from vstate.repo.repository import FORMAT, FORMAT_KEY, SIGNED_COMMITS
from vstate.repo.salvage import Salvage
from vstate.repo.verifier import READ_BYTES, Verifier

if TYPE_CHECKING:
    from vstate.repo.repository import Repository

LISTED = 1000
"""How many damages, and how many losses, a report lists; it counts the others."""

_ATTEMPTS = 3
_ORPHANS_READ = 16
_REFLOG_READ = 256

_ID = re.compile("[0-9a-f]{64}")
_LINE = re.compile(rf"(reflog/(.+):[0-9a-f]{{16}})([0-9a-f]{{{CHECK_DIGITS}}}|[0-9a-f]{{6}})", re.DOTALL)
_SYMBOLIC = b"ref: heads/"
_OTHER_KEYS = (FORMAT_KEY, REF + HEAD, SWEEP, ENCRYPTION)
_OTHER_ROWS = (REF + HEADS, REF + TAGS, REFLOG, SHALLOW, TRASH, DAMAGED, POLICY)


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
    repo: Repository,
    *,
    full: bool = True,
    repair: bool = False,
    progress: Progress | None = None,
) -> FsckReport:
    """As `Repository.fsck` promises."""
    from vstate.repo.repair import Repair  # which knows Inspection

    began = time.monotonic()
    first = last = _inspected(repo, full, progress)
    repaired: list[str] = []
    left: list[str] = []
    if repair and (not first.ok or first.healed):
        work = Repair(repo, first)
        work.run()
        repaired, left = work.done, work.left
        last = _inspected(repo, full, progress)
        left += work.still_broken(last)
    verifier = first.verifier
    return FsckReport(
        ok=last.ok,
        full=full,
        objects={kind.name: verifier.counts[kind] for kind in reversed(KINDS)},
        bytes=verifier.bytes,
        refs=len(first.raw_refs),
        reflog_lines=first.reflog_lines,
        orphans=first.orphans,
        foreign=first.foreign,
        damage=tuple(first.damage),
        damaged=first.damaged,
        lost=tuple(first.lost),
        lost_in_all=first.lost_in_all,
        broken=tuple(last.broken),
        repaired=tuple(repaired),
        left=tuple(left),
        seconds=time.monotonic() - began,
    )


def _inspected(repo: Repository, full: bool, progress: Progress | None) -> Inspection:
    for _ in range(_ATTEMPTS):
        sweep = repo.refs.sweep()
        inspection = Inspection(repo, full, progress or (lambda what, count: None))
        inspection.run()
        if inspection.ok or repo.refs.sweep() == sweep:
            break  # otherwise gc removed something meanwhile, perhaps what is said to be missing
    return inspection


class Inspection:
    """One look at a whole store."""

    def __init__(self, repo: Repository, full: bool, progress: Progress) -> None:
        self._full = full
        self._progress = progress
        self.salvage = Salvage(repo.store)
        self._store = self.salvage.store
        self._line = Refs(self._store).parse_line
        self.damage: list[Damage] = []
        self.damaged = 0
        self._unknown = 0  # damage that no earlier repair has seen to
        self.raw_refs: dict[str, bytes] = {}
        self.refs: dict[str, ObjectId] = {}  # without HEAD when it is on a branch
        self.shallow: dict[ObjectId, tuple[ObjectId, ...]] = {}
        self.bad_rows: list[str] = []  # of the reflog, and of where histories end
        self.stamp: bytes | None = None
        self.needed_format = 0  # what the stamp has to say; 0 when it says so
        self.reflog_lines = self.orphans = self.foreign = 0
        self.lost: list[Lost] = []
        self.lost_in_all = 0
        self.broken: list[str] = []
        self._known: set[str] = set()
        self.healed: list[str] = []  # rows of objects that were moved aside, and are there again

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged but what is known to be lost, and every ref leads to a whole state."""
        return not self._unknown and not self.broken

    def run(self) -> None:
        """Look at everything, once."""
        # glibc gives what is free at the end of its heap back, and faults it in anew for the next batch, until a
        # larger block has been freed once: reading 200 MB took 150 ms of CPU, and takes 55 ms so.
        large = bytearray(4 * READ_BYTES)
        del large
        with ThreadPoolExecutor(2) as threads:
            # SQLite and BLAKE3 leave the interpreter alone while they work, so these do run side by side.
            files = threads.submit(lambda: list(self._store.check())) if self._full else None
            self.verifier = Verifier(
                self.salvage,
                self.parents,
                self._found,
                whole_blobs=self._full,
                reader=threads,
                progress=lambda count: self._progress("checking", count),
            )
            self._read_rows()
            self.verifier.extend((REF + name, oid) for name, oid in self.refs.items())
            self._check_reflog()
            if self._full:
                self._catch_up()
                self._look_at_all_keys()
            self._check_stamp()
            for text in files.result() if files is not None else ():
                self._found(Damage("", "file", text, readable=True))
        self.loss = Loss(self._store, self.parents, self.verifier.bad, self.verifier.bad_links)
        if self.damaged:
            self.broken += [name for name, oid in self.refs.items() if not self.loss.is_whole(oid)]
            starts = [*self.refs.items(), *self._logged_commits()]
            self.lost, self.lost_in_all = self.loss.below(starts, LISTED)

    def parents(self, commit: Commit) -> tuple[ObjectId, ...]:
        """The parents that a commit has here."""
        return self.shallow.get(commit.oid, commit.parents)

    def _found(self, damage: Damage) -> None:
        if damage.id in self._known:
            damage = replace(damage, known=True)
        else:
            self._unknown += 1
        self.damaged += 1
        if len(self.damage) < LISTED:
            self.damage.append(damage)

    # Rows

    def _read_rows(self) -> None:
        self._read_known()
        for key, value in self._store.items(REF):
            name = key.removeprefix(REF)
            if name == HEAD or name.startswith((HEADS, TAGS)):
                self.raw_refs[name] = value
        for name in sorted(self.raw_refs, key=_by_weight):
            self._read_ref(name, self.raw_refs[name])
        for key, value in self._store.items(SHALLOW):
            try:
                commit, kept = parse_shallow_row(key, value)
            except ValueError as error:
                self.bad_rows.append(key)
                self._found(Damage(key, "shallow", f"{key} names no parents: {error}"))
            else:
                self.shallow[commit] = kept

    def _read_known(self) -> None:
        """Which objects are known to be lost, and which of those are there again."""
        aside = [key for key in self._store.keys(DAMAGED) if _ID.fullmatch(key.removeprefix(DAMAGED))]
        for start in range(0, len(aside), _REFLOG_READ):
            digits = [key.removeprefix(DAMAGED) for key in aside[start : start + _REFLOG_READ]]
            there = self._store.present([PREFIX + name for name in digits])
            for name in digits:
                if PREFIX + name in there:
                    self.healed.append(DAMAGED + name)
                else:
                    self._known.add(name)

    def _read_ref(self, name: str, value: bytes) -> None:
        key = REF + name
        if name != HEAD and (fault := _name_fault(name.partition("/")[2])):
            self._found(Damage(key, "ref", fault, readable=True))
        if name == HEAD and value.startswith(_SYMBOLIC):
            branch = value.removeprefix(_SYMBOLIC).decode("utf-8", "replace")
            if fault := _name_fault(branch):
                self.broken.append(name)
                self._found(Damage(key, "ref", fault))
            return
        text = value.decode("ascii", "replace")
        if _ID.fullmatch(text):
            self.refs[name] = ObjectId.parse(text)
            return
        self.broken.append(name)
        self._found(Damage(key, "ref", f"{text[:80]!r} is no id of a commit"))

    def lines(self, ref: str = "") -> Iterator[tuple[str, list[ObjectId]]]:
        """The lines of the reflog that make sense, all or those of a ref: the ref, and the commits named."""
        for key, value in self._store.items(f"{REFLOG}{ref}:" if ref else REFLOG):
            try:
                match = _LINE.fullmatch(key)
                if match is None:
                    raise CorruptStore("", f"{key} has no time")
                # Six digits are from before there was a checksum.
                if len(match[3]) == CHECK_DIGITS and match[3] != line_check(match[1], value):
                    raise CorruptStore("", f"{key} does not say what was written")
                line = self._line(key, value)
                if not isinstance(line.action, str):
                    raise CorruptStore("", f"{key} says no action")
            except CorruptStore as error:
                if not ref:
                    self._bad_line(key, error.reason)
            else:
                yield match[2], [oid for oid in (line.new, line.old) if oid is not None]

    def _bad_line(self, key: str, reason: str) -> None:
        if key not in self.bad_rows:
            self.bad_rows.append(key)
            self._found(Damage(key, "reflog", reason, readable=True))

    def _check_stamp(self) -> None:
        """Check that older programs are told if they would misread the store."""
        self.stamp = self._store.get(FORMAT_KEY)
        needed = 0
        if self.raw_refs:
            needed = max(
                1, SHALLOW_FORMAT if self.shallow else 0, SIGNED_COMMITS if self.verifier.signed else 0
            )
        found = int(self.stamp or b"0")
        if found < needed or found > FORMAT or (self.stamp is not None and not found):
            says = f"says that it has format {found}" if self.stamp else "does not say which format it has"
            self.needed_format = needed or 1
            self._found(Damage(FORMAT_KEY, "format", f"the store {says}, and not {needed}", readable=True))

    # Objects

    def _check_reflog(self) -> None:
        """Check the commits that the reflog names; those that gc has removed are none that are missing."""
        batch: dict[ObjectId, str] = {}
        for ref, ids in self.lines():
            self.reflog_lines += 1
            batch.update({oid: REFLOG + ref for oid in ids if oid not in self.verifier.reached})
            if len(batch) >= _REFLOG_READ:
                self.verifier.extend(self._present_commits(batch))
                batch = {}
        self.verifier.extend(self._present_commits(batch))

    def _present_commits(self, ids: Mapping[ObjectId, str]) -> list[tuple[str, ObjectId]]:
        rows = self.salvage.rows([PREFIX + oid.hex() for oid in ids])
        found = []
        for oid, ref in ids.items():
            row = rows.get(PREFIX + oid.hex())
            if row is not None and not (isinstance(row, bytes) and kind_of(row) not in (COMMIT, None)):
                found.append((ref, oid))
        return found

    def _catch_up(self) -> None:
        """Check what was committed meanwhile too, so that it is not taken for orphans."""
        try:
            now = Refs(self._store).all()
        except CorruptStore:
            return  # a ref that makes no sense, which has been reported
        self.verifier.extend(
            (REF + name, oid) for name, oid in now.items() if oid not in self.verifier.reached
        )

    def _look_at_all_keys(self) -> None:
        """Check the objects that nothing leads to, and count the rows that are not vstate's."""
        orphans: list[ObjectId] = []
        try:
            for key in self._store.keys(""):
                name = key.removeprefix(PREFIX)
                if name != key and _ID.fullmatch(name):
                    oid = ObjectId.parse(name)
                    if oid not in self.verifier.reached:
                        orphans.append(oid)
                elif not key.startswith(_OTHER_ROWS) and key not in _OTHER_KEYS:
                    self.foreign += 1
                if len(orphans) == _ORPHANS_READ:
                    self._check_orphans(orphans)
                    orphans.clear()
        except (CorruptStore, CorruptObject) as error:
            self._found(Damage("", "file", error.reason))
        self._check_orphans(orphans)

    def _check_orphans(self, ids: Sequence[ObjectId]) -> None:
        rows = self.salvage.rows([PREFIX + oid.hex() for oid in ids])
        for oid in ids:
            row = rows.get(PREFIX + oid.hex())
            if row is None:
                continue  # gc has removed it
            self.orphans += 1
            if self.salvage.kind_of_whole(oid, row) is None:
                kind = kind_of(row) if isinstance(row, bytes) else None
                reason = row.reason if not isinstance(row, bytes) else "its content does not match its id"
                self.verifier.lose(
                    "object" if kind is None else kind.name, oid, f"{reason}; nothing leads to it"
                )
        self._progress("checking", len(self.verifier.reached) + self.orphans)

    def _logged_commits(self) -> Iterator[tuple[str, ObjectId]]:
        for ref, ids in self.lines():
            for oid in ids:
                if oid in self.verifier.reached:
                    yield REFLOG + ref, oid


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith('x') else 's'}"


def _by_weight(name: str) -> tuple[int, str]:
    """Branches first, then HEAD, then tags: what several lead to is reported with the first."""
    return (0 if name.startswith(HEADS) else 1 if name == HEAD else 2), name


def _name_fault(name: str) -> str | None:
    try:
        check_ref_name(name)
    except InvalidInput as error:
        return str(error)
    return None
