"""Sync: moves commits, branches and tags from one store to another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Literal

from vstate.errors import (
    CorruptObject,
    CorruptStore,
    Diverged,
    InvalidInput,
    NotFound,
    ReadOnly,
    StorageError,
    StoreUnavailable,
)
from vstate.kv.base import OBJECT_PREFIX, KVStore
from vstate.kv.url import open_store
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.core import Core
from vstate.repo.exchange.difference import TransferProgress
from vstate.repo.exchange.transfer import Copied, Transfer
from vstate.repo.merge.three_way import MergeResult
from vstate.repo.names.refs import HEADS, REMOTES, SWEEP, TAGS, absent, check_ref_name
from vstate.repo.names.remotes import (
    ORIGIN,
    Remotes,
    check_remote_name,
    check_stays,
    expanded,
    is_remote_name,
)
from vstate.repo.rooms import new_room
from vstate.similar import similar

Status = Literal["created", "moved", "forced", "unchanged", "deleted", "left", "fetched"]


@dataclass(frozen=True, slots=True)
class SyncRef:
    """A ref that is at `new` now and was at `old` before; None where there was no ref.

    `status`: the ref was `created`; it `moved` ahead; it was `forced` to a commit that does not follow `old`;
    it was at `new` already, `unchanged`; it was `deleted`; a tag at another commit was `left`; or `new` was
    only `fetched`, because the fetch named no remote. `objects` and `bytes`, of the stored form, were written
    for the ref.
    """

    name: str
    status: Status
    old: str | None
    new: str | None
    objects: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        was = f", was {self.old[:10]}" if self.old is not None and self.old != self.new else ""
        at = "" if self.new is None else f" {self.new[:10]}"
        return f"{self.name}{at}: {self.status}{was}"


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The results of a push, fetch or clone: the refs, and the totals written, in bytes of the stored form.

    `not_noted` is empty, or the reason why a push could not update tracking refs such as `origin/main`.
    """

    refs: Sequence[SyncRef]
    objects: int
    bytes: int
    seconds: float
    not_noted: str = ""

    def __str__(self) -> str:
        lines = [f"{counted(self.objects, 'object')} of {counted(self.bytes, 'byte')} ({self.seconds:.2f} s)"]
        noted = [f"not noted here: {self.not_noted}"] if self.not_noted else []
        return "\n".join([*lines, *map(str, self.refs), *noted])


@dataclass(frozen=True, slots=True)
class Wanted:
    """A ref of the target, and its new commit.

    `otherwise` is what happens if the ref is at a commit that does not lead to this one: Diverged is raised,
    the ref is forced to go there, or it is left where it is. No tag leads to another commit. `moves` is False
    if the commit alone is wanted. `rows` are written with a new ref. `branch` is a ref of the source that
    leads to the commit, if there is one.
    """

    ref: str
    oid: ObjectId
    otherwise: Literal["raise", "force", "leave"] = "raise"
    moves: bool = True
    branch: str | None = None
    rows: Mapping[str, bytes | None] = field(default_factory=dict)


@contextmanager
def _connected(
    repo: Core,
    place: Core | KVStore | str | PathLike[str] | None,
    *,
    create: bool | None = None,
) -> Iterator[tuple[Core, str | None]]:
    """The core of another store, and the name of its remote if it has one here.

    `place` is that core, its store, the name of a remote, a path or URL, or None for the default remote. A
    store that is opened here is closed again. NotFound if there is no store, unless `create` allows a new
    one. If `create` is False, not None, the error suggests it.
    """
    if isinstance(place, Core):
        yield place, None
        return
    if isinstance(place, KVStore):
        yield Core(place), None
        return
    remotes = Remotes(repo.store)
    name = remotes.default() if place is None else os.fspath(place)
    url = remotes.url(name)
    if url is None:
        check_stays(name)
    try:
        store = open_store(expanded(name if url is None else url), create=bool(create))
    except NotFound as error:
        if url is None and is_remote_name(name):
            message = f"{name!r} is no remote and no store"
            if repo.refs.read(HEADS + name) is not None:
                message += f"; a branch is named behind the remote, as in `vstate push {ORIGIN} {name}`"
            else:
                message += f"; add it with `vstate remote add {name} URL`, or write ./{name} for a directory"
            raise NotFound(message, name=name, candidates=similar(name, remotes.list())) from error
        if create is False:
            raise NotFound(f"{error}; push with create=True to make it", name=error.name) from error
        raise
    with store:
        yield Core(store), None if url is None else name


