"""The command on stores named by URLs, and on servers that do not answer."""

import os
import re

import pytest
from click.testing import CliRunner
from ports import free_ports
from vstate_cli.app import cli

from vstate import Disk, Versioned, open_store
from vstate.kv import Prefixed
from vstate.kv.encrypted import generate_key, save_key

SECRET = "hunter2"


def run(*arguments, **environment):
    return CliRunner(env=environment).invoke(cli, list(arguments))


def fill(store):
    with Versioned(store) as state:
        state["k"] = [1]
        state.commit("first")
        state["k"].append(2)
        state.commit("second")


@pytest.fixture
def free_port():
    """A port of this machine without a server."""
    return free_ports(1)[0]


LISTED = (
    "log --oneline, show HEAD k, diff HEAD~1 HEAD, ls, branch, tag, status --json, reflog, blame k, "
    "fsck --json, verify --json, gc --dry-run --json"
)
READING = [command.split() for command in LISTED.split(", ")]


@pytest.mark.parametrize("form", ["disk:{0}/plain", "readonly:{0}/plain"])
@pytest.mark.slow
def test_commands_take_urls(tmp_path, form):
    """-s and VSTATE_STORE take a URL as they take a path."""
    fill(Disk(tmp_path / "plain", durability="process"))
    url = form.format(tmp_path)

    def shown(result):
        return result.exit_code, re.sub(r'"seconds": .*', "", result.stdout), result.stderr

    for command in READING:
        expected = shown(run("-s", str(tmp_path / "plain"), *command))
        assert shown(run("-s", url, *command)) == expected
    assert shown(run(*command, "--store", url)) == expected
    assert shown(run(*command, VSTATE_STORE=url)) == expected


def test_writing_commands_take_urls(tmp_path):
    """Commands write only to the part of an encrypted store that the URL names."""
    save_key(tmp_path / "key", generate_key())
    url = f"encrypted:prefixed:{tmp_path / 'store'}?name=a&key_file={tmp_path / 'key'}"
    fill(open_store(url))
    for command in (["branch", "other", "HEAD~1"], ["tag", "v1"], ["rollback", "v1~1"], ["undo"], ["gc"]):
        result = run("-s", url, *command)
        assert (result.exit_code, result.stderr) == (0, "")
    assert run("-s", url, "log", "--oneline").stdout.count("\n") == 2
    with Disk(tmp_path / "store") as disk:
        assert list(disk.keys()) == list(disk.keys("a/"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory:", "a memory: store ends with the process that made it; "),
        ("cache:memory:", "a memory: store ends with the process that made it; "),
        ("prefixed:memory:?name=a", "a memory: store ends with the process that made it; "),
        ("readonly:memory://", "a memory: store ends with the process that made it; "),
        ("prefixed:{0}/store?name=b", "no store at {0}/store (b/): there is nothing in it; "),
        ("encrypted:{0}/store?key_file={0}/absent", "no key file {0}/absent"),
    ],
)
def test_a_store_that_is_not_there(tmp_path, url, message):
    """A store in memory is refused, an empty part and a missing key file are named."""
    with Disk(tmp_path / "store") as disk:
        fill(Prefixed(disk, "a"))
    assert run("-s", f"prefixed:{tmp_path / 'store'}?name=a", "log").exit_code == 0
    result = run("-s", url.format(tmp_path), "log")
    assert result.exit_code == 1
    assert result.stderr.startswith("vstate: " + message.format(tmp_path))
    assert "--store" not in result.stderr or "key" not in url


