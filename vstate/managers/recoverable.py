"""Recoverable: an agent as recovering sees it, whatever its class is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vstate.errors import InvalidInput
from vstate.managers.agent_records import AgentCheckpoint


class Recoverable:
    """An agent, by its id, that can be taken back to a checkpoint; InvalidInput for one without an id, or without a
    method `restore_from_checkpoint` or `load_state_dict`.
    """

    def __init__(self, agent: Any, agent_id: str | None = None) -> None:
        id = agent_id if agent_id is not None else getattr(agent, "id", getattr(agent, "agent_id", None))
        if not isinstance(id, str):
            raise InvalidInput("an agent is known by a text, its `id`: give it one, or agent_id=")
        self.id = id
        self._agent = agent
        self._restorer()

    async def restore(self, checkpoint: AgentCheckpoint) -> None:
        """Give it a copy of the checkpoint's state, and let it resume, if it can."""
        await _settled(self._restorer()(checkpoint.model_copy(deep=True).state))
        resume = getattr(self._agent, "resume", None)
        if callable(resume):
            await _settled(resume())

    def _restorer(self) -> Callable[[Any], Any]:
        for name in ("restore_from_checkpoint", "load_state_dict"):
            method = getattr(self._agent, name, None)
            if callable(method):
                return method  # type: ignore[no-any-return]
        raise InvalidInput(
            f"a {type(self._agent).__name__} cannot be recovered: it needs a method restore_from_checkpoint(state), "
            "or load_state_dict(state)"
        )


async def _settled(returned: Any) -> None:
    if inspect.isawaitable(returned):
        await returned
