"""Folds: the result of a function over all events, with checkpoints from which a later fold goes on."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import re
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from vstate.arguments import called
from vstate.errors import CannotLoad, KeyNotFound
from vstate.patterns.copies import deep_copy
from vstate.patterns.paths import Id, base_of, path_of
from vstate.patterns.sequence import Sequence
from vstate.state.base import ReadableState, State
from vstate.values.pickle_errors import own_error

A = TypeVar("A")
E = TypeVar("E")

_FOLDS = "folds/"
_DIGEST_BYTES = 16


class Checkpoint(NamedTuple):
    """The result of a fold after `number` events: the digest of their keys, the last key, and its own name.

    The name is random in part, so the same fold that two branches stored is no conflict.
    """

    number: int
    digest: str
    last_key: str
    name: str

    @classmethod
    def of(cls, number: int, digest: str, last_key: str) -> Checkpoint:
        return cls(number, digest, last_key, f"{number:012}-{digest}-{os.urandom(4).hex()}")


_NAME = re.compile(r"([0-9]{12})-([0-9a-f]+)-[0-9a-f]+")
"""The names that `Checkpoint.of` makes. Anything else in the place of a checkpoint is ignored."""

_Stored = dict[int, dict[str, str | bytes]]
"""Checkpoints by number of events and digest: the key in the state or, in memory, the pickle."""

_InMemory = dict[str, dict[Checkpoint, bytes]]  # by identity of the fold

_memory: WeakKeyDictionary[ReadableState, dict[str, _InMemory]] = WeakKeyDictionary()


class _Gone(Exception):
    """A key that was listed is not there any more."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class Folds:
    """The folds of a stream. Checkpoints are in memory, and in the state at NAME/folds/IDENTITY/CHECKPOINT.

    A checkpoint counts only if the digest covers exactly the first events that there are now.
    """

    def __init__(self, state: ReadableState, name: Id, events: Sequence[Any]) -> None:
        self._events = events
        self._state = state
        self._base, outer = base_of(state)
        self._prefix = f"{outer}{path_of(name)}/{_FOLDS}"

    def fold(self, apply: Callable[[A, E], A], initial: A, every: int, name: str | None) -> A:
        """Apply the function to `initial` and all events, from the last valid checkpoint on."""
        identity = identity_of(apply, initial, name)
        gone: set[str] = set()
        while True:
            try:
                stored = self._checkpoints(identity) if identity is not None else {}
                return self._fold(apply, initial, every, identity, stored)
            except _Gone as error:  # deleted or expired meanwhile
                if error.key in gone:  # the key is listed again, though nothing is there
                    raise KeyNotFound(error.key) from None
                gone.add(error.key)

    def _fold(
        self, apply: Callable[[A, E], A], initial: A, every: int, identity: str | None, stored: _Stored
    ) -> A:
        begin = Checkpoint(0, "", "", "")
        tail: list[str] = []
        possible: dict[int, Checkpoint] = {}
        valid: set[str] = set()
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        number = 0
        for number, (key, mark) in enumerate(self._events.marked_keys(), 1):
            digest.update((f"{key}\n" if mark is None else f"{key} {mark}\n").encode())
            tail.append(key)
            if identity is None or (number % every and number not in stored):
                continue
            checkpoint = Checkpoint.of(number, digest.hexdigest(), key)
            if number in stored and checkpoint.digest in stored[number]:
                begin = checkpoint
                valid.add(checkpoint.digest)
                tail.clear()
            elif number % every == 0:
                possible[number] = checkpoint
        result: A = copy.deepcopy(initial)
        if begin.number:
            try:
                result = self._load(stored[begin.number][begin.digest])
            except CannotLoad:  # a program with other classes stored it
                del stored[begin.number]
                return self._fold(apply, initial, every, identity, stored)
        wanted = _spread(number - number % every, begin.number, every)
        for number, key in enumerate(tail, begin.number + 1):
            try:
                event = deep_copy(self._state[key])
            except KeyNotFound:
                raise _Gone(key) from None
            result = called("the function of fold", apply, result, event)
            if number in wanted and number in possible:
                assert identity is not None
                self._remember(identity, possible[number], result, valid)
                valid.add(possible[number].digest)
        return result

    def store(self) -> None:
        """Write the newest checkpoint of each fold from memory to the state; delete surplus ones there."""
        state = self._base
        assert isinstance(state, State)
        for identity, checkpoints in list(self._in_memory().items()):
            place = f"{self._prefix}{identity}/"
            # After a rollback, some checkpoints cover more events than there are now.
            newest = next((c for c in sorted(checkpoints)[::-1] if c.last_key in self._state), None)
            if newest is None or place + newest.name in state:
                continue
            names = {key: _NAME.fullmatch(key[len(place) :]) for key in state.keys(place)}
            numbers = {key: int(found[1]) for key, found in names.items() if found}
            kept = _sparse([*numbers.values(), newest.number]) - {newest.number}
            state[place + newest.name] = pickle.loads(checkpoints[newest])
            for key, number in numbers.items():
                if number not in kept:
                    state.pop(key, None)

    def _checkpoints(self, identity: str) -> _Stored:
        stored: _Stored = {}
        for key in self._base.keys(f"{self._prefix}{identity}/"):
            if found := _NAME.fullmatch(key.rpartition("/")[2]):
                stored.setdefault(int(found[1]), {})[found[2]] = key
        for checkpoint, data in self._in_memory().get(identity, {}).items():
            stored.setdefault(checkpoint.number, {})[checkpoint.digest] = data
        return stored

    def _load(self, stored: str | bytes) -> Any:
        if isinstance(stored, bytes):  # a pickle that this process made, never one from a store
            return pickle.loads(stored)
        try:
            return deep_copy(self._base[stored])
        except KeyNotFound:
            raise _Gone(stored) from None

    def _in_memory(self) -> _InMemory:
        return _memory.get(self._base, {}).get(self._prefix, {})

    def _remember(self, identity: str, checkpoint: Checkpoint, result: Any, valid: set[str]) -> None:
        """Keep a checkpoint in memory, beside those whose digest is `valid`."""

        def pickled() -> bytes:
            data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
            pickle.loads(data)
            return data

        try:
            data = pickled()
        except (
            Exception
        ) as error:  # the pickling of any class may raise anything; the next fold starts without
            own_error(pickled, error)
            return
        folds = _memory.setdefault(self._base, {}).setdefault(self._prefix, {})
        here = {each: found for each, found in folds.get(identity, {}).items() if each.digest in valid}
        kept = _sparse([each.number for each in here] + [checkpoint.number])
        folds[identity] = {each: found for each, found in here.items() if each.number in kept} | {
            checkpoint: data
        }


