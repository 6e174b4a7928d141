"""Forks: a forked child finds every lock of vstate free, and makes the things of one process anew.

No lock is taken before a fork. The child has the memory of its parent, and one thread of it. So an operation
that another thread was in the middle of stops there, as at an exception that nothing handles.
"""

from __future__ import annotations

import _frozen_importlib  # that is importlib._bootstrap
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

T = TypeVar("T")


class Uncopied:
    """A thing with locks, threads or connections. Each process makes its own."""

    _instead = "make another one where you need it"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: {self._instead}")


_locks: WeakSet[threading.RLock] = WeakSet()
_renewed: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


def new_lock() -> threading.RLock:
    """An RLock that no thread of the parent holds in a forked child.

    A thread that forks while it holds the lock still holds it in the child.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


class cached_property(functools.cached_property[T]):  # as the one that it is
    """As in functools. Before Python 3.12 it has a lock, which a forked child has to find free."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = new_lock()


def renew_in_child(thing: T, renew: Callable[[T], None]) -> None:
    """Call `renew(thing)` in each forked child, as long as `thing` lives.

    `renew` drops the connections, threads and descriptors of the parent without using them, and takes no
    lock. Pass a plain function: a bound method would keep `thing` alive. Call this at the end of the
    constructor: a thread that is in the middle of it at a fork leaves half a thing.
    """
    _renewed[thing] = renew


def _in_child() -> None:
    _forget_imports()
    # The locks come first. The other threads of the parent do not exist here, and would never release them.
    for lock in list(_locks):
        if not is_mine(lock):
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    failed: Exception | None = None
    for thing, renew in list(_renewed.items()):
        try:
            renew(thing)
        except Exception as error:  # the others need theirs all the same
            failed = error
    if failed is not None:
        raise failed  # Python prints it


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock."""
    return lock._is_owned()  # type: ignore[attr-defined,no-any-return]


def _forget_imports() -> None:
    """Have the child import anew a module that another thread was importing.

    Python would wait for that thread for ever. vstate imports much late, for a quick start.
    """
    me, locks = threading.get_ident(), getattr(_frozen_importlib, "_module_locks", {})
    for name, found in list(locks.items()):
        lock = found()
        if lock is None or lock.owner == me:
            continue
        locks.pop(name, None)
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if lock.owner is not None and getattr(spec, "_initializing", False):
            sys.modules.pop(name, None)


os.register_at_fork(after_in_child=_in_child)
