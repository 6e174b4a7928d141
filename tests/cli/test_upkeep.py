"""`vstate gc`, `fsck`, `export` and `import`, and histories that were cut off."""

import io
import json
import re
import shelve
import subprocess
import sys

import pytest
from click.testing import CliRunner
from vstate_cli import output, progress
from vstate_cli.app import cli

from vstate import Disk, Versioned
from vstate.repo import Repository

COMMAND = [sys.executable, "-m", "vstate_cli"]


def rows(store):
    with Disk(store) as disk:
        return dict(disk.items())


def change(store, key, value):
    with Disk(store) as disk:
        disk.transact({key: value}, {})


def a_blob(store):
    with Disk(store) as disk:
        return next(key for key, value in disk.items("o/") if value[:1] in b"bB")


def resolve(store, rev):
    with Disk(store) as disk:
        return Repository(disk).resolve(rev)


# gc


def test_gc_removes_what_nothing_leads_to(vstate, store):
    """A dry run predicts the removal and changes nothing; a second gc removes nothing."""
    vstate("branch", "-d", "what-if")
    before = rows(store)
    dry = vstate("gc", "--keep-reflog", "0", "--dry-run").splitlines()
    assert rows(store) == before
    done = vstate("gc", "--keep-reflog", "0").splitlines()
    assert re.fullmatch(r"removed \d objects, [\d.]+ k?B", done[0])
    assert re.fullmatch(r"the files took [\d.]+ k?B and take [\d.]+ k?B", done.pop(1))
    assert [line.replace("would remove", "removed") for line in dry] == done
    assert re.fullmatch(r"removed \d+ reflog lines", done[1])
    assert re.fullmatch(r"\d+ objects in use", done[-1])
    assert vstate("gc", "--keep-reflog", "0").startswith("removed 0 objects, 0 B\n")
    assert vstate("log", "--oneline").count("\n") == 4


def test_gc_keeps_what_the_reflog_names(vstate):
    """gc keeps commits that only the reflog reaches, for a month by default."""
    vstate("branch", "-d", "what-if")
    assert vstate.json("gc")["removed"] == 0
    assert vstate.json("gc", "--keep-reflog", "1h", "--dry-run")["removed"] == 0
    assert vstate.json("gc", "--keep-reflog", "0s")["removed"] > 0


def test_gc_json(vstate):
    """The document has every number of the report."""
    document = vstate.json("gc", "--dry-run")
    numbers = {"live", "removed", "removed_bytes", "waiting", "reflog_lines", "shallow", "seconds"}
    assert set(document) == numbers | {"dry_run", "kept_by", "expired", "size_before", "size_after"}
    assert document["size_before"] > 0
    assert document["size_after"] is None
    assert document["dry_run"] is True


def test_a_history_that_was_cut_off_is_shown_so(vstate, store):
    """log and show mark the end of a history, and HEAD~n explains why there is no such commit."""
    vstate("branch", "-d", "what-if")
    vstate("tag", "-d", "v1")
    text = vstate("gc", "--keep-last", "2", "--keep-reflog", "0", "main")
    assert "the history ends at 1 commit\n" in text
    last = resolve(store, "HEAD~1")
    log = vstate("log")
    assert log.count("\n\n") == 1
    assert log.endswith("    the history behind it was cut off\n")
    lines = vstate("log", "--oneline").splitlines()
    assert [line.endswith("(history cut off)") for line in lines] == [False, True]
    graph = vstate("log", "--graph").splitlines()
    assert graph[-1] == "      the history behind it was cut off"
    documents = [json.loads(line) for line in vstate("log", "--json").splitlines()]
    assert [document.get("shallow") for document in documents] == [None, True]
    assert documents[1]["parents"] == [str(last.parent_ids[0])]
    assert "the history behind it was cut off" in vstate("show", "HEAD~1")
    assert vstate.json("show", "HEAD~1")["shallow"] is True
    assert "shallow" not in vstate.json("show", "HEAD")
    assert vstate.fails("log", "HEAD~2").endswith("was cut off")
    assert vstate.json("status")["commits"] == 2
    assert "notes/b" in vstate("diff", "--stat")
    vstate("checkout", last.id)
    assert "text" in vstate("diff", "--stat")


