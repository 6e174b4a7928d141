"""`vstate gc`, `keep` and `fsck`; cut histories, expiring keys, and the progress of long work."""

import io
import sys
from collections.abc import Iterator

import pytest
from clock import Time, standing_still
from stores import change_row
from vstate_cli import output

from vstate import Disk, Versioned

SESSIONS = {
    "gc removes commits that no ref and no recent move leads to; a dry run lists them, with the reason": """
        branch -d what-if
        gc -> removed 0 objects, <size> / the files took <size> and take <size> / 16 objects in use
        gc --keep-reflog 1h --dry-run ? removed -> 0
        gc --dry-run ? [size_before > `0`, size_after, dry_run] -> [true, null, true]
        gc --dry-run ? keys(@) -> ["live", "removed", "removed_bytes", "waiting", "reflog_lines", "shallow",
            ..."kept_by", "dry_run", "seconds", "rooms", "rooms_left", "expired", "size_before", "size_after",
            ..."garbage"]
        >>> before = rows_of(store)
        gc --keep-reflog 0 --dry-run -> would remove 3 objects, <size>
            / 3 objects, <size>: named by lines of a reflog that go / would remove 8 reflog lines
            / 13 objects in use
        >>> assert rows_of(store) == before
        gc --keep-reflog 0 -> removed 3 objects, <size> / the files took <size> and take <size>
            / removed 8 reflog lines / 13 objects in use
        gc --keep-reflog 0s ? removed -> 0
        log --oneline -> <id> (HEAD -> main) more +1 ... (tag: v1) start +4
    """,
    "gc names the branch that shares the history to cut off, and so keeps it": """
        gc --keep-last 3 main -> ... / kept history that is shared; to cut it too, name what-if as well
            / 16 objects in use
        gc --keep-last 1 main what-if -> ... / removed the history behind 2 commits / 9 objects in use
        log --oneline -> <id> (HEAD -> main) more +5 (commits removed)
    """,
    "a history that was cut off is shown so": """
        branch -d what-if
        tag -d v1
        gc --keep-last 2 --keep-reflog 0 main -> ... / removed the history behind 1 commit / 7 objects in use
        log -> <id> (HEAD -> main) more / <time> / +notes/b / <id> tidy up / <time> · 1 event
            / +messages +notes/a +plan +text / commits behind it were removed
        log --oneline -> <id> (HEAD -> main) more +1 / <id> tidy up +4 (commits removed)
        log --graph -> ... / +messages +notes/a +plan +text / commits behind it were removed
        log ? [*].[message, length(parents), shallow]
            -> [["more", 1, null], ["tidy up\\n\\nfor good", 1, true]]
        show HEAD~1 -> commit <ID> / parent: <id> / commits behind it were removed / ...
        show HEAD~1 ? shallow -> true
        show HEAD ? shallow -> null
        log HEAD~2 -> [1] vstate: no revision 'HEAD~2': <id> is where the history was cut off
        diff HEAD~2 HEAD -> [1] vstate: no revision 'HEAD~2': <id> is where the history was cut off
        status ? commits -> 2
        diff --stat -> + notes/b dict, <size> / +1 added
        checkout HEAD~1
        diff --stat -> + messages list, <size> / ... / +4 added
    """,
    "keep sets rules that gc carries out, and lists them": """
        keep -> no rules: gc keeps what branches lead to
        keep what-if --idle 30d
        keep m* --last 2
        keep d --last 20 --hourly 24 --daily 7 --weekly 1
        keep n* --last 1000 --since 36h -> d: keeps the newest 20 commits, the newest of each of 24 hours,
            ...the newest of each of 7 days and the newest of each of 1 week / m*: keeps the newest 2 commits
            / n*: keeps the commits of the last 36h and the newest 1,000 commits
            / what-if: goes after 30d without a commit
        keep ? [0] -> {"pattern": "d", "idle": null, "since": null, "last": 20, "hourly": 24, "daily": 7,...
        keep ? [2:].[pattern, idle, since] -> [["n*", null, 129600.0], ["what-if", 2592000.0, null]]
        keep d --delete
        branch -d what-if
        tag -d v1
        gc --keep-reflog 0
        log --oneline -> <id> (HEAD -> main) more +1 / <id> tidy up +4 (commits removed)
        keep m* --delete
        keep n* --delete
        keep what-if --delete ? @ -> []
        keep --idle 3d -> [2] ...Name the branch...
        keep main -> [2] ...Give a limit, such as --idle or --last...
        keep main --last 3 --delete -> [2] ...Give a limit...
        keep main --delete -> [1] vstate: no rule for 'main': `vstate keep` lists the rules
        keep main --idle soon -> [1] vstate: 'soon' is not an age...
        keep a*b --last 1 -> [1] vstate: 'a*b' is not a branch name...
    """,
    "fsck names damaged objects and lost keys; --repair moves the branch to its newest intact commit": """
        fsck -> 5 commits, 11 trees, ...: nothing is damaged (<s>)
        fsck --quick -> 5 commits, ... (blobs not read); ...: nothing is damaged (<s>)
        fsck --repair -> 5 commits, ...: nothing is damaged (<s>)
        >>> was, key = resolve(store, "main~1"), f"o/{resolve(store, 'main').root}"
        >>> row = rows_of(store)[key]
        >>> change_row(store, key, row[:-1] + bytes([row[-1] ^ 1]))
        >>> before = rows_of(store)
        fsck -> [1] 5 commits, 9 trees, ...: 1 damaged (<s>)
            / damaged: / tree <ID>: its content does not match its id / lost: / heads/main <id> all keys
            / with --repair: / branch main: it is at <id> now, 'tidy up'; its reflog tells where it was
            / moved 1 object aside, to damaged/: writing the same again will heal
            / vstate: the store at STORE is damaged: make a copy of it, then run `vstate fsck --repair`
        fsck --quick -> [1] ... 1 damaged ...
        fsck ? [ok, broken, damage[*].kind, lost] -> [1] [false, ["heads/main"], ["tree"],
            ...[{"ref": "heads/main", "commit": "<ID>", "key": null, "what": "all keys"}]] / vstate: ...
        >>> assert rows_of(store) == before
        fsck --repair -> 5 commits, ...: 1 damaged before the repair; all is well now (<s>) / damaged: ...
            ...repaired: / branch main: it is at <id> now, 'tidy up'; ...
        >>> assert resolve(store, "main") == was
        fsck -> 5 commits, ...: 1 damaged, all known from an earlier repair (<s>)
            / damaged: / tree <ID>: it is missing (known from an earlier repair) / lost: ...
        fsck ? [ok, keys(objects)] -> [true, ["commit", "tree", "index", "blob"]]
        log -1 --oneline -> <id> (HEAD -> main) tidy up ~2 -1
        reflog -1 -> main@{0} <id> <time> fsck: repaired
    """,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(rows, session):
    """Each session has the output that is written here."""
    rows(SESSIONS[session], rows_of=stored)


def stored(store):
    with Disk(store) as disk:
        return dict(disk.items())


def test_losses_that_cannot_be_repaired(vstate, tmp_path):
    """The error says what to do; a hundred losses are listed, and the others are counted."""
    with Versioned(Disk(tmp_path / "s", durability="process")) as state:
        state["always\x1b[31m"] = "x" * 200
        for number in range(130):
            state["n"] = number
            state.commit(f"{number}")
    blob = next(key for key, row in stored(tmp_path / "s").items() if key[:2] == "o/" and row[:1] in b"bB")
    change_row(tmp_path / "s", blob, None)
    result = type(vstate)(tmp_path / "s").run("fsck", "--repair")
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


# Expiry


@pytest.fixture
def time() -> Iterator[Time]:
    with standing_still() as time:
        yield time


@pytest.fixture
def command(empty, time: Time):
    """A store with a key that expires at 9:01, another at 10:00, and a key without expiry."""
    with Versioned(Disk(empty.store, durability="process")) as state:
        state["code"], state["session"], state["user"] = 1234, {"n": 1}, "ada"
        state.expire("code", 60)
        state.expire("session", 3600)
        state.commit("in")
    return empty


EXPIRING = {
    "ls and status tell when a key expires; an expired one is listed where the revision is named": """
        ls -l -> <size> int code expires 2026-11-21 09:01:00 / <size> dict session expires 2026-11-21 10:00:00
            / <size> str user
        ls ? [0] -> {"key": "code", "type": "int", "size": 5, "expires": "<TIME>"}
        ls ? [2] | keys(@) -> ["key", "type", "size"]
        status ? keys -> 3
        >>> time.pass_(60)
        ls -> session / user
        ls c -> -
        ls -a -> code / session / user
        ls HEAD -> code / session / user
        ls -l HEAD -> <size> int code expired 2026-11-21 09:01:00 / ...
        status ? keys -> 2
    """,
    "a new expiry is a change of the key": """
        >>> expire(store, "user", 7200)
        show -> ... / ~ user str, <size>, expires 2026-11-21 11:00:00 / ...
        diff HEAD~1 HEAD ? changes[0].new.expires -> "<TIME>"
        show user -> 'ada'
        show user ? expires -> "<TIME>"
        log -1 -> ... / ~user
        fsck -> ...nothing is damaged...
    """,
    "gc reports the branch that was idle too long; before that it is listed": """
        keep guest --idle 60s
        >>> commit(store, branch="guest", k=1)
        >>> time.pass_(60)
        branch -> guest <id> change goes after 1m / * main <id> in
        branch ? [*].[name, idle] -> [["guest", 60.0], ["main", null]]
        branch -v ? [?idle].[name, idle] -> [["guest", 60.0]]
        branch -n 5 ? [*].[name, idle] -> [["guest", 60.0], ["main", null]]
        gc --dry-run ? expired -> ["guest"]
        gc -> ... / removed the idle branch guest / ...
        branch -> * main <id> in
        fsck -> ...nothing is damaged...
    """,
}


@pytest.mark.parametrize("session", EXPIRING)
def test_what_expires(rows, command, time: Time, session) -> None:
    """Keys and branches that expire, in the output of the commands."""
    rows(EXPIRING[session], command, store=command.store, time=time, expire=expire)


def expire(store, key, seconds):
    with Versioned(Disk(store, durability="process")) as state:
        state.expire(key, seconds)
        state.commit("out")


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
