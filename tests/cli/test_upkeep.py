"""`vstate gc`, `fsck`, `export` and `import`, and histories that were cut off."""

import io
import json
import re
import shelve
import subprocess
import sys

import pytest
from click.testing import CliRunner
from stores import change_row, resolve, rows
from vstate_cli import output
from vstate_cli.app import cli

from vstate import Disk, Versioned


def a_blob(store):
    with Disk(store) as disk:
        return next(key for key, value in disk.items("o/") if value[:1] in b"bB")


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
    assert re.fullmatch(r"  \d objects, [\d.]+ k?B: named by lines of a reflog that go", dry.pop(1))
    assert [line.replace("would remove", "removed") for line in dry] == done
    assert re.fullmatch(r"removed \d+ reflog lines", done[1])
    assert re.fullmatch(r"\d+ objects in use", done[-1])
    assert vstate("gc", "--keep-reflog", "0").startswith("removed 0 objects, 0 B\n")
    assert vstate("log", "--oneline").count("\n") == 4


def test_gc_keeps_what_the_reflog_names(vstate):
    """gc keeps commits that only the reflog reaches, for a month by default. JSON has all numbers."""
    vstate("branch", "-d", "what-if")
    assert vstate.json("gc")["removed"] == 0
    assert vstate.json("gc", "--keep-reflog", "1h", "--dry-run")["removed"] == 0
    document = vstate.json("gc", "--dry-run")
    numbers = {"live", "removed", "removed_bytes", "waiting", "reflog_lines", "shallow", "seconds"}
    assert set(document) == numbers | {
        "dry_run",
        "rooms",
        "rooms_left",
        "kept_by",
        "expired",
        "size_before",
        "size_after",
        "garbage",
    }
    assert document["size_before"] > 0
    assert (document["size_after"], document["dry_run"]) == (None, True)
    assert vstate.json("gc", "--keep-reflog", "0s")["removed"] > 0


def test_keep_sets_rules_that_gc_carries_out(vstate):
    """It lists them, for people and as JSON, and gc cuts the histories that they are about."""
    assert vstate("keep") == "no rules: gc keeps what branches lead to\n"
    vstate("keep", "what-if", "--idle", "30d")
    vstate("keep", "m*", "--last", "2")
    vstate("keep", "d", "--last", "20", "--hourly", "24", "--daily", "7", "--weekly", "1")
    text = vstate("keep", "n*", "--last", "1000", "--since", "36h")
    assert text == (
        "d: keeps the newest 20 commits, the newest of each of 24 hours, the newest of each of 7 days "
        "and the newest of each of 1 week\n"
        "m*: keeps the newest 2 commits\n"
        "n*: keeps the commits of the last 36h and the newest 1,000 commits\n"
        "what-if: goes after 30d without a commit\n"
    )
    none = dict.fromkeys(("idle", "since", "last", "hourly", "daily", "weekly"))
    assert vstate.json("keep") == [
        {"pattern": "d", **none, "last": 20, "hourly": 24, "daily": 7, "weekly": 1},
        {"pattern": "m*", **none, "last": 2},
        {"pattern": "n*", **none, "since": 129600.0, "last": 1000},
        {"pattern": "what-if", **none, "idle": 2592000.0},
    ]
    vstate("keep", "d", "--delete")
    vstate("branch", "-d", "what-if")
    vstate("tag", "-d", "v1")
    vstate("gc", "--keep-reflog", "0")
    assert vstate("log", "--oneline").count("\n") == 2
    vstate("keep", "m*", "--delete")
    vstate("keep", "n*", "--delete")
    assert vstate.json("keep", "what-if", "--delete") == []


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["--idle", "3d"], 2, "Name the branch"),
        (["main"], 2, "Give a limit, such as --idle or --last"),
        (["main", "--last", "3", "--delete"], 2, "Give a limit"),
        (["main", "--delete"], 1, "no rule for 'main': `vstate keep` lists the rules"),
        (["main", "--idle", "soon"], 1, "'soon' is not an age"),
        (["a*b", "--last", "1"], 1, "'a*b' is not a branch name"),
    ],
    ids=str,
)
def test_keep_says_what_is_wrong(vstate, words, status, error):
    result = vstate.run("keep", *words)
    assert (result.exit_code, error in result.output) == (status, True), result.output


