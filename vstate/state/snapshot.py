"""Snapshot: the state at one commit, read-only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from vstate.arguments import check_state_key
from vstate.errors import CorruptObject, ReadOnly, StorageError
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.ahead import EntryPrefetch
from vstate.repo.repository import Repository
from vstate.state.base import ReadableState, missing
from vstate.state.slots import KEEP_BYTES, KEEP_BYTES_EACH
from vstate.values.entry import decode_value
from vstate.values.inspection import describe, inspect_value

_T = TypeVar("_T")


class Snapshot(ReadableState):
    """A read-only mapping of the keys and values of one commit. Values are loaded when asked for, and then
    kept, up to 64 MB of them.

    Editing a value in place changes that copy only, never the store.
    """

    def __init__(self, repo: Repository, commit: Commit) -> None:
        self._repo = repo
        self._commit = commit
        self._values: dict[str, Any] = {}
        self._left = KEEP_BYTES
        """The bytes of values that it may still keep."""
        self._ahead = EntryPrefetch(repo.objects, loads=repo.security.allow is None)

    @property
    def commit(self) -> Commit:
        """The commit whose state this is."""
        return self._commit

    @property
    def repo(self) -> Repository:
        """The repository that the commit is in."""
        return self._repo

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except (KeyError, TypeError):
            check_state_key(key)
        try:  # not `_commit_needed`: a context manager takes longer than loading a short value
            entry = self._ahead.find(self._commit.root, key)
            if entry is not None:
                found = decode_value(entry, self._ahead, allow=self._repo.security.allow, key=key)
                value = self._values.setdefault(key, found.value)
                left = self._left - entry.size - KEEP_BYTES_EACH
                for following, loaded, short in self._ahead.following(self._commit.root, key):
                    self._values.setdefault(following, loaded)
                    left -= short.size + KEEP_BYTES_EACH
                if left < 0:
                    self._values, left = {}, KEEP_BYTES
                self._left = left
                return value
        except CorruptObject as error:
            self._require_commit(error)
            raise
        raise missing(key)

    def _ready(self, key: object, absent: Any) -> Any:
        return self._values.get(key, absent) if isinstance(key, str) else absent

    def _in_batches(self, keys: Iterable[str]) -> Iterator[Iterable[str]]:
        return self._from_commit(self._ahead.in_batches(self._commit.root, map(check_state_key, keys)))

    def inert(self, key: str) -> Any:
        """The value of a key as data, without its classes: nothing that it names is imported or called.

        Plain data is itself. An object is a record, with `type`, `fields`, `args`, `items` and `entries`. So
        the data can be read although its class is gone. Raises KeyNotFound; InvalidInput for a value of more
        than 64 MiB.
        """
        with self._commit_needed():
            data = tree.lookup(self._repo.objects.node, self._commit.root, check_state_key(key))
            if data is None:
                raise missing(key)
            return inspect_value(self._repo.parse_entry(key, data), self._repo.objects)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        with self._commit_needed():
            return tree.lookup(self._repo.objects.node, self._commit.root, key) is not None

    def _scan(self, prefix: str, *, reverse: bool = False) -> Iterator[str]:
        root = self._commit.root
        return self._from_commit(tree.scan_keys(self._repo.objects.nodes, root, prefix, reverse=reverse))

    def _count(self, prefix: str) -> int:
        with self._commit_needed():
            return tree.count_prefix(self._repo.objects.node, self._commit.root, prefix)

    def _describe(self, key: str) -> str:
        with self._commit_needed():
            entry = self._repo.entry(self._commit.root, key)
        if entry is None:
            raise missing(key)
        return describe(entry)

    @contextmanager
    def _commit_needed(self) -> Iterator[None]:
        """Tell an object that gc removed with the commit as such, and not as damage."""
        try:
            yield
        except CorruptObject as error:
            self._require_commit(error)
            raise

    def _require_commit(self, error: CorruptObject) -> None:
        if not self._repo.objects.is_stored(self._commit.oid):
            # Not NotFound: it is a KeyError, which `get` takes for an absent key.
            raise StorageError(
                f"gc has removed {self._commit.short}, the commit of this snapshot: check out another one"
            ) from error

    def _from_commit(self, found: Iterable[_T]) -> Iterator[_T]:
        with self._commit_needed():
            yield from found

    def _title(self) -> str:
        return f"Snapshot of {self._commit.short}"

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        """Raise ReadOnly."""
        raise ReadOnly(
            f"a snapshot of {self._commit.short} cannot be changed; to go on from there, use "
            "state.rollback(rev) or state.fork(name, at=rev)"
        )

    __setitem__ = __delitem__ = update = apply = pop = popitem = clear = setdefault = _refuse
