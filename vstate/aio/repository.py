"""Repository: the operations of a store that need no working state, awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from vstate.aio.workers import Workers
from vstate.repo import repository as sync

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _awaited(
    function: Callable[Concatenate[Any, _P], _R],
) -> Callable[Concatenate[Repository, _P], Coroutine[Any, Any, _R]]:
    @wraps(function)
    async def method(self: Repository, /, *args: _P.args, **options: _P.kwargs) -> _R:
        return await self._workers.run(partial(getattr(self.sync, function.__name__), *args, **options))

    return method


class Repository:
    """The repository of an open state, `state.repo`. It moves branches without the state's working tree.

    A call that is cancelled has happened or has not: the cancellation is raised once that is settled.
    """

    def __init__(self, workers: Workers, repo: sync.Repository) -> None:
        self._workers = workers
        self.sync: Final = repo
        """The `vstate.repo.Repository` behind it, for the names that are not here."""

    commit = _awaited(sync.Repository.commit)
    commit_many = _awaited(sync.Repository.commit_many)
    newest = _awaited(sync.Repository.newest)
    branches = _awaited(sync.Repository.branches)
    branch_ids = _awaited(sync.Repository.branch_ids)
    branch_names = _awaited(sync.Repository.branch_names)
    labels = _awaited(sync.Repository.labels)
    possible_branches = _awaited(sync.Repository.possible_branches)
    create_branch = _awaited(sync.Repository.create_branch)
    delete_branch = _awaited(sync.Repository.delete_branch)
    rename_branch = _awaited(sync.Repository.rename_branch)
    gc = _awaited(sync.Repository.gc)
