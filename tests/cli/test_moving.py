"""`vstate checkout`, `switch`, `branch`, `tag`, `rollback`, `reset` and `redo`: they move refs."""

import re

from stores import contents

from vstate import Disk, Versioned
from vstate.repo import Repository


def test_checkout_of_a_branch_is_followed_by_programs(vstate, store):
    """A program that names no branch opens the branch that was checked out; -b makes one at a revision."""
    assert re.match(
        r"Switched to branch what-if at [0-9a-f]{10} another goal\n", vstate("checkout", "what-if")
    )
    with Versioned(Disk(store)) as state:
        assert state.branch == "what-if"
    assert vstate("checkout", "what-if").startswith("Already on what-if at ")
    assert vstate.json("checkout", "main")["branch"] == "main"
    assert vstate("checkout", "-b", "new").startswith("Switched to the new branch new at ")
    assert vstate("checkout", "v1", "-b", "newer").rstrip().endswith(" start")
    assert "* newer" in vstate("branch")


def test_checkout_of_a_commit_detaches(vstate):
    """The output says how to make a branch, and no command finds one that HEAD is on."""
    text = vstate("checkout", "v1")
    assert re.match(r"HEAD is detached at [0-9a-f]{10} start\n", text)
    assert "vstate checkout -b NAME" in text
    document = vstate.json("checkout", "v1")
    assert (document["branch"], len(document["commit"])) == (None, 64)
    assert "(HEAD, tag: v1)" in vstate("log", "-n", "1")
    assert vstate("branch").startswith("* (HEAD detached at ")
    assert vstate("branch", "--show-current") == ""
    assert vstate.json("branch", "--show-current") is None
    assert "none: HEAD is detached" in vstate("status")
    assert vstate.fails("undo").startswith("HEAD is detached at ")
    assert vstate.fails("watch", "-n", "1").endswith("name one with --branch BRANCH")
    assert vstate("watch", "-n", "1", "--branch", "main", "--since", "main~1").endswith("dict, 16 B\n")
    message = vstate.fails("rollback", "HEAD")
    assert message.startswith("HEAD is detached at ")
    vstate(*re.search(r"`vstate (checkout \w+ -b NAME)`", message)[1].split())
    vstate("rollback", "HEAD")


def test_branches_are_listed_made_renamed_and_deleted(vstate):
    """`branch` lists, creates, renames and deletes, and marks HEAD's branch."""
    lines = vstate("branch").splitlines()
    assert re.fullmatch(r"\* main     [0-9a-f]{10} more", lines[0])
    assert re.fullmatch(r"  what-if  [0-9a-f]{10} another goal", lines[1])
    assert vstate("branch", "--show-current") == "main\n"
    listed = vstate.json("branch")
    assert [(branch["name"], branch["head"]) for branch in listed] == [("main", True), ("what-if", False)]
    assert set(vstate.json("branch", "first")) == {"name", "commit", "head"}
    assert re.fullmatch(r"Created branch new at [0-9a-f]{10} start\n", vstate("branch", "new", "v1"))
    assert vstate("branch", "-m", "new", "newer").startswith("Renamed branch new to newer, at ")
    assert vstate("branch", "-m", "trunk").startswith("Renamed branch main to trunk, at ")
    assert vstate("branch", "-d", "newer").startswith("Deleted branch newer, which was at ")
    assert vstate("branch", "-D", "first").startswith("Deleted branch first")
    assert [branch["name"] for branch in vstate.json("branch")] == ["trunk", "what-if"]
    assert vstate("branch").startswith("* trunk ")
    assert vstate("branch", "-d", "what-if", "--forget").startswith("Forgot branch what-if, which was at ")
    for form in ([], ["--json"]):
        assert "no branch 'what-if'" in vstate.fails("reflog", "what-if", *form)


def test_a_page_of_branches(vstate, store):
    """--prefix, --label, --after, --reverse and -n choose branches, in text and in JSON."""
    for name in ("chat/1", "chat/2", "chat/3"):
        vstate("branch", name)
    names = [line.split()[0] for line in vstate("branch", "--prefix", "chat/", "-n2").splitlines()]
    assert names == ["chat/1", "chat/2"]
    page = vstate.json("branch", "--prefix", "chat/", "--reverse", "--after", "chat/3")
    assert [branch["name"] for branch in page] == ["chat/2", "chat/1"]
    assert page[0]["commit"] == vstate.json("branch")[0]["commit"]
    vstate("checkout", "HEAD~1")
    assert vstate("branch", "--prefix", "none") == ""
    with Disk(store) as disk:
        Repository(disk).commit("chat/2", labels={"user": "ann", "turns": [1, 2]})
    found = vstate.json("branch", "--label", "user=ann", "--label", "turns=2")
    assert [branch["name"] for branch in found] == ["chat/2"]
    assert vstate("branch", "--label", 'turns="2"') == ""


