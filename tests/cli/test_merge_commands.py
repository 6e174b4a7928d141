"""`vstate merge`, `cherry-pick` and `revert`: merges of stored values, without loading any."""

import copy
import dataclasses

import pytest
from stores import commit, contents

from vstate import Disk, Versioned
from vstate.values.absent import Unmergeable


@dataclasses.dataclass
class Message:
    """A class of the program. The command never imports it."""

    role: str
    text: str


def longest(base, ours, theirs):
    """A policy of the program. The command never runs it."""
    raise Unmergeable("the command ran a function")


BASE = {
    "log": [Message("user", "hello")],
    "plan": {"a": {"x": 1}, "b": Message("user", "b")},
    "count": 1,
    "seen": {"x"},
    "text": "one\ntwo\nthree\n",
    "free": [1],
    "other": 1,
    "by code": 1,
}
POLICIES = {
    "log": "append",
    "plan": "deep",
    "count": "counter",
    "seen": "union",
    "text": "text",
    "other": "newest",
}


@pytest.fixture
def sides(store):
    """Branch main and branch theirs, with changes that policies can merge."""
    with Versioned(Disk(store)) as state:
        state.update(copy.deepcopy(BASE))
        state.commit("base")
        for key, policy in POLICIES.items():
            state.set_policy(key, policy)
        state.fork("theirs").close()
        state["log"].append(Message("agent", "ours"))
        state["plan"]["a"]["x"] = 2
        state["count"] += 2
        state["seen"].add("ours")
        state["text"] = state["text"].replace("one", "1")
        state["mine"] = True
        state.commit("ours")
        with Versioned(Disk(store), branch="theirs") as other:
            other["log"].append(Message("agent", "theirs"))
            other["plan"]["b"] = Message("user", "changed")
            other["count"] += 4
            other["seen"].add("theirs")
            other["text"] = other["text"].replace("three", "3")
            other["yours"] = [Message("x", "y")]
            other.commit("theirs")
    return store


def test_policies_merge_stored_values(sides, vstate):
    """A merge by the branch's policies gives the values that Python's merge gives, objects included."""
    with Versioned(Disk(sides)) as state:
        expected = state.fork("in-python")
        expected.merge("theirs")
        wanted = dict(expected)
    document = vstate.json("merge", "theirs")
    assert (document["branch"], document["strategy"]) == ("main", "merge")
    assert document["resolved"] == {key: POLICIES[key] for key in ("log", "plan", "count", "seen", "text")}
    assert contents(sides, "main") == wanted
    assert wanted["log"] == [*BASE["log"], Message("agent", "ours"), Message("agent", "theirs")]
    assert vstate("merge", "theirs").startswith("main: up-to-date at ")
    assert "nothing is damaged" in vstate("fsck")


@pytest.mark.slow
def test_nothing_is_unpickled(sides, run_without_unpickling):
    """Merge, cherry-pick and revert work in a process that cannot unpickle."""
    run_without_unpickling([["cherry-pick", "theirs"], ["revert", "HEAD"], ["merge", "theirs"]])


def test_conflicts_are_listed_with_the_changes_of_each_side(sides, vstate):
    """A key without a policy is a conflict: nothing has changed, and the message says how to go on."""
    commit(sides, branch="main", free=[1, 2], other=2)
    commit(sides, branch="theirs", free=[1, 3], other=3)
    before = vstate.json("branch")
    result = vstate.run("merge", "theirs")
    assert result.exit_code == 1
    assert "conflict free: both sides changed it, and no merge policy applies\n" in result.stdout
    assert "ours" in result.stdout
    assert "[1]: 2" in result.stdout
    assert "[1]: 3" in result.stdout
    assert result.stderr.startswith("vstate: merging theirs into main is in conflict on 'free'; nothing has ")
    assert "`vstate merge theirs` with --ours KEY or --theirs KEY" in result.stderr
    assert vstate.json("branch") == before
    document = vstate.run("merge", "theirs", "--json")
    assert '"ours": [\n        "[1]"' in document.stdout
    commit(sides, branch="theirs", other=4)
    with Versioned(Disk(sides), branch="main") as state:
        del state["free"]
        state.commit("gone")
    assert "  ours removed it\n" in vstate.run("merge", "theirs").stdout
    vstate("merge", "theirs", "--theirs", "free")
    assert contents(sides, "main")["free"] == [1, 3]
    assert contents(sides, "main")["other"] == 4


