"""Threads of LangGraph's SQLite savers move to vstate without loading a value."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner
from vstate_cli.app import cli

pytest.importorskip("langgraph.checkpoint.base", reason="langgraph-checkpoint is not installed")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from vstate import CorruptObject, InvalidInput, Memory, NotFound
from vstate.integrations.langgraph import VstateSaver, tables

SERDE = JsonPlusSerializer()
VERSION = f"{1:032}.0.5"
TABLES = """
CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, parent_checkpoint_id TEXT,
    type TEXT, checkpoint BLOB, metadata BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
CREATE TABLE writes (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, task_id TEXT, {path}
    idx INTEGER, channel TEXT, type TEXT, value BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));
"""


class Source:
    """A file as LangGraph's savers write it."""

    def __init__(self, file: Path, *, has_path: bool = True) -> None:
        self.file = file
        self.connection = sqlite3.connect(file)
        self.connection.executescript(TABLES.format(path="task_path TEXT," if has_path else ""))
        self.has_path = has_path
        self.put: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}

    def add(self, thread: str, steps: int, *, begin: int = 0) -> None:
        """Steps of a chat that grows, each with a pending write; the first ones are there already."""
        messages: list[Any] = []
        parent = None
        for step in range(steps):
            messages += [HumanMessage(f"question {step}", id=f"h{step}"), AIMessage("answer", id=f"a{step}")]
            if step < begin:
                parent = f"{step:08}"
                continue
            checkpoint: dict[str, Any] = {
                **empty_checkpoint(),
                "id": f"{step:08}",
                "channel_values": {"messages": [*messages], "none": None, "raw": b"\xc1", "text": "é"},
                "channel_versions": {
                    "messages": f"{step + 1:032}.0.5",
                    **dict.fromkeys(["none", "raw", "text"], VERSION),
                },
            }
            metadata = {"source": "loop", "step": step, "parents": {}}
            self.row(thread, checkpoint["id"], parent, *SERDE.dumps_typed(checkpoint), json.dumps(metadata))
            form, value = SERDE.dumps_typed(messages[-1])
            path = ["~path"] if self.has_path else []
            row = [thread, "", checkpoint["id"], "task", *path, 0, "messages", form, value]
            self.connection.execute(f"INSERT INTO writes VALUES ({','.join('?' * len(row))})", row)
            parent = checkpoint["id"]
            self.put[thread, parent] = checkpoint, metadata
        self.connection.commit()

    def row(self, thread: str, id: str, parent: str | None, form: str, data: object, metadata: str) -> None:
        row = [thread, "", id, parent, form, data, metadata.encode()]
        self.connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self.connection.commit()


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A file, of an older saver if the parameter is false: its writes have no path of their task."""
    source = Source(tmp_path / "checkpoints.sqlite", has_path=getattr(request, "param", True))
    yield source
    source.connection.close()


def read(saver: VstateSaver, thread: str) -> dict[str, Any]:
    """The checkpoints of a thread by id."""
    found = saver.list({"configurable": {"thread_id": thread}})
    return {one.config["configurable"]["checkpoint_id"]: one for one in found}


@pytest.mark.parametrize("source", [True, False], indirect=True, ids=["new", "old"])
def test_threads_come_with_checkpoints_writes_and_history(source: Source) -> None:
    """A VstateSaver reads what LangGraph's own saver wrote, and each checkpoint is one commit."""
    source.add("ann", 6)
    source.add("bob/7", 3)
    saver = VstateSaver(Memory())
    report = tables.take_sqlite(saver.repo, source.file)
    assert (report.threads, report.checkpoints, report.written, report.left_out) == (2, 9, 9, ())
    for (thread, id), (checkpoint, metadata) in source.put.items():
        found = read(saver, thread)[id]
        assert found.checkpoint == checkpoint
        assert found.metadata == metadata
        assert [write[:2] for write in found.pending_writes] == [("task", "messages")]
        parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
        assert parent == (None if id == "00000000" else f"{int(id) - 1:08}")
    log = saver.repo.log(saver.branch("bob/7"))
    assert [commit.message for commit in log] == ["loop 2", "loop 1", "loop 0"]


def test_a_second_intake_takes_the_rest(source: Source) -> None:
    """Checkpoints that are here stay, and new ones of the file come."""
    source.add("ann", 3)
    saver = VstateSaver(Memory())
    tables.take_sqlite(saver.repo, source.file)
    heads = saver.repo.branches()
    assert tables.take_sqlite(saver.repo, source.file).written == 0
    assert saver.repo.branches() == heads
    source.add("ann", 5, begin=3)
    assert tables.take_sqlite(saver.repo, source.file).written == 2
    assert len(read(saver, "ann")) == 5


def test_another_checkpoint_of_the_same_id_stays(source: Source) -> None:
    """A checkpoint that is here already is not replaced by another one, which is named."""
    source.add("ann", 2)
    saver = VstateSaver(Memory())
    tables.take_sqlite(saver.repo, source.file)
    before = read(saver, "ann")
    _, data = SERDE.dumps_typed({**source.put["ann", "00000001"][0], "channel_values": {"messages": []}})
    change = "UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = '00000001'"
    source.connection.execute(change, (data,))
    source.connection.commit()
    report = tables.take_sqlite(saver.repo, source.file)
    assert (report.checkpoints, report.written) == (1, 0)
    assert [key for key, _ in report.left_out] == ["ann 00000001"]
    assert read(saver, "ann") == before


