"""History: walking from a commit to its ancestors."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.objects import Objects

_SHOWN = 50


def ancestors(objects: Objects, start: ObjectId) -> Iterator[Commit]:
    """The commit and all before it, newest first: by time, and no commit before one of its children.

    That holds because a commit is never dated before its parents. Reads commits as it goes.
    """
    first = objects.commit(start)
    queue = [(-first.time.timestamp(), 0, first)]
    seen = {start}
    number = 0
    while queue:
        _, _, commit = heapq.heappop(queue)
        yield commit
        for parent in commit.parents:
            if parent not in seen:
                seen.add(parent)
                number += 1
                found = objects.commit(parent)
                heapq.heappush(queue, (-found.time.timestamp(), number, found))


class Log(Iterator[Commit]):
    """An iterator of commits, newest first, read as they are asked for; as text, the newest of them."""

    def __init__(self, walk: Callable[[], Iterator[Commit]]) -> None:
        self._walk = walk
        self._commits = walk()

    def __next__(self) -> Commit:
        return next(self._commits)

    def __str__(self) -> str:
        lines = [str(commit) for commit in islice(self._walk(), _SHOWN + 1)]
        return "\n".join([*lines[:_SHOWN], "…"] if len(lines) > _SHOWN else lines) or "no commits"

    def __repr__(self) -> str:
        newest = next(self._walk(), None)
        return "<Log, no commits>" if newest is None else f"<Log from {newest.short}>"

    def _repr_html_(self) -> str:
        from html import escape  # only a notebook asks

        return f"<pre>{escape(str(self))}</pre>"


def touching(objects: Objects, start: ObjectId, key: str) -> Iterator[Commit]:
    """The commits among `ancestors` that changed the key: where it differs from every parent."""
    for commit in ancestors(objects, start):
        here = tree.lookup(objects.node, commit.tree, key)
        before = [
            tree.lookup(objects.node, objects.commit(parent).tree, key) for parent in commit.parents
        ] or [None]
        if here not in before:
            yield commit


def is_ancestor(objects: Objects, ancestor: ObjectId, of: ObjectId) -> bool:
    """Whether `ancestor` is `of` or before it."""
    if ancestor == of:
        return True
    time = objects.commit(ancestor).time
    for commit in ancestors(objects, of):
        if commit.oid == ancestor:
            return True
        if commit.time < time:
            return False
    return False