def test_tags_are_listed_made_renamed_and_deleted(vstate):
    """`tag` lists, creates, renames and deletes."""
    assert re.fullmatch(r"v1  [0-9a-f]{10} start\n", vstate("tag"))
    assert vstate("tag", "v2").startswith("Created tag v2 at ")
    assert vstate("tag", "-m", "v2", "v3").startswith("Renamed tag v2 to v3, at ")
    assert [tag["name"] for tag in vstate.json("tag")] == ["v1", "v3"]
    assert vstate("tag", "-d", "v3").startswith("Deleted tag v3, which was at ")
    assert vstate.json("tag", "-d", "v1")["name"] == "v1"
    assert vstate("tag") == ""


def test_rollback_is_a_new_commit(vstate, store):
    """Rollback commits the old state on top of the later commits."""
    text = vstate("rollback", "v1", "-m", "back")
    assert re.match(r"main is at [0-9a-f]{10} back\n", text)
    assert re.search(r"^The keys are as they were at [0-9a-f]{10}: \+1 ~3 -2$", text, re.MULTILINE)
    assert len(vstate("log", "--oneline").splitlines()) == 5
    state = contents(store)
    assert state["messages"] == ["hello"]
    assert "notes/b" not in state
    document = vstate.json("rollback", "HEAD~1")
    assert document["changes"]["added"] == ["notes/a", "notes/b"]
    assert document["refs"] == ["heads/main"]


def test_each_rollback_without_a_revision_goes_further_back(vstate, store):
    """By one commit, or by --steps; undo takes a rollback back."""
    with Versioned(Disk(store)) as state:
        first = [commit.id for commit in state.log()]
    vstate("rollback")
    assert vstate.json("rollback")["info"] == {"rolled_back": {"to": first[2]}}
    vstate("undo")
    vstate("undo")
    assert vstate.json("rollback", "--steps", "2")["info"] == {"rolled_back": {"to": first[2]}}


def test_switch_goes_to_a_branch(vstate):
    """`switch` moves HEAD to a branch or a new one, and `-` is where HEAD was before, by today's name."""
    assert vstate("switch", "what-if").startswith("Switched to branch what-if at ")
    assert vstate("switch", "what-if").startswith("Already on what-if at ")
    assert vstate.json("switch", "-")["branch"] == "main"
    assert vstate.json("checkout", "-")["branch"] == "what-if"
    vstate("branch", "-m", "main", "trunk")
    assert vstate.json("checkout", "-")["branch"] == "trunk"
    detached = vstate.json("checkout", "v1")["commit"]
    assert vstate.json("switch", "-")["branch"] == "trunk"
    assert vstate.json("checkout", "-") == {"branch": None, "commit": detached}
    assert vstate("switch", "-c", "new", "v1").startswith("Switched to the new branch new at ")
    assert vstate.json("switch", "trunk")["branch"] == "trunk"


def test_reset_moves_the_branch(vstate, store):
    """Reset loses nothing: `undo` brings the commits back, and `redo` takes that back."""
    old = vstate.json("branch")[0]["commit"]
    text = vstate("reset", "v1")
    assert re.match(rf"main is at [0-9a-f]{{10}} start\nIt was at {old[:10]}\. ", text)
    assert contents(store)["messages"] == ["hello"]
    assert vstate.json("undo")["commit"] == old
    assert vstate("redo").splitlines()[0].endswith(" start")
    assert vstate.json("reset", "--hard", "main@{1}")["commit"] == old


def test_keys_of_another_commit(vstate, store):
    """`checkout REV -- KEY` commits the values of REV for these keys alone, and HEAD stays."""
    text = vstate("checkout", "v1", "--", "plan", "messages")
    assert re.match(r"main is at [0-9a-f]{10} Take plan, messages from [0-9a-f]{10} ", text)
    state = contents(store)
    assert (state["messages"], state["plan"].steps) == (["hello"], ["look"])
    assert state["notes/b"] == {"lines": 5}
    assert vstate("checkout", "v1", "--", "plan") == "Nothing to take: main has these values already.\n"
    assert vstate.json("checkout", "v1", "--key", "old")["changes"]["added"] == ["old"]
