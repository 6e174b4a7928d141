"""What the stores on servers share: attempts of calls, a pool of connections, listeners, checks of URLs."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar
from urllib.parse import unquote
from weakref import WeakSet

from vstate.backoff import Backoff, Timeout
from vstate.errors import InvalidInput, StoreUnavailable, VStateError
from vstate.forks import new_lock, renew_in_child
from vstate.kv.base import POLL_SECONDS

C = TypeVar("C")
T = TypeVar("T")

LONGEST_IDLE: Final = 240.0
"""Seconds after which an unused connection is not trusted: firewalls and proxies forget idle connections."""

LOOK_SECONDS: Final = 0.01
"""Seconds after which a waiting call looks again for a free place, if the news went to another."""

RECONNECT_SECONDS: Final = 1.0
"""Seconds between two attempts of a listener to connect."""

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0

BAD_ESCAPE: Final = "%(?![0-9A-Fa-f]{2})"
_HOST: Final = r"(?:\[[0-9A-Za-z:.%]*\]|[^\[\]:]*)(?::([0-9]{0,5}))?"


# Attempts


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt of a call."""

    error: VStateError
    """The error for the caller, without secrets."""
    passing: bool = False
    """Whether another attempt may succeed."""
    sent: bool = False
    """Whether the server may have carried out a write of this attempt, or may do so yet."""
    lost_at: float | None = None
    """Since when the server cannot be reached, if that was it."""


