"""The stores for tests of agents' state. A test can open each several times, as other processes would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import on_server, url_of
from soak import sized

from vstate import KVStore, open_store
from vstate.kv import Memory


class AgentStore:
    """One store. Each call opens another KVStore on it, which is closed after the test.

    `kind` is "memory", "disk", "redis" or "postgres". Another process opens the store by `url`. A store in
    memory has none, and each call returns the same object.
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
        """Close every store that was opened."""
        for store in self._opened:
            store.close()


@pytest.fixture(params=["memory", "disk", on_server("redis"), on_server("postgres")])
def agent_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentStore]:
    """An empty store of each kind."""
    store = _make(str(request.param), request, tmp_path)
    yield store
    store.close()


@pytest.fixture(params=["disk", *sized([], [on_server("redis"), on_server("postgres")])])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentStore]:
    """An empty store that other processes can open by its `url`: Disk, in a soak also those on servers.

    `make test` runs processes against the servers in the stores' own tests.
    """
    store = _make(str(request.param), request, tmp_path)
    yield store
    store.close()


@pytest.fixture(params=["memory", "disk", *sized([], [on_server("redis"), on_server("postgres")])])
def local_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentStore]:
    """An empty store of each kind that needs no server; in a soak of each kind."""
    store = _make(str(request.param), request, tmp_path)
    yield store
    store.close()


def _make(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AgentStore:
    if kind == "memory":
        memory = Memory()
        return AgentStore(kind, lambda: memory, None)
    if kind == "disk":
        url = str(tmp_path / "agent-store")
    else:
        url = url_of(kind, request)
    return AgentStore(kind, lambda: open_store(url), url)