def test_gc_says_what_it_could_not_cut_off(vstate):
    """gc names a branch that shares the history and so keeps it."""
    text = vstate("gc", "--keep-last", "3", "main")
    assert "kept the history that what-if shares; to cut it, name that branch too" in text
    assert len(vstate("log", "--oneline").splitlines()) == 4
    text = vstate("gc", "--keep-last", "1", "main", "what-if")
    assert "the history ends at 2 commits" in text
    assert len(vstate("log", "--oneline").splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--keep-last", "3"],
        ["--keep-since", "1d"],
        ["main"],
        ["--keep-last", "3", "--keep-since", "1d", "main"],
        ["--keep-last", "0", "main"],
        ["--keep-last", "x", "main"],
    ],
)
def test_gc_options_go_together(vstate, arguments):
    """A cut takes a branch and one limit; anything else is wrong use."""
    assert vstate.run("gc", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep-reflog", "soon"], "'soon' is not an age"),
        (["--keep-last", "1", "nowhere"], "no branch 'nowhere'"),
        (["--grace", "-1"], "'-1' is not an age"),
    ],
)
def test_gc_errors(vstate, arguments, message):
    """Each error is one line."""
    assert vstate.fails("gc", *arguments).startswith(message)


# fsck


def test_fsck_of_a_whole_store(vstate, store, merged, empty):
    """fsck of an intact store prints one line, exits with 0 and writes nothing."""
    before = rows(store)
    assert re.fullmatch(r"5 commits, .* nothing is damaged \([\d.]+ s\)\n", vstate("fsck"))
    assert "blobs not read" in vstate("fsck", "--quick")
    assert "nothing is damaged" in vstate("fsck", "--repair")
    assert rows(store) == before
    assert "nothing is damaged" in merged("fsck")
    assert "nothing is damaged" in empty("fsck")


@pytest.fixture
def damaged(vstate, store):
    """The command on a store in which the tree of main's newest commit is damaged."""
    key = f"o/{resolve(store, 'main').root}"
    value = rows(store)[key]
    change(store, key, value[:-1] + bytes([value[-1] ^ 1]))
    return vstate


def test_fsck_says_what_is_lost(damaged, store):
    """The output lists the losses by branch, commit and key; the error line says what to do next."""
    before = rows(store)
    result = damaged.run("fsck")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "1 damaged" in lines[0]
    assert lines[1] == "damaged:"
    assert re.fullmatch(r"  tree [0-9a-f]{64}: its content does not match its id", lines[2])
    assert lines[3] == "lost:"
    assert lines[4] == f"  heads/main {resolve(store, 'main').short}  all keys"
    assert result.stderr.startswith("vstate: the store at ")
    assert result.stderr.rstrip().endswith("make a copy of it, then run `vstate fsck --repair`")
    assert rows(store) == before
    assert damaged.run("fsck", "--quick").exit_code == 1


def test_fsck_repairs(damaged, store):
    """After a repair, the exit code is 0, and the branch is at its newest intact commit."""
    was = resolve(store, "main~1")
    text = damaged("fsck", "--repair")
    assert "repaired:\n  branch main: it is at " in text
    assert "all is well now" in text
    assert resolve(store, "main") == was
    again = damaged("fsck")
    assert "all known from an earlier repair" in again
    assert "(known from an earlier repair)" in again
    assert damaged("log", "-n", "1").splitlines()[0].endswith("tidy up")
    assert "fsck: repaired" in damaged("reflog")


