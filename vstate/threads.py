"""Threads: one call for each of many items, in two threads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from threading import Lock, Thread
from typing import Any, TypeVar

_T = TypeVar("_T")


def in_two_threads(work: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Call `work` once with each item, in this thread and in a helper. Raise the error of a call that failed.

    This saves time if `work` mostly runs C code that releases the interpreter lock. The threads take the
    items one by one, in order, from the iterator. The caller must hold no lock that `work` takes.
    """
    left, lock = iter(items), Lock()
    end: Any = object()
    failures: list[BaseException] = []
    stopped = False

    def take() -> None:
        while not stopped:
            with lock:
                item = next(left, end)
            if item is end:
                return
            work(item)

    def help_out() -> None:
        nonlocal stopped
        try:
            take()
        except BaseException as error:  # it is raised in the thread of the caller
            failures.append(error)
            stopped = True

    helper = Thread(target=copy_context().run, args=(help_out,), name="vstate-helper")
    try:
        with suppress(RuntimeError):  # no thread can start now: this one does all the work
            helper.start()
        take()
    finally:
        stopped = True
    if helper.ident is not None:
        helper.join()
    if failures:
        raise failures[0]
