"""How the command finds its store, and its errors."""

import re
import shlex
import shutil

import pytest
from click.testing import CliRunner
from vstate_cli import app
from vstate_cli.app import cli
from vstate_cli.output import Output

from vstate import Disk, Versioned


def run(*arguments, **environment):
    return CliRunner(env=environment).invoke(cli, list(arguments))


def test_the_store_is_found_here_and_above(store, tmp_path, monkeypatch):
    """Without an option, the command uses `.vstate`, or a clone without `.vstate`, here and above."""
    assert run("clone", str(store), str(tmp_path / "copy")).exit_code == 0
    for directory in (store.parent, tmp_path / "copy"):
        (directory / "some" / "where").mkdir(parents=True)
        for here in (directory, directory / "some" / "where"):
            monkeypatch.chdir(here)
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


def test_stores_that_cannot_be(rows, vstate, store, tmp_path, monkeypatch):
    """The message says how to name a store, or names the fault in the given one; no store is created."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(vstate), "run", lambda self, *words, **more: run(*words, **more))
    (tmp_path / "file").write_text("x")
    there = store.parent
    rows(
        """
        log -> [1] vstate: no store and no .vstate directory in TMP or above it; name a store with ...
            ...or set VSTATE_STORE
        log -s nowhere -> [1] vstate: no store at TMP/nowhere; check the path...
        show -s nowhere plan -> [1] vstate: no store at TMP/nowhere; check the path, or ...with --store PATH
        -s '' log -> [1] vstate: the path of the store is empty...
        log -s memory: -> [1] vstate: a memory: store ends with the process that made it...
        log -s nosuch://host/secret -> [1] vstate: no store has the scheme 'nosuch'...
        log -s file -> [1] vstate: ...a file is in its way...
        log -s THERE -> [1] vstate: no store at THERE; there is one at STORE...
        clone THERE TMP/copy -> [1] vstate: no store at THERE; there is one at STORE...
        -s STORE pull THERE -> [1] vstate: no store at THERE; there is one at STORE...
        -s STORE push THERE -> [1] vstate: no store at THERE; there is one at STORE...
        """,
        THERE=there,
    )
    error = run("status", VSTATE_STORE="nowhere").stderr
    assert "nowhere; the variable VSTATE_STORE names it; correct the variable" in error
    assert {path.name for path in tmp_path.iterdir()} == {"file", "project"}
    (tmp_path / ".vstate").mkdir()
    assert run("log").stderr.startswith("vstate: no store at ")
    assert list((tmp_path / ".vstate").iterdir()) == []


def test_a_newer_format_and_a_store_that_was_removed(vstate, store):
    """The message for the first advises an upgrade; the second is the same error as no store."""
    with Disk(store) as disk:
        disk.set("format", b"vstate 99")
    assert vstate.fails("log").startswith("the store has format 99, this vstate reads up to ")
    shutil.rmtree(store)
    assert vstate.fails("log").startswith("no store at ")


@pytest.mark.parametrize("damage", [b"no database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_database(vstate, store, damage):
    """A damaged database is an error in one line."""
    (store / "vstate.db").write_bytes(damage)
    for name in ("vstate.db-wal", "vstate.db-shm"):
        (store / name).unlink(missing_ok=True)
    assert "is damaged" in vstate.fails("status")


@pytest.fixture
def unchanged(vstate, made_store):
    """The command, on a store that no test changes."""
    return type(vstate)(made_store)


def test_an_empty_store(rows, empty):
    """Commands that need a commit say that there is none; the others work."""
    needing = "log, show, show x, diff, ls, rollback HEAD, tag v1, merge main, revert HEAD, reset HEAD, redo"
    for command in f"{needing}, undo, reflog, export main -o nowhere".split(", "):
        assert "no commit yet on branch 'main'" in empty.fails(*command.split())
    rows(
        """
        branch -> * main no commit yet
        tag -> -
        status -> ... / head no commit yet; ...
        status ? [head, commits, keys] -> [null, 0, 0]
        """,
        empty,
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("log mian", "no revision 'mian'; did you mean: main?"),
        ("log yesterday", "no revision 'yesterday'; for a branch at that time, write main@{yesterday}"),
        ("log plan", "vstate log -- plan"),
        ("log --since soon", "'soon'"),
        ("show HEAD~99:plan", " is the first commit"),
        ("show plam", "'plam' is neither a revision nor a key of HEAD; did you mean: plan (key)"),
        ("show note", "notes/a (key)"),
        ("show zzzz", "HEAD; `vstate branch`, `vstate tag` and `vstate ls` list the names"),
        ("log zzzz", "no revision 'zzzz'; `vstate branch` and `vstate tag` list the names"),
        ("show HEAD notes/bb", "did you mean: notes/b"),
        ("show HEAD old", "no key 'old' at "),
        ("diff v1~1 v1", "is the first commit"),
        ("diff v1 HEAD plam", "did you mean: plan"),
        ("diff --key plam", "did you mean: plan"),
        ("diff plam", "did you mean: plan (key)"),
        ("diff nope..main", "'nope' is neither a revision nor a key"),
        ("diff v1 plan goall", "did you mean: .goal"),
        ("diff plan goall", "no .goall"),
        ("ls nothing", "no revision 'nothing'"),
        ("ls nothing", "no key of HEAD begins with it"),
        ("ls 'notes/*'", "begins with it: PREFIX has no wildcards"),
        ("blame plam", "did you mean: plan?"),
        ("blame plan goals", "no .goals in the value, which is a"),
        ("blame plan steps..b", "is no path at"),
        ("reflog mian", "no branch 'mian'; did you mean: main?"),
        ("checkout -", "HEAD was on no other branch or commit before"),
        ("checkout -b a..b", "'a..b' is not a branch name"),
        ("checkout -b main", "there is a branch 'main' already"),
        ("checkout plan", "run vstate checkout REV -- plan"),
        ("checkout v1 -- plam", "no key 'plam' at "),
        ("switch whatif", "no branch 'whatif'; did you mean: "),
        ("switch v1", "`vstate checkout v1`"),
        ("switch HEAD~1", "`vstate checkout 'HEAD~1'`"),
        ("branch -d main", "HEAD is on branch 'main'"),
        ("branch -d nowhere", "no branch 'nowhere'; there are 2 branches, which `vstate branch` lists"),
        ("reflog nowhere", "no branch 'nowhere'; there are 2 branches, which `vstate branch` lists"),
        ("tag -d nowhere", "no tag 'nowhere'; there is 1 tag, which `vstate tag` lists"),
        ("tag -m nowhere there", "no tag 'nowhere'; there is 1 tag, which `vstate tag` lists"),
        ("remote remove nowhere", "no remote 'nowhere'; there is no remote yet"),
        ("branch -m what-if main", "there is a branch 'main' already"),
        ("tag v1", "there is a tag 'v1' already"),
        ("tag -d v2", "no tag 'v2'; did you mean: v1?"),
        ("tag -m v2 v3", "no tag 'v2'; did you mean: v1?"),
        ("redo", "nothing to redo"),
        ("gc --keep-last 1 nowhere", "no branch 'nowhere'"),
        ("gc --grace -1", "'-1' is not an age"),
        ("push", "has no remote; add one with `vstate remote add origin URL`"),
        ("push what-if", "is no remote and no store; a branch is named behind the remote"),
        ("push there", "write ./there for a directory"),
        ("import shelve none", "no shelve file"),
        ("import json none", "no directory"),
    ],
)
def test_an_error_names_the_word_and_the_next_step(unchanged, command, message):
    """The error of a command is one line, with names that are similar or the command that helps."""
    assert message in unchanged.fails(*shlex.split(command))


WRONG = (
    "checkout, checkout -b x -- plan, branch -bad-, branch -d, branch -d -m a b, branch -n 1 x, "
    "branch -n -1, branch --prefix a --all, branch --label user, branch --show-current --all, "
    "branch --show-current x, branch --all x, branch -a -d x, tag -m v1, tag -d v1 v2, "
    "rollback HEAD --steps 1, undo --redo -n 2, undo -n 0, log -n x, log -n -1, log --nonsense, "
    "log --grep (, nonsense, bisect plan value, bisect plan a b c --good v1, export main, export -o x, "
    "export main v1 --as x -o x, export main -o - --json, import, import one two, "
    "import x.bundle --branch b, fsck main, gc --keep-last 3, gc --keep-since 1d, gc main, "
    "gc --keep-last 0 main, gc --keep-last x main, remote add, "
    "remote add name, remote list name, remote remove, remote remove name url, remote rename, "
    "completion tcsh, view --rev nosuch --host 0.0.0.0"
)


@pytest.mark.parametrize("command", WRONG.split(", "))
def test_wrong_use_exits_with_2(unchanged, command):
    """Arguments that are missing, unknown or contradict are a usage error, and say how to use the command."""
    result = unchanged.run(*command.split())
    assert result.exit_code == 2
    assert "Usage: " in result.stderr


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


def test_version_and_help(vstate):
    """`help COMMAND` is `COMMAND --help`, each command is in one group of `help`, and none needs a store."""
    assert run("--version").stdout.startswith("vstate, version ")
    assert "Examples:" in run("-h").stdout
    assert "Examples:" in run("log", "--help").stdout
    assert vstate("help", "log") == vstate("log", "--help")
    listed = vstate("help")
    assert listed == vstate("--help")
    for title, names in app.GROUPS.items():
        assert f"{title}:\n  {names[0]} " in listed
        for name in names:
            assert len(re.findall(rf"^  {name} ", listed, re.MULTILINE)) == 1


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


def test_what_the_hints_say():
    """Python of a hint runs and leaves nothing uncommitted, and each command that a hint names is there."""
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
    named = re.findall(r"`vstate ([a-z-]+)", " ".join(app.ELSEWHERE.values()))
    assert {*named} - {"--help", "--version"} <= {*app.COMMANDS}


@pytest.mark.parametrize(
    ("environment", "arguments", "has_colour"),
    [
        ({"FORCE_COLOR": "1"}, ["log"], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, ["log"], False),
        ({"FORCE_COLOR": "1"}, ["log", "--json"], False),
    ],
)
def test_forced_colour(made_store, environment, arguments, has_colour):
    """FORCE_COLOR asks for colour where there is no terminal; NO_COLOR wins over both."""
    assert ("\x1b[32m" in run("-s", str(made_store), *arguments, **environment).stdout) is has_colour
