"""The names of each peer, as modules of vstate: a plugin for pytest in the peer's environment.

`VSTATE_SUITE` names the peer. The modules stand in `sys.modules` before the peer's tests import them.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

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


PEERS = {"agentscope": _agentscope, "agentscope-runtime": _runtime}

if "VSTATE_SUITE" in os.environ:
    PEERS[os.environ["VSTATE_SUITE"]]()


def pytest_configure(config: pytest.Config) -> None:
    """Show the tests of the peer as they are, without options of its project."""
    config.option.verbose = 0