def push(
    repo: Core,
    place: Core | KVStore | str | PathLike[str] | None,
    branches: str | Iterable[str] | None,
    *,
    force: bool,
    tags: bool,
    delete: str | Iterable[str],
    remote: str | None,
    create: bool,
    progress: TransferProgress | None,
) -> SyncReport:
    """As `Repository.push` promises."""
    began, not_noted = time.monotonic(), ""
    gone = _names(delete)
    if branches is None:
        branches = [] if gone else [_current(repo)]
    names = _names(branches)
    with _connected(repo, place, create=create) as (other, name):
        remote = remote or name
        if remote is not None:
            check_remote_name(remote)
        work = Sync(repo, other, near=repo, action="push", progress=progress)

        otherwise: Literal["raise", "force"] = "force" if force else "raise"

        def wanted() -> list[Wanted]:
            found = [
                Wanted(HEADS + name, repo.branch(name).oid, otherwise, rows=rows_beside(repo, name))
                for name in names
            ]
            if tags:
                found += [Wanted(TAGS + name, tag.oid, otherwise) for name, tag in repo.tags().items()]
            return found

        first = wanted()
        _check_deletable(other, gone)
        # Before anything is sent. Each ref is checked again when it moves.
        for item, old in zip(first, other.refs.read_many([item.ref for item in first]), strict=True):
            work.status(item, old)
        try:
            work.run(wanted, first)
            for name in gone:
                work.done[HEADS + name] = SyncRef(HEADS + name, "deleted", other.delete_branch(name).id, None)
        finally:
            # Also after an error: some of the branches may have moved.
            if remote is not None:
                not_noted = _note(repo, remote, work.done.values())
    return replace(work.report(began), not_noted=not_noted)


def fetch(
    repo: Core,
    place: Core | KVStore | str | PathLike[str] | None,
    branches: str | Iterable[str] | None,
    *,
    remote: str | None,
    tags: bool,
    progress: TransferProgress | None,
) -> SyncReport:
    """As `Repository.fetch` promises."""
    began = time.monotonic()
    names = None if branches is None else _names(branches)

    with _connected(repo, place) as (other, name):
        remote = remote or name

        def wanted() -> list[Wanted]:
            found = []
            for name, oid in _heads(other, names).items():
                if remote is not None:
                    found.append(Wanted(tracking_ref(remote, name), oid, "force", branch=HEADS + name))
                else:
                    found.append(Wanted(HEADS + name, oid, moves=False, branch=HEADS + name))
            if tags:
                found += [Wanted(TAGS + n, oid, "leave") for n, oid in checked_refs(other, TAGS).items()]
            return found

        action = "fetch" if remote is None else f"fetch: from {remote}"
        work = Sync(other, repo, near=repo, action=action, progress=progress)
        work.run(wanted)
        return work.report(began)


