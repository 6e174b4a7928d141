"""A forged store, or a bundle of it: no damage that fsck would report comes over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from bundle_files import bundle_of, chain, imported, large, refs_of, save, store_of, whole
from sync_stores import cloned, push, statuses

from vstate import Memory, Versioned
from vstate.errors import CorruptObject, CorruptStore, InvalidInput
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
    commit_tree(store, head.root, parent_ids=(head.oid,), time=head.time - apart)
    refused(store, "not dated after its parent")
    target = Memory()
    push(store, target)
    with pytest.raises(CorruptObject, match="not dated after its parent"):
        push(store, target, "bad")


ATOM = encode([0, 1])


def tree_node(store: Memory, *fields: object) -> ObjectId:
    """A stored node of these fields: height, keys, items, counts, and perhaps expiries."""
    return put(store, TREE, encode(list(fields)))


def leaf(store: Memory, *keys: str, entry: bytes = ATOM) -> ObjectId:
    """A stored leaf of equal entries."""
    return tree_node(store, 0, list(keys), [entry] * len(keys), [])


def above(
    store: Memory, keys: list[str], below: list[ObjectId], counts: list[int], *more: object
) -> ObjectId:
    """A stored node above leaves."""
    return tree_node(store, 1, keys, [bytes(oid) for oid in below], counts, *more)


def text_of(length: int, store: Memory) -> bytes:
    """The entry of a text whose blob has 200 bytes, whatever its link says."""
    return encode([2, [bytes(put(store, BLOB, b"x" * 200)), length], length, "bytes"])


def tower(store: Memory, height: int) -> ObjectId:
    """A leaf below so many nodes."""
    top = leaf(store, "a")
    for level in range(1, height + 1):
        top = tree_node(store, level, ["a"], [bytes(top)], [1])
    return top


FORGED: dict[str, tuple[Callable[[Memory], ObjectId], str]] = {
    "keys that do not ascend": (lambda store: leaf(store, "b", "a"), "its keys do not ascend"),
    "a key twice": (lambda store: leaf(store, "a", "a"), "its keys do not ascend"),
    "a node at another height": (
        lambda store: tree_node(store, 3, ["a"], [bytes(leaf(store, "a"))], [1]),
        "it is at height 0, in place of 2",
    ),
    "a tree that is too high": (lambda store: tower(store, 13), "no node is at height 13"),
    "other keys than said": (lambda store: above(store, ["a"], [leaf(store, "b")], [1]), "outside the range"),
    "keys behind the next node": (
        lambda store: above(store, ["a", "c"], [leaf(store, "a", "d"), leaf(store, "c")], [2, 1]),
        "outside the range",
    ),
    "a node in two places": (
        lambda store: above(store, ["a", "m"], [leaf(store, "a", "b")] * 2, [2, 2]),
        "outside the range",
    ),
    "another number of keys": (
        lambda store: above(store, ["a"], [leaf(store, "a", "b")], [7]),
        "it has 2 keys; the node above says 7",
    ),
    "an expiry of a key that never expires": (
        lambda store: tree_node(store, 0, ["a", "b"], [ATOM, ATOM], [], [5, None]),
        "it does not say when its keys expire",
    ),
    "an expiry of a node that never expires": (
        lambda store: above(store, ["a", "m"], [leaf(store, "a"), leaf(store, "m")], [1, 1], [5, None]),
        "the node above does not say when its first key expires",
    ),
    "an entry that is cut off": (lambda store: leaf(store, "a", entry=b"\x92\x00"), "cannot be decoded"),
    "an entry of nothing": (lambda store: leaf(store, "a", entry=encode([9, 9])), "cannot be decoded"),
    "a link with another length": (
        lambda store: leaf(store, "a", entry=text_of(201, store)),
        "a blob of 200 bytes; the link to it says 201",
    ),
    "two links with two lengths": (
        lambda store: tree_node(store, 0, ["a", "b"], [text_of(200, store), text_of(201, store)], []),
        "a blob of 200 bytes; the link to it says 201",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_trees_are_refused(case: str) -> None:
    """A search would miss keys, a count would be wrong, or a value could not be read."""
    store = Memory()
    chain(store, 1)
    forge, reason = FORGED[case]
    commit_tree(store, forge(store))
    refused(store, reason)


def test_the_end_of_a_node_that_stands_elsewhere_too_is_checked() -> None:
    """A whole tree becomes the first half of another one, and has keys of the other half."""
    store = Memory()
    chain(store, 1)
    half = above(store, ["a", "m"], [leaf(store, "a"), leaf(store, "m", "z")], [1, 2])
    first = commit_tree(store, half)
    Repository(store).delete_branch("bad")
    other = above(store, ["p"], [leaf(store, "p")], [1])
    root = tree_node(store, 2, ["a", "p"], [bytes(half), bytes(other)], [3, 1])
    commit_tree(store, root, parent_ids=(first.oid,), time=first.time + timedelta(seconds=1))
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
        "says 501": leaf(store, "a", entry=encode([2, [bytes(link.id), 501], 501, "bytes"])),
        "outside the range": tree_node(store, root.height, ["a"], [child], [root.counts[1]]),
        "node above says 1": tree_node(store, root.height, [root.keys[1]], [child], [1]),
    }
    base = dict(cloned(store).items())
    for reason, oid in forged.items():
        commit_tree(store, oid)
        target = store_of(base)
        with pytest.raises(CorruptObject, match=reason):
            push(store, target, "bad") if way == "push" else Repository(target).fetch(store, "bad")
        assert "heads/bad" not in refs_of(target)
        repo.delete_branch("bad")


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
