"""Writing: a commit made of values that are handed over, without a working tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from vstate.arguments import check_key
from vstate.errors import InvalidInput, Unpicklable
from vstate.objects import expiry, tree
from vstate.objects.commit import Commit, Event
from vstate.objects.expiry import Expiry, split_expiry, with_expiry
from vstate.objects.ids import NewObjects, ObjectId
from vstate.repo.core import Core, Guard
from vstate.repo.names.dates import ttl_microseconds
from vstate.repo.names.refs import HEADS, check_ref_name
from vstate.spans import Attributes, spanned
from vstate.values.culprits import culprit, own_error
from vstate.values.entry import encode_value


def told_of(made: Commit | None, *_: Any, **__: Any) -> Attributes:
    """The attributes of the span of a commit."""
    return {} if made is None else {"commit": made.id, "events": len(made.events)}


Expected = Commit | Literal["anywhere"] | None
"""The commit that a branch must be at, None for a branch that must not exist, or any."""


@spanned("commit", told_of)
def commit(
    repo: Core,
    branch: str,
    values: Mapping[str, Any],
    deleted: Iterable[str],
    events: Iterable[Event],
    *,
    expect: Expected,
    expire: Mapping[str, float | timedelta],
    message: str,
    info: Mapping[str, Any],
    guard: Guard | None,
) -> Commit | None:
    """As `Repository.commit` promises."""
    ref, events = HEADS + check_ref_name(branch), tuple(events)
    changes, objects = _encode(values, expire)
    for key in deleted:
        if key in changes:
            raise InvalidInput(f"{key!r} is both set and deleted: choose one")
        changes[check_key(key)] = None
    while True:
        head = repo.newest(branch)
        if expect != "anywhere" and head != expect:
            raise repo.ref_moved(ref, expect.oid if isinstance(expect, Commit) else None)
        if head is not None:
            repo.require_trusted(head)
        before, expected = (None, None) if head is None else (head.root, head.oid)
        root, nodes_made, nodes = tree.update(
            repo.objects.node, before, _with_sliding(repo, before, changes, expire)
        )
        if root == before and not events:
            return None
        made = repo.build_commit(
            root, () if head is None else (head,), message=message, info=info, events=events
        )
        new, action = objects | nodes_made, reflog_action("commit", made)
        if repo.publish(branch, [made], new, nodes, expected=expected, action=action, guard=guard):
            return made


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
            culprits[key] = culprit(value, f"set[{key!r}]", own_error(partial(encode_value, value), error))
            continue
        changes[check_key(key)] = encoded.entry
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


def _with_sliding(
    repo: Core,
    root: ObjectId | None,
    changes: Mapping[str, bytes | None],
    expire: Mapping[str, float | timedelta],
) -> Mapping[str, bytes | None]:
    """The changes; a key whose expiry slides begins anew, as one that is set on a `Versioned`."""
    if root is None or repo.objects.node(root).expiries is None:
        return changes
    sliding: dict[str, bytes | None] = {}
    for key, entry in changes.items():
        old = None if entry is None or key in expire else tree.lookup(repo.objects.node, root, key)
        due = None if old is None else split_expiry(old)[1]
        if entry is not None and due is not None and due.ttl and not due.is_over:
            sliding[key] = with_expiry(entry, due.begun_anew(expiry.now()))
    return {**changes, **sliding}


def reflog_action(operation: str, commit: Commit) -> str:
    """The text of a line of the reflog: the operation and the first line of the commit's message."""
    summary = commit.message.strip().split("\n", 1)[0][:80]
    return f"{operation}: {summary}" if summary else operation
