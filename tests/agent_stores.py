"""The stores that state for agents is tested on, each to be opened again and again, as other processes would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_urls import with_options

from vstate import KVStore, open_store
from vstate.kv import Memory


class AgentStore:
    """One store: calling it opens it again, each time as a KVStore of its own, which is closed after the test.

    `kind` is "memory", "disk", "redis" or "postgres". `url` is what another process opens it by; None for memory,
    which is one and the same object each time.
    """

    def __init__(self, kind: str, open: Callable[[], KVStore], url: str | None) -> None:
        self.kind = kind
        self.url = url
        self._open = open
        self._opened: list[KVStore] = []

    def __call__(self) -> KVStore:
        store = self._open()
        self._opened.append(store)
        return store

    def close(self) -> None:
        """Close all that were opened."""
        for store in self._opened:
            store.close()


@pytest.fixture(params=["memory", "disk", "redis", "postgres"])
def agent_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentStore]:
    """A store that holds nothing yet, of each kind: `agent_store()` opens it, and again, as another process would."""
    store = _make(str(request.param), request, tmp_path)
    yield store
    store.close()


@pytest.fixture(params=["disk", "redis", "postgres"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentStore]:
    """As `agent_store`, of the kinds that other processes can open, by its `url`."""
    store = _make(str(request.param), request, tmp_path)
    yield store
    store.close()


@pytest.fixture(params=["memory", "disk"])
def local_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentStore]:
    """As `agent_store`, of the kinds that need no server: for what is tested in full, or at length."""
    store = _make(str(request.param), request, tmp_path)
    yield store
    store.close()


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AgentStore:
    if kind == "memory":
        memory = Memory()
        return AgentStore(kind, lambda: memory, None)
    if kind == "disk":
        url = str(tmp_path / "agent-store")
    elif kind == "redis":
        prefix = request.getfixturevalue("redis_prefix")
        url = with_options(request.getfixturevalue("redis_url"), [f"prefix={prefix}", "timeout=60"])
    else:
        table = request.getfixturevalue("postgres_table")
        url = with_options(request.getfixturevalue("postgres_dsn"), [f"table={table}", "timeout=60"])
    return AgentStore(kind, lambda: open_store(url), url)
