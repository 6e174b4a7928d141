"""Commands that read: `log`, `show`, `diff`, `ls`, `grep`, `status`, `blame`, `bisect`."""

import json
import random
import re

import pytest
from click.testing import CliRunner
from vstate_cli.app import cli
from vstate_cli.commands import status
from vstate_cli.commands.log import Graph

from vstate import Disk, Versioned
from vstate.objects.ids import ObjectId
from vstate.sessions import Conversation

SESSIONS = {
    "log shows id, refs, message, time, info, events and changed keys": """
        log -> <id> (HEAD -> main) more / <time> / +notes/b / <id> tidy up / <time> · 1 event
            / ~messages -old ~text / <id> read / <time> · ok · 250 ms
            / +notes/a ~plan / <id> (tag: v1) start
            / <time> · model=small / +messages +old +plan +text
        log --oneline -> <id> (HEAD -> main) more +1 / <id> tidy up ~2 -1 / <id> read +1 ~1
            / <id> (tag: v1) start +4
        log --key plan -> <id> read / <time> · ok · 250 ms / ~ plan stores.Plan, <size> -> <size>
            / <id> (tag: v1) start / <time> · model=small / + plan stores.Plan, <size>
        log --key plam -> vstate: no commit up to HEAD changed the key 'plam'; did you mean: plan?
        log ? [*].[refs, events] -> [[["heads/main"], 0], [[], 1], [[], 0], [["tags/v1"], 0]]
        log ? [0] | keys(@)
            -> ["id", "parents", "tree", "time", "message", "info", "refs", "events", "changes"]
        log ? [1].[message, changes.modified, changes.removed, parents[0]]
            -> ["tidy up\\n\\nfor good", ["messages", "text"], ["old"], "<ID>"]
        log ? [2].info -> {"name": "read", "outcome": "ok", "seconds": 0.25}
        >>> commit(store, "many", **{f"many/{n:04}": n for n in range(1000)})
        log -1 -> <id> (HEAD -> main) many / <time> / +many/0000 ...+many/0007 … 992 more
        >>> state = Versioned(store); state["x"] = 1
        >>> state.commit("failed", outcome="error", seconds=300); state.close()
        log -1 -> <id> (HEAD -> main) failed / <time> · error · 300 s / +x
    """,
    "log -p and --stat show the changed keys": """
        log -p -1 HEAD~2 -> <id> read / <time> · ok · 250 ms / + notes/a dict, <size> / {'lines': 3}
            / ~ plan stores.Plan, <size> -> <size> / + steps[1]: 'think'
        log --stat -1 HEAD~1 -> <id> tidy up / <time> · 1 event / ~ messages list, <size> -> <size>
            / - old NoneType, <size> / ~ text str, <size> -> <size> / ~2 modified -1 removed
        log --stat -1 --key plan -> <id> read / <time> · ok · 250 ms / ~ plan stores.Plan, <size> -> <size>
            / +1 added ~1 modified
        log -1 -p HEAD~2 --key plan ? [0].diff[*].[key, details[*].path] -> [["plan", ["steps[1]"]]]
        log -1 --stat ? [0].diff[0].details -> null
        log --graph -p --oneline main..what-if -> * <id> (what-if) another goal ~1
            / ~ plan stores.Plan, <size> -> <size> / ~ goal: 'win' -> 'draw'
    """,
    "-2 means -n 2, but not where an option takes a value or behind --": """
        >>> commit(store, "a key -5", **{"-5": 1})
        log --oneline --key -5 -> <id> (HEAD -> main) a key -5 +1
        log --oneline -- -5 -> <id> (HEAD -> main) a key -5 +1
        log -n -1 -> [2] ...-1 is not in the range...
        reflog -1 -> main@{0} <id> <time> commit: a key -5
        undo -2 -> main is at <id> tidy up / undo 2 moves: commit: a key -5 / ...
    """,
    "show prints a commit with its parents, message, info, events and changes inside values": """
        show -> commit <ID> (HEAD -> main) / parent: <id> / time: <time> / more / + notes/b dict, <size>
            / {'lines': 5}
        show HEAD~1 -> commit <ID> / parent: <id> / time: <time> / tidy up / for good
            / <clock> note why='tidy' / ~ messages list, <size> -> <size> / + [1]: 'bye'
            / - old NoneType, <size> / None / ~ text str, <size> -> <size> / ~ text: / @@ -1,3 +1,3 @@ / one
            / -two / +2 / three
        show HEAD~2 -> commit ...info: name: read / outcome: ok / seconds: 0.25 / read / ...
        show HEAD~1 ? keys(@)
            -> ["id", "parents", "tree", "time", "message", "info", "refs", "events", "changes"]
        show HEAD~1 ? events[*].[kind, namespace, data] -> [["note", "", {"why": "tidy"}]]
        show HEAD~1 ? changes[:2].[key, kind, old.type, new.type]
            -> [["messages", "modified", "list", "list"], ["old", "removed", "NoneType", null]]
    """,
    "show prints a value or its part, at HEAD or a revision": """
        show v1 messages -> ['hello']
        show messages -> ['hello', 'bye']
        show HEAD~3:messages -> ['hello']
        show messages [1] -> 'bye'
        show v1 plan goal -> 'win'
        show v1:plan goal -> 'win'
        show text -> one / 2 / three
        show what-if plan -> stores.Plan(goal='draw', steps=['look', 'think'])
        show v1 plan ? value -> {"$type": "stores.Plan", "goal": "win", "steps": ["look"]}
        show v1 plan ? keys(@) -> ["commit", "key", "type", "size", "value"]
        show plan steps[1] ? [value, path] -> ["think", "steps[1]"]
    """,
    "diff shows the changes inside each key by path, or those in one key or part": """
        diff v1 main -> ~ messages list, <size> -> <size> / + [1]: 'bye' / + notes/a dict, <size>
            / {'lines': 3} / + notes/b dict, <size> / {'lines': 5} / - old NoneType, <size> / None
            / ~ plan stores.Plan, <size> -> <size> / + steps[1]: 'think' / ~ text str, <size> -> <size>
            / ~ text: / @@ -1,3 +1,3 @@ / one / -two / +2 / three
        diff v1 --key plan -> ~ plan stores.Plan, <size> -> <size> / + steps[1]: 'think'
        diff --key plan -> -
        diff main what-if plan goal -> ~ plan stores.Plan, <size> -> <size> / ~ goal: 'win' -> 'draw'
        diff v1 plan steps[1] -> ~ plan stores.Plan, <size> -> <size> / + steps[1]: 'think'
        diff v1 plan goal -> ~ plan stores.Plan, <size> -> <size> / (no change in goal)
        diff v1 --stat -> ~ messages list, <size> -> <size> / + notes/a dict, <size> / + notes/b dict, <size>
            / - old NoneType, <size> / ~ plan stores.Plan, <size> -> <size> / ~ text str, <size> -> <size>
            / +2 added ~3 modified -1 removed
        diff HEAD HEAD --stat -> no changes
        diff v1 HEAD ? keys(@) -> ["old", "new", "changes"]
        diff v1 HEAD ? changes[0].details -> [{"path": "[1]", "kind": "added", "new": "bye"}]
        diff v1 HEAD ? changes[?key=='old'].details -> [[{"path": "", "kind": "removed", "old": null}]]
        diff v1 HEAD plan steps ? changes[0].details[*].path -> ["steps[1]"]
        diff v1 --stat ? changes[0] | keys(@) -> ["key", "kind", "old", "new"]
        diff v1 v1 ? changes -> []
        checkout v1
        diff --stat -> + messages list, <size> / + old NoneType, <size> / + plan stores.Plan, <size>
            / + text str, <size> / +4 added
    """,
    "ls and status": """
        ls -> messages / notes/a / notes/b / plan / text
        ls notes/ -> notes/a / notes/b
        ls v1 -> messages / old / plan / text
        ls HEAD~1 notes/ -> notes/a
        ls HEAD nothing -> -
        ls ? [0] -> {"key": "messages", "type": "list", "size": 21}
        ls -la -> <size> list messages / <size> dict notes/a / <size> dict notes/b / <size> stores.Plan plan
            / <size> str text
        status -> store STORE <size> / branch main / head <id> more / <time> / commits 5 / branches 2 / tags 1
            / keys 5 / objects 16
        status ? [store, head.message, commits, at_least] -> ["STORE", "more", 5, []]
    """,
    "grep finds texts in keys and values, and counts the places": """
        grep WIN -> plan goal: win / 1 place in 5 keys
        grep notes/ ? places[*].[key, path] -> [["notes/a", null], ["notes/b", null]]
        grep win v1 mess -> 0 places in 1 key
    """,
    "blame has a line for each line, item, field or entry, with the commit that last changed it": """
        blame text -> <id> <time> start 1 one / <id> <time> tidy up 2 2 / <id> <time> start 3 three
        blame plan -> <id> <time> start goal 'win' / <id> <time> read steps ['look', 'think']
        blame plan steps -> <id> <time> start steps[0] 'look' / <id> <time> read steps[1] 'think'
        blame plan steps[1] -> <id> <time> read 1 think
        blame plan goal --rev what-if -> <id> <time> another goal 1 draw
        blame notes/a -> <id> <time> read lines 3
        blame old -> [1] vstate: no key 'old' at <id>: <id> removed it; ...: vstate blame <id>~1 old
        blame messages ? [1] -> {"path": "[1]", "line": null, "commit": "<ID>", "time": "<TIME>",...
        blame messages ? [*].[message, value] -> [["start", "hello"], ["tidy up\\n\\nfor good", "bye"]]
        blame text ? [1].[path, line, value] -> ["", 2, "2"]
        >>> commit(store, chat=[{"role": "user", "content": "hello"}])
        blame chat -> <id> <time> change [0] user: hello
    """,
    "bisect finds the commit at which a condition on a value or its part is no longer true": """
        bisect plan "length(value.steps) < `2`" --good v1 -> good <id> start (2 left) / bad <id> more (2 left)
            / bad <id> tidy up (1 left) / bad <id> read / The first bad commit is <ID> / read
            / <time> · ok · 250 ms / + notes/a dict, <size>
            / ~ plan stores.Plan, <size> -> <size> / + steps[1]: 'think' / +1 added ~1 modified
        bisect plan steps[1] missing --good v1 ? first_bad.message -> "read"
        bisect plan "value.goal == 'win'" --bad what-if --good v1 ? first_bad.message -> "another goal"
        bisect plan goal "value == 'win'" --bad what-if --good v1 ? first_bad.refs -> ["heads/what-if"]
        bisect notes/b missing --good v1 ? [changes, tested[*].good, keys(tested[0])]
            -> [{"added": ["notes/b"],..., [true, false,..., ["commit", "good", "left"]]
    """,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(rows, session):
    """Each session has the output that is written here."""
    rows(SESSIONS[session])


def test_columns_are_aligned(vstate):
    """The changes inside a key are indented below it, and the columns of a list stand below each other."""
    assert "\n    + [1]: 'bye'\n" in vstate("diff", "v1", "main")
    assert "\n      -two\n      +2\n" in vstate("diff", "v1", "main")
    assert {line.index("  ") for line in vstate("diff", "v1", "--stat").splitlines()[:4]} >= {9, 10}
    assert len({line.rindex(" ") for line in vstate("ls", "-l").splitlines()}) == 1


def test_status_stops_counting(vstate, monkeypatch):
    """After the timeout, the counts are lower bounds and are marked."""
    monkeypatch.setattr(status, "_CLOCK_READ_EVERY", 1)
    assert vstate.json("status", "--timeout", "0.0000001")["at_least"] == ["commits", "objects"]
    assert "commits   1 or more (--timeout 0 counts them all)" in vstate("status", "--timeout", "0.0000001")
    assert vstate.json("status", "--timeout", "0")["at_least"] == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("main..what-if", "another goal"),
        ("what-if -1", "another goal"),
        ("what-if..", "more"),
        ("main...what-if", "another goal, more"),
        ("main what-if ^v1", "another goal, more, tidy up, read"),
        ("v1..HEAD~1", "tidy up, read"),
        ("main..main", ""),
        ("--all -2", "another goal, more"),
        ("-n 2", "more, tidy up"),
        ("-n 0", ""),
        ("--grep ^(more|READ)$ -i", "more, read"),
        ("--grep good", "tidy up"),
        ("--grep ^outcome:ok$", "read"),
        ("--grep ^outcome=ok$", "read"),
        ("--info outcome=ok --info seconds=0.25", "read"),
        ("--info model", "start"),
        ("--info model=large", ""),
        ("--since 1h --until now -1", "more"),
        ("--since TIME --until TIME", "tidy up"),
        ("--until 2001-01-01", ""),
        ("--since 2999-01-01", ""),
        ("-- plan text", "tidy up, read, start"),
        ("v1.. --key plan --grep read", "read"),
        ("-S WIN", "start"),
        ("-S think", "read"),
        ("-S nowhere", ""),
        ("--author ed25519:00", ""),
    ],
)
def test_ranges_and_conditions(vstate, arguments, found):
    """Revisions choose commits as in git; message, info, time, key, text and author must all fit."""
    (named,) = vstate("log", "HEAD~1", "-1", "--json").splitlines()
    words = arguments.replace("TIME", json.loads(named)["time"]).split()
    listed = [json.loads(line)["message"] for line in vstate("log", "--json", *words).splitlines()]
    assert ", ".join(message.split("\n")[0] for message in listed) == found


