"""Opening: the store behind an adapter, which the adapter closes if it opened the store."""

from __future__ import annotations

import copy
import pickle
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from os import PathLike, fspath
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

from vstate.aio.workers import in_thread
from vstate.arguments import storable
from vstate.errors import AlreadyExists, InvalidInput, NotFound, RefMoved, StorageError
from vstate.forks import Uncopied, new_lock
from vstate.integrations.branches import IDS, BranchName, beginnings, branch_of, branches_below
from vstate.kv.base import KVStore
from vstate.kv.disk import Disk
from vstate.kv.url import location_of, open_store
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.patterns.fields import path_to
from vstate.patterns.journal import I, Journal, Journals, T
from vstate.readers.stored import marks
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.repo.rules.keeps import Keep
from vstate.repo.rules.labels import Atom, Label
from vstate.repo.rules.security import Security
from vstate.repo.upkeep.gc import Collector
from vstate.repo.writing import BranchChanges
from vstate.state.base import ReadableState
from vstate.state.live import Live
from vstate.state.snapshot import Snapshot
from vstate.values.pickling import loads

StoreLike = KVStore | str | PathLike[str] | None
"""A store for an adapter: a KVStore, a path, a URL, or None for memory."""

KeepLike = Keep | str | timedelta | None
"""How long an adapter keeps its branches: a Keep, or its `idle`. None leaves the rule in the store alone."""

Changes = tuple[Mapping[str, Any], Iterable[str]]
"""The keys that a commit sets, with their values, and the keys that it deletes."""

BEGUN: Final = "vstate.begun"
"""The label by which a branch differs from another one of its name, before or after a deletion."""

_NO_LABELS: Final[Mapping[str, Atom]] = MappingProxyType({})
_MOST_KNOWN: Final = 100_000  # branches, and parts of branches
_LINE: Final = 80  # characters

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Seen(NamedTuple):
    """The newest commit of a branch that an adapter has seen, and the label of the branch's beginning.

    Without a commit, the adapter has deleted the branch, and has not read it since.
    """

    head: ObjectId | None
    begun: Label


