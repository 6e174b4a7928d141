"""Sessions: the state of agents, saved and loaded by session and user.

- A save that fails leaves what was saved before; a load takes all of its modules, or none.
- Ids are texts of any characters: no two of them meet, and none leads out of its place.
- VersionedSession and StateService commit each save, so that any of them can be looked at and gone back to.
"""

from vstate.sessions.conversation import Conversation, len_of_tokens
from vstate.sessions.json_session import JSONSession
from vstate.sessions.redis_state_service import RedisStateService
from vstate.sessions.session_base import SessionBase
from vstate.sessions.state_module import StateModule
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
