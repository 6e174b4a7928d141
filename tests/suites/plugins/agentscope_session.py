"""The session of AgentScope is vstate's, and its agents are its own: a plugin for pytest."""

import agentscope.session
from places import place

from vstate.integrations.agentscope import VstateSession


class _Session(VstateSession):
    def __init__(self, save_dir: str = "./") -> None:
        super().__init__(place(save_dir))


agentscope.session.JSONSession = _Session
