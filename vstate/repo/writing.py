"""Writing: commits made of values that are handed over, without a working tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal

from vstate.arguments import check_new_key, check_several, check_state_key
from vstate.errors import CorruptObject, InvalidInput, Unpicklable
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit, Event
from vstate.objects.expiry import Expiry, with_expiry
from vstate.objects.ids import NewObjects, ObjectId
from vstate.repo.core import Advance, Core, Guard
from vstate.repo.names.dates import ttl_microseconds
from vstate.repo.names.refs import HEADS, check_ref_name, reflog_action
from vstate.repo.rules.labels import Label, check_labels, label_rows
from vstate.spans import Attributes, spanned
from vstate.values.entry import encode_value
from vstate.values.pickle_errors import culprit

Expected = Commit | Literal["anywhere"] | None
"""The commit that a branch must be at, None for a branch that must not exist, or any."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class BranchChanges:
    """Changes of one branch, for `Repository.commit_many`; the arguments are those of `commit`.

    The values are pickled here, once, however often the commit loses a race. Raises Unpicklable, which names
    each value that cannot be stored.

    With `room`, a new branch without a base gets a room of its own in the store: it can be deleted, and its
    garbage collected, at a cost of what it holds, and it shares no bytes with branches of other rooms.

    A new branch begins without history, or with `base` at that commit: one commit on top of it, even if
    nothing changes. RefMoved if the branch exists, NotFound if gc has removed the base.

    `merges` are further parents of the commit, which is made even if nothing changes.
    """

    __slots__ = (
        "_advance",
        "_anywhere",
        "_events",
        "_info",
        "_message",
        "_objects",
        "_room",
        "base",
        "branch",
        "entries",
        "expected",
        "labels",
        "merges",
        "ref",
    )

    def __init__(
        self,
        branch: str,
        *,
        set: Mapping[str, Any] = _NOTHING,
        delete: Iterable[str] = (),
        events: Iterable[Event] = (),
        expire: Mapping[str, float | timedelta] = _NOTHING,
        expect: Expected = "anywhere",
        base: Commit | None = None,
        merges: Sequence[Commit] = (),
        labels: Mapping[str, Label] | None = None,
        message: str = "",
        info: Mapping[str, Any] | None = None,
        room: bool = False,
    ) -> None:
        if expect is not None and not isinstance(expect, Commit) and expect != "anywhere":
            raise TypeError(f'expect is a Commit, None or "anywhere", not {type(expect).__name__}')
        if base is not None:
            if isinstance(expect, Commit):
                raise InvalidInput("a branch that begins at a base must not exist: leave `expect` out")
            expect = None
        self.base, self.merges = base, merges
        self._room = room
        self.branch = check_ref_name(branch)
        self.ref = HEADS + branch
        self.expected = expect if isinstance(expect, Commit) else None
        """The commit that the branch must be at; None if it may be anywhere, or must not exist."""
        self._anywhere = self.expected is None and expect == "anywhere"
        self._message, self._info = message, info
        self._advance: Advance | None = None
        self._events = tuple(events)
        self.labels = None if labels is None else check_labels(labels)
        self.entries, self._objects = _encode(set, expire)
        """The entry that each key gets in the tree, None for a key that is deleted."""
        for key in check_several(delete, "delete") if delete else ():
            if key in self.entries:
                raise InvalidInput(f"{key!r} is both set and deleted: choose one")
            self.entries[check_state_key(key)] = None

    def on(self, repo: Core, oid: ObjectId | None) -> Advance | None:
        """The changes as a commit on top of this commit, None if they change nothing; RefMoved.

        It is made once for one commit below it.
        """
        if self._advance is not None and self._advance.expected == oid:
            return self._advance
        expected = None if self.expected is None else self.expected.oid
        if not self._anywhere and oid != expected:
            raise repo.ref_moved(self.ref, expected)
        head = self.base if oid is None else self.expected or repo.objects.commit(oid)
        if head is not None:
            repo.require_trusted(head)
        before = None if head is None else head.root
        root, nodes_made, nodes = tree.update(repo.objects.node, before, self.entries)
        if root == before and not (self._events or self.base or self.merges) and self.labels is None:
            return None
        parents = (*(() if head is None else (head,)), *self.merges)
        made = repo.build_commit(root, parents, message=self._message, info=self._info, events=self._events)
        action = reflog_action("commit", made)
        objects = self._objects | nodes_made
        rows = {} if self.labels is None else label_rows(self.branch, made.oid, self.labels)
        self._advance = Advance(self.branch, (made,), objects, tuple(nodes), oid, action, rows, self._room)
        return self._advance


