"""How the command finds its store, and its errors."""

import re
import shutil

import pytest
from click.testing import CliRunner
from vstate_cli import app
from vstate_cli.app import cli
from vstate_cli.output import Output

from vstate import Disk, Versioned
from vstate.repo.repository import Repository


def run(*arguments, **environment):
    return CliRunner(env=environment).invoke(cli, list(arguments))


def test_the_store_is_found_here_and_above(store, monkeypatch):
    """Without an option, the command uses `.vstate` in the current directory or in a parent."""
    inside = store.parent / "some" / "where"
    inside.mkdir(parents=True)
    for directory in (store.parent, inside):
        monkeypatch.chdir(directory)
        assert "more" in run("log").stdout


def test_a_store_is_found_from_within(store, tmp_path, monkeypatch):
    """A clone is a store without `.vstate`: the command finds it in the clone and below, as git does."""
    assert run("clone", str(store), str(tmp_path / "copy")).exit_code == 0
    below = tmp_path / "copy" / "some" / "where"
    below.mkdir(parents=True)
    for directory in (tmp_path / "copy", below):
        monkeypatch.chdir(directory)
        assert "more" in run("log").stdout


def test_the_option_wins_over_the_environment(store, merged, monkeypatch, tmp_path):
    """-s before or after the command comes first, then VSTATE_STORE, then the directory."""
    monkeypatch.chdir(store.parent)
    environment = {"VSTATE_STORE": str(merged.store)}
    assert "base" in run("log", **environment).stdout
    assert "start" in run("log", "-s", str(store), **environment).stdout
    assert "start" in run("--store", str(store), "log", **environment).stdout
    assert "base" in run("-s", str(store), "log", "--store", f"disk:{merged.store}").stdout
    assert "start" in run("log", VSTATE_STORE="").stdout


def fails(*arguments, **environment):
    result = run(*arguments, **environment)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_no_store(tmp_path, monkeypatch):
    """The message says how to name a store, and no store is created."""
    monkeypatch.chdir(tmp_path)
    assert "name a store with --store PATH, or set VSTATE_STORE" in fails("log")
    assert "nowhere; check the path" in fails("log", "-s", "nowhere")
    error = fails("status", VSTATE_STORE="nowhere")
    assert "nowhere; the variable VSTATE_STORE names it; correct the variable" in error
    assert "set VSTATE_STORE" not in error
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".vstate").mkdir()
    assert fails("log").startswith("vstate: no store at ")
    assert list((tmp_path / ".vstate").iterdir()) == []


def test_the_directory_above_the_store(store):
    """The error for a path to a project names the store inside it, for every command."""
    project = str(store.parent)
    for arguments in (
        ["log", "-s", project],
        ["clone", project, str(store.parent / "copy")],
        ["-s", str(store), "pull", project],
        ["-s", str(store), "push", project],
    ):
        assert f"no store at {project}; there is one at {store}" in fails(*arguments)


def test_stores_that_cannot_be(tmp_path):
    """A memory store, an unknown scheme and a file are refused."""
    (tmp_path / "file").write_text("x")
    assert "a memory: store ends with the process that made it" in fails("log", "-s", "memory:")
    assert "no store has the scheme 'nosuch'" in fails("log", "-s", "nosuch://host/secret")
    assert "a file is in its way" in fails("log", "-s", str(tmp_path / "file"))


def test_a_newer_format(vstate, store):
    """The message advises an upgrade."""
    with Disk(store) as disk:
        disk.set("format", b"99")
    assert vstate.fails("log").startswith("the store has format 99, this vstate reads up to ")


