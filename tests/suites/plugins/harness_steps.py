"""The step store of pydantic-ai-persistence is vstate's: a plugin for pytest."""

from typing import Any

import pydantic_ai_persistence
from places import place

from vstate.integrations.pydantic_ai_harness import VstateStepStore


class _Store(VstateStepStore):
    def __init__(self, kv: Any, **options: Any) -> None:
        super().__init__(place(":memory:"), **options)


pydantic_ai_persistence.KVStepStore = _Store
