"""Repair: makes a damaged store usable again, and throws nothing away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from vstate.errors import AlreadyExists, CorruptObject, CorruptStore
from vstate.forks import cached_property
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.core import FORMAT, FORMAT_KEY, Core
from vstate.repo.history import shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import DEFAULT_BRANCH, HEAD, HEADS, REF, TAGS, ReflogEntry
from vstate.repo.objects import DAMAGED, INCONSISTENT, TRASH
from vstate.repo.upkeep.inspection import Inspection
from vstate.repo.upkeep.metadata import commits_in
from vstate.repo.upkeep.salvage import Row, Salvage

ACTION = "fsck: repaired"


class Step(NamedTuple):
    """A step of a plan: the line that reports it, the work, and the line if the work found things changed.

    The work writes only where rows are as the inspection found them, and returns whether it wrote.
    """

    text: str
    work: Callable[[], bool]
    otherwise: str = ""


class Plan:
    """The steps that mend what an inspection found, and lines on the damage that is `left`.

    To make a plan writes nothing; `str` lists its steps. If `execute` is interrupted, the store is no worse,
    and the next plan goes on.
    """

    def __init__(self, repo: Core, found: Inspection) -> None:
        self._repo = repo
        self._found = found
        self._salvage = found.salvage
        self._metadata = found.metadata
        self._loss = found.loss
        self._writer = _Writer(repo, found.salvage)
        self._refs = {name: oid for name, oid in self._metadata.refs.items() if name not in found.broken}
        """Where the refs are after the repair."""
        self.left: list[str] = []
        self.steps: list[Step] = [
            *self._set_rows_aside(),
            *self._mend_refs(),
            *self._set_objects_aside(),
            *self._cut_histories(),
            *self._forget_healed(),
        ]

    def __str__(self) -> str:
        return "\n".join([*dict.fromkeys(step.text for step in self.steps), *self.left])

    def execute(self) -> tuple[list[str], list[str]]:
        """Do the steps; the lines on those that were done, and on what is left."""
        done, left = [], list(self.left)
        for step in self.steps:
            try:
                if step.work():
                    done.append(step.text)
                elif step.otherwise:
                    left.append(step.otherwise)
            except (CorruptObject, CorruptStore) as error:  # from a damaged row that the step reads or writes
                left.append(error.reason)
        left += [f"not all rows can be listed: {text}" for text in set(self._salvage.unlisted.values())]
        self._repo.history.reload()
        return list(dict.fromkeys(done)), left

    # Rows

    def _set_rows_aside(self) -> Iterator[Step]:
        for key, row in self._metadata.bad.items():
            text = f"moved {key} aside, which cannot be decoded, to {DAMAGED}{key}"
            yield Step(text, partial(self._writer.replace, key, row, {key: None}, DAMAGED + key))
        if self._metadata.stamp is not None:
            stamp = {FORMAT_KEY: str(FORMAT).encode()}
            work = partial(self._writer.replace, FORMAT_KEY, *self._metadata.stamp, stamp)
            yield Step(f"wrote the format of the store, {FORMAT}", work)

    def _forget_healed(self) -> Iterator[Step]:
        over = []
        for key in self._metadata.healed:
            oid = ObjectId.parse(key[-64:])
            # The object of a note on an inconsistent one is gone.
            if key.startswith(INCONSISTENT) or self._salvage.kind_of_whole(oid, self._salvage.stored(oid)):
                over.append(key)
        if over:
            text = f"deleted {counted(len(over), 'note')} on objects that are whole again or gone"
            yield Step(text, partial(self._writer.delete, over))

    # Refs

    def _mend_refs(self) -> Iterator[Step]:
        for name in sorted(self._found.broken, key=HEAD.__eq__):  # HEAD after its branch
            oid = self._metadata.refs.get(name, self._metadata.gone.get(name))
            states = "none of the states that it was at can"
            if name.startswith(TAGS):
                target = self._tagged(name) if name not in self._metadata.refs else None
                states = "its state cannot"
            else:
                target = None if name == HEAD and oid is None else self._newest_whole(name, oid)
            if target is not None:
                place = f"at {target.short} now, {target.subject[:60]!r}; its reflog tells where it was"
                yield self._put(name, target.oid, place)
            elif name == HEAD:
                yield from self._put_head_on_a_branch()
            else:
                self.left.append(f"{named(name)}: {states} be read whole; it stays as it is")

    def _put_head_on_a_branch(self) -> Iterator[Step]:
        """HEAD was most likely on a branch; nobody knows on which one."""
        known = {**self._metadata.refs, **self._refs}
        branches = sorted(name for name in known if name.startswith(HEADS))
        branch = HEADS + DEFAULT_BRANCH if HEADS + DEFAULT_BRANCH in known else next(iter(branches), None)
        if branch is None:
            self.left.append("HEAD: there is no branch to put it on; it stays as it is")
        else:
            short = branch.removeprefix(HEADS)
            yield self._put(HEAD, known[branch], f"on branch {short} now", branch=short)

    def _put(self, name: str, oid: ObjectId, place: str, *, branch: str | None = None) -> Step:
        """Move a ref; an undecodable value is kept aside."""
        self._refs[name] = oid
        row, old = self._metadata.rows.get(name), self._metadata.refs.get(name)
        aside = DAMAGED + REF + name if old is None else ""

        def work() -> bool:
            rows = self._repo.refs.rows_of_move(name, old, oid, ACTION, branch)
            return self._writer.replace(REF + name, row, rows, aside)

        changed = f"{named(name)}: somebody has moved it meanwhile; run fsck again"
        return Step(f"{named(name)}: it is {place}", work, changed)

    def _newest_whole(self, name: str, oid: ObjectId | None) -> Commit | None:
        """The newest commit with a whole state that the ref was at, by its history or by its reflog.

        First the first parents from `oid` on; where they are lost, those of the commit that the ref was at
        before it first came there. Then the first parents of every commit in its reflog. At last all parents:
        the commits behind a merge were never the ref's own.
        """
        lines = [line for _, line in self._metadata.lines(name)]
        # The oldest move to each commit: a later move may come from a commit that an undo or a reset left
        # behind.
        came_from = {line.new: line.old for line in reversed(lines) if line.new and line.old}
        starts: list[ObjectId] = []
        while oid is not None and oid not in starts:
            starts.append(oid)
            oid = came_from.get(oid)
        starts += [oid for line in reversed(lines) for oid in commits_in(line)]
        seen = IdSet()
        for start in starts:
            for commit in self._loss.first_parents(start, seen=seen):
                if self._loss.is_whole(commit.oid):
                    return commit
        seen = IdSet()
        for start in starts:
            for found, ancestor in self._loss.ancestors(start, seen=seen):
                if ancestor is not None and self._loss.is_whole(found):
                    return ancestor
        return None

    def _tagged(self, name: str) -> Commit | None:
        """The last commit of a tag, by its reflog, if that is whole. A tag never moves to another commit."""
        for _, line in reversed(list(self._metadata.lines(name))):
            ids = commits_in(line)
            return self._loss.commit(ids[0]) if ids and self._loss.is_whole(ids[0]) else None
        return None

    # Histories

    def _cut_histories(self) -> Iterator[Step]:
        """End the history at each commit with a lost parent, so that walks know."""
        for oid, commit in self._found.cut.items():
            lost = self._loss.lost_parents(commit)
            parents = self._metadata.parents(commit)
            key, row = shallow_row(oid, [parent for parent in parents if parent not in lost])
            before = shallow_row(oid, parents)[1] if oid in self._metadata.ends else None
            names = ", ".join(parent.short for parent in lost)
            text = f"the history ends at {commit.short} now, whose parent {names} is lost"
            older, remark = self._older(commit, lost)
            yield Step(text + remark, partial(self._writer.end_history, key, before, row, older))

    def _older(self, commit: Commit, lost: Collection[ObjectId]) -> tuple[Commit | None, str]:
        """The commit that gets a tag, since no ref leads to it once the history ends here; a remark on it.

        Without the tag the next `gc` would remove the commit and its history. It is the newest whole one that
        a ref was at before it came to a lost one, else the newest one that no ref leads to.
        """
        gone, before = set(lost), set[ObjectId]()
        for line in self._moves:
            if line.new in gone and line.old is not None:
                (gone if self._loss.commit(line.old) is None else before).add(line.old)
        if any(oid in self._kept for oid in before):
            return None, ""
        logged = (oid for line in self._moves for oid in commits_in(line))
        for known in (before, {*self._found.orphaned_commits, *logged}):
            older = [found for oid in known if (found := self._loss.commit(oid)) is not None]
            older = [found for found in older if found.order < commit.order and found.oid not in self._kept]
            if older := [found for found in older if self._loss.is_whole(found.oid)]:
                break
        else:
            return None, "" if self._found.full else "; fsck without --quick looks for older commits"
        newest = max(older, key=lambda found: found.order)
        for _ in self._loss.ancestors(newest.oid, seen=self._kept):
            pass
        return newest, f"; the tag fsck/{newest.short} keeps the older commits"

    @cached_property
    def _kept(self) -> IdSet:
        """The commits that refs lead to, those with a tag of this repair among them."""
        kept = IdSet()
        for _ in self._loss.ancestors(*self._refs.values(), seen=kept):
            pass
        return kept

    @cached_property
    def _moves(self) -> Sequence[ReflogEntry]:
        """All moves of all refs, newest first."""
        return sorted((line for _, line in self._metadata.lines()), key=lambda line: line.order, reverse=True)

    # Objects

    def _set_objects_aside(self) -> Iterator[Step]:
        damaged, missing, inconsistent = [], [], []
        for oid in self._found.verifier.bad:
            if oid in self._found.verifier.inconsistent:
                inconsistent.append(oid)
            elif self._salvage.row(OBJECT_PREFIX + oid.hex()) is None:
                missing.append(oid)
            else:
                damaged.append(oid)
        text = f"moved {_objects(damaged)} aside, to {DAMAGED}: writing the same again will heal"
        malformed = self._found.verifier.malformed
        for oid in damaged:
            yield Step(text, partial(self._writer.set_aside, oid, is_malformed=oid in malformed))
        text = f"noted {_objects(missing)} as missing"
        for oid in missing:
            yield Step(text, partial(self._writer.note_missing, oid))
        text = f"noted {_objects(inconsistent)} that cannot be right, and can be read: nothing is removed"
        for oid in inconsistent:
            note = INCONSISTENT + oid.hex()
            yield Step(text, partial(self._repo.store.compare_and_swap, note, None, b""))


class _Writer:
    """Writes the steps of a repair: only where a row is as the inspection found it, so other writers win."""

    def __init__(self, repo: Core, salvage: Salvage) -> None:
        self._repo = repo
        self._store = repo.store
        self._salvage = salvage

    def replace(self, key: str, row: Row, writes: Mapping[str, bytes | None], aside: str = "") -> bool:
        """Carry out the writes, and keep the old row of the key aside, unless the row has changed.

        A row that cannot be read cannot be kept. It counts as unchanged as long as it cannot be read.
        """
        if isinstance(row, bytes | None):
            kept = {aside: row} if aside and row is not None else {}
            return self._repo.refs.transact({**writes, **kept}, {key: row})
        done = False

        def plan() -> Mapping[str, bytes | None]:
            nonlocal done
            done = not isinstance(self._salvage.row(key), bytes | None)
            return {**writes, aside: b""} if done else {}

        if not self._store.exclusively(plan):
            self._store.compare_and_swap(aside, None, b"")
            if plan():  # as late as possible, since this store cannot keep others out
                self._store.transact(writes, {})
            else:
                self._store.compare_and_swap(aside, b"", None)
        return done

    def set_aside(self, oid: ObjectId, *, is_malformed: bool) -> bool:
        """Move a damaged object aside, unless it is whole by now."""
        key = OBJECT_PREFIX + oid.hex()
        row = self._salvage.row(key)
        if row is None or not (is_malformed or self._salvage.kind_of_whole(oid, row) is None):
            return False
        return self.replace(key, row, {key: None}, DAMAGED + oid.hex())

    def note_missing(self, oid: ObjectId) -> bool:
        """Note that an object is lost, with its damaged copy in the trash, unless it is back by now."""
        trash = self._salvage.row(TRASH + oid.hex())
        if trash is None and self._salvage.row(OBJECT_PREFIX + oid.hex()) is not None:
            return False  # gc has put it back
        row = trash[8:] if isinstance(trash, bytes) else b""
        done = self._store.compare_and_swap(DAMAGED + oid.hex(), None, row)
        if done and trash is not None:
            self._store.delete(TRASH + oid.hex())
        return done

    def end_history(self, key: str, before: bytes | None, row: bytes, older: Commit | None) -> bool:
        """Put a tag on the older commit, and write the row that ends a history."""
        if older is not None:  # first: the next repair skips a history that has ended
            with suppress(AlreadyExists):
                self._repo.create_tag(f"fsck/{older.short}", older)
        return self._store.compare_and_swap(key, before, row)

    def delete(self, keys: Sequence[str]) -> bool:
        """Delete rows that say nothing any more."""
        self._store.delete_many(keys)
        return True


def named(ref: str) -> str:
    """A ref for people: `branch main`."""
    if ref.startswith(HEADS):
        return f"branch {ref.removeprefix(HEADS)}"
    return f"tag {ref.removeprefix(TAGS)}" if ref.startswith(TAGS) else ref


def _objects(ids: Sequence[ObjectId]) -> str:
    return counted(len(ids), "object")