class Opening(Uncopied):
    """The repository of an adapter, and the commits of its branches that the adapter has seen.

    - `path` is the directory of the store, by which a pickle of an adapter opens it again; None for another
      store, and for a URL, which may hold a password. `lent` is a store that the program opened.
    - A branch that was deleted stays deleted. A write to a branch that this adapter has seen raises NotFound
      if the branch is gone or begun anew, until the adapter has read that. The label `vstate.begun`, which a
      branch gets with its first commit, tells one beginning from another.
    """

    _instead = "each process opens an adapter of its own, so pass on the path or URL"

    def __init__(
        self,
        store: StoreLike,
        reader: str = "",
        *,
        allow: Iterable[str] = (),
        keep: KeepLike = None,
        prefix: tuple[str, ...] = (),
        branches: Iterable[str] = (),
    ) -> None:
        """Open a store. Its values load without classes, apart from those that `allow` names.

        A session of the adapter is a branch, named by `prefix` and the ids of the session. `reader` is the
        name of the reader of these branches, and `keep` the rule for them; with `branches`, for those whose
        names begin with one of these.
        """
        self.prefix = prefix
        opened = open_store(store)
        self.repo = Repository(opened, Security(allow=allow))
        self.path = _path_of(store)
        self.lent = opened if opened is store else None
        self._store = opened
        self._known: dict[str, _Seen] = {}
        self._parts: dict[tuple[str, ...], None] = {}
        self._lock = new_lock()
        if keep is not None:
            rule = keep if isinstance(keep, Keep) else Keep(idle=keep)
            for beginning in branches or beginnings(*prefix):
                if not beginning:
                    raise InvalidInput(
                        "keep is a rule for the branches below a prefix, and without one these are all "
                        "branches of the store: give a prefix, or use repo.keep"
                    )
                self.repo.keep(f"{beginning}*", **asdict(rule))
        self.marks = marks(reader)
        """The keys that the first commit of a branch sets."""

    def close(self) -> None:
        """Close the store if it was opened here."""
        if self.lent is None:
            self._store.close()

    def of_another(self) -> Self:
        """The same, for an adapter that does not close the store."""
        another = object.__new__(type(self))
        vars(another).update(vars(self))
        another.lent = self._store
        return another

    def branch(self, *ids: str) -> BranchName:
        """The name of the branch of a session."""
        return branch_of(*self.prefix, *ids)

    def sessions(self, *ids: str, labels: Mapping[str, Atom] = _NO_LABELS) -> dict[tuple[str, ...], Commit]:
        """The newest commits of the sessions whose ids begin with these, by all ids of each.

        Only of those that have all of `labels`.
        """
        return {ids: head for _, ids, head in self._heads(*ids, labels=labels)}

    def _heads(self, *ids: str, labels: Mapping[str, Atom]) -> Iterator[tuple[str, tuple[str, ...], Commit]]:
        below = branches_below(self.repo, *self.prefix, *ids, labels=labels)
        for name, head in self.repo.branches(below).items():
            yield name, below[name][len(self.prefix) :], head

    def newest(self, branch: str) -> Commit | None:
        """Read the newest commit of a branch, None if there is no such branch."""
        return self.seen(branch, self.repo.newest(branch))

    def read(
        self,
        branch: str,
        look: Callable[[Snapshot], T | None],
        *,
        at: Commit | None = None,
        follows: bool = True,
    ) -> T | None:
        """What a function makes of the newest commit of a branch; None if there is no such branch.

        `at` is the newest commit, if the caller has just read it. If the function fails because the branch
        has moved, it is called again. With `follows`, the adapter has seen the branch: its next write raises
        NotFound if somebody deletes the branch first.
        """
        newest = self.newest if follows else self.repo.newest
        head = at or newest(branch)
        while head is not None:
            try:
                return look(Snapshot(self.repo, head))
            except StorageError:
                known, head = head, newest(branch)
                if head is not None and head.oid == known.oid:
                    raise
        return None

    def read_all(
        self, look: Callable[[Snapshot], T | None], *ids: str, labels: Mapping[str, Atom] = _NO_LABELS
    ) -> Iterator[tuple[tuple[str, ...], T]]:
        """All ids of each of `sessions`, and what a function makes of it, where this is not None.

        A session that is deleted meanwhile is left out.
        """
        for name, found, head in self._heads(*ids, labels=labels):
            made = self.read(name, look, at=head, follows=False)
            if made is not None:
                yield found, made

    def seen(self, branch: str, head: Commit | None) -> Commit | None:
        """Note that the adapter has read a branch as it is at this commit. Returns the commit."""
        known = self._known.get(branch)
        if head is None:
            self._known.pop(branch, None)
        elif known is None or known.head != head.oid:
            begun = self._begun(branch)
            if known is None or known.begun != begun:
                # The label is read after the commit: another branch of this name may have begun meanwhile.
                newest = self.repo.newest(branch)
                if newest is None or not self.repo.is_behind(head.oid, newest.oid):
                    begun = ""  # no branch has it
            self._note(self._known, branch, _Seen(head.oid, begun))
        return head

    def wrote(self, branch: str, head: Commit | None, labels: Mapping[str, Label] | None = None) -> None:
        """The same for a commit of this adapter: the branch began as the labels say, or as it knows."""
        known = self._known.get(branch)
        if head is not None and labels and BEGUN in labels:
            self._note(self._known, branch, _Seen(head.oid, labels[BEGUN]))
        elif head is not None and known is not None:
            self._note(self._known, branch, known._replace(head=head.oid))
        else:
            self.seen(branch, head)

    def require_standing(self, branch: str, head: Commit | None) -> None:
        """Raise NotFound for a write beside a deletion: it would bring the deleted data back.

        The branch at this commit must be the one that was seen, and not one that began after a deletion.
        """
        known = self._known.get(branch)
        if known is None or (head is not None and head.oid == known.head):
            return
        if head is None:
            stands = self.repo.newest(branch) is not None  # another thread has just begun it
        else:
            # A branch that is back by the reflog has lost its labels, or has new ones.
            stands = self._begun(branch) == known.begun or (
                known.head is not None and self.repo.is_behind(known.head, head.oid)
            )
        if not stands:
            raise NotFound(
                f"branch {branch!r} was deleted since this program read it, so nothing is written: read it "
                "again, and begin anew",
                name=branch,
            )

    def labels(self, branch: str, head: Commit | None) -> Mapping[str, Label] | None:
        """The labels for a commit on top of this one: those that a branch begins with, if it has none."""
        known = self._known.get(branch)
        if head is not None and (known is None or known.begun is not None):
            return None
        kept = {} if head is None else self.repo.labels_at(branch) or {}
        return {**kept, **(first_labels(branch, None) or {}), BEGUN: token_hex(8)}

    def chats(self, make_index: Callable[[], I], name: str) -> Chats[I]:
        """The journals of this name on all branches."""
        return Chats(self, make_index, name)

    def know(self, *names: str) -> None:
        """Note that the adapter has read or written a part of a branch, such as a checkpoint."""
        self._note(self._parts, names, None)

    def knows(self, *names: str) -> bool:
        """Whether it has. So a write that follows the part is late if the part is not there."""
        return names in self._parts

    def _note(self, known: dict[_K, _V], key: _K, value: _V) -> None:
        with self._lock:
            known.pop(key, None)
            known[key] = value
            if len(known) > _MOST_KNOWN:
                del known[next(iter(known))]

    def _begun(self, branch: str) -> Label:
        return (self.repo.labels_at(branch) or {}).get(BEGUN)

    def commit(
        self,
        branch: str,
        changes: Callable[[ReadableState], Changes | None],
        *,
        message: str,
        labels: Mapping[str, Label] = _NO_LABELS,
    ) -> Commit | None:
        """Commit the changes that a function makes out of the branch; None if it makes none.

        Without a branch the function gets an empty state. It is called again if another writer was faster.
        Raises NotFound as `require_standing`. The branch also gets the labels.
        """

        def plan(head: Commit | None, state: ReadableState) -> tuple[Commit | None, Changes | None]:
            self.require_standing(branch, head)
            return head, changes(state)

        while True:
            found = self.read(branch, lambda state: plan(state.commit, state), follows=False)
            head, made = found or plan(None, Live())
            if made is None:
                return None
            try:
                return self.commit_on(branch, head, *made, message=message, labels=labels)
            except RefMoved:
                continue

    def commit_on(
        self,
        branch: str,
        head: Commit | None,
        new: Mapping[str, Any],
        gone: Iterable[str] = (),
        *,
        message: str,
        base: Commit | None = None,
        labels: Mapping[str, Label] = _NO_LABELS,
    ) -> Commit | None:
        """Set and delete keys on top of a commit, None to begin the branch, with `base` at that commit.

        Raises RefMoved if the branch is elsewhere.
        """
        begun = self.labels(branch, head)
        if labels:
            known = {} if begun else self.repo.labels_at(branch) or {}
            wanted = {**(begun or known), **labels}
            begun = None if wanted == known else wanted
        changes = BranchChanges(
            branch,
            set=new if head or base or not new else {**self.marks, **new},
            delete=gone,
            expect=head,
            base=base,
            labels=begun,
            message=message,
            room=True,
        )
        (commit,) = self.repo.commit_many([changes])
        self.wrote(branch, commit or head, begun)
        return commit

    def copy(self, source: str, branch: str, at: Commit | None = None) -> None:
        """Begin a branch at a commit, by default the newest one of another branch, with the labels of that.

        It is one ref; between shortened names it is also one commit, with the labels of the new one. Raises
        NotFound without the other branch, and AlreadyExists if the new one exists.
        """
        head = at or self.repo.newest(source)
        if head is None:
            raise NotFound(f"there is no branch {source!r}", name=source)
        known, own = self.repo.labels([source]).get(source, {}), first_labels(branch, None)
        if own is None and IDS not in known:
            self.repo.create_branch(branch, head, like=source)
        else:
            labels = {name: label for name, label in known.items() if name != IDS} | {**(own or {})}
            changes = BranchChanges(branch, base=head, labels=labels, message=f"copy of {source}")
            try:
                self.repo.commit_many([changes])
            except RefMoved:
                raise AlreadyExists(f"branch {branch!r} already exists", name=branch) from None

    def shorten(self, branch: str) -> None:
        """Remove all but the newest commit of a branch at once, if it has a room of its own."""
        number = 0 if self.repo.rooms is None else self.repo.rooms.room_of(HEADS + branch)
        if number:
            with suppress(NotFound):  # deleted meanwhile
                Collector(self.repo, limits={branch: Keep(last=1)}).collect(number)

    def delete(self, branch: str, *, keep_history: bool = False, seen: Commit | None = None) -> Commit | None:
        """Delete a branch, with the commits that arrive meanwhile; its newest commit, None if there is none.

        The store has nothing of it afterwards. With `keep_history`, the reflog keeps it for 30 days. A branch
        that is not at `seen` any more stays: None too.
        """
        while True:
            try:
                last = self.repo.delete_branch(branch, forget=not keep_history, seen=seen)
            except NotFound:
                return None
            except RefMoved:
                if seen is not None:
                    return None
                continue
            if branch in self._known:
                self._note(self._known, branch, self._known[branch]._replace(head=None))
            return last


