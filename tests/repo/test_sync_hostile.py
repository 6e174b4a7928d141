"""A forged store, or a bundle of it: no damage that fsck would report comes over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from bundle_files import bundle_of, chain, imported, refs_of, save, store_of, whole
from forged_trees import LOST, READABLE, leaf, node, plant, put_on_branch
from sync_stores import cloned, push, statuses

from vstate import Memory, Versioned
from vstate.errors import CorruptObject, CorruptStore, InvalidInput
from vstate.objects.canonical import encode
from vstate.objects.ids import BLOB
from vstate.repo import Repository
from vstate.repo.clone import clone


def refused(store: Memory, match: str) -> None:
    """fsck finds fault with the branch `bad`, and it goes nowhere: by a push, a fetch, a clone, a bundle."""
    assert not Repository(store).fsck().ok
    target = Memory()
    with pytest.raises(CorruptObject, match=match):
        push(store, target, "bad")
    with pytest.raises(CorruptObject, match=match):
        Repository(target).fetch(store, "bad", remote="origin")
    assert refs_of(target) == {}
    with pytest.raises(CorruptObject, match=match):
        clone(store, target)
    assert "heads/bad" not in refs_of(target)
    for place in (Memory(), store_of(dict(store.items("o/")))):  # with all objects in the bundle, and in both
        with pytest.raises(InvalidInput, match=match):
            imported(place, bundle_of(store, "bad"))
        assert refs_of(place) == {}


@pytest.mark.parametrize("name", ["\x1b[31mred", "a:b", "-rf", "a/../b", "x" * 300])
@pytest.mark.parametrize("prefix", ["heads/", "tags/"])
def test_names_that_no_ref_may_have_are_refused(prefix: str, name: str) -> None:
    """Forbidden names would get into messages and reflog keys; other branches can be fetched by name."""
    store = Memory()
    chain(store, 1)
    value = store.get("r/heads/main")
    assert value is not None
    store.set(f"r/{prefix}{name}", value)
    target = Memory()
    with pytest.raises(CorruptStore, match="is no name of a ref") as caught:
        Repository(target).fetch(store, remote="origin", tags=True)
    assert "\x1b" not in str(caught.value)
    with pytest.raises(CorruptStore):
        clone(store, target)
    assert not any(name in key for key, _ in target.items())
    fetched = Repository(Memory()).fetch(store, "main", remote="origin")
    assert statuses(fetched) == {"remotes/origin/main": "created"}


def test_a_head_of_no_name_is_not_cloned() -> None:
    """An existing branch takes its place."""
    store = Memory()
    chain(store, 1, "side")
    store.set("r/HEAD", b"ref: heads/\x1b[31m..")
    assert cloned(store).get("r/HEAD") == b"ref: heads/side"


@pytest.mark.parametrize("apart", [timedelta(), timedelta(seconds=1)])
def test_a_commit_that_is_not_dated_after_its_parent_is_refused(apart: timedelta) -> None:
    """An interrupted transfer could leave such a commit without its parent."""
    store = Memory()
    head = chain(store, 2).head
    assert head is not None
    assert head.root is not None
    put_on_branch(store, head.root, "bad", parent_ids=(head.oid,), time=head.time - apart)
    refused(store, "not dated after its parent")
    target = Memory()
    push(store, target)
    with pytest.raises(CorruptObject, match="not dated after its parent"):
        push(store, target, "bad")


@pytest.mark.parametrize("case", LOST | READABLE)
def test_forged_trees_are_refused(case: str) -> None:
    """A search would miss keys, a count would be wrong, or a value could not be read."""
    store = Memory()
    chain(store, 1)
    make, _, reason = (LOST | READABLE)[case]
    put_on_branch(store, make(store), "bad")
    refused(store, reason)


def test_the_end_of_a_node_that_stands_elsewhere_too_is_checked() -> None:
    """A whole tree becomes the first half of another one, and has keys of the other half."""
    store = Memory()
    chain(store, 1)
    half = node(store, 1, ["a", "m"], [leaf(store, "a"), leaf(store, "m", "z")], [1, 2])
    first = put_on_branch(store, half, "bad")
    other = node(store, 1, ["p"], [leaf(store, "p")], [1])
    root = node(store, 2, ["a", "p"], [half, other], [3, 1])
    put_on_branch(store, root, "bad", parent_ids=(first.oid,), time=first.time + timedelta(seconds=1))
    refused(store, "outside the range")


@pytest.mark.parametrize("way", ["push", "fetch"])
def test_a_forged_link_to_what_is_there_is_refused(way: str) -> None:
    """The other store has the node and the blob already, in their right places."""
    store = Memory()
    save(chain(store, 1), "many", **{f"key/{i:04}": f"value {i}" * 50 for i in range(2000)})
    repo = Repository(store)
    head = repo.branch("main")
    assert head.root is not None
    root, entry = repo.objects.node(head.root), repo.entry(head.root, "key/1500")
    assert entry is not None
    child, (link,) = bytes(root.children()[1]), entry.links
    forged = {
        "says 501": leaf(store, "a", entry=encode([2, [link.id, 501], 501, "bytes"])),
        "outside the range": node(store, root.height, ["a"], [child], [root.counts[1]]),
        "node above says 1": node(store, root.height, [root.keys[1]], [child], [1]),
    }
    base = dict(cloned(store).items())
    for reason, oid in forged.items():
        put_on_branch(store, oid, "bad")
        target = store_of(base)
        with pytest.raises(CorruptObject, match=reason):
            push(store, target, "bad") if way == "push" else Repository(target).fetch(store, "bad")
        assert "heads/bad" not in refs_of(target)


def test_what_is_made_up_keeps_nothing_else_out() -> None:
    """Other branches can be fetched by name, and a senseless reflog only costs time."""
    store = Memory()
    state = Versioned(store, branch="main")
    for number in range(80):
        save(state, small=number)
    for number in range(300):
        key = f"reflog/heads/main:7{'f' * 15}{number:08x}"
        store.set(key, b"junk" if number % 2 else encode([None, bytes(32), "x"]))
    blob = plant(store, BLOB, b"a blob")
    store.set(f"reflog/heads/main:7{'e' * 15}00000000", encode([None, blob, "x"]))
    target = Memory()
    Repository(target).fetch(store, "main", remote="origin")
    assert len(list(Repository(target).log("origin/main"))) == 80
    whole(target)
