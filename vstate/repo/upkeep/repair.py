"""Repair: makes a damaged store usable again, and throws nothing away."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from vstate.errors import AlreadyExists, CorruptObject, CorruptStore
from vstate.forks import cached_property
from vstate.kv.base import OBJECT_PREFIX
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.core import FORMAT, FORMAT_KEY, Core
from vstate.repo.history import shallow_row
from vstate.repo.idset import IdSet
from vstate.repo.names.refs import DEFAULT_BRANCH, HEAD, HEADS, REF, TAGS
from vstate.repo.objects import DAMAGED, INCONSISTENT, TRASH
from vstate.repo.upkeep.damage import Loss
from vstate.repo.upkeep.inspection import Inspection
from vstate.repo.upkeep.salvage import Row

ACTION = "fsck: repaired"


class Repair:
    """One repair of the damage that an inspection found. `done` and `left` list successes and failures.

    A write takes place only if the row is as the inspection found it, so other writers win. An interruption
    leaves the store no worse, and the next repair goes on.
    """

    def __init__(self, repo: Core, found: Inspection) -> None:
        self._repo = repo
        self._store = repo.store
        self._found = found
        self._metadata = found.metadata
        self._loss: Loss = found.loss
        self._refs = {name: oid for name, oid in found.metadata.refs.items() if name not in found.broken}
        self.done: list[str] = []
        self.left: list[str] = []

    def run(self) -> None:
        """Repair as much as possible."""
        for step in (
            self._set_bad_rows_aside,
            self._mend_refs,
            self._write_stamp,
            self._set_objects_aside,
            self._note_inconsistent,
            self._cut_histories,
            self._forget_healed,
        ):
            try:
                step()
            except (CorruptObject, CorruptStore) as error:  # from a damaged row that the step reads or writes
                self.left.append(error.reason)
        for reason in dict.fromkeys(self._found.salvage.unlisted.values()):
            self.left.append(f"not all rows can be listed: {reason}")
        self._repo.history.reload()

    def still_broken(self, after: Inspection) -> list[str]:
        """Lines for `left` on the refs that are still broken, and that it does not list yet."""
        listed = {line.split(":")[0] for line in self.left}
        return [
            f"{_named(name)}: the state that it leads to cannot be read whole"
            for name in after.broken
            if _named(name) not in listed
        ]

    # Metadata

    def _set_bad_rows_aside(self) -> None:
        for key in self._metadata.bad:
            row = self._found.salvage.row(key)
            if row is not None and self._set_aside(key, DAMAGED + key, row):
                self.done.append(f"moved {key} aside, which cannot be decoded, to {DAMAGED}{key}")

    def _set_aside(self, key: str, aside: str, row: Row) -> bool:
        """Move a row, if it is still as the inspection found it."""
        try:
            if isinstance(row, bytes):
                return self._store.transact({aside: row, key: None}, {key: row})
            return self._delete_unreadable(key, aside)
        except (CorruptObject, CorruptStore) as error:
            self.left.append(f"{key} cannot be moved aside: {error.reason}")
            return False

    def _delete_unreadable(self, key: str, aside: str) -> bool:
        """Delete a row that cannot be read, and so cannot be kept, unless it has been written again."""
        done = False

        def plan() -> Mapping[str, bytes | None]:
            nonlocal done
            done = not isinstance(self._found.salvage.row(key), bytes | None)
            return {aside: b"", key: None} if done else {}

        if not self._store.exclusively(plan):
            self._store.compare_and_swap(aside, None, b"")
            if plan():  # as late as possible, since this store cannot keep others out
                self._store.delete(key)
            else:
                self._store.compare_and_swap(aside, b"", None)
        return done

    def _write_stamp(self) -> None:
        stamp, needed = self._metadata.stamp, str(FORMAT).encode()
        if self._metadata.needs_stamp and self._store.compare_and_swap(FORMAT_KEY, stamp, needed):
            self.done.append(f"wrote the format of the store, {FORMAT}")

    def _forget_healed(self) -> None:
        healed = []
        for key in self._metadata.healed:
            if key.startswith(INCONSISTENT):
                self._store.delete(key)  # the object that it names is gone
                continue
            oid = ObjectId.parse(key.removeprefix(DAMAGED))
            row = self._found.salvage.row(OBJECT_PREFIX + oid.hex())
            if (
                oid not in self._found.verifier.bad
                and self._found.salvage.kind_of_whole(oid, row) is not None
            ):
                healed.append(key)
        self._store.delete_many(healed)
        if healed:
            self.done.append(f"found {_objects(len(healed), 'lost ')} again")

    # Refs

    def _mend_refs(self) -> None:
        for name in self._found.broken:
            if name != HEAD:
                self._mend_ref(name)
        if HEAD in self._found.broken:
            self._mend_head()

    def _mend_ref(self, name: str) -> None:
        oid = self._metadata.refs.get(name, self._metadata.gone.get(name))
        is_tag = name.startswith(TAGS)
        if is_tag:
            target = self._tagged(name) if name not in self._metadata.refs else None
        else:
            target = self._newest_whole(name, oid)
        if target is None:
            states = "its state" if is_tag else "none of the states that it was at"
            can = "cannot" if is_tag else "can"
            self.left.append(f"{_named(name)}: {states} {can} be read whole; it stays as it is")
        else:
            text = target.subject[:60]
            self._put(name, target.oid, f"at {target.short} now, {text!r}; its reflog tells where it was")

    def _mend_head(self) -> None:
        oid = self._metadata.refs.get(HEAD)
        target = None if oid is None else self._newest_whole(HEAD, oid)
        if target is not None:
            self._put(HEAD, target.oid, f"at {target.short} now")
            return
        # HEAD was most likely on a branch; nobody knows on which one.
        known = {**self._metadata.refs, **self._refs}
        branches = sorted(name.removeprefix(HEADS) for name in known if name.startswith(HEADS))
        branch = DEFAULT_BRANCH if DEFAULT_BRANCH in branches else next(iter(branches), None)
        at = None if branch is None else self._repo.refs.read(HEADS + branch)
        if at is None:
            self.left.append("HEAD: there is no branch to put it on; it stays as it is")
        else:
            self._put(HEAD, at, f"on branch {branch} now", branch=branch)

    def _put(self, name: str, oid: ObjectId, place: str, *, branch: str | None = None) -> None:
        """Move a ref, if it is still as the inspection found it; keep an undecodable value aside."""
        refs, raw, aside = self._repo.refs, self._metadata.raw_refs.get(name), DAMAGED + REF + name
        if raw is None and name not in self._metadata.gone:
            done = refs.replace_unreadable(name, new=oid, action=ACTION, aside=aside, branch=branch)
        else:
            kept = None if raw is None or name in self._metadata.refs else aside
            done = refs.replace(name, raw=raw, new=oid, action=ACTION, aside=kept, branch=branch)
        if done:
            self._refs[name] = oid
            self.done.append(f"{_named(name)}: it is {place}")
        else:
            self.left.append(f"{_named(name)}: somebody has moved it meanwhile; run fsck again")

    def _newest_whole(self, name: str, oid: ObjectId | None) -> Commit | None:
        """The newest commit with a whole state that the ref was at, by its history or by its reflog.

        First the first parents from `oid` on; where they are lost, those of the commit that the ref was at
        before it first came there. Then the first parents of every commit in its reflog. At last all parents:
        the commits behind a merge were never the ref's own.
        """
        lines = [ids for _, ids in self._metadata.lines(name)]
        # The oldest move to each commit: a later move may come from a commit that an undo or a reset left
        # behind.
        came_from = {ids[0]: ids[1] for ids in reversed(lines) if len(ids) == 2}
        starts: list[ObjectId] = []
        while oid is not None and oid not in starts:
            starts.append(oid)
            oid = came_from.get(oid)
        starts += [oid for ids in reversed(lines) for oid in ids]
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
        for _, ids in reversed(list(self._metadata.lines(name))):
            return self._loss.commit(ids[0]) if ids and self._loss.is_whole(ids[0]) else None
        return None

    # Objects

    def _cut_histories(self) -> None:
        """End the history at each commit with a lost parent, so that walks know."""
        for oid, commit in self._found.cut.items():
            lost = self._loss.lost_parents(commit)
            kept = [parent for parent in self._metadata.parents(commit) if parent not in lost]
            key, value = shallow_row(oid, kept)
            before = self._store.get(key)
            if before is not None and not self._metadata.is_shallow(oid):
                continue  # another process has just ended it
            older = self._keep_older(commit, lost)  # first: the next repair skips a history that has ended
            if self._store.compare_and_swap(key, before, value):
                names = ", ".join(parent.short for parent in lost)
                self.done.append(
                    f"the history ends at {commit.short} now, whose parent {names} is lost{older}"
                )

    def _keep_older(self, commit: Commit, lost: Sequence[ObjectId]) -> str:
        """Put a tag on the newest whole commit before the lost ones, unless a ref leads to it; a remark.

        Without the tag the next `gc` would remove that commit and its history.
        """
        logged = list(self._newest_before(commit, self._logged_before(lost)))
        for older in logged or self._newest_before(commit, self._unnamed):
            if older.oid not in self._kept:
                name = f"fsck/{older.short}"
                with suppress(AlreadyExists):
                    self._repo.create_tag(name, older)
                for _ in self._loss.ancestors(older.oid, seen=self._kept):
                    pass
                return f"; the tag {name} keeps the older commits"
        return "" if logged or self._found.full else "; fsck without --quick looks for older commits"

    @cached_property
    def _kept(self) -> IdSet:
        """The commits that refs lead to, those with a tag of this repair among them."""
        kept = IdSet()
        for _ in self._loss.ancestors(*self._refs.values(), seen=kept):
            pass
        return kept

    @cached_property
    def _moves(self) -> Mapping[ObjectId, Sequence[ObjectId]]:
        """By commit, the commits from which refs moved to it."""
        moves: dict[ObjectId, list[ObjectId]] = {}
        for old, new in self._metadata.moves():
            if old is not None and new is not None:
                moves.setdefault(new, []).append(old)
        return moves

    @cached_property
    def _unnamed(self) -> Sequence[ObjectId]:
        """The known commits that no ref names, newest first."""
        ids = {*self._found.orphaned_commits, *self._moves, *chain.from_iterable(self._moves.values())}
        times = {
            oid: commit.order for oid in ids - set(self._refs.values()) if (commit := self._loss.commit(oid))
        }
        return sorted(times, key=lambda oid: times[oid], reverse=True)

    def _logged_before(self, lost: Sequence[ObjectId]) -> Iterator[ObjectId]:
        """The commits that refs were at before lost commits; for one that is lost too, those before it."""
        seen, queue = set(lost), deque(lost)
        while queue:
            for oid in self._moves.get(queue.popleft(), ()):
                if oid not in seen:
                    seen.add(oid)
                    if self._loss.commit(oid) is None:
                        queue.append(oid)
                    else:
                        yield oid

    def _newest_before(self, commit: Commit, starts: Iterable[ObjectId]) -> Iterator[Commit]:
        """From each start on, the newest whole commit that is older than this one."""
        seen = IdSet()
        for start in starts:
            for oid, older in self._loss.ancestors(start, seen=seen):
                if older is not None and older.order < commit.order and self._loss.is_whole(oid):
                    yield older
                    break

    def _set_objects_aside(self) -> None:
        moved = noted = 0
        for oid in self._found.verifier.bad:
            row = self._found.salvage.row(OBJECT_PREFIX + oid.hex())
            if row is None:
                noted += self._note_missing(oid)
            elif oid in self._found.verifier.malformed or self._found.salvage.kind_of_whole(oid, row) is None:
                moved += self._set_aside(OBJECT_PREFIX + oid.hex(), DAMAGED + oid.hex(), row)
        if moved:
            self.done.append(f"moved {_objects(moved)} aside, to {DAMAGED}: writing the same again will heal")
        if noted:
            self.done.append(f"noted {_objects(noted, 'missing ')} as lost")

    def _note_inconsistent(self) -> None:
        """Note the objects that can be read and cannot be right; they stay where they are."""
        noted = 0
        for oid in self._found.verifier.inconsistent:
            noted += self._store.compare_and_swap(INCONSISTENT + oid.hex(), None, b"")
        if noted:
            self.done.append(
                f"noted {_objects(noted)} that cannot be right, and can be read: nothing is removed"
            )

    def _note_missing(self, oid: ObjectId) -> bool:
        trash = self._found.salvage.row(TRASH + oid.hex())
        if trash is None and self._found.salvage.row(OBJECT_PREFIX + oid.hex()) is not None:
            return False  # gc has put it back
        row = trash[8:] if isinstance(trash, bytes) else b""
        if not self._store.compare_and_swap(DAMAGED + oid.hex(), None, row):
            return False
        if trash is not None:
            self._store.delete(TRASH + oid.hex())
        return True


def _named(name: str) -> str:
    if name.startswith(HEADS):
        return f"branch {name.removeprefix(HEADS)}"
    return f"tag {name.removeprefix(TAGS)}" if name.startswith(TAGS) else name


def _objects(count: int, adjective: str = "") -> str:
    return f"1 {adjective}object" if count == 1 else f"{count:,} {adjective}objects"
