"""Forks: notify objects with locks, or with handles that must not cross a fork, before and after it."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

T = TypeVar("T")


class ForkAware(ABC):
    """An object with locks, or with handles that must not cross a fork. Register it with `survive_forks`."""

    fork_order = 0
    """Higher first: an object that uses others is notified before them, so locks are taken from the top."""

    def __reduce__(self) -> str | tuple[object, ...]:
        raise no_copy(self, "make another one where you need it")

    @abstractmethod
    def before_fork(self) -> None:
        """Take all the locks, then close the handles that must not be in two processes."""

    @abstractmethod
    def after_fork(self, *, child: bool) -> None:
        """Release the locks; in the child make new ones, since their owners may not exist there."""


def no_copy(thing: object, instead: str) -> TypeError:
    """The error for a try to pickle or copy an object that has locks or threads."""
    return TypeError(f"a {type(thing).__name__} cannot be pickled or copied: {instead}")


_locks: WeakSet[threading.RLock] = WeakSet()
_renewed: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


def new_lock() -> threading.RLock:
    """An RLock that no thread of the parent holds in a forked child.

    A thread that forks while it holds the lock still holds it in the child.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def renew_in_child(thing: T, renew: Callable[[T], None]) -> None:
    """Call `renew(thing)` in each forked child, as long as `thing` lives.

    `renew` drops what belongs to the parent (connections, threads, descriptors) without using it, and takes
    no lock. Pass a plain function: a bound method would keep `thing` alive.
    """
    _renewed[thing] = renew


def _in_child() -> None:
    # The locks come first. The other threads of the parent do not exist here, and would never release them.
    for lock in list(_locks):
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    for thing, renew in list(_renewed.items()):
        renew(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


_alive: WeakSet[ForkAware] = WeakSet()
_forking = threading.RLock()
_paused: list[ForkAware] = []


def survive_forks(resource: ForkAware) -> None:
    """Notify `resource` before and after each fork, as long as it lives."""
    with _forking:
        _alive.add(resource)


class ForkLocked(ForkAware):
    """An object with one lock, `_lock`, which no thread holds during a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        survive_forks(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._lock = threading.RLock()
        else:
            self._lock.release()


def _before_fork() -> None:
    # Otherwise two threads that fork at once could each hold locks that the other waits for.
    _forking.acquire()
    _paused.extend(sorted(_alive, key=lambda resource: -resource.fork_order))
    for resource in _paused:
        resource.before_fork()


def _after_fork(child: bool) -> None:
    global _forking
    for resource in _paused:
        resource.after_fork(child=child)
    _paused.clear()
    if child:
        _forking = threading.RLock()
    else:
        _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(child=False),
        after_in_child=lambda: _after_fork(child=True),
    )