def pull(
    repo: Core,
    place: Core | KVStore | str | PathLike[str] | None,
    branch: str,
    merge: Callable[[ObjectId, str], MergeResult],
    *,
    remote: str | None,
    progress: TransferProgress | None,
) -> tuple[SyncReport, MergeResult]:
    """Fetch a branch, and merge it by `merge(commit, name)` into the branch of that name, or create that.

    The reports of the fetch and of the merge. Raises the errors of `fetch` and `merge`, UntrustedCommit, and
    Diverged if a merge would bring back history that the other store has dropped.
    """
    with _connected(repo, place) as (other, name):
        remote = remote or name
        report = fetch(repo, other, branch, remote=remote, tags=False, progress=progress)
        oid = ObjectId.parse(str(report.refs[0].new))
        repo.require_trusted(repo.objects.commit(oid))
        if repo.refs.read(HEADS + branch) is None:
            work = Sync(other, repo, near=repo, action="pull: created", progress=progress)
            rows = rows_beside(other, branch)
            work.run(lambda: [Wanted(HEADS + branch, oid, "leave", rows=rows)])
            if work.done[HEADS + branch].status == "created":
                commit = repo.objects.commit(oid)
                keys = tuple(key for key, _ in repo.entries(commit.root))
                return report, MergeResult(commit, "fast-forward", keys)
        where = f"{branch} of {other.store.location}" if remote is None else f"{remote}/{branch}"
    _require_continued(repo, branch, oid, remote)
    return report, merge(oid, where)


def _require_continued(repo: Core, branch: str, fetched: ObjectId, remote: str | None) -> None:
    """Raise Diverged if a merge would bring back history that the fetched branch has dropped.

    The last commit of the remote that the branch here holds has to be in the history of the fetched one. If
    no such commit is known, the two need any history in common.
    """
    history, head = repo.history, repo.refs.read(HEADS + branch)
    if head is None or repo.is_behind(fetched, head) or repo.is_behind(head, fetched):
        return
    last = None
    if remote is not None:
        moves = repo.refs.reflog(tracking_ref(remote, branch))
        known = (move.new for move in moves if move.new is not None)
        last = next((oid for oid in known if repo.is_behind(oid, head)), None)
    if repo.is_behind(last, fetched) if last is not None else history.merge_bases(head, fetched):
        return
    if any(map(history.is_shallow, history.ancestors(head, fetched))):
        return  # nobody knows: the way to the fetched commit was cut off
    name = fetched.short if remote is None else f"{remote}/{branch}"
    raise Diverged(
        HEADS + branch,
        ours=str(head),
        theirs=str(fetched),
        fetched=name,
        dropped=None if last is None else str(last),
    )


