"""State: the mapping that Versioned, Live, Snapshot and Namespace have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MappingView,
    MutableMapping,
    ValuesView,
)
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

from vstate.arguments import called, check_several, check_text, require_plain
from vstate.errors import InvalidInput, KeyNotFound, NotVersioned, VStateError
from vstate.forks import Uncopied, is_mine, new_lock
from vstate.objects import expiry
from vstate.objects.commit import Commit, Event
from vstate.objects.expiry import Expiry
from vstate.objects.ids import ObjectId
from vstate.plural import counted
from vstate.repo.names.dates import ttl_microseconds
from vstate.state.turns import OVER, Turns, end, is_live

if TYPE_CHECKING:
    from vstate.repo.compare.diff import Change
    from vstate.repo.core import Revision
    from vstate.state.watching import Subscription, Watch

ATTEMPTS: Final = 100
"""How often an update runs, by default, before it gives up. Of ten writers of one counter, one needed 34."""

Message = str | Callable[[Any], str]
"""The message of an update's commit, or a function that makes it from the result of the update's function."""

_SHOWN = 20
_COMPLETED = 10_000  # keys that a shell completes

_INSTEAD: Final = (
    "each process opens a handle of its own, so pass on the path or URL of the store and open "
    "Versioned(PATH_OR_URL, branch=NAME) there; in this process, fork(NAME) is a second state, and "
    "dict(state) has the values"
)


def make_expiry(ttl: float | timedelta) -> Expiry:
    """The expiry of a key with this time to live, from now on; InvalidInput."""
    return Expiry(expiry.now() + ttl_microseconds(ttl))


class Hooks:
    """The functions that a state calls before each commit."""

    functions: tuple[Callable[[], object], ...] = ()
    _running = OVER

    def add(self, function: Callable[..., object], state: State) -> Callable[[], None]:
        """Call the function with the state from now on, until the returned one is called."""
        require_plain("the function of before_commit", function)
        # Its own object, so that the same function can be given twice.
        once = partial(function, state)
        self.functions = (*self.functions, once)

        def remove() -> None:
            self.functions = tuple(each for each in self.functions if each is not once)

        return remove

    def run(self) -> None:
        """Call them, in the order in which they were added."""
        self.require_none()
        token = Lock()
        with token:
            self._running = ref(token)
            for function in self.functions:
                called("the function of before_commit", function)

    def require_none(self) -> None:
        """Raise InvalidInput inside a function that a commit calls."""
        if is_live(self._running):
            raise InvalidInput(
                "a function that a commit calls before it cannot commit, nor move the branch: leave that out"
            )

    def renew(self) -> None:
        """In a forked child: the thread that called the functions is not here."""
        end(self._running)


class Companion(Protocol):
    """Something outside that goes with a state: the files of a Workspace. The handle's lock is held.

    A call that an exception interrupts is made again, before the next use.
    """

    @property
    def place(self) -> str:
        """Where it is, under the same name in all programs."""

    def held(self) -> AbstractContextManager[None]:
        """Keep others from moving it, while the state commits or moves."""

    def begin_commit(self, branch: str, commit: ObjectId) -> None:
        """A commit is about to be made, which has what the last look staged."""

    def look(self, *, is_leaving: bool = False) -> None:
        """Stage what was changed there.

        Conflict if somebody else has moved it and it was changed since, unless the state `is_leaving` for
        another commit: then `follow` comes next.
        """

    def follow(self, ours: Commit | None = None) -> None:
        """Go where the state has gone. `ours` is the commit that the state made, perhaps behind others."""

    def edited(self) -> list[str]:
        """The keys that were changed there, and that no commit has."""

    def keeps(self, key: str) -> bool:
        """Whether an uncommitted change of the key is not lost with the state."""

    def close(self) -> None:
        """Go with the state no more."""


class Undoable(Protocol):
    """A savepoint. Dropped without `restore` or `release`, a savepoint of a Versioned is restored."""

    def restore(self) -> None:
        """Take the mapping back to the savepoint; recorded events stay."""

    def release(self) -> None:
        """Keep the mapping as it is."""


class StateHandle(Uncopied, ABC):
    """The part of a state that layers above use and programs do not see. Threads may share it.

    A subclass has `renew` called in a forked child, once it is made.
    """

    _instead = _INSTEAD

    def __init__(self) -> None:
        self.lock = new_lock()
        self.turns = Turns()
        """Whose transaction may run now."""
        self.hooks = Hooks()

    @abstractmethod
    def savepoint(self) -> Undoable:
        """Where the mapping is now, to go back to."""

    @abstractmethod
    def record_event(self, event: Event) -> None:
        """Keep an event for the next commit."""

    @abstractmethod
    def forget_event(self, event: Event) -> bool:
        """Drop a recorded event. False if a commit holds it by now."""

    @abstractmethod
    def pending_events(self) -> list[Event]:
        """The events that no commit holds yet, oldest first."""

    @abstractmethod
    def may_have_changed(self, prefix: str) -> bool:
        """Whether a key with this prefix is staged, or its value is in hand and may have been edited."""

    def renew(self) -> None:
        """In a forked child: end what the parent's other threads were doing here. Takes no lock."""
        if not is_mine(self.lock):
            self.hooks.renew()
        self.turns.renew()


