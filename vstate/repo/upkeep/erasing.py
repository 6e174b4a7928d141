"""Erasing: remove keys, parts of values and events from whole histories, so that no byte of them stays.

The first commit that holds one of them, and each commit after it, is made anew, with all else as before. Then
the refs of a room, its reflogs and the labels of its branches move to the new commits at once, and a sweep
removes the old commits. Rows under `replaced/` lead from the old ids to the new ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain, takewhile

from vstate.errors import InvalidInput
from vstate.kv.base import OBJECT_PREFIX, batches, batches_by_bytes
from vstate.objects import tree
from vstate.objects.canonical import encode_checked
from vstate.objects.commit import LAST_ORDER, Commit
from vstate.objects.expiry import split_expiry
from vstate.objects.ids import COMMIT, NewObjects, Object, ObjectId
from vstate.plural import counted
from vstate.repo.core import Core
from vstate.repo.history import shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import HEAD, HEADS, LABELS, REF, REFLOG, REMOTES, SWEEP, line_with, ref_of_line
from vstate.repo.names.remotes import Remotes
from vstate.repo.objects import replaced_rows
from vstate.repo.rooms import mark_of, prefix_of
from vstate.repo.rules.labels import parse_labels
from vstate.repo.runs import RECORD, STEP, RunInfo
from vstate.repo.sweeps import Overtaken, arrival, retry_after_sweep, unfinished
from vstate.repo.upkeep.gc import Sweep
from vstate.repo.upkeep.reach import Marks, UpkeepProgress
from vstate.repo.upkeep.selecting import Selection
from vstate.repo.walk import BATCH

_BATCH_BYTES = 4 * 1024 * 1024
_TOGETHER = 1000  # keys in a report, or in a call of the store
_MOST_SHOWN = 20
_WOULD = "would erase", "would make", "move"
_DID = "erased", "made", "moved"
_ELSEWHERE = "clones that others made, bundles, backups, exported files and directories of caches"

Write = Callable[[NewObjects], None]


@dataclass(frozen=True, slots=True)
class EraseReport:
    """The results of `erase`, or with `dry_run` those that a real run would have.

    `keys` are the erased keys, at most a thousand. `versions` counts their different values, `bytes` is the
    size of these values, and `events` counts the erased events. `commits` counts the commits that were made
    anew, and `refs` are the refs that moved to them. `signed` counts the signed commits that this program's
    key signed anew, and `unsigned` those that lost their signature. `objects` counts the removed objects.

    `kept_by` are other refs and reflogs that still lead to the old commits. `held` are the other keys with an
    erased value: it stays there. `beyond` lists the places that `erase` cannot reach. `checked` names the
    files or the store that were searched for the removed objects, and `traces` has a sentence for each find.
    """

    keys: tuple[str, ...]
    versions: int
    bytes: int
    events: int
    commits: int
    refs: tuple[str, ...]
    signed: int
    unsigned: int
    kept_by: tuple[str, ...]
    dry_run: bool
    seconds: float
    objects: int = 0
    held: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    checked: str = ""
    traces: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The report for people, line by line."""
        erased, made, moved = _WOULD if self.dry_run else _DID
        if not self.commits:
            yield "no commit has anything of this to erase"
        else:
            more = "" if len(self.keys) <= _MOST_SHOWN else f" and {len(self.keys) - _MOST_SHOWN:,} more"
            keys = f"{counted(len(self.keys), 'key')}: {', '.join(self.keys[:_MOST_SHOWN])}{more}"
            yield f"{erased} {counted(self.versions, 'version')}, {counted(self.bytes, 'byte')}, of {keys}"
            if self.events:
                yield f"{erased} {counted(self.events, 'event')}"
            refs = ", ".join(self.refs[:_MOST_SHOWN]) or "no ref"
            yield f"{made} {counted(self.commits, 'commit')} anew, and {moved} {refs}"
        if self.signed or self.unsigned:
            yield f"signed commits: {self.signed:,} signed anew, {self.unsigned:,} without their signature"
        if self.kept_by:
            kept = ", ".join(self.kept_by[:_MOST_SHOWN])
            yield f"still in {kept}: name these branches too, or erase from all branches"
        yield from (f"an equal value stays at {where}" for where in self.held[:_MOST_SHOWN])
        yield from (f"not erased: the copies in {place}" for place in self.beyond)
        if self.checked:
            yield f"{self.checked}: {'; '.join(self.traces) or 'found none'}"

    def __str__(self) -> str:
        return "\n".join([*self.lines(), f"({self.seconds:.2f} s)"])


