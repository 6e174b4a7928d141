"""`vstate checkout`, `switch`, `branch`, `tag`, `rollback`, `reset` and `redo`: they move refs."""

import re

import pytest

from vstate import Disk, Versioned
from vstate.repo import Repository


def test_checkout_of_a_branch_is_followed_by_programs(vstate, store):
    """A program that names no branch opens the branch that was checked out."""
    assert re.match(
        r"Switched to branch what-if at [0-9a-f]{10} another goal\n", vstate("checkout", "what-if")
    )
    with Versioned(Disk(store)) as state:
        assert state.branch == "what-if"
    assert vstate("checkout", "what-if").startswith("Already on what-if at ")


def test_checkout_of_a_commit_detaches(vstate, store):
    """Checkout of a commit detaches HEAD, and the output says how to make a branch."""
    text = vstate("checkout", "v1")
    assert re.match(r"HEAD is detached at [0-9a-f]{10} start\n", text)
    assert "vstate checkout -b NAME" in text
    assert "(HEAD, tag: v1)" in vstate("log", "-n", "1")
    assert vstate("branch").startswith("* (HEAD detached at ")
    assert "none: HEAD is detached" in vstate("status")


def test_checkout_of_a_new_branch(vstate):
    """-b creates a branch at HEAD or at a revision, and moves HEAD to it."""
    assert vstate("checkout", "-b", "new").startswith("Switched to the new branch new at ")
    assert vstate("checkout", "v1", "-b", "newer").rstrip().endswith(" start")
    assert "* newer" in vstate("branch")


def test_checkout_json(vstate):
    """The document has the new position of HEAD."""
    document = vstate.json("checkout", "v1")
    assert document["branch"] is None
    assert len(document["commit"]) == 64
    assert vstate.json("checkout", "main")["branch"] == "main"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["checkout", "nowhere"], "no revision 'nowhere'"),
        (["checkout", "-b", "a..b"], "'a..b' is not a branch name"),
        (["checkout", "-b", "main"], "there is a branch 'main' already"),
        (["branch", "-bad-"], None),
        (["branch", "a b"], "'a b' is not a branch name"),
        (["branch", "HEAD"], "'HEAD' is not a branch name"),
        (["branch", "x", "nowhere"], "no revision 'nowhere'"),
        (["branch", "-d", "main"], "HEAD is on branch 'main'"),
        (["branch", "-d", "nowhere"], "no branch 'nowhere'"),
        (["branch", "-m", "what-if", "main"], "there is a branch 'main' already"),
        (["tag", "v1"], "there is a tag 'v1' already"),
        (["tag", "v 1"], "'v 1' is not a tag name"),
        (["tag", "-d", "v2"], "no tag 'v2'; did you mean: v1?"),
        (["tag", "-m", "v2", "v3"], "no tag 'v2'; did you mean: v1?"),
        (["rollback", "nowhere"], "no revision 'nowhere'"),
        (["rollback", "HEAD~9"], "no revision 'HEAD~9': "),
    ],
)
@pytest.mark.slow
def test_errors(vstate, arguments, message):
    """An error is one line, and wrong use exits with 2."""
    if message is None:
        assert vstate.run(*arguments).exit_code == 2
    else:
        assert vstate.fails(*arguments).startswith(message)


def test_branches_are_listed_made_renamed_and_deleted(vstate):
    """`branch` lists, creates, renames and deletes, and marks HEAD's branch."""
    lines = vstate("branch").splitlines()
    assert re.fullmatch(r"\* main     [0-9a-f]{10} more", lines[0])
    assert re.fullmatch(r"  what-if  [0-9a-f]{10} another goal", lines[1])
    assert re.fullmatch(r"Created branch new at [0-9a-f]{10} start\n", vstate("branch", "new", "v1"))
    assert vstate("branch", "-m", "new", "newer").startswith("Renamed branch new to newer, at ")
    assert vstate("branch", "-m", "trunk").startswith("Renamed branch main to trunk, at ")
    assert vstate("branch", "-d", "newer").startswith("Deleted branch newer, which was at ")
    assert [branch["name"] for branch in vstate.json("branch")] == ["trunk", "what-if"]
    assert vstate("branch").startswith("* trunk ")
    assert vstate("branch", "-d", "what-if", "--forget").startswith("Forgot branch what-if, which was at ")
    vstate.fails("reflog", "what-if")


def test_branch_json(vstate):
    """The list names each branch's commit and HEAD's branch."""
    listed = vstate.json("branch")
    assert [(branch["name"], branch["head"]) for branch in listed] == [("main", True), ("what-if", False)]
    assert set(vstate.json("branch", "new")) == {"name", "commit", "head"}


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
    for wrong in (["-n", "1", "x"], ["--prefix", "a", "--all"], ["-n", "-1"], ["--label", "user"]):
        assert vstate.run("branch", *wrong).exit_code == 2


def test_the_name_of_the_branch(vstate):
    """--show-current prints the name alone, and nothing for a detached HEAD."""
    assert vstate("branch", "--show-current") == "main\n"
    vstate("checkout", "HEAD~1")
    assert vstate("branch", "--show-current") == ""
    assert vstate.json("branch", "--show-current") is None
    for wrong in (["--show-current", "--all"], ["--show-current", "x"], ["--all", "x"], ["-a", "-d", "x"]):
        assert vstate.run("branch", *wrong).exit_code == 2


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
    with Versioned(Disk(store)) as state:
        assert state["messages"] == ["hello"]
        assert "notes/b" not in state


def test_each_rollback_without_a_revision_goes_further_back(vstate, store):
    """By one commit, or by --steps; undo takes a rollback back."""
    with Versioned(Disk(store)) as state:
        first = [commit.id for commit in state.log()]
    vstate("rollback")
    assert vstate.json("rollback")["info"] == {"rolled_back": {"to": first[2]}}
    vstate("undo")
    vstate("undo")
    assert vstate.json("rollback", "--steps", "2")["info"] == {"rolled_back": {"to": first[2]}}


