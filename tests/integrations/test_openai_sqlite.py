"""Sessions in files of the OpenAI Agents SDK move to vstate."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from vstate_cli.app import cli

pytest.importorskip("agents", reason="openai-agents is not installed: pip install '.[openai-agents]'")

from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

from vstate import InvalidInput, Memory, NotFound, SigningKey, Versioned
from vstate.integrations.openai_agents import VstateSession
from vstate.integrations.openai_sqlite import take_sqlite
from vstate.repo import Repository


def turn(text: str) -> list[Any]:
    return [{"role": "user", "content": text}, {"type": "reasoning", "summary": [], "id": text}]


def add(session: Any, *texts: str) -> None:
    for text in texts:
        asyncio.run(session.add_items(turn(text)))


def items(repo: Repository, id: str, branch: str = "main") -> list[Any]:
    return asyncio.run(VstateSession(id, repo.store).get_items(branch_id=branch))


def test_sessions_come_with_their_items_and_times(tmp_path: Path) -> None:
    """A session has the same items, and a second intake takes the items that came since."""
    file, repo = tmp_path / "s.sqlite", Repository(Memory())
    theirs = {id: SQLiteSession(id, file) for id in ("ann", "bob/7")}
    add(theirs["ann"], "one", "two")
    add(theirs["bob/7"], "three")
    report = take_sqlite(repo, file)
    assert (report.sessions, report.items, report.written, report.left_out) == (2, 6, 6, ())
    assert items(repo, "bob/7") == turn("three")
    (first, _) = asyncio.run(VstateSession("ann", repo.store).get_conversation_turns())
    with sqlite3.connect(file) as connection:
        (at,) = connection.execute("SELECT created_at FROM agent_messages LIMIT 1").fetchone()
    assert first["timestamp"].startswith(at.replace(" ", "T"))
    add(theirs["ann"], "four")
    assert take_sqlite(repo, file).written == 2
    assert items(repo, "ann") == asyncio.run(theirs["ann"].get_items())
    for session in theirs.values():
        session.close()


def test_the_commits_are_those_of_the_repository(tmp_path: Path) -> None:
    """They are signed, so a program that trusts the key reads them."""
    theirs, key = SQLiteSession("ann", tmp_path / "s.sqlite"), SigningKey.generate()
    add(theirs, "one")
    theirs.close()
    with Versioned(Memory(), sign=key, trust=key.public) as state:
        assert take_sqlite(state.repo, tmp_path / "s.sqlite").written == 2
        with Versioned(state.store, branch="openai/ann/main", trust=key.public) as read:
            assert len(read) == 2


def test_branches_come_too(tmp_path: Path) -> None:
    """Each branch of an AdvancedSQLiteSession is a branch here."""
    file, repo = tmp_path / "s.sqlite", Repository(Memory())
    theirs = AdvancedSQLiteSession(session_id="ann", db_path=file, create_tables=True)
    add(theirs, "one", "two")
    asyncio.run(theirs.create_branch_from_turn(2, "other"))
    add(theirs, "three")
    assert take_sqlite(repo, file).left_out == ()
    for branch in ("main", "other"):
        assert items(repo, "ann", branch) == asyncio.run(theirs.get_items(branch_id=branch))
    theirs.close()


def test_other_items_stay_and_damage_is_named(tmp_path: Path) -> None:
    """A session that went on here is not touched; an item that is no JSON is left out."""
    file, repo = tmp_path / "s.sqlite", Repository(Memory())
    theirs = SQLiteSession("ann", file)
    add(theirs, "one")
    add(VstateSession("ann", repo.store), "mine")
    report = take_sqlite(repo, file)
    assert (report.sessions, report.items, report.written) == (0, 0, 0)
    assert [key for key, _ in report.left_out] == ["ann main"]
    assert items(repo, "ann") == turn("mine")
    add(theirs, "two")
    theirs.close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE agent_messages SET message_data = '{' WHERE id = 2")
    again = Repository(Memory())
    report = take_sqlite(again, file)
    assert (report.written, [key for key, _ in report.left_out]) == (3, ["ann item 2"])
    with pytest.raises(NotFound):
        take_sqlite(again, tmp_path / "none")
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(InvalidInput, match="SQLite sessions"):
        take_sqlite(again, tmp_path / "text")


def test_the_command_moves_sessions(tmp_path: Path) -> None:
    """`vstate import openai-agents` tells the counts."""
    theirs = SQLiteSession("ann", tmp_path / "s.sqlite")
    add(theirs, "one")
    theirs.close()
    words = ["-s", str(tmp_path / "store"), "import", "openai-agents", str(tmp_path / "s.sqlite")]
    assert CliRunner().invoke(cli, words).stdout == "imported 1 session with 2 items, 2 of them new\n"
    assert CliRunner().invoke(cli, [*words, "--prefix", "x"]).exit_code == 2
