"""The ordered Merkle tree, against a dict and against the tree built from scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from soak import sized

from vstate.objects import tree
from vstate.objects.canonical import encode
from vstate.objects.expiry import Expiry, is_expired, moment_of, with_expiry
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.tree import Node

Values = dict[str, bytes]


class Nodes:
    """The nodes that were written, by id, and which of them were read."""

    def __init__(self) -> None:
        self.bodies: dict[ObjectId, bytes] = {}
        self.read: list[ObjectId] = []

    def __call__(self, oid: ObjectId) -> Node:
        self.read.append(oid)
        return Node.decode(self.bodies[oid])

    def many(self, ids: Sequence[ObjectId]) -> list[Node]:
        return [self(oid) for oid in ids]

    def keep(self, objects: NewObjects) -> None:
        for oid, (kind, body) in objects.items():
            assert ObjectId.of(kind, body) == oid
            self.bodies[oid] = bytes(body)

    def update(self, root: ObjectId | None, changes: dict[str, bytes | None]) -> ObjectId | None:
        root, objects, _ = tree.update(self, root, changes)
        self.keep(objects)
        return root

    def during(self, action: Callable[[], object]) -> set[ObjectId]:
        self.read = []
        action()
        return set(self.read)

    def below(self, root: ObjectId | None) -> set[ObjectId]:
        """All nodes of a tree."""
        if root is None:
            return set()
        found = {root}
        for child in Node.decode(self.bodies[root]).children():
            found |= self.below(child)
        return found


def build(values: dict[str, bytes]) -> tuple[ObjectId | None, Nodes]:
    nodes = Nodes()
    return nodes.update(None, dict(values)), nodes


def _pool() -> list[str]:
    """Keys of which unusually many begin nodes, at heights up to 3, so that few keys make a tall tree."""
    wanted = {0: 30, 1: 14, 2: 8, 3: 3}
    found: list[str] = []
    number = 0
    while any(wanted.values()):
        key = f"k{number}"
        number += 1
        height = tree.level(key)
        if wanted.get(height, 0):
            wanted[height] -= 1
            found.append(key)
    return sorted([*found, "", "k", "k\U0010ffff", "é", "\U0001f600", "k1", "k1\0"])


POOL = _pool()
keys = st.sampled_from(POOL)
plain_values = st.binary(min_size=1, max_size=3)
values = plain_values | st.integers(0, 9).map(lambda at: with_expiry(b"\x92\x00\x01", Expiry(at)))


class TreeMachine(RuleBasedStateMachine):
    """Edits of a tree, with the same made to a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = Nodes()
        self.root: ObjectId | None = None
        self.model: Values = {}
        self.past: list[tuple[ObjectId | None, Values]] = [(None, {})]

    def _apply(self, changes: dict[str, bytes | None]) -> None:
        self.root = self.nodes.update(self.root, changes)
        for key, value in changes.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    @initialize(many=st.dictionaries(keys, values, min_size=30))
    def begin(self, many: Values) -> None:
        self._apply(dict(many))

    @rule(key=keys, value=values)
    def put(self, key: str, value: bytes) -> None:
        self._apply({key: value})
        assert self.nodes.update(self.root, {key: value}) == self.root

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self._apply({key: None})

    @rule(changes=st.dictionaries(keys, st.none() | values, max_size=40))
    def batch(self, changes: dict[str, bytes | None]) -> None:
        self._apply(changes)

    @rule(prefix=st.sampled_from(["k", "k1", "k2", "k\U0010ffff", ""]))
    def delete_prefix(self, prefix: str) -> None:
        self._apply({key: None for key in self.model if key.startswith(prefix)})

    @rule()
    def remember(self) -> None:
        self.past.append((self.root, dict(self.model)))

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        self.root, model = data.draw(st.sampled_from(self.past))
        self.model = dict(model)

    @rule(data=st.data())
    def compare(self, data: st.DataObject) -> None:
        root, model = data.draw(st.sampled_from(self.past))
        assert list(tree.diff(self.nodes.many, root, self.root)) == differences(model, self.model)
        assert list(tree.diff(self.nodes.many, self.root, root)) == differences(self.model, model)

    @rule(key=keys)
    def look_up(self, key: str) -> None:
        assert tree.lookup(self.nodes, self.root, key) == self.model.get(key)
        wanted = {key, *POOL[::5]}
        found = {name: self.model[name] for name in wanted & self.model.keys()}
        assert tree.lookup_many(self.nodes.many, self.root, wanted) == found

    @rule(prefix=keys | st.sampled_from(["k", "k1", "z", "\U0010ffff"]), start=keys)
    def scan(self, prefix: str, start: str) -> None:
        inside = sorted(item for item in self.model.items() if item[0].startswith(prefix))
        assert list(tree.scan(self.nodes.many, self.root, prefix)) == inside
        assert list(tree.scan(self.nodes.many, self.root, prefix, start=start)) == [
            item for item in inside if item[0] >= start
        ]
        assert tree.count_prefix(self.nodes, self.root, prefix) == len(inside)

    @rule(at=st.integers(-1, 9), prefix=keys | st.sampled_from(["", "k", "k1", "z"]))
    def expired(self, at: int, prefix: str) -> None:
        due = {key: moment_of(value) for key, value in self.model.items() if key.startswith(prefix)}
        gone = sorted(key for key, moment in due.items() if moment is not None and moment <= at)
        assert list(tree.expired(self.nodes, self.root, at, prefix)) == gone
        there = sorted(due.keys() - set(gone))
        assert [key for key, _ in tree.scan(self.nodes.many, self.root, prefix, at=at)] == there
        assert tree.count_prefix(self.nodes, self.root, prefix, at=at) == len(there)
        for key, value in self.model.items():
            found = tree.lookup(self.nodes, self.root, key, at=at)
            assert found == (None if is_expired(value, at) else value)

    @invariant()
    def canonical(self) -> None:
        """The root is the one of the tree built from scratch, and counts are right."""
        expiring = sorted(key for key, value in self.model.items() if is_expiring(value))
        assert list(tree.expired(self.nodes, self.root, 2**62)) == expiring
        root, _ = build(self.model)
        assert self.root == root
        assert tree.count(self.nodes, self.root) == len(self.model)


