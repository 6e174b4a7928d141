"""Scan: what changed in a directory since its index was right, found by the signs of the files.

A file whose mtime is not older than the moment before it was read may change once more within the clock's
grain, and keep its sign. Its sign is not relied upon: the next scan reads it again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vstate.kv.disk.database import FILE_NAME
from vstate.values.file import File
from vstate.workspace.ignore import IGNORE_FILES, Rules
from vstate.workspace.index import Index, Sign, above, sign_of
from vstate.workspace.paths import CONTROL, is_aside, is_own, refusal, to_name

OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

_MOST_READS = 10  # of a file that a program writes meanwhile
_DEEPEST = 200  # each directory on the way down is open


class Edit(NamedTuple):
    """A file that differs from the index: its sign and content, None if it is gone.

    `settled` says that the sign tells of any later edit.
    """

    sign: Sign | None
    file: File | None
    settled: bool


Listings = dict[str, tuple[tuple[int, int, int] | None, list[str]]]
"""By directory, its mtime and inode when it was listed, and the names; None if it may change unseen."""

_OTHERS: Final = {FILE_NAME: "a vstate store", CONTROL: "another workspace", ".git": "a git repository"}
_NO_NAMES: Final[dict[str, Sign | None]] = {}
GONE: Final = Edit(None, None, True)


def read_file(fd: int, name: str, found: os.stat_result) -> tuple[File, Sign] | None:
    """A file or link in an open directory, and its sign then; None if it is neither any more; OSError."""
    for _ in range(_MOST_READS):
        sign = sign_of(found)
        if stat.S_ISLNK(found.st_mode):
            file = File(os.fsencode(os.readlink(name, dir_fd=fd)), "link")
        elif stat.S_ISREG(found.st_mode):
            with open(os.open(name, _OPEN_FILE, dir_fd=fd), "rb", buffering=0) as opened:
                file = File(opened.read(), "executable" if found.st_mode & stat.S_IXUSR else "file")
        else:
            return None
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if sign == sign_of(found):
            break
    return file, sign


@dataclass
class Scan:
    """One look at a directory. Afterwards it has:

    - `edits`: the files that differ from the index, by path;
    - `left_out`: what no commit keeps, and why; ignored files are not named;
    - `refreshed`: how many signs in the index are new, because the files were touched and are as before.

    `known` are edits of an earlier scan: what has their sign is not read again. `as_committed` says whether a
    file is as the tree of the index has it. `listings` are those of earlier scans, and for later ones.
    `stamp` is a moment before the scan, by the file system's clock.
    """

    index: Index
    known: Mapping[str, Edit]
    stamp: int
    as_committed: Callable[[str, File], bool]
    listings: Listings
    edits: dict[str, Edit] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    refreshed: int = 0

    def run(self, fd: int) -> None:
        """Look at the directory that is open as `fd`."""
        names = self.index.names
        self._missed = set(names)
        self._above = {each for prefix in names for each in above(prefix)}
        found = os.fstat(fd)
        self._device = found.st_dev
        self._walk(fd, found, "", Rules(), 0)
        for prefix in self._missed:
            self.edits |= {prefix + name: GONE for name in names[prefix]}

    def _walk(self, fd: int, directory: os.stat_result, prefix: str, rules: Rules, depth: int) -> None:
        self._missed.discard(prefix)
        get, look = self.index.names.get(prefix, _NO_NAMES).get, os.stat
        same, fresh = [], []
        for name in self._listed(fd, directory, prefix):
            sign = get(name)
            if sign is not None:  # nearly always; so this loop has as few steps as possible
                mtime, ctime, size, inode, mode = sign
                try:
                    found = look(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if (
                    found.st_mtime_ns == mtime and found.st_ctime_ns == ctime and found.st_size == size
                    and found.st_ino == inode and found.st_mode == mode
                ):  # fmt: skip
                    same.append(name)
                    continue
            fresh.append(name)
        if fresh or len(same) < len(self.index.names.get(prefix, ())):
            self._look_at(fd, prefix, {*same}, sorted(fresh), rules, depth)

    def _listed(self, fd: int, directory: os.stat_result, prefix: str) -> list[str]:
        """The names in a directory; those of an earlier scan, if its mtime says that none came or went."""
        mark = directory.st_mtime_ns, directory.st_ctime_ns, directory.st_ino
        known, names = self.listings.get(prefix, (None, []))
        if known != mark:
            names = os.listdir(fd)
            self.listings[prefix] = mark if max(mark[:2]) < self.stamp else None, names
        return names

    def _look_at(
        self, fd: int, prefix: str, here: set[str], fresh: list[str], rules: Rules, depth: int
    ) -> None:
        """Look at the new and changed names of a directory; `here` are the files that are as before."""
        names = self.index.names.get(prefix, {})
        for mark, reason in _OTHERS.items() if prefix else ():
            if mark in fresh and (mark != ".git" or prefix not in self._above):
                self._leave(prefix, reason)
                return
        if any(name in fresh or name in here for name in IGNORE_FILES):
            rules = Rules(rules, prefix, _text(fd))
        directories = []
        for name in fresh:
            path = prefix + name
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and not is_own(name):
                    directories.append((name, f"{path}/"))
                elif name in names or not rules.ignores(path):
                    self._take(fd, path, name, found, here)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.left_out[path] = f"it cannot be read: {error.strerror}"
                here.add(name)  # if it was committed, it stays so
        self.edits |= {prefix + name: GONE for name in names.keys() - here}
        for name, path in directories:
            if path in self._above or not rules.ignores(path):
                self._enter(fd, name, path, rules, depth + 1)

    def _take(self, fd: int, path: str, name: str, found: os.stat_result, here: set[str]) -> None:
        """Find out whether a new or changed name is an edit."""
        if name == CONTROL:
            return
        if is_aside(name):
            os.unlink(name, dir_fd=fd)
            return
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            self.left_out[path] = (
                "git's own" if is_own(name) else _KINDS.get(found.st_mode & 0o170000, "no file")
            )
            return
        if reason := refusal(to_name(path)):
            self.left_out[path] = reason
            return
        known = self.known.get(path)
        if known is not None and known.settled and known.sign == sign_of(found):
            here.add(name)
            self.edits[path] = known
            return
        read = read_file(fd, name, found)
        if read is None:
            return
        file, sign = read
        settled = sign[0] < self.stamp
        here.add(name)
        if name in self.index.names.get(path[: -len(name)], ()) and self.as_committed(path, file):
            new = sign if settled else None
            self.refreshed |= self.index.sign(path) != new
            self.index.set(path, new)
            return
        if known is not None and known.file == file:
            file = known.file
        self.edits[path] = Edit(sign, file, settled)

    def _enter(self, fd: int, name: str, path: str, rules: Rules, depth: int) -> None:
        try:
            below = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
        except OSError as error:
            self._leave(path, f"it cannot be read: {error.strerror}")
            return
        try:
            found = os.fstat(below)
            if found.st_dev != self._device:
                self._leave(path, "another file system")
            elif depth > _DEEPEST:
                self._leave(path, "it is too deep")
            else:
                self._walk(below, found, path, rules, depth)
        finally:
            os.close(below)

    def _leave(self, prefix: str, reason: str) -> None:
        """Leave out a directory. What was committed below stays so."""
        self.left_out[prefix] = reason
        self._missed = {each for each in self._missed if not each.startswith(prefix)}


_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def _text(fd: int) -> str:
    """The ignore files of a directory."""
    texts = []
    for name in IGNORE_FILES:
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            read = read_file(fd, name, found)
        except OSError:
            continue
        if read is not None and read[0].kind != "link":
            texts.append(read[0].data.decode("utf-8", "surrogateescape"))
    return "\n".join(texts)
