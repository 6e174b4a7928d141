"""The command on stores named by URLs, and on servers that do not answer."""

import os

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


READING = [words.split() for words in ("log --oneline", "show HEAD k", "diff HEAD~1 HEAD", "ls", "branch")]


def test_commands_take_urls(rows, tmp_path):
    """-s and VSTATE_STORE take a URL as they take a path, and write only to the part that it names."""
    save_key(tmp_path / "key", generate_key())
    fill(Disk(tmp_path / "plain", durability="process"))
    fill(open_store(url := f"encrypted:prefixed:{tmp_path / 'store'}?name=a&key_file={tmp_path / 'key'}"))
    for form in (f"disk:{tmp_path}/plain", f"readonly:{tmp_path}/plain"):
        for command in READING:
            expected = run("-s", str(tmp_path / "plain"), *command).output
            assert expected == run("-s", form, *command).output == run(*command, VSTATE_STORE=form).output
    rows(
        """
        -s URL branch other HEAD~1 -> Created branch other at <id> first
        -s URL tag v1
        -s URL rollback v1~1
        -s URL undo
        -s URL gc
        -s URL log --oneline -> <id> (HEAD -> main, tag: v1) second ~1 / <id> (other) first +1
        -s readonly:TMP/plain tag v1 -> [1] vstate: ...was opened to be read only...
        -s readonly:TMP/plain gc -> [1] vstate: ...was opened to be read only...
        """,
        URL=url,
    )
    with Disk(tmp_path / "store") as disk:
        assert list(disk.keys()) == list(disk.keys("a/"))


def test_a_store_that_is_not_there(rows, tmp_path):
    """A store in memory is refused, an empty part or a missing key file named; import alone makes one."""
    fill(Prefixed(Disk(tmp_path / "store"), "a"))
    rows(
        """
        -s prefixed:memory:?name=a log -> [1] vstate: a memory: store ends with the process that made it; ...
        -s readonly:memory:// log -> [1] vstate: a memory: store ends with the process that made it; ...
        -s prefixed:TMP/store?name=b log
            -> [1] vstate: no store at TMP/store (b/): there is nothing in it; ...--store PATH
        -s encrypted:TMP/store?key_file=TMP/absent log -> [1] vstate: no key file TMP/absent...
        -s prefixed:TMP/store?name=a export main -o TMP/bundle
        -s prefixed:TMP/new?name=a log -> [1] vstate: no store at TMP/new...
        >>> assert not (TMP / "new").exists()
        -s prefixed:TMP/new?name=a import TMP/bundle
        -s prefixed:TMP/new?name=a log --oneline -> <id> (HEAD -> main) second ~1 / <id> first +1
        """
    )


@pytest.mark.slow
def test_variables_in_a_url(rows, tmp_path, monkeypatch):
    """${NAME} in a URL keeps a password out of the command line. A path is taken literally."""
    fill(Disk(tmp_path / "a", durability="process"))
    fill(Disk(tmp_path / "${NAME}", durability="process"))
    rows(
        """
        -s 'TMP/${NAME}' tag literal
        -s 'TMP/${NAME}' tag -> literal <id> second
        -s 'disk:TMP/${NAME}' tag -> [1] vstate: ...NAME, which is not set...
        >>> monkeypatch.setenv("NAME", "a")
        -s 'disk:TMP/${NAME}' tag -> -
        -s 'redis://:${NAME}hunter2@127.0.0.1:1/0' log -> [1] vstate: ...cannot be reached...
        """,
        monkeypatch=monkeypatch,
    )
    assert run("tag", VSTATE_STORE=f"disk:{tmp_path}/${{NAME}}").output == ""


@pytest.mark.parametrize(
    "url",
    [
        f"cache:redis://:{SECRET}@127.0.0.1:{{0}}/0?max_bytes=1000",
        f"rediss://user:{SECRET}@127.0.0.1:{{0}}/0",
        f"postgresql://127.0.0.1:{{0}}/db?user=user&password={SECRET}&timeout=5",
        f"s3://b?endpoint=http://127.0.0.1:{{0}}&access_key_id={SECRET}&secret_access_key={SECRET}&region=x",
        f"redis://user:{SECRET}@127.0.0.1/0?nosuchoption={SECRET}",
    ],
)
@pytest.mark.slow
def test_a_server_that_cannot_be_reached(url):
    """The last line is the error, no line has the password, not in a traceback, and the exit code is 1."""
    result = run("log", VSTATE_STORE=url.format(free_ports(1)[0]), VSTATE_DEBUG="1")
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
    assert run("-s", url, "log").stderr.startswith("vstate: no store at ")
    result = run("-s", url, "import", bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    for command in READING:
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