def test_fsck_json(damaged, store):
    """The document is complete, also if the exit code is 1."""
    result = damaged.run("fsck", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["broken"] == ["heads/main"]
    assert [damage["kind"] for damage in document["damage"]] == ["tree"]
    assert document["lost"] == [
        {"ref": "heads/main", "commit": resolve(store, "main").id, "key": None, "what": "all keys"}
    ]
    assert set(document["objects"]) == {"commit", "tree", "index", "blob"}
    repaired = damaged.json("fsck", "--repair")
    assert repaired["ok"] is True
    assert repaired["repaired"]


def test_what_cannot_be_repaired_says_what_to_do(store, tmp_path):
    """If every commit needs a lost value, the error says what to do."""
    with Versioned(Disk(tmp_path / "s")) as state:
        state["always\x1b[31m"] = "x" * 200
        state.commit("one")
        state["n"] = 1
        state.commit("two")
    runner = CliRunner()
    blob = a_blob(tmp_path / "s")
    change(tmp_path / "s", blob, None)
    result = runner.invoke(cli, ["-s", str(tmp_path / "s"), "fsck", "--repair"])
    assert result.exit_code == 1
    assert (
        "not repaired:\n  branch main: none of the states that it was at can be read whole" in result.stdout
    )
    assert "the repair could not restore heads/main" in result.stderr
    assert "vstate import" in result.stderr
    assert result.stdout.count("the value of 'always\\x1b[31m'") == 2
    assert "\x1b" not in result.stdout


def test_many_losses_are_cut(tmp_path):
    """The output lists a hundred losses and counts the others."""
    with Versioned(Disk(tmp_path / "s", durability="process")) as state:
        state["always"] = "x" * 200
        for number in range(130):
            state["n"] = number
            state.commit(f"{number}")
    blob = a_blob(tmp_path / "s")
    change(tmp_path / "s", blob, None)
    result = CliRunner().invoke(cli, ["-s", str(tmp_path / "s"), "fsck"])
    assert result.stdout.count("the value of 'always'") == 100
    assert "  … 30 more (--json lists more)\n" in result.stdout


# export and import


def test_a_bundle_takes_history_elsewhere(vstate, store, tmp_path):
    """Branches and tags arrive with their ids; existing refs are unchanged."""
    bundle = tmp_path / "a.bundle"
    text = vstate("export", "main", "v1", "-o", str(bundle))
    assert re.fullmatch(
        r"exported heads/main, tags/v1: \d+ objects, [\d.]+ k?B, in a bundle of [\d.]+ k?B\n", text
    )
    other = type(vstate)(tmp_path / "other")
    text = other("import", str(bundle))
    assert re.match(r"imported \d+ objects, all of them new, ", text)
    assert re.search(rf"^  created   heads/main  {resolve(store, 'main').short}$", text, re.MULTILINE)
    assert other("log", "--oneline") == vstate("log", "--oneline").replace(", what-if", "")
    assert "nothing is damaged" in other("fsck")
    text = other("import", str(bundle))
    assert "0 of them new" in text
    assert re.search(r"^  unchanged tags/v1  ", text, re.MULTILINE)


def test_an_incremental_bundle(vstate, store, tmp_path):
    """A bundle with --since names the commits it continues from, and a store without them refuses it."""
    first, second = tmp_path / "first", tmp_path / "second"
    vstate("export", "v1", "-o", str(first))
    text = vstate("export", "HEAD", "--since", "v1", "-o", str(second))
    assert f"It continues from {resolve(store, 'v1').short}; the other store must have these commits." in text
    other = type(vstate)(tmp_path / "other")
    message = other.run("import", str(second)).stderr
    assert f"continues from commit {resolve(store, 'v1').id}, which is not here" in message
    other("import", str(first))
    other("import", str(second))
    assert other.json("log", "-n", "1")["id"] == resolve(store, "main").id


def test_what_has_diverged_stays(vstate, store, tmp_path):
    """A diverged branch stays and the exit code is 1; --prefix imports the other side under another name."""
    bundle = tmp_path / "a.bundle"
    vstate("export", "main", "-o", str(bundle))
    other = type(vstate)(tmp_path / "other")
    with Versioned(Disk(other.store)) as state:
        state["mine"] = 1
        mine = state.commit("mine")
    result = other.run("import", str(bundle))
    assert result.exit_code == 1
    assert f"  diverged  heads/main  {resolve(store, 'main').short} (here {mine.short})" in result.stdout
    assert result.stderr.startswith("vstate: heads/main diverged from the bundle and did not move")
    assert "--prefix theirs" in result.stderr
    assert resolve(other.store, "main") == mine
    assert "created   heads/theirs/main" in other("import", str(bundle), "--prefix", "theirs")
    assert "created   heads/x/y/main" in other("import", str(bundle), "--prefix", "x/y/")
    result = other.run("import", str(bundle), "--json")
    assert result.exit_code == 1
    assert [ref["outcome"] for ref in json.loads(result.stdout)["refs"]] == ["diverged"]


def test_export_under_another_name(vstate, tmp_path):
    """A revision that is no branch and no tag needs --as."""
    bundle = tmp_path / "a.bundle"
    message = vstate.fails("export", "HEAD~1", "-o", str(bundle))
    assert message.startswith("'HEAD~1' is no branch and no tag")
    assert "--as NAME" in message
    assert not bundle.exists()
    document = vstate.json("export", "HEAD~1", "--as", "before", "-o", str(bundle))
    assert [ref["name"] for ref in document["refs"]] == ["heads/before"]
    assert document["file_bytes"] == bundle.stat().st_size


@pytest.mark.slow
def test_through_a_pipe(vstate, store, tmp_path, environment):
    """`vstate export -o - | vstate import -` works: standard output has the bundle alone."""
    exporting = subprocess.Popen(
        [*COMMAND, "-s", str(store), "export", "main", "-o", "-"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    importing = subprocess.run(
        [*COMMAND, "-s", str(tmp_path / "other"), "import", "-"],
        env=environment(),
        stdin=exporting.stdout,
        capture_output=True,
        text=True,
    )
    exporting.stdout.close()
    remark = exporting.stderr.read().decode()
    exporting.stderr.close()
    assert exporting.wait() == 0
    assert remark.startswith("vstate: exported heads/main: ")
    assert (importing.returncode, importing.stderr) == (0, "")
    assert importing.stdout.startswith("imported ")
    assert resolve(tmp_path / "other", "main") == resolve(store, "main")


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "main"],
        ["export", "-o", "x"],
        ["export", "main", "v1", "--as", "x", "-o", "x"],
        ["export", "main", "-o", "-", "--json"],
        ["import"],
        ["fsck", "main"],
    ],
)
def test_wrong_use_exits_with_2(vstate, arguments):
    """Missing arguments and contradicting options exit with 2."""
    result = vstate.run(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr


def test_a_bundle_is_not_for_a_terminal(vstate, monkeypatch):
    """A terminal would interpret the bytes of a bundle, so export refuses to write them there."""
    monkeypatch.setattr(output.Output, "__init__", _on_a_terminal)
    result = vstate.run("export", "main", "-o", "-")
    assert result.exit_code == 2
    assert "A terminal cannot show a bundle" in result.stderr


def _on_a_terminal(out, *, paged):
    out.is_terminal = True
    out._pager = None
    out.damage = None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no bundle of vstate; make one with `vstate export`"),
        (b"vstate bundle\n\0\1" + bytes(100), "is not a whole bundle: it is damaged or cut short; copy it"),
        (None, "no file "),
    ],
)
def test_files_that_are_no_bundles(vstate, store, tmp_path, content, message):
    """A file that is no bundle is an error in one line, and the store stays as it is."""
    before = rows(store)
    file = tmp_path / "x.bundle"
    if content is not None:
        file.write_bytes(content)
    assert message in vstate.fails("import", str(file))
    assert vstate.fails("import", str(store)).endswith(
        "is a directory, and no bundle; to copy a store, use `vstate clone`"
    )
    assert rows(store) == before


