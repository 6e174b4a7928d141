"""`vstate reflog`, `undo`, `blame` and `bisect`, and revisions by the reflog on the command line."""

import os
import pickle
import re

import pytest

from vstate import Disk, Versioned
from vstate.objects import tree
from vstate.objects.canonical import encode
from vstate.repo.repository import Repository
from vstate.values.entry import PICKLE


@pytest.fixture
def chat(store):
    """The store with a branch `chat`: a conversation of ten messages, the seventh too long."""
    with Versioned(Disk(store, durability="process")) as state:
        state.switch("chat", create=True)
        for number in range(10):
            text = f"message {number}" + "!" * 50 * (number == 6)
            state.setdefault("chat", []).append({"role": "user", "content": text})
            state.commit(f"turn {number}")
    return store


# reflog


def test_reflog(vstate):
    """reflog prints every move of HEAD's branch, newest first, with a revision for each."""
    lines = vstate("reflog").splitlines()
    assert [re.sub(r"[0-9a-f]{10}  \S+ \S+ \S+  ", "", line) for line in lines] == [
        "main@{0}  commit: more",
        "main@{1}  commit: tidy up",
        "main@{2}  commit: read",
        "main@{3}  commit: start",
    ]
    short = re.match(r"main@\{2\}  ([0-9a-f]{10})  ", lines[2])[1]
    assert vstate("show", "main@{2}").startswith(f"commit {short}")
    assert len(vstate("reflog", "-n", "2").splitlines()) == 2
    assert vstate("reflog", "what-if").splitlines()[-1].endswith("  branch: created from HEAD~1")


def test_reflog_of_a_deleted_branch(vstate):
    """The reflog of a deleted branch can restore it."""
    vstate("branch", "-d", "what-if")
    lines = vstate("reflog", "what-if").splitlines()
    assert lines[0].startswith("what-if@{0}  (deleted)   ")
    assert vstate("branch", "what-if", "what-if@{1}").rstrip().endswith("another goal")


def test_reflog_of_a_detached_head(vstate):
    """With a detached HEAD, reflog shows the moves of HEAD."""
    vstate("checkout", "v1")
    assert vstate("reflog").splitlines()[0].startswith("HEAD@{0}  ")
    assert "checkout: to " in vstate("reflog", "HEAD")


def test_reflog_of_nothing(vstate, empty, store):
    """An unknown branch is an error; a branch without moves is a remark."""
    assert vstate.fails("reflog", "mian") == "no branch 'mian'; did you mean: main?"
    result = empty.run("reflog")
    assert (result.exit_code, result.stdout) == (1, "")
    with Disk(store) as disk:
        disk.delete_many(list(disk.keys("reflog/")))
    result = vstate.run("reflog")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "vstate: no move of main is on record\n"


def test_reflog_json(vstate):
    """The document is a list of moves with full ids."""
    moves = vstate.json("reflog")
    assert [move["name"] for move in moves] == [f"main@{{{number}}}" for number in range(4)]
    assert moves[0]["old"] == moves[1]["new"]
    assert (moves[3]["old"], moves[3]["action"]) == (None, "commit: start")
    assert set(moves[0]) == {"name", "old", "new", "time", "action"}


# revisions by the reflog


def test_revisions_by_the_reflog(vstate):
    """Every command takes them, also with spaces and colons in the braces."""
    assert "tidy up" in vstate("log", "main@{1}", "-n", "1")
    assert vstate("show", "main@{3}", "messages") == "['hello']\n"
    assert vstate("show", "main@{3}:messages") == "['hello']\n"
    assert vstate("show", "@{2099-01-01 10:00:00}:messages") == "['hello', 'bye']\n"
    assert "notes/b" in vstate("diff", "@{1}..@{0}", "--stat")
    assert vstate("checkout", "main@{1}").startswith("HEAD is detached at ")
    assert vstate.fails("show", "main@{some day}").startswith("'some day' is not a time: write 2026-11-20, ")
    assert vstate.fails("log", "main@{9}").startswith(
        "no revision 'main@{9}': its reflog has 4 moves of main"
    )


def test_show_says_why_a_revision_leads_nowhere(vstate):
    """The error explains why a revision names no commit."""
    assert vstate.fails("show", "HEAD~99").endswith(" is the first commit")
    assert "has 1 parent" in vstate.fails("show", "HEAD^2")
    assert "its reflog has 4 moves" in vstate.fails("show", "main@{77}")
    assert "is the first commit" in vstate.fails("show", "HEAD~99:plan")
    assert "is neither a revision nor a key of HEAD" in vstate.fails("show", "plam")


def test_a_key_that_looks_like_a_revision(vstate, store):
    """show prints a key whose name looks like a revision."""
    with Versioned(Disk(store)) as state:
        state["HEAD~99"] = "tilde"
        state["a@{b"] = "brace"
        state["a@{b}:c"] = "both"
        state.commit()
    assert vstate("show", "HEAD~99") == "'tilde'\n"
    assert vstate("show", "a@{b") == "'brace'\n"
    assert vstate("show", "a@{b}:c") == "'both'\n"
    assert vstate("show", "HEAD:a@{b}:c") == "'both'\n"


