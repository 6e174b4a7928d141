"""EventStream: what happened, in its order, and what follows from it."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, overload
from weakref import WeakKeyDictionary

from vstate.arguments import called, check_count
from vstate.errors import CannotLoad, KeyNotFound
from vstate.patterns.copies import copied
from vstate.patterns.identity import identity_of
from vstate.patterns.paths import Id, base_of, path_of
from vstate.patterns.sequence import Sequence
from vstate.state.base import ReadableState, State

A = TypeVar("A")
E = TypeVar("E")

_FOLDS = "folds/"
_DIGEST_BYTES = 16


class EventStream(Generic[E]):
    """Events, each under a key of its own, in a state, a namespace, or a snapshot; `sequence` is the run of them.

    An event is appended and never changed: what goes in and what comes out are copies. Events that two branches
    appended merge without a conflict; see `Sequence` for their order.
    """

    def __init__(self, state: ReadableState, name: Id) -> None:
        self.sequence: Sequence[E] = Sequence(state, name)
        self._base, outer = base_of(state)
        self._state = state
        self._prefix = f"{outer}{path_of(name)}/{_FOLDS}"

    def append(self, event: E) -> str:
        """Put an event behind all others, and give back its key in the state.

        What `fold` has found out since goes along, so that other processes need not do it again.
        """
        key = self.sequence.append(event)
        self._bring_along()
        return key

    def extend(self, events: Iterable[E]) -> None:
        """Put events behind all others, in their order: all of them, or none if going through them raises."""
        self.sequence.extend(events)
        self._bring_along()

    def __len__(self) -> int:
        return len(self.sequence)

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> list[E]: ...

    def __getitem__(self, index: int | slice) -> E | list[E]:
        """The event at a position, or those of a slice."""
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

    # Folding

    def fold(self, apply: Callable[[A, E], A], initial: A, *, every: int = 100, name: str | None = None) -> A:
        """What `apply` makes of `initial` and all the events, one after the other: `apply(so_far, event)`.

        At every hundredth event, or as `every` says, what was found so far is kept, and the next fold goes on
        from there. What is kept counts only for the very events that it was made of: after a rollback, a
        merge or a deletion the fold is what it would be without. Reading changes nothing in the state: what is
        kept stays in memory until `append` brings it along, and for good if it cannot be pickled.

        It is kept for this function, known by its name and its code, what it closes over included, and for
        this `initial`. What else the function uses is not looked at: after a change of that give another `name`.
        A callable that is no function of Python's, and has no `name`, is folded without. `apply` may change and
        return what it was given; `initial` stays as it is.
        """
        check_count("every", every, 1)
        identity = identity_of(apply, initial, name)
        gone: set[str] = set()
        while True:
            try:
                known = self._known(identity) if identity is not None else {}
                return self._fold(apply, initial, every, identity, known)
            except _Gone as error:  # deleted, or expired, while we looked
                if error.key in gone:  # no key comes back: this one is listed without being there
                    raise KeyNotFound(error.key) from None
                gone.add(error.key)

    def _fold(
        self, apply: Callable[[A, E], A], initial: A, every: int, identity: str | None, known: _Known
    ) -> A:
        begin = _Kept(0, "", "", "")
        tail: list[str] = []
        marks: dict[int, _Kept] = {}
        valid: set[str] = set()
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        number = 0
        for number, (key, mark) in enumerate(self.sequence.marked_keys(), 1):
            digest.update((f"{key}\n" if mark is None else f"{key} {mark}\n").encode())
            tail.append(key)
            if identity is None or (number % every and number not in known):
                continue
            kept = _Kept.of(number, digest.hexdigest(), key)
            if number in known and kept.digest in known[number]:
                begin = kept
                valid.add(kept.digest)
                tail.clear()
            elif number % every == 0:
                marks[number] = kept
        so_far: A = copy.deepcopy(initial)
        if begin.number:
            try:
                so_far = self._load(known[begin.number][begin.digest])
            except CannotLoad:  # made by a program that has other classes
                del known[begin.number]
                return self._fold(apply, initial, every, identity, known)
        wanted = _spread(number - number % every, begin.number, every)
        for number, key in enumerate(tail, begin.number + 1):
            try:
                event = copied(self._state[key])
            except KeyNotFound:
                raise _Gone(key) from None
            so_far = called("the function of fold", apply, so_far, event)
            if number in wanted and number in marks:
                assert identity is not None
                _keep(self._base, self._prefix, identity, marks[number], so_far, valid)
                valid.add(marks[number].digest)
        return so_far

    # What is kept: in memory, and under NAME/folds/IDENTITY/COUNT-DIGEST-RANDOM

    def _known(self, identity: str) -> _Known:
        """What is kept, in the state and in memory."""
        known: _Known = {}
        for key in self._base.scan_keys(f"{self._prefix}{identity}/"):
            if found := _NAME.fullmatch(key.rpartition("/")[2]):
                known.setdefault(int(found[1]), {})[found[2]] = key
        for kept, data in _memory(self._base, self._prefix).get(identity, {}).items():
            known.setdefault(kept.number, {})[kept.digest] = data
        return known

    def _load(self, kept: str | bytes) -> Any:
        if isinstance(kept, bytes):  # a pickle of this process's own, never one from a store
            return pickle.loads(kept)
        try:
            return copied(self._base[kept])
        except KeyNotFound:
            raise _Gone(kept) from None

    def _bring_along(self) -> None:
        """Write the newest that is kept in memory for each fold, unless it is there, and delete what is too much."""
        state = self._base
        assert isinstance(state, State)
        for identity, folds in list(_memory(state, self._prefix).items()):
            place = f"{self._prefix}{identity}/"
            # After a rollback those of more events are of nothing that there is.
            newest = next((kept for kept in sorted(folds, reverse=True) if kept.last in self._state), None)
            if newest is None or place + newest.name in state:
                continue
            there = {key: _NAME.fullmatch(key[len(place) :]) for key in state.scan_keys(place)}
            numbers = {key: int(found[1]) for key, found in there.items() if found}
            few = _sparse([*numbers.values(), newest.number]) - {newest.number}
            state[place + newest.name] = pickle.loads(folds[newest])
            for key, number in numbers.items():
                if number not in few:
                    state.pop(key, None)


class _Kept(NamedTuple):
    """What a fold was made of: how many events, the digest of their keys, and the last of these; and its own name.

    The name is another each time: the same fold that two branches brought along is no conflict.
    """

    number: int
    digest: str
    last: str
    name: str

    @classmethod
    def of(cls, number: int, digest: str, last: str) -> _Kept:
        return cls(number, digest, last, f"{number:012}-{digest}-{os.urandom(4).hex()}")


_NAME = re.compile(r"([0-9]{12})-([0-9a-f]+)-[0-9a-f]+")
"""What `_Kept.of` names a fold; what is named otherwise is none."""


class _Gone(Exception):
    """What was listed is not there any more."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


