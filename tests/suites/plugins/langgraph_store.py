"""The store of langgraph-checkpoint-sqlite is vstate's: a plugin for pytest."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import langgraph.store.sqlite
import langgraph.store.sqlite.aio
from places import place

from vstate.integrations.langgraph import VstateStore


class _Store(VstateStore):
    @classmethod
    @contextmanager
    def from_conn_string(cls, name: str, *, index: Any = None, ttl: Any = None) -> Iterator[Any]:
        if index is not None:
            index = {**index, "fields": index.get("text_fields")}
        with cls(place(name), index=index, ttl=ttl) as store:
            yield store

    def setup(self) -> None:
        """The tables of SQLite."""

    def start_ttl_sweeper(self) -> None:
        """Expired items are absent without a thread that removes them."""

    def stop_ttl_sweeper(self) -> None: ...


class _AsyncStore(_Store):
    """The same, with the administration awaited."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, name: str, *, index: Any = None, ttl: Any = None) -> AsyncIterator[Any]:
        with super().from_conn_string(name, index=index, ttl=ttl) as store:
            yield store

    async def setup(self) -> None: ...

    async def sweep_ttl(self) -> int:
        return super().sweep_ttl()

    async def start_ttl_sweeper(self) -> None: ...

    async def stop_ttl_sweeper(self) -> None: ...


langgraph.store.sqlite.SqliteStore = _Store
langgraph.store.sqlite.AsyncSqliteStore = langgraph.store.sqlite.aio.AsyncSqliteStore = _AsyncStore
