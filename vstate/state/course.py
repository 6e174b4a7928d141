"""Course: the order of a run's steps, and which of the edits between them the state has.

The step at position n has two places for edits: 2n, right before it, and 2n + 1, right after it. So the edits
between two calls lie in two places. While the steps come in the recorded order, the state has both places or
neither. If it has one of them, nobody can tell whether it has the edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from vstate.repo.runs import Step

START, END = "the start", "the end"
"""The id of no step has these forms. The end of a run is called as a step is, and has no record."""


class Landed(NamedTuple):
    """The places whose edits a commit of the state has: all up to `reached`, but for the `missing` ones.

    `flying` has the positions of the steps that had begun and had no record yet.
    """

    reached: int = 0
    missing: Sequence[int] = ()
    flying: Mapping[str, int] = {}

    def has(self, place: int) -> bool:
        return place <= self.reached and place not in self.missing

    def join(self, other: Landed) -> Landed:
        """The places of both, as a merge brings the edits of both parents."""
        first, second = (self, other) if self.reached > other.reached else (other, self)
        missing = [place for place in first.missing if not second.has(place)]
        return Landed(first.reached, missing, {**second.flying, **first.flying})

    def stored(self) -> dict[str, Any]:
        """It as info of a commit."""
        return {name: value for name, value in self._asdict().items() if value}

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Self:
        return cls(**{name: info[name] for name in cls._fields if name in info})


class Course:
    """The calls of one entry of a run, and what the state had when the run was entered (`found`).

    An event loop calls steps while a thread commits the edits of others.
    """

    def __init__(self, found: Landed, steps: Sequence[Step]) -> None:
        self.found = self._landed = found
        self.flying = dict(found.flying)
        """The positions of the steps without a record."""
        self.unsettled: dict[str, tuple[int, int]] = {}
        """The places right before a step, as long as nobody has looked whether the state has their edits."""
        self._before = {**found.flying, **{step.id: step.position for step in steps}}
        self._after = {START: 0, **self._before, **{step.id: step.went_on for step in steps if step.went_on}}
        self._last = max(self._after.values())
        self._called = set[str]()
        self._previous = START
        self._passed = set[int]()
        """The places that no commit of this entry has yet."""

    def call(self, id: str) -> int:
        """The position of a step that is called."""
        if id not in self._before:
            self._last += 1
            self._before[id] = self._after[id] = self.flying[id] = self._last
        if id not in self._called:
            self._called.add(id)
            places = 2 * self._after[self._previous] + 1, 2 * self._before[id]
            self._passed.update(places)
            self._previous = id
            if min(places) <= self.found.reached:
                self.unsettled[id] = places
        return self._before[id]

    def has_edits_before(self, id: str) -> bool | None:
        """Whether the state had the edits right before an unsettled step; None if nobody can tell."""
        after_last, before_this = map(self.found.has, self.unsettled[id])
        return before_this if after_last == before_this else None

    def move_on(self, step: Step) -> int:
        """A new position for the edits after a step, if the program had gone on before the step was done."""
        if not self.found.has(2 * step.position + 1):
            return 0
        self._last += 1
        self._after[step.id] = self._last
        return self._last

    def landing(self, id: str) -> Landed:
        """What the state has once all edits until now have landed, with the record of this step."""
        passed, last = self._passed.copy(), self._landed
        reached = max([last.reached, *passed])
        between = (*last.missing, *range(last.reached + 1, reached + 1))
        flying = self.flying.copy()
        if id != END:
            flying.pop(id, None)
        return Landed(reached, [place for place in between if place not in passed], flying)

    def landed(self, landed: Landed) -> None:
        """The edits of `landing` are in the state."""
        self._landed = landed
        self._passed.difference_update([place for place in self._passed.copy() if landed.has(place)])