def erase(
    repo: Core,
    selection: Selection,
    branches: Sequence[str] | None,
    *,
    dry_run: bool = False,
    progress: UpkeepProgress | None = None,
) -> EraseReport:
    """As `Repository.erase` promises; from all branches, tags and reflogs if `branches` is None."""
    began = time.monotonic()
    make = partial(Rewrite, repo, selection, dry_run, progress or (lambda step, count: None))
    repo.history.reload()
    work = [
        retry_after_sweep(room, partial(_rewritten, partial(make, room, number, chosen)))
        for number, chosen in _chosen(repo, branches).items()
        for room in [repo if repo.rooms is None else repo.room(number)]
    ]
    for each in () if dry_run else work:
        each.sweep()
    repo.objects.drop()
    repo.history.reload()
    gone = [key for each in work for key in each.gone]
    checked, traces = ("", []) if dry_run else repo.store.scrub(gone)
    counts = sum((each.counts for each in work), Counter[str]())
    if counts["waiting"]:
        traces.append(f"the trash has {counted(counts['waiting'], 'object')}: call again")
    return EraseReport(
        keys=tuple(sorted(selection.keys)[:_TOGETHER]),
        versions=selection.versions,
        bytes=selection.bytes,
        events=counts["events"],
        commits=sum(len(each.new) for each in work),
        refs=tuple(sorted(ref for each in work for ref in each.moved)),
        signed=counts["signed"],
        unsigned=counts["unsigned"],
        kept_by=tuple(dict.fromkeys(chain(*(each.kept_by() for each in work), _copies(repo, work)))),
        objects=counts["removed"],
        held=tuple(sorted({where for each in work for where in each.held})[:_TOGETHER]),
        beyond=(*_remotes(repo), _ELSEWHERE),
        checked=checked and f"searched {checked} for {counted(len(gone), 'object')}",
        traces=tuple(traces),
        dry_run=dry_run,
        seconds=time.monotonic() - began,
    )


def _chosen(repo: Core, branches: Sequence[str] | None) -> dict[int, Set[str] | None]:
    """By number of a room, the refs to erase from; None for all refs."""
    found: dict[int, Set[str] | None] = {}
    if branches is None:
        rooms = [] if repo.rooms is None else [number for number, _ in repo.rooms.listed()]
        return dict.fromkeys([0, *rooms])
    for name in branches:
        repo.branch(name)  # raises if it is absent
        number = 0 if repo.rooms is None else repo.rooms.room_of(HEADS + name)
        found[number] = {HEADS + name, *(found.get(number) or ())}
    return found


def _rewritten(make: Callable[[], Rewrite]) -> Rewrite:
    """Make the commits of a room anew, and move its refs to them."""
    work = make()
    work.look()
    work.extend(work.write)
    if work.is_dry:
        work.rows_of_moves()
    elif work.new:
        work.move_refs()
    return work


