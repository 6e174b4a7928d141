"""Forgetting: a branch goes at once, with its reflog and every object that nothing else leads to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from vstate.errors import InvalidInput, StorageError
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.core import Core
from vstate.repo.names.refs import HEAD, HEADS, REF, REFLOG, ReflogEntry, check_ref_name, ref_of_line
from vstate.repo.rooms import GONE, Room
from vstate.repo.sweeps import retry_after_sweep, unfinished
from vstate.repo.upkeep.gc import MOST_DELETED, Sweep
from vstate.repo.upkeep.reach import Marks


def forget(repo: Core, name: str, seen: Commit | None = None) -> Commit:
    """As `Repository.delete_branch` promises with `forget`."""
    ref = HEADS + check_ref_name(name)

    def look() -> tuple[Commit, Core, Marks | None, Sequence[str]]:
        if (last := _forget_room(repo, name, seen)) is not None:
            return last, repo, None, ()
        head, room = repo.branch_at(name, seen), repo.home(ref)
        _require_not_head(repo, name)
        marks = Marks(room, without=[ref])
        return head, room, marks, _begin(room, marks, ref, head)

    last, room, marks, lines = retry_after_sweep(repo, look)
    if marks is not None:
        while (head := room.newest(name)) is not None:  # the branch may have moved
            if seen is not None and head.oid != seen.oid:
                raise repo.ref_moved(ref, seen.oid)
            rows = repo.policies.rows_without(name) | unfinished(room.store) | dict.fromkeys(lines)
            if repo.refs.end(ref, rows, expected=head.oid, but_head=True):
                last = head
                break
            _require_not_head(repo, name)
        else:
            if repo.refs.read(ref) is not None:  # in another room by now
                raise repo.ref_moved(ref, None)
        marks.without = frozenset()  # a new branch may have the name by now
        # Without transactions, two processes that remove objects could take each other's for damage.
        if room.store.transactional:
            Sweep(room).remove_garbage(marks)
        repo.objects.drop()
    repo.history.reload()
    with suppress(StorageError):  # what was deleted is gone; its bytes go from the files later then
        repo.store.release()
    return last


def _require_not_head(repo: Core, name: str) -> None:
    if repo.refs.head().branch == name:
        raise InvalidInput(f"HEAD is on branch {name!r}; switch to another branch before deleting it")


def _forget_room(repo: Core, name: str, seen: Commit | None) -> Commit | None:
    """Forget a branch with its room, in one transaction; its newest commit, None if it shares the room, or
    has many rows.
    """
    ref = HEADS + name
    if repo.rooms is None or not (number := repo.rooms.room_of(ref)):
        return None
    room = Room(repo.store, number)
    last: Commit | None = None

    def rows() -> Mapping[str, bytes | None]:
        nonlocal last
        last = None
        _require_not_head(repo, name)
        keys = list(islice(room.own_keys(), MOST_DELETED + 1))
        # The reflog of a branch that was deleted may keep objects too.
        others = [key for key in keys if key.startswith(REF) and key != REF + ref]
        others += [key for key in keys if key.startswith(REFLOG) and ref_of_line(key) != ref]
        if others or REF + ref not in keys or len(keys) > MOST_DELETED:
            return {}
        last = repo.branch_at(name, seen)
        rows = repo.refs.rows_of_end(ref, last.oid)
        return {**dict.fromkeys([*keys, GONE + ref]), **rows, **repo.policies.rows_without(name)}

    return last if room.exclusively(rows) else None


def _begin(room: Core, marks: Marks, ref: str, head: Commit) -> list[str]:
    """Mark the objects that stay. Returns the lines of HEAD that go, of commits of this branch alone."""
    of_branch: list[ObjectId] = [head.oid]
    of_head: dict[str, ReflogEntry] = {}

    def keeps(key: str, line: ReflogEntry) -> Sequence[ObjectId] | None:
        name = ref_of_line(key)
        if name == HEAD:
            of_head[key] = line
        elif name == ref:
            of_branch.extend(line.commits)
        return None if name in (HEAD, ref) else line.commits

    marks.begin(keeps)
    own = _below(room, marks, of_branch) if of_head else ()
    lines = []
    for key, line in of_head.items():
        left = [oid for oid in line.commits if oid not in own]
        marks.extend_where_present(left)
        if line.commits and not left:
            lines.append(key)
    return lines


def _below(room: Core, marks: Marks, commits: Iterable[ObjectId]) -> set[ObjectId]:
    """These commits and their ancestors, as far as they are there and nothing else leads to them."""
    own = set[ObjectId]()
    new = {oid for oid in commits if oid not in marks and room.objects.is_stored(oid)}
    while new:
        own |= new
        found = marks.history.commits(list(new))
        parents = (oid for commit in found for oid in marks.history.parents(commit))
        new = {oid for oid in parents if oid not in marks and oid not in own}
    return own
