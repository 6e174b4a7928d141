"""Checkouts: the branches and commits that HEAD was on, by its reflog."""

from __future__ import annotations

import re

from vstate.errors import NotFound
from vstate.repo.names.refs import DEFAULT_BRANCH, HEAD, HEADS, Refs

_TO = re.compile(r"(?:(?:checkout|switch): to|clone: on) (.+)")
_RENAMED = re.compile(r"branch: renamed to (.+)")


def previous_checkout(refs: Refs) -> str:
    """The branch, or the id of the commit, that HEAD was on before it came to where it is now.

    A branch that was renamed meanwhile has its new name. NotFound if HEAD was nowhere else.
    """
    head = refs.head()
    for line in refs.reflog(HEAD):
        match = _TO.fullmatch(line.action)
        if match is None:
            continue
        name = _name_now(refs, match[1])
        if name == head.branch:
            continue
        # The line of a detached HEAD shows an abbreviated id.
        if line.new is None or name != line.new.short or refs.read(HEADS + name) is not None:
            return name
        if head.branch is not None or line.new != head.commit:
            return str(line.new)
    first = _name_now(refs, DEFAULT_BRANCH)
    if first == head.branch or refs.read(HEADS + first) is None:
        raise NotFound("HEAD was on no other branch or commit before; name one", name="-")
    return first


def _name_now(refs: Refs, branch: str) -> str:
    """The name that a branch has now, after its renames."""
    seen = {branch}
    while refs.read(HEADS + branch) is None:
        last = next(refs.reflog(HEADS + branch), None)
        match = None if last is None else _RENAMED.fullmatch(last.action)
        if match is None or match[1] in seen:
            break
        branch = match[1]
        seen.add(branch)
    return branch
