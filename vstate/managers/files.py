"""ReadableFiles: the values of a branch in files for people to read, one a key."""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgpack
from blake3 import blake3

from vstate.errors import CannotLoad, InvalidInput, StorageError
from vstate.kv.files import locked, open_shared, replace_file
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.values.allow import Allow
from vstate.values.budget import InertError
from vstate.values.entry import Entry, Reader, decode_value
from vstate.values.inspection import inspect_value
from vstate.values.plain import plain

Format = Literal["json", "msgpack"]

NOTE: Final = ".shown"
SUFFIXES: Final = (".json", ".json.gz", ".msgpack", ".msgpack.gz")

LONGEST_JSON: Final = 1_000_000
LONGEST_OTHER: Final = 200_000
"""Bytes of the longest value that is shown, in JSON or not. More would delay a commit by 0.1 s or more."""

PATIENCE: Final = 10.0
"""Seconds to wait while another process writes its files. Then the next commit writes them."""

_LONGEST_INDENTED: Final = 20_000
_LONGEST_PART: Final = 200  # bytes; file systems allow 255
_LONGEST_PATH: Final = 1000
_KEPT_OF_LONG: Final = 120
_NO_NAMES: Final = Allow(())

_log = logging.getLogger("vstate")


class ReadableFiles:
    """The files in one directory, which they own. They follow `branch` of a repository, or HEAD.

    A note in the directory names the commit that the files show, and is locked while they are written. So
    each writer goes on from the last one to the newest commit, and no file goes back to an older commit. The
    files are not synced, since that would take longer than the commit.

    With a `document`, all values go into that one file, and the directory has only the note.
    """

    def __init__(
        self,
        directory: Path,
        format: Format,
        *,
        compression: bool,
        document: Document | None = None,
        branch: str | None = None,
    ) -> None:
        if format not in ("json", "msgpack"):
            raise InvalidInput(f"format is 'json' or 'msgpack', not {format!r}")
        self._directory = directory
        self._format = format
        self._compressed = compression
        self._document = document
        self._branch = branch
        self._suffix = f".{format}" + (".gz" if compression else "")
        self._kind = self._suffix if document is None else f"{self._suffix}:document"
        # A lock on the file keeps threads apart too. Windows has none, and a thread's lock does not survive a
        # fork.
        self._lock = threading.Lock() if sys.platform == "win32" else nullcontext()
        self._names: Names | None = None

    def follow(self, repo: Repository) -> None:
        """Write the files of changed keys. Only log a failure, since the store has all values."""
        try:
            with self._note() as note:
                self._catch_up(repo, note)
        except Exception as error:  # the commit has landed, whatever a file cannot hold
            _log.warning("the files in %s are behind, the store is not: %s", self._directory, error)

    def write_all(self, repo: Repository) -> None:
        """Write all files anew, and remove files without a key. Raises OSError, StorageError."""
        with self._note() as note:
            note.write(None, self._kind)
            self._catch_up(repo, note)

    def _catch_up(self, repo: Repository, note: _Note) -> None:
        refs, branch = repo.refs, self._branch
        head = refs.head().commit if branch is None else refs.read(f"{HEADS}{branch}")
        shown, kind = note.read()
        if shown is not None and shown == head and kind == self._kind:
            return
        if kind is not None and (shown is None or kind != self._kind):
            shown = None
            self._remove_all()
        if self._document is not None:
            shown = self._document.commit
        try:
            before = None if shown is None else repo.objects.commit(shown).root
        except StorageError:  # gc removed the commit
            before = None
            self._remove_all()
        after = None if head is None else repo.objects.commit(head).root
        changes = tree.diff(repo.objects.nodes, before, after)
        if self._document is not None:
            for key, _, entry in changes:
                self._document.change(key, None if entry is None else partial(self._encode, repo, key, entry))
            _replace(self._document.path, self._packed(self._document.as_bytes(self._format)))
            self._document.commit = head
        else:
            names = self._names = self._names or Names(ignores_case=(self._directory / NOTE.upper()).exists())
            for key, _, entry in changes:
                path = self._directory / names.path(key, self._suffix)
                if entry is None:
                    self._remove(path)
                else:
                    _replace(path, self._packed(self._encode(repo, key, entry)))
        note.write(head, self._kind)

    def _encode(self, repo: Repository, key: str, entry: bytes) -> bytes:
        parsed = repo.parse_entry(key, entry)
        value = _as_json(parsed, repo.objects)
        if self._format != "json":
            try:
                return bytes(msgpack.packb(value))
            except (OverflowError, ValueError) as error:  # an int of over 64 bits, or a lone surrogate
                return bytes(msgpack.packb(_not_shown(parsed, error)))
        try:
            return _as_text(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can show
            return _as_text(value, ensure_ascii=True).encode()

    def _packed(self, data: bytes) -> bytes:
        return gzip.compress(data, mtime=0) if self._compressed else data

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self._directory:
                return
            try:
                parent.rmdir()
            except OSError:  # it is not empty
                return

    def _remove_all(self) -> None:
        if self._document is not None:
            self._document.clear()
        for directory, _, names in os.walk(self._directory, topdown=False):
            for name in names:
                # A killed writer leaves a file with a dot in front.
                if name != NOTE and (name.endswith(SUFFIXES) or name.startswith(".")):
                    os.unlink(os.path.join(directory, name))
            if directory != str(self._directory):
                with suppress(OSError):
                    os.rmdir(directory)

    @contextmanager
    def _note(self) -> Iterator[_Note]:
        path = self._directory / NOTE
        try:
            file = open_shared(path, os.O_RDWR)
        except FileNotFoundError:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = open_shared(path, os.O_RDWR)
        try:
            with self._lock, locked(file, seconds=PATIENCE):
                yield _Note(file)
        finally:
            os.close(file)


def _replace(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data, durable=False)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data, durable=False)


