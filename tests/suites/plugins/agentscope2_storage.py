"""The storages of AgentScope 2 on SQL and on Redis are vstate's: a plugin for pytest."""

from typing import Any, Self

import agentscope.app.storage
from places import place

from vstate.integrations.agentscope2 import VstateStorage


class _Storage(VstateStorage):
    KeyConfig = object

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """The tests of the storage on Redis call no `__init__`."""
        made = super().__new__(cls)
        VstateStorage.__init__(made, place(":memory:"))
        return made

    def __init__(self, *arguments: Any, **options: Any) -> None: ...


agentscope.app.storage.RedisStorage = agentscope.app.storage.AsyncSQLAlchemyStorage = _Storage