@pytest.mark.parametrize(
    ("command", "same"),
    [
        ("diff", "diff HEAD~1 HEAD"),
        ("diff v1", "diff v1 HEAD"),
        ("diff v1..", "diff v1 HEAD"),
        ("diff v1..HEAD", "diff v1 HEAD"),
        ("diff main...what-if", "diff what-if~1 what-if"),
        ("diff main...v1", "diff v1 v1"),
        ("diff v1 HEAD --key plan --key text", "diff v1 HEAD plan text"),
        ("diff v1 -- plan text", "diff v1 HEAD plan text"),
        ("diff v1..HEAD plan text", "diff v1 HEAD plan text"),
        ("diff notes/b", "diff HEAD~1 HEAD"),
    ],
)
def test_two_commits_and_keys(vstate, command, same):
    """A is A to HEAD, A..B is A B, A...B is from the merge base; words behind the revisions are keys."""
    assert vstate(*command.split()) == vstate(*same.split())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("show plan HEAD", "show HEAD plan"),
        ("show plan goal v1", "show v1 plan goal"),
        ("blame plan goal v1", "blame v1 plan goal"),
        ("diff plan what-if main", "diff what-if plan main"),
        ("ls plan v1", "ls v1 plan"),
    ],
)
def test_words_out_of_order(vstate, typed, meant):
    """The error names the command with the revision in its place."""
    assert f"did you mean: vstate {meant}?" in vstate.run(*typed.split()).stderr
    assert vstate.run(*meant.split()).exit_code in (0, 1)


