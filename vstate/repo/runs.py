"""Runs: the records of the steps that runs have done, a branch for each run. Nothing here unpickles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

from vstate.objects import tree
from vstate.objects.commit import Commit
from vstate.repo.core import Core
from vstate.repo.names.refs import absent, quote_ref

RUNS: Final = "runs/"
"""What the branches of runs begin with, and the names of their leases."""

STEP: Final = "step/"
"""What the keys on such a branch begin with. The id of the step follows, and one of the next three."""

RECORD: Final = "/record"
ARGUMENTS: Final = "/arguments"
RESULT: Final = "/result"

INFO: Final = "run"
"""In the info of a commit: on a run's branch, the run; on the state's branch, which edits of it are there."""

DONE: Final = "done"
FAILED: Final = "failed"
OPEN: Final = "open"
"""The status of a step that was begun, and of which nobody knows whether it was done."""


def branch_of_run(id: str) -> str:
    """The branch with the records of a run."""
    return RUNS + quote_ref(id)


class Step(NamedTuple):
    """The record of a step. Times are seconds since 1970.

    `key` is the idempotency key of a step that is done once. `error` says why it failed, or why it is open.
    `went_on` is the position of what follows it, if the program had gone on before the step was done.
    """

    id: str
    position: int
    function: str
    status: str
    began: float
    ended: float | None = None
    attempts: int = 0
    key: str = ""
    error: str = ""
    went_on: int = 0

    def stored(self) -> tuple[Any, ...]:
        """The record as a value. A short tuple lies in the tree itself."""
        return tuple(self[1:])


class RunInfo(NamedTuple):
    """A run as of its newest commit, which was made at `time`. `open` are the ids of the steps that are open.

    `branch` is the branch of the state, and `after` the order of its commit that the run began on. `ended`
    says that the with block came to its end.
    """

    id: str
    branch: str
    began: datetime
    time: datetime
    steps: int
    open: Sequence[str]
    ended: bool
    after: int

    def stored(self) -> dict[str, Any]:
        """The run as the info of a commit, which has the time."""
        found = {name: value for name, value in self._asdict().items() if name != "time"}
        return found | {"began": self.began.isoformat(), "open": [*self.open]}

    @classmethod
    def of(cls, commit: Commit) -> Self | None:
        """The run of a commit; None if the commit is of something else."""
        info = commit.info.get(INFO)
        if not isinstance(info, dict) or info.keys() != _FIELDS:
            return None
        return cls(**{**info, "began": datetime.fromisoformat(info["began"]), "time": commit.time})


_FIELDS: Final = {*RunInfo._fields} - {"time"}


def list_runs(core: Core) -> list[RunInfo]:
    """All runs, the newest first."""
    found = (RunInfo.of(commit) for _, commit in core.newest_branches(RUNS))
    return [run for run in found if run is not None]


def read_run(core: Core, id: str) -> tuple[Commit, RunInfo, list[Step]]:
    """A run with its newest commit, and its steps in the order in which they were begun; NotFound."""
    commit = core.newest(branch_of_run(id))
    run = None if commit is None else RunInfo.of(commit)
    if commit is None or run is None:
        raise absent(f"no run {id!r}", id, [each.id for each in list_runs(core)], "run", "vstate runs")
    return commit, run, steps_of(tree.scan(core.objects.nodes, commit.root, STEP), core.inspect)


def steps_of(rows: Iterable[tuple[str, bytes]], read: Callable[[str, bytes], Any]) -> list[Step]:
    """The steps among the rows of a run's branch, in the order in which they were begun."""
    return in_order(
        Step(key[len(STEP) : -len(RECORD)], *read(key, data)) for key, data in rows if is_record(key)
    )


def is_record(key: str) -> bool:
    """Whether a key of a run's branch has the record of a step."""
    return key.startswith(STEP) and key.endswith(RECORD)


def in_order(steps: Iterable[Step]) -> list[Step]:
    """The steps in the order in which they were begun."""
    return sorted(steps, key=lambda step: (step.position, step.began))
