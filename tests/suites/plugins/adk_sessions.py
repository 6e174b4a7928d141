"""The session services of Google's ADK are vstate's: a plugin for pytest."""

from typing import Any

import google.adk.sessions
from places import place

from vstate.integrations.google_adk import VstateSessionService


class _Service(VstateSessionService):
    def __init__(self, url: str = "sqlite:///:memory:", **_: Any) -> None:
        super().__init__(place(url.removeprefix("sqlite:///")))


google.adk.sessions.DatabaseSessionService = _Service
google.adk.sessions.InMemorySessionService = _Service
