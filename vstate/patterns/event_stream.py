"""EventStream: events in order, and folds over them, with checkpoints from which a later fold goes on."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from vstate.arguments import called, check_count
from vstate.errors import CannotLoad, KeyNotFound, Unpicklable
from vstate.patterns.copies import Frozen, deep_copy
from vstate.patterns.sequence import Sequence
from vstate.state.base import ReadableState, State
from vstate.values.pickle_errors import own_error

A = TypeVar("A")
E = TypeVar("E")

_KEPT = 8  # checkpoints of a fold, in memory and in the state
_DIGEST_BYTES = 16
_FOLDS = "folds/"
_ABSENT = object()

_NAME = re.compile(r"([0-9]{12})-([0-9a-f]+)-[0-9a-f]+")
"""The names of checkpoints. Anything else in their place is ignored. A name is random in part, so the same
fold that two branches stored is no conflict.
"""

_Covered = tuple[int, str]
"""The number of the first events, and the digest of their keys."""


class _Checkpoint(NamedTuple):
    """The result of a fold after the covered events, and the key of the last of them."""

    covered: _Covered
    last_key: str
    name: str
    result: Frozen


_InMemory = dict[str, list[_Checkpoint]]  # by identity of the fold, sorted

_memory: WeakKeyDictionary[ReadableState, dict[str, _InMemory]] = WeakKeyDictionary()


class EventStream(Sequence[E]):
    """Events, one key each, in a state, a namespace, or a snapshot: a Sequence with folds.

    Events are appended; they go in and come out as copies. Events that two branches appended merge without a
    conflict, in the order that `Sequence` describes. A fold finds out which events were deleted or replaced.
    """

    def append(self, event: E) -> str:
        """Append an event, and return its key in the state.

        The newest checkpoint of each fold is written too, so other processes need not fold again.
        """
        key = super().append(event)
        self._store()
        return key

    def extend(self, events: Iterable[E]) -> None:
        """Append events in their order: all of them, or none if the iteration raises."""
        super().extend(events)
        self._store()

    def fold(self, apply: Callable[[A, E], A], initial: A, *, every: int = 100, name: str | None = None) -> A:
        """Apply a function to `initial` and each event, `result = apply(result, event)`. Returns the result.

        With a `name`, the result after the last hundredth event, or as `every` says, is kept as a checkpoint,
        and the next fold of this name and `initial` goes on from there. Take another name for another
        function, and when the function changes. A checkpoint counts only for the very events that it was made
        of: after a rollback, a merge or a deletion the result is the same as without checkpoints. The fold
        then begins at an older checkpoint, of which eight are kept, or at the first event. Reading changes
        nothing in the state: checkpoints stay in memory until `append` writes the newest, and results that
        cannot be pickled are not kept.

        `apply` may change its first argument and return it; `initial` stays as it is.
        """
        check_count("every", every, 1)
        identity = None if name is None else identity_of(name, initial)
        stored = {} if identity is None else self._checkpoints(identity)
        keys, covered = self._covered(every, {number for number, _ in stored})
        begin, result = self._begin(stored, covered, initial)
        newest = len(keys) - len(keys) % every
        for number, key in enumerate(keys[begin:], begin + 1):
            event = self._base.get(self._outer + key, _ABSENT)
            if event is _ABSENT:  # deleted or expired meanwhile
                newest = 0
                continue
            result = called("the function of fold", apply, result, deep_copy(event))
            if number == newest and identity is not None:
                self._remember(identity, covered, number, key, result)
        return result

    # Checkpoints: in memory, and in the state at NAME/folds/IDENTITY/CHECKPOINT

    def _covered(self, every: int, numbers: set[int]) -> tuple[list[str], set[_Covered]]:
        """The keys of the events, and the beginnings of them that a checkpoint may cover."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        keys: list[str] = []
        covered: set[_Covered] = set()
        for number, (key, mark) in enumerate(self.marked_keys(), 1):
            digest.update((f"{key}\n" if mark is None else f"{key} {mark}\n").encode())
            keys.append(key)
            if number % every == 0 or number in numbers:
                covered.add((number, digest.hexdigest()))
        return keys, covered

    def _checkpoints(self, identity: str) -> dict[_Covered, str | Frozen]:
        """The results by their events: in memory, or the key in the state."""
        stored: dict[_Covered, str | Frozen] = {}
        for key in self._base.keys(f"{self._prefix}{_FOLDS}{identity}/"):
            if found := _NAME.fullmatch(key.rpartition("/")[2]):
                stored[int(found[1]), found[2]] = key
        return stored | {each.covered: each.result for each in self._in_memory().get(identity, ())}

    def _begin(
        self, stored: dict[_Covered, str | Frozen], covered: set[_Covered], initial: A
    ) -> tuple[int, A]:
        """The number and the result of the newest checkpoint of these events."""
        for each in sorted(stored.keys() & covered, reverse=True):
            found = stored[each]
            try:
                return each[0], found.thaw() if isinstance(found, Frozen) else deep_copy(self._base[found])
            except (CannotLoad, KeyNotFound):  # a program with other classes stored it, or it is gone
                continue
        return 0, copy.deepcopy(initial)

    def _remember(
        self, identity: str, covered: set[_Covered], number: int, last_key: str, result: object
    ) -> None:
        """Keep a checkpoint in memory, beside older ones of these events."""
        own = next(each for each in covered if each[0] == number)
        try:
            frozen = Frozen(result, "fold", "fold")
        except Unpicklable:
            return
        name = f"{number:012}-{own[1]}-{os.urandom(4).hex()}"
        folds = _memory.setdefault(self._base, {}).setdefault(self._prefix, {})
        here = [each for each in folds.get(identity, ()) if each.covered in covered and each.covered < own]
        folds[identity] = [*here[1 - _KEPT :], _Checkpoint(own, last_key, name, frozen)]

    def _store(self) -> None:
        """Write the newest checkpoint of each fold from memory to the state; delete surplus ones there."""
        state = self._base
        assert isinstance(state, State)
        for identity, checkpoints in list(self._in_memory().items()):
            place = f"{self._prefix}{_FOLDS}{identity}/"
            # After a rollback, some checkpoints cover more events than there are now.
            newest = next((each for each in checkpoints[::-1] if self._outer + each.last_key in state), None)
            if newest is None or place + newest.name in state:
                continue
            before = [key for key in state.keys(place) if _NAME.fullmatch(key[len(place) :])]
            state[place + newest.name] = newest.result.thaw()
            for key in before[: 1 - _KEPT]:
                state.pop(key, None)

    def _in_memory(self) -> _InMemory:
        return _memory.get(self._base, {}).get(self._prefix, {})


def identity_of(name: str, initial: Any) -> str | None:
    """The identity of a fold: a digest of its name and of `initial`; None if that cannot be pickled."""

    def described() -> str:
        # Not all of it as one pickle: a pickle depends on which of the equal texts are one object.
        return repr((("name", name), pickle.dumps(initial, 5)))

    try:
        source = described()
    except Exception as error:  # the pickling of any class may raise anything
        own_error(described, error)
        return None
    return hashlib.blake2b(source.encode(), digest_size=_DIGEST_BYTES).hexdigest()
