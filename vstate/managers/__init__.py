"""Managers of agents' state: agents, workflows, teams, knowledge, tools, speech. All methods are coroutines.

- Each keeps records in a versioned state, so they can be logged, diffed, rolled back and branched.
- Every method that changes something is one commit, exact beside other processes that do the same.
- Values go in and come out as copies: a change of one is stored only by a method.
- While the store cannot be reached, calls raise StoreUnavailable; no record counts as absent because of that.

Records are pydantic models: `pip install '.[agents]'`. `StateManager` needs none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from vstate.extras import install

_MODULES = {
    "agents": ["AgentCheckpoint", "AgentSnapshot", "AgentStateStore"],
    "backends": ["FileBackend", "MemoryBackend", "RedisBackend"],
    "knowledge": [
        "IndexingProgress",
        "IndexingStatus",
        "KnowledgeBaseState",
        "KnowledgeStateManager",
        "SourceState",
        "SyncStatus",
    ],
    "manager": ["Manager"],
    "record": ["Record"],
    "recovery": ["AgentRecoveryManager"],
    "speech": [
        "AudioSession",
        "AudioSessionStatus",
        "STTState",
        "SpeechStateManager",
        "StreamingMode",
        "TTSState",
        "TranscriptionStatus",
        "VoiceConversationState",
    ],
    "states": ["StateConfig", "StateManager"],
    "task_queue": ["TaskQueueState", "TaskStatus"],
    "teams": ["AgentCoordinationState", "AgentCoordinationStatus", "OrchestrationStateManager", "TeamState"],
    "tools": [
        "RetryState",
        "ToolCacheEntry",
        "ToolExecution",
        "ToolExecutionStatus",
        "ToolStateManager",
        "ToolStats",
        "parameters_hash",
    ],
    "workflows": [
        "StepState",
        "WorkflowCheckpoint",
        "WorkflowState",
        "WorkflowStateManager",
        "WorkflowStatus",
    ],
}
"""The public names of each module. A name loads its module at the first use: most modules need pydantic."""

_NAMES = {name: module for module, names in _MODULES.items() for name in names}

# ruff: noqa: F403  # the __all__ of each module says which names come
if TYPE_CHECKING:
    from vstate.managers.agents import *
    from vstate.managers.backends import *
    from vstate.managers.knowledge import *
    from vstate.managers.manager import *
    from vstate.managers.record import *
    from vstate.managers.recovery import *
    from vstate.managers.speech import *
    from vstate.managers.states import *
    from vstate.managers.task_queue import *
    from vstate.managers.teams import *
    from vstate.managers.tools import *
    from vstate.managers.workflows import *
else:
    __all__ = sorted(_NAMES)


def __getattr__(name: str) -> object:
    if name in _NAMES:
        try:
            return getattr(import_module(f"vstate.managers.{_NAMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "pydantic":
                raise
            raise ImportError(f"{name} needs pydantic; type: {install('agents')}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
