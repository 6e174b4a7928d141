"""The session store of the Claude Agent SDK is vstate's: a plugin for pytest."""

import time
from typing import Any

import claude_agent_sdk
from claude_agent_sdk._internal import session_store
from places import place

from vstate.integrations.claude_agent import VstateSessionStore


class _Store(VstateSessionStore):
    """With the methods that the SDK's tests call beside those of a store."""

    def __init__(self) -> None:
        super().__init__(place(":memory:"))

    async def append(self, key: Any, entries: Any) -> None:
        await super().append(key, entries)
        time.sleep(0.002)  # the tests tell the order of sessions by their milliseconds

    def get_entries(self, key: Any) -> list[Any]:
        subpath = key.get("subpath") or ""
        return self._journals.read(self.branch(key), lambda known: [*known.entries.get(subpath, ())])

    @property
    def size(self) -> int:
        return len(self.repo.branch_names())

    def clear(self) -> None:
        for branch in self.repo.branch_names():
            self._journals.delete(branch, keep_history=False)


claude_agent_sdk.InMemorySessionStore = session_store.InMemorySessionStore = _Store