TestTreeMachine = pytest.mark.slow(TreeMachine.TestCase)
TestTreeMachine.settings = settings(max_examples=sized(25, 1000), stateful_step_count=30)


def is_expiring(value: bytes) -> bool:
    return moment_of(value) is not None


@pytest.mark.slow
def test_only_nodes_with_expired_keys_are_read() -> None:
    """Finding expired keys reads only the nodes with such keys, and nothing if no key ever expires."""
    entries = {f"key/{number:05}": b"\x92\x00\x01" for number in range(7_000)}
    plain, nodes = build(entries)
    assert len(nodes.during(lambda: list(tree.expired(nodes, plain, 10**18)))) == 1
    for number in range(0, 7_000, 7):
        entries[f"key/{number:05}"] = with_expiry(b"\x92\x00\x01", Expiry(100 + number))
    root, nodes = build(entries)
    for every in (1, 10, 500):
        found: list[str] = []
        read = nodes.during(lambda: found.extend(tree.expired(nodes, root, 100 + every * 7 - 1)))  # noqa: B023
        assert found == [f"key/{number * 7:05}" for number in range(every)]
        assert len(read) <= 6 + every * 7 / 10


def differences(old: Values, new: Values) -> list[tuple[str, bytes | None, bytes | None]]:
    return [
        (key, old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def many(count: int) -> Values:
    return {f"key/{i:07}": b"%d" % i for i in range(count)}


@pytest.mark.slow
@settings(max_examples=15)
@given(*[st.dictionaries(keys, st.none() | values, max_size=300)] * 2)
def test_the_nodes_of_two_trees_that_are_in_both(
    one: dict[str, bytes | None], two: dict[str, bytes | None]
) -> None:
    """A node is looked for at its place, and found wherever it is."""
    nodes = Nodes()
    base = nodes.update(None, dict.fromkeys(POOL, b"base"))
    first, second = nodes.update(base, one), nodes.update(base, two)
    for oid in nodes.below(first):
        assert tree.holds(nodes, second, oid, nodes(oid)) == (oid in nodes.below(second))


@pytest.fixture(scope="module")
def large() -> tuple[ObjectId, Nodes]:
    root, nodes = build(many(20_000))
    assert root is not None
    return root, nodes


@pytest.mark.parametrize("number", [0, 1, 777, 10_000, 19_999])
def test_an_edit_of_one_key_touches_few_nodes(large: tuple[ObjectId, Nodes], number: int) -> None:
    """One of n keys is overwritten, inserted or deleted, also a node's first one, with O(log n) nodes."""
    root, nodes = large
    key = f"key/{number:07}"
    first = next(key for i in range(number // 2, 20_000) if tree.level(key := f"key/{i:07}") > 0)
    height = Node.decode(nodes.bodies[root]).height
    assert height <= math.log(20_000, 32) + 1
    for changes in ({key: b"new"}, {key: None}, {key + "+": b"x"}, {first: None}, {first + "+": b"x"}):
        nodes.read = []
        _, made, _ = tree.update(nodes, root, changes)
        most = (height + 1, height + 1) if b"new" in changes.values() else (8, 12)
        assert len(made) <= most[0]
        assert len(set(nodes.read)) <= most[1]
        assert sum(len(body) for _, body in made.values()) < 25_000


@pytest.mark.parametrize(
    "changes",
    [
        {"key/0000777": b"new"},
        {"key/0000777": None},
        {"key/0000777+": b"new"},
        {"a": b"first", "z": b"last"},
        {f"key/{i:07}": None for i in range(5000, 5100)},
        {f"key/{i:07}": b"y" for i in range(0, 20_000, 3000)},
    ],
    ids=["overwrite", "delete", "insert", "ends", "range", "spread"],
)
@pytest.mark.slow
def test_a_diff_reads_only_what_is_not_shared(
    large: tuple[ObjectId, Nodes], changes: dict[str, bytes | None]
) -> None:
    """A diff reads no node that both trees have, and each other one once at the most."""
    old, nodes = large
    new = nodes.update(old, changes)
    shared = nodes.below(old) & nodes.below(new)
    found: list[object] = []
    assert not nodes.during(lambda: found.extend(tree.diff(nodes.many, old, new))) & shared
    assert len(nodes.read) == len(set(nodes.read))
    assert len(found) == len(changes)


def test_a_diff_reads_leaves_as_it_goes(
    large: tuple[ObjectId, Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves are read a batch at a time, and the changes come in order: overwritten, new and deleted keys."""
    monkeypatch.setattr(tree, "DIFF_BATCH", 3)
    old, nodes = large
    before = many(20_000)
    changes: dict[str, bytes | None] = dict.fromkeys(list(before)[::40], b"new")
    changes |= dict.fromkeys([key for key in before if tree.level(key)][::5])
    changes |= {f"key/{i:07}+": b"x" for i in range(0, 20_000, 70)}
    new = nodes.update(old, changes)
    nodes.read = []
    found = tree.diff(nodes.many, old, new)
    first = next(found)
    assert len(nodes.read) < 100
    after = {key: value for key, value in {**before, **changes}.items() if value is not None}
    assert [first, *found] == differences(before, after)


def test_a_read_touches_few_nodes(large: tuple[ObjectId, Nodes]) -> None:
    """A lookup and the first item of a scan read one node a height, and a prefix only its own leaves."""
    root, nodes = large
    height = Node.decode(nodes.bodies[root]).height
    for key in ("key/0012345", "nothing", "", "zzz"):
        assert len(nodes.during(lambda key=key: tree.lookup(nodes, root, key))) <= height + 1
    for reverse in (False, True):
        scan = partial(tree.scan, nodes.many, root, reverse=reverse)
        assert len(nodes.during(lambda scan=scan: next(scan()))) == height + 1
        assert len(nodes.during(lambda scan=scan: list(scan("key/000123")))) <= height + 4
    assert len(nodes.during(lambda: tree.count_prefix(nodes, root, "key/00"))) <= 2 * (height + 1)
    assert nodes.during(lambda: tree.count(nodes, root)) == {root}


def test_the_empty_tree_is_none() -> None:
    """No keys is no root, also after deletes, and deleting from nothing writes nothing."""
    root, nodes = build({"a": b"1"})
    assert nodes.update(root, {"a": None}) is None
    assert tree.update(nodes, None, {"a": None}) == (None, {}, [])
    assert list(tree.scan(nodes.many, None)) == list(tree.diff(nodes.many, None, None)) == []
    assert tree.count(nodes, None) == tree.count_prefix(nodes, None, "a") == 0
    assert tree.lookup(nodes, None, "a") is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xc0", b"\x94\0\x90\x90\x90", b"\x94\0\x91\1\x91\xc4\1a\x90", b"\x93\0\x90\x90"),
        *(b"\xc1", b"\x81\x01"),
        *(encode([0, ["a"], [b"\x92\0\1"], [], each]) for each in ([None], [1, 2], ["1"], [True], None)),
        encode([0, ["a"], [b"\x92\0\1"], [], [1], []]),
        *(encode([1, ["a"], [oid], [count]]) for oid, count in ((b"short", 1), (bytes(32), "1"))),
    ],
)
def test_malformed_nodes_are_refused(body: bytes) -> None:
    """Bytes that are no tree node raise ValueError."""
    with pytest.raises(ValueError):
        Node.decode(body)


def test_a_node_of_many_keys_is_read() -> None:
    """A node of over 1,000 keys does not occur by chance. One that chosen keys made is read too."""
    keys = [f"{number:04}" for number in range(1_001)]
    assert Node.decode(encode([0, keys, [b"value"] * len(keys), []])).keys == keys


@pytest.mark.slow
def test_a_node_in_memory_that_is_the_root_again() -> None:
    """A new node stays correct in a cache, and is written as any other after its neighbour is deleted."""
    kept: dict[bytes, Node] = {}

    def update(root: ObjectId | None, changes: Values | dict[str, bytes | None]) -> ObjectId | None:
        root, _, nodes = tree.update(kept.__getitem__, root, changes)
        kept.update(nodes)
        assert not any(type(item) is Node for _, node in nodes for item in node.items)
        return root

    values = many(3000)
    root = update(None, values)
    assert root is not None
    top = kept[root]
    assert top.height > 1
    changed = {top.keys[0]: b"new", top.keys[1]: b"new"}
    root = update(root, changed)
    rest = {key: value for key, value in values.items() if key < top.keys[1]}
    root = update(root, {key: None for key in values if key not in rest})
    assert root == build({**rest, top.keys[0]: b"new"})[0]
    assert root is not None
    assert kept[root].height == top.height - 1
    assert update(root, dict.fromkeys(rest, b"newer")) == build(dict.fromkeys(rest, b"newer"))[0]
