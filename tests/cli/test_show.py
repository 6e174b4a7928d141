"""`vstate show`."""

import json
import re

import pytest
from click.testing import CliRunner
from stores import commit
from vstate_cli.app import cli

from vstate import Disk, Versioned
from vstate.sessions import Conversation


def test_head_without_arguments(vstate):
    """show prints the newest commit with id, refs, parent, time, message and changes."""
    text = vstate("show")
    assert re.match(r"commit [0-9a-f]{64} \(HEAD -> main\)\nparent: [0-9a-f]{10}\ntime:   \d{4}-", text)
    assert "\n\n    more\n\n" in text
    assert "  + notes/b  dict, " in text
    assert "      {'lines': 5}" in text


def test_a_commit_shows_info_events_and_what_changed_inside(vstate):
    """show prints the body of the message, events with data, and changes by path."""
    text = vstate("show", "HEAD~1")
    assert "    tidy up\n    \n    for good\n" in text or "    tidy up\n\n    for good\n" in text
    assert re.search(r"  \d\d:\d\d:\d\d\.\d{3}  note  why='tidy'\n", text)
    assert "+ [1]: 'bye'" in text
    assert "- old       NoneType, " in text
    assert "      -two\n        +2\n" in text
    assert "info:   name: read\n        outcome: ok\n        seconds: 0.25\n" in vstate("show", "HEAD~2")


def test_a_merge_names_both_parents(merged):
    """A merge lists both parents."""
    assert re.search(r"^merge:  [0-9a-f]{10} [0-9a-f]{10}$", merged("show"), re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("show v1 messages", "['hello']\n"),
        ("show messages", "['hello', 'bye']\n"),
        ("show HEAD~3:messages", "['hello']\n"),
        ("show messages [1]", "'bye'\n"),
        ("show v1 plan goal", "'win'\n"),
        ("show v1:plan goal", "'win'\n"),
        ("show text", "one\n2\nthree\n"),
    ],
)
def test_a_value(vstate, command, printed):
    """KEY is at HEAD, and REV KEY and REV:KEY at REV; PATH is a part; a long text is printed as it is."""
    assert vstate(*command.split()) == printed


def test_json_of_a_commit(vstate):
    """The document has the commit, its events, and the types and sizes of changed values."""
    commit = vstate.json("show", "HEAD~1")
    assert set(commit) == {"id", "parents", "tree", "time", "message", "info", "refs", "events", "changes"}
    (event,) = commit["events"]
    assert (event["kind"], event["namespace"], event["data"]) == ("note", "", {"why": "tidy"})
    changes = {change["key"]: change for change in commit["changes"]}
    assert changes["old"]["new"] is None
    assert changes["messages"]["kind"] == "modified"
    assert changes["messages"]["old"]["type"] == "list"
    assert changes["messages"]["new"]["size"] > changes["messages"]["old"]["size"]


def test_json_of_a_value(vstate):
    """The document has the value or the part as plain data, and the class of a record under $type."""
    document = vstate.json("show", "v1", "plan")
    assert document["value"].pop("$type").endswith("Plan")
    assert document["value"] == {"goal": "win", "steps": ["look"]}
    assert set(document) == {"commit", "key", "type", "size", "value"}
    document = vstate.json("show", "plan", "steps[1]")
    assert (document["value"], document["path"]) == ("think", "steps[1]")
    record = r"\S*Plan\(goal='draw', steps=\['look', 'think'\]\)\n"
    assert re.fullmatch(record, vstate("show", "what-if", "plan"))


def test_long_lists_of_short_items_are_read_across(vstate, store):
    """A hundred numbers take a few lines; each entry of a dict has its own line."""
    commit(store, numbers=list(range(100)), names={f"name {number}": "x" * 20 for number in range(9)})
    lines = vstate("show", "numbers").splitlines()
    assert lines[1].startswith("  0, 1, 2, 3, ")
    assert 4 < len(lines) < 9
    assert max(map(len, lines)) <= 100
    assert len(vstate("show", "names").splitlines()) == 11


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
