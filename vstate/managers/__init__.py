"""Managers of agents' state: agents, workflows, teams, knowledge, tools, speech. All methods are coroutines.

- Each keeps records in a versioned state, so all of it can be logged, diffed, rolled back and branched.
- Every method that changes something is one commit, exact beside other processes that do the same.
- What goes in and what comes out are copies: nothing is stored until a method stores it.
- A store that cannot be reached raises StoreUnavailable; nothing is taken for absent because it could not be read.

Records are pydantic models: `pip install 'vstate[agents]'`. `StateManager` needs none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vstate.managers.agent_records import AgentCheckpoint, AgentSnapshot
    from vstate.managers.agents import AgentStateStore
    from vstate.managers.backends import FileBackend, MemoryBackend, RedisBackend
    from vstate.managers.knowledge import KnowledgeStateManager
    from vstate.managers.knowledge_records import (
        IndexingProgress,
        IndexingStatus,
        KnowledgeBaseState,
        SourceState,
        SyncStatus,
    )
    from vstate.managers.manager import Manager
    from vstate.managers.record import Record
    from vstate.managers.recovery import AgentRecoveryManager
    from vstate.managers.speech import SpeechStateManager
    from vstate.managers.speech_records import (
        AudioSession,
        AudioSessionStatus,
        StreamingMode,
        STTState,
        TranscriptionStatus,
        TTSState,
        VoiceConversationState,
    )
    from vstate.managers.state_config import StateConfig
    from vstate.managers.states import StateManager
    from vstate.managers.team_records import (
        AgentCoordinationState,
        AgentCoordinationStatus,
        TaskQueueState,
        TaskStatus,
        TeamState,
    )
    from vstate.managers.teams import OrchestrationStateManager
    from vstate.managers.tool_records import (
        RetryState,
        ToolCacheEntry,
        ToolExecution,
        ToolExecutionStatus,
        ToolStats,
        parameters_hash,
    )
    from vstate.managers.tools import ToolStateManager
    from vstate.managers.workflow_records import StepState, WorkflowCheckpoint, WorkflowState, WorkflowStatus
    from vstate.managers.workflows import WorkflowStateManager

_MODULES = {
    "agent_records": ["AgentCheckpoint", "AgentSnapshot"],
    "agents": ["AgentStateStore"],
    "backends": ["FileBackend", "MemoryBackend", "RedisBackend"],
    "knowledge": ["KnowledgeStateManager"],
    "knowledge_records": [
        "IndexingProgress",
        "IndexingStatus",
        "KnowledgeBaseState",
        "SourceState",
        "SyncStatus",
    ],
    "manager": ["Manager"],
    "record": ["Record"],
    "recovery": ["AgentRecoveryManager"],
    "speech": ["SpeechStateManager"],
    "speech_records": [
        "AudioSession",
        "AudioSessionStatus",
        "STTState",
        "StreamingMode",
        "TTSState",
        "TranscriptionStatus",
        "VoiceConversationState",
    ],
    "state_config": ["StateConfig"],
    "states": ["StateManager"],
    "team_records": [
        "AgentCoordinationState",
        "AgentCoordinationStatus",
        "TaskQueueState",
        "TaskStatus",
        "TeamState",
    ],
    "teams": ["OrchestrationStateManager"],
    "tool_records": [
        "RetryState",
        "ToolCacheEntry",
        "ToolExecution",
        "ToolExecutionStatus",
        "ToolStats",
        "parameters_hash",
    ],
    "tools": ["ToolStateManager"],
    "workflow_records": ["StepState", "WorkflowCheckpoint", "WorkflowState", "WorkflowStatus"],
    "workflows": ["WorkflowStateManager"],
}
"""What is exported, by the module that it is in. It comes when it is asked for: some need pydantic."""

_NAMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AgentCheckpoint",
    "AgentCoordinationState",
    "AgentCoordinationStatus",
    "AgentRecoveryManager",
    "AgentSnapshot",
    "AgentStateStore",
    "AudioSession",
    "AudioSessionStatus",
    "FileBackend",
    "IndexingProgress",
    "IndexingStatus",
    "KnowledgeBaseState",
    "KnowledgeStateManager",
    "Manager",
    "MemoryBackend",
    "OrchestrationStateManager",
    "Record",
    "RedisBackend",
    "RetryState",
    "STTState",
    "SourceState",
    "SpeechStateManager",
    "StateConfig",
    "StateManager",
    "StepState",
    "StreamingMode",
    "SyncStatus",
    "TTSState",
    "TaskQueueState",
    "TaskStatus",
    "TeamState",
    "ToolCacheEntry",
    "ToolExecution",
    "ToolExecutionStatus",
    "ToolStateManager",
    "ToolStats",
    "TranscriptionStatus",
    "VoiceConversationState",
    "WorkflowCheckpoint",
    "WorkflowState",
    "WorkflowStateManager",
    "WorkflowStatus",
    "parameters_hash",
]


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return getattr(import_module(f"vstate.managers.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
