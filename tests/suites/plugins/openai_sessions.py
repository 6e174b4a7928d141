"""The sessions on SQLite of openai-agents are vstate's: a plugin for pytest."""

import inspect
import re
from typing import Any

import agents
import agents.extensions.memory
import agents.extensions.memory.advanced_sqlite_session
import agents.extensions.memory.async_sqlite_session

# Before the names are replaced: it treats the sessions on SQLite by their private functions.
import agents.extensions.memory.encrypt_session
import agents.memory
import agents.memory.sqlite_session
import pytest
from places import place

from vstate.integrations.openai_agents import VstateSession


class _Session(VstateSession):
    def __init__(
        self,
        session_id: str,
        db_path: Any = ":memory:",
        sessions_table: str = "",
        messages_table: str = "",
        session_settings: Any = None,
    ) -> None:
        tables = sessions_table + messages_table
        store = place(f"{db_path}/{tables}" if tables else str(db_path))
        super().__init__(session_id, store, session_settings=session_settings)


class _AdvancedSession(_Session):
    def __init__(
        self, *, session_id: str, create_tables: bool = False, logger: Any = None, **options: Any
    ) -> None:
        super().__init__(session_id, **options)

    @property
    def _current_branch_id(self) -> str:
        return self.current_branch


class _AsyncSession(_Session):
    async def close(self) -> None:  # type: ignore[override]
        super().close()


agents.SQLiteSession = _Session
agents.memory.SQLiteSession = agents.memory.sqlite_session.SQLiteSession = _Session
agents.extensions.memory.AdvancedSQLiteSession = _AdvancedSession
agents.extensions.memory.advanced_sqlite_session.AdvancedSQLiteSession = _AdvancedSession
agents.extensions.memory.AsyncSQLiteSession = _AsyncSession
agents.extensions.memory.async_sqlite_session.AsyncSQLiteSession = _AsyncSession


WAITING = re.compile(r"_gate_worker\(|_multiprocessing_context\(|(?s:(sqlite3\.|to_thread|_conn).*\.wait\b)")
"""Tests with these words stop a private function of a session on SQLite, and wait until a thread is there."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test at once that would wait forever."""
    if isinstance(item, pytest.Function) and WAITING.search(inspect.getsource(item.function)):
        pytest.fail("it waits for a private function")