def test_rollback_json(vstate):
    """The document is the new commit."""
    document = vstate.json("rollback", "HEAD~1")
    assert document["changes"] == {"added": [], "modified": [], "removed": ["notes/b"]}
    assert document["refs"] == ["heads/main"]


def test_rollback_needs_a_branch(vstate):
    """With a detached HEAD, rollback has no branch to commit to."""
    vstate("checkout", "v1")
    message = vstate.fails("rollback", "HEAD")
    assert message.startswith("HEAD is detached at ")
    vstate(*re.search(r"`vstate (checkout \w+ -b NAME)`", message)[1].split())
    vstate("rollback", "HEAD")


@pytest.mark.parametrize(
    "arguments",
    [
        ["checkout"],
        ["branch", "-d"],
        ["branch", "-d", "-m", "a", "b"],
        ["tag", "-m", "v1"],
        ["tag", "-d", "v1", "v2"],
        ["rollback", "HEAD", "--steps", "1"],
        ["log", "-n", "x"],
        ["nonsense"],
        ["log", "--nonsense"],
    ],
)
def test_wrong_use_exits_with_2(vstate, arguments):
    """Wrong arguments are a usage error, whether click or the command finds them."""
    result = vstate.run(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr


def test_switch_goes_to_a_branch(vstate):
    """`switch` moves HEAD to a branch or a new one, and refuses a commit."""
    assert vstate("switch", "what-if").startswith("Switched to branch what-if at ")
    assert vstate("switch", "what-if").startswith("Already on what-if at ")
    assert vstate("switch", "-c", "new", "v1").startswith("Switched to the new branch new at ")
    assert vstate.json("switch", "main")["branch"] == "main"
    assert vstate.fails("switch", "whatif").startswith("no branch 'whatif'; did you mean: ")
    for rev in ("v1", "HEAD~1"):
        assert f"`vstate checkout {rev}`" in vstate.fails("switch", rev).replace("'HEAD~1'", "HEAD~1")


def test_the_checkout_before(vstate):
    """`-` is the branch or the commit that HEAD was on before, by its name of today."""
    assert vstate.fails("checkout", "-").startswith("HEAD was on no other branch or commit before")
    vstate("switch", "what-if")
    assert vstate.json("switch", "-")["branch"] == "main"
    assert vstate.json("checkout", "-")["branch"] == "what-if"
    vstate("branch", "-m", "main", "trunk")
    assert vstate.json("checkout", "-")["branch"] == "trunk"
    detached = vstate.json("checkout", "v1")["commit"]
    assert vstate.json("switch", "-")["branch"] == "trunk"
    assert vstate.json("checkout", "-") == {"branch": None, "commit": detached}


def test_reset_moves_the_branch(vstate, store):
    """Reset loses nothing: `undo` brings the commits back, and `redo` takes that back."""
    old = vstate.json("branch")[0]["commit"]
    text = vstate("reset", "v1")
    assert re.match(rf"main is at [0-9a-f]{{10}} start\nIt was at {old[:10]}\. ", text)
    with Versioned(Disk(store)) as state:
        assert state["messages"] == ["hello"]
    assert vstate.json("undo")["commit"] == old
    assert vstate("redo").splitlines()[0].endswith(" start")
    assert vstate.fails("redo").startswith("nothing to redo")
    assert vstate.json("reset", "--hard", "main@{1}")["commit"] == old
    assert vstate.fails("reset", "nowhere").startswith("no revision 'nowhere'")


def test_a_branch_is_deleted_as_in_git(vstate):
    """-D deletes a branch, merged or not."""
    assert vstate("branch", "-D", "what-if").startswith("Deleted branch what-if")


def test_a_number_of_commits_as_in_git(vstate):
    """-2 means -n 2, in every command that has -n, but not behind `--`."""
    assert len(vstate("log", "-2", "--oneline").splitlines()) == 2
    assert len(vstate("reflog", "-1").splitlines()) == 1
    vstate("undo", "-2")
    assert "no commit up to HEAD changed the key '-2'" in vstate.run("log", "--", "-2").stderr


def test_keys_of_another_commit(vstate, store):
    """`checkout REV -- KEY` commits the values of REV for these keys alone, and HEAD stays."""
    text = vstate("checkout", "v1", "--", "plan", "messages")
    assert re.match(r"main is at [0-9a-f]{10} Take plan, messages from [0-9a-f]{10} ", text)
    with Versioned(Disk(store)) as state:
        assert (state["messages"], state["plan"].steps) == (["hello"], ["look"])
        assert state["notes/b"] == {"lines": 5}
    assert vstate("checkout", "v1", "--", "plan") == "Nothing to take: main has these values already.\n"
    assert vstate.fails("checkout", "v1", "--", "plam").startswith("no key 'plam' at ")
    assert vstate.json("checkout", "v1", "--key", "old")["changes"]["added"] == ["old"]
    assert vstate.run("checkout", "-b", "x", "--", "plan").exit_code == 2


def test_a_key_is_no_place_for_head(vstate):
    """`checkout KEY` says how to take a key from a commit."""
    assert vstate.fails("checkout", "plan").endswith("run vstate checkout REV -- plan")


def test_a_detached_head_has_no_branch_to_watch(vstate):
    """The message names the option, and not the ways to commit."""
    vstate("checkout", "v1")
    assert vstate.fails("watch", "-n", "1").endswith("name one with --branch BRANCH")
    assert vstate("watch", "-n", "1", "--branch", "main", "--since", "main~1").endswith("dict, 16 B\n")