def test_rows_that_cannot_be_moved_are_named(source: Source) -> None:
    """An encrypted, a pickled or a damaged checkpoint, and an id too long for a branch, are left out."""
    source.add("ann", 1)
    good = source.connection.execute("SELECT checkpoint FROM checkpoints").fetchone()[0]
    for id, (form, data) in enumerate(
        [
            ("msgpack+aes", b"secret"),
            ("pickle", b"cos\nsystem\n(S'exit'\ntR."),
            *(
                ("msgpack", data)
                for data in (good[:-9], b"\xdf\xff\xff\xff\xff", "a text", b"\x91" * 100_000)
            ),
        ]
    ):
        source.row("bad", str(id), None, form, data, "{}")
    source.row("bad", "metadata", None, "msgpack", good, "[" * 100_000)
    source.row("x" * 1500, "1", None, "msgpack", good, "{}")
    saver = VstateSaver(Memory())
    report = tables.take_sqlite(saver.repo, source.file)
    assert (report.threads, report.written, len(report.left_out)) == (1, 1, 8)
    assert list(read(saver, "ann")) == ["00000000"]
    assert list(saver.repo.branches()) == ["threads/ann"]


def test_a_checkpoint_that_is_not_equal_to_itself(source: Source) -> None:
    """NaN is unlike NaN. Such a checkpoint comes, and comes once."""
    data = {"v": 4, "id": "1", "ts": float("nan"), "channel_values": {}, "channel_versions": {}}
    source.row("nan", "1", None, "msgpack", msgpack.packb(data), "{}")
    saver = VstateSaver(Memory())
    for written in (1, 0):
        report = tables.take_sqlite(saver.repo, source.file)
        assert (report.checkpoints, report.written, report.left_out) == (1, written, ())


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    """An absent file, and one that is no database, or another one, are told as such."""
    repo = VstateSaver(Memory()).repo
    with pytest.raises(NotFound):
        tables.take_sqlite(repo, tmp_path / "none")
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(InvalidInput, match="SQLite savers"):
        tables.take_sqlite(repo, tmp_path / "text")
    sqlite3.connect(tmp_path / "empty").close()
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidInput, match="SQLite savers"):
        tables.take_sqlite(repo, tmp_path / "empty")


def test_the_command_moves_threads(source: Source, tmp_path: Path) -> None:
    """`vstate import langgraph-sqlite` tells the counts, names those left out, and takes a prefix."""
    source.add("ann", 3)
    source.row("bad", "1", None, "pickle", b"N.", "{}")

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["-s", str(tmp_path / "store"), "import", *words])
        return result.exit_code, result.stdout

    code, text = run("langgraph-sqlite", str(source.file), "--prefix", "chats/")
    assert code == 1
    assert text.startswith("imported 1 thread with 3 checkpoints, 3 of them new\n  left out bad 1: ")
    with VstateSaver(tmp_path / "store", prefix="chats/") as saver:
        assert len(read(saver, "ann")) == 3
    again = run("langgraph-sqlite", str(source.file), "--prefix", "chats/", "--json")[1]
    assert json.loads(again)["written"] == 0
    assert run("langgraph-sqlite", "none")[0] == 1
    assert run("langgraph-sqlite", str(source.file), "--branch", "main")[0] == 2
    words = ["-s", str(tmp_path / "store"), "export", "--to", "langgraph-sqlite", "-o", str(tmp_path / "out")]
    assert (
        CliRunner().invoke(cli, [*words, "chats/ann"]).stdout
        == "exported 1 thread with 3 checkpoints, 3 of them new\n"
    )
    assert CliRunner().invoke(cli, [*words, "--since", "main"]).exit_code == 2


