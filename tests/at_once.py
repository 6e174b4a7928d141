"""Calls in threads that run beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Result = TypeVar("Result")


def at_once(function: Callable[[Given], Result], given: Iterable[Given]) -> list[Result]:
    """Call a function with each argument in a thread of its own; the results, or the first error."""
    arguments = list(given)
    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(function, arguments))
