"""ReadableFile: the values of a branch in one JSON file, for people to read."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Final

from vstate.errors import CannotLoad, InvalidInput, StorageError
from vstate.kv.files import locked, open_shared, replace_file
from vstate.objects import tree
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import HEADS
from vstate.repo.repository import Repository
from vstate.values.allow import Allow
from vstate.values.budget import InertError
from vstate.values.entry import Entry, Reader, decode_value
from vstate.values.inspection import shown_value
from vstate.values.plain import plain

PATIENCE: Final = 10.0
"""Seconds to wait while another process writes the file. Then the next commit writes it."""

LONGEST_JSON: Final = 1_000_000
LONGEST_OTHER: Final = 200_000
"""Bytes of the longest value that is shown, in JSON or not. More would delay a commit by 0.1 s or more."""

_LONGEST_INDENTED: Final = 20_000  # characters; indentation takes ten times as long
_NO_NAMES: Final = Allow(())

_log = logging.getLogger("vstate")


class ReadableFile:
    """The file at `path`: a dict of the values under `prefix` by the rest of their keys, sorted.

    It follows `branch` of a repository, or HEAD. Each write is of the newest commit, under a lock, so the
    file never goes back to an older one. It is not synced, since that would take longer than the commit.
    The encoded values stay in memory, so a commit encodes only those that it changed.
    """

    def __init__(self, path: Path, lock: Path, prefix: str, branch: str | None) -> None:
        self._path = path
        self._lock = lock
        self._prefix = prefix
        self._branch = branch
        self._commit: ObjectId | None = None
        self._parts: dict[str, bytes] = {}

    def follow(self, repo: Repository) -> None:
        """Write the file after a commit. Only log a failure, since the store has all values."""
        try:
            self.write(repo)
        except Exception as error:  # the commit has landed, whatever a file cannot hold
            _log.warning("the file %s is behind, the store is not: %s", self._path, error)

    def write(self, repo: Repository) -> None:
        """Write the file. Raises OSError, StorageError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_shared(self._lock, os.O_RDWR)
        try:
            with locked(descriptor, seconds=PATIENCE):
                self._catch_up(repo)
                replace_file(self._path, self._as_bytes(), durable=False)
        finally:
            os.close(descriptor)

    def _catch_up(self, repo: Repository) -> None:
        head = repo.refs.head().commit if self._branch is None else repo.refs.read(f"{HEADS}{self._branch}")
        try:
            before = None if self._commit is None else repo.objects.commit(self._commit).root
        except StorageError:  # gc removed the commit
            before = None
            self._parts.clear()
        after = None if head is None else repo.objects.commit(head).root
        for key, _, entry in tree.diff(repo.objects.nodes, before, after):
            name = key.removeprefix(self._prefix)
            if entry is None:
                self._parts.pop(name, None)
            elif key.startswith(self._prefix):
                self._parts[name] = _encode(_as_json(repo.parse_entry(key, entry), repo.objects))
        self._commit = head

    def _as_bytes(self) -> bytes:
        lines = [json.dumps(name).encode() + b": " + value for name, value in sorted(self._parts.items())]
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
        return plain(shown_value(entry, reader, limit=LONGEST_OTHER))
    except (InertError, InvalidInput) as error:
        return {"$type": entry.type, "$size": entry.size, "$not_shown": str(error)}


def _encode(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST_INDENTED:
        text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can show
        return json.dumps(value).encode()