# undo


def test_undo_and_redo(vstate, store):
    """undo goes back one move at a time, and redo forward; a program sees the change."""
    text = vstate("undo")
    assert re.match(
        r"main is at [0-9a-f]{10} tidy up\nundo: commit: more\nTo take that back: vstate redo\n", text
    )
    with Versioned(Disk(store)) as state:
        assert "notes/b" not in state
    assert "undo: commit: tidy up" in vstate("undo")
    assert re.match(r"main is at [0-9a-f]{10} tidy up\nredo: commit: tidy up\n$", vstate("undo", "--redo"))
    assert vstate.json("undo", "--redo")["action"] == "redo: commit: more"
    assert vstate.fails("undo", "--redo").startswith("nothing to redo on branch 'main'")


def test_undo_of_several_moves(vstate):
    """-n takes back several moves at once."""
    document = vstate.json("undo", "-n", "3")
    assert (document["branch"], document["action"]) == ("main", "undo 3 moves: commit: more")
    assert document["commit"] == vstate.json("show", "v1")["id"]
    assert document["old"] == vstate.json("show", "main@{1}")["id"]
    message = vstate.fails("undo")
    assert message.startswith("branch 'main' began with 'commit: start'")
    assert message.endswith("vstate branch -d main")


def test_undo_that_cannot_be(vstate, empty):
    """A detached HEAD, a store without commits and contradicting options are errors."""
    vstate("checkout", "v1")
    assert vstate.fails("undo").startswith("HEAD is detached at ")
    assert empty.fails("undo") == "no commit yet on branch 'main'"
    assert vstate.run("undo", "--redo", "-n", "2").exit_code == 2
    assert vstate.run("undo", "-n", "0").exit_code == 2


# blame


def test_blame_of_a_list(vstate, chat):
    """Each item has a line: commit, time, message, path, and the message in words."""
    lines = vstate("blame", "chat").splitlines()
    assert len(lines) == 10
    for number, line in enumerate(lines):
        assert re.match(
            rf"[0-9a-f]{{10}}  \d{{4}}-\d\d-\d\d \S+ \S+  "
            rf"turn {number}  \[{number}\]  user: message {number}",
            line,
        )


def test_blame_of_a_text_an_object_and_a_dict(vstate):
    """blame names lines by number, and fields and entries by path."""
    lines = [re.sub(r"^\S+  \S+ \S+ \S+  ", "", line) for line in vstate("blame", "text").splitlines()]
    assert lines == ["start    1  one", "tidy up  2  2", "start    3  three"]
    plan = vstate("blame", "plan").splitlines()
    assert re.search(r"  start  goal   'win'$", plan[0])
    assert re.search(r"  read   steps  \['look', 'think'\]$", plan[1])
    assert vstate("blame", "notes/a").rstrip().endswith("  read  lines  3")


def test_blame_of_a_path(vstate):
    """A path selects one part, however deep; --rev starts elsewhere."""
    first, second = vstate("blame", "plan", "steps").splitlines()
    assert re.search(r"  start  steps\[0\]  'look'$", first)
    assert re.search(r"  read   steps\[1\]  'think'$", second)
    assert re.search(r"  read  1  think\n$", vstate("blame", "plan", "steps[1]"))
    assert "another goal" in vstate("blame", "plan", "goal", "--rev", "what-if")
    assert "start" in vstate("blame", "messages", "--rev", "v1")


def test_blame_json(vstate):
    """The document lists the parts with the id of the commit and the number of the line."""
    first, second = vstate.json("blame", "messages")
    assert set(first) == {"path", "line", "commit", "time", "message", "value"}
    assert (first["path"], first["message"], first["value"]) == ("[0]", "start", "hello")
    assert (second["path"], second["message"], second["line"]) == ("[1]", "tidy up\n\nfor good", None)
    assert vstate.json("blame", "text")[1]["line"] == 2
    assert vstate.json("blame", "plan", "goal")[0]["commit"] == vstate.json("show", "v1")["id"]


def test_blame_that_cannot_be(vstate):
    """The error names the missing key, the commit that removed it, or the step of the path."""
    message = vstate.fails("blame", "old")
    assert re.match(
        r"no key 'old' at [0-9a-f]{10}: ([0-9a-f]{10}) removed it; .*vstate blame \1~1 old$", message
    )
    assert vstate.fails("blame", "plam").endswith("did you mean: plan?")
    assert "no .goals in the value, which is a" in vstate.fails("blame", "plan", "goals")
    assert "is no path at" in vstate.fails("blame", "plan", "steps..b")
    assert vstate.fails("blame", "plan", "--rev", "HEAD~9").endswith("is the first commit")


# bisect


