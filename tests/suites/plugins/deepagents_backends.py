"""The store below a StoreBackend is vstate's, and a FilesystemBackend commits: a plugin for pytest."""

import os
import sys
from typing import Any

# The tests have their deepagents beside them, and run on the one that is installed.
sys.path.append(os.environ["VSTATE_SUITE_SOURCE"])

import deepagents.backends
import deepagents.backends.filesystem
import langgraph.store.memory
from places import place

from vstate import Versioned, Workspace
from vstate.integrations.deepagents import VstateBackend
from vstate.integrations.langgraph import VstateStore


class _Store(VstateStore):
    def __init__(self, *, index: Any = None, ttl: Any = None) -> None:
        super().__init__(place(":memory:"), index=index, ttl=ttl)


class _Backend(VstateBackend):
    def __init__(self, root_dir: Any = None, virtual_mode: bool = True, max_file_size_mb: int = 10) -> None:
        workspace = Workspace(Versioned(place(":memory:")), root_dir or os.getcwd())
        super().__init__(workspace, max_file_size_mb=max_file_size_mb)
        self.virtual_mode = virtual_mode  # VstateBackend has virtual paths only


langgraph.store.memory.InMemoryStore = _Store
deepagents.backends.FilesystemBackend = deepagents.backends.filesystem.FilesystemBackend = _Backend
