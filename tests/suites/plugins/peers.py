"""The names of each peer, as modules of vstate: a plugin for pytest in the peer's environment.

`VSTATE_SUITE` names the peer. The modules stand in `sys.modules` before the peer's tests import them.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

import vstate
import vstate.sessions


def _module(name: str, **contents: Any) -> ModuleType:
    """Stand in for a module, and for the packages around it that are not there yet."""
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(contents)
    return module


def _packages(*names: str) -> None:
    for name in names:
        _module(name, __path__=[])


def _agentscope() -> None:
    """AgentScope itself, with vstate's StateModule and JSONSession in the place of its own."""
    _module("agentscope.module._state_module", StateModule=vstate.sessions.StateModule)
    _module("agentscope.session._json_session", JSONSession=vstate.sessions.JSONSession)


def _runtime() -> None:
    """The state services alone, and a real Redis where the tests ask for a fake one."""
    _packages(
        "agentscope_runtime",
        "agentscope_runtime.engine",
        "agentscope_runtime.engine.services",
    )
    sys.modules["agentscope_runtime.engine.services.agent_state"] = vstate.sessions

    import redis
    import redis.asyncio

    url = os.environ["VSTATE_SUITE_STORE"]

    def real(**options: Any) -> redis.asyncio.Redis:
        redis.Redis.from_url(url).flushall()
        return redis.asyncio.Redis.from_url(url, **options)

    _packages("fakeredis")
    _module("fakeredis.aioredis", FakeRedis=real)
    sys.modules["fakeredis"].aioredis = sys.modules["fakeredis.aioredis"]  # type: ignore[attr-defined]


class _AgexStore:
    """The calls of agex' stores on a store of vstate."""

    def __init__(self, store: vstate.KVStore) -> None:
        self.store = store

    def get(self, key: str) -> bytes | None:
        return self.store.get(key)

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def get_many(self, *keys: str) -> Any:
        return self.store.get_many(keys)

    def set_many(self, **values: bytes) -> None:
        self.store.set_many(values)

    def items(self) -> Any:
        return self.store.items()

    def clear(self) -> None:
        for key in list(self.store.keys("")):
            self.store.delete(key)

    def __contains__(self, key: str) -> bool:
        return key in self.store


class _AgexMapping:
    """The calls of agex' states on a mapping of vstate."""

    def __init__(self, state: Any) -> None:
        self.state = state

    @property
    def base_store(self) -> Any:
        return self

    def get(self, key: str, default: Any = None) -> Any:
        return self.state.get(key, default)

    def set(self, key: str, value: Any) -> None:
        self.state[key] = value

    def remove(self, key: str) -> bool:
        return self.state.pop(key, self) is not self

    def keys(self) -> Any:
        return self.state.keys()

    def values(self) -> Any:
        return self.state.values()

    def items(self) -> Any:
        return self.state.items()

    def __contains__(self, key: str) -> bool:
        return key in self.state

    def __len__(self) -> int:
        return len(self.state)


class _AgexLive(_AgexMapping):
    def __init__(self) -> None:
        super().__init__(vstate.Live())


class _AgexVersioned(_AgexMapping):
    """A Versioned. agex begins with an empty commit, and vstate with none: `_EMPTY` stands for it."""

    _EMPTY = "0" * 64

    def __init__(self, store: _AgexStore | None = None, commit_hash: str | None = None) -> None:
        super().__init__(vstate.Versioned(store.store if store is not None else None))
        if commit_hash not in (None, self._EMPTY):
            self.state = self.state.fork(f"from-{uuid4().hex}", at=commit_hash)

    @property
    def current_commit(self) -> str:
        at = self.state.commit if isinstance(self.state, vstate.Snapshot) else self.state.head
        return at.id if at is not None else self._EMPTY

    @property
    def live(self) -> Any:
        return self.state.status()

    def snapshot(self) -> Any:
        unsaved: list[str] = []
        try:
            self.state.commit()
        except vstate.Unpicklable as error:
            unsaved = list(error.keys)
            self.state.discard(*unsaved)
            self.state.commit()
        return SimpleNamespace(commit_hash=self.current_commit, unsaved_keys=unsaved)

    def history(self, commit_hash: str | None = None) -> Any:
        if self.current_commit != self._EMPTY:
            yield from (commit.id for commit in self.state.log(commit_hash or "HEAD"))
        yield self._EMPTY

    def checkout(self, commit_hash: str) -> _AgexVersioned | None:
        if commit_hash not in self.history():
            return None
        found = _AgexVersioned()
        found.state = self.state.checkout(commit_hash)
        return found

    def diffs(self, commit_hash: str | None = None) -> dict[str, Any]:
        commit = commit_hash or self.current_commit
        parents = next(iter(self.state.log(commit))).parents
        before = self.state.checkout(parents[0]) if parents else {}
        return {
            key: value
            for key, value in self.state.checkout(commit).items()
            if not key.startswith("__") and (key not in before or before[key] != value)
        }


def _agex() -> None:
    """agex with vstate's states and stores; its namespaces, scopes and events are its own, on top of them."""
    sys.path.insert(0, os.environ["VSTATE_SUITE_SOURCE"])
    _module("agex.state.versioned", Versioned=_AgexVersioned, SnapshotResult=SimpleNamespace)
    _module("agex.state.live", Live=_AgexLive)
    _module(
        "agex.state.kv",
        KVStore=_AgexStore,
        Memory=lambda: _AgexStore(vstate.Memory()),
        Cache=lambda store, max_bytes: _AgexStore(vstate.Cache(store.store, max_bytes=max_bytes)),
        Disk=lambda directory, **options: _AgexStore(vstate.Disk(directory, **options)),
    )


PEERS = {"agentscope": _agentscope, "agentscope-runtime": _runtime, "agex": _agex}

if "VSTATE_SUITE" in os.environ:
    PEERS[os.environ["VSTATE_SUITE"]]()


def pytest_configure(config: pytest.Config) -> None:
    """Show the tests of the peer as they are, without options of its project."""
    config.option.verbose = 0
