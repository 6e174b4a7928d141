"""The checkpointers of langgraph-checkpoint-sqlite are vstate's: a plugin for pytest."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import langgraph.checkpoint.sqlite
import langgraph.checkpoint.sqlite.aio
import pytest
from places import place

from vstate.integrations.langgraph import VstateSaver


class _Saver(VstateSaver):
    @classmethod
    @contextmanager
    def from_conn_string(cls, name: str) -> Iterator[Any]:
        with cls(place(name)) as saver:
            yield saver

    def setup(self) -> None:
        """The tables of SQLite."""


class _AsyncSaver(VstateSaver):
    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, name: str) -> AsyncIterator[Any]:
        async with cls(place(name)) as saver:
            yield saver

    async def setup(self) -> None: ...


langgraph.checkpoint.sqlite.SqliteSaver = _Saver
langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver = _AsyncSaver

os.environ["NO_DOCKER"] = "true"  # LangGraph's tests start no servers then


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that take a checkpointer of SQLite, and all tests of a package without that choice."""
    kept = [item for item in items if _kind(item).startswith("sqlite")]
    items[:] = kept or items


def _kind(item: pytest.Item) -> str:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return str(params.get("sync_checkpointer") or params.get("async_checkpointer") or "")