@pytest.mark.parametrize("damage", [b"no database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_database(vstate, store, damage):
    """A damaged database is an error in one line."""
    (store / "vstate.db").write_bytes(damage)
    for name in ("vstate.db-wal", "vstate.db-shm"):
        (store / name).unlink(missing_ok=True)
    assert "is damaged" in vstate.fails("status")


def test_a_store_that_was_removed(vstate, store):
    """A removed store is the same error as no store."""
    shutil.rmtree(store)
    assert vstate.fails("log").startswith("no store at ")


def test_an_empty_store(empty):
    """Commands that need a commit say that there is none; the others work."""
    for arguments in (
        ["log"],
        ["show"],
        ["show", "x"],
        ["diff"],
        ["ls"],
        ["rollback", "HEAD"],
        ["tag", "v1"],
        ["merge", "main"],
        ["revert", "HEAD"],
        ["reset", "HEAD"],
        ["redo"],
        ["reflog"],
        ["export", "main", "-o", "nowhere"],
    ):
        assert "no commit yet on branch 'main'" in empty.fails(*arguments)
    assert empty("branch") == "* main  no commit yet\n"
    assert empty("tag") == ""
    assert "head      no commit yet" in empty("status")
    document = empty.json("status")
    assert (document["head"], document["commits"], document["keys"]) == (None, 0, 0)


def test_unknown_revisions(vstate):
    """The message suggests similar names."""
    assert vstate.fails("log", "mian") == "no revision 'mian'; did you mean: main?"
    assert "at least 4 digits" in vstate.fails("log", "abc")
    assert "is the first commit" in vstate.fails("diff", "v1~1", "v1")


def test_a_name_of_a_branch_and_a_tag(vstate):
    """The message suggests both full names."""
    vstate("tag", "what-if", "v1")
    message = vstate.fails("log", "what-if")
    assert message == "'what-if' is both a branch and a tag; did you mean: heads/what-if, tags/what-if?"
    assert "another goal" in vstate("log", "heads/what-if", "-n", "1")


def test_an_ambiguous_id(vstate, store):
    """The message lists the commits that begin with the digits."""
    with Disk(store) as disk:
        repo = Repository(disk)
        head = repo.branch("main")
        seen = {}
        for number in range(10_000):
            commit = repo.build_commit(head.root, (head,), message=f"twin {number}")
            twin = seen.setdefault(commit.id[:4], commit)
            if twin is not commit:
                break
        assert repo.publish("main", [twin, commit], {}, [], expected=head.oid, action="twins")
    message = vstate.fails("show", commit.id[:4])
    assert message.startswith(f"the commit id {commit.id[:4]} is ambiguous")
    assert twin.message in message
    assert commit.message in message
    assert commit.message in vstate("log", commit.short, "-n", "1")


def test_an_internal_error_is_one_line(vstate, monkeypatch):
    """A bug in the command prints one line; VSTATE_DEBUG adds the traceback."""

    def broken(*arguments, **options):
        raise RuntimeError("a fault\nof two lines")

    monkeypatch.setattr(Output, "moment", broken)
    message = vstate.fails("log")
    assert message == (
        "internal error: RuntimeError: a fault\\nof two lines; run with VSTATE_DEBUG=1 for a traceback"
    )
    result = vstate.run("log", VSTATE_DEBUG="1")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_version_and_help():
    """--version and --help need no store."""
    assert run("--version").stdout.startswith("vstate, version ")
    assert "Examples:" in run("-h").stdout
    assert "Examples:" in run("log", "--help").stdout


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("set", "state['KEY'] = VALUE; state.commit()"),
        ("commit", "state.commit('message')"),
        ("restore", "vstate checkout REV -- KEY"),
        ("swich", "Did you mean switch?"),
        ("nonsense", "No such command 'nonsense'."),
    ],
)
def test_words_that_are_no_commands(word, hint):
    """An unknown command is wrong use, and the message has the way to do the same."""
    result = run(word, "plan", "4")
    assert result.exit_code == 2
    assert hint in result.stderr


def test_the_python_of_the_hints():
    """Each statement that a hint gives runs, and leaves no uncommitted change; after `stash` all is back."""
    for word, hint in app.ELSEWHERE.items():
        python = hint.partition(": ")[2] if hint.startswith("It needs Python") else ""
        state = Versioned()
        state["KEY"] = 1
        state.commit("before")
        state["KEY"] = 2
        exec(re.sub(r"\. Later: |; ", "\n", python.rstrip(".")), {"state": state, "VALUE": 2})
        assert not (python and state.has_uncommitted), word
        if word == "stash":
            assert [commit.message for commit in state.log()] == ["wip", "before"]
            assert state["KEY"] == 2


def test_every_command_of_a_hint_is_there():
    """A hint names commands of vstate alone."""
    named = re.findall(r"`vstate ([a-z-]+)", " ".join(app.ELSEWHERE.values()))
    assert {*named} - {"--help", "--version"} <= {*app.COMMANDS}


def test_forced_colour(store):
    """FORCE_COLOR asks for colour where there is no terminal; NO_COLOR wins over both."""
    assert "\x1b[32m" in run("-s", str(store), "log", FORCE_COLOR="1").stdout
    assert "\x1b" not in run("-s", str(store), "log", FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b" not in run("-s", str(store), "log", "--json", FORCE_COLOR="1").stdout


def test_help(vstate):
    """`vstate help COMMAND` is `vstate COMMAND --help`; each command is in one group of `vstate help`."""
    assert vstate("help", "log") == vstate("log", "--help")
    listed = vstate("help")
    assert listed == vstate("--help")
    for title, names in app.GROUPS.items():
        assert f"{title}:\n  {names[0]} " in listed
        for name in names:
            assert len(re.findall(rf"^  {name} ", listed, re.MULTILINE)) == 1
