"""`vstate reflog`, `undo`, `blame` and `bisect`, and revisions by the reflog on the command line."""

import re

import pytest
from stores import commit, contents

from vstate import Disk, Versioned


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
    moves = vstate.json("reflog")
    assert [move["name"] for move in moves] == [f"main@{{{number}}}" for number in range(4)]
    assert moves[0]["old"] == moves[1]["new"]
    assert (moves[3]["old"], moves[3]["action"]) == (None, "commit: start")
    assert set(moves[0]) == {"name", "old", "new", "time", "action"}


def test_reflog_of_a_branch_that_is_gone_and_of_a_detached_head(vstate, store):
    """The reflog can restore a deleted branch; without a branch, it shows HEAD; without moves, a remark."""
    vstate("branch", "-d", "what-if")
    assert vstate("reflog", "what-if").startswith("what-if@{0}  (deleted)   ")
    assert vstate("branch", "what-if", "what-if@{1}").rstrip().endswith("another goal")
    vstate("checkout", "v1")
    assert vstate("reflog").startswith("HEAD@{0}  ")
    assert "checkout: to " in vstate("reflog", "HEAD")
    with Disk(store) as disk:
        disk.delete_many(list(disk.keys("reflog/")))
    result = vstate.run("reflog", "main")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "vstate: no move of main is on record\n"


# revisions by the reflog


def test_revisions_by_the_reflog(vstate):
    """Every command takes them, also with spaces and colons in the braces."""
    assert "tidy up" in vstate("log", "main@{1}", "-n", "1")
    assert vstate("show", "main@{3}", "messages") == "['hello']\n"
    assert vstate("show", "main@{3}:messages") == "['hello']\n"
    assert vstate("show", "@{2099-01-01 10:00:00}:messages") == "['hello', 'bye']\n"
    assert "notes/b" in vstate("diff", "@{1}..@{0}", "--stat")
    assert vstate("checkout", "main@{1}").startswith("HEAD is detached at ")


def test_a_key_that_looks_like_a_revision(vstate, store):
    """show prints a key whose name looks like a revision."""
    commit(store, **{"HEAD~99": "tilde", "a@{b": "brace", "a@{b}:c": "both"})
    assert vstate("show", "HEAD~99") == "'tilde'\n"
    assert vstate("show", "a@{b") == "'brace'\n"
    assert vstate("show", "a@{b}:c") == "'both'\n"
    assert vstate("show", "HEAD:a@{b}:c") == "'both'\n"


# undo


def test_undo_and_redo(vstate, store):
    """undo goes back by one move or by -n, and redo forward; a program sees the change."""
    text = vstate("undo")
    assert re.match(
        r"main is at [0-9a-f]{10} tidy up\nundo: commit: more\nTo take that back: vstate redo\n", text
    )
    assert "notes/b" not in contents(store)
    assert "undo: commit: tidy up" in vstate("undo")
    assert re.match(r"main is at [0-9a-f]{10} tidy up\nredo: commit: tidy up\n$", vstate("undo", "--redo"))
    assert vstate.json("undo", "--redo")["action"] == "redo: commit: more"
    assert vstate.fails("undo", "--redo").startswith("nothing to redo on branch 'main'")
    document = vstate.json("undo", "-n", "3")
    assert (document["branch"], document["action"]) == ("main", "undo 3 moves: commit: more")
    assert document["commit"] == vstate.json("show", "v1")["id"]
    message = vstate.fails("undo")
    assert message.startswith("branch 'main' began with 'commit: start'")
    assert message.endswith("vstate branch -d main")


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
    """blame names lines by number, and fields and entries by path. A path selects one part, however deep."""
    lines = [re.sub(r"^\S+  \S+ \S+ \S+  ", "", line) for line in vstate("blame", "text").splitlines()]
    assert lines == ["start    1  one", "tidy up  2  2", "start    3  three"]
    plan = vstate("blame", "plan").splitlines()
    assert re.search(r"  start  goal   'win'$", plan[0])
    assert re.search(r"  read   steps  \['look', 'think'\]$", plan[1])
    first, second = vstate("blame", "plan", "steps").splitlines()
    assert re.search(r"  start  steps\[0\]  'look'$", first)
    assert re.search(r"  read   steps\[1\]  'think'$", second)
    assert vstate("blame", "notes/a").rstrip().endswith("  read  lines  3")
    assert re.search(r"  read  1  think\n$", vstate("blame", "plan", "steps[1]"))
    assert "another goal" in vstate("blame", "plan", "goal", "--rev", "what-if")
    removed = r"no key 'old' at [0-9a-f]{10}: ([0-9a-f]{10}) removed it; .*vstate blame \1~1 old$"
    assert re.match(removed, vstate.fails("blame", "old"))


def test_blame_json(vstate):
    """The document lists the parts with the id of the commit and the number of the line."""
    first, second = vstate.json("blame", "messages")
    assert set(first) == {"path", "line", "commit", "time", "message", "value"}
    assert (first["path"], first["message"], first["value"]) == ("[0]", "start", "hello")
    assert (second["path"], second["message"], second["line"]) == ("[1]", "tidy up\n\nfor good", None)
    assert vstate.json("blame", "text")[1]["line"] == 2
    assert vstate.json("blame", "plan", "goal")[0]["commit"] == vstate.json("show", "v1")["id"]


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


def test_bisect_json(vstate, chat):
    """The document has the first bad commit, every test, and the changed keys."""
    document = vstate.json("bisect", "chat", "missing || length(value) < `8`", "--good", "v1")
    assert document["first_bad"]["message"] == "turn 7"
    assert document["changes"] == {"added": [], "modified": ["chat"], "removed": []}
    assert [test["good"] for test in document["tested"][:2]] == [True, False]
    assert set(document["tested"][0]) == {"commit", "good", "left"}


@pytest.mark.parametrize(
    ("arguments", "commit"),
    [
        (["length(value.steps) < `2`"], "\n    read\n"),
        (["steps[1]", "missing"], "\n    read\n"),
        (["value.goal == 'win'", "--bad", "what-if"], " (what-if)\n    another goal\n"),
        (["goal", "value == 'win'", "--bad", "what-if"], " (what-if)\n    another goal\n"),
    ],
)
def test_bisect_over_an_object(vstate, arguments, commit):
    """A condition tests its fields, or the part at a path; where there is no such part, `missing` is true."""
    text = vstate("bisect", "plan", *arguments, "--good", "v1")
    assert re.search(r"The first bad commit is [0-9a-f]{64}" + re.escape(commit), text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "value.goal = 'win'"], "column 12 of the expression: invalid syntax at '='"),
        (["plan", "length(value.goals) > `3`"], "not null; value has goal, steps"),
        (["plan", "value.gaol == 'win'"], "give an older commit as good; value has goal, steps"),
        (["plan", "gaol", "value"], "no .gaol in"),
        (
            ["never", "length(value) > `3`"],
            ", where there is no key 'never': cannot evaluate the expression: ",
        ),
        (["plan", "missing"], "give an older commit as good"),
        (["plan", "!missing"], "give a newer commit as bad"),
        (["plan", "value", "--good", "HEAD", "--bad", "v1"], "exchange the two"),
    ],
)
def test_bisect_that_cannot_be(vstate, arguments, message):
    """Errors in the expression, in its evaluation at a commit, and in the choice of commits."""
    assert message in vstate.run("bisect", "--good", "v1", *arguments).stderr
