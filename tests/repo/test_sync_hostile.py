"""Sync with a forged store: no damage that fsck would report comes over."""

from __future__ import annotations

from datetime import timedelta

import pytest
from bundle_files import chain, large, refs_of, save, whole
from sync_stores import cloned, push, statuses

from vstate import Memory, Versioned
from vstate.errors import CorruptObject, CorruptStore
from vstate.objects.canonical import encode
from vstate.objects.commit import Commit
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE, Kind, Object, ObjectId
from vstate.objects.stream import read_index
from vstate.repo import Repository
from vstate.repo.clone import clone


def put(store: Memory, kind: Kind, body: bytes) -> ObjectId:
    """Store an object; its id."""
    oid = ObjectId.of(kind, body)
    store.set_many(Repository(store).objects.stored({oid: Object(kind, body)}))
    return oid


def commit_tree(store: Memory, root: ObjectId, **fields: object) -> Commit:
    """A branch `bad` at a commit of this tree."""
    made: dict[str, object] = {"parent_ids": (), "time": Repository(store).branch("main").time, **fields}
    commit = Commit(root=root, message="bad", info={}, events=(), **made)  # type: ignore[arg-type]
    store.set_many(Repository(store).objects.stored({commit.oid: Object(COMMIT, commit.body)}))
    Repository(store).create_branch("bad", commit.oid)
    return commit


def refused(store: Memory, match: str) -> None:
    """The branch `bad` goes nowhere, neither pushed nor fetched nor cloned."""
    target = Memory()
    with pytest.raises(CorruptObject, match=match):
        push(store, target, "bad")
    with pytest.raises(CorruptObject, match=match):
        Repository(target).fetch(store, "bad", remote="origin")
    assert refs_of(target) == {}
    with pytest.raises(CorruptObject, match=match):
        clone(store, target)
    assert "heads/bad" not in refs_of(target)


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
    commit_tree(store, head.root, parent_ids=(head.oid,), time=head.time - apart)
    refused(store, "not dated after its parent")
    target = Memory()
    push(store, target)
    with pytest.raises(CorruptObject, match="not dated after its parent"):
        push(store, target, "bad")


@pytest.mark.parametrize("wrong", ["first", "before"])
def test_a_node_whose_keys_are_not_those_that_are_said_is_refused(wrong: str) -> None:
    """Lookups in such a tree would miss keys."""
    store = Memory()
    state = chain(store, 1)
    state.update({f"many/{i:04}": i for i in range(200)})
    head = state.commit("many")
    assert head is not None
    assert head.root is not None
    root = Repository(store).objects.node(head.root)
    assert root.height
    keys = list(root.keys)
    if wrong == "first":
        keys[1] += "x"
    else:
        # The first node is said to end before a key that it holds.
        keys[1] = Repository(store).objects.node(root.children()[0]).keys[-1]
    body = encode([root.height, keys, list(root.items), list(root.counts)])
    commit_tree(store, put(store, TREE, body))
    refused(store, "its keys (are outside the range|do not ascend)")


def test_a_leaf_whose_keys_do_not_ascend_is_refused() -> None:
    """A search in such a leaf would miss keys."""
    store = Memory()
    chain(store, 1)
    atom = encode([0, 1])
    commit_tree(store, put(store, TREE, encode([0, ["b", "a"], [atom, atom], []])))
    refused(store, "its keys do not ascend")


def test_a_node_in_the_wrong_place_is_refused() -> None:
    """The node has the right id and another height than its place in the tree."""
    store = Memory()
    head = chain(store, 1).head
    assert head is not None
    commit_tree(store, put(store, TREE, encode([3, ["a"], [head.root], [1]])))
    refused(store, "height")


def test_a_link_that_says_the_wrong_length_is_refused() -> None:
    """The tree of the commit is whole, and another one than its writer meant."""
    store = Memory()
    chain(store, 1)
    entry = encode([2, [put(store, BLOB, b"x" * 200), 201], 201, "bytes"])
    commit_tree(store, put(store, TREE, encode([0, ["a"], [entry], []])))
    refused(store, "a blob of 200 bytes; the link to it says 201")


@pytest.mark.parametrize("levels", [1, 2])
def test_an_index_that_says_the_wrong_length_is_refused(levels: int) -> None:
    """The length is that of the whole stream, or of a part."""
    store = Memory()
    chain(store, 1)
    value = large(1, 200_000)
    repo = Repository(store)
    state = Versioned(store, branch="main")
    save(state, "value", value=value)
    indexes = [key for key, row in store.items("o/") if row[:1] in b"iI"]
    bodies = {key: repo.objects.read(INDEX, bytes.fromhex(key[2:])) for key in indexes}
    length = len(value)
    roots = [key for key, body in bodies.items() if sum(size for _, size in read_index(body)[1]) == length]
    height, items = read_index(bodies[roots[0]])
    assert height > 1
    if levels == 1:
        root, length = ObjectId.parse(roots[0][2:]), length + 1
    else:
        sizes = [size for _, size in items]
        sizes[0], sizes[1] = sizes[0] + 1, sizes[1] - 1
        root = put(store, INDEX, encode([height, b"".join(oid for oid, _ in items), sizes]))
    entry = encode([2, [root, length], length, "bytes"])
    commit_tree(store, put(store, TREE, encode([0, ["a"], [entry], []])))
    refused(store, "an index of")


def test_what_is_made_up_keeps_nothing_else_out() -> None:
    """Other branches can be fetched by name, and a senseless reflog only costs time."""
    store = Memory()
    state = Versioned(store, branch="main")
    for number in range(80):
        save(state, small=number)
    for number in range(300):
        key = f"reflog/heads/main:7{'f' * 15}{number:08x}"
        store.set(key, b"junk" if number % 2 else encode([None, bytes(32), "x"]))
    blob = put(store, BLOB, b"a blob")
    store.set(f"reflog/heads/main:7{'e' * 15}00000000", encode([None, blob, "x"]))
    target = Memory()
    Repository(target).fetch(store, "main", remote="origin")
    assert len(list(Repository(target).log("origin/main"))) == 80
    whole(target)