class ReadableState(Uncopied, Mapping[str, Any]):
    """A mapping of str to any value, sorted by key, with lazy views by prefix."""

    _instead = _INSTEAD

    @abstractmethod
    def _scan(self, prefix: str, *, reverse: bool = False) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted, read as they are asked for."""

    @abstractmethod
    def _count(self, prefix: str) -> int:
        """How many keys begin with `prefix`."""

    def _ready(self, key: object, absent: Any) -> Any:
        """The value of a key, if memory has it and no lock is needed to read it; else `absent`."""
        return absent

    def __iter__(self) -> Iterator[str]:
        return self._scan("")

    def __len__(self) -> int:
        return self._count("")

    def _in_batches(self, keys: Iterable[str]) -> Iterator[Iterable[str]]:
        """The keys, a batch at a time, each ready to be read in order."""
        yield keys

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """The values of those keys that are present, in the order given.

        The store is asked once for many keys, where `state[key]` in a loop asks once for each.
        """
        found = {}
        for batch in self._in_batches(check_several(keys)):
            for key in batch:
                try:
                    found[key] = self[key]
                except KeyNotFound:
                    continue
        return found

    def keys(self, prefix: str = "", *, reverse: bool = False) -> KeysView[str]:
        """The keys that begin with `prefix`, sorted; nothing is read before it is asked for.

        With `reverse`, the last comes first.
        """
        return _Keys(self, check_text("prefix", prefix), reverse)

    def values(self, prefix: str = "", *, reverse: bool = False) -> ValuesView[Any]:
        """The values whose keys begin with `prefix`, in key order, each read as it is asked for.

        With `reverse`, the last comes first.
        """
        return _Values(self, check_text("prefix", prefix), reverse)

    def items(self, prefix: str = "", *, reverse: bool = False) -> ItemsView[str, Any]:
        """The items whose keys begin with `prefix`, in key order, each read as it is asked for.

        With `reverse`, the last comes first.
        """
        return _Items(self, check_text("prefix", prefix), reverse)

    def _describe(self, key: str) -> str:
        """Type and size of a value, in words, without loading it where that is possible."""
        return type(self[key]).__name__

    def _title(self) -> str:
        """The line that begins the readable form."""
        return type(self).__name__

    def __str__(self) -> str:
        lines = [self._title()]
        try:  # a state is printed where an error is handled, too: with its store gone
            count = len(self)
            lines[0] += f", {counted(count, 'key')}"
            for key in islice(self._scan(""), _SHOWN):
                name = key if key.isprintable() else ascii(key)
                lines.append(f"  {name}  ({self._describe(key)})")
            if count > _SHOWN:
                lines.append(f"  … and {count - _SHOWN} more")
        except VStateError as error:
            lines.append(f"  (its keys cannot be read: {error})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{self._title()}>"

    def _repr_html_(self) -> str:
        from html import escape  # only a notebook asks

        head, *lines = str(self).splitlines()
        return f"<b>{escape(head)}</b><pre>{escape(chr(10).join(lines))}</pre>"

    def _ipython_key_completions_(self) -> list[str]:
        try:
            return list(islice(self._scan(""), _COMPLETED))
        except VStateError:  # nothing can be completed while the store is gone
            return []

    def __eq__(self, other: object) -> bool:
        # A state is equal to itself alone, and so to no other state, because sets of states find it by that.
        if isinstance(other, ReadableState) or not isinstance(other, Mapping):
            return self is other
        if len(self) != len(other) or any(key not in other for key in self):
            return False
        return all(value is other[key] or value == other[key] for key, value in self.items())

    __hash__ = object.__hash__


class State(ReadableState, MutableMapping[str, Any]):
    """A state that can be written to, which a task takes: `Versioned`, `Live` or a Namespace of one."""

    _handle: StateHandle

    prefix: str = ""
    """The beginning of its keys in the root: empty, or a namespace's name and "/"."""

    @property
    def root(self) -> State:
        """The state that commits: this one, or the one that a namespace belongs to."""
        return self

    @abstractmethod
    def commit(self, message: str = "", *, keys: Iterable[str] | None = None, **info: Any) -> Commit | None:
        """Commit the changes, or those of some keys; None if there are none, or the state has no history."""

    @abstractmethod
    def transaction(self, message: str = "", **info: Any) -> AbstractContextManager[Any]:
        """Commit at the end of the with block; discard the changes made inside on an exception."""

    @property
    @abstractmethod
    def has_uncommitted(self) -> bool:
        """Whether `commit` would make a commit."""

    @abstractmethod
    def expire(self, key: str, ttl: float | timedelta | None) -> None:
        """Let a key count as absent after `ttl`, in seconds or as a timedelta; None takes the expiry away.

        The expiry is staged, and committed with the value. It goes wherever the value goes: into branches,
        merges, pushes and rollbacks. The time begins now. An edit in place leaves it as it is, and setting
        the key removes its expiry: call this again after each use, and the key lives while it is used.

        No state lists, counts or reads an expired key. `purge` removes it, and so does the next commit if the
        key was changed. History stays: `checkout` shows the commit as it was made. The reader's clock
        decides. Raises KeyNotFound, and InvalidInput for a time that is none.
        """

    @abstractmethod
    def expires(self, key: str) -> datetime | None:
        """When the key expires, in UTC; None for never. Raises KeyNotFound."""

    @abstractmethod
    def _update(
        self, function: Callable[[], object], *, attempts: int = ATTEMPTS, message: Message = "", **info: Any
    ) -> Commit | None:
        """As `apply` promises, on the whole state."""

    def before_commit(self, hook: Callable[[Any], object]) -> Callable[[], None]:
        """Call the function with this state at the beginning of each commit made through this handle, until
        the result is called.

        It runs in the turn of the commit, before changes are looked for, and once a commit: again with each
        attempt of an update. It may read and change the state, and should do the same if it is called again
        after an interruption. Its exception stops the commit, and everything is still staged. It cannot
        commit nor move the branch. No other thread can write to the state meanwhile, and no other program can
        move the files of its Workspace, so it should not wait for one; a program that waits for the files
        gives up after a minute.
        """
        return self._handle.hooks.add(hook, self)

    def apply(
        self,
        function: Callable[[Any], object],
        /,
        *,
        attempts: int = ATTEMPTS,
        message: Message = "",
        **info: Any,
    ) -> Commit | None:
        """Call the function with this state, and commit its changes.

        The function sees the newest commit, and runs again until nobody else has changed a key that it read
        or changed. It should do nothing but read and change the state. After `attempts` runs the last
        Conflict is raised and nothing has changed; the same goes for an exception of the function. The result
        is the commit, None if nothing changed. Inside a task or transaction the function runs once, and the
        outer one commits. Raises UncommittedChanges rather than mix earlier changes in.

        `message` may be a function, which makes the message from the function's result.
        """
        return self.root._update(partial(function, self), attempts=attempts, message=message, **info)

    def clear(self) -> None:
        """Delete every key."""
        for key in list(self._scan("")):
            self.pop(key, None)

    def record(self, kind: str, **data: Any) -> Event:
        """Record that something happened; the next commit keeps the event. `data` is plain data.

        Raises InvalidInput, naming the place, for data that is not plain.
        """
        event = Event.now(kind, data, self.prefix.removesuffix("/"))
        self._handle.record_event(event)
        return event

    @abstractmethod
    def namespace(self, name: str) -> State:
        """The mapping of the keys under `name/`. Namespaces nest, and one commit covers all of the state."""

    def _watch(self, prefix: str, pattern: str, since: Revision | None) -> Watch:
        """As `watch`, for keys that begin with `prefix`, told without the prefix."""
        raise NotVersioned("watch")

    def watch(self, pattern: str = "*", *, since: Revision | None = None) -> Watch:
        """The changes of keys like `agent:*` as they are committed to the branch, here or by other processes.

        An iterator and an async iterator of (key, Change, Commit) that waits for the next one; it begins
        after `since`, a commit of this branch, or after the commit that this state is at. This state itself
        does not move: `refresh` it to read the new values there, or read `change.new`. A namespace watches
        its own keys, under their names in it. Raises DetachedHead, NotFound.
        """
        return self.root._watch(self.prefix, pattern, since)

    def subscribe(self, pattern: str, function: Callable[[str, Change, Commit], object]) -> Subscription:
        """Call `function(key, change, commit)`, in a thread of its own, for each change that `watch` would
        give.

        One call at a time, in order. An exception of the function is logged, to the logger "vstate", and the
        next change comes all the same. Ends when the subscription or this state is closed.
        """
        from vstate.state.watching import Subscription  # late, for a quick `import vstate`

        require_plain("the function of subscribe", function)
        return Subscription(self.watch(pattern), function)