class Rewrite:
    """The commits of a room that are made anew, and the refs, lines and labels that name them.

    `new` leads from the old commits to the new ones; `moved` are the refs that follow. In a dry run nothing
    is made, and `new` has the old commits alone. After `sweep`, `gone` has the keys of the objects that were
    removed, and `held` the places of erased values that stay.
    """

    def __init__(
        self,
        repo: Core,
        selection: Selection,
        is_dry: bool,
        progress: UpkeepProgress,
        room: Core,
        number: int,
        chosen: Set[str] | None,
    ) -> None:
        self._repo, self._selection, self.is_dry, self._progress = repo, selection, is_dry, progress
        self.room, self.number, self._chosen = room, number, chosen
        self._sweep = None if is_dry else mark_of(room.store)
        self.new: dict[ObjectId, ObjectId] = {}
        self.first: list[ObjectId] = []
        """The old commits without an older one among them."""
        self._begin = LAST_ORDER  # the order of the oldest of them
        self.moved: list[str] = []
        self.counts = Counter[str]()
        self.gone: Sequence[str] = ()
        self.held: Sequence[str] = ()
        self._is_kept = True  # perhaps: the sweep tells
        self._seen, self._made = IdSet(), IdSet()
        self._roots: dict[ObjectId, ObjectId | None] = {}
        self._ends: dict[str, bytes] = {}
        self._arrived: list[str] = []
        self._late: NewObjects = {}
        self._refs: Mapping[str, ObjectId] = {}
        self._lines: Mapping[str, bytes] = {}

    # Finding

    def look(self) -> None:
        """Read the refs and the lines of the reflogs. Lines of HEAD name commits of every room."""
        self._refs = self.room.refs.all()
        own = self.room.store.items(REFLOG)
        of_head = self._repo.store.items(f"{REFLOG}{HEAD}:") if self.number else ()
        self._lines = dict(chain(own, of_head))

    def _is_chosen(self, ref: str) -> bool:
        return self._chosen is None or ref in self._chosen

    def _follows(self, ref: str) -> bool:
        """Whether a ref and its reflog move to the new commits. Branches that are not named stay."""
        return self._is_chosen(ref) or not (ref.startswith(HEADS) and ref in self._refs)

    def _logged(self, key: str) -> Sequence[ObjectId]:
        return self.room.refs.parse_line(key, self._lines[key]).commits

    def extend(self, write: Write) -> None:
        """Make the commits that were not looked at yet anew, from the oldest on."""
        heads = [oid for ref, oid in self._refs.items() if self._is_chosen(ref)]
        for head in map(self.room.objects.commit, heads):
            self.room.require_trusted(head)
            self._require_no_open_step(head)
        self._extend(heads, write)
        lines = (key for key in self._lines if self._is_chosen(ref_of_line(key)))
        logged = {oid for key in lines for oid in self._logged(key) if oid not in self._seen}
        there = self.room.store.present([*map(_key, logged)])
        self._extend([oid for oid in logged if _key(oid) in there], write)

    def _require_no_open_step(self, head: Commit) -> None:
        """Raise InvalidInput if the record of an open step would go: the next run would do the step again."""
        if (run := RunInfo.of(head)) is None:
            return
        for step in run.open:
            if STEP + step + RECORD in self._selection.changes(self.room.objects, head.root):
                raise InvalidInput(f"step {step!r} of run {run.id!r} is open: resolve it, and then erase it")

    def _extend(self, starts: Sequence[ObjectId], write: Write) -> None:
        history, objects = self.room.history, self.room.objects
        found = [each.oid for each in history.ancestors(*starts, until=self._seen.__contains__)]
        for ids in batches(reversed(found), BATCH):
            self._progress("rewriting", len(self._seen))
            commits, made = history.commits(ids), NewObjects()
            self._selection.read(objects, [each.root for each in commits if each.root is not None])
            for commit in commits:
                self._seen.add(commit.oid)
                self._take(commit, made)
            if made:
                write(made)

    def _take(self, commit: Commit, made: NewObjects) -> None:
        """Make a commit anew if it, or a commit before it, holds something to erase."""
        here = self.room.history.shallow().get(commit.oid, commit.parent_ids)
        follows = any(oid in self.new for oid in (*here, *commit.parent_ids))
        changes = self._selection.changes(self.room.objects, commit.root)
        events = self._selection.left(commit.events)
        if not (follows or changes or len(events) < len(commit.events)):
            return
        self.counts["events"] += len(commit.events) - len(events)
        self._begin = min(self._begin, commit.order)
        if not follows:
            self.first.append(commit.oid)
        if commit.signature is not None:
            self.counts["unsigned" if self.room.security.key is None else "signed"] += 1
        self.new[commit.oid] = commit.oid
        if self.is_dry:
            return
        root = self._tree(commit.root, changes, made)
        parents = tuple(self.new.get(oid, oid) for oid in commit.parent_ids)
        again = replace(commit, root=root, parent_ids=parents, events=events, signature=None)
        if commit.signature is not None:
            again = self.room.security.signed(again)
        self.new[commit.oid] = again.oid
        made[again.oid] = Object(COMMIT, again.body)
        if here != commit.parent_ids:
            key, row = shallow_row(again.oid, [self.new.get(oid, oid) for oid in here])
            self._ends[key] = row

    def _tree(
        self, root: ObjectId | None, changes: Mapping[str, bytes | None], made: NewObjects
    ) -> ObjectId | None:
        """The root of the tree with these changes. Adds its new objects to `made`, each once."""
        if root is None or not changes:
            return root
        if root not in self._roots:
            self._roots[root], objects, _ = tree.update(self.room.objects.node, root, changes)
            for entry in filter(None, changes.values()):
                objects |= self._selection.made.get(entry, {})
            made |= {oid: new for oid, new in objects.items() if self._made.add(oid)}
        return self._roots[root]

    # Writing

    def write(self, made: NewObjects) -> None:
        """Write new objects: commits last, with the row that notes them until a ref leads to them.

        Overtaken if gc has swept meanwhile: it may have removed some of the objects.
        """
        store, rows = self.room.store, self.room.objects.stored(made)
        commits = [oid for oid, new in made.items() if new.kind is COMMIT]
        last = {key: rows.pop(key) for key in map(_key, commits)}
        rows |= self._ends
        self._ends = {}
        limits = {"most_bytes": _BATCH_BYTES, "most": _TOGETHER}
        for some in batches_by_bytes(rows.items(), lambda row: len(row[1]), **limits):
            store.set_many(dict(some))
        arrived = arrival(store, made)
        self._arrived += arrived
        if not store.transact({**last, **arrived}, {SWEEP: self._sweep}):
            raise Overtaken(next(iter(self.new)))

    def move_refs(self) -> None:
        """Move all refs, reflogs and labels at once, also to commits that came meanwhile.

        A store without transactions moves one ref after the other. If the call is cut off, the next one goes
        on.
        """
        store = self.room.store

        def rows() -> Mapping[str, bytes | None]:
            if store.get(SWEEP) != self._sweep:
                raise Overtaken(next(iter(self.new)))
            self.look()
            self.extend(self._late.update)
            moves = {key: row for each in self.rows_of_moves().values() for key, row in each.items()}
            return {**self.room.objects.stored(self._late), **self._ends, **moves}

        if not store.exclusively(rows):
            while not self._move_one_by_one():
                pass
        for ref in self.moved:
            self._repo.index.forget(ref)

    def _move_one_by_one(self) -> bool:
        """False if another writer has moved one of the refs meanwhile."""
        self.look()
        self.extend(self.write)
        for ref, rows in self.rows_of_moves().items():
            old = {REF + ref: self._refs[ref].hex().encode()} if REF + ref in rows else {}
            if not self.room.store.transact(rows, {**old, SWEEP: self._sweep}):
                if self.room.store.get(SWEEP) != self._sweep:
                    raise Overtaken(next(iter(self.new)))
                return False
        return True

    def rows_of_moves(self) -> Mapping[str, Mapping[str, bytes | None]]:
        """The rows to write, by the ref that they move; first, under no name, the rows of all refs."""
        moves: dict[str, dict[str, bytes | None]] = {
            "": {**replaced_rows(self.new), **dict.fromkeys(self._arrived), **unfinished(self.room.store)}
        }
        self.moved = [ref for ref, oid in self._refs.items() if oid in self.new and self._follows(ref)]
        for ref in self.moved:
            moves[ref] = {REF + ref: self.new[self._refs[ref]].hex().encode()}
        for key, row in self._lines.items():
            ref = ref_of_line(key)
            if self._follows(ref) and (rows := line_with(key, row, self.new)):
                moves.setdefault(ref, {}).update(rows)
        named = [LABELS + ref for ref in self._refs if ref.startswith(HEADS) and self._is_chosen(ref)]
        for key, row in self._repo.store.get_many(named).items():
            labels = parse_labels(row)
            if labels.at in self.new:
                again = encode_checked([self.new[labels.at], labels.labels])
                moves.setdefault(key.removeprefix(LABELS), {})[key] = again
        return moves

    # Afterwards

    def sweep(self) -> None:
        """Remove all objects of the room that nothing leads to."""
        room, removed = self.room, set[str]()

        def swept() -> Marks:
            marks, sweep = Marks(room, progress=self._progress), Sweep(room, self._progress)
            marks.begin(lambda key, line: line.commits)
            sweep.removed = removed
            sweep.remove_garbage(marks, timedelta(0))
            self.counts += sweep.counts
            return marks

        marks = retry_after_sweep(room, swept)
        gone = (key for key in removed if ObjectId.parse(key.removeprefix(OBJECT_PREFIX)) not in marks)
        self.gone = [prefix_of(self.number) + key for key in gone]
        self._is_kept = any(oid in marks for oid in self.new)
        self.held = [*self._found(marks)]
        room.objects.drop()

    def _found(self, marks: Marks) -> Iterator[str]:
        """The places where erased values stay: at other keys, or as parts of other values."""
        selection, objects = self._selection, self.room.objects
        seen, found = IdSet(), set[bytes]()
        for ref, oid in marks.refs.items():
            below: list[bytes] = [root for root in [objects.commit(oid).root] if root is not None]
            while below:
                ids, below = [oid for oid in below[-BATCH:] if seen.add(oid)], below[:-BATCH]
                for node in objects.nodes_once(ids):
                    below += node.children()
                    for key, entry in () if node.height else zip(node.keys, node.items, strict=True):
                        value, _ = split_expiry(entry)  # type: ignore[arg-type]  # of a leaf, bytes
                        if value in selection.values:
                            found.update(selection.values[value])
                            yield f"{ref.removeprefix(HEADS)}:{key}"
        parts = {key for oid, key in selection.blobs.items() if oid in marks and oid not in found}
        yield from (f"a part of {key} in other values" for key in parts)

    def kept_by(self) -> Iterator[str]:
        """The refs and reflogs that still lead to an old commit."""
        if not (self.new and self._is_kept):
            return
        room, clean, found = self.room, IdSet(), set[str]()
        room.history.reload()
        self.look()
        tips = [(ref, ref, oid) for ref, oid in self._refs.items()]
        logs = ((ref_of_line(key), self._logged(key)) for key in self._lines)
        tips += [(ref, f"the reflog of {ref}", oid) for ref, logged in logs for oid in logged]
        for ref, who, oid in tips:
            is_left = ref not in found and oid not in clean and not (oid in self.new and self._follows(ref))
            if not (is_left and room.objects.is_stored(oid)):
                continue
            walk = room.history.ancestors(oid, until=clean.__contains__)
            passed = [each.oid for each in takewhile(lambda each: each.order >= self._begin, walk)]
            if any(each in self.new for each in passed):
                found.add(ref)
                yield who.removeprefix(HEADS)
            else:
                for each in passed:
                    clean.add(each)


