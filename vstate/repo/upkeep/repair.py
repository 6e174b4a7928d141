"""Repair: makes a damaged store usable again, and throws nothing away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple

from vstate.errors import AlreadyExists, CorruptObject, CorruptStore
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.core import FORMAT_KEY, STAMP, Core
from vstate.repo.history import shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import DEFAULT_BRANCH, HEAD, HEADS, REF, TAGS
from vstate.repo.objects import DAMAGED, INCONSISTENT, TRASH
from vstate.repo.upkeep.inspection import Inspection
from vstate.repo.upkeep.salvage import Row

ACTION = "fsck: repaired"


class Step(NamedTuple):
    """A step of a plan: the line for the report, the work, and the line if the rows have changed meanwhile.

    The work writes only where rows are as the inspection found them, and returns whether it wrote.
    """

    text: str
    work: Callable[[], bool]
    otherwise: str = ""


class Plan:
    """The steps that repair the damage of an inspection. The lines in `left` name what they cannot repair.

    To make a plan writes nothing; `str` lists its steps. If `execute` is interrupted, the store is no worse,
    and the next plan goes on.
    """

    def __init__(self, repo: Core, found: Inspection) -> None:
        self._repo = repo
        self._found = found
        self._salvage = found.salvage
        self._metadata = found.metadata
        self._loss = found.loss
        self._store = repo.store
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
        """Carry out the steps. Returns the lines of those that were done, and the lines on what is left."""
        done, left = [], list(self.left)
        for step in self.steps:
            try:
                if step.work():
                    done.append(step.text)
                elif step.otherwise:
                    left.append(step.otherwise)
            except (CorruptObject, CorruptStore) as error:  # from a damaged row that the step reads or writes
                left.append(error.reason)
        reasons = dict.fromkeys(self._salvage.unlisted.values())
        left += [f"not all rows can be listed: {reason}" for reason in reasons]
        self._repo.history.reload()
        return list(dict.fromkeys(done)), left

    # Rows

    def _set_rows_aside(self) -> Iterator[Step]:
        for key, row in self._metadata.bad.items():
            text = f"moved {key} aside, which cannot be decoded, to {DAMAGED}{key}"
            yield Step(text, partial(self._replace, key, row, {key: None}, DAMAGED + key))
        if any(damage.id == FORMAT_KEY for damage in self._found.damage):
            writes = {FORMAT_KEY: STAMP}
            work = partial(
                self._replace, FORMAT_KEY, self._salvage.row(FORMAT_KEY), writes, DAMAGED + FORMAT_KEY
            )
            yield Step(f"wrote the format of the store, {STAMP.decode()}", work)

    def _forget_healed(self) -> Iterator[Step]:
        over = []
        for key in self._metadata.healed:
            oid = ObjectId.parse(key[-64:])
            # The object of a note on an inconsistent one is gone.
            if key.startswith(INCONSISTENT) or self._salvage.kind_of_whole(oid, self._salvage.stored(oid)):
                over.append(key)
        if over:
            text = f"deleted {counted(len(over), 'note')} on objects that are whole again or gone"
            yield Step(text, partial(self._delete, over))

    # Refs

    def _mend_refs(self) -> Iterator[Step]:
        for name in sorted(self._found.broken, key=HEAD.__eq__):  # HEAD after its branch
            oid = self._metadata.refs.get(name)
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
            return self._replace(REF + name, row, rows, aside)

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
        starts += [oid for line in reversed(lines) for oid in line.commits]
        seen = IdSet()
        own = (self._loss.ancestors(start, seen=seen, first_parents=True) for start in starts)
        found = chain(*own, self._loss.ancestors(*starts))
        return next((commit for oid, commit in found if self._loss.is_whole(oid)), None)

    def _tagged(self, name: str) -> Commit | None:
        """The last commit of a tag, by its reflog, if that is whole. A tag never moves to another commit."""
        ids = [oid for _, line in self._metadata.lines(name) for oid in line.commits[:1]]
        return self._loss.commit(ids[-1]) if ids and self._loss.is_whole(ids[-1]) else None

    # Histories

    def _cut_histories(self) -> Iterator[Step]:
        """End the history at each commit with a lost parent, for walks; tags keep the older commits."""
        older = list(self._older()) if self._found.cut else []
        for commit in older:  # first: the next repair skips a history that has ended
            text = f"the tag fsck/{commit.short} keeps commits before a lost one"
            yield Step(text, partial(self._tag, commit))
        hint = "" if older or self._found.full else "; fsck without --quick looks for older commits"
        for oid, commit in self._found.cut.items():
            lost, parents = self._loss.lost_parents(commit), self._metadata.parents(commit)
            key, row = shallow_row(oid, [parent for parent in parents if parent not in lost])
            before = shallow_row(oid, parents)[1] if oid in self._metadata.ends else None
            names = ", ".join(parent.short for parent in lost)
            text = f"the history ends at {commit.short} now, whose parent {names} is lost{hint}"
            yield Step(text, partial(self._store.compare_and_swap, key, before, row))

    def _older(self) -> Iterator[Commit]:
        """The newest known commits before a lost one that no ref leads to: `gc` would remove them."""
        kept = IdSet()
        for _ in self._loss.ancestors(*self._refs.values(), seen=kept):
            pass
        logged = (oid for _, line in self._metadata.lines() for oid in line.commits)
        known = map(self._loss.commit, {*self._found.orphaned_commits, *logged})
        newest = max(commit.order for commit in self._found.cut.values())
        before = [commit for commit in known if commit is not None and commit.order < newest]
        for commit in sorted(before, key=lambda commit: commit.order, reverse=True):
            if commit.oid not in kept and self._loss.is_whole(commit.oid):
                yield commit
                for _ in self._loss.ancestors(commit.oid, seen=kept):
                    pass

    # Objects

    def _set_objects_aside(self) -> Iterator[Step]:
        groups: dict[str, list[ObjectId]] = {"aside": [], "missing": [], "inconsistent": []}
        for oid in self._found.verifier.bad:
            is_stored = self._salvage.row(OBJECT_PREFIX + oid.hex()) is not None
            is_kept = oid in self._found.verifier.inconsistent
            groups["inconsistent" if is_kept else "aside" if is_stored else "missing"].append(oid)
        objects = {name: counted(len(ids), "object") for name, ids in groups.items()}
        text = f"moved {objects['aside']} aside, to {DAMAGED}: writing the same again will heal"
        yield from (Step(text, partial(self._set_aside, oid)) for oid in groups["aside"])
        text = f"noted {objects['missing']} as missing"
        yield from (Step(text, partial(self._note_missing, oid)) for oid in groups["missing"])
        text = f"noted {objects['inconsistent']} that cannot be right, and can be read: nothing is removed"
        for oid in groups["inconsistent"]:
            yield Step(text, partial(self._store.compare_and_swap, INCONSISTENT + oid.hex(), None, b""))

    # The work of steps

    def _replace(self, key: str, row: Row, writes: Mapping[str, bytes | None], aside: str = "") -> bool:
        """Carry out the writes, and keep the old row of the key aside, unless the row has changed.

        A row that cannot be read cannot be kept. It counts as unchanged as long as it cannot be read.
        """
        if isinstance(row, bytes | None):
            kept = {aside: row} if aside and row is not None else {}
            refs = self._repo.refs
            before = refs.condition(key.removeprefix(REF), None) if row is None else {key: row}
            return refs.transact({**writes, **kept}, before)
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

    def _set_aside(self, oid: ObjectId) -> bool:
        """Move a damaged object aside, unless it is whole by now."""
        key = OBJECT_PREFIX + oid.hex()
        row = self._salvage.row(key)
        is_malformed = oid in self._found.verifier.malformed
        if row is None or not (is_malformed or self._salvage.kind_of_whole(oid, row) is None):
            return False
        return self._replace(key, row, {key: None}, DAMAGED + oid.hex())

    def _note_missing(self, oid: ObjectId) -> bool:
        """Note that an object is lost, with its damaged copy in the trash, unless it is back by now."""
        trash = self._salvage.row(TRASH + oid.hex())
        if trash is None and self._salvage.row(OBJECT_PREFIX + oid.hex()) is not None:
            return False  # gc has put it back
        row = trash[8:] if isinstance(trash, bytes) else b""
        done = self._store.compare_and_swap(DAMAGED + oid.hex(), None, row)
        if done and trash is not None:
            self._store.delete(TRASH + oid.hex())
        return done

    def _tag(self, commit: Commit) -> bool:
        with suppress(AlreadyExists):
            self._repo.create_tag(f"fsck/{commit.short}", commit)
            return True
        return False

    def _delete(self, keys: Sequence[str]) -> bool:
        self._store.delete_many(keys)
        return True


def named(ref: str) -> str:
    """A ref for people: `branch main`."""
    if ref.startswith(HEADS):
        return f"branch {ref.removeprefix(HEADS)}"
    return f"tag {ref.removeprefix(TAGS)}" if ref.startswith(TAGS) else ref
