"""Expiring: what the expiry of keys means to a merge, and their removal."""

from __future__ import annotations

from vstate.objects import expiry, tree
from vstate.objects.commit import Commit
from vstate.objects.expiry import EXPIRING, Expiry, split_expiry, with_expiry
from vstate.repo.core import Core


def any_expires(*entries: bytes | None) -> bool:
    """Whether one of these entries, of one key, expires."""
    return any(entry is not None and entry[:1] in EXPIRING for entry in entries)


def merged_expiry(base: bytes | None, ours: bytes | None, theirs: bytes | None) -> Expiry | None:
    """When a key expires that both sides changed: as the one says that changed it, else the later of the two."""
    before, one, other = (None if entry is None else split_expiry(entry)[1] for entry in (base, ours, theirs))
    if ours is None or (theirs is not None and one == before):
        return other
    if theirs is None or other == before:
        return one
    return None if one is None or other is None else max(one, other)


def merged_entry(base: bytes | None, ours: bytes, theirs: bytes, *, adds_up: bool) -> bytes | None:
    """The entry of a key of which both sides did not change the value, or came to the same; None if they differ."""
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
    """Commit the removal of what has expired on the branch: the commit before, and that one. None if nothing has."""
    while True:
        head = repo.newest(branch)
        if head is None:
            return None
        repo.require_trusted(head)
        gone = list(tree.expired(repo.objects.node, head.tree, expiry.now()))
        if not gone:
            return None
        root, objects, nodes = tree.update(repo.objects.node, head.tree, dict.fromkeys(gone))
        message = f"Purge {len(gone)} expired key{'' if len(gone) == 1 else 's'}"
        commit = repo.build_commit(root, (head,), message=message)
        if repo.publish(
            branch, [commit], objects, nodes, expected=head.oid, action=f"purge: {len(gone)} expired"
        ):
            return head, commit
