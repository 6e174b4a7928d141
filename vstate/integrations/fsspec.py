"""fsspec: the Files of a store as a filesystem, for pandas, polars, pyarrow and others that use fsspec."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from typing import Any, Final

from vstate.errors import InvalidInput, NotFound
from vstate.integrations import framework_of
from vstate.kv.base import KVStore
from vstate.kv.url import open_store
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, ObjectId
from vstate.repo.names.refs import HEAD
from vstate.repo.names.remotes import expanded, is_url
from vstate.repo.names.revisions import REV_AND_KEY
from vstate.repo.repository import Repository
from vstate.values.entry import FILE, Entry, Part, read_range

with framework_of("fsspec"):
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

_MOST_LINKS: Final = 40  # that are followed for one path
_BEHIND: Final = "0"  # the character behind "/"


class VstateFileSystem(AbstractFileSystem):
    """The Files of a store, for reading: `vstate://files/data.csv?rev=HEAD~3`.

    A path is a key, or `REV:KEY`: `vstate://HEAD~3:files/data.csv` names the same file. Keys that begin with
    `a/` are in the directory `a`. `rev` is the revision of paths that name none; a branch is resolved at each
    call. `store` is a path, a URL or a KVStore. Without `store`, the variable VSTATE_STORE names the store,
    or else the store is `.vstate` in the current directory. To read a part of a file, only the chunks that
    hold this part are read. Links are followed inside the store. Nothing is unpickled: keys with other values
    are no files. A write raises OSError.
    """

    protocol = "vstate"
    root_marker = ""

    def __init__(self, store: KVStore | str | None = None, rev: str = HEAD, **options: Any) -> None:
        super().__init__(store=store, rev=rev, **options)
        place = store or os.environ.get("VSTATE_STORE") or ".vstate"
        if isinstance(place, str) and is_url(place):
            place = expanded(place)
        self._repo = Repository(open_store(place, create=False))
        self._rev = rev

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = super()._strip_protocol(path)
        key, mark, rev = path.rpartition("?rev=")
        return f"{rev}:{key.rstrip('/')}" if mark else path

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The files and directories in a directory, or the file of this path; FileNotFoundError."""
        path = self._strip_protocol(path)
        commit, key = self._place(path)
        front, below = path[: len(path) - len(key)], f"{key}/" if key else ""
        found = [] if self._file(commit, key) else [*self._inside(commit, front, below)]
        found = found or [about for about in [self.info(path)] if about["type"] != "directory"]
        return found if detail else [each["name"] for each in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """The name, the type, the size, and the hash of the content as `id`; FileNotFoundError."""
        path = self._strip_protocol(path)
        commit, key = self._place(path)
        entry = self._file(commit, key)
        if entry is not None:
            return self._described(path, commit, key, entry)
        if not key or next(tree.scan(self._repo.objects.nodes, commit.root, f"{key}/"), None) is not None:
            return {"name": path, "type": "directory", "size": 0}
        other = self._repo.entry(commit.root, key)
        why = "no such file" if other is None else f"the value is a {other.type} and no vstate.File"
        raise FileNotFoundError(errno.ENOENT, f"{why} at {commit.short}", path)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> StoredFile:
        if mode != "rb":
            raise OSError(errno.EROFS, "vstate:// is read-only: commit a vstate.File to its key", path)
        commit, key = self._place(path)
        entry = self._target(commit, key)
        if entry is None:
            self.info(path)  # tells why there is no file
            raise IsADirectoryError(errno.EISDIR, "a directory, or a link that leads to no file", path)
        return StoredFile(self, path, entry, **options)

    def read(self, part: Part, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a file."""
        return read_range(part, self._repo.objects, start, stop)

    def _place(self, path: str) -> tuple[Commit, str]:
        """The commit and the key that a path names: `KEY`, or `REV:KEY`. FileNotFoundError."""
        match, reason = REV_AND_KEY.fullmatch(path), ""
        for rev, key in [*([(match[1] or HEAD, match[2])] if match else ()), (self._rev, path)]:
            try:
                commit = self._repo.resolve(rev)
            except (NotFound, InvalidInput) as error:
                reason = reason or str(error)
                continue
            # A colon may belong to the key.
            if not reason or next(tree.scan(self._repo.objects.nodes, commit.root, key), None) is not None:
                return commit, key
        raise FileNotFoundError(errno.ENOENT, reason, path)

    def _file(self, commit: Commit, key: str) -> Entry | None:
        entry = self._repo.entry(commit.root, key) if key else None
        return entry if entry is not None and entry.codec == FILE else None

    def _target(self, commit: Commit, key: str) -> Entry | None:
        """The entry of a file, behind any links; None for a link that leads to no file of the store."""
        for _ in range(_MOST_LINKS):
            entry = self._file(commit, key)
            if entry is None or entry.type != "link":
                return entry
            target = self.read(entry.parts[0], 0, entry.size).decode(errors="surrogateescape")
            key = posixpath.normpath(posixpath.join(posixpath.dirname(key), target))
        return None

    def _described(self, name: str, commit: Commit, key: str, entry: Entry) -> dict[str, Any]:
        found = self._target(commit, key)
        part = (found or entry).parts[0]
        id = ObjectId.of(BLOB, part) if isinstance(part, bytes) else part.id
        kind = "link" if found is None else "file"  # of a link that leads nowhere, as of a local file
        size = (found or entry).size
        return {"name": name, "type": kind, "size": size, "islink": entry.type == "link", "id": id.hex()}

    def _inside(self, commit: Commit, front: str, prefix: str) -> Iterator[dict[str, Any]]:
        """The files and directories directly below a prefix, each with the rest of its path in front."""
        start: str | None = prefix
        while start is not None:
            items, start = tree.scan(self._repo.objects.nodes, commit.root, prefix, start=start), None
            for key, data in items:
                name, slash, _ = key[len(prefix) :].partition("/")
                if slash:  # go on behind all keys of the directory
                    start = prefix + name + _BEHIND
                    if name:
                        yield {"name": f"{front}{prefix}{name}", "type": "directory", "size": 0}
                    break
                entry = self._repo.parse_entry(key, data)
                if name and entry.codec == FILE:
                    yield self._described(front + key, commit, key, entry)


class StoredFile(AbstractBufferedFile):
    """A file that is open for reading, as it was when it was opened."""

    def __init__(self, fs: VstateFileSystem, path: str, entry: Entry, **options: Any) -> None:
        self._part = entry.parts[0]
        super().__init__(fs, path, size=entry.size, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.read(self._part, start, end)
        return data