def test_threads_come_from_postgres(start_postgres: Callable[..., Any], tmp_path: Path) -> None:
    """The checkpoints of LangGraph's own PostgresSaver are equal here, and a second intake takes the rest."""
    postgres = pytest.importorskip("langgraph.checkpoint.postgres", reason="the saver is not installed")
    dsn = start_postgres().dsn
    saver = VstateSaver(Memory())
    with pytest.raises(InvalidInput, match="checkpoints"):
        tables.take_postgres(saver.repo, dsn)
    for wrong in ("hunter2 x", "postgresql://user:hunter2@127.0.0.1:1/x", "postgresql://u:hunter2@[x/"):
        with pytest.raises(InvalidInput) as failure:
            tables.take_postgres(saver.repo, wrong)
        assert "hunter2" not in str(failure.value)
    with postgres.PostgresSaver.from_conn_string(dsn) as theirs:
        theirs.setup()
        messages: list[Any] = []

        def step(number: int) -> None:
            messages.append(HumanMessage(f"question {number}", id=f"h{number}"))
            checkpoint: Any = {
                **empty_checkpoint(),
                "id": f"{number:08}",
                "channel_values": {"messages": [*messages], "none": None, "text": "é", "raw": b"\xc1"},
                "channel_versions": {"messages": f"{number + 1:032}.5", "none": 1, "text": 1, "raw": 1},
            }
            parent = {"checkpoint_id": f"{number - 1:08}"} if number else {}
            config: Any = {"configurable": {"thread_id": "ann", "checkpoint_ns": "", **parent}}
            new = {"messages": checkpoint["channel_versions"]["messages"], "raw": 1}
            config = theirs.put(config, checkpoint, {"source": "loop", "step": number}, new)
            theirs.put_writes(config, [("messages", messages[-1])], "task", "~path")

        for number in range(4):
            step(number)
        report = tables.take_postgres(saver.repo, dsn)
        assert (report.threads, report.checkpoints, report.written, report.left_out) == (1, 4, 4, ())
        step(4)
        assert tables.take_postgres(saver.repo, dsn).written == 1
        config = {"configurable": {"thread_id": "ann"}}
        assert list(saver.list(config)) == list(theirs.list(config))
    result = CliRunner().invoke(
        cli, ["-s", str(tmp_path / "store"), "import", "langgraph-postgres", "${DSN}"], env={"DSN": dsn}
    )
    assert result.stdout == "imported 1 thread with 5 checkpoints, 5 of them new\n", result.output


def test_postgres_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing psycopg is named with its extra, and a format that does not exist by its name."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    words = ["-s", str(tmp_path / "store"), "import"]
    result = CliRunner().invoke(cli, [*words, "langgraph-postgres", "postgresql://localhost/app"])
    assert (result.exit_code, "pip install '.[postgres]'" in result.stderr) == (1, True), result.output
    result = CliRunner().invoke(cli, [*words, "langgraph-sqllite", "file"])
    assert (result.exit_code, "'langgraph-sqllite' is no format" in result.stderr) == (2, True), result.output


# Back out


def test_threads_go_back_to_a_file_of_sqlite(source: Source, tmp_path: Path) -> None:
    """A file that was written from threads holds the same checkpoints and writes, and takes more later."""
    source.add("ann", 3)
    long = "bob/7" * 50
    source.add(long, 1)
    saver, out = VstateSaver(Memory()), tmp_path / "out.sqlite"
    tables.take_sqlite(saver.repo, source.file)
    saver.repo.commit("threads/%zz", set={"no": "thread"})  # a name that quote_ref never makes
    report = tables.write_sqlite(saver.repo, out, branches=["threads/ann"])
    assert (report.threads, report.checkpoints, report.written, report.left_out) == (1, 3, 3, ())
    assert tables.write_sqlite(saver.repo, out).written == 1
    again = VstateSaver(Memory())
    assert tables.take_sqlite(again.repo, out).written == 4
    for thread in ("ann", long):
        assert read(again, thread) == read(saver, thread)
    assert tables.write_sqlite(saver.repo, source.file).written == 0, "what is there stays"
    with pytest.raises(NotFound):
        tables.write_sqlite(saver.repo, out, branches=["threads/none"])
    with pytest.raises(InvalidInput, match="another file"):
        tables.write_sqlite(saver.repo, tmp_path / "no" / "where")


def test_the_values_of_every_form_go_into_a_checkpoint(tmp_path: Path) -> None:
    """Texts, bytes and None are put where they belong; an encrypted thread is left out."""

    class Secret:
        def dumps_typed(self, value: Any) -> tuple[str, bytes]:
            return "msgpack+secret", SERDE.dumps_typed(value)[1]

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return SERDE.loads_typed(("msgpack", data[1]))

    saver, out = VstateSaver(Memory()), tmp_path / "out.sqlite"
    values = {"none": None, "raw": b"\xc1", "text": "é", "list": [1, HumanMessage("hi")]}
    checkpoint: Any = {
        **empty_checkpoint(),
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, VERSION),
    }
    config: Any = {"configurable": {"thread_id": "plain", "checkpoint_ns": ""}}
    saver.put(config, checkpoint, {"source": "input", "step": -1}, dict.fromkeys(values, VERSION))
    secret = VstateSaver(saver.repo.store, serde=Secret())
    config = {"configurable": {"thread_id": "secret", "checkpoint_ns": ""}}
    secret.put(config, checkpoint, {"source": "input", "step": -1}, {})
    report = tables.write_sqlite(saver.repo, out)
    assert (report.threads, report.checkpoints) == (1, 1)
    assert [key.split()[0] for key, _ in report.left_out] == ["secret"]
    again = VstateSaver(Memory())
    tables.take_sqlite(again.repo, out)
    (found,) = read(again, "plain").values()
    assert found.checkpoint == checkpoint


def test_each_thread_is_read_back(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that did not arrive is told."""
    source.add("ann", 2)
    monkeypatch.setattr(tables, "_append", lambda journal, row: True)
    with pytest.raises(CorruptObject):
        tables.take_sqlite(VstateSaver(Memory()).repo, source.file)
