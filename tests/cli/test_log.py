"""`vstate log`."""

import json
import re

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


def test_limit(vstate):
    """-n shows the newest commits only; -n 0 shows none."""
    assert len(vstate("log", "--oneline", "-n", "2").splitlines()) == 2
    assert vstate("log", "-n", "0") == ""


def test_revision(vstate):
    """The log begins at the revision."""
    assert "another goal" in vstate("log", "what-if", "--oneline", "-n", "1")


def test_key(vstate):
    """--key shows only commits that changed the key, with the change."""
    blocks = vstate("log", "--key", "plan").split("\n\n")
    assert [block.splitlines()[0].split()[-1] for block in blocks] == ["read", "start"]
    assert re.search(
        r"^    ~ plan  tests\.cli\.conftest\.Plan|^    ~ plan  \S*Plan, ", blocks[0], re.MULTILINE
    )


def test_key_that_never_was(vstate):
    """A key that no commit changed is a remark on standard error."""
    result = vstate.run("log", "--key", "plam")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "vstate: no commit up to HEAD changed the key 'plam'; did you mean: plan?\n"


def test_json_lines(vstate):
    """--json prints one object for each commit, with the documented members."""
    commits = [json.loads(line) for line in vstate("log", "--json").splitlines()]
    assert [commit["message"] for commit in commits] == ["more", "tidy up\n\nfor good", "read", "start"]
    for commit in commits:
        assert set(commit) == {
            "id",
            "parents",
            "tree",
            "time",
            "message",
            "info",
            "refs",
            "events",
            "changes",
        }
        assert len(commit["id"]) == 64
        assert commit["time"].endswith("+00:00")
    assert commits[0]["parents"] == [commits[1]["id"]]
    assert commits[0]["refs"] == ["heads/main"]
    assert commits[1]["events"] == 1
    assert commits[1]["changes"] == {"added": [], "modified": ["messages", "text"], "removed": ["old"]}
    assert commits[2]["info"] == {"name": "read", "outcome": "ok", "seconds": 0.25}
    assert commits[3]["refs"] == ["tags/v1"]


def test_graph_of_a_merge(merged):
    """Both sides of a merge have a lane, until they meet again."""
    lines = merged("log", "--graph", "--oneline").splitlines()
    shape = [re.sub(r"[0-9a-f]{10} (\(.*?\) )?", "", line) for line in lines]
    merge = shape[0].removeprefix("*   ")
    assert merge.startswith("Merge ")
    assert shape[1:] == ["|\\", "| * mine  +1", "* | theirs  +1", "|/", "* base  +1"]


def test_graph_beside_whole_commits(merged):
    """Lanes continue beside every line of a commit and between commits."""
    lines = merged("log", "--graph").splitlines()
    lanes = [re.match(r"[*|\\/ ]*", line[:3]).group().rstrip() for line in lines]
    merge, mine = ["*", "|\\", "| |", "| |"], ["| *", "| |", "| |", "| |"]
    theirs, base = ["* |", "| |", "| |", "|/"], ["*", "", ""]
    assert lanes == merge + mine + theirs + base


def test_graph_with_key(vstate):
    """With --key, commits have no lanes, because the commits in between are left out."""
    lines = vstate("log", "--graph", "--oneline", "--key", "plan").splitlines()
    assert [line[:2] for line in lines] == ["* ", "* "]


def test_an_error_outcome_is_named(vstate, store):
    """A task that failed shows in the log."""
    with Versioned(Disk(store)) as state:
        state["x"] = 1
        state.commit("call", outcome="error", seconds=3)
    assert "· error · 3.0 s" in vstate("log", "-n", "1")


def test_many_keys_are_bounded(vstate, store):
    """A commit of a thousand keys takes one line, with the number of keys left out."""
    with Versioned(Disk(store)) as state:
        for number in range(1000):
            state[f"many/{number:04}"] = number
        state.commit("many")
    assert vstate("log", "-n", "1").splitlines()[-1].endswith("+many/0007 … 992 more")


def documents(vstate, *arguments):
    """The documents that the log prints."""
    return [json.loads(line) for line in vstate("log", "--json", *arguments).splitlines()]


