"""VstateKeyValue: a store of py-key-value-aio, which FastMCP takes, each item a branch of the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar

from blake3 import blake3

from vstate.aio.workers import awaited, in_thread
from vstate.errors import StorageError
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName, branches_below
from vstate.integrations.opening import AsyncOpened, KeepLike, Opening, StoreLike
from vstate.objects.commit import Commit
from vstate.repo.writing import BranchChanges
from vstate.state.snapshot import Snapshot

with framework_of("key-value"):
    from key_value.aio.stores import base

_T = TypeVar("_T")

_PREFIX: Final = "key_value"
_TIMES: Final = "created_at", "expires_at"
_COLLECTION: Final = 100  # bytes, so that a collection and a key together are ids of a branch
_KEY: Final = 915
_LOOKED_AT: Final = 4  # items by each put


class VstateKeyValue(
    AsyncOpened,
    base.BaseEnumerateKeysStore,
    base.BaseEnumerateCollectionsStore,
    base.BaseDestroyCollectionStore,
    base.BaseDestroyStore,
    base.BaseCullStore,
):
    """Items of py-key-value-aio: `OAuthProxy(client_storage=VstateKeyValue("./items"), ...)` of FastMCP.

    - An item is the branch `key_value/COLLECTION/KEY`, so writers of two items never wait for each other.
    - The store has the newest value of each item alone: a value that was deleted or replaced is gone when the
      call returns. With `keep_history`, the branch has all values of its item, and the reflog keeps a deleted
      one for 30 days.
    - No `get` finds an expired item. Each put looks at four items more, and deletes those that have expired.
      So they go without a call of `cull`, which deletes all of them; until then `keys` lists them.
    - `put_many` is one transaction, where the store has transactions. Of two writes of an item the later one
      wins.

    The `options` are those of `BaseStore`: `default_collection`, `seed`.
    """

    def __init__(
        self, store: StoreLike = None, *, keep_history: bool = False, keep: KeepLike = None, **options: Any
    ) -> None:
        self._opening = Opening(store, keep=keep, prefix=(_PREFIX,))
        self._keep_history = keep_history
        self._round: list[str] = []
        super().__init__(stable_api=True, **options)

    def branch(self, key: str, collection: str | None = None) -> BranchName:
        """The name of an item's branch. A key of more than 915 bytes ends with its hash, and so does a
        collection of more than 100: `keys` and `collections` have them so.
        """
        collection = _short(collection or self.default_collection, _COLLECTION)
        return self._opening.branch(collection, _short(key, _KEY))

    @awaited
    def _get_managed_entry(self, *, collection: str, key: str) -> base.ManagedEntry | None:
        return self._find(self.branch(key, collection), _entry)

    async def _put_managed_entry(
        self, *, collection: str, key: str, managed_entry: base.ManagedEntry
    ) -> None:
        await self._put_managed_entries(collection=collection, keys=[key], managed_entries=[managed_entry])

    async def _put_managed_entries(
        self, *, collection: str, keys: Sequence[str], managed_entries: Sequence[base.ManagedEntry], **_: Any
    ) -> None:
        # Before the first await: the caller may go on to change them.
        records = {
            self.branch(key, collection): {
                "value": json.loads(entry.value_as_json),
                "created_at": entry.created_at_isoformat,
                "expires_at": entry.expires_at_isoformat,
            }
            for key, entry in zip(keys, managed_entries, strict=True)
        }
        await in_thread(lambda: self._write(records))

    @awaited
    def _delete_managed_entry(self, *, key: str, collection: str) -> bool:
        found = self._find(name := self.branch(key, collection), _entry)
        return self._delete(name) and found is not None and not found.is_expired

    @awaited
    def _get_collection_keys(self, *, collection: str, limit: int | None = None) -> list[str]:
        return [ids[-1] for ids in self._below(collection).values()][:limit]

    @awaited
    def _get_collection_names(self, *, limit: int | None = None) -> list[str]:
        return list(dict.fromkeys(collection for _, collection, _ in self._below().values()))[:limit]

    @awaited
    def _delete_collection(self, *, collection: str) -> bool:
        return sum(self._delete(name) for name in self._below(collection)) > 0

    @awaited
    def _delete_store(self) -> bool:
        for name in self._below():
            self._delete(name)
        return True

    @awaited
    def _cull(self) -> None:
        self._delete_expired(self._below())

    # Branches

    def _below(self, *collections: str) -> dict[str, tuple[str, ...]]:
        names = [_short(collection, _COLLECTION) for collection in collections]
        return branches_below(self.repo, _PREFIX, *names)

    def _write(self, records: Mapping[BranchName, Mapping[str, Any]]) -> None:
        changes = [
            BranchChanges(name, set=record, labels=name.labels, message="put", room=True)
            for name, record in records.items()
        ]
        for some in [changes] if self.repo.store.transactional else [[each] for each in changes]:
            for each, commit in zip(some, self.repo.commit_many(some), strict=True):
                if commit and commit.parent_ids and not self._keep_history:
                    self._opening.shorten(each.branch)
        with suppress(StorageError):  # the items have landed, and nothing may say otherwise
            self._round = self._round or self.repo.branch_names(f"{_PREFIX}/")
            looked_at, self._round = self._round[:_LOOKED_AT], self._round[_LOOKED_AT:]
            self._delete_expired(looked_at)

    def _find(self, name: str, look: Callable[[Snapshot], _T]) -> _T | None:
        return self._opening.read(name, look, follows=False)

    def _delete(self, name: str, seen: Commit | None = None) -> bool:
        return self._opening.delete(name, keep_history=self._keep_history, seen=seen) is not None

    def _delete_expired(self, names: Iterable[str]) -> None:
        for name in names:
            expired = self._find(name, lambda state: state.commit if _entry(state).is_expired else None)
            if expired is not None:
                self._delete(name, expired)  # unless another writer has set it anew


def _entry(state: Snapshot) -> base.ManagedEntry:
    found = state.get_many(["value", *_TIMES])
    times = {time: datetime.fromisoformat(found[time]) for time in _TIMES if found.get(time)}
    return base.ManagedEntry(value=found.get("value", {}), **times)  # another program may make a branch too


def _short(text: str, most: int) -> str:
    """A text of at most so many bytes: a longer one ends with its hash."""
    data = text.encode(errors="surrogatepass")
    return text if len(data) <= most else f"{text[: most // 10]}{blake3(data).hexdigest(length=16)}"
