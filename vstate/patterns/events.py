"""EventStream: events in order, and folds over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, overload

from vstate.arguments import check_count
from vstate.patterns.folds import Folds
from vstate.patterns.paths import Id
from vstate.patterns.sequence import Sequence
from vstate.state.base import ReadableState

A = TypeVar("A")
E = TypeVar("E")


class EventStream(Generic[E]):
    """Events, one key each, in a state, a namespace, or a snapshot. `sequence` is the Sequence of them.

    Events are appended and never changed; they go in and come out as copies. Events that two branches
    appended merge without a conflict, in the order that `Sequence` describes.
    """

    def __init__(self, state: ReadableState, name: Id) -> None:
        self.sequence: Sequence[E] = Sequence(state, name)
        self._folds = Folds(state, name, self.sequence)

    def append(self, event: E) -> str:
        """Append an event, and return its key in the state.

        The newest checkpoints of folds are written too, so other processes need not fold again.
        """
        key = self.sequence.append(event)
        self._folds.store()
        return key

    def extend(self, events: Iterable[E]) -> None:
        """Append events in their order: all of them, or none if the iteration raises."""
        self.sequence.extend(events)
        self._folds.store()

    def __len__(self) -> int:
        return len(self.sequence)

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> list[E]: ...

    def __getitem__(self, index: int | slice) -> E | list[E]:
        """The event at a position, or the events of a slice."""
        return self.sequence[index]

    def __iter__(self) -> Iterator[E]:
        return iter(self.sequence)

    def __reversed__(self) -> Iterator[E]:
        return reversed(self.sequence)

    def last(self, number: int) -> list[E]:
        """The last events, oldest first."""
        return self.sequence.last(number)

    def __repr__(self) -> str:
        return repr(self.sequence).replace("Sequence", "EventStream", 1)

    def fold(self, apply: Callable[[A, E], A], initial: A, *, every: int = 100, name: str | None = None) -> A:
        """Apply a function to `initial` and each event, `result = apply(result, event)`. Returns the result.

        Every hundredth event, or as `every` says, the result so far is kept as a checkpoint, and the next
        fold goes on from there. A checkpoint counts only for the very events that it was made of: after a
        rollback, a merge or a deletion the result is the same as without checkpoints. Reading changes nothing
        in the state: checkpoints stay in memory until `append` writes them, and results that cannot be
        pickled are not kept.

        A checkpoint belongs to this `initial` and this function, known by its name, its code and the values
        that it closes over. Give another `name` if something else changes that the function uses. A callable
        that is no Python function, and has no `name`, is folded without checkpoints. `apply` may change its
        first argument and return it; `initial` stays as it is.
        """
        check_count("every", every, 1)
        return self._folds.fold(apply, initial, every, name)