def test_the_keys_below_a_name(tmp_path, monkeypatch):
    """The messages of a Conversation are shown as one; other keys each in words. JSON has the values."""
    monkeypatch.chdir(tmp_path)
    with Versioned(Disk(".vstate")) as state:
        chat = Conversation(state, "chat")
        chat.extend([{"role": "user", "content": "Buy tea"}, {"role": "assistant", "content": "done"}])
        state["limits/a"], state["limits/b"] = 3, {"x": [1, 2]}
        state.commit("two")
    run = CliRunner().invoke
    shown = run(cli, ["show", "HEAD", "chat"]).stdout
    assert shown.splitlines() == ["2 messages", "[0] user       Buy tea", "[1] assistant  done"]
    assert run(cli, ["show", "chat/"]).stdout == shown
    assert run(cli, ["show", "limits"]).stdout.splitlines() == ["limits/a  3", "limits/b  {'x': [1, 2]}"]
    keys = json.loads(run(cli, ["show", "limits", "--json"]).stdout)["keys"]
    assert [(each["key"], each["value"]) for each in keys] == [("limits/a", 3), ("limits/b", {"x": [1, 2]})]
    assert run(cli, ["show", "HEAD", "none"]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "value.goal = 'win'"], "column 12 of the expression: invalid syntax at '='"),
        (["plan", "length(value.goals) > `3`"], "not null; value has goal, steps"),
        (["plan", "value.gaol == 'win'"], "give an older commit as good; value has goal, steps"),
        (["plan", "gaol", "value"], "no .gaol in"),
        (
            ["never", "length(value) > `3`"],
            ", where there is no key 'never': cannot evaluate the expression:",
        ),
        (["plan", "missing"], "give an older commit as good"),
        (["plan", "!missing"], "give a newer commit as bad"),
        (["plan", "value", "--good", "HEAD", "--bad", "v1"], "exchange the two"),
    ],
)
def test_bisect_that_cannot_be(vstate, arguments, message):
    """Errors in the expression, in its evaluation at a commit, and in the choice of commits."""
    assert message in vstate.run("bisect", "--good", "v1", *arguments).stderr