def handle_of(state: State) -> StateHandle:
    """The handle of the state's root, for the layers above."""
    return state._handle


def missing(key: object) -> KeyNotFound:
    """The error for an absent key; TypeError if the key is no str."""
    if not isinstance(key, str):
        raise TypeError(f"a state's keys are str, not {type(key).__name__}: {key!r}")
    return KeyNotFound(key)


class _View(MappingView):
    """Keys, values or items of a state, by prefix."""

    _shows = ""

    def __init__(self, state: ReadableState, prefix: str, reverse: bool) -> None:
        super().__init__(state)
        self._state = state
        self._prefix = prefix
        self._reverse = reverse

    def __len__(self) -> int:
        return self._state._count(self._prefix)

    def __repr__(self) -> str:
        return f"<{self._shows} of {self._state._title()}>"


class _Keys(_View, KeysView[str]):
    _shows = "keys"

    def __iter__(self) -> Iterator[str]:
        return self._state._scan(self._prefix, reverse=self._reverse)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.startswith(self._prefix) and key in self._state

    def __str__(self) -> str:
        return f"keys({list(self)!r})"


class _Values(_View, ValuesView[Any]):
    _shows = "values"

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in _Items(self._state, self._prefix, self._reverse))

    def __contains__(self, value: object) -> bool:
        return any(item is value or item == value for item in self)


class _Items(_View, ItemsView[str, Any]):
    _shows = "items"

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for key in self._state._scan(self._prefix, reverse=self._reverse):
            try:
                value = self._state[key]
            except KeyNotFound:  # deleted since the scan reached it
                continue
            yield key, value

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            return False
        return item[0].startswith(self._prefix) and super().__contains__(item)