def subjects(vstate, *arguments):
    """The subjects of the commits that the log shows."""
    return [document["message"].split("\n")[0] for document in documents(vstate, *arguments)]


def test_ranges(vstate):
    """A..B, A...B, ^A and several revisions choose commits as in git."""
    assert subjects(vstate, "main..what-if") == ["another goal"]
    assert subjects(vstate, "what-if..") == ["more"]
    assert subjects(vstate, "main...what-if") == ["another goal", "more"]
    assert subjects(vstate, "main", "what-if", "^v1") == ["another goal", "more", "tidy up", "read"]
    assert subjects(vstate, "v1..HEAD~1") == ["tidy up", "read"]
    assert subjects(vstate, "main..main") == []
    assert subjects(vstate, "--all", "-2") == ["another goal", "more"]


def test_conditions(vstate):
    """Commits are chosen by message, info, time and key, all together."""
    assert subjects(vstate, "--grep", "^(more|READ)$", "-i") == ["more", "read"]
    assert subjects(vstate, "--grep", "good") == ["tidy up"]
    assert subjects(vstate, "--grep", "^outcome:ok$") == ["read"]
    assert subjects(vstate, "--grep", "^outcome=ok$") == ["read"]
    assert subjects(vstate, "--info", "outcome=ok", "--info", "seconds=0.25") == ["read"]
    assert subjects(vstate, "--info", "model") == ["start"]
    assert subjects(vstate, "--info", "model=large") == []
    assert subjects(vstate, "--since", "1 hour ago", "--until", "now", "-1") == ["more"]
    assert subjects(vstate, "--until", "2001-01-01") == subjects(vstate, "--since", "2999-01-01") == []
    assert subjects(vstate, "--", "plan", "text") == ["tidy up", "read", "start"]
    assert subjects(vstate, "v1..", "--key", "plan", "--grep", "read") == ["read"]
    time = documents(vstate, "HEAD~1", "-1")[0]["time"]
    assert subjects(vstate, "--since", time, "--until", time) == ["tidy up"]


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


def test_words_that_name_no_commit(vstate):
    """A bad revision, time or pattern is an error that names it; a key that stands alone gets a hint."""
    assert vstate.fails("log", "nope").startswith("no revision 'nope'")
    assert vstate.fails("log", "yesterday") == (
        "no revision 'yesterday'; for a branch at that time, write main@{yesterday}"
    )
    assert vstate.fails("log", "main..nope").startswith("no revision 'nope'")
    assert "vstate log -- plan" in vstate.fails("log", "plan")
    assert "'soon'" in vstate.fails("log", "--since", "soon")
    assert vstate.run("log", "--grep", "(").exit_code == 2


def test_a_number_behind_an_option_is_its_value(vstate, store):
    """`-2` means `-n 2`, but not where an option takes a value."""
    with Versioned(Disk(store)) as state:
        state["-5"] = 1
        state.commit("a key -5")
    assert "a key -5" in vstate("log", "--key", "-5")
    assert "-1 is not in the range" in vstate.run("log", "-n", "-1").stderr


def test_commits_that_brought_a_text_or_took_it_out(vstate):
    """`-S` finds them by the values and keys that they changed, in upper or lower case."""
    [found] = vstate("log", "-S", "WIN", "--json").splitlines()
    assert json.loads(found)["message"] == "start"
    brought = vstate("log", "-S", "think", "--oneline")
    assert len(brought.splitlines()) == 1
    assert "read" in brought
    assert vstate("log", "-S", "nowhere to be found") == ""


def test_commits_of_an_author(vstate):
    """`--author` takes the beginning of a key. No commit here is signed."""
    assert vstate("log", "--author", "ed25519:00") == ""


def test_texts_in_keys_and_values(vstate):
    """`grep` prints the key, the path and the text, and counts on standard error; with JSON all of it."""
    found = vstate.run("grep", "win")
    assert "plan .goal: win\n" in found.stdout or "plan goal: win\n" in found.stdout
    assert found.stderr.startswith("1 place in ")
    document = vstate.json("grep", "notes/")
    assert {place["key"] for place in document["places"]} == {"notes/a", "notes/b"}
    assert document["places"][0]["path"] is None
    assert vstate.json("grep", "win", "v1", "mess")["places"] == []
