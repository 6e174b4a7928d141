"""LangGraph on vstate: `VstateSaver`, its checkpoints, and `VstateStore`, its long-term memory."""

from vstate.integrations import framework_of

with framework_of("langgraph"):
    from vstate.integrations.langgraph.saver import VstateSaver
    from vstate.integrations.langgraph.store import VstateStore

__all__ = ["VstateSaver", "VstateStore"]
