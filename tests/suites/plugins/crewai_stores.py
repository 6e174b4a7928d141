"""The checkpoints of CrewAI and the states of its flows are vstate's: a plugin for pytest."""

import os
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

import crewai.flow.persistence
import crewai.flow.persistence.sqlite
import crewai.state.provider.json_provider
import crewai.state.provider.sqlite_provider
from places import place

from vstate.integrations.crewai import VstateFlowPersistence, VstateProvider


class _Provider(VstateProvider):
    def __init__(self, **ignored: Any) -> None:
        super().__init__(place("checkpoints"))


class _Persistence(VstateFlowPersistence):
    def __init__(self, db_path: str = "flows", /) -> None:
        super().__init__(place(db_path))


crewai.state.provider.json_provider.JsonProvider = _Provider
crewai.state.provider.sqlite_provider.SqliteProvider = _Provider
crewai.flow.persistence.SQLiteFlowPersistence = _Persistence
crewai.flow.persistence.sqlite.SQLiteFlowPersistence = _Persistence
