"""Workspace: a directory whose files are committed with a state, and go where the state goes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import EllipsisType
from typing import Final, Self

from vstate.errors import Conflict, InvalidInput, KeyNotFound
from vstate.forks import Uncopied
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.compare.diff import Diff
from vstate.repo.core import Revision
from vstate.repo.rules.workspaces import WorkspaceRow, note_workspace, path_of, this_host
from vstate.state.moving import go_to_newest
from vstate.state.slots import ABSENT
from vstate.state.snapshot import Snapshot
from vstate.state.versioned import Versioned
from vstate.values.file import File
from vstate.workspace.directory import Directory, Status
from vstate.workspace.paths import to_name, to_path
from vstate.workspace.scan import Edit

PREFIX: Final = "files/"


class Files(Mapping[str, File]):
    """The files of one commit by path, read-only. Each is read when it is asked for; nothing is unpickled."""

    def __init__(self, snapshot: Snapshot, prefix: str) -> None:
        self._snapshot = snapshot
        self._prefix = prefix

    @property
    def commit(self) -> Commit:
        """The commit."""
        return self._snapshot.commit

    def __getitem__(self, path: str) -> File:
        if isinstance(path, str):
            file = self._snapshot.inert(self._prefix + to_name(path))
            if isinstance(file, File):
                return file
        raise KeyNotFound(path)

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        for key in self._snapshot.keys(self._prefix):
            yield to_path(key[start:])

    def __len__(self) -> int:
        return len(self._snapshot.keys(self._prefix))

    def __repr__(self) -> str:
        return f"<Files of {self.commit.short}: {counted(len(self), 'file')}>"


class Workspace(Uncopied):
    """A directory of files that goes with a state: `Workspace(state, "project")`.

    Any program may edit the files. A commit of the state has them too, each as a File at the key
    `files/<path>`; a rollback, switch or merge of the state changes the files with it. `.gitignore` and
    `.vstateignore` say which new files no commit keeps.

    If the branch has moved on, the state and the files go to its newest commit. Raises UncommittedChanges,
    naming the keys, if a file was edited that this would change. `force` throws such edits away.
    """

    _instead = "open the state and the Workspace again where you need them"

    def __init__(
        self,
        state: Versioned,
        directory: str | os.PathLike[str],
        prefix: str = PREFIX,
        *,
        force: bool = False,
    ) -> None:
        if not isinstance(state, Versioned):
            raise TypeError(f"a Workspace goes with a Versioned, not with a {type(state).__name__}")
        if not prefix.endswith("/") or prefix == "/":
            raise InvalidInput(
                f"the prefix of a Workspace ends with a slash, as 'files/' does, not {prefix!r}"
            )
        self.state: Final = state
        self.prefix: Final = prefix
        self._handle = state._handle
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"a Workspace needs a directory, and {directory!r} is none: {error}"
            ) from error
        self.place: Final = os.path.realpath(directory)
        self._directory = Directory(state.repo, directory, prefix)
        self._edits: dict[str, Edit] = {}
        self._staged: dict[str, set[int]] = {}
        """By path, the hashes of the values that were staged since the last commit."""
        self._via: list[ObjectId | None] = []
        """Trees of commits that have the edits, on the way to where the state is."""
        self._left: ObjectId | EllipsisType | None = ...
        """The tree of the index after the last move of this Workspace. Another tree is another program's."""
        self._noted: WorkspaceRow | None = None
        for each in self._handle.companions:
            if isinstance(each, Workspace) and (each.prefix == prefix or each.place == self.place):
                raise InvalidInput(
                    f"the keys {each.prefix}… of this state go with {each.directory} already: close() that "
                    "Workspace first, or choose another directory and another prefix"
                )
        with self._handle.lock, self._handle.outside_held(self):
            self._handle.settle()
            go_to_newest(self._handle)  # where another program may have taken the files
            self._move(operation="opening the workspace", force=force)
            self._handle.companions = (*self._handle.companions, self)

    @property
    def directory(self) -> str:
        """The absolute path."""
        return self._directory.path

    def close(self) -> None:
        """Go with the state no more. The files stay as they are, and the next Workspace here finds edits."""
        handle = self._handle
        with handle.lock:
            handle.companions = tuple(each for each in handle.companions if each is not self)
            self._unstage(self._edits)
            self._edits = {}

    def _require_open(self) -> None:
        """Raise InvalidInput if this was closed: then no commit would have the edits of the files."""
        if self not in self._handle.companions:
            raise InvalidInput(f"the Workspace of {self.directory} is closed: open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Workspace {self.directory} of {self.state._title()}>"

    # What goes with the state

    def held(self) -> AbstractContextManager[None]:
        """Keep other programs from moving the files."""
        return self._directory.held()

    def begin_commit(self, branch: str, commit: ObjectId) -> None:
        """The commit of the staged edits is about to be made."""
        if self._edits:
            self._directory.begin_commit(branch, commit)

    def look(self, *, is_leaving: bool = False) -> None:
        """Stage the edits that were made since the last look.

        If another program has moved the files, these are no edits of the commit that the state is at. So
        nothing is staged, and Conflict is raised if a file was edited, unless the state `is_leaving`.
        """
        handle, directory = self._handle, self._directory
        with directory.locked():
            is_ours = directory.index.root == self._left
            # An exception came before the files, or somebody deleted the index.
            if (is_ours and self._left != self._root) or directory.loaded is None:
                self._move()
            edits = directory.scan(self._edits if is_ours else {})
            if directory.index.root not in (self._left, self._root):
                self._unstage(self._edits)
                self._edits = {}
                if edits and not is_leaving:
                    raise Conflict(
                        f"another program has moved the files in {self.directory}; nothing was committed: "
                        "refresh(), which takes the state there too, and try again"
                    )
                return
        self._unstage({path: edit for path, edit in self._edits.items() if path not in edits})
        for path, edit in edits.items():
            key = directory.key(path)
            slot = handle.at.table.slots.get(key)
            if slot is not None and slot.dirty and not self._has_staged(path, slot.value):
                continue  # the program has set the key: this is committed first, and the edit stays one
            if edit.file is None:
                if handle.contains(key):
                    self._staged.setdefault(path, set()).add(hash(ABSENT))
                    handle.delete(key)
            elif slot is None or slot.value is not edit.file:
                self._staged.setdefault(path, set()).add(hash(edit.file))
                handle.write(key, edit.file)
        self._edits = edits

    def _has_staged(self, path: str, value: object) -> bool:
        """Whether a look has staged this value for a file. A failed transaction may bring an earlier back."""
        return (value is ABSENT or isinstance(value, File)) and hash(value) in self._staged.get(path, ())

    def follow(self, ours: Commit | None = None) -> None:
        """Bring the files to the commit where the state is; `ours` is the commit that has its own edits."""
        if ours is not None and self._edits:
            self._via.append(ours.root)
        self._move(operation="" if ours else "refresh")

    def edited(self) -> list[str]:
        """The keys of the files that were edited."""
        self.look()
        return [self._directory.key(path) for path in self._edits]

    def keeps(self, key: str) -> bool:
        """Whether a change of the key stays in the directory when the state goes."""
        return key.startswith(self.prefix) and to_path(key[len(self.prefix) :]) in self._edits

    def _unstage(self, edits: Mapping[str, Edit]) -> None:
        """Forget what was staged for these edits, unless the program has set the keys since."""
        slots = self._handle.at.table.slots
        keys = {path: self._directory.key(path) for path in edits}
        staged = [
            key for path, key in keys.items() if key in slots and self._has_staged(path, slots[key].value)
        ]
        if staged:
            self._handle.discard(staged)

    def _move(self, *, operation: str = "refresh", force: bool = False) -> None:
        """Bring the files to the commit where the state is."""
        directory, at = self._directory, self._handle.at
        taken = {
            path: edit.sign if edit.settled else None
            for path, edit in self._edits.items()
            # Its value is the file itself, and clean: so it is committed.
            if edit.file is not None and at.table.cache.get(directory.key(path)) is edit.file
        }
        with directory.locked():
            if directory.index.root == self._left:
                operation = ""  # what was edited stays an edit
            directory.move(self._root, self._via, taken=taken, operation=operation, force=force)
            self._left = self._root
        self._edits = {path: edit for path, edit in self._edits.items() if path not in taken}
        self._staged = {path: values for path, values in self._staged.items() if path in self._edits}
        self._note()
        self._via = []

    @property
    def _root(self) -> ObjectId | None:
        head = self._handle.at.head
        return None if head is None else head.root

    def _note(self) -> None:
        """Tell the store where the files are, and how to merge them."""
        handle, repo, branch = self._handle, self._handle.repo, self._handle.at.branch
        path = os.fsencode(self.directory)
        about = branch or "", handle.follows_head, path_of(repo.store)
        row = WorkspaceRow(this_host(), path, self.prefix, *about)
        if row == self._noted:
            return
        note_workspace(repo.store, row)
        if branch and repo.policies.find(repo.policies.read(branch), self.prefix) is None:
            repo.policies.set(branch, self.prefix, "text")
        self._noted = row

    # Looking

    def status(self) -> Status:
        """The edits that the next commit will have, and what it will not."""
        with self._handle.lock:
            self._require_open()
            self._handle.look_outside()
            with self._directory.locked():
                return self._directory.status(self._root, self._edits)

    def diff(self, old: Revision | None = None, new: Revision | None = None) -> Diff:
        """As `state.diff`, of the files alone."""
        return self.state.diff(old, new).below(self.prefix)

    def at(self, rev: Revision) -> Files:
        """The files at a revision, read-only."""
        return Files(self.state.checkout(rev), self.prefix)

    # Restoring

    def restore(self, *paths: str, rev: Revision = "HEAD", force: bool = False) -> list[str]:
        """Give these files, or the files below these directories, or all, the contents of `rev`; which ones.

        The state does not move: what differs from HEAD is an edit then. Raises NotFound for a path that is
        neither here nor there, and UncommittedChanges for edited files, which `force` throws away.
        """
        handle = self._handle
        with handle.lock:
            self._require_open()
            handle.look_outside()
            source = None if self._root is None and rev == "HEAD" else handle.resolve(rev).root
            with self._directory.locked():
                written = self._directory.restore(source, paths, self._edits, force=force)
            self.look()
        return written

    @contextmanager
    def fork(
        self, name: str, directory: str | os.PathLike[str], at: Revision = "HEAD"
    ) -> Iterator[Workspace]:
        """A new branch at a revision, as a state and a directory of its own, for the with block.

        `workspace.state` is the state. Branch and directory stay. Uncommitted edits stay here.
        """
        with self.state.fork(name, at) as state:
            with Workspace(state, directory, self.prefix) as other:
                yield other
