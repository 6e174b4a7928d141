"""fsck: checks a whole store, reports damage and losses, and repairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from vstate.errors import CorruptObject, CorruptStore, VStateError
from vstate.kv.base import ROOM_PREFIX, room_prefix, split_room
from vstate.objects.ids import KINDS, ObjectId
from vstate.plural import counted
from vstate.repo.core import Core
from vstate.repo.names.refs import HEADS, NEWEST, REF, WITH
from vstate.repo.rooms import ROOM_OF, entry, number_of, prefix_of, room_in
from vstate.repo.upkeep.damage import LISTED, Damage, Lost
from vstate.repo.upkeep.inspection import Inspection
from vstate.repo.upkeep.reach import UpkeepProgress
from vstate.repo.upkeep.repair import Plan, Step, named
from vstate.repo.upkeep.salvage import Row, Salvage

_ATTEMPTS = 3
_MOST_SHOWN = 100  # damages, and losses; the report has a thousand of each


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The findings of `fsck`, and its repairs.

    `ok`: nothing is damaged, or this or an earlier repair has dealt with all damage; values that a repair
    could not save are still in `lost`. `objects` are numbers by kind, `bytes` the bytes of their bodies.
    `orphans` are objects that nothing leads to, `foreign` rows that vstate did not write, `ahead` the commits
    that a clock more than a day ahead dated, and those after them: no damage. `damage` and `lost`
    list the first thousand of `damaged` and `lost_in_all`. `broken` are the refs that lead to a state that
    cannot be read whole. `repaired` lists the repairs that were made, `left` those that could not be made,
    and `plan`, after a check alone, the steps of a repair.
    """

    ok: bool
    full: bool
    objects: Mapping[str, int]
    bytes: int
    refs: int
    reflog_lines: int
    orphans: int
    foreign: int
    ahead: int
    damage: Sequence[Damage]
    damaged: int
    lost: Sequence[Lost]
    lost_in_all: int
    broken: Sequence[str]
    repaired: Sequence[str]
    left: Sequence[str]
    plan: Sequence[str]
    seconds: float

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The report for people, line by line."""
        yield self.summary()
        for title, items, count in (
            ("damaged", self.damage, self.damaged),
            ("lost", self.lost, self.lost_in_all),
            ("repaired", self.repaired, len(self.repaired)),
            ("not repaired", self.left, len(self.left)),
            ("with --repair", self.plan, len(self.plan)),
        ):
            if count:
                yield f"{title}:"
            yield from (f"  {item}" for item in items[:_MOST_SHOWN])
            if count > _MOST_SHOWN:
                more = " (--json lists more)" if len(items) > _MOST_SHOWN else ""
                yield f"  … {count - _MOST_SHOWN:,} more{more}"

    def summary(self) -> str:
        """In one line: the extent of the check, and its result."""
        kinds = ", ".join(counted(number, name) for name, number in self.objects.items())
        looked = f"{kinds}, {counted(self.bytes, 'byte')}" + ("" if self.full else " (blobs not read)")
        others = f"{counted(self.refs, 'ref')}, {counted(self.reflog_lines, 'reflog line')}"
        if self.full:
            others += f", {counted(self.orphans, 'orphan')}"
        if self.foreign:
            others += f", {counted(self.foreign, 'foreign row')}"
        if self.ahead:
            others += f", {counted(self.ahead, 'commit')} after a clock that was ahead"
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
    """As `Repository.fsck` promises, room by room."""
    report = _check(repo if repo.rooms is None else repo.room(0), full=full, repair=repair, progress=progress)
    if repo.rooms is not None:
        # Before the rooms: each puts a lost ref back where no row names it.
        report = _with_names(report, repo, repair, _wrong_entries(repo))
        for number in _numbers(repo):
            own = _check(repo.room(number), full=full, repair=repair, progress=progress)
            report = _joined(report, own, prefix_of(number))
        if repo.index.kept:
            report = _with_names(report, repo, repair, _wrong_index(repo))
    return report


def _check(repo: Core, *, full: bool, repair: bool, progress: UpkeepProgress | None) -> FsckReport:
    """Find the damage of one room, plan the repair, carry it out, and check again."""
    began = time.monotonic()

    def find() -> Inspection:
        return _find(repo, full, repair, progress or (lambda step, count: None))

    first = found = find()
    ok = found.ok
    repaired: list[str] = []
    left: list[str] = []
    if repair and (not ok or found.metadata.healed):
        found, ok, repaired, left = _repair(repo, found, find)
    plan = () if repair or ok else str(Plan(repo, found)).splitlines()
    verifier, metadata = first.verifier, first.metadata
    return FsckReport(
        ok=ok,
        full=full,
        objects={kind.name: verifier.counts[kind] for kind in reversed(KINDS)},
        bytes=verifier.bytes,
        refs=sum(isinstance(row, bytes) for row in metadata.rows.values()),
        reflog_lines=metadata.reflog_lines,
        orphans=first.orphans,
        foreign=first.foreign,
        ahead=verifier.ahead,
        damage=tuple(first.damage[:LISTED]),
        damaged=len(first.damage),
        lost=tuple(first.lost),
        lost_in_all=first.lost_in_all,
        broken=tuple(found.broken),
        repaired=tuple(repaired),
        left=tuple(left),
        plan=tuple(plan),
        seconds=time.monotonic() - began,
    )


def _joined(one: FsckReport, other: FsckReport, room: str) -> FsckReport:
    """Both reports as one. `room` is what the keys of the second one begin with in the store."""
    pairs = {each.name: (getattr(one, each.name), getattr(other, each.name)) for each in fields(one)}
    sums = {name: a + b for name, (a, b) in pairs.items() if name not in ("ok", "full", "objects", "damage")}
    sums["lost"] = sums["lost"][:LISTED]
    damage = [replace(found, id=room + found.id) if "/" in found.id else found for found in other.damage]
    return replace(
        one,
        **sums,
        ok=one.ok and other.ok,
        objects={kind: count + other.objects[kind] for kind, count in one.objects.items()},
        damage=(*one.damage, *damage)[:LISTED],
    )


def _numbers(repo: Core) -> list[int]:
    """The numbers of all rooms that hold something, but 0."""
    keys = Salvage(repo.store).keys(ROOM_PREFIX)
    return sorted({number for key in keys if (number := number_of(split_room(key)[0]))})


def _with_names(report: FsckReport, repo: Core, repair: bool, found: Iterable[_Wrong]) -> FsckReport:
    """The report, with the damage that was found in rows about refs of all rooms."""
    damage: list[Damage] = []
    done: list[str] = []
    plan: list[str] = []
    told = {*report.broken, *(each.id.partition(REF)[2] for each in report.damage)}
    steps = {line.partition(": ")[0] for line in (*report.repaired, *report.left, *report.plan)}
    for wrong in found:
        is_done = repair and wrong.step.work()
        # The index of a branch that is damaged itself is mended without a word.
        if wrong.damage.kind != "index" or not (wrong.ref in told or named(wrong.ref) in steps):
            damage.append(wrong.damage)
            (done if is_done else plan).append(f"{wrong.ref}: {wrong.step.text}")
    return replace(
        report,
        ok=report.ok and not plan,
        damage=(*report.damage, *damage)[:LISTED],
        damaged=report.damaged + len(damage),
        repaired=(*report.repaired, *done),
        left=(*report.left, *(plan if repair else ())),
        plan=(*report.plan, *(() if repair else plan)),
    )


class _Wrong(NamedTuple):
    """A damage of a ref, and what a repair does."""

    ref: str
    damage: Damage
    step: Step


def _wrong_entries(repo: Core) -> Iterator[_Wrong]:
    """The rows that do not name the rooms where refs are, and those that are missing."""
    salvage = Salvage(repo.store)

    def wrong(ref: str, reason: str, step: str, before: bytes | None, after: bytes | None) -> _Wrong:
        damage = Damage(ROOM_OF + ref, "ref", reason, readable=True)
        work = partial(repo.store.compare_and_swap, ROOM_OF + ref, before, after)
        return _Wrong(ref, damage, Step(step, work))

    for key, row in [*salvage.items(ROOM_OF)]:
        if not isinstance(row, bytes) or (number := room_in(row)) is None:
            continue
        ref = key.removeprefix(ROOM_OF)
        if salvage.row(room_prefix(number) + REF + ref) is None and salvage.row(key) == row:
            yield wrong(ref, "a row names a room that lacks it", "delete the row", row, None)
    for number in _numbers(repo):
        start = room_prefix(number) + REF
        for name in [*salvage.keys(start)]:
            ref = name.removeprefix(start)
            rows = salvage.row(ROOM_OF + ref), salvage.row(REF + ref)
            if rows == (None, None) and salvage.row(name) is not None:
                reason = "it lies in a room, and the row that says so is lost"
                yield wrong(ref, reason, "write the row anew", None, entry(number))


def _wrong_index(repo: Core) -> Iterator[_Wrong]:
    """The branches whose rows in the index are not those that they should have."""
    salvage = Salvage(repo.store)
    found: dict[str, dict[str, Row]] = {
        key.removeprefix(prefix): {}
        for prefix in (REF + HEADS, ROOM_OF + HEADS)
        for key in salvage.keys(prefix)
    }
    for key, row in chain(salvage.items(NEWEST), salvage.items(WITH)):
        found.setdefault(key.split("/", 3)[-1], {})[key] = row
    for branch, there in found.items():
        with suppress(CorruptObject, CorruptStore):  # what the rows follow from is damaged
            for _ in range(_ATTEMPTS):
                head = repo.refs.read(HEADS + branch)
                wanted = {} if head is None else repo.index.rows_of(branch, head)
                if there == wanted:
                    break
                now = {key: salvage.row(key) for key in there.keys() | wanted.keys()}
                now = {key: row for key, row in now.items() if row is not None}
                if now == there and repo.refs.read(HEADS + branch) == head:  # nobody is moving it
                    yield _index_damage(repo, branch, head, wanted, there)
                    break
                there = now


def _index_damage(
    repo: Core, branch: str, head: ObjectId | None, wanted: Mapping[str, bytes], there: Mapping[str, Row]
) -> _Wrong:
    writes: dict[str, bytes | None] = dict.fromkeys(there.keys() - wanted.keys())
    writes |= {key: row for key, row in wanted.items() if there.get(key) != row}
    rows = counted(len(writes), "row")
    reason = f"lists may show branch {branch!r} wrongly: {rows} of the index are missing, wrong or too many"
    damage = Damage(min(writes), "index", reason, readable=True)
    ref = HEADS + branch
    place = "" if head is None or repo.rooms is None else prefix_of(repo.rooms.room_of(ref))
    expected = {place + key: row for key, row in repo.refs.condition(ref, head).items()}
    work = partial(repo.store.transact, writes, expected)
    return _Wrong(ref, damage, Step("write its rows in the index anew", work))


def _repair(
    repo: Core, found: Inspection, find: Callable[[], Inspection]
) -> tuple[Inspection, bool, list[str], list[str]]:
    """Repair, and check again: the last findings, whether all is well, the repairs made, and those left."""
    repaired: list[str] = []
    for _ in range(_ATTEMPTS):
        done, left = Plan(repo, found).execute()
        repaired += done
        try:
            found = find()
        except VStateError as error:  # the report still has to list the repairs
            return found, False, repaired, [*left, f"the store cannot be checked again: {error}"]
        told = {line.split(":")[0] for line in left}
        broken = [named(name) for name in found.broken if named(name) not in told]
        left += [f"{name}: the state that it leads to cannot be read whole" for name in broken]
        if not (found.cut and done):
            break  # otherwise the repair has brought back history, which has lost parents of its own
    return found, found.ok, repaired, left


def _find(repo: Core, full: bool, repair: bool, progress: UpkeepProgress) -> Inspection:
    """An inspection beside which `gc` has removed nothing, and, before a repair, no object came back."""
    for _ in range(_ATTEMPTS):
        found = Inspection(repo, full, progress)
        if not (found.verifier.skipped or (repair and found.is_outdated())):
            break
    return found
