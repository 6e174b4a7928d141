"""The checkpoint storages of Microsoft's Agent Framework are vstate's: a plugin for pytest."""

from pathlib import Path

import agent_framework
from places import place

from vstate.integrations.agent_framework import VstateCheckpointStorage

# The storage in memory copies objects of any class. These are the classes of the tests.
_CLASSES = tuple(
    f"tests.workflow.test_checkpoint:_Test{name}"
    for name in ("ToolApprovalRequest", "ExecutorState", "ApprovalRequest", "CustomData")
)


class _Memory(VstateCheckpointStorage):
    def __init__(self) -> None:
        super().__init__(place(":memory:"), allowed_checkpoint_types=_CLASSES)


class _File(VstateCheckpointStorage):
    def __init__(self, path: str | Path, *, allowed_checkpoint_types: list[str] | None = None) -> None:
        super().__init__(place(str(path)), allowed_checkpoint_types=allowed_checkpoint_types or ())


agent_framework.InMemoryCheckpointStorage = _Memory
agent_framework.FileCheckpointStorage = _File
