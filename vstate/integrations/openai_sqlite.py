"""OpenAI SQLite: the sessions in a file of the SDK's SQLite sessions, moved to a store."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from vstate.errors import CorruptObject, InvalidInput
from vstate.integrations.branches import BranchName, branch_of
from vstate.integrations.openai_agents import ITEMS, READER, History
from vstate.integrations.opening import intake, sqlite_tables
from vstate.patterns.journal import Journal
from vstate.repo.repository import Repository

_MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class SessionsReport:
    """The numbers of sessions and items that are here now, and of items that were new. Items and branches
    that were left out have the reason beside their session.
    """

    sessions: int
    items: int
    written: int
    left_out: tuple[tuple[str, str], ...]


def take_sqlite(
    repo: Repository, file: str | os.PathLike[str], *, progress: Callable[[int], None] = lambda items: None
) -> SessionsReport:
    """Move the sessions of a SQLiteSession or AdvancedSQLiteSession to those of VstateSession.

    A branch of a session is one commit, and is read back and compared. Items keep their times. A branch that
    has the first of these items already gets the others, so an interrupted intake that is called again
    continues; one with other items stays as it is. The usage of turns is not moved. The file is opened for
    reading only.
    """
    found = written = sessions = 0
    left_out: list[tuple[str, str]] = []
    with sqlite_tables(file, "the SDK's SQLite sessions") as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for (id,) in connection.execute("SELECT session_id FROM agent_sessions ORDER BY 1"):
            before = found
            try:
                branch_of("openai", id)
            except (InvalidInput, TypeError) as error:  # an id that is too long for a name
                left_out.append((str(id), str(error)))
                continue
            for branch, rows in _branches(connection, id, has_branches="message_structure" in tables):
                records = list(_records(id, rows, left_out))
                try:
                    written += _append(repo, branch_of("openai", id, branch), records)
                    found += len(records)
                except InvalidInput as error:
                    left_out.append((f"{id} {branch}", str(error)))
                progress(found)
            sessions += found > before
    return SessionsReport(sessions, found, written, tuple(left_out))


def _branches(
    connection: sqlite3.Connection, id: str, *, has_branches: bool
) -> Iterator[tuple[str, Iterable[tuple[Any, Any]]]]:
    """The branches of a session, with the texts and times of their items in order."""
    if not has_branches:
        yield (
            _MAIN,
            connection.execute(
                "SELECT message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id", (id,)
            ),
        )
        return
    names = connection.execute(
        "SELECT DISTINCT branch_id FROM message_structure WHERE session_id = ? ORDER BY branch_id <> ?, 1",
        (id, _MAIN),
    )
    for (branch,) in names.fetchall():
        yield (
            branch,
            connection.execute(
                "SELECT m.message_data, m.created_at FROM agent_messages m JOIN message_structure s "
                "ON m.id = s.message_id WHERE s.session_id = ? AND s.branch_id = ? "
                "ORDER BY s.sequence_number",
                (id, branch),
            ),
        )


def _records(
    id: str, rows: Iterable[tuple[Any, Any]], left_out: list[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    for number, (text, at) in enumerate(rows, 1):
        try:
            yield {"at": _iso(at), "item": json.loads(text)}
        except (ValueError, TypeError, RecursionError) as error:  # the SDK passes over these too
            left_out.append((f"{id} item {number}", f"it is damaged: {error}"))


def _iso(at: object) -> str:
    """A time of SQLite, which is in UTC, as the items of a session have it; ValueError."""
    return datetime.fromisoformat(str(at)).replace(tzinfo=UTC).isoformat(timespec="microseconds")


def _append(repo: Repository, branch: BranchName, records: list[dict[str, Any]]) -> int:
    """Commit the records that the branch lacks; how many. InvalidInput if it has others."""
    new = 0

    def plan(history: Any) -> list[dict[str, Any]]:
        nonlocal new
        here = history.records
        if here != records[: len(here)]:
            raise InvalidInput("it has other items here already, and stays as it is")
        new = len(records) - len(here)
        return records[len(here) :]

    journal = intake(repo, branch, History, ITEMS, READER)
    journal.append(plan, message=f"import {len(records)} items", fresh=True)
    if Journal(repo, branch, History, name=ITEMS).refresh().records != records:
        raise CorruptObject(branch, "the branch does not hold the items as imported")
    return new