def test_bisect(vstate, chat):
    """bisect prints each test with the number of commits left, then the first bad commit and its changes."""
    text = vstate("bisect", "chat", "missing || max(value[*].length(content)) < `40`", "--good", "chat~10")
    tests, _, result = text.partition("\n\n")
    lines = tests.splitlines()
    assert re.fullmatch(r"good  [0-9a-f]{10}  more  \(9 left\)", lines[0])
    assert re.fullmatch(r"bad   [0-9a-f]{10}  turn 9  \(9 left\)", lines[1])
    assert len(lines) <= 2 + 4
    assert re.match(r"The first bad commit is [0-9a-f]{64}\n    turn 6\n    \d{4}-", result)
    assert "  ~ chat  list, " in result
    assert "+ [6]: user: message 6!!!" in result
    assert result.rstrip().endswith("1 key changed: 0 added, 1 modified, 0 removed") or "chat" in result


def test_bisect_over_an_object(vstate):
    """A condition can test the fields of an object, and the first bad commit is shown with its branches."""
    text = vstate("bisect", "plan", "length(value.steps) < `2`", "--good", "v1")
    assert re.search(r"The first bad commit is [0-9a-f]{64}\n    read\n", text)
    text = vstate("bisect", "plan", "value.goal == 'win'", "--good", "v1", "--bad", "what-if")
    assert re.search(r"The first bad commit is [0-9a-f]{64} \(what-if\)\n    another goal\n", text)


def test_bisect_json(vstate, chat):
    """The document has the first bad commit, every test, and the changed keys."""
    document = vstate.json("bisect", "chat", "missing || length(value) < `8`", "--good", "v1")
    assert document["first_bad"]["message"] == "turn 7"
    assert document["changes"] == {"added": [], "modified": ["chat"], "removed": []}
    assert [test["good"] for test in document["tested"][:2]] == [True, False]
    assert set(document["tested"][0]) == {"commit", "good", "left"}


def test_bisect_that_cannot_be(vstate):
    """Errors in the expression, in its evaluation at a commit, and in the choice of commits."""
    assert vstate.fails("bisect", "plan", "value.goal = 'win'", "--good", "v1").startswith(
        "column 12 of the expression: invalid syntax at '='"
    )
    message = vstate.fails("bisect", "plan", "length(value.goals) > `3`", "--good", "v1")
    assert re.match(r"at [0-9a-f]{10}: there is no goals in value; it has goal, steps$", message)
    message = vstate.fails("bisect", "never", "length(value) > `3`", "--good", "v1")
    assert re.match(
        r"at [0-9a-f]{10}, where there is no key 'never': cannot evaluate the expression: ", message
    )
    assert "give an older commit as good" in vstate.fails("bisect", "plan", "missing", "--good", "v1")
    assert "give a newer commit as bad" in vstate.run("bisect", "plan", "!missing", "--good", "v1").stderr
    assert "exchange the two" in vstate.fails("bisect", "plan", "value", "--good", "HEAD", "--bad", "v1")
    assert vstate.run("bisect", "plan", "value").exit_code == 2
    assert vstate.run("bisect", "plan", "a", "b", "c", "--good", "v1").exit_code == 2


def test_bisect_names_what_is_absent(vstate):
    """A condition on a part that is not there says so, with the parts that are."""
    message = vstate.fails("bisect", "plan", "value.gaol == 'win'", "--good", "v1")
    assert "should be good: there is no gaol in value; it has goal, steps" in message
    assert "no .gaol in" in vstate.fails("bisect", "plan", "gaol", "value", "--good", "v1")


def test_bisect_of_a_part(vstate):
    """PATH leads to the part that is `value`; where there is no such part, `missing` is true."""
    text = vstate("bisect", "plan", "goal", "value == 'win'", "--good", "v1", "--bad", "what-if")
    assert text == vstate("bisect", "plan", "value.goal == 'win'", "--good", "v1", "--bad", "what-if")
    assert vstate("bisect", "plan", "steps[1]", "missing", "--good", "v1") == vstate(
        "bisect", "plan", "length(value.steps) < `2`", "--good", "v1"
    )


# safety


class Evil:
    """Loading it makes a directory."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.slow
def test_nothing_that_is_stored_is_run(store, run_without_unpickling, tmp_path):
    """The commands work on a hostile store in a process in which any unpickling ends the process."""
    mark = tmp_path / "mark"
    with Disk(store) as disk:
        repo = Repository(disk)
        for number in range(3):
            head = repo.branch("main")
            data = pickle.dumps([Evil(str(mark)), number])
            entry = encode([PICKLE, [data], len(data), "\x1b[31mlist"])
            root, objects, nodes = tree.update(repo.objects.node, head.root, {"evil\x1b[1m": entry})
            commit = repo.build_commit(root, (head,), message=f"\x1b[2Jplanted {number}")
            action = f"commit: \x1b[2J{number}"
            assert repo.publish("main", [commit], objects, nodes, expected=head.oid, action=action)
    key = "evil\x1b[1m"
    run_without_unpickling(
        [
            ["reflog"],
            ["blame", key],
            ["blame", key, "[1]"],
            ["blame", key, "--json"],
            ["bisect", key, "missing || value[1] < `1`", "--good", "v1"],
            ["bisect", key, "missing || value[0] != value[0]", "--good", "v1"],
            ["undo"],
            ["undo", "--redo"],
        ]
    )
    assert not mark.exists()
