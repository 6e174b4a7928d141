"""SessionBase: the base class of storages that save and load modules by session and user."""

from __future__ import annotations

from abc import ABC, abstractmethod

from vstate.sessions.state_module import Module


class SessionBase(ABC):
    """Subclass it for another storage. Modules are passed by name: `agent=agent, memory=memory`.

    A module is a StateModule, or any object with `state_dict` and `load_state_dict`, such as an agent of
    AgentScope.
    """

    @abstractmethod
    async def save_session_state(self, session_id: str, user_id: str = "", **modules: Module) -> None:
        """Save the state of these modules. Other modules of the session stay as they were saved."""

    @abstractmethod
    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: Module
    ) -> None:
        """Load the modules, all or none.

        A module that was never saved stays as it is, with a warning in the log. So do all modules of a
        session that was never saved; if `allow_not_exist` is False, that raises ValueError.
        """