def commit_attributes(made: Sequence[Commit | None], *_: Any, **__: Any) -> Attributes:
    """The attributes of the span of commits."""
    commits = [commit for commit in made if commit is not None]
    events = sum(len(commit.events) for commit in commits)
    return {"commits": [commit.id for commit in commits], "events": events}


@spanned("commit", commit_attributes)
def commit_many(
    repo: Core, changes: Iterable[BranchChanges], guard: Guard | None = None
) -> list[Commit | None]:
    """As `Repository.commit_many` promises."""
    changes = list(changes)
    # One branch is mostly where it is expected. The transaction tests it, so it is not read first.
    expected = changes[0].expected if len(changes) == 1 and not changes[0].merges else None
    if expected is not None:
        try:
            advance = changes[0].on(repo, expected.oid)
            if advance is not None and repo.publish_all([advance], guard=guard):
                return [advance.commits[-1]]
        except CorruptObject:
            pass  # gc may have removed the tree of a commit that the branch has left
    refs = [each.ref for each in changes]
    needs = [commit.oid for each in changes for commit in (each.base, *each.merges) if commit is not None]
    if len(set(refs)) < len(refs):
        twice = next(each.branch for each in changes if refs.count(each.ref) > 1)
        raise InvalidInput(f"branch {twice!r} is there twice: give all of its changes at once")
    while True:
        heads = repo.refs.read_many(refs)
        try:
            made = [each.on(repo, head) for each, head in zip(changes, heads, strict=True)]
        except CorruptObject:
            for oid in needs:
                repo.require_stored(oid)
            if repo.refs.read_many(refs) == heads:
                raise
            continue  # a commit that a branch has just left was forgotten
        advances = [advance for advance in made if advance]
        still = dict[str, bytes | None]()
        if len(advances) < len(made):
            for ref, head, advance in zip(refs, heads, made, strict=True):
                if advance is None and advances:
                    # The others land only while this branch is as it was found.
                    still.update(repo.refs.condition(ref, head))
        if not advances or repo.publish_all(advances, expecting=still, needs=needs, guard=guard):
            return [None if advance is None else advance.commits[-1] for advance in made]


@spanned("commit", commit_attributes)
def commit_series(repo: Core, series: Sequence[Advance], guard: Guard | None = None) -> Sequence[Commit]:
    """Land commits of one branch, each on top of the one before, in one move; none if the race is lost."""
    whole = series[-1]
    if len(series) > 1:
        commits = [commit for advance in series for commit in advance.commits]
        objects: NewObjects = {}
        rows: dict[str, bytes | None] = {}
        for advance in series:
            objects |= advance.objects
            rows |= advance.rows
        nodes = [node for advance in series for node in advance.nodes]
        action = f"{whole.action} (and {len(commits) - 1} before it)"
        first = series[0]
        whole = Advance(
            whole.branch, commits, objects, nodes, first.expected, action, rows, first.in_new_room
        )
    return whole.commits if repo.publish_all([whole], guard=guard) else ()


def _encode(
    values: Mapping[str, Any], expire: Mapping[str, float | timedelta]
) -> tuple[dict[str, bytes | None], NewObjects]:
    """The entries of the values, and the objects that they need; Unpicklable names all culprits."""
    changes: dict[str, bytes | None] = {}
    objects: NewObjects = {}
    culprits: dict[str, str] = {}
    for key, value in values.items():
        try:
            encoded = encode_value(value)
        except Exception as error:  # pickling runs the classes' own code, which may raise anything
            culprits[key] = culprit(value, f"set[{key!r}]", error)
            continue
        changes[check_new_key(key)] = encoded.entry
        objects.update(encoded.objects)
    if culprits:
        raise Unpicklable(culprits, staged=False)
    for key, ttl in expire.items():
        entry = changes.get(key)
        if entry is None:
            raise InvalidInput(f"{key!r} has a time to live and no value: set it in the same commit")
        at = expiry.now() + ttl_microseconds(ttl)
        changes[key] = with_expiry(entry, Expiry(at))
    return changes, objects
