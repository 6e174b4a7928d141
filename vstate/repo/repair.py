"""Repair: making a damaged store usable again, without throwing away what it still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vstate.errors import CorruptObject, CorruptStore
from vstate.objects.ids import ID_BYTES, ObjectId
from vstate.repo.damage import Loss
from vstate.repo.history import SHALLOW_FORMAT, shallow_row
from vstate.repo.objects import DAMAGED, PREFIX, TRASH
from vstate.repo.reach import IdSet
from vstate.repo.refs import DEFAULT_BRANCH, HEAD, HEADS, TAGS
from vstate.repo.refs import PREFIX as REF
from vstate.repo.repository import FORMAT_KEY

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
        self._loss: Loss = found.loss
        self.done: list[str] = []
        self.left: list[str] = []

    def run(self) -> None:
        """Repair what can be repaired."""
        self._set_bad_rows_aside()
        for name in self._found.broken:
            if name != HEAD:
                self._mend_ref(name)
        if HEAD in self._found.broken:
            self._mend_head()
        self._write_stamp()
        self._cut_histories()
        self._set_objects_aside()
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
        for key in self._found.bad_rows:
            value = self._found.salvage.row(key)
            if isinstance(value, bytes) and self._store.transact(
                {DAMAGED + key: value, key: None}, {key: value}
            ):
                self.done.append(f"moved {key} aside, which made no sense, to {DAMAGED}{key}")

    def _write_stamp(self) -> None:
        needed = self._found.needed_format
        if needed and self._store.compare_and_swap(FORMAT_KEY, self._found.stamp, str(needed).encode()):
            self.done.append(f"wrote the format of the store, {needed}")

    def _forget_healed(self) -> None:
        bad = self._loss.bad
        healed = [key for key in self._found.healed if ObjectId.parse(key.removeprefix(DAMAGED)) not in bad]
        self._store.delete_many(healed)
        if healed:
            self.done.append(f"{_objects(len(healed))} that had been lost are there again")

    # Refs

    def _mend_ref(self, name: str) -> None:
        raw, oid = self._found.raw_refs[name], self._found.refs.get(name)
        if name.startswith(TAGS):
            target = self._tagged(name) if oid is None else None
        else:
            target = self._newest_whole(name, oid)
        if target is None:
            what = (
                "it names a state that cannot" if name.startswith(TAGS) else "nothing that it was ever at can"
            )
            self.left.append(f"{_named(name)}: {what} be read whole; it is left as it is")
            return
        aside = DAMAGED + REF + name if oid is None else None
        if self._repo.refs.replace(name, raw=raw, new=target.oid, action=ACTION, aside=aside):
            self.done.append(
                f"{_named(name)}: it is at {target.short} now, {target.message!r}; its reflog has where it was"
            )
        else:
            self.left.append(f"{_named(name)}: it was moved meanwhile; run fsck again")

    def _mend_head(self) -> None:
        raw, oid = self._found.raw_refs[HEAD], self._found.refs.get(HEAD)
        if oid is None:
            # A branch is what HEAD was on, as good as always, and which one cannot be told.
            branches = [name.removeprefix(HEADS) for name in self._found.refs if name.startswith(HEADS)]
            whole = [name for name in branches if self._loss.is_whole(self._found.refs[HEADS + name])]
            branch = DEFAULT_BRANCH if DEFAULT_BRANCH in branches else next(iter(whole or branches), None)
        else:
            branch = None
        target = self._newest_whole(HEAD, oid) if branch is None else None
        aside = DAMAGED + REF + HEAD if oid is None else None
        if branch is not None:
            at = self._repo.refs.read(HEADS + branch)
        elif target is not None:
            at = target.oid
        else:
            at = None
        if at is None:
            self.left.append("HEAD: nothing that it was ever at can be read whole; it is left as it is")
        elif self._repo.refs.replace(HEAD, raw=raw, new=at, action=ACTION, aside=aside, branch=branch):
            self.done.append(f"HEAD: it is {f'on branch {branch}' if branch else f'at {at.short}'} now")
        else:
            self.left.append("HEAD: it was moved meanwhile; run fsck again")

    def _newest_whole(self, name: str, oid: ObjectId | None) -> Commit | None:
        """The newest commit before `oid` whose state is whole; else by what the reflog says of the ref."""
        seen = IdSet()
        logged = [oid for _, ids in reversed(list(self._found.lines(name))) for oid in ids]
        for start in [*([oid] if oid is not None else []), *logged]:
            for found, commit in self._loss.ancestors(start, seen=seen):
                if commit is not None and self._loss.is_whole(found):
                    return commit
        return None

    def _tagged(self, name: str) -> Commit | None:
        """The commit that a tag was put on last, by its reflog; a tag does not go elsewhere."""
        for _, ids in reversed(list(self._found.lines(name))):
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
            kept = [parent for parent in self._found.parents(commit) if parent not in lost]
            key, value = shallow_row(oid, kept)
            before = self._store.get(key)
            if before is not None and oid not in self._found.shallow:
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
                moved += self._set_object_aside(oid, row)
        if moved:
            self.done.append(f"moved {_objects(moved)} aside, to {DAMAGED}: writing the same again will heal")
        if noted:
            self.done.append(f"noted {_objects(noted, 'missing ')} as lost")

    def _set_object_aside(self, oid: ObjectId, row: bytes | CorruptObject | CorruptStore) -> bool:
        key, aside = PREFIX + oid.hex(), DAMAGED + oid.hex()
        if isinstance(row, bytes):
            return self._store.transact({aside: row, key: None}, {key: row})
        try:
            self._store.set(aside, b"")
            self._store.delete(key)
        except (CorruptObject, CorruptStore) as error:
            self.left.append(f"object {oid} cannot be moved aside: {error.reason}")
            return False
        return True

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
