"""The command as a real process: pipes, signals, a terminal, and another process that writes."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from stores import commit
from terminal import outputs

from vstate import Disk, Versioned

COMMAND = [sys.executable, "-m", "vstate_cli"]

WRITER = """
import sys, time
from vstate import Disk, Versioned
state = Versioned(Disk(sys.argv[1], durability="process"))
number = 0
while True:
    number += 1
    state["number"] = number
    state.commit(f"commit {number}")
    print(number, flush=True)
    time.sleep(0.005)
"""


@pytest.fixture
def start(store, environment):
    """Starts a process of the command, on the store unless the arguments name one, with pipes of texts."""

    def started(*arguments, store=store, **options):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()} | options
        return subprocess.Popen([*COMMAND, "-s", str(store), *arguments], text=True, **pipes)

    return started


def in_pipe(file):
    """The number of unread bytes in a pipe."""
    import fcntl  # not on Windows
    import termios

    return int.from_bytes(fcntl.ioctl(file.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.fixture(scope="module")
def long_store(tmp_path_factory):
    """A store whose log does not fit into a pipe."""
    directory = tmp_path_factory.mktemp("long")
    with Versioned(Disk(directory, durability="process")) as state:
        for number in range(1500):
            state["number"] = number
            state.commit(f"commit {number} {'x' * 100}")
    return directory


@pytest.mark.slow
def test_a_reader_that_stops_early(long_store, start, environment):
    """`vstate log | head -1` ends without an error message, with colours too."""
    process = start("log", store=long_store, env=environment(FORCE_COLOR="1"))
    assert "commit 1499" in process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=200) == 141


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["log"], ["--help"]])
def test_an_output_that_is_full(start, arguments):
    """A full disk is an error in one line."""
    with open("/dev/full", "w") as full:
        process = start(*arguments, stdout=full)
        _, error = process.communicate(timeout=200)
    assert (process.returncode, error) == (1, "vstate: [Errno 28] No space left on device\n")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_interrupted(long_store, start):
    """Ctrl-C ends the command with exit code 130 and without a traceback."""
    process = start("log", store=long_store)
    # The command is running once the pipe stays full.
    process.stdout.readline()
    before = 0
    while before != (now := in_pipe(process.stdout)):
        before = now
        time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=200)
    assert (process.returncode, error.strip()) == (130, "")


@pytest.mark.slow
def test_while_another_process_writes(store, start, environment):
    """The command, from inside the project too, reads a store while a program commits to it."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout.readline() == "1\n"
        process = start("log", "-n", "1", "--oneline", cwd=store.parent)
        shown, error = process.communicate(timeout=200)
        assert (process.returncode, error) == (0, "")
        assert int(re.search(r"commit (\d+)", shown).group(1)) > 1
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


@pytest.mark.slow
def test_a_terminal_that_knows_ascii_only(store, environment):
    """A character that the terminal cannot show is written as its number."""
    commit(store, ключ=1)
    done = subprocess.run(
        [*COMMAND, "-s", str(store), "ls"],
        env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0"),
        capture_output=True,
    )
    assert done.returncode == 0
    assert rb"\u043a\u043b\u044e\u0447" in done.stdout


@pytest.mark.slow
def test_without_a_standard_output(store, environment):
    """The command works in a service that closed standard output."""
    script = 'exec "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "-s", str(store), "log"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.slow
def test_an_interrupted_transfer_says_that_it_goes_on(tmp_path, start):
    """After Ctrl-C, the message says that the same command continues the transfer."""
    process = start("import", "-", store=tmp_path / "new", stdin=subprocess.PIPE, stdout=None)
    # The command creates the store, reads the first byte, and waits for more.
    process.stdin.write("b")
    process.stdin.flush()
    while in_pipe(process.stdin) and process.poll() is None:
        time.sleep(0.05)
    assert (tmp_path / "new" / "vstate.db").exists()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=200)
    error = process.stderr.read()
    process.stdin.close()
    process.stderr.close()
    assert (process.returncode, error.strip()) == (
        130,
        "vstate: interrupted; run the command again to continue",
    )


def test_an_interrupt_while_it_begins(environment):
    """Ctrl-C during the imports of the command prints no traceback."""
    script = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "vstate_cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from vstate_cli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_on_a_terminal(vstate, store, environment):
    """A terminal gets colours, lines that fit, and a pager by VSTATE_PAGER or PAGER; JSON has none."""
    store = ["-s", str(store)]
    log, oneline = [*store, "log", "--date=iso"], [*store, "log", "--oneline"]
    commit(vstate.store, wide="x" * 300)
    coloured, shown, plain, paged, unpaged, json, short, first, no_pager = outputs(
        [
            ({"VSTATE_PAGER": "cat"}, log),
            ({}, [*store, "diff"]),
            ({"NO_COLOR": "1"}, oneline),
            ({"VSTATE_PAGER": "sed 's/^/page: /'"}, oneline),
            ({}, ["--no-pager", *oneline]),
            ({}, [*oneline, "--json"]),
            ({}, [*store, "branch"]),
            ({"VSTATE_PAGER": None, "PAGER": "head -n 1"}, oneline),
            ({"PAGER": "no-such-pager-here"}, oneline),
        ],
        environment(TERM="xterm-256color", COLUMNS="60"),
    )
    assert "\x1b[32m+notes/b" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == vstate("log", "--date=iso")
    assert "x" * 300 in vstate("diff")
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines())) <= 60
    assert "\x1b" not in plain
    assert paged == "".join(f"page: {line}\n" for line in plain.splitlines())
    assert plain == unpaged == no_pager
    assert "page" not in json + short
    assert first == plain.splitlines(keepends=True)[0]
    assert vstate.run("log", "--oneline", VSTATE_PAGER="sed 's/^/page: /'").stdout == plain


@pytest.mark.slow
def test_watch(store, start):
    """`watch` shows the changes of other programs as they commit them."""
    with Versioned(Disk(store)) as state:
        watching = start("watch", "number", "-n", "2", "--json", "--since", state.head.id)
        for number in (1, 2):
            state["other"] = state["number"] = number
            state.commit(f"commit {number}")
        head = state.head.id
    out, _ = watching.communicate(timeout=200)
    found = [json.loads(line) for line in out.splitlines()]
    assert [(change["key"], change["kind"]) for change in found] == [
        ("number", "added"),
        ("number", "modified"),
    ]
    assert found[1]["commit"] == head
