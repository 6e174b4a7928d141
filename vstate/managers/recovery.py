"""AgentRecoveryManager: takes failed agents back to a checkpoint."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from vstate.aio.workers import LoopLock
from vstate.arguments import check_count, check_flag
from vstate.errors import InvalidInput, NotFound
from vstate.managers.agents import AgentCheckpoint, AgentStateStore, Recovery, recoveries_of
from vstate.managers.manager import Wait
from vstate.state.namespace import Namespace

__all__ = ["AgentRecoveryManager"]


LATEST: Final = "latest"

_log = logging.getLogger("vstate")


@dataclass
class Guard:
    """The result of a block under `AgentRecoveryManager.guard`.

    After the block, `error` is its exception and `checkpoint` the one that the agent is back at; both are
    None if the block ran to its end. `attempts` counts recoveries since the last success of the agent.
    """

    agent_id: str
    error: Exception | None = None
    checkpoint: AgentCheckpoint | None = None
    attempts: int = 0

    @property
    def recovered(self) -> bool:
        """Whether the block failed and the agent was recovered. The work of the block is not done then."""
        return self.checkpoint is not None


class AgentRecoveryManager:
    """Takes agents back to a checkpoint: `AgentRecoveryManager(agent_store=store)`.

    An agent has an `id` (or `agent_id`), a method `restore_from_checkpoint(state)` or, as a StateModule,
    `load_state_dict(state)`, and optionally `resume()`, which a `guard` calls next. The methods may be sync
    or async, and run in the event loop. They get a copy of the state. The manager does not wait between
    attempts.

    The store counts attempts, so an agent that crashes its process does not start at zero again. After
    `max_recovery_attempts` it makes no more until the agent succeeds: a `guard` block without an error, or
    `reset`.
    """

    def __init__(
        self, agent_store: AgentStateStore, auto_recover: bool = True, max_recovery_attempts: int = 3
    ) -> None:
        if not isinstance(agent_store, AgentStateStore):
            raise TypeError(f"agent_store is an AgentStateStore, not a {type(agent_store).__name__}")
        check_flag("auto_recover", auto_recover)
        check_count("max_recovery_attempts", max_recovery_attempts, 0)
        self.agent_store = agent_store
        self.auto_recover = auto_recover
        self.max_recovery_attempts = max_recovery_attempts
        self._agents: dict[str, Any] = {}
        self._locks: dict[str, LoopLock] = {}

    def register(self, agent: Any, agent_id: str | None = None) -> Wait:
        """Register an agent, replacing any with its id. To await the result is optional."""
        id = agent_id if agent_id is not None else getattr(agent, "id", getattr(agent, "agent_id", None))
        if not isinstance(id, str):
            raise InvalidInput("an agent needs an `id` of type str: give it one, or pass agent_id=")
        _restorer(agent)
        self._agents[id] = agent
        return Wait()

    async def recover(self, agent_id: str, from_checkpoint: str = LATEST) -> AgentCheckpoint | None:
        """Take an agent back to a checkpoint, by default the latest recoverable one.

        The program resumes the agent. Returns the checkpoint; None, with a warning in the log, if the agent
        has none or its attempts are used up. Raises NotFound for an agent that is not registered or an
        unknown checkpoint, InvalidInput for a checkpoint that is not recoverable, StorageError, and the
        errors of the agent.
        """
        agent = self._find_agent(agent_id)
        async with self._locks.setdefault(agent_id, LoopLock()).here():
            checkpoint = await self._find_checkpoint(agent_id, from_checkpoint)
            if checkpoint is None:
                _log.warning("agent %s has no checkpoint to recover from", agent_id)
                return None
            if not await self._count(agent_id, checkpoint.checkpoint_id):
                _log.warning("agent %s was recovered %d times already", agent_id, self.max_recovery_attempts)
                return None
            await _awaited(_restorer(agent)(checkpoint.model_copy(deep=True).state))
            return checkpoint

    @asynccontextmanager
    async def guard(self, agent_id: str) -> AsyncIterator[Guard]:
        """Recover the agent if the `async with` block raises, resume it, and go on after the block.

        while True:
            async with recovery.guard("researcher") as guard:
                await agent.run(task)
            if not guard.recovered:
                break

        The exception of the block is raised again if the agent cannot be recovered: its attempts are used up,
        it has no recoverable checkpoint, recovery fails (a note says how), or `auto_recover` is False. A
        cancellation is always raised again. A block without an error resets the attempts. For an agent that
        is not registered, the block does not begin: NotFound.
        """
        self._find_agent(agent_id)
        guard = Guard(agent_id)
        try:
            yield guard
        except Exception as error:  # any failure of the block; a cancellation is none
            guard.error = error
            try:
                guard.checkpoint = await self.recover(agent_id) if self.auto_recover else None
                if guard.checkpoint is not None:
                    resume = getattr(self._find_agent(agent_id), "resume", None)
                    if callable(resume):
                        await _awaited(resume())
                guard.attempts = await self.attempts(agent_id)
            except Exception as failure:  # of the store or of the agent, which may raise anything
                error.add_note(
                    f"vstate, while it recovered agent {agent_id!r}: {type(failure).__name__}: {failure}"
                )
                guard.checkpoint = None
            if guard.checkpoint is None:
                raise
            _log.warning("agent %s failed, and is back at step %d", agent_id, guard.checkpoint.step)
        else:
            await self.reset(agent_id)

    async def attempts(self, agent_id: str) -> int:
        """The recovery attempts since the last success of the agent."""
        found = await self.agent_store.read(lambda part: recoveries_of(part).get(agent_id))
        return 0 if found is None else found.attempts

    async def reset(self, agent_id: str) -> None:
        """Set the attempts back to zero."""
        if await self.attempts(agent_id):
            await self.agent_store.change(
                lambda part: recoveries_of(part).discard(agent_id), f"agent {agent_id} does well"
            )

    def _find_agent(self, agent_id: str) -> Any:
        if agent_id not in self._agents:
            raise NotFound(f"no agent {agent_id!r} is registered: register() it", name=agent_id)
        return self._agents[agent_id]

    async def _find_checkpoint(self, agent_id: str, from_checkpoint: str) -> AgentCheckpoint | None:
        if from_checkpoint == LATEST:
            return await self.agent_store.latest_checkpoint(agent_id, recoverable=True)
        checkpoint = await self.agent_store.get_checkpoint(agent_id, from_checkpoint)
        if checkpoint is None:
            raise NotFound(f"agent {agent_id!r} has no checkpoint {from_checkpoint!r}", name=from_checkpoint)
        if not checkpoint.recoverable:
            raise InvalidInput(f"checkpoint {from_checkpoint!r} of agent {agent_id!r} is not recoverable")
        return checkpoint

    async def _count(self, agent_id: str, checkpoint_id: str) -> bool:
        """Count one more attempt. Returns False if the attempts are used up."""

        def count(part: Namespace) -> bool:
            found = recoveries_of(part).get(agent_id)
            attempts = 0 if found is None else found.attempts
            if attempts < self.max_recovery_attempts:
                new = Recovery(agent_id=agent_id, attempts=attempts + 1, last_checkpoint=checkpoint_id)
                recoveries_of(part).put(new)
            return attempts < self.max_recovery_attempts

        return await self.agent_store.change(count, f"recover agent {agent_id} from {checkpoint_id}")


def _restorer(agent: Any) -> Callable[[Any], Any]:
    """The method that restores an agent. Raises InvalidInput if it has none."""
    for name in ("restore_from_checkpoint", "load_state_dict"):
        method = getattr(agent, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    raise InvalidInput(
        f"a {type(agent).__name__} cannot be recovered: it needs a method restore_from_checkpoint(state), or "
        "load_state_dict(state)"
    )


async def _awaited(returned: Any) -> None:
    if inspect.isawaitable(returned):
        await returned
