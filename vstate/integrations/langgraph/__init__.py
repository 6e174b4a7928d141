"""LangGraph on vstate: `VstateStore`, its long-term memory."""

from vstate.integrations.langgraph.store import VstateStore

__all__ = ["VstateStore"]
