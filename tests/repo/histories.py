"""Histories of any shape, and the objects that a store needs."""

from __future__ import annotations

import random
from io import BytesIO
from pathlib import Path

from bundle_files import large

from vstate import Commit, Disk, KVStore, Memory, Versioned
from vstate.errors import Diverged, InvalidInput, MergeConflict, NotFound
from vstate.objects.ids import BLOB, COMMIT, INDEX, TREE
from vstate.objects.stream import is_single, read_index
from vstate.repo import Repository
from vstate.repo.objects import Objects
from vstate.repo.writing import BranchChanges
from vstate.testing import Faulty
from vstate.values.entry import Entry


def plain() -> Faulty:
    """A store without transactions: nothing keeps others out."""
    return Faulty(Memory(), atomic=False)


def opened(kind: str, tmp_path: Path) -> KVStore:
    """An empty store: `memory`, `disk`, or `plain`."""
    if kind == "disk":
        return Disk(tmp_path / "store", durability="process")
    return Memory() if kind == "memory" else plain()


def objects_of(store: KVStore) -> set[str]:
    return {key.removeprefix("o/") for key in store.keys("o/")}


def rows_of(store: KVStore) -> dict[str, bytes]:
    return dict(store.items())


def needed(store: KVStore, *, reflog: bool = True) -> set[str]:
    """The objects that refs, and with `reflog` its lines, lead to: read one at a time."""
    objects, repo = Objects(store), Repository(store)
    waiting = [(COMMIT, oid) for oid in repo.refs.all().values()]
    for key, value in store.items("reflog/") if reflog else ():
        line = repo.refs.parse_line(key, value)
        waiting += [(COMMIT, oid) for oid in (line.old, line.new) if oid and f"o/{oid}" in store]
    found: set[str] = set()
    while waiting:
        kind, oid = waiting.pop()
        if str(oid) in found:
            continue
        found.add(str(oid))
        if kind is COMMIT:
            commit = objects.commit(oid)
            waiting += [(COMMIT, parent) for parent in repo.history.parents(commit)]
            waiting += [(TREE, commit.root)] if commit.root is not None else []
        elif kind is TREE:
            node = objects.node(oid)
            waiting += [(TREE, child) for child in node.children()]
            for item in () if node.height else node.items:
                links = Entry.decode(item).links
                waiting += [(BLOB if is_single(link) else INDEX, link.id) for link in links]
        elif kind is INDEX:
            height, ids, _ = read_index(objects.read(INDEX, oid))
            waiting += [(BLOB if height == 1 else INDEX, child) for child in ids]
    return found


def sound(store: KVStore) -> None:
    """Nothing that a ref leads to is missing or damaged."""
    report = Repository(store).fsck()
    assert report.ok, str(report)


class Tangle:
    """Branches that share commits and values in every way that the verbs allow."""

    def __init__(self, store: KVStore, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.repo = Repository(store)
        self.made = 0
        self.write("main", "start", large(0))

    def write(self, branch: str, key: str, value: object) -> None:
        self.repo.commit(branch, set={key: value})

    def pick(self) -> str:
        return self.chance.choice(self.repo.branch_names())

    def rev(self) -> Commit:
        """The head of a branch, or a commit before it."""
        return self.chance.choice(list(self.repo.log(self.pick(), limit=4)))

    def value(self) -> list[object]:
        # Few different values, so branches write equal ones, and old ones come back.
        noise = random.Random(self.chance.randrange(4)).randbytes(self.chance.choice((60, 400, 20_000)))
        return [noise, self.chance.randrange(2)]

    def commit(self) -> None:
        branch = self.pick()
        for _ in range(self.chance.randrange(1, 4)):
            self.write(branch, f"k{self.chance.randrange(3)}", self.value())

    def commit_by_handle(self) -> None:
        """A commit that loses a race, so that a merge commit follows."""
        branch = self.pick()
        ours, theirs = (Versioned(self.store, branch=branch) for _ in range(2))
        theirs["theirs"], ours[f"ours{self.chance.randrange(3)}"] = self.value(), self.value()
        theirs.commit("theirs")
        ours.commit("ours")

    def commit_to_two(self) -> None:
        if self.store.transactional:
            value = self.value()
            names = {self.pick(), self.new()}
            self.repo.commit_many([BranchChanges(name, set={"both": value}) for name in names])

    def new(self) -> str:
        self.made += 1
        return f"b{self.made}"

    def begin(self) -> None:
        for _ in range(3):
            self.write(f"b{self.made}", "k0", self.value())

    def fork(self) -> None:
        self.repo.create_branch(self.new(), self.rev())

    def take(self) -> None:
        branch, rev = self.pick(), self.rev()
        self.chance.choice(
            (
                lambda: self.repo.merge(branch, rev, policy="theirs"),
                lambda: self.repo.cherry_pick(branch, rev, policy="theirs"),
                lambda: self.repo.revert(branch, rev, policy="theirs"),
                lambda: self.repo.move_branch(branch, rev),
                lambda: self.repo.rollback(branch, rev),
                lambda: self.repo.restore(branch, rev, ["k1"]),
                lambda: self.repo.undo(branch),
                lambda: self.repo.squash(branch, keep=self.chance.randrange(3)),
            )
        )()

    def name(self) -> None:
        if self.chance.random() < 0.5:
            self.repo.create_tag(f"t{self.new()}", self.rev())
        elif self.chance.random() < 0.5:
            self.repo.checkout(self.chance.choice((self.rev().id, self.pick())))
        else:
            self.repo.rename_branch(self.pick(), self.new())

    def drop(self) -> None:
        self.chance.choice(
            (
                lambda: self.repo.delete_branch(self.pick()),
                lambda: self.repo.delete_branch(self.pick(), forget=True),
                lambda: self.repo.gc(keep_reflog="0s", branch=self.pick(), keep_last=2),
                lambda: self.repo.gc(keep_reflog="0s"),
                lambda: self.repo.delete_tag(self.chance.choice([*self.repo.tags(), "none"])),
            )
        )()

    def exchange(self) -> None:
        """A store receives objects of which it has some already."""
        other = Tangle(Memory(), self.chance.randrange(100))
        for _ in range(4):
            other.commit()
        if self.chance.random() < 0.5:
            other.repo.push(self.store, "main", remote="x", force=True)
        else:
            file = BytesIO()
            other.repo.export(file, ["main"])
            file.seek(0)
            self.repo.import_bundle(file, prefix=self.new() + "-")

    def grow(self, steps: int) -> None:
        verbs = (self.commit, self.begin, self.fork, self.take, self.name, self.drop, self.commit_by_handle)
        for verb in self.chance.choices(verbs, (8, 3, 3, 5, 2, 2, 1), k=steps):
            if self.chance.random() < 0.06:
                verb = self.chance.choice((self.exchange, self.commit_to_two))
            try:
                verb()
            except (InvalidInput, NotFound, MergeConflict, Diverged):
                pass
