"""`vstate diff`."""

import re

import numpy
import pytest
from stores import commit


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
    listed = vstate("diff", "v1", "HEAD", "plan", "text").splitlines()
    assert [line.split()[1] for line in listed if line[0] == "~"] == ["plan", "text"]


def test_the_first_commit(vstate, store):
    """A commit without a parent adds all its keys."""
    vstate("checkout", "v1")
    assert [line for line in vstate("diff", "--stat").splitlines() if line[0] != "+"] == []


def test_what_changed_inside(vstate):
    """The changes inside each key follow by path, those of texts line by line."""
    text = vstate("diff", "v1", "main")
    assert "~ messages  list, " in text
    assert "\n    + [1]: 'bye'\n" in text
    assert "\n      -two\n      +2\n" in text
    assert "\n    + steps[1]: 'think'\n" in text
    assert "\n- old  NoneType, " in text
    assert "    ~ goal: 'win' -> 'draw'\n" in vstate("diff", "main", "what-if")


def test_key_and_path(vstate):
    """A word behind one key is the path of a part, on both sides; a part on one side came or went."""
    assert vstate("diff", "v1", "--key", "plan").splitlines()[1:] == ["    + steps[1]: 'think'"]
    assert vstate("diff", "--key", "plan") == ""
    assert vstate("diff", "main", "what-if", "plan", "goal").splitlines()[1:] == [
        "    ~ goal: 'win' -> 'draw'"
    ]
    assert vstate("diff", "v1", "plan", "steps[1]").splitlines()[1:] == ["    + steps[1]: 'think'"]
    assert vstate("diff", "v1", "plan", "goal").splitlines()[1:] == ["    (no change in goal)"]
    details = vstate.json("diff", "v1", "HEAD", "plan", "steps")["changes"][0]["details"]
    assert [each["path"] for each in details] == ["steps[1]"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("show plan HEAD", "show HEAD plan"),
        ("show plan goal v1", "show v1 plan goal"),
        ("blame plan v1", "blame v1 plan"),
        ("blame plan goal v1", "blame v1 plan goal"),
        ("diff plan v1", "diff v1 plan"),
        ("diff plan what-if main", "diff what-if plan main"),
        ("ls plan v1", "ls v1 plan"),
    ],
)
def test_words_out_of_order(vstate, typed, meant):
    """The error names the command with the revision in its place."""
    assert f"did you mean: vstate {meant}?" in vstate.run(*typed.split()).stderr
    assert vstate.run(*meant.split()).exit_code in (0, 1)


def test_stat(vstate):
    """--stat shows the keys with types and sizes, and counts them."""
    lines = vstate("diff", "v1", "--stat").splitlines()
    assert lines[-1] == "+2 added ~3 modified -1 removed"
    assert re.fullmatch(r"~ messages  list, \d+ B -> \d+ B", lines[0])
    assert vstate("diff", "HEAD", "HEAD", "--stat") == "no changes\n"


def test_json(vstate):
    """The document names both commits, and every detail has old and new."""
    document = vstate.json("diff", "v1", "HEAD")
    assert set(document) == {"old", "new", "changes"}
    changes = {change["key"]: change for change in document["changes"]}
    assert changes["messages"]["details"] == [{"path": "[1]", "kind": "added", "new": "bye"}]
    assert changes["old"]["details"] == [{"path": "", "kind": "removed", "old": None}]
    assert "details" not in vstate.json("diff", "v1", "--stat")["changes"][0]
    assert vstate.json("diff", "v1", "v1")["changes"] == []


def test_arrays_show_the_range_that_differs(vstate, store):
    """A change of some elements prints their indices, not two arrays."""
    commit(store, array=numpy.arange(1000.0))
    array = numpy.arange(1000.0)
    array[500], array[10:20] = -1, 0
    commit(store, array=array)
    assert vstate("diff").splitlines()[1:] == [
        "    ~ [10:20]: 10.0, 11.0, 12.0, 13.0, … -> 0.0, 0.0, 0.0, 0.0, …  (10 of 1000 elements differ)",
        "    ~ [500]: 500.0 -> -1.0",
    ]
