"""SessionBase: the base class of storages that save and load modules by session and user."""

from __future__ import annotations

from abc import ABC, abstractmethod

from vstate.sessions.state_module import StateModule


class SessionBase(ABC):
    """Subclass it for another storage. Modules are passed by name: `agent=agent, memory=memory`."""

    @abstractmethod
    async def save_session_state(self, session_id: str, user_id: str = "", **modules: StateModule) -> None:
        """Save the state of these modules. Other modules of the session stay as they were saved."""

    @abstractmethod
    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: StateModule
    ) -> None:
        """Load the modules, all or none. A module that was never saved stays as it is.

        A session that was never saved changes no module, or raises ValueError if `allow_not_exist` is False.
        """