class Sync:
    """One push, fetch, clone or import. Refs move one after the other, each once all its objects are there.

    With `since`, the source continues from these commits, which the target has. Then no ref moves before all
    objects are there, and each object that is there already is read and, if it is damaged, written again.
    """

    def __init__(
        self,
        source: Core,
        target: Core,
        *,
        near: Core,
        action: str,
        progress: TransferProgress | None,
        since: Sequence[ObjectId] | None = None,
    ) -> None:
        self._since = since
        self._source = source
        self._target = target
        self._near = near
        self._action = action
        self._progress = progress or (lambda step, count, total: None)
        self._written: dict[str, tuple[int, int]] = {}
        self._new_rooms: dict[int, int] = {}
        """By a room of the source, the new room of the target for its new branches."""
        self.done: dict[str, SyncRef] = {}
        # Another process may have cut histories off since they were read.
        source.history.reload()

    def run(self, wanted: Callable[[], Sequence[Wanted]], first: Sequence[Wanted] | None = None) -> None:
        """Move the wanted refs. If gc sweeps meanwhile, call `wanted` again and repeat the rest.

        `first` is the result of a call of `wanted` that was made just before.
        """
        while True:
            before = self._source.refs.sweep()
            transfers: dict[int, Transfer] = {}
            try:
                items = wanted() if first is None else first
                brought = (
                    (item, *self._copied(item, transfers)) for item in items if item.ref not in self.done
                )
                if all(self._move(*each) for each in (brought if self._since is None else [*brought])):
                    return
            except CorruptObject:
                swept = [transfer for transfer in transfers.values() if transfer.is_swept]
                if self._source.refs.sweep() == before and not swept:
                    raise
                self._source.history.reload()
            finally:
                self._target.history.reload()
            first = None

    def report(self, began: float) -> SyncReport:
        """The report for the caller."""
        refs = list(self.done.values())
        objects, size = sum(ref.objects for ref in refs), sum(ref.bytes for ref in refs)
        return SyncReport(refs, objects, size, time.monotonic() - began)

    def status(self, wanted: Wanted, old: ObjectId | None) -> Status:
        """The new status of a ref that is at `old`; Diverged if it may not move."""
        if not wanted.moves:
            return "fetched"
        if old is None:
            return "created"
        if old == wanted.oid:
            return "unchanged"
        if not wanted.ref.startswith(TAGS) and self._is_behind(old, wanted.oid):
            return "moved"
        if wanted.otherwise == "raise":
            raise Diverged(wanted.ref, ours=str(wanted.oid), theirs=str(old))
        return "forced" if wanted.otherwise == "force" else "left"

    def _is_behind(self, old: ObjectId, new: ObjectId) -> bool:
        try:
            return self._near.objects.find_commit(old) is not None and self._near.history.is_ancestor(
                old, new
            )
        except CorruptObject:  # nobody knows
            return False

    def _transfer(self, wanted: Wanted, transfers: dict[int, Transfer]) -> Transfer:
        """The transfer into the room of a ref.

        A tracking ref that is new lies in the room of the branch of that name here, and so does a commit that
        no ref is to lead to. Any other new ref gets a new room, with those that have one room in the source.
        """
        number, source = 0, wanted.branch or wanted.ref
        if (rooms := self._target.rooms) is not None:
            number = rooms.room_of(wanted.ref)
            here = number or rooms.room_of(source)
            there = 0 if self._source.rooms is None else self._source.rooms.room_of(source)
            if not number and (here or there) and self._target.refs.read(wanted.ref) is None:
                is_apart = there and not here and wanted.moves and self._target.store.transactional
                number = self._new_rooms.setdefault(there, new_room()) if is_apart else here
        if number not in transfers:
            target = self._target if rooms is None else self._target.room(number)
            near = target if self._near is self._target else self._near
            transfers[number] = Transfer(self._source, target, near, self._progress, self._since)
        return transfers[number]

    def _copied(self, wanted: Wanted, transfers: dict[int, Transfer]) -> tuple[Transfer, Copied | None]:
        """The transfer of a ref, and the copied objects that it needs; none if it stays."""
        transfer = self._transfer(wanted, transfers)
        old = transfer.target.refs.read(wanted.ref) if wanted.otherwise == "leave" else None
        if old is not None and self.status(wanted, old) == "left":
            return transfer, None
        copied = transfer.copy(wanted.oid, wanted.branch)
        objects, size = self._written.get(wanted.ref, (0, 0))
        self._written[wanted.ref] = objects + copied.objects, size + copied.bytes
        return transfer, copied

    def _move(self, wanted: Wanted, transfer: Transfer, copied: Copied | None) -> bool:
        """Move a ref; False if gc has swept since its objects were copied."""
        refs = transfer.target.refs
        while True:
            old = refs.read(wanted.ref) if wanted.moves else None
            status = self.status(wanted, old)
            if copied is None and status != "left":
                return False
            if copied is None or self._publish(wanted, status, old, copied, transfer):
                new = old if status == "left" else wanted.oid
                objects, size = self._written.get(wanted.ref, (0, 0))
                self.done[wanted.ref] = SyncRef(wanted.ref, status, _text(old), _text(new), objects, size)
                return True
            # If neither has moved, a commit has arrived where a row was about to cut the history off.
            if transfer.is_swept or not wanted.moves or refs.read(wanted.ref) == old:
                return False

    def _publish(
        self, wanted: Wanted, status: Status, old: ObjectId | None, copied: Copied, transfer: Transfer
    ) -> bool:
        """Move the ref, if it moves, and write the rows that go with it.

        False if the ref has moved, gc has swept, or a commit that was absent is there now.
        """
        target, rows = transfer.target, dict(copied.ends.rows)
        conditions = {
            SWEEP: transfer.sweep,
            **{OBJECT_PREFIX + oid.hex(): None for oid in copied.ends.absent},
        }
        if status not in ("fetched", "left"):
            rows |= dict.fromkeys(copied.arrived)  # a ref leads to them now
        if copied.objects or wanted.moves:
            target.stamp()
        if status in ("fetched", "left", "unchanged"):
            return not (rows or status == "fetched") or target.store.transact(rows, conditions)
        rows |= wanted.rows if old is None else {}
        try:
            return target.refs.compare_and_swap(
                wanted.ref,
                rows=rows,
                expected=old,
                new=wanted.oid,
                action=self._action,
                expecting=conditions,
            )
        except StoreUnavailable as error:
            if not error.outcome_unknown or target.refs.read(wanted.ref) != wanted.oid:
                raise
            return True


