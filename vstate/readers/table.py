"""Table: the readers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from vstate.readers.stored import READER, Stored

_READERS: Final[Mapping[str, tuple[str, str, str | None]]] = {
    "agent_framework.history": ("chats", "agent_framework_state", "agent_framework_title"),
    "agent_framework.workflow": ("chats", "workflow_state", None),
    "burr": ("chats", "state_fields", None),
    "crewai.checkpoint": ("chats", "checkpoint_fields", None),
    "crewai.flow": ("chats", "state_fields", None),
    "google_adk": ("chats", "adk_state", "adk_title"),
    "langgraph": ("langgraph", "state", "title"),
    "llama_index.chat": ("chats", "llama_state", "llama_title"),
    "llama_index.run": ("chats", "llama_run_state", None),
    "openai_agents": ("chats", "openai_state", "openai_title"),
    "pydantic_ai": ("chats", "pydantic_ai_state", "pydantic_ai_title"),
    "strands": ("chats", "strands_state", "strands_title"),
}
"""The module of each reader, its function of a state, and that of a title if it has one."""


class Reader(NamedTuple):
    """How the commits of one kind of branch read."""

    state: Callable[[Stored], Mapping[str, Any]]
    """The keys of a commit with their values: plain data, `Serialized`, or `Kept`."""
    title: Callable[[Stored, Stored | None], str | None]
    """The subject of a commit, by its keys and those of its first parent; None for its message."""


def find_reader(name: object) -> Reader | None:
    """The reader of this name, None if there is none here."""
    if not isinstance(name, str) or name not in _READERS:
        return None
    module, state, title = _READERS[name]
    found = import_module(f"vstate.readers.{module}")  # late: most stores need none
    return Reader(getattr(found, state), _untitled if title is None else getattr(found, title))


def marks(name: str) -> Mapping[str, str]:
    """The key that the first commit of a branch sets, for its commits to read so."""
    return {READER: name} if name in _READERS else {}


def _untitled(stored: Stored, before: Stored | None) -> None:
    return None
