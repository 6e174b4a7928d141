"""Repair: making a damaged store usable again, without throwing away what it still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vstate.errors import CorruptObject, CorruptStore
from vstate.objects.commit import one_line
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.repo.commits import FORMAT_KEY
from vstate.repo.damage import Loss
from vstate.repo.history import SHALLOW_FORMAT, shallow_row
from vstate.repo.objects import DAMAGED, PREFIX, TRASH
from vstate.repo.reach import IdSet
from vstate.repo.refs import DEFAULT_BRANCH, HEAD, HEADS, TAGS
from vstate.repo.refs import PREFIX as REF
from vstate.repo.salvage import Row

if TYPE_CHECKING:
    from vstate.objects.commit import Commit
    from vstate.repo.fsck import Inspection
    from vstate.repo.repository import Repository

ACTION = "fsck: repaired"


class Repair:
    """One repair, of what an inspection found. `done` and `left` say in words what it did and could not do.

    Every write expects the row to be as it was found, so whoever writes meanwhile wins. Whenever it is
    interrupted, the store is no worse, and the next repair goes on.
    """

    def __init__(self, repo: Repository, found: Inspection) -> None:
        self._repo = repo
        self._store = repo.store
        self._found = found
        self._rows = found.rows
        self._loss: Loss = found.loss
        self.done: list[str] = []
        self.left: list[str] = []

    def run(self) -> None:
        """Repair what can be repaired."""
        self._set_bad_rows_aside()
        for name in self._found.broken:
            if name not in self._rows.raw_refs:
                self.left.append(f"{_named(name)}: its row cannot be read; it is left as it is")
            elif name != HEAD:
                self._mend_ref(name)
        if HEAD in self._found.broken and HEAD in self._rows.raw_refs:
            self._mend_head()
        self._write_stamp()
        self._set_objects_aside()
        self._cut_histories()
        self._forget_healed()
        self._repo.history.reload()

    def still_broken(self, after: Inspection) -> list[str]:
        """What to say of the refs that are broken all the same."""
        told = {line.split(":")[0] for line in self.left}
        return [
            f"{_named(name)}: what it leads to cannot be read whole"
            for name in after.broken
            if _named(name) not in told
        ]

    # Rows

    def _set_bad_rows_aside(self) -> None:
        for key in self._rows.bad:
            row = self._found.salvage.row(key)
            if row is not None and self._set_aside(key, DAMAGED + key, row):
                self.done.append(f"moved {key} aside, which made no sense, to {DAMAGED}{key}")

    def _set_aside(self, key: str, aside: str, row: Row) -> bool:
        """Move a row, if it is still as it was found."""
        if isinstance(row, bytes):
            return self._store.transact({aside: row, key: None}, {key: row})
        try:
            self._store.set(aside, b"")  # what cannot be read cannot be kept
            self._store.delete(key)
        except (CorruptObject, CorruptStore) as error:
            self.left.append(f"{key} cannot be moved aside: {error.reason}")
            return False
        return True

    def _write_stamp(self) -> None:
        needed = self._rows.needed_format
        if needed and self._store.compare_and_swap(FORMAT_KEY, self._rows.stamp, str(needed).encode()):
            self.done.append(f"wrote the format of the store, {needed}")

    def _forget_healed(self) -> None:
        bad = self._loss.bad
        healed = [key for key in self._rows.healed if ObjectId.parse(key.removeprefix(DAMAGED)) not in bad]
        self._store.delete_many(healed)
        if healed:
            self.done.append(f"{_objects(len(healed))} that had been lost are there again")

    # Refs

    def _mend_ref(self, name: str) -> None:
        oid = self._rows.refs.get(name)
        is_tag = name.startswith(TAGS)
        if is_tag:
            target = self._tagged(name) if oid is None else None
        else:
            target = self._newest_whole(name, oid)
        if target is None:
            what = "it names a state that cannot" if is_tag else "nothing that it was ever at can"
            self.left.append(f"{_named(name)}: {what} be read whole; it is left as it is")
        else:
            text = one_line(target.message)[:60]
            self._put(name, target.oid, f"at {target.short} now, {text!r}; its reflog has where it was")

    def _mend_head(self) -> None:
        oid = self._rows.refs.get(HEAD)
        target = None if oid is None else self._newest_whole(HEAD, oid)
        if target is not None:
            self._put(HEAD, target.oid, f"at {target.short} now")
            return
        # It was on a branch, as good as always; on which one cannot be told.
        branches = [name.removeprefix(HEADS) for name in self._rows.refs if name.startswith(HEADS)]
        branch = DEFAULT_BRANCH if DEFAULT_BRANCH in branches else next(iter(branches), None)
        at = None if branch is None else self._repo.refs.read(HEADS + branch)
        if at is None:
            self.left.append("HEAD: there is no branch to put it on; it is left as it is")
        else:
            self._put(HEAD, at, f"on branch {branch} now", branch=branch)

    def _put(self, name: str, oid: ObjectId, what: str, *, branch: str | None = None) -> None:
        """Put a ref elsewhere, if it is still as it was found; what made no sense in its place is kept."""
        aside = None if name in self._rows.refs else DAMAGED + REF + name
        raw = self._rows.raw_refs[name]
        if self._repo.refs.replace(name, raw=raw, new=oid, action=ACTION, aside=aside, branch=branch):
            self.done.append(f"{_named(name)}: it is {what}")
        else:
            self.left.append(f"{_named(name)}: it was moved meanwhile; run fsck again")

    def _newest_whole(self, name: str, oid: ObjectId | None) -> Commit | None:
        """The newest commit before `oid` whose state is whole; else by what the reflog says of the ref."""
        seen = IdSet()
        logged = [oid for _, ids in reversed(list(self._rows.lines(name))) for oid in ids]
        for start in [*([oid] if oid is not None else []), *logged]:
            for found, commit in self._loss.ancestors(start, seen=seen):
                if commit is not None and self._loss.is_whole(found):
                    return commit
        return None

    def _tagged(self, name: str) -> Commit | None:
        """The commit that a tag was put on last, by its reflog; a tag does not go elsewhere."""
        for _, ids in reversed(list(self._rows.lines(name))):
            return self._loss.commit(ids[0]) if ids else None
        return None

    # Objects

    def _cut_histories(self) -> None:
        """Where a parent is lost, let the history end: so it can be walked, and says so."""
        if self._found.verifier.cut:
            self._repo.require_format(SHALLOW_FORMAT)
        for oid, lost in self._found.verifier.cut.items():
            commit = self._loss.commit(oid)
            if commit is None:
                continue
            kept = [parent for parent in self._rows.parents(commit) if parent not in lost]
            key, value = shallow_row(oid, kept)
            before = self._store.get(key)
            if before is not None and not self._rows.is_shallow(oid):
                continue  # another process has just cut it
            if self._store.compare_and_swap(key, before, value):
                names = ", ".join(parent.short for parent in lost)
                self.done.append(f"the history ends at {commit.short} now, whose parent {names} is lost")

    def _set_objects_aside(self) -> None:
        ids = self._found.verifier.bad_ids
        moved = noted = 0
        for start in range(0, len(ids), ID_BYTES):
            oid = ObjectId(ids[start : start + ID_BYTES])
            row = self._found.salvage.row(PREFIX + oid.hex())
            if row is None:
                noted += self._note_missing(oid)
            elif oid in self._found.verifier.nonsense or self._found.salvage.kind_of_whole(oid, row) is None:
                moved += self._set_aside(PREFIX + oid.hex(), DAMAGED + oid.hex(), row)
        if moved:
            self.done.append(f"moved {_objects(moved)} aside, to {DAMAGED}: writing the same again will heal")
        if noted:
            self.done.append(f"noted {_objects(noted, 'missing ')} as lost")

    def _note_missing(self, oid: ObjectId) -> bool:
        trash = self._found.salvage.row(TRASH + oid.hex())
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


def _objects(count: int, what: str = "") -> str:
    return f"1 {what}object" if count == 1 else f"{count:,} {what}objects"
