"""Sessions: the state of agents, saved and loaded by session and user.

- A failed save leaves the last save as it was. A load changes all of its modules, or none.
- Ids may have any characters. No two ids share a key or file, and no file is outside its directory.
- VersionedSession and StateService commit each save: each can be read later, and restored.
"""

from vstate.sessions.conversation import Conversation, len_of_tokens
from vstate.sessions.json_session import JSONSession
from vstate.sessions.redis_state_service import RedisStateService
from vstate.sessions.state_module import SessionBase, StateModule
from vstate.sessions.state_service import InMemoryStateService, StateService
from vstate.sessions.state_service_factory import StateServiceFactory
from vstate.sessions.versioned_session import SavedSession, VersionedSession

__all__ = [
    "Conversation",
    "InMemoryStateService",
    "JSONSession",
    "RedisStateService",
    "SavedSession",
    "SessionBase",
    "StateModule",
    "StateService",
    "StateServiceFactory",
    "VersionedSession",
    "len_of_tokens",
]