def test_a_history_that_was_cut_off_is_shown_so(vstate, store):
    """log and show mark the end of a history, and HEAD~n explains why there is no such commit."""
    vstate("branch", "-d", "what-if")
    vstate("tag", "-d", "v1")
    text = vstate("gc", "--keep-last", "2", "--keep-reflog", "0", "main")
    assert "removed the history behind 1 commit\n" in text
    last = resolve(store, "HEAD~1")
    log = vstate("log")
    assert log.count("\n\n") == 1
    assert log.endswith("    commits behind it were removed\n")
    lines = vstate("log", "--oneline").splitlines()
    assert [line.endswith("(commits removed)") for line in lines] == [False, True]
    graph = vstate("log", "--graph").splitlines()
    assert graph[-1] == "      commits behind it were removed"
    documents = [json.loads(line) for line in vstate("log", "--json").splitlines()]
    assert [document.get("shallow") for document in documents] == [None, True]
    assert documents[1]["parents"] == [str(last.parent_ids[0])]
    assert "commits behind it were removed" in vstate("show", "HEAD~1")
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
    assert "removed the history behind 2 commits" in text
    assert len(vstate("log", "--oneline").splitlines()) == 1


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
    change_row(store, key, value[:-1] + bytes([value[-1] ^ 1]))
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
    assert lines[5] == "with --repair:"
    assert lines[6].startswith("  branch main: it is at ")
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


@pytest.fixture
def lost(vstate, tmp_path):
    """The command on a store in which the value that all of its many commits need is lost."""
    with Versioned(Disk(tmp_path / "s", durability="process")) as state:
        state["always\x1b[31m"] = "x" * 200
        for number in range(130):
            state["n"] = number
            state.commit(f"{number}")
    change_row(tmp_path / "s", a_blob(tmp_path / "s"), None)
    return type(vstate)(tmp_path / "s")


def test_losses_that_cannot_be_repaired(lost):
    """The error says what to do; a hundred losses are listed, and the others are counted."""
    result = lost.run("fsck", "--repair")
    assert result.exit_code == 1
    assert (
        "not repaired:\n  branch main: none of the states that it was at can be read whole" in result.stdout
    )
    assert "with --repair" not in result.stdout
    assert "the repair could not restore heads/main" in result.stderr
    assert "vstate import" in result.stderr
    assert result.stdout.count("the value of 'always\\x1b[31m'") == 100
    assert "  … 30 more (--json lists more)\n" in result.stdout
    assert "\x1b" not in result.stdout


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


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal(monkeypatch):
    """A long run shows its step and progress on standard error, and no percentage without a total."""
    monkeypatch.setattr(output, "_FIRST_SHOWN_AFTER", 0)
    monkeypatch.setattr(output, "_SHOWN_EVERY", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    out = output.Output(stream=io.StringIO())
    out.progress("checking", 5)
    out.progress("im[red]porting", 1234, 2468)
    out.progress._bar.refresh()
    out.progress("copying", 3101)
    out.progress._bar.refresh()
    out.line("the output takes the bar away")
    text = terminal.getvalue()
    assert "im[red]porting: 1,234" in text
    assert "50 %" in text
    assert "copying: 3,101" in text
    assert text.count("%") == text.count("50 %")
    assert text.endswith(("\x1b[2K", "\x1b[?25h"))


@pytest.mark.parametrize(("file", "after"), [(io.StringIO, 60), (io.StringIO, 0), (Terminal, 60)])
def test_no_bar_elsewhere(monkeypatch, file, after):
    """There is no bar without a terminal, and none for a short run."""
    monkeypatch.setattr(output, "_FIRST_SHOWN_AFTER", after)
    monkeypatch.setattr(output, "_SHOWN_EVERY", 0)
    monkeypatch.setattr(sys, "stderr", written := file())
    bar = output.ProgressBar()
    bar("checking", 5, 10)
    bar.stop()
    assert written.getvalue() == ""


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
