"""`vstate log`."""

import json
import re

import pytest
from stores import commit

from vstate import Disk, Versioned


def test_a_commit_is_shown_with_id_refs_message_time_info_and_changes(vstate):
    """The three lines of a commit show everything that the reference promises."""
    blocks = vstate("log").rstrip("\n").split("\n\n")
    assert len(blocks) == 4
    first, second, third, last = (block.split("\n") for block in blocks)
    assert re.fullmatch(r"[0-9a-f]{10} \(HEAD -> main\) more", first[0])
    assert re.fullmatch(r"    \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", first[1])
    assert first[2] == "    +notes/b"
    assert second[0].endswith(" tidy up")
    assert second[1].endswith(" · 1 event")
    assert second[2] == "    ~messages -old ~text"
    assert third[1].endswith(" · ok · 250 ms")
    assert third[2] == "    +notes/a ~plan"
    assert last[0].endswith(" (tag: v1) start")
    assert last[1].endswith(" · model=small")


def test_oneline_counts_the_changes(vstate):
    """The line of a commit ends with the number of changed keys."""
    lines = vstate("log", "--oneline").splitlines()
    assert [re.sub(r"^[0-9a-f]{10} ", "", line) for line in lines] == [
        "(HEAD -> main) more  +1",
        "tidy up  ~2 -1",
        "read  +1 ~1",
        "(tag: v1) start  +4",
    ]


def test_key(vstate):
    """--key shows only commits that changed the key, with the change; for an unknown key, a remark."""
    blocks = vstate("log", "--key", "plan").split("\n\n")
    assert [block.splitlines()[0].split()[-1] for block in blocks] == ["read", "start"]
    assert re.search(r"^    ~ plan  \S*Plan, ", blocks[0], re.MULTILINE)
    result = vstate.run("log", "--key", "plam")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "vstate: no commit up to HEAD changed the key 'plam'; did you mean: plan?\n"


def test_json_lines(vstate):
    """--json prints one object for each commit, with the documented members."""
    commits = [json.loads(line) for line in vstate("log", "--json").splitlines()]
    assert [commit["message"] for commit in commits] == ["more", "tidy up\n\nfor good", "read", "start"]
    for each in commits:
        assert {"id", "tree", "info", "refs", "events", "changes", "parents", "time", "message"} == {*each}
        assert len(each["id"]) == 64
        assert each["time"].endswith("+00:00")
    assert commits[0]["parents"] == [commits[1]["id"]]
    assert commits[0]["refs"] == ["heads/main"]
    assert commits[1]["events"] == 1
    assert commits[1]["changes"] == {"added": [], "modified": ["messages", "text"], "removed": ["old"]}
    assert commits[2]["info"] == {"name": "read", "outcome": "ok", "seconds": 0.25}
    assert commits[3]["refs"] == ["tags/v1"]


def test_graph_of_a_merge(merged):
    """Both sides have a lane until they meet, beside every line of a commit; with --key there are none."""
    lines = merged("log", "--graph", "--oneline").splitlines()
    shape = [re.sub(r"[0-9a-f]{10} (\(.*?\) )?", "", line) for line in lines]
    assert shape[0].startswith("*   Merge ")
    assert shape[1:] == ["|\\", "| * mine  +1", "* | theirs  +1", "|/", "* base  +1"]
    lines = merged("log", "--graph").splitlines()
    lanes = [re.match(r"[*|\\/ ]*", line[:3]).group().rstrip() for line in lines]
    merge, mine = ["*", "|\\", "| |", "| |"], ["| *", "| |", "| |", "| |"]
    theirs, base = ["* |", "| |", "| |", "|/"], ["*", "", ""]
    assert lanes == merge + mine + theirs + base
    lines = merged("log", "--graph", "--oneline", "--key", "a").splitlines()
    assert {line[:2] for line in lines} == {"* "}


