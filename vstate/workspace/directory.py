"""Directory: brings the files of a directory to a tree, each whole at any moment, and over no edit.

A move says in the index from which tree to which it goes. Then it writes all new files aside, deletes, and
renames. So after a kill each file is as in one of these trees, or was edited; the next move tells which.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from vstate.errors import (
    CorruptObject,
    InvalidInput,
    NotFound,
    StorageError,
    StoreUnavailable,
    UncommittedChanges,
)
from vstate.forks import renew_in_child
from vstate.kv.disk.database import FILE_NAME
from vstate.kv.files import take_lock
from vstate.objects import tree
from vstate.objects.canonical import decode_checked, encode_checked
from vstate.objects.expiry import split_expiry
from vstate.objects.ids import ObjectId
from vstate.objects.tree import KeyChange
from vstate.repo.ahead import ItemsAhead
from vstate.repo.core import Core
from vstate.values.entry import FILE, encode_unchecked
from vstate.values.file import File
from vstate.workspace.index import Index, Sign, above, sign_of, split
from vstate.workspace.paths import ASIDE, CONTROL, as_shown, fold, is_aside, refusal, to_name, to_path
from vstate.workspace.scan import OPEN_DIRECTORY, Edit, Listings, Scan, read_file

_MOST_SECONDS = 60.0  # to wait for another holder of the directory
_MOST_OPEN = 100  # directories
_MOST_READ_AGAIN = 100  # files
_LONGEST_NOTE = 1 << 16
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_NO_SIGNS: Mapping[str, Sign | None] = MappingProxyType({})
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL

_Entries = dict[str, bytes | None]
_Olds = dict[str, dict[ObjectId | None, bytes | None]]
"""By key and tree, the entries that a file may have and not be edited."""


@dataclass(frozen=True)
class Status:
    """What is uncommitted in a workspace: the paths that a commit would add, change and delete.

    `left_out` are paths that no commit keeps, and `refused` keys that are no files here; each with the
    reason. Ignored files are in neither.
    """

    added: list[str]
    modified: list[str]
    deleted: list[str]
    left_out: dict[str, str]
    refused: dict[str, str]

    def as_text(self) -> Status:
        """The same with the names as keys have them, which are UTF-8."""
        added, modified, deleted = (
            [*map(to_name, paths)] for paths in (self.added, self.modified, self.deleted)
        )
        left_out = {to_name(path): reason for path, reason in self.left_out.items()}
        return Status(added, modified, deleted, left_out, self.refused)

    def __bool__(self) -> bool:
        return bool(self.added or self.modified or self.deleted)

    def __str__(self) -> str:
        lines = [
            f"{sign} {path}"
            for sign, paths in (("+", self.added), ("~", self.modified), ("-", self.deleted))
            for path in paths
        ]
        lines += [f"left out: {path}  ({reason})" for path, reason in self.left_out.items()]
        lines += [f"not written: {key}  ({reason})" for key, reason in self.refused.items()]
        return "\n".join(map(as_shown, lines)) or "no changes"


class _Write(NamedTuple):
    """A file to write, or with the entry None to delete, if it still has the sign `seen`.

    The index gets its new sign if it is as the tree of the index has it then (`is_committed`).
    """

    entry: bytes | None
    seen: Sign | None
    is_committed: bool = True


class Directory:
    """The files of one directory, which are the keys under `prefix` of a tree. Use it while it is `locked`.

    `loaded` is the sign of the index file, None without one. `refused` has the keys that cannot be written
    here, and why. `progress` is called with the number of files that a move has written.
    """

    progress: Callable[[int], object] = staticmethod(lambda count: None)

    def __init__(self, repo: Core, path: str | os.PathLike[str], prefix: str) -> None:
        self.repo = repo
        self.path = os.path.abspath(path)
        self.prefix = prefix
        self.index = Index()
        self.left_out: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.loaded: Sign | None = None
        self._root = self._control = self._lock = -1
        self._is_held = False
        self._parents: dict[str, int] = {}
        self._listings: Listings = {}
        renew_in_child(self, Directory._renew)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from moving the files; inside, once more.

        Raises NotFound if the directory is gone, and StoreUnavailable if others hold it for a minute.
        """
        if self._is_held:
            yield
            return
        with ExitStack() as opened:
            with self._working():
                self._open(opened)
                self._load()
                self._end_commit()
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """As `held`, to look at the files and to move them."""
        with self.held(), self._working():
            self._load()
            yield

    @contextmanager
    def _working(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.loaded = None  # what is in memory may be ahead of the files
            if isinstance(error, OSError):
                raise StorageError(
                    f"the files in {self.path}: {error}; mend that: the next call brings the files to the "
                    "branch. Look whether the branch has moved before you move it again"
                ) from error
            raise

    def _let_go(self, lock: int) -> None:
        self._is_held, self._lock = False, -1
        # Closing does not suffice: a child that is forked just now has the file open too.
        fcntl.flock(lock, fcntl.LOCK_UN)
        parents, self._parents = self._parents, {}
        for fd in parents.values():
            os.close(fd)

    def _renew(self) -> None:
        """In a forked child: leave the lock to the parent. Else it would be taken when the parent is killed.

        The number stays in use, for the frames of the operation may go on here and close it.
        """
        if self._lock >= 0:
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, self._lock, inheritable=False)
            os.close(null)
        self._is_held, self._lock, self._parents = False, -1, {}

    def _open(self, opened: ExitStack) -> None:
        def keep(name: str, flags: int, above: int | None = None) -> int:
            fd = os.open(name, flags, 0o666, dir_fd=above)
            opened.callback(os.close, fd)
            return fd

        try:
            self._root = keep(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"there is no directory {self.path}, where the files were", name=self.path
            ) from None
        if is_new := not _exists(CONTROL, self._root):
            if _exists(FILE_NAME, self._root):
                raise InvalidInput(f"{self.path} is a store: a workspace needs a directory of its own")
            os.mkdir(CONTROL, dir_fd=self._root)
        self._control = keep(CONTROL, OPEN_DIRECTORY, self._root)
        if is_new:
            with suppress(FileExistsError):
                self._write_new(".gitignore", File(b"*\n"), self._control)
        self._lock = keep("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, self._control)
        opened.callback(self._let_go, self._lock)
        try:
            take_lock(self._lock, seconds=_MOST_SECONDS)
        except BlockingIOError:
            raise StoreUnavailable(
                f"another commit or move holds the files in {self.path} for {_MOST_SECONDS:g} s now: retry "
                "later; if it waits for this call, in a before_commit hook say, make the call elsewhere"
            ) from None
        self._is_held = True

    # The index

    def _load(self) -> None:
        """Read the index, if another process or an exception left another one. A damaged one is none."""
        try:
            found = os.stat("index", dir_fd=self._control, follow_symlinks=False)
        except FileNotFoundError:
            self.index, self.loaded = Index(), None
            return
        if self.loaded != (sign := sign_of(found)):
            read = read_file(self._control, "index", found)
            index = None if read is None else Index.decode(read[0].data)
            self.index = index or Index()
            self.loaded = None if index is None else sign

    def _save(self) -> None:
        self._write_new("index.new", File(self.index.encode()), self._control)
        os.rename("index.new", "index", src_dir_fd=self._control, dst_dir_fd=self._control)
        self.loaded = sign_of(os.stat("index", dir_fd=self._control, follow_symlinks=False))
        os.ftruncate(self._lock, 0)

    def begin_commit(self, branch: str, commit: ObjectId) -> None:
        """Note that a commit is about to have the edits of the last scan, until the index is saved."""
        with self._working():
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, encode_checked([branch, commit]), 0)

    def _end_commit(self) -> None:
        """Bring the files to a commit that a process has made of them, before it was killed."""
        try:
            branch, commit = decode_checked(os.pread(self._lock, _LONGEST_NOTE, 0))
        except ValueError:  # nothing is noted
            return
        if self.repo.has_landed(branch, oid := ObjectId(commit)):
            self.move(self.repo.objects.commit(oid).root)

    def _now(self) -> int:
        """The time by the clock that dates the files, which is that of a server for some."""
        os.utime(self._lock)
        return os.fstat(self._lock).st_mtime_ns

    # Looking

    def scan(self, known: Mapping[str, Edit]) -> dict[str, Edit]:
        """The files that differ from the tree of the index; `known` are those of an earlier scan."""
        if self.index.moving:  # another process was killed on the way
            self.move(self.index.moving[-1])
        scan = Scan(self.index, known, self._now(), self._as_committed, self._listings)
        scan.run(self._root)
        self.left_out = scan.left_out
        if scan.refreshed > _MOST_READ_AGAIN:
            self._save()  # a later process would read fewer files again than this costs
        return scan.edits

    def key(self, path: str) -> str:
        """The key of a file."""
        return self.prefix + to_name(path)

    def _as_committed(self, path: str, file: File) -> bool:
        try:
            entry = tree.lookup(self.repo.objects.node, self.index.root, self.key(path))
        except CorruptObject:  # gc has removed that tree
            return False
        return _entry_of(file) == _bare(entry)

    # Moving

    def move(
        self,
        root: ObjectId | None,
        via: Sequence[ObjectId | None] = (),
        *,
        taken: Mapping[str, Sign | None] = _NO_SIGNS,
        operation: str = "",
        advice: str = "open it with force=True to throw them away, or move these files elsewhere first",
        force: bool = False,
    ) -> None:
        """Bring the files to the tree `root`. Files that were edited stay, and are edits of that tree then.

        A file counts as unedited if it is as in the tree of the index or of an interrupted move. `via` are
        other such trees. `taken` are files that are as in `root`, with their signs. With an `operation`,
        UncommittedChanges for edited files that differ between the trees; nothing has changed then. `force`
        overwrites them.
        """
        index = self.index
        is_first = self.loaded is None
        new, olds = self._changes(root, [index.root, *index.moving, *via], {*map(self.key, taken)})
        writes, seen, edited = self._find(root, new, olds, force)
        if edited and operation and not is_first:
            raise UncommittedChanges(operation, map(self.key, edited), advice=advice)
        if writes:
            index.moving.append(root)
            self._save()
            self.write(writes)
        # Until here the index on the disk has the signs of its own tree alone.
        for path, sign in taken.items():
            index.set(path, sign)
        for path, (has, sign) in seen.items():
            if has:
                index.set(path, sign)
            else:
                index.drop(path)
        if writes or seen or taken or index.moving or index.root != root or is_first:
            index.root, index.moving = root, []
            self._save()

    def _changes(
        self, root: ObjectId | None, versions: list[ObjectId | None], known: Set[str]
    ) -> tuple[_Entries, _Olds]:
        """The keys but for the `known` ones that differ between the tree `root` and others: their entries
        there, and in those of the others that differ.
        """
        new, olds = _Entries(), _Olds()
        for version in dict.fromkeys(versions):
            for change in self._differences(version, root):
                if change.key not in known:
                    new[change.key] = change.new
                    olds.setdefault(change.key, {})[version] = change.old
        return new, olds

    def _find(
        self, root: ObjectId | None, new: _Entries, olds: _Olds, force: bool
    ) -> tuple[dict[str, _Write], dict[str, tuple[bool, Sign | None]], list[str]]:
        """The files to write; whether the tree has each other one, and its sign then; the edited ones."""
        stamp, index = self._now(), self.index
        writes: dict[str, _Write] = {}
        seen: dict[str, tuple[bool, Sign | None]] = {}
        edited = []
        for path, entry in self._possible(root, new).items():
            self.refused.pop(self.key(path), None)
            before = olds.get(self.key(path), {})
            found = self._stat(path)
            sign, tracked = None, index.holds(path)
            if found is None or stat.S_ISDIR(found.st_mode):
                # A file that somebody deleted holds nothing that could be lost. A directory may, and then it
                # cannot be removed.
                is_new = entry is None
                is_old = found is None or not tracked or None in before.values()
            elif tracked and index.sign(path) == (sign := sign_of(found)):
                is_new, is_old = index.root not in before, True
            else:
                prefix, name = split(path)
                parent = self._parent(prefix)
                read = None if parent is None else read_file(parent, name, found)
                now, sign = (_entry_of(read[0]), read[1]) if read else (b"", sign_of(found))
                is_new = now == _bare(entry)
                is_old = now in map(_bare, before.values())
            if not is_new and (is_old or force):
                writes[path] = _Write(entry, sign)
                continue
            if not is_new:
                edited.append(path)
                sign = None
            seen[path] = entry is not None, sign if sign is not None and sign[0] < stamp else None
        return writes, seen, edited

    def _differences(self, version: ObjectId | None, root: ObjectId | None) -> Iterator[KeyChange]:
        """The keys of files that differ between two trees; all keys, if gc has removed the first tree."""
        objects = self.repo.objects
        try:
            changes = list(tree.diff(objects.nodes, version, root))
        except CorruptObject:
            now = dict(tree.scan(objects.nodes, root, self.prefix))
            keys = dict.fromkeys([*map(self.key, self.index.paths()), *now])
            changes = [KeyChange(key, b"", now.get(key)) for key in keys]
        return (change for change in changes if change.key.startswith(self.prefix))

    def _possible(self, root: ObjectId | None, new: _Entries) -> _Entries:
        """The new entries by path, without those that cannot be files here, which are `refused`."""
        twins: dict[str, str] = {}
        if self._folds():
            twins = {
                _folded(path): path for path in self.index.paths() if new.get(self.key(path), b"") is not None
            }
        found = _Entries()
        for key, entry in sorted(new.items()):
            name = key[len(self.prefix) :]
            path, reason = to_path(name), refusal(name)
            if not reason and entry is not None:
                if not _is_file(entry):
                    reason = "its value is no File"
                elif any(self._has_file(root, each[:-1]) for each in above(name)[1:]):
                    reason = "there is a file in place of its directory"
                elif self._folds() and (twin := twins.setdefault(_folded(path), path)) != path:
                    reason = f"this file system takes it for {twin!r}"
            if not reason:
                found[path] = entry
            else:
                self.refused[key] = reason
                if self.index.holds(path):
                    found[path] = None
        return found

    def _has_file(self, root: ObjectId | None, name: str) -> bool:
        entry = tree.lookup(self.repo.objects.node, root, self.prefix + name)
        return entry is not None and _is_file(entry)

    def _folds(self) -> bool:
        """Whether names that differ in case are one file here."""
        return _exists("LOCK", self._control)

    # Writing

    def restore(
        self, source: ObjectId | None, paths: tuple[str, ...], edits: Mapping[str, Edit], *, force: bool
    ) -> list[str]:
        """Give files the contents that the tree `source` has; which ones. As `Workspace.restore` promises."""
        nodes, start = self.repo.objects.nodes, len(self.prefix)
        known = {to_path(key[start:]) for key in tree.scan_keys(nodes, source, self.prefix)}
        keys = [*map(self.key, _chosen({*known, *self.index.paths(), *edits}, paths))]
        there, base = (tree.lookup_many(nodes, root, keys) for root in (source, self.index.root))
        olds: _Olds = {
            key: {self.index.root: base.get(key)} for key in keys if base.get(key) != there.get(key)
        }
        edited = set(map(self.key, edits))
        new = {key: there.get(key) for key in keys if key in olds or key in edited}
        writes, _, unseen = self._find(source, new, olds, force)
        if not force and (lost := [*unseen, *(path for path in writes if path in edits)]):
            advice = "commit() them first, or give force=True to throw them away"
            raise UncommittedChanges("restore", map(self.key, lost), advice=advice)
        if writes:
            for path, write in writes.items():
                writes[path] = write._replace(is_committed=base.get(self.key(path)) == write.entry)
            self.write(writes)
            self._save()
        return sorted(path for path in writes if self.key(path) not in self.refused)

    def status(self, root: ObjectId | None, edits: Mapping[str, Edit]) -> Status:
        """The edits since the tree `root`, what the last scan left out, and the keys that are no files."""
        entries = dict(tree.scan(self.repo.objects.nodes, root, self.prefix))
        here = {*map(self.key, self.index.paths()), *map(self.key, edits)}
        missing: _Entries = {key: entry for key, entry in entries.items() if key not in here}
        self._possible(root, missing)
        kinds: dict[str, list[str]] = {"added": [], "modified": [], "deleted": []}
        for path, edit in sorted(edits.items()):
            if self.key(path) in entries:
                kinds["deleted" if edit.file is None else "modified"].append(path)
            elif edit.file is not None:
                kinds["added"].append(path)
        return Status(
            **kinds,
            left_out=dict(sorted(self.left_out.items())),
            refused={key: self.refused.get(key, "it was not written") for key in missing},
        )

    def write(self, writes: Mapping[str, _Write]) -> None:
        """Delete, write all new files beside their places, and then rename them."""
        for path, each in sorted(writes.items(), reverse=True):
            if each.entry is None:
                with self._refusing(path):
                    self._delete(path, each)
        entries = {path: each.entry for path, each in writes.items() if each.entry is not None}
        ahead = ItemsAhead([(self.key(path), entry) for path, entry in entries.items()], self.repo.objects)
        for number, (path, entry) in enumerate(entries.items()):
            self.progress(number)
            file = self.repo.load(key := self.key(path), entry, ahead.of(key)).value
            assert isinstance(file, File), "only entries of files are written, and nothing is unpickled"
            with self._refusing(path, f"{ASIDE}{number}"):
                self._write_new(f"{ASIDE}{number}", file, self._parent(split(path)[0], create=True))
        stamp = self._now()
        for number, path in enumerate(entries):
            with self._refusing(path, f"{ASIDE}{number}"):
                self._put(path, writes[path], f"{ASIDE}{number}", stamp)
        # Before the index says that the files are there: after a power cut, an old name is no edit.
        for prefix in sorted({each for path in writes for each in above(path)}):
            if (fd := self._parent(prefix)) is not None:
                _sync(fd)

    @contextmanager
    def _refusing(self, path: str, aside: str = "") -> Iterator[None]:
        """Take an error of this path alone as the reason why it stays as it is, and leave nothing aside."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise
            self.refused.setdefault(self.key(path), f"it cannot be changed: {error.strerror}")
            if self.index.holds(path):
                self.index.set(path, None)  # it is not as in the new tree
            if aside and (parent := self._parent(split(path)[0])) is not None:
                with suppress(OSError):
                    os.unlink(aside, dir_fd=parent)

    def _put(self, path: str, write: _Write, aside: str, stamp: int) -> None:
        """Rename a file to its place, unless somebody edited that since it was looked at."""
        prefix, name = split(path)
        parent, found, sign = self._parent(prefix, create=True), self._stat(path), None
        if found is not None and stat.S_ISDIR(found.st_mode):
            _remove_empty(name, parent)
            found = None
        if (None if found is None else sign_of(found)) == write.seen:
            os.rename(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
            sign = sign_of(os.stat(name, dir_fd=parent, follow_symlinks=False))
        else:
            os.unlink(aside, dir_fd=parent)
        self.index.set(path, sign if write.is_committed and sign is not None and sign[0] < stamp else None)

    def _delete(self, path: str, write: _Write) -> None:
        """Delete a file, unless somebody edited it since, and the directories that are empty then."""
        prefix, name = split(path)
        parent, found = self._parent(prefix), self._stat(path)
        if parent is not None and found is not None:
            if sign_of(found) != write.seen:
                return
            os.unlink(name, dir_fd=parent)
        if write.is_committed:
            self.index.drop(path)
        with suppress(OSError):  # it is not empty
            while prefix:
                upper, last = split(prefix[:-1])
                if (parent := self._parent(upper)) is None:
                    break
                _remove_empty(last, parent)
                if prefix in self._parents:
                    os.close(self._parents.pop(prefix))
                prefix = upper

    def _write_new(self, name: str, file: File, directory: int | None) -> None:
        """Write a file that is not there; what a killed process left is replaced."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        if file.kind == "link":
            if b"\0" in file.data:
                raise OSError(errno.EINVAL, "a link with a zero byte")
            os.symlink(os.fsdecode(file.data), name, dir_fd=directory)
            return
        mode = 0o777 if file.kind == "executable" else 0o666
        with open(os.open(name, _NEW_FILE, mode, dir_fd=directory), "wb", buffering=0) as opened:
            view = memoryview(file.data)
            while view:
                view = view[opened.write(view) :]

    # Names

    def _parent(self, prefix: str, *, create: bool = False) -> int | None:
        """The open directory, reached through no symbolic link; None if it is none, OSError with `create`."""
        if not prefix:
            return self._root
        if prefix in self._parents:
            return self._parents[prefix]
        beside, name = split(prefix[:-1])
        upper = self._parent(beside, create=create)
        if upper is None:
            return None
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=upper)
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=upper)
        except OSError:
            if create:
                raise
            return None
        if _exists(FILE_NAME, fd):
            os.close(fd)
            if create:
                raise PermissionError(1, "a vstate store is in place of its directory")
            return None
        if len(self._parents) >= _MOST_OPEN:
            for each in [each for each in self._parents if not prefix.startswith(each)]:
                os.close(self._parents.pop(each))
        self._parents[prefix] = fd
        return fd

    def _stat(self, path: str) -> os.stat_result | None:
        """What is at a path; None if nothing is."""
        prefix, name = split(path)
        parent = self._parent(prefix)
        if parent is None:
            return None
        try:
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _remove_empty(name: str, parent: int | None) -> None:
    """Remove a directory in which there is nothing but what a killed process left; OSError for any other."""
    fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    try:
        left = os.listdir(fd)
        if all(map(is_aside, left)):
            for each in left:
                os.unlink(each, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems sync no directory
            raise


def _exists(name: str, fd: int) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _is_file(entry: bytes) -> bool:
    """Whether the value of an entry is a File. An entry begins with the byte of its array, and its codec."""
    return entry[1:2] == bytes((FILE,))


def _entry_of(file: File) -> bytes:
    return encode_unchecked(file).entry


def _bare(entry: bytes | None) -> bytes | None:
    return None if entry is None else split_expiry(entry)[0]


def _folded(path: str) -> str:
    return "/".join(map(fold, path.split("/")))


def _chosen(known: set[str], paths: tuple[str, ...]) -> list[str]:
    """The known paths that are one of these, or below one; all without any. NotFound for another path."""
    if not paths:
        return sorted(known)
    found = set[str]()
    for given in paths:
        path = given.removesuffix("/")
        below = {each for each in known if each == path or each.startswith(path + "/")}
        if not below:
            raise NotFound(f"there is no file {given!r}, here or in that commit", name=given)
        found |= below
    return sorted(found)