def _spread(newest: int, begin: int, every: int) -> set[int]:
    """The event counts at which a fold from `begin` keeps checkpoints: the newest, and ever older ones."""
    counts, step = {newest}, every
    while newest - step > begin:
        counts.add(newest - step)
        step *= 2
    return counts


def _sparse(counts: list[int]) -> set[int]:
    """The counts to keep: the newest, and others ever farther before it; some twenty of a million."""
    newest = max(counts)
    chosen, distance = {newest}, 0
    for count in sorted(counts, reverse=True)[1:]:
        if newest - count >= 2 * distance:
            chosen.add(count)
            distance = newest - count
    return chosen


def identity_of(apply: Callable[..., Any], initial: Any, name: str | None) -> str | None:
    """The identity of a fold: a digest of its function, or its name, and of `initial`. None if there is none.

    A function is identified by its name, its code and the values that it closes over.
    """

    def described() -> str:
        # Not all of it as one pickle: a pickle depends on which of the equal texts are one object.
        return repr((("name", name) if name is not None else _function(apply), pickle.dumps(initial, 5)))

    try:
        source = described()
    except Exception as error:  # the pickling of any class may raise anything
        own_error(described, error)
        return None
    return hashlib.blake2b(source.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _function(apply: Any) -> Any:
    # Arguments stand in lists of their own, so that a value in one role never looks like a value in another.
    if isinstance(apply, partial):
        named = [(name, _closed(value)) for name, value in sorted(apply.keywords.items())]
        return "partial", _function(apply.func), list(map(_closed, apply.args)), named
    if isinstance(apply, FunctionType):
        closed = [_closed(cell.cell_contents) for cell in apply.__closure__ or ()]
        named = [(name, _closed(value)) for name, value in sorted((apply.__kwdefaults__ or {}).items())]
        return (
            apply.__module__,
            apply.__qualname__,
            _code(apply.__code__),
            closed,
            list(map(_closed, apply.__defaults__ or ())),
            named,
        )
    if isinstance(apply, BuiltinFunctionType) and isinstance(apply.__self__, ModuleType):
        return apply.__module__, apply.__qualname__
    raise TypeError(f"{apply!r} is no function")


def _closed(value: Any) -> Any:
    return (
        _function(value) if isinstance(value, FunctionType | partial) else ("value", pickle.dumps(value, 5))
    )


def _code(code: CodeType) -> Any:
    return (
        code.co_code,
        code.co_exceptiontable,
        list(map(_constant, code.co_consts)),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
    )


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