def test_a_read_only_store_is_not_written_to(tmp_path):
    """The error is one line with advice, and the exit code is 1."""
    fill(Disk(tmp_path / "store", durability="process"))
    for command in (["tag", "v1"], ["rollback", "HEAD~1"], ["gc"]):
        result = run("-s", f"readonly:{tmp_path / 'store'}", *command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "was opened to be read only" in result.stderr


@pytest.mark.parametrize("form", ["{0}/new", "prefixed:{0}/new?name=a"])
@pytest.mark.slow
def test_import_makes_the_store_of_a_url(tmp_path, form):
    """`import` creates the store of any URL; no other command does."""
    fill(Disk(tmp_path / "plain", durability="process"))
    bundle = str(tmp_path / "bundle")
    assert run("-s", str(tmp_path / "plain"), "export", "main", "-o", bundle).exit_code == 0
    url = form.format(tmp_path)
    for command in READING[:2]:
        result = run("-s", url, *command)
        assert result.exit_code == 1
        assert result.stderr.startswith("vstate: no store at ")
    assert not (tmp_path / "new").exists()
    assert run("-s", url, "import", bundle).exit_code == 0
    assert run("-s", url, "log").stdout == run("-s", str(tmp_path / "plain"), "log").stdout


@pytest.mark.slow
def test_variables_in_a_url(tmp_path, monkeypatch):
    """${NAME} in a URL keeps a password out of the command line. A path is taken literally."""
    fill(Disk(tmp_path / "a", durability="process"))
    fill(Disk(tmp_path / "${NAME}", durability="process"))
    with Versioned(Disk(tmp_path / "${NAME}", durability="process")) as state:
        state.tag("literal")
    url, path = f"disk:{tmp_path}/${{NAME}}", str(tmp_path / "${NAME}")
    result = run("-s", url, "tag")
    assert result.exit_code == 1
    assert "NAME, which is not set" in result.stderr
    assert run("-s", path, "tag").stdout.startswith("literal ")
    for result in (
        run("-s", url, "tag", NAME="a"),
        run("tag", "--store", url, NAME="a"),
        run("tag", VSTATE_STORE=url, NAME="a"),
    ):
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    result = run("-s", "redis://:${NAME}@127.0.0.1:1/0", "log", NAME=SECRET)
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr
    assert SECRET not in result.stderr


UNREACHABLE = [
    f"redis://user:{SECRET}@127.0.0.1:{{0}}/0",
    f"cache:redis://:{SECRET}@127.0.0.1:{{0}}/0?max_bytes=1000",
    f"rediss://user:{SECRET}@127.0.0.1:{{0}}/0",
    f"postgresql://user:{SECRET}@127.0.0.1:{{0}}/db",
    f"postgresql://127.0.0.1:{{0}}/db?user=user&password={SECRET}&timeout=5",
    f"s3://bucket/path?endpoint=http://127.0.0.1:{{0}}&access_key_id={SECRET}&secret_access_key={SECRET}&region=x",
]

MALFORMED = [
    f"redis://user:{SECRET}@127.0.0.1:port/0",
    f"redis://user:{SECRET}@127.0.0.1/0?nosuchoption={SECRET}",
    f"postgresql://user:{SECRET}@127.0.0.1:port/db",
    f"postgresql://user:{SECRET}@127.0.0.1/db?nosuchoption={SECRET}",
    f"s3://bucket?nosuchoption={SECRET}",
    f"s3://user:{SECRET}@bucket",
    f"nosuch://user:{SECRET}@host",
]


@pytest.mark.parametrize("url", [*UNREACHABLE, *MALFORMED])
@pytest.mark.slow
def test_a_server_that_cannot_be_reached(url, free_port):
    """The last line is the error, no line has the password, not in a traceback, and the exit code is 1."""
    result = run("log", VSTATE_STORE=url.format(free_port), VSTATE_DEBUG="1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("vstate: ")
    assert "internal error" not in result.stderr
    assert SECRET not in result.stderr


def test_a_repository_on_a_server(server_url, tmp_path):
    """The commands from `import` into a new store to `gc` work with the URL alone."""
    url = server_url
    fill(Disk(tmp_path / "plain", durability="process"))
    bundle = str(tmp_path / "bundle")
    assert run("-s", str(tmp_path / "plain"), "export", "main", "-o", bundle).exit_code == 0
    result = run("-s", url, "log")
    assert result.exit_code == 1
    assert result.stderr.startswith("vstate: no store at ")
    result = run("-s", url, "import", bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    for command in READING[:5]:
        assert run(*command, VSTATE_STORE=url).stdout == run(*command, "-s", str(tmp_path / "plain")).stdout
    with open_store(f"cache:{url}&directory={tmp_path / 'cache'}", create=False) as store:
        with Versioned(store) as state:
            assert state["k"] == [1, 2]
            state["k"].append(3)
            state.commit("third")
    assert run("-s", f"readonly:{url}", "log", "--oneline").stdout.count("\n") == 3
    for command in (["rollback", "HEAD~1"], ["fsck"], ["gc"]):
        result = run("-s", url, *command)
        assert (result.exit_code, result.stderr) == (0, "")
    assert os.path.exists(tmp_path / "cache" / "vstate.db")