class Chats(Journals[I]):
    """The journals of the branches of an adapter. A deleted one stays deleted, as `Opening` says."""

    def __init__(self, opening: Opening, make_index: Callable[[], I], name: str) -> None:
        super().__init__(
            lambda branch: Journal(
                opening.repo,
                branch,
                make_index,
                name=name,
                labels=lambda own, _: opening.labels(branch, own.head),
                marks=opening.marks,
                room=True,
            )
        )
        self._opening = opening

    def read(self, branch: str, look: Callable[[I], T]) -> T:
        """What a function makes of the index of the newest commit."""
        journal = self[branch]
        with journal.lock:
            found = look(journal.refresh())
            self._opening.seen(branch, journal.head)
            return found

    def write(
        self,
        branch: str,
        plan: Callable[[I], Iterable[Any]],
        message: str,
        *,
        anew: bool = False,
        follows: bool = True,
        beside: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Append what a function makes of the newest index, or replace all records by it.

        If it `follows` what was read, it raises NotFound if the branch was deleted since. An append also sets
        the keys `beside` the journal, which the function may have filled.
        """
        journal = self[branch]

        def checked(index: I) -> Iterable[Any]:
            if follows:
                self._opening.require_standing(branch, journal.head)
            return plan(index)

        with journal.lock:
            if anew:
                journal.rewrite(checked, message=message)
            else:
                journal.append(checked, message=message, fresh=True, beside=beside)
            self._opening.wrote(branch, journal.head, journal.labels)

    def delete(self, branch: str, *, keep_history: bool) -> Commit | None:
        """Delete a branch, as `Opening.delete` does, and its journal from memory."""
        last = self._opening.delete(branch, keep_history=keep_history)
        self.drop(branch)
        return last


def intake(repo: Repository, branch: str, make_index: Callable[[], I], name: str, reader: str) -> Journal[I]:
    """A journal for records of another program, by this repository, which may sign its commits."""
    return Journal(
        repo,
        branch,
        make_index,
        name=name,
        labels=lambda own, _: first_labels(branch, own.head),
        marks=marks(reader),
        room=True,
    )


@contextmanager
def sqlite_tables(file: str | PathLike[str], title: str) -> Iterator[sqlite3.Connection]:
    """A file of another program, opened for reading only. `title` names such files in errors.

    Raises NotFound without the file, and InvalidInput if SQLite cannot read it as the block wants.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise NotFound(f"no file {path}", name=str(path))
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise InvalidInput(f"{path} is no file of {title}: {error}") from None


def first_labels(branch: str, head: Commit | None) -> Mapping[str, Any] | None:
    """The labels for a commit on top of this one: those of the branch, if it is the first."""
    return branch.labels if head is None and isinstance(branch, BranchName) else None


def summary(*lines: str) -> str:
    """The message of a commit: the first line of each text, shortened."""
    short = []
    for text in lines:
        line = (text if text.isascii() else storable(text)).strip().partition("\n")[0]
        short.append(line if len(line) <= _LINE else f"{line[: _LINE - 1]}…")
    return "\n".join(short)


def copied(value: T) -> T:
    """A copy of plain data: the program may edit it, and the journal keeps its own. Raises InvalidInput."""
    try:
        another: T = loads(pickle.dumps(value, 5))
        return another
    except Exception as error:  # pickling an object of the program may raise anything
        where = path_to(value, lambda part: pickle.dumps(part, 5))
        raise InvalidInput(f"an entry of a session is plain data: entries{where}: {error}") from error


class _Adapter:
    """The promises of all adapters.

    - `store` is a KVStore, a path, a URL, or None for memory. `close()`, or the end of a `with` block, closes
      a store that was opened here.
    - Tasks, threads and processes may share the data. A cancelled call has ended before the cancellation
      comes out.
    - Each call may raise StoreUnavailable and the other errors of `vstate`.
    - A deep copy shares the store, and does not close it.
    - `keep` is how long a thread, session or chat stays after its last commit, such as "30d"; or a
      `vstate.Keep`, which may limit its history too. It is the rule for all of them that `repo.keep` sets,
      and counts for every program. None leaves the rule as it is.
    """

    _opening: Opening

    @property
    def repo(self) -> Repository:
        """The repository of the adapter's branches."""
        return self._opening.repo

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        copied = copy.copy(self)
        copied._opening = self._opening.of_another()
        return copied


def required_path(adapter: Any) -> str:
    """The directory of the adapter's store. Raises TypeError if a copy could not open the store by one."""
    path: str | None = adapter._opening.path
    if path is None:
        raise TypeError(
            f"a {type(adapter).__name__} names its store in a copy by a path only: open the store by its path"
        )
    return path


class Opened(_Adapter):
    """An adapter that is closed by a call, or at the end of a `with` or `async with` block."""

    def close(self) -> None:
        """Close the store if it was opened here."""
        self._opening.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await in_thread(self.close)


class OpenedModel(Opened):
    """An adapter that is a model of pydantic. Its `path` is the store in a dump and in a pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (required_path(self),)


class AsyncOpened(_Adapter):
    """An adapter that is closed by a call that is awaited, or at the end of an `async with` block."""

    async def close(self) -> None:
        """Close the store if it was opened here."""
        await in_thread(self._opening.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


def _path_of(store: StoreLike) -> str | None:
    if isinstance(store, KVStore):
        return str(Path(store.location).absolute()) if type(store) is Disk else None
    if store is None or location_of(store) != fspath(store):
        return None
    return str(Path(store).expanduser().absolute())