_Known = dict[int, dict[str, str | bytes]]
"""By number of events and digest what is kept: the key of it, or, from memory, the pickle."""

_Folds = dict[str, dict[_Kept, bytes]]

_folds: WeakKeyDictionary[ReadableState, dict[str, _Folds]] = WeakKeyDictionary()


def _memory(state: ReadableState, prefix: str) -> _Folds:
    return _folds.get(state, {}).get(prefix, {})


def _keep(state: ReadableState, prefix: str, identity: str, kept: _Kept, value: Any, valid: set[str]) -> None:
    """Keep a fold in memory, beside those whose digest is `valid`."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:  # whatever the pickling of somebody's class raises: it is folded again the next time
        return
    folds = _folds.setdefault(state, {}).setdefault(prefix, {})
    here = {each: found for each, found in folds.get(identity, {}).items() if each.digest in valid}
    few = _sparse([each.number for each in here] + [kept.number])
    folds[identity] = {each: found for each, found in here.items() if each.number in few} | {kept: data}


def _spread(newest: int, begin: int, every: int) -> set[int]:
    """The counts at which to keep a fold that goes on from `begin`: the newest, and others ever farther before it."""
    counts, step = {newest}, every
    while newest - step > begin:
        counts.add(newest - step)
        step *= 2
    return counts


def _sparse(counts: list[int]) -> set[int]:
    """Those of the counts to go on keeping: the newest, and others ever farther before it, some twenty of a million."""
    newest = max(counts)
    chosen, distance = {newest}, 0
    for count in sorted(counts, reverse=True)[1:]:
        if newest - count >= 2 * distance:
            chosen.add(count)
            distance = newest - count
    return chosen