def _note(repo: Core, remote: str, refs: Iterable[SyncRef]) -> str:
    """Update the tracking refs of a remote after a push; "" or the reason why that failed.

    Raises no error of this store: the refs of the remote have moved, and the caller has to learn that.
    """
    try:
        for ref in refs:
            if ref.name.startswith(HEADS):
                oid = None if ref.new is None else ObjectId.parse(ref.new)
                _track(repo, remote, ref.name.removeprefix(HEADS), oid)
    except (ReadOnly, StorageError) as error:
        return str(error)
    return ""


def _track(repo: Core, remote: str, branch: str, oid: ObjectId | None) -> None:
    """Move a tracking ref to a commit of this store."""
    ref = tracking_ref(remote, branch)
    action = f"push: to {remote}"
    while (old := repo.refs.read(ref)) != oid:
        if oid is None:
            repo.refs.compare_and_swap(ref, expected=old, new=None, action=action)
            continue
        with suppress(NotFound):  # the branch has moved on here, and gc has removed the commit
            if not repo.move(ref, expected=old, to=oid, action=action):
                continue
        return


def tracking_ref(remote: str, branch: str) -> str:
    """The ref that notes the last known commit of a branch of a remote; InvalidInput for a bad name."""
    return f"{REMOTES}{check_remote_name(remote)}/{branch}"


def rows_beside(repo: Core, branch: str) -> Mapping[str, bytes | None]:
    """The rows that give a new branch the merge policies and labels of this one."""
    repo.policies.read(branch)  # raises for damaged rows, which are not copied
    repo.labels([branch])
    return {key: row for key, row in repo.rows_like(branch, branch).items() if row is not None}


def _heads(repo: Core, names: Sequence[str] | None) -> dict[str, ObjectId]:
    heads = repo.refs.list(HEADS) if names is not None else checked_refs(repo, HEADS)
    for name in names or ():
        if name not in heads:
            raise absent(f"{repo.store.location} has no branch {name!r}", name, heads, "branch")
    return heads if names is None else {name: heads[name] for name in names}


def checked_refs(repo: Core, prefix: str) -> dict[str, ObjectId]:
    """The refs of another store under `heads/` or `tags/`; CorruptStore if one has a forbidden name."""
    found = repo.refs.list(prefix)
    for name in found:
        if not is_ref_name(name):
            raise CorruptStore(
                repo.store.location,
                f"{prefix}{name!r} is no name of a ref, though other branches can be fetched by name",
                repairable=True,
            )
    return found


def is_ref_name(name: str) -> bool:
    """Whether a branch, or a tag, may have this name."""
    try:
        check_ref_name(name)
    except InvalidInput:
        return False
    return True


def _names(names: str | Iterable[str]) -> list[str]:
    return [check_ref_name(name) for name in dict.fromkeys([names] if isinstance(names, str) else names)]


def _check_deletable(repo: Core, names: Sequence[str]) -> None:
    """NotFound if the store lacks a branch to delete, InvalidInput if HEAD is on it."""
    _heads(repo, names)
    head = repo.refs.head().branch
    if head in names:
        raise InvalidInput(
            f"HEAD of {repo.store.location} is on branch {head!r}; switch to another branch there "
            "before deleting it"
        )


def _current(repo: Core) -> str:
    branch = repo.refs.head().branch
    if branch is None:
        raise InvalidInput(
            f"HEAD is on no branch; name the branches to push, as in `vstate push {ORIGIN} main`"
        )
    return branch


def _text(oid: ObjectId | None) -> str | None:
    return None if oid is None else str(oid)