def test_a_file_that_cannot_be_written(vstate, tmp_path):
    """The message names the file of the command, not a temporary one, and no number of an error."""
    for file, reason in (
        (tmp_path / "nowhere" / "x.bundle", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        message = vstate.fails("export", "main", "-o", str(file))
        assert message == f"{file} cannot be written: {reason}; choose another file"


def test_import_makes_a_store_here(vstate, tmp_path, monkeypatch):
    """Without -s, import creates `.vstate` here, but only if the bundle exists."""
    bundle = tmp_path / "a.bundle"
    vstate("export", "main", "-o", str(bundle))
    (tmp_path / "fresh").mkdir()
    monkeypatch.chdir(tmp_path / "fresh")
    assert CliRunner().invoke(cli, ["import", "absent.bundle"]).exit_code == 1
    assert list((tmp_path / "fresh").iterdir()) == []
    assert CliRunner().invoke(cli, ["import", str(bundle)]).exit_code == 0
    assert (tmp_path / "fresh" / ".vstate").is_dir()
    assert CliRunner().invoke(cli, ["log"]).exit_code == 0


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal(monkeypatch):
    """A long run shows its step and progress on standard error, and clears them at the end."""
    monkeypatch.setattr(progress, "_FIRST_SHOWN_AFTER", 0)
    monkeypatch.setattr(progress, "_SHOWN_EVERY", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.ProgressBar() as bar:
        bar("checking", 5)
        bar("im[red]porting", 1234, 2468)
        bar._bar.refresh()
    text = terminal.getvalue()
    assert "im[red]porting: 1,234" in text
    assert "50 %" in text
    assert text.endswith(("\x1b[2K", "\x1b[?25h"))


def test_no_bar_elsewhere(monkeypatch):
    """There is no bar without a terminal, and none for a short run."""
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with progress.ProgressBar() as bar:
        bar("checking", 5)
    monkeypatch.setattr(progress, "_FIRST_SHOWN_AFTER", 0)
    monkeypatch.setattr(progress, "_SHOWN_EVERY", 0)
    with progress.ProgressBar() as bar:
        bar("checking", 5, 10)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_FIRST_SHOWN_AFTER", 60)
    with progress.ProgressBar() as bar:
        bar("checking", 5, 10)
    assert file.getvalue() == terminal.getvalue() == ""


def test_values_come_from_shelve_and_json(vstate, tmp_path):
    """`import shelve` and `import json` commit values to a branch, and name those that they leave out."""
    with shelve.open(str(tmp_path / "old")) as shelf:
        shelf["plan"] = {"goal": "x"}
        shelf.dict[b"bad"] = b"no pickle"
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "limits.json").write_text('{"most": 3}')
    vstate = type(vstate)(tmp_path / "store")
    result = vstate.run("import", "shelve", str(tmp_path / "old"), "--branch", "cache", "--prefix", "old/")
    assert result.exit_code == 1
    assert "imported 1 key into cache, 1 of them new or changed\n  left out bad: " in result.stdout
    assert vstate("show", "cache", "old/plan") == "{'goal': 'x'}\n"
    document = vstate.json("import", "json", str(tmp_path / "json"))
    assert (document["branch"], document["keys"], document["written"]) == ("main", 1, 1)
    assert vstate("import", "json", str(tmp_path / "json")).startswith("imported 1 key into main, 0 of them")
    assert "no shelve file" in vstate.fails("import", "shelve", "none")
    assert "no directory" in vstate.fails("import", "json", "none")
    assert vstate.run("import", "one", "two").exit_code == 2
    assert vstate.run("import", "x.bundle", "--branch", "b").exit_code == 2


def test_an_import_goes_nowhere_unseen(store, tmp_path, monkeypatch):
    """Without --store, it makes a store here and names it; it does not go into one of a directory above."""
    bundle = tmp_path / "x.bundle"
    inside = store.parent / "inside"
    inside.mkdir()
    runner = CliRunner()
    assert runner.invoke(cli, ["-s", str(store), "export", "main", "-o", str(bundle)]).exit_code == 0
    before = Versioned(store).head
    monkeypatch.chdir(inside)
    told = runner.invoke(cli, ["import", str(bundle)])
    assert told.exit_code == 0
    assert told.stderr == f"vstate: the store is {inside / '.vstate'}\n"
    assert Versioned(inside / ".vstate", branch="main").head == before
