"""Rolling back: keys of one part of a branch, without the other parts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from vstate.errors import InvalidInput
from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.repository import Repository, Revision
from vstate.state.namespace import Namespace
from vstate.state.versioned import Versioned


def roll_back(
    part: Namespace, key: str | None, steps: int, rev: Revision | None, ttl: float | None = None
) -> None:
    """Set a key, or all of the part, to what was before the last `steps` commits that changed it, or at `rev`.

    It is staged; what is set expires in `ttl` seconds. Raises InvalidInput if there were fewer.
    """
    state = part.root
    assert isinstance(state, Versioned)
    if rev is not None and steps != 1:
        raise InvalidInput("a rollback takes a revision, or a number of steps, not both")
    prefix = part.prefix if key is None else part.prefix + key
    if rev is None:
        changes = list(islice(_changes(state, prefix, whole=key is not None), steps))
        if len(changes) < steps:
            what = "the state" if key is None else repr(key)
            raise InvalidInput(f"{what} has changed {len(changes)} times, which is fewer than {steps}")
        before = next(iter(state.repo.history.before(changes[-1])), None)
    else:
        before = state.checkout(rev).commit
    then = {} if before is None else state.checkout(before)
    if key is not None:
        names = {key}
    else:
        differ = tree.diff(state.repo.objects.nodes, before.tree if before else None, _head(state).tree)
        names = {change.key[len(prefix) :] for change in differ if change.key.startswith(prefix)}
    for name in names:
        if part.prefix + name in then:
            part[name] = then[part.prefix + name]
            if ttl is not None:
                part.expire(name, ttl)
        else:
            part.pop(name, None)


def _changes(state: Versioned, prefix: str, *, whole: bool) -> Iterator[Commit]:
    """The commits along the branch that changed a key with this prefix, or the key itself; newest first."""
    if state.head is None:
        return
    for commit in state.repo.history.first_parents(state.head.oid):
        before = next(iter(state.repo.history.before(commit)), None)
        if _differ(state.repo, before, commit, prefix, whole=whole):
            yield commit


def _differ(repo: Repository, before: Commit | None, after: Commit, prefix: str, *, whole: bool) -> bool:
    old = before.tree if before is not None else None
    if whole:
        node = repo.objects.node
        return tree.lookup(node, old, prefix) != tree.lookup(node, after.tree, prefix)
    return any(change.key.startswith(prefix) for change in tree.diff(repo.objects.nodes, old, after.tree))


def _head(state: Versioned) -> Commit:
    assert state.head is not None
    return state.head