def test_many_keys_are_bounded(vstate, store):
    """A commit of a thousand keys takes one line, and counts the others; a failed task is named."""
    with Versioned(Disk(store)) as state:
        for number in range(1000):
            state[f"many/{number:04}"] = number
        state.commit("many", outcome="error", seconds=3)
    lines = vstate("log", "-n", "1").splitlines()
    assert lines[-1].endswith("+many/0007 … 992 more")
    assert lines[1].endswith("· error · 3.0 s")


def documents(vstate, *arguments):
    """The documents that the log prints."""
    return [json.loads(line) for line in vstate("log", "--json", *arguments).splitlines()]


def subjects(vstate, *arguments):
    """The subjects of the commits that the log shows."""
    return [document["message"].split("\n")[0] for document in documents(vstate, *arguments)]


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
    assert ", ".join(subjects(vstate, *arguments.split())) == found


def test_a_time_is_within(vstate):
    """--since and --until include the second that they name."""
    time = documents(vstate, "HEAD~1", "-1")[0]["time"]
    assert subjects(vstate, "--since", time, "--until", time) == ["tidy up"]
    assert subjects(vstate, "--since", "1 hour ago", "-1") == ["more"]


def test_first_parent(merged):
    """--first-parent leaves out the commits that a merge brought."""
    every, first = subjects(merged), subjects(merged, "--first-parent")
    assert len(every) == len(first) + 1
    assert first[-1] == "base"
    assert subjects(merged, "--first-parent", "--", "b") == first[:1]  # the merge brought it
    assert not any(
        "|" in line for line in merged("log", "--graph", "--oneline", "--first-parent").splitlines()
    )


def test_the_graph_leads_to_the_next_shown_commit(merged):
    """With conditions, the lanes lead over the commits that are left out."""

    def drawn(*arguments):
        lines = merged("log", "--graph", "--oneline", *arguments).splitlines()
        return [re.sub(r"[0-9a-f]{10}.*", "", line).rstrip() for line in lines]

    assert drawn("--grep", "^Merge|base|mine") == ["*", "|\\", "| *", "|/", "*"]
    assert drawn("HEAD~1..HEAD") == ["*", "*"]


def test_changes_inside_values(vstate):
    """-p shows the changes as `diff` does, and --stat the keys with types and sizes; both as JSON too."""
    assert "steps[1]: 'think'" in vstate("log", "-p", "-1", "HEAD~2")
    text = vstate("log", "--stat", "-1", "HEAD~1")
    assert re.search(r"~ messages +list, ", text)
    assert "'bye'" not in text
    (document,) = documents(vstate, "-1", "-p", "HEAD~2", "--key", "plan")
    assert [change["key"] for change in document["diff"]] == ["plan"]
    assert "steps[1]" in document["diff"][0]["details"][0]["path"]
    assert "details" not in documents(vstate, "-1", "--stat")[0]["diff"][0]
    assert "another goal" in vstate("log", "--graph", "-p", "--oneline", "main..what-if")


def test_a_number_behind_an_option_is_its_value(vstate, store):
    """`-2` means `-n 2` in every command that has -n, but not where an option takes a value or after `--`."""
    commit(store, "a key -5", **{"-5": 1})
    assert subjects(vstate, "--key", "-5") == subjects(vstate, "--", "-5") == ["a key -5"]
    assert "-1 is not in the range" in vstate.run("log", "-n", "-1").stderr
    assert len(vstate("reflog", "-1").splitlines()) == 1
    vstate("undo", "-2")


def test_texts_in_keys_and_values(vstate):
    """`grep` prints the key, the path and the text, and counts on standard error; with JSON all of it."""
    found = vstate.run("grep", "win")
    assert "plan .goal: win\n" in found.stdout or "plan goal: win\n" in found.stdout
    assert found.stderr.startswith("1 place in ")
    document = vstate.json("grep", "notes/")
    assert {place["key"] for place in document["places"]} == {"notes/a", "notes/b"}
    assert document["places"][0]["path"] is None
    assert vstate.json("grep", "win", "v1", "mess")["places"] == []
