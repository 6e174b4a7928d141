"""State: what Versioned, Live, Snapshot and Namespace have in common."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    ValuesView,
)
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from vstate.arguments import called, require_plain
from vstate.errors import InvalidInput, KeyNotFound
from vstate.forks import ForkAware, survive_forks
from vstate.objects.canonical import plain
from vstate.objects.commit import Commit, Event
from vstate.state.turns import Turns

if TYPE_CHECKING:
    from vstate.state.namespace import Namespace

MAX_KEY_BYTES = 4096

Message = str | Callable[[Any], str]
"""The message of an update's commit, or a function of what the function of the update returned."""

_SHOWN = 20


def check_key(key: object) -> str:
    """The key, if it is one: a str that UTF-8 can encode in 4,096 bytes. TypeError, InvalidInput."""
    if type(key) is str and key.isascii() and len(key) <= MAX_KEY_BYTES:  # as nearly all are
        return key
    if not isinstance(key, str):
        raise TypeError(f"a state's keys are str, not {type(key).__name__}: {key!r}")
    key = str.__str__(key)  # the characters of a subclass, such as a str Enum, whatever its own __str__ says
    try:
        size = len(key) if key.isascii() else len(key.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"key {key!r} holds a lone surrogate, which UTF-8 cannot encode") from None
    if size > MAX_KEY_BYTES:
        raise InvalidInput(f"a key of {size} bytes is too long: the limit is {MAX_KEY_BYTES}")
    return key


def make_event(kind: str, data: Mapping[str, Any], namespace: str) -> Event:
    """An event of now; InvalidInput unless its data is plain."""
    if not isinstance(kind, str):
        raise TypeError(f"an event's kind is a str, not {type(kind).__name__}")
    return Event(plain(kind, "kind"), datetime.now(UTC), plain(dict(data), "data"), namespace)


