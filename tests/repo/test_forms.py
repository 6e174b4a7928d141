"""fsck and objects under a right id that are malformed, or that contradict each other."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from forged_trees import (
    ENDS,
    GOES_ON,
    HIGH,
    HIGHER,
    LEFT,
    LOST,
    LOW,
    READABLE,
    RIGHT,
    entry,
    leaf,
    levels,
    linked,
    node,
    pair,
    plant,
    put_on,
    put_on_branch,
    streamed,
)

from vstate import InvalidInput, KVStore, Memory, Versioned
from vstate.objects import tree
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit, microseconds
from vstate.objects.ids import BLOB, COMMIT
from vstate.repo import Repository

BLOBS = (
    "a link of another length",
    "two links of two lengths",
    "a link to a tree",
    "an index with a wrong length",
)
"""The faults that only a look into blobs finds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOST, *READABLE])
@pytest.mark.parametrize("full", [True, False], ids=["full", "quick"])
def test_nonsense_under_a_right_id_is_found(name: str, full: bool) -> None:
    """Objects of a careless or malicious writer, under a right id."""
    make, reason, _ = (LOST | READABLE)[name]
    store = Memory()
    put_on_branch(store, make(store))
    report = Repository(store).fsck(full=full)
    assert report.ok is (not full and name in BLOBS)
    if not report.ok:
        found = [damage for damage in report.damage if re.search(reason, damage.reason)]
        assert found, str(report)
        assert found[0].readable is (name in READABLE)
        lost = any(not damage.readable for damage in report.damage)
        assert (bool(report.broken), report.lost_in_all > 0) == (lost, lost)


def test_the_pieces_of_those_are_right() -> None:
    """Each object is in order but for its one fault, and fsck finds that fault."""
    store = Memory()
    for root in (
        pair(store, LEFT, RIGHT),
        leaf(store, *LEFT),
        linked(store),
        streamed(store, *GOES_ON[:3], ENDS[0]),
        streamed(store, *GOES_ON[:1] * 128),
        levels(store, [GOES_ON[0], ENDS[0]], [GOES_ON[1]]),
        levels(store, [ENDS[0], ENDS[1]], [ENDS[2], ENDS[0]]),
        levels(store, GOES_ON[:1] * 128, GOES_ON[:2]),
        leaf(store, "k", entry=entry(2, b"x" * 128, 128, "bytes")),
        leaf(store, "k", entry=entry(0, "x" * 100)),
    ):
        put_on_branch(store, root)
        report = Repository(store).fsck(full=False)
        assert report.ok, str(report)


def test_a_key_out_of_range_deep_below_is_found() -> None:
    """The last key of a subtree has to come before the next subtree's first, at whatever height they part."""
    store = Memory()
    top = HIGHER[3]
    below = [key for key in HIGH if key < top]
    first = node(
        store, 1, [LOW[0], below[0]], [leaf(store, LOW[0]), leaf(store, below[0], top + "x")], [1, 2]
    )
    second = leaf(store, top)
    second = node(store, 1, [top], [second], [1])
    assert tree.level(top + "x") == 0
    root = node(store, 2, [LOW[0], top], [first, second], [3, 1])
    put_on_branch(store, root)
    report = Repository(store).fsck()
    assert [damage.id for damage in report.damage] == [str(first)]
    assert f"has keys from {top!r} on" in report.damage[0].reason


def test_a_shared_node_is_checked_for_each_that_links_to_it() -> None:
    """A node that is in order below one parent is still found to be wrong below another."""
    store = Memory()
    right = put_on_branch(store, pair(store, LEFT, RIGHT)).oid
    put_on(store, "right", right)
    wrong = put_on_branch(store, pair(store, LEFT, RIGHT, counts=[3, 3]), message="wrong").oid
    for main, other in ((right, wrong), (wrong, right)):
        put_on(store, "main", main)
        put_on(store, "right", other)
        report = Repository(store).fsck()
        assert [damage.reason.partition(" has ")[2] for damage in report.damage] == ["2 keys, not 3"]


def commit_rows(store: KVStore, body: object) -> None:
    oid = plant(store, COMMIT, encode(body))
    put_on(store, "main", oid)


NOW = microseconds(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([None, [], NOW, "m", {}], "values to unpack"),
        ([None, [], "now", "m", {}, []], "not a commit"),
        ([bytes(32), [], NOW, "m", {}, []], "it is missing"),
        ([b"short", [], NOW, "m", {}, []], "an id of 32 bytes is missing"),
    ],
)
def test_commits_that_make_no_sense(body: list[object], reason: str) -> None:
    """A commit is decoded, and the objects that it names must exist."""
    store = Memory()
    commit_rows(store, body)
    report = Repository(store).fsck()
    assert [damage.readable for damage in report.damage] == [False]
    assert reason in report.damage[0].reason
    assert report.broken == ("heads/main",)


@pytest.mark.parametrize("shift", [timedelta(), timedelta(microseconds=-5)])
def test_a_commit_has_to_be_dated_after_its_parents(shift: timedelta) -> None:
    """Walking by time relies on it; a merge is checked against each."""
    store = Memory()
    time = datetime(2026, 1, 1, tzinfo=UTC)
    old = plant(store, COMMIT, Commit(None, (), time - timedelta(days=1)).body)
    late = plant(store, COMMIT, Commit(None, (old,), time, "late").body)
    merge = plant(store, COMMIT, Commit(None, (old, late), time + shift, "merge").body)
    put_on(store, "main", merge)
    report = Repository(store).fsck()
    assert [(damage.id, damage.readable) for damage in report.damage] == [(str(merge), True)]
    assert f"not dated after its parent {late}" in report.damage[0].reason


def test_a_parent_that_is_a_blob() -> None:
    """The history ends there; the commit's own state is whole."""
    store = Memory()
    blob = plant(store, BLOB, b"x")
    commit_rows(store, [leaf(store, "a"), [blob], NOW, "m", {}, []])
    report = Repository(store).fsck()
    assert "is no commit but a blob" in report.damage[0].reason
    assert report.broken == ()
    assert [item.what for item in report.lost] == ["the commit itself, and all that only it leads to"]
    assert f"o/{blob}" in store
    Repository(store).fsck(repair=True)
    assert [commit.message for commit in Versioned(store).log()] == ["m"]
    assert f"o/{blob}" in store


@pytest.mark.slow
def test_what_is_too_large_is_named() -> None:
    """A node with too many long keys names the keys, a commit its longest part. The changes stay staged."""
    state = Versioned(Memory())
    keys = (f"long/{n:06}{'x' * 4000}" for n in range(5000))
    state.update({key: 1 for key in keys if tree.level(key) == 0})  # no key begins another node
    with pytest.raises(InvalidInput, match=r"keys lie in a node of the tree, .*'long/") as raised:
        state.commit()
    assert "message" not in str(raised.value)
    state.discard()
    state["k"] = 1
    large = "x" * (64 << 20)
    with pytest.raises(InvalidInput, match="not in the message of a commit"):
        state.commit(large)
    with pytest.raises(InvalidInput, match="not in the info of a commit"):
        state.commit("", large=large)
    assert state.status().added == ["k"]
    state.discard()
