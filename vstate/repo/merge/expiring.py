"""Expiring: the expiry of keys in a merge, and the removal of expired keys."""

from __future__ import annotations

from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.objects.expiry import EXPIRING, Expiry, split_expiry, with_expiry
from vstate.repo.core import Core


def any_expires(*entries: bytes | None) -> bool:
    """Whether one of these entries of a key expires."""
    return any(entry is not None and entry[:1] in EXPIRING for entry in entries)


def merged_expiry(base: bytes | None, ours: bytes | None, theirs: bytes | None) -> Expiry | None:
    """The expiry of a key that both sides changed: that of the side that changed it, or the later one."""
    before, one, other = (None if entry is None else split_expiry(entry)[1] for entry in (base, ours, theirs))
    if ours is None or (theirs is not None and one == before):
        return other
    if theirs is None or other == before:
        return one
    return None if one is None or other is None else max(one, other)


def merged_entry(base: bytes | None, ours: bytes, theirs: bytes, *, adds_up: bool) -> bytes | None:
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
    return None if value is None else with_expiry(value, merged_expiry(base, ours, theirs))


def purge(repo: Core, branch: str) -> tuple[Commit, Commit] | None:
    """Commit the removal of a branch's expired keys: the commits before and after; None if none expired."""
    while True:
        head = repo.newest(branch)
        if head is None:
            return None
        repo.require_trusted(head)
        gone = list(tree.expired(repo.objects.node, head.root, expiry.now()))
        if not gone:
            return None
        root, objects, nodes = tree.update(repo.objects.node, head.root, dict.fromkeys(gone))
        message = f"Purge {len(gone)} expired key{'' if len(gone) == 1 else 's'}"
        commit = repo.build_commit(root, (head,), message=message)
        if repo.publish(
            branch, [commit], objects, nodes, expected=head.oid, action=f"purge: {len(gone)} expired"
        ):
            return head, commit
