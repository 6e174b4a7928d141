"""Squashing: the older history of a branch becomes one commit, below the newest ones."""

from __future__ import annotations

from itertools import islice

from vstate.arguments import check_count
from vstate.objects.commit import Commit
from vstate.repo.core import Core
from vstate.repo.names.refs import HEADS

SQUASHED = "squashed"
"""In the info of a root that stands for an older history: the id of the commit with the same values."""


def squash(repo: Core, branch: str, keep: int, *, message: str, seen: Commit | None) -> Commit:
    """As `Repository.squash` promises."""
    check_count("keep", keep, 0)
    while True:
        head = seen or repo.branch(branch)
        chain = list(islice(repo.history.first_parents(head.oid), keep + 1))
        last = chain[-1]
        is_short = len(chain) <= keep or not last.parent_ids
        if is_short and all(len(commit.parent_ids) < 2 for commit in chain):
            if seen is not None:
                repo.require_at(branch, seen)
            return head
        for commit in chain:
            repo.require_trusted(commit)
        if not is_short:
            chain[-1] = Commit(
                root=last.root,
                parent_ids=(),
                time=last.time,
                order=last.order,
                message=message or f"Squash the history up to {last.short}",
                info={SQUASHED: last.id},
                events=(),
            )
        made: list[Commit] = []
        for commit in reversed(chain):
            again = Commit(
                root=commit.root,
                parent_ids=tuple(before.oid for before in made[-1:]),
                time=commit.time,
                order=commit.order,
                message=commit.message,
                info=commit.info,
                events=commit.events,
            )
            signed = repo.security.signed(again)
            made.append(Commit.decode(signed.oid, signed.body))  # so that its events name it
        action = f"squash: all but {keep}" if keep else "squash"
        if repo.publish(branch, made, {}, [], expected=head.oid, action=action, needs=[last.oid]):
            return made[-1]
        if seen is not None:
            raise repo.ref_moved(HEADS + branch, head.oid)