# The graph


def test_the_graph_of_a_merge(merged):
    """Both sides have a lane until they meet, beside every line, or lead to the next shown commit."""

    def drawn(*arguments):
        lines = merged("log", "--graph", *arguments).splitlines()
        return [re.sub(r" *[0-9a-f]{10}.*|    .*", "", line).rstrip() for line in lines]

    assert drawn("--oneline") == ["*", "|\\", "| *", "* |", "|/", "*"]
    merge, mine, theirs = ["*", "|\\", "| |", "| |"], ["| *", "| |", "| |", "| |"], ["* |", "|/", "|", "|"]
    assert drawn() == [*merge, *mine, *theirs, "*", "", ""]
    assert drawn("--oneline", "--key", "a") == ["*"]
    assert drawn("--oneline", "--grep", "^Merge|base|mine") == ["*", "|\\", "| *", "|/", "*"]
    assert drawn("--oneline", "HEAD~1..HEAD") == ["*", "*"]
    assert drawn("--oneline", "--first-parent") == ["*", "*", "*"]
    assert merged("log", "--oneline", "--first-parent", "--", "b").count("\n") == 1  # the merge brought it
    assert re.search(r"^merge:  [0-9a-f]{10} [0-9a-f]{10}$", merged("show"), re.MULTILINE)


