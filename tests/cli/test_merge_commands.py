"""`vstate merge`, `cherry-pick` and `revert`: merges of stored values, without loading any."""

import copy
import dataclasses

import pytest
from stores import contents

from vstate import Disk, File, Versioned
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


def test_files_are_merged_by_line(store, vstate, rows):
    """The command merges files of text, resolves what the policy leaves, and shows the lines of each side."""
    with Versioned(Disk(store)) as state:
        state["f/a"], state["f/b"], state["f/c"] = File(b"one\ntwo\nthree\n"), File(b"b\n"), File(b"\xff")
        state.commit("base")
        state.set_policy("f/", "text")
        state.fork("theirs").close()
        state["f/a"], state["f/b"], state["f/c"] = File(b"1\ntwo\nthree\n"), File(b"B\n"), File(b"\xfe")
        state.commit("ours")
        with Versioned(Disk(store), branch="theirs") as other:
            other["f/a"], other["f/b"] = File(b"one\ntwo\n3\n", "executable"), File(b"x\n")
            other["f/c"] = File(b"\xfd")
            other.commit("theirs")
    rows(
        """
        merge theirs ? conflicts[*].key -> [1] ["f/b", "f/c"] ...
        merge theirs -> [1] conflict f/b: both sides changed line 1 of the base / ours / ~ text: / ...
            / +B / theirs / ... / +x / conflict f/c: text cannot merge a file that is no text of UTF-8...
        """
    )
    vstate("merge", "theirs", "--theirs", "f/b", "--ours", "f/c")
    found = contents(store)
    assert found["f/a"] == File(b"1\ntwo\n3\n", "executable")
    assert (found["f/b"], found["f/c"]) == (File(b"x\n"), File(b"\xfe"))


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


@pytest.mark.slow
def test_nothing_is_unpickled(sides, run_without_unpickling):
    """Merge, cherry-pick and revert work in a process that cannot unpickle."""
    run_without_unpickling([["cherry-pick", "theirs"], ["revert", "HEAD"], ["merge", "theirs"]])


SESSIONS = {
    "conflicts are listed with the changes of each side; nothing has changed, and a side can be chosen": """
        >>> commit(store, branch="main", free=[1, 2], other=2)
        >>> commit(store, branch="theirs", free=[1, 3], other=3)
        merge theirs -> [1] conflict free: both sides changed it, and no merge policy applies
            / ours / + [1]: 2 / theirs / + [1]: 3
            / vstate: merging theirs into main is in conflict on 'free'; nothing has changed. To choose...
            ...`vstate merge theirs` with --ours KEY or --theirs KEY...
        merge theirs ? conflicts -> [1] [{"key": "free", "reason": "both sides changed it, and no merge policy
            ...applies", "ours": ["[1]"], "theirs": ["[1]"]}] / vstate: ...
        reflog -1 -> main@{0} <id> <time> commit: change
        >>> commit(store, branch="theirs", other=4)
        >>> remove(store, "free")
        merge theirs -> [1] ... / ours removed it / [1] / theirs / + [1]: 3 / ...
        merge theirs --theirs free -> main: merge at <id>...
        >>> assert (contents(store, "main")["free"], contents(store, "main")["other"]) == ([1, 3], 4)
    """,
    "a decision does not count for keys that begin alike, nor for a key that is in no conflict": """
        >>> commit(store, branch="main", free=2, freedom=2)
        >>> commit(store, branch="theirs", free=3, freedom=3)
        merge theirs --ours free -> [1] ...in conflict on 'freedom'...
        merge theirs --ours free --ours freedom --ours mine -> [1] vstate: 'mine': not changed by both...
        merge theirs --ours free --theirs free -> [2] ...
        merge theirs --ours free --theirs freedom -m decided
        >>> assert (contents(store, "main")["free"], contents(store, "main")["freedom"]) == (2, 3)
        log -1 ? [0].message -> "decided"
    """,
    "a policy that is a Python function is named, and never runs": """
        >>> set_policy(store, "by code", longest)
        >>> commit(store, branch="main", **{"by code": 2})
        >>> commit(store, branch="theirs", **{"by code": 3})
        merge theirs -> [1] ...its policy is the Python function test_merge_commands:longest...
        merge theirs --policy newest
        >>> assert contents(store, "main")["by code"] == 3
    """,
    "cherry-pick makes a commit's changes here, and revert takes them back": """
        cherry-pick theirs -> main is at <id> ...
        >>> assert contents(store, "main")["count"] == 7
        revert HEAD ? changes.removed -> ["yours"]
        >>> assert contents(store, "main")["log"] == [*BASE["log"], Message("agent", "ours")]
        >>> commit(store, branch="main", free=5)
        tag five
        cherry-pick five -> Nothing to pick: main has these changes already.
        >>> commit(store, branch="main", free=6)
        revert five -> [1] conflict free... / ours / ~ 5 -> 6 / theirs / ~ 5 -> [1]
            / vstate: ...run `vstate revert five` with --ours KEY...
        revert five --theirs free
        >>> assert contents(store, "main")["free"] == [1]
        >>> commit(store, branch="main", free=7)
        cherry-pick five -> [1] conflict free... / ours / ~ [1] -> 7 / theirs / ~ [1] -> 5
            / vstate: ...run `vstate cherry-pick five` with --ours KEY...
    """,
    "a pull merges as merge does, and a conflict of fetched commits is decided as one of a branch": """
        clone STORE TMP/copy
        >>> commit(COPY, branch="main", count=100)
        >>> commit(store, branch="main", count=4)
        pull -s COPY -> ...resolved 'count' by counter...
        >>> commit(COPY, branch="main", free=2)
        >>> commit(store, branch="main", free=3)
        pull -s COPY -> [1] ...run `vstate merge origin/main` with --ours KEY...
        merge origin/main --ours free -s COPY
        >>> assert contents(COPY, "main")["free"] == 2
    """,
}


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(rows, sides, session, tmp_path):
    """Each session has the output that is written here."""
    rows(SESSIONS[session], COPY=tmp_path / "copy", **globals())


def remove(store, key):
    with Versioned(Disk(store), branch="main") as state:
        del state[key]
        state.commit("gone")


def set_policy(store, key, policy):
    with Versioned(Disk(store)) as state:
        state.set_policy(key, policy)