class Document:
    """One file with the values of all keys under a prefix, by the rest of the key, sorted.

    It holds the encoded values, so a commit encodes only those that it changed.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self.path = path
        self.commit: ObjectId | None = None
        self._prefix = prefix
        self._parts: dict[str, bytes] = {}

    def clear(self) -> None:
        """Forget all values."""
        self.commit = None
        self._parts.clear()

    def change(self, key: str, encode: Callable[[], bytes] | None) -> None:
        """Give a key its encoded value, or remove it. A key without the prefix is left out."""
        name = key.removeprefix(self._prefix)
        if not key.startswith(self._prefix):
            return
        if encode is None:
            self._parts.pop(name, None)
        else:
            self._parts[name] = encode()

    def as_bytes(self, format: Format) -> bytes:
        """The contents of the file."""
        parts = sorted(self._parts.items())
        if format == "msgpack":
            header: bytes = msgpack.Packer().pack_map_header(len(parts))
            return header + b"".join(msgpack.packb(name) + value for name, value in parts)
        lines = [json.dumps(name).encode() + b": " + value.rstrip(b"\n") for name, value in parts]
        return b"{\n" + b",\n".join(lines) + b"\n}\n"


def _as_json(entry: Entry, reader: Reader) -> object:
    """A value in JSON, as `vstate show --json` shows it. Runs no stored code."""
    try:
        if entry.size > LONGEST_JSON:
            raise InvalidInput(f"a value of {entry.size} bytes is too long for a file")
        try:
            # Most values are JSON already. This test is quick: it visits no part of the value in Python.
            value: object = decode_value(entry, reader, allow=_NO_NAMES).value
            text = json.dumps(value, allow_nan=False)
            if '"$' not in text and json.loads(text) == value:
                return value
        except (CannotLoad, TypeError, ValueError, RecursionError):
            pass
        return plain(inspect_value(entry, reader, limit=LONGEST_OTHER))
    except (InertError, InvalidInput) as error:
        return _not_shown(entry, error)


def _not_shown(entry: Entry, error: Exception) -> dict[str, object]:
    return {"$type": entry.type, "$size": entry.size, "$not_shown": str(error)}


def _as_text(value: object, *, ensure_ascii: bool) -> str:
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    if len(text) <= _LONGEST_INDENTED:
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=2)
    # A long text gets one line an item: full indentation takes ten times as long.
    elif isinstance(value, list):
        text = "[\n" + ",\n".join(json.dumps(item, ensure_ascii=ensure_ascii) for item in value) + "\n]"
    elif isinstance(value, dict):
        items = (json.dumps({name: item}, ensure_ascii=ensure_ascii)[1:-1] for name, item in value.items())
        text = "{\n" + ",\n".join(items) + "\n}"
    return text + "\n"


class _Note:
    """The open note: the commit that the files show, and their suffix."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self) -> tuple[ObjectId | None, str | None]:
        """The commit and the suffix. A new note has no suffix."""
        os.lseek(self._file, 0, os.SEEK_SET)
        words = [*os.read(self._file, 1000).decode(errors="replace").split(), "", ""]
        try:
            return ObjectId.parse(words[0]), words[1] or None
        except ValueError:
            return None, words[1] or words[0] or None

    def write(self, commit: ObjectId | None, suffix: str) -> None:
        data = f"{commit if commit is not None else '-'} {suffix}\n".encode()
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, data)
        os.ftruncate(self._file, len(data))


class Names:
    """The paths of the files of keys: no two keys share one, and none is outside the directory.

    Parts of a key between "/" become directories, and the last part the file. Letters, digits, "_" and "-"
    stay; any other character becomes "%" and two digits for each byte of UTF-8; an empty part becomes "%". A
    dot stays in the name of a file, except in front, so no directory has the name of a file. A name that is
    too long is cut off, and ends with "%~" and a hash of the key.
    """

    def __init__(self, *, ignores_case: bool) -> None:
        self._ignores_case = ignores_case

    def path(self, key: str, suffix: str) -> str:
        *directories, name = key.split("/")
        parts = [*(self._part(part, dots=False) for part in directories), self._part(name, dots=True)]
        if sum(len(part.encode()) + 1 for part in parts) > _LONGEST_PATH:
            parts = [_hash(key)]
        return os.path.join(*parts) + suffix

    def _part(self, part: str, *, dots: bool) -> str:
        # Some file systems treat different Unicode forms of one letter as equal.
        wide = not self._ignores_case and unicodedata.is_normalized("NFC", part)
        escaped = "".join(
            char if self._is_kept(char, wide) or (dots and char == "." and at) else _escape(char)
            for at, char in enumerate(part)
        )
        if len(escaped.encode()) > _LONGEST_PART:
            kept = escaped.encode()[:_KEPT_OF_LONG].decode(errors="ignore")
            return kept + _hash(part)
        return escaped or "%"

    def _is_kept(self, char: str, wide: bool) -> bool:
        if char.isascii():
            return char in "_-" or (char.isalnum() and not (self._ignores_case and char.isupper()))
        return wide and char.isalnum()


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _hash(text: str) -> str:
    digest: str = blake3(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"%~{digest}"