def test_a_side_for_a_key_is_for_that_key_alone(sides, vstate):
    """A decision does not count for keys that begin alike, nor for a key that is in no conflict."""
    commit(sides, branch="main", free=2, freedom=2)
    commit(sides, branch="theirs", free=3, freedom=3)
    assert "in conflict on 'freedom'" in vstate.run("merge", "theirs", "--ours", "free").stderr
    message = vstate.fails("merge", "theirs", "--ours", "free", "--ours", "freedom", "--ours", "mine")
    assert message.startswith("'mine': not changed by both sides")
    assert vstate.run("merge", "theirs", "--ours", "free", "--theirs", "free").exit_code == 2
    vstate("merge", "theirs", "--ours", "free", "--theirs", "freedom", "-m", "decided")
    assert (contents(sides, "main")["free"], contents(sides, "main")["freedom"]) == (2, 3)
    assert vstate.json("log", "-1")["message"] == "decided"


def test_functions_are_named_and_never_run(sides, vstate):
    """A policy that is a Python function is refused by its name; a side or a named policy decides."""
    with Versioned(Disk(sides)) as state:
        state.set_policy("by code", longest)
    commit(sides, branch="main", **{"by code": 2})
    commit(sides, branch="theirs", **{"by code": 3})
    result = vstate.run("merge", "theirs")
    assert result.exit_code == 1
    assert f"its policy is the Python function {longest.__module__}:longest" in result.stdout
    vstate("merge", "theirs", "--policy", "newest")
    assert contents(sides, "main")["by code"] == 3


def test_cherry_pick_and_revert(sides, vstate):
    """A commit's changes are made here, and taken back again; keys that changed on both sides are merged."""
    text = vstate("cherry-pick", "theirs")
    assert text.startswith("main is at ")
    assert contents(sides, "main")["count"] == 7
    assert vstate.json("revert", "HEAD")["changes"]["removed"] == ["yours"]
    assert contents(sides, "main")["log"] == [*BASE["log"], Message("agent", "ours")]
    commit(sides, branch="main", free=5)
    vstate("tag", "five")
    assert vstate("cherry-pick", "five") == "Nothing to pick: main has these changes already.\n"
    commit(sides, branch="main", free=6)
    result = vstate.run("revert", "five")
    assert result.exit_code == 1
    assert "  ours\n    ~ 5 -> 6\n  theirs\n    ~ 5 -> [1]\n" in result.stdout
    assert "run `vstate revert five` with --ours KEY" in result.stderr
    vstate("revert", "five", "--theirs", "free")
    assert contents(sides, "main")["free"] == [1]
    commit(sides, branch="main", free=7)
    result = vstate.run("cherry-pick", "five")
    assert "  ours\n    ~ [1] -> 7\n  theirs\n    ~ [1] -> 5\n" in result.stdout
    assert "run `vstate cherry-pick five` with --ours KEY" in result.stderr


def test_pull_merges_values(sides, tmp_path, vstate):
    """A pull merges as `merge` does; a conflict of fetched commits is decided as one of a branch."""
    assert vstate.run("clone", str(sides), str(tmp_path / "copy")).exit_code == 0
    clone = type(vstate)(tmp_path / "copy")
    commit(tmp_path / "copy", branch="main", count=100)
    commit(sides, branch="main", count=4)
    assert "resolved 'count' by counter" in clone("pull")
    commit(tmp_path / "copy", branch="main", free=2)
    commit(sides, branch="main", free=3)
    assert "run `vstate merge origin/main` with --ours KEY" in clone.run("pull").stderr
    clone("merge", "origin/main", "--ours", "free")
    assert contents(tmp_path / "copy", "main")["free"] == 2