def oid(text: str) -> ObjectId:
    return ObjectId(text.encode().ljust(32, b"\0"))


def draw(history: str) -> list[str]:
    """The picture of commits written as `child:parent,parent` in the order of a log."""
    graph, lines = Graph(), []
    for item in history.split():
        commit, _, parents = item.partition(":")
        head, *moves, _ = graph.add(oid(commit), [oid(parent) for parent in parents.split(",") if parent])
        lines += [f"{head} {commit}", *moves]
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("history", "picture"),
    [
        pytest.param("b:a a:", ["* b", "* a"], id="a line"),
        pytest.param("m:a,b b:o a:o o:", ["*   m", "|\\", "| * b", "* | a", "|/", "* o"], id="a merge"),
        pytest.param(
            "m:a,b,c c:o b:o a:o o:",
            ["*     m", "|\\", "|  \\", "|\\  |", "| | * c", "| * | b", "| |/", "* | a", "|/", "* o"],
            id="three parents",
        ),
        pytest.param(
            "m:a,b b:c,a a:c c:",
            ["*   m", "|\\", "| * b", "|/|", "* | a", "|/", "* c"],
            id="a parent in the lane to the left",
        ),
        pytest.param(
            "m:n,x x:y n:z,y y:z z:",
            ["*   m", "|\\", "| * x", "* | n", "|\\|", "| * y", "|/", "* z"],
            id="a parent in the lane to the right",
        ),
        pytest.param(
            "m:a,b b: a:p,q q: p:",
            ["*   m", "|\\", "| * b", "*   a", "|\\", "| * q", "* p"],
            id="several roots",
        ),
        pytest.param(
            "m:a,b b:o a: o:", ["*   m", "|\\", "| * b", "* | a", "  * o"], id="the first lane ends first"
        ),
    ],
)
def test_pictures(history, picture):
    """Each shape of history has its picture."""
    assert draw(history) == picture


def test_any_history_can_be_drawn():
    """Random histories with many merges have one star for each commit, and end without lanes."""
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randrange(1, 30)
        graph = Graph()
        for number in range(count):
            older = range(number + 1, min(count, number + 6))
            parents = rng.sample(older, k=min(len(older), rng.choice([1, 1, 1, 2, 3])))
            rows = graph.add(oid(str(number)), [oid(str(parent)) for parent in parents])
            assert [row.count("*") for row in rows] == [1] + [0] * (len(rows) - 1)
            assert len({*map(len, rows)}) == 1
        assert graph.between == ""
