"""SessionBase: what saves the state of modules under the ids of a session and of a user, and loads it again."""

from __future__ import annotations

from abc import ABC, abstractmethod

from vstate.sessions.state_module import StateModule


class SessionBase(ABC):
    """To be subclassed for a storage of one's own. `modules` are given by name: `agent=agent, memory=memory`."""

    @abstractmethod
    async def save_session_state(self, session_id: str, user_id: str = "", **modules: StateModule) -> None:
        """Save the state of the modules; those of the session that are not given stay as they were saved."""

    @abstractmethod
    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: StateModule
    ) -> None:
        """Load the modules, all of them or none; one that was not saved stays as it is.

        A session that was never saved leaves all as it is, or raises a ValueError without `allow_not_exist`.
        """
