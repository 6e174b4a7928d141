"""Threads: one call for each of many items, in two threads at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

_T = TypeVar("_T")


def in_two_threads(work: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Call `work` once with each item, in this thread and in a helper. Raise the error of a call that failed.

    This saves time if `work` mostly runs C code that releases the interpreter lock. The caller must hold no
    lock that `work` takes.
    """
    left = deque(items)
    failures: list[BaseException] = []

    def take() -> None:
        while left:
            try:
                item = left.popleft()
            except IndexError:  # the other thread took it
                return
            work(item)

    def help_out() -> None:
        try:
            take()
        except BaseException as error:  # it is raised in the thread of the caller
            failures.append(error)
            left.clear()

    helper = Thread(target=copy_context().run, args=(help_out,), name="vstate-helper")
    try:
        if len(left) > 1:
            try:
                helper.start()
            except RuntimeError:  # no thread can start now; this one does all the work
                pass
        take()
    finally:
        left.clear()
    if helper.ident is not None:
        helper.join()
    if failures:
        raise failures[0]