def _key(oid: ObjectId) -> str:
    return OBJECT_PREFIX + oid.hex()


def _copies(repo: Core, work: Sequence[Rewrite]) -> Iterator[str]:
    """The refs of other rooms with copies of old commits."""
    first = [oid for each in work for oid in each.first[:BATCH]]
    if repo.rooms is None or not first:
        return
    done = {each.number for each in work}
    others = (number for number in chain([0], repo.rooms.numbers()) if number not in done)
    names = ((prefix_of(number) + _key(oid), number) for number in others for oid in first)
    for some in batches(names, _TOGETHER):
        there = repo.store.present([name for name, _ in some])
        for number in dict.fromkeys(number for name, number in some if name in there):
            yield from (ref.removeprefix(HEADS) for ref in repo.room(number).refs.all())


def _remotes(repo: Core) -> Iterator[str]:
    """The remotes of the store, with the time of the last exchange; the server of the store."""
    for name, url in Remotes(repo.store).list().items():
        refs = [f"{REMOTES}{name}/{branch}" for branch in repo.refs.names(f"{REMOTES}{name}/")]
        last = [line.time for ref in refs if (line := next(repo.refs.reflog(ref), None)) is not None]
        when = "in sync before the reflog begins" if refs else "never in sync"
        when = f"last in sync {max(last):%Y-%m-%d %H:%M} UTC" if last else when
        yield f"the remote {name} ({url}), {when}"
    if repo.store.remote:
        yield f"the logs, replicas and snapshots of the server of {repo.store.location}"