class ReadableState(Mapping[str, Any]):
    """A mapping of str to any value, sorted by key, with lazy views by prefix."""

    @abstractmethod
    def scan_keys(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, sorted, read as they are asked for."""

    @abstractmethod
    def count_keys(self, prefix: str) -> int:
        """How many keys begin with `prefix`."""

    def __iter__(self) -> Iterator[str]:
        return self.scan_keys("")

    def __len__(self) -> int:
        return self.count_keys("")

    def keys(self, prefix: str = "") -> KeysView[str]:
        """The keys that begin with `prefix`, sorted; nothing is read before it is asked for."""
        return _Keys(self, prefix)

    def values(self, prefix: str = "") -> ValuesView[Any]:
        """The values whose keys begin with `prefix`, in key order, each read as it is asked for."""
        return _Values(self, prefix)

    def items(self, prefix: str = "") -> ItemsView[str, Any]:
        """The items whose keys begin with `prefix`, in key order, each read as it is asked for."""
        return _Items(self, prefix)

    def describe_key(self, key: str) -> str:
        """Type and size of a value, to be read, without loading it where that is possible."""
        return type(self[key]).__name__

    def title(self) -> str:
        """The line that begins the readable form."""
        return type(self).__name__

    def __str__(self) -> str:
        lines = [f"{self.title()}, {len(self)} keys"]
        for i, key in enumerate(self.scan_keys("")):
            if i == _SHOWN:
                lines.append(f"  … and {len(self) - _SHOWN} more")
                break
            name = key if key.isprintable() else ascii(key)
            lines.append(f"  {name}  ({self.describe_key(key)})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{self.title()}, {len(self)} keys>"

    def _repr_html_(self) -> str:
        from html import escape  # only a notebook asks

        head, *lines = str(self).splitlines()
        return f"<b>{escape(head)}</b><pre>{escape(chr(10).join(lines))}</pre>"

    def __eq__(self, other: object) -> bool:
        # By content would read every value of a store; by identity is what a handle is.
        return self is other

    def __hash__(self) -> int:
        return id(self)


class State(ReadableState, MutableMapping[str, Any]):
    """A state that can be written to: what a task takes, `Versioned`, `Live` or a Namespace of one."""

    @property
    @abstractmethod
    def root(self) -> State:
        """The state that commits: this one, or the one that a namespace belongs to."""

    @abstractmethod
    def commit(self, message: str = "", **info: Any) -> Commit | None:
        """Commit what changed; None if nothing did, or the state keeps no history."""

    @abstractmethod
    def record_event(self, event: Event) -> None:
        """Keep an event for the next commit."""

    @abstractmethod
    def transaction(self, message: str = "", **info: Any) -> AbstractContextManager[Any]:
        """Commit at the end of the with block; discard what was changed inside on an exception."""

    @abstractmethod
    def has_uncommitted(self) -> bool:
        """Whether `commit` would make a commit."""

    @abstractmethod
    def savepoint(self) -> Callable[[], None]:
        """A function that takes the mapping back to what it is now; recorded events stay."""

    @abstractmethod
    def pending_events(self) -> list[Event]:
        """The events that no commit holds yet, oldest first."""

    @abstractmethod
    def expire(self, key: str, ttl: float | timedelta | None, *, sliding: bool = False) -> None:
        """Let a key count as absent once `ttl` is over, in seconds or as a timedelta; None takes that away.

        It is staged, and committed with the value: whoever reads the branch goes by it, and whatever becomes of the
        value (a branch, a merge, a push, a rollback) becomes of it. The time begins now, and with `sliding` again
        with each commit that changes the value. Without, an edit in place leaves it as it is, and setting
        the key takes it away: that is another value, of which nobody said that it expires, and one that goes
        unasked would be lost.

        An expired key is in no mapping, listing, or count; `purge` removes it, as does the next commit if the key was
        changed. History is not rewritten: `checkout` shows what was committed. Moments are compared with the
        time of day where they are read. Raises KeyNotFound, and InvalidInput for a time that is none.
        """

    @abstractmethod
    def expires(self, key: str) -> datetime | None:
        """When the key is going to expire, in UTC; None for never. Raises KeyNotFound."""

    turns: Turns
    """Who may run a transaction now; a namespace has none of its own."""

    prefix: str = ""
    """What the keys begin with in the root: empty, or a namespace's name and "/"."""

    @abstractmethod
    def run_update(
        self, function: Callable[[], object], *, attempts: int = 10, message: Message = "", **info: Any
    ) -> Commit | None:
        """As `update` with a function promises, on the whole state."""

    @abstractmethod
    def before_commit(self, hook: Callable[[], object]) -> Callable[[], None]:
        """Call the function at the beginning of each commit made through this handle; what is returned ends that.

        It is called in whoever's turn it is, before what changed is looked at, and once a commit: again with each
        attempt of an update. It may read and change the state, and should do the same if it is called again after
        an interruption. What it raises stops the commit, and everything is still staged. It cannot commit, nor
        go to another commit, and no other thread can write to the state meanwhile: it should not wait for one.
        """

    @abstractmethod
    def may_have_changed(self, prefix: str) -> bool:
        """Whether a key with this prefix was set, deleted, or is in hand and so perhaps edited, since the last commit."""

    @overload  # type: ignore[override]  # a dict's update, and one more way to call it
    def update(
        self,
        function: Callable[[Any], object],
        /,
        *,
        attempts: int = 10,
        message: Message = "",
        **info: Any,
    ) -> Commit | None: ...

    @overload
    def update(self, other: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **values: Any) -> None: ...

    def update(self, other: Any = (), /, **values: Any) -> Commit | None:
        """With a function: call it with this state and commit what it changed; again, on the fresh state,
        until nobody else has changed what it read or changed. With a mapping or pairs: set them, as a dict does.

        The function sees the newest commit and should do nothing but read and change the state. After
        `attempts` runs the last Conflict is raised, with nothing changed; so is what the function raises. The
        result is the commit, None if nothing changed. Inside a task or transaction it runs once, and
        the outer one commits. Raises UncommittedChanges rather than mix earlier changes in.

        `message` may be a function, too: of what the first one returned, which knows what it has done.
        """
        if callable(other) and not hasattr(other, "keys"):
            return self.root.run_update(partial(other, self), **values)
        super().update(other, **values)
        return None

    def clear(self) -> None:
        """Delete every key."""
        for key in list(self.scan_keys("")):
            self.pop(key, None)

    def record(self, kind: str, **data: Any) -> Event:
        """Record that something happened; the next commit keeps it. `data` is plain data.

        Raises InvalidInput, naming the place, for data that is not plain.
        """
        event = make_event(kind, data, self.prefix.removesuffix("/"))
        self.root.record_event(event)
        return event

    def namespace(self, name: str) -> Namespace:
        """The mapping of the keys under `name/`; it nests, and one commit covers all."""
        from vstate.state.namespace import Namespace  # stands on this module

        return Namespace(self, name)


class RootState(State, ForkAware):
    """A state that is not part of another: it has the lock and the turns. Threads may share it."""

    fork_order = 2

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hooks: list[Callable[[], object]] = []
        self._in_hooks = False
        self.turns = Turns()
        survive_forks(self)

    @property
    def root(self) -> State:
        """This state."""
        return self

    def before_commit(self, hook: Callable[[], object]) -> Callable[[], None]:
        """As promised by State."""
        require_plain("what before_commit is given", hook)
        once = partial(hook)  # what is returned ends this one, also where the same function was given twice
        with self._lock:
            self._hooks = [*self._hooks, once]

        def remove() -> None:
            with self._lock:
                self._hooks = [each for each in self._hooks if each is not once]

        return remove

    def _run_hooks(self) -> None:
        """Call what was registered by `before_commit`; the lock is held."""
        self._require_no_hook()
        try:
            self._in_hooks = True
            for hook in self._hooks:
                called("what before_commit is given", hook)
        finally:
            self._in_hooks = False

    def _require_no_hook(self) -> None:
        """Raise InvalidInput inside of what `before_commit` registered; the lock is held."""
        if self._in_hooks:
            raise InvalidInput(
                "what a commit calls before it cannot commit, nor move the branch: leave that out"
            )

    def before_fork(self) -> None:
        """Wait until no other thread is in the middle of anything: the child gets a whole state."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Go on, in the parent and in the child."""
        self._lock.release()
        if child:
            self.turns.after_fork_in_child()


def missing(key: object) -> KeyNotFound:
    """The error for a key that is not there; TypeError if it is no str."""
    if not isinstance(key, str):
        raise TypeError(f"a state's keys are str, not {type(key).__name__}: {key!r}")
    return KeyNotFound(key)


class _Keys(KeysView[str]):
    def __init__(self, state: ReadableState, prefix: str) -> None:
        super().__init__(state)
        self._state = state
        self._prefix = prefix

    def __iter__(self) -> Iterator[str]:
        return self._state.scan_keys(self._prefix)

    def __len__(self) -> int:
        return self._state.count_keys(self._prefix)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.startswith(self._prefix) and key in self._state

    def __repr__(self) -> str:
        return f"keys({list(self)!r})"


class _Values(ValuesView[Any]):
    def __init__(self, state: ReadableState, prefix: str) -> None:
        super().__init__(state)
        self._state = state
        self._prefix = prefix

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in _Items(self._state, self._prefix))

    def __len__(self) -> int:
        return self._state.count_keys(self._prefix)

    def __contains__(self, value: object) -> bool:
        return any(item is value or item == value for item in self)

    def __repr__(self) -> str:
        return f"values({len(self)} of {self._state!r})"


class _Items(ItemsView[str, Any]):
    def __init__(self, state: ReadableState, prefix: str) -> None:
        super().__init__(state)
        self._state = state
        self._prefix = prefix

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for key in self._state.scan_keys(self._prefix):
            try:
                value = self._state[key]
            except KeyNotFound:  # deleted while we looked
                continue
            yield key, value

    def __len__(self) -> int:
        return self._state.count_keys(self._prefix)

    def __contains__(self, item: object) -> bool:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):
            return False
        key, value = item
        if not key.startswith(self._prefix) or key not in self._state:
            return False
        found = self._state[key]
        return found is value or bool(found == value)

    def __repr__(self) -> str:
        return f"items({len(self)} of {self._state!r})"