class Failed(Exception):
    """Carries a failure from an attempt to the loop around it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.error))
        self.failure = failure


class Attempts:
    """The attempts of one call, for `timeout` seconds after the first failure; less long for a server out of
    reach.
    """

    def __init__(self, timeout: Timeout) -> None:
        self.began = time.monotonic()
        self.sending = False
        """Whether the attempt under way may have reached the server with a write."""
        self.unsure = False
        """Whether an earlier attempt may have written, or may do so yet."""
        self._timeout = timeout
        self._backoff: Backoff | None = None

    def repeat(self, attempt: Callable[[], T]) -> T:
        """The result of the first attempt that does not raise Failed; the error of the last one."""
        while True:
            try:
                return attempt()
            except Failed as failed:
                failure = failed.failure
            except VStateError as error:
                raise self.verdict(error) from None
            self.unsure = self.unsure or failure.sent
            self.sending = False
            if self._backoff is None:
                seconds, to_reach = self._timeout
                self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, seconds=seconds, to_reach=to_reach)
            if not (failure.passing and self._backoff.pause(lost_at=failure.lost_at)):
                raise self.verdict(failure.error) from None

    def got_on(self) -> None:
        """A part of the call is done: the time for attempts begins anew at the next failure."""
        self._backoff = None
        self.sending = False

    def verdict(self, error: VStateError) -> VStateError:
        """The error for the caller, who must not hear that nothing was written if that is not known."""
        if not self.unsure or (isinstance(error, StoreUnavailable) and error.outcome_unknown):
            return error
        happened = str(error).partition("; ")[0]  # without the advice, which may be to write again
        return StoreUnavailable(
            f"{happened}; the write may or may not have happened: read it again before you retry",
            outcome_unknown=True,
        )


# Connections


class Pool(ABC, Generic[C]):
    """Up to `size` connections in use, made when they are needed, and kept for the next call.

    A call has a place while it holds a lock of its own in a `with` block, and the pool counts the locks that
    are held. So an exception of a signal or a time limit leaves no place taken. A connection that a call did
    not bring back is garbage, and closes.

    Readers may have one place more than writers. Writers wait for locks, and the holder of the lock may have
    to read before it goes on: otherwise it could find all places taken.
    """

    def __init__(self, place: str, *, size: int, timeout: float, option: str) -> None:
        self._place = place
        self._size = size
        self._timeout = timeout
        self._option = option
        self._lock = new_lock()
        self._closed = False
        self._made: WeakSet[C] = WeakSet()
        self._begin()
        renew_in_child(self, Pool._renew)

    def _begin(self) -> None:
        self._idle: deque[tuple[float, C]] = deque()
        self._taken: list[tuple[threading.Lock, bool]] = []
        self._news: SimpleQueue[None] = SimpleQueue()

    @abstractmethod
    def make(self) -> C:
        """A new connection."""

    def is_clean(self, connection: C) -> bool:
        """Whether another call may use the connection, after a call that succeeded."""
        return True

    @abstractmethod
    def discard(self, connection: C) -> None:
        """Close the connection. It raises nothing."""

    @abstractmethod
    def descriptor(self, connection: C) -> int:
        """The file descriptor of the connection."""

    def connect(self) -> C:
        """A new connection beside those of the pool, for the caller to discard."""
        connection = self.make()
        self._made.add(connection)
        return connection

    def use(self, work: Callable[[C], T], *, writing: bool = False) -> T:
        """Call `work` with a connection that nobody else uses meanwhile."""
        place = threading.Lock()
        with place:
            self._take(place, writing)
            connection = self._unused() or self.connect()
            clean = False
            try:
                result = work(connection)
                clean = self.is_clean(connection)
            finally:
                if not clean:
                    self.discard(connection)
            if clean:
                self._keep(connection)
        if self._news.empty():
            self._news.put(None)
        return result

    def clear(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with suppress(IndexError):
                self.discard(self._idle.pop()[1])

    def close(self) -> None:
        """Close the idle connections now, and the others when their calls end."""
        self._closed = True
        self.clear()

    def _take(self, place: threading.Lock, writing: bool) -> None:
        """Wait for a place, and take it."""
        end = time.monotonic() + self._timeout
        while not self._takes(place, writing):
            if time.monotonic() >= end:
                raise StoreUnavailable(
                    f"all {self._size} connections of this store to {self._place} were in use for "
                    f"{self._timeout:g} s; retry later, or give the store more `{self._option}`"
                )
            # Not a condition variable: an exception of a signal inside one takes its lock for good.
            with suppress(Empty):
                self._news.get(timeout=LOOK_SECONDS)

    def _takes(self, place: threading.Lock, writing: bool) -> bool:
        if self._closed:
            raise InvalidInput(f"the store at {self._place} is closed; open it again")
        with self._lock:
            taken = [other for other in self._taken if other[0].locked()]
            if len(taken) >= self._size or (writing and sum(writes for _, writes in taken) >= self._size - 1):
                return False
            self._taken = [*taken, (place, writing)]
            return True

    def _unused(self) -> C | None:
        while self._idle:
            with suppress(IndexError):
                since, connection = self._idle.pop()
                if time.monotonic() - since < LONGEST_IDLE and self._is_quiet(connection):
                    return connection
                self.discard(connection)
        return None

    def _is_quiet(self, connection: C) -> bool:
        """Whether the server said nothing unasked: mostly that it is going down, or that it is gone."""
        try:
            poll = select.poll()
            poll.register(self.descriptor(connection), select.POLLIN)
            return not poll.poll(0)
        except Exception:  # each driver has its own for a connection that is closed
            return False

    def _keep(self, connection: C) -> None:
        self._idle.append((time.monotonic(), connection))
        with suppress(IndexError):
            if time.monotonic() - self._idle[0][0] > LONGEST_IDLE:
                self.discard(self._idle.popleft()[1])
        if self._closed:
            self.clear()

    def _renew(self) -> None:
        """In a forked child: leave the connections of the parent to the parent."""
        made = list(self._made)
        self._begin()
        # A socket that stays open here keeps a session of a dead parent alive, with its locks. Its number
        # stays taken, so that a holder of the connection cannot write into another file.
        with open(os.devnull, "rb+", buffering=0) as nothing:
            for connection in made:
                with suppress(Exception):
                    os.dup2(nothing.fileno(), self.descriptor(connection), inheritable=False)


class Listener(AbstractContextManager[Callable[[float], None]], Generic[C]):
    """Waits for changes of one key, on a connection of its own beside those of the pool. The with block gets
    the function that waits.

    Without a connection it hears nothing. So a wait that loses its connection, or gets one, returns at once,
    and other waits without one end after POLL_SECONDS. A `deaf` listener, which the server tells nothing,
    does not connect again. The errors of `troubles` mean that there is no connection: the caller looks at the
    key next, and gets the error from the store.
    """

    troubles: tuple[type[Exception], ...] = (Failed, VStateError)

    def __init__(self, connections: Pool[C]) -> None:
        self._connections = connections
        self._connection: C | None = None
        self._next_try = 0.0
        self.deaf = False

    def __enter__(self) -> Callable[[float], None]:
        self._connect()
        return self.wait

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def begin(self, connection: C) -> None:
        """Ask the server for messages on this new connection."""

    @abstractmethod
    def listen(self, connection: C, end: float) -> None:
        """Return when the key may have changed, or at this time."""

    def wait(self, timeout: float) -> None:
        """Return when the key may have changed, after so many seconds at most."""
        end = time.monotonic() + timeout
        is_due = self._connection is None and not self.deaf and time.monotonic() >= self._next_try
        if is_due and self._connect():
            return  # there may have been changes meanwhile
        if self._connection is None:
            time.sleep(max(0.0, min(timeout, POLL_SECONDS)))
            return
        try:
            self.listen(self._connection, end)
        except self.troubles:
            self.close()
            self._connect()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.discard(connection)

    def _connect(self) -> bool:
        try:
            self._connection = self._connections.connect()
            self.begin(self._connection)
            if not self.deaf:
                return True
        except self.troubles:
            self._next_try = time.monotonic() + RECONNECT_SECONDS
        self.close()
        return False


# Addresses


def check_url(url: object, *schemes: str) -> str:
    """Return the URL of a server. InvalidInput, which shows nothing of it, if a driver would read it in
    another way than it looks, or could show its password in a complaint.
    """
    if not isinstance(url, str):
        raise InvalidInput(f"the URL of a server is a str, not {type(url).__name__}")
    scheme, mark, text = url.partition("://")
    if not mark or scheme not in schemes:
        raise InvalidInput(f"the URL of this store begins with {', '.join(f'{name}://' for name in schemes)}")
    place, _, query = text.partition("?")
    authority, _, path = place.partition("/")
    user, _, hosts = authority.rpartition("@")
    problem = None
    if not text.isprintable() or " " in text:
        problem = "spaces and control characters must be percent-encoded"
    elif "#" in text or "@" in path + query + user or not all(map(_is_host, hosts.split(","))):
        problem = "ports are numbers up to 65535, and / ? # @ [ ] : % in a password must be percent-encoded"
    elif re.search(BAD_ESCAPE, text) or "\ufffd" in unquote(text):
        problem = "percent-encoded text must be UTF-8, and a single % is written %25"
    if problem is not None:
        raise InvalidInput(f"this {scheme}: URL cannot be read: {problem}")
    return url


def _is_host(text: str) -> bool:
    match = re.fullmatch(_HOST, text)
    return match is not None and int(match[1] or 0) <= 65535
