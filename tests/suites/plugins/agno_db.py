"""The SQLite db of agno is vstate's: a plugin for pytest."""

import contextlib
from typing import Any

import agno.db.sqlite
import agno.db.sqlite.sqlite
from places import place

from vstate.integrations.agno import VstateDb


class _Db(VstateDb):
    """With the names that the tests' own cleaning calls. Each test has a store of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(place(":memory:"))

    @contextlib.contextmanager
    def Session(self) -> Any:
        yield self

    def _get_table(self, *args: Any, **options: Any) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


agno.db.sqlite.SqliteDb = agno.db.sqlite.sqlite.SqliteDb = _Db
