"""Commands between stores: `clone`, `push`, `pull`, `fetch`, `remote`, `export`, `import`."""

import os
import shelve
import subprocess
import sys

import pytest
from click.testing import CliRunner
from stores import commit, refs, resolve
from vstate_cli import output
from vstate_cli.app import cli

from vstate import Disk, Versioned

SESSIONS = {
    "a clone has the branches and tags, and a remote": """
        clone STORE TMP/copy -> Cloned into COPY. / wrote 16 objects, <size> / created heads/main <id>
            / created remotes/origin/main <id> / created heads/what-if <id>
            / created remotes/origin/what-if <id> / created tags/v1 <id>
        >>> assert {name: refs(COPY)[name] for name in refs(store)} == refs(store)
        branch --all -s COPY -> * main <id> more / what-if <id> another goal
            / remotes/origin/main <id> more / remotes/origin/what-if <id> another goal
        remote -s COPY -> origin STORE
        log -1 --oneline -s COPY -> <id> (HEAD -> main, origin/main) more +1
        clone STORE TMP/copy -> [1] vstate: COPY is in use already...
        clone STORE TMP/other ? [keys(@), refs[0] | [name, status], sum(refs[*].objects) == objects]
            -> [["refs", "objects", "bytes", "seconds"], ["heads/main", "created"], true]
        clone TMP/nowhere TMP/none -> [1] vstate: no store at TMP/nowhere
        clone STORE disk:${NO_SUCH}/x -> [1] ...NO_SUCH, which is not set...
        >>> assert not (tmp_path / "none").exists()
    """,
    "two refs of one name have longer ones, and push sends the branch that is here": """
        clone STORE TMP/copy
        branch origin/main -s COPY
        log -1 --oneline -s COPY -> <id> (HEAD -> main, heads/origin/main, remotes/origin/main) more +1
        >>> commit(COPY, branch="origin/main", n=1)
        log origin/main -s COPY -> [1] vstate: 'origin/main' is both a branch and a branch of a remote;...
        push origin origin/main -s COPY -> sent 3 objects, <size> / created heads/origin/main <id>
    """,
    "push moves branches there, and loses no commit without --force": """
        clone STORE TMP/copy
        >>> commit(COPY, extra=1)
        push -s COPY -> sent 3 objects, <size> / moved heads/main <id> from <id>
        >>> assert refs(store)["heads/main"] == refs(COPY)["remotes/origin/main"] == resolve(COPY, "main").id
        push -s COPY -> sent 0 objects, <size> / unchanged heads/main <id>
        push -s COPY ? [objects, not_noted] -> [0, null]
        >>> theirs = commit(store, "theirs", theirs=1)
        >>> commit(COPY, ours=1)
        push -s COPY -> [1] vstate: heads/main is at <id> there, ...; pull first, or push with --force: ...
        push --force -s COPY -> sent 3 objects, <size> / forced heads/main <id> from <id>
        log main@{1} -n 1 --oneline -> <id> theirs +1
        tag v2 HEAD~1 -s COPY
        branch more -s COPY
        push origin more main --tags -s COPY ? refs[*].[name, status] | [0:4]
            -> [["heads/more", "created"], ["heads/main", "unchanged"], ["tags/v1", "unchanged"],...
        push origin --delete more -s COPY -> sent 0 objects, <size> / deleted heads/more <id>
        >>> assert {*refs(store)} == {"heads/main", "heads/what-if", "tags/v1", "tags/v2"}
        >>> assert "remotes/origin/more" not in refs(COPY)
        push -d main origin -s COPY -> [1] vstate: HEAD of STORE is on branch 'main'...
        push TMP/backup -> [1] vstate: no store at TMP/backup; push with --create to make it
        fetch TMP/backup -> [1] vstate: no store at TMP/backup
        push TMP/backup --create -> sent ... objects, <size> / created heads/main <id>
    """,
    "a push from a read-only store succeeds, and says that this store cannot note it": """
        clone STORE TMP/copy
        >>> commit(COPY, n=1)
        push -s readonly:COPY -> sent ... / moved heads/main <id> from <id>
            / vstate: could not note here which commits the branches there are at: the store at...
        >>> commit(COPY, n=2)
        push -s readonly:COPY ? not_noted -> "...read only..."
    """,
    "pull fast-forwards, makes or merges branches": """
        clone STORE TMP/copy
        >>> commit(store, theirs=1)
        pull -s COPY -> received 3 objects, <size> / moved remotes/origin/main <id> from <id>
            / main: fast-forward at <id>: 1 key
        pull -s COPY -> received 0 objects, <size> / unchanged remotes/origin/main <id>
            / main: up-to-date at <id>
        >>> commit(store, others=1)
        >>> commit(COPY, ours=1)
        pull -s COPY ? [fetched[0].refs[0].name, branches] -> ["remotes/origin/main", [{"name": "main",
            ..."strategy": "merge", "commit": "<ID>", "merged_keys": ["others"]}]]
        log -n 1 --oneline -s COPY -> <id> (HEAD -> main) Merge origin/main into main +1
        >>> commit(store, branch="new", a=1)
        pull origin new -s COPY -> received ... / new: fast-forward at <id>: 1 key
        >>> assert refs(COPY)["heads/new"] == refs(store)["heads/new"]
        status -s COPY ? branch -> "main"
        pull origin newer -s COPY -> [1] vstate: STORE has no branch 'newer'; did you mean: new?
        checkout HEAD~1 -s COPY
        pull -s COPY -> [1] ...as in `vstate pull origin main`...
        push -s COPY -> [1] ...as in `vstate push origin main`...
        pull origin main -s COPY -> ... / main: up-to-date at <id>
    """,
    "fetch moves no branch, and from a path it makes no ref": """
        clone STORE TMP/copy
        >>> theirs, before = commit(store, theirs=1), refs(COPY)
        fetch -s COPY -> received 3 objects, <size> / moved remotes/origin/main <id> from <id>
            / unchanged remotes/origin/what-if <id>
        >>> assert refs(COPY) == before | {"remotes/origin/main": theirs.id}
        diff main origin/main --stat -s COPY -> + theirs int, <size> / +1 added
        fetch origin what-if -s COPY ? refs[*].status -> ["unchanged"]
        tag v9
        fetch --tags -s COPY -> ... / created tags/v9 <id>
        >>> commit(store, branch="new", a=1)
        fetch STORE new -s COPY -> received 2 objects, <size> / fetched heads/new <id>
        >>> assert "heads/new" not in refs(COPY)
    """,
    "status counts the commits that each side has alone, as of the last push, pull or fetch": """
        clone STORE TMP/copy
        status -s COPY -> ... / upstream origin/main up to date / ...
        >>> commit(store, theirs=1)
        >>> commit(COPY, ours=1)
        >>> commit(COPY, ours=2)
        status -s COPY -> ... / upstream origin/main 2 commits ahead / ...
        fetch -s COPY
        status -s COPY -> ... / upstream origin/main 2 commits ahead, 1 commit behind / ...
        status -s COPY ? upstream -> {"name": "origin/main", "ahead": 2, "behind": 1}
        remote add another TMP/another -s COPY
        push another --create -s COPY
        status -s COPY ? upstream.name -> "another/main"
        checkout HEAD~1 -s COPY
        status -s COPY ? upstream -> null
    """,
    "remote adds, lists and removes, and makes paths absolute": """
        remote -> -
        remote add backup there -> Added the remote backup, TMP/there.
        remote add origin 'redis://:${PASSWORD}@host/0'
            -> Added the remote origin, redis://:${PASSWORD}@host/0.
        remote list -> backup TMP/there / origin redis://:${PASSWORD}@host/0
        remote ? [0] -> {"name": "backup", "url": "TMP/there"}
        remote remove backup ? @ -> {"name": "backup", "url": "TMP/there"}
        remote remove backup -> [1] vstate: no remote 'backup'...
        remote add origin /x -> [1] vstate: there is a remote 'origin' already...
    """,
    "a bundle carries branches and tags to another store: all commits, or the new ones": """
        export main v1 -o TMP/a -> exported heads/main, tags/v1: 13 objects, <size>, in a bundle of <size>
        import TMP/a -s TMP/other -> imported 13 objects, all of them new, <size>
            / created heads/main <id> / created tags/v1 <id>
        import TMP/a -s TMP/other -> imported 13 objects, 0 of them new, <size>
            / unchanged heads/main <id> / unchanged tags/v1 <id>
        >>> assert resolve(tmp_path / "other", "main") == resolve(store, "main")
        fsck -s TMP/other -> ...nothing is damaged...
        export v1 -o TMP/first
        export HEAD --since v1 -o TMP/second -> exported heads/main: 11 objects, <size>, in a bundle of <size>
            / It continues from <id>; the other store must have these commits.
        import TMP/second -s TMP/third -> [1] vstate: TMP/second continues from commit <ID>, which is ...
        import TMP/first -s TMP/third
        import TMP/second -s TMP/third ? refs[*].[name, outcome] -> [["heads/main", "created"]]
        export HEAD~1 -o TMP/b -> [1] vstate: 'HEAD~1' is no branch and no tag...--as NAME...
        export HEAD~1 --as before -o TMP/b ? refs[*].name -> ["heads/before"]
        export main -o TMP/no/x -> [1] vstate: TMP/no/x cannot be written: No such file or directory...
        export main -o TMP -> [1] vstate: TMP cannot be written: Is a directory; choose another file
    """,
    "a branch that diverged from the bundle stays as it is; the others are imported": """
        >>> mine = commit(tmp_path / "mine", "mine", mine=1)
        export main -o TMP/a
        import TMP/a -s TMP/mine -> [1] imported 13 objects, ...
            / diverged heads/main <id> (here <id>) / vstate: heads/main diverged from ...--prefix theirs...
        >>> assert resolve(tmp_path / "mine", "main") == mine
        import TMP/a -s TMP/mine ? refs[*].outcome -> [1] ["diverged"] / vstate: heads/main diverged...
        import TMP/a --prefix theirs -s TMP/mine -> ... / created heads/theirs/main <id>
        import TMP/a --prefix x/y/ -s TMP/mine -> ... / created heads/x/y/main <id>
    """,
    "a file that is no bundle is an error, and the store stays as it is": """
        >>> before = refs(store)
        >>> (tmp_path / "empty").write_bytes(b"")
        >>> (tmp_path / "cut").write_bytes(b"vstate bundle\\n\\0\\1" + bytes(100))
        import TMP/empty -> [1] ...is no bundle of vstate; make one with `vstate export`
        import TMP/cut -> [1] ...is not a whole bundle: it is damaged or cut short; copy it...
        import TMP/none -> [1] vstate: no file TMP/none
        import STORE -> [1] vstate: STORE is a directory, and no bundle; to copy a store, use `vstate clone`
        >>> assert refs(store) == before
    """,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(rows, session, tmp_path, monkeypatch):
    """Each session has the output that is written here."""
    monkeypatch.chdir(tmp_path)
    rows(SESSIONS[session], COPY=tmp_path / "copy", tmp_path=tmp_path)


@pytest.fixture
def copy(vstate, tmp_path):
    """The command, on a clone of the store."""
    vstate("clone", str(vstate.store), str(tmp_path / "copy"))
    return type(vstate)(tmp_path / "copy")


def test_clone_without_a_directory_takes_the_name_of_the_original(vstate, store, tmp_path, monkeypatch):
    """A clone of agent/.vstate goes to agent, and one of a URL needs a name."""
    original, here = tmp_path / "agent" / ".vstate", tmp_path / "here"
    here.mkdir()
    vstate("clone", str(store), str(original))
    monkeypatch.chdir(here)
    assert vstate("clone", str(original)).startswith("Cloned into agent.\n")
    assert dict(Versioned(here / "agent")) == dict(Versioned(store))
    assert "Missing argument 'DIR'" in vstate.run("clone", "redis://localhost/0").stderr


def test_no_password_of_another_url_is_shown(vstate, store, tmp_path, monkeypatch):
    """The target of a clone and the source of a pull can have a password, and no output shows it."""
    places = {"other://:hunter2@host/0": tmp_path / "copy", "other://:hunter2@host/1": store}

    def open_store(place, *, create=True):
        return Disk(places.get(str(place), place), create=create, durability="process")

    monkeypatch.setattr("vstate.repo.clone.open_store", open_store)
    text = vstate("clone", str(store), "other://:hunter2@host/0")
    assert text.startswith("Cloned into other://….\n")
    assert "hunter2" not in text
    commit(store, plan="theirs")
    commit(tmp_path / "copy", plan="ours")
    monkeypatch.setattr("vstate.repo.exchange.sync.open_store", open_store)
    message = type(vstate)(tmp_path / "copy").fails("pull", "other://:hunter2@host/1")
    assert "vstate merge " in message
    assert "hunter2" not in message


class Loaded:
    """Prints if it is unpickled."""

    def __reduce__(self):
        return (print, ("UNPICKLED",))


@pytest.mark.parametrize("policy", [None, "union", os.path.join])
def test_pull_unpickles_nothing(copy, store, policy, capfd, monkeypatch):
    """A pull merges the parts of values without loading them, or refuses and names the command to go on."""
    for place, value in ((store, [Loaded(), 1]), (copy.store, [Loaded(), 2])):
        with Versioned(Disk(place, durability="process"), branch="main") as state:
            state["messages"] = value
            state.commit("change")
            if policy is not None:
                state.set_policy("", policy)
    before = refs(copy.store)["heads/main"]
    capfd.readouterr()  # a commit loads the first value of a class
    imported = []
    monkeypatch.setattr("importlib.import_module", lambda name: imported.append(name))
    if policy == "union":
        assert "resolved 'messages' by union" in copy("pull")
    else:
        message = copy.fails("pull")
        assert "'messages'" in message
        assert "run `vstate merge origin/main` with --ours KEY" in message
        assert refs(copy.store)["heads/main"] == before
    assert "UNPICKLED" not in capfd.readouterr().out
    assert imported == []
    assert refs(copy.store)["remotes/origin/main"] == refs(store)["heads/main"]


def test_all_of_them_tell_their_progress(copy, store, tmp_path, monkeypatch):
    """All transfer commands tell their steps."""
    steps = []
    monkeypatch.setattr(
        output.ProgressBar, "__call__", lambda self, step, count, total=None: steps.append(step)
    )
    for number, arguments in enumerate(
        [["push"], ["fetch"], ["pull"], ["clone", str(store), str(tmp_path / "new")]]
    ):
        commit(copy.store if arguments[0] == "push" else store, extra=number)
        steps.clear()
        copy(*arguments)
        assert {"finding commits", "copying"} <= set(steps), arguments
        if arguments[0] == "fetch":
            copy("pull")


@pytest.mark.slow
def test_through_a_pipe(store, tmp_path, environment):
    """`vstate export -o - | vstate import -` works: standard output has the bundle alone."""
    script = '"$@" -s "$0" export main -o - | "$@" -s other import -'
    command = ["sh", "-c", script, str(store), sys.executable, "-m", "vstate_cli"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.stderr.startswith("vstate: exported heads/main: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout.startswith("imported ")
    assert resolve(tmp_path / "other", "main") == resolve(store, "main")


def test_a_bundle_is_not_for_a_terminal(vstate, monkeypatch):
    """A terminal would interpret the bytes of a bundle, so export refuses to write them there."""

    def on_a_terminal(out, *, paged):
        out.is_terminal = True
        out._pager = out.damage = None
        out.progress = output.ProgressBar()

    monkeypatch.setattr(output.Output, "__init__", on_a_terminal)
    result = vstate.run("export", "main", "-o", "-")
    assert result.exit_code == 2
    assert "A terminal cannot show a bundle" in result.stderr


def test_import_makes_a_store_here(vstate, store, tmp_path, monkeypatch):
    """Without -s, import creates `.vstate` here and names it, but only if the bundle exists.

    It does not go into a store of a directory above.
    """
    bundle, inside = tmp_path / "a.bundle", store.parent / "inside"
    vstate("export", "main", "-o", str(bundle))
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert CliRunner().invoke(cli, ["import", "absent.bundle"]).exit_code == 1
    assert list(inside.iterdir()) == []
    told = CliRunner().invoke(cli, ["import", str(bundle)])
    assert (told.exit_code, told.stderr) == (0, f"vstate: the store is {inside / '.vstate'}\n")
    assert resolve(inside / ".vstate", "main") == resolve(store, "main")
    assert CliRunner().invoke(cli, ["log"]).exit_code == 0


def test_values_come_from_shelve_and_json(rows, vstate, tmp_path):
    """`import shelve` and `import json` commit values to a branch, and name those that they leave out."""
    with shelve.open(str(tmp_path / "old")) as shelf:
        shelf["plan"] = {"goal": "x"}
        shelf.dict[b"bad"] = b"no pickle"
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "limits.json").write_text('{"most": 3}')
    rows(
        """
        import shelve TMP/old --branch cache --prefix old/ -> [1] imported 1 key into cache, 1 of them new or
            ...changed / left out bad: ...
        show cache old/plan -> {'goal': 'x'}
        import json TMP/json ? [branch, keys, written] -> ["main", 1, 1]
        import json TMP/json -> imported 1 key into main, 0 of them new or changed
        """,
        type(vstate)(tmp_path / "store"),
    )
