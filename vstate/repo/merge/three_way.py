"""The three-way merge of two states, key by key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal

from vstate.arguments import called
from vstate.errors import StorageError, VStateError
from vstate.objects import tree
from vstate.objects.commit import Commit, microseconds
from vstate.objects.expiry import EXPIRING, Expiry, is_expired, moment_of, split_expiry, with_expiry
from vstate.objects.ids import NewObjects, ObjectId
from vstate.objects.tree import KeyChange, Node
from vstate.plural import counted
from vstate.repo.core import Core
from vstate.repo.objects import Overlay
from vstate.repo.rules.policies import APPEND, NEWEST, OURS, THEIRS, Policy
from vstate.values.absent import ABSENT, Unmergeable
from vstate.values.entry import Reader

Strategy = Literal["up-to-date", "fast-forward", "merge"]

_MOST_BASES_DEEP = 16
_MOST_STEPS = 1000
_UNDECIDED = b""
"""Marks a key in a merged base on which the bases conflict. No real entry is empty."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge. `commit` is the branch's commit now; None before the first commit.

    `strategy` is "up-to-date" (nothing to do), "fast-forward" (the branch moved to the other's commit) or
    "merge" (a commit with two parents). `merged_keys` are the keys whose value changed here, sorted.
    `conflicts` are the keys that both sides changed, each with the policy that resolved it.
    """

    commit: Commit | None
    strategy: Strategy
    merged_keys: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        at = "" if self.commit is None else f" at {self.commit.short}"
        by = ", ".join(f"{key!r} by {policy}" for key, policy in self.conflicts.items())
        if self.strategy == "up-to-date":
            return f"{self.strategy}{at}"
        keys = counted(len(self.merged_keys), "key")
        return f"{self.strategy}{at}: {keys}" + (f"; resolved {by}" if by else "")


class KeyConflict:
    """One key that both sides changed differently, and the reason why no policy resolved it.

    `base`, `ours` and `theirs` are its values, loaded on demand; ABSENT if the key is absent.
    """

    def __init__(self, key: str, reason: str, values: Mapping[str, Callable[[], Any]]) -> None:
        self.key = key
        self.reason = reason
        self._values = values
        self._loaded: dict[str, Any] = {}

    @property
    def base(self) -> Any:
        """The value in the merge base."""
        return self._value("base")

    @property
    def ours(self) -> Any:
        """The value on the branch."""
        return self._value("ours")

    @property
    def theirs(self) -> Any:
        """The value on the side that is merged into the branch."""
        return self._value("theirs")

    def _value(self, side: str) -> Any:
        if side not in self._loaded:
            self._loaded[side] = self._values[side]()
        return self._loaded[side]

    def __reduce__(self) -> tuple[object, ...]:
        # With the values, not their loaders, so that the error can go to another process.
        return _conflict_of, (self.key, self.reason, self.base, self.ours, self.theirs)

    def __repr__(self) -> str:
        return f"KeyConflict({self.key!r}: {self.reason})"


def _conflict_of(key: str, reason: str, base: Any, ours: Any, theirs: Any) -> KeyConflict:
    conflict = KeyConflict(key, reason, {})
    conflict._loaded = {"base": base, "ours": ours, "theirs": theirs}
    return conflict


Versions = Callable[[str], list[tuple[datetime, bytes | None]]]
"""The entries of a key on one side since the base, oldest first, each with its commit's time."""


class Resolver:
    """Resolves keys that both sides changed, by a branch's policies.

    `of_bases`: the sides are merge bases themselves. `onto_theirs`: theirs is the branch, and ours lands on
    it.
    """

    def __init__(
        self,
        repo: Core,
        policies: Callable[[], Mapping[str, Policy]],
        *,
        ours: Versions,
        theirs: Versions,
        reader: Reader | None = None,
        of_bases: bool = False,
        onto_theirs: bool = False,
    ) -> None:
        self._repo = repo
        self._onto_theirs = onto_theirs
        self._of_bases = of_bases
        self._read_policies = policies
        self._policies: Mapping[str, Policy] | None = None  # read when the first key needs one
        self._versions = {OURS: ours, THEIRS: theirs}
        self._reader = reader

    def resolve(
        self, key: str, base: bytes | None, ours: bytes | None, theirs: bytes | None
    ) -> tuple[bytes | None, NewObjects, str]:
        """The merged entry (None: the key goes), its new objects, and the policy's name; Unmergeable."""
        policy = self._repo.policies.find(self._policies_now(), key)
        if policy is None:
            raise Unmergeable("both sides changed it, and no merge policy applies")
        name = policy if isinstance(policy, str) else getattr(policy, "__name__", repr(policy))
        if self._of_bases and policy in (OURS, THEIRS, NEWEST):
            raise Unmergeable("neither merge base is ours or theirs")
        if policy == NEWEST:
            times = {side: versions(key)[-1][0] for side, versions in self._versions.items()}
            policy = OURS if times[OURS] >= times[THEIRS] else THEIRS
        if policy == OURS:
            return ours, {}, name
        if policy == THEIRS:
            return theirs, {}, name
        if isinstance(policy, str) and base == _UNDECIDED:
            raise Unmergeable("the two histories were merged crosswise, and their merge bases conflict")
        from vstate.values.merging import POLICIES, append_onto  # late, for a quick `import vstate`
        from vstate.values.tokens import same  # late, for a quick `import vstate`

        function = POLICIES[policy] if isinstance(policy, str) else policy
        if policy == APPEND and ours is not None and theirs is not None:
            function = append_onto if self._onto_theirs else self._in_order(key)
        sides = self.load(key, base), self.load(key, ours), self.load(key, theirs)
        if not isinstance(policy, str) and same(sides[1], sides[2]):
            return ours, {}, name  # equal, though their bytes differ: the order of a set, say
        merged = called(f"the merge policy {name}", function, *sides)
        if merged is NotImplemented:
            raise Unmergeable(f"the policy {name} returned NotImplemented")
        if merged is ABSENT:
            return None, {}, name
        encoded = self._repo.encode(merged)
        entry = with_expiry(encoded.entry, _merged_expiry(base, ours, theirs))
        return entry, encoded.objects, name

    def changed_at(self, key: str) -> dict[str, tuple[int, int]]:
        """The times of each side's first and last change of the key, in microseconds since 1970-01-01 UTC."""
        return {
            side: (microseconds(found[0][0]), microseconds(found[-1][0]))
            for side, versions in self._versions.items()
            for found in (versions(key),)
        }

    def adds_up(self, key: str) -> bool:
        """Whether two equal changes of the key count twice, as two steps of a counter do."""
        return self._repo.policies.adds_up(self._policies_now(), key)

    def _policies_now(self) -> Mapping[str, Policy]:
        if self._policies is None:
            self._policies = self._read_policies()
        return self._policies

    def _in_order(self, key: str) -> Callable[[Any, Any, Any], Any]:
        from vstate.values.merging import append_in_order  # late, as above

        def append(base: Any, ours: Any, theirs: Any) -> Any:
            steps = [
                [(time, self.load(key, entry)) for time, entry in versions(key)]
                for versions in self._versions.values()
            ]
            return append_in_order(base, *steps)

        return append

    def load(self, key: str, entry: bytes | None) -> Any:
        """A new copy of an entry's value; ABSENT for none."""
        if entry is None or entry == _UNDECIDED:
            return ABSENT
        return self._repo.load(key, entry, self._reader).value

    def conflict(
        self, key: str, reason: str, base: bytes | None, ours: bytes | None, theirs: bytes | None
    ) -> KeyConflict:
        """The conflict of a key that no policy resolved."""
        sides = {"base": base, OURS: ours, THEIRS: theirs}
        return KeyConflict(
            key, reason, {side: partial(self.load, key, entry) for side, entry in sides.items()}
        )


@dataclass
class Merged:
    """The outcome for each key that theirs changed. An entry is None for a key that goes.

    `taken`: only theirs changed it. `agreed`: both changed it alike. `resolved`: a policy decided, whose
    name is in `by`, and whose new objects are in `objects`. `conflicts`: the rest.
    """

    taken: dict[str, bytes | None] = field(default_factory=dict)
    agreed: list[str] = field(default_factory=list)
    resolved: dict[str, bytes | None] = field(default_factory=dict)
    by: dict[str, str] = field(default_factory=dict)
    objects: NewObjects = field(default_factory=dict)
    conflicts: dict[str, KeyConflict] = field(default_factory=dict)


def merge_changes(
    ours: Mapping[str, bytes | None], theirs: Iterable[KeyChange], resolver: Resolver
) -> Merged:
    """Merge their changes since a base with ours since the same base.

    The cost depends on the changes alone.
    """
    merged = Merged()
    for key, base, new in theirs:
        if key in ours and any(entry and entry[:1] in EXPIRING for entry in (base, ours[key], new)):
            done, base = _resolve_by_expiry(key, base, ours[key], new, resolver, merged)
            if done:
                continue
        if key not in ours:
            merged.taken[key] = new
        elif ours[key] == new and (new is None or base == _UNDECIDED or not resolver.adds_up(key)):
            merged.agreed.append(key)
        else:
            decide = partial(resolver.resolve, key, base, ours[key], new)
            try:
                merged.resolved[key], objects, merged.by[key] = decide()
                merged.objects.update(objects)
            except Exception as error:  # a policy's function, and pickling its result, may raise anything
                merged.conflicts[key] = resolver.conflict(key, _reason(decide, error), base, ours[key], new)
    return merged


def _reason(decide: Callable[[], object], error: Exception) -> str:
    """The reason why the policy of a key decides nothing. Raises an error that is not the policy's own.

    A failing store decides no conflict, nor does MemoryError, nor an error that does not come again: the
    time limit of a program, say.
    """
    if isinstance(error, StorageError):
        raise error
    if isinstance(error, Unmergeable | VStateError):
        return str(error)
    from vstate.values.pickle_errors import own_error  # late: only errors need it

    error = own_error(decide, error)
    known = isinstance(error, Unmergeable | VStateError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _resolve_by_expiry(
    key: str, base: bytes | None, ours: bytes | None, theirs: bytes | None, resolver: Resolver, merged: Merged
) -> tuple[bool, bytes | None]:
    """Whether expiry alone decided the key, with the result in `merged`; and the base entry if it did not."""
    due = None if base is None else moment_of(base)
    if due is not None:
        at = resolver.changed_at(key)
        # Removing an expired key is no change. Values that both sides wrote after its expiry have no base.
        if theirs is None and at[THEIRS][1] >= due:
            return True, base
        if ours is None and at[OURS][1] >= due:
            merged.resolved[key], merged.by[key] = theirs, _BY_EXPIRY
            return True, base
        if min(at[OURS][0], at[THEIRS][0]) >= due:
            base = None
    if ours is None or theirs is None or ours == theirs:
        return False, base
    at = resolver.changed_at(key)
    for one, other, side in ((ours, theirs, THEIRS), (theirs, ours, OURS)):
        # The entry of one side had expired when the other side wrote: the rewrite stays.
        if is_expired(one, at[side][0]):
            merged.resolved[key], merged.by[key] = other, _BY_EXPIRY
            return True, base
    entry = _merged_entry(base, ours, theirs, adds_up=resolver.adds_up(key))
    if entry is not None:
        merged.resolved[key], merged.by[key] = entry, _BY_EXPIRY
    return entry is not None, base


_BY_EXPIRY = "expiry"


def _merged_expiry(base: bytes | None, ours: bytes | None, theirs: bytes | None) -> Expiry | None:
    """The expiry of a key that both sides changed: that of the side that changed it, or the later one."""
    before, one, other = (None if entry is None else split_expiry(entry)[1] for entry in (base, ours, theirs))
    if ours is None or (theirs is not None and one == before):
        return other
    if theirs is None or other == before:
        return one
    return None if one is None or other is None else max(one, other)


def _merged_entry(base: bytes | None, ours: bytes, theirs: bytes, *, adds_up: bool) -> bytes | None:
    """The merged entry if at most one side changed the value, or both alike; None if the values differ."""
    old, one, other = (None if entry is None else split_expiry(entry)[0] for entry in (base, ours, theirs))
    if one == other and (one == old or not adds_up):
        value = one
    elif one == old:
        value = other
    elif other == old:
        value = one
    else:
        return None
    return None if value is None else with_expiry(value, _merged_expiry(base, ours, theirs))


def versions_since(repo: Core, tip: Commit, bases: Collection[ObjectId]) -> Versions:
    """The versions of keys from the bases to a commit, along first parents.

    Only the last entry of a key, if first parents lead to no base, or only after more than 1,000 commits.
    """

    def versions(key: str) -> list[tuple[datetime, bytes | None]]:
        node = repo.objects.node
        found = [(tip.time, tree.lookup(node, tip.root, key))]
        for commit in repo.history.first_parents(tip.oid):
            entry = tree.lookup(node, commit.root, key)
            if commit.oid in bases:
                return [version for version in reversed(found) if version[1] != entry] or found[:1]
            if len(found) > _MOST_STEPS:
                break
            if entry == found[-1][1]:
                found[-1] = (commit.time, entry)  # this commit had the entry already
            else:
                found.append((commit.time, entry))
        return found[:1] if bases else list(reversed(found))

    return versions


def only_version(time: datetime, changes: Mapping[str, bytes | None]) -> Versions:
    """The versions of keys on a side with one commit."""
    return lambda key: [(time, changes[key])]


# The base


class Base:
    """The base of a merge: a tree, and the merge bases that it comes from.

    After crosswise merges there are several merge bases. Their own merge is the base then, as in git's
    recursive strategy; its nodes and new values are only in memory, here.
    """

    def __init__(
        self, repo: Core, one: Commit, other: Commit, policies: Callable[[], Mapping[str, Policy]]
    ) -> None:
        self._repo = repo
        self._policies = policies
        self._nodes: dict[bytes, Node] = {}
        self._objects: NewObjects = {}
        self.reader = Overlay(repo.objects, self._objects)
        self.commits = frozenset(repo.history.merge_bases(one.oid, other.oid))
        self.tree = self._merged([repo.objects.commit(oid) for oid in self.commits], _MOST_BASES_DEEP)

    def diff(self, root: ObjectId | None) -> Iterable[KeyChange]:
        """The keys in which a tree differs from the base."""
        return tree.diff(self.read_nodes if self._nodes else self._repo.objects.nodes, self.tree, root)

    def read_nodes(self, ids: Sequence[bytes]) -> list[Node]:
        """Nodes of the base and of stored trees."""
        if not self._nodes:
            return self._repo.objects.nodes(ids)
        stored = [oid for oid in ids if oid not in self._nodes]
        read = dict(zip(stored, self._repo.objects.nodes(stored), strict=True))
        return [self._nodes.get(oid) or read[oid] for oid in ids]

    def _merged(self, bases: list[Commit], deep: int) -> ObjectId | None:
        if not bases:
            return None
        bases.sort(key=lambda commit: (commit.order, commit.oid), reverse=True)
        first = bases[0]
        root = first.root
        for other in bases[1:] if deep else ():
            below = self._repo.history.merge_bases(first.oid, other.oid)
            before = self._merged([self._repo.objects.commit(oid) for oid in below], deep - 1)
            resolver = Resolver(
                self._repo,
                self._policies,
                ours=versions_since(self._repo, first, below),
                theirs=versions_since(self._repo, other, below),
                reader=self.reader,
                of_bases=True,
            )
            root = self._fold(before, root, other.root, resolver)
        return root

    def _fold(
        self, base: ObjectId | None, one: ObjectId | None, other: ObjectId | None, resolver: Resolver
    ) -> ObjectId | None:
        changed = {change.key: change.new for change in tree.diff(self.read_nodes, base, one)}
        merged = merge_changes(changed, tree.diff(self.read_nodes, base, other), resolver)
        folded = merged.taken | merged.resolved | dict.fromkeys(merged.conflicts, _UNDECIDED)
        self._objects.update(merged.objects)
        root, _, nodes = tree.update(lambda oid: self.read_nodes([oid])[0], one, folded)
        self._nodes.update(nodes)
        return root
