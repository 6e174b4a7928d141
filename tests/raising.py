"""Raising: an exception of any class at one line of vstate, out of a call that runs many."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import vstate

PACKAGE = str(Path(vstate.__file__).parent)


@cache
def try_lines(file: str) -> frozenset[int]:
    """The lines of a file with the word `try`: Python runs nothing there, so nothing raises.

    An exception of a tracer would come out there as if the `with` block around it had not begun.
    """
    tree = ast.parse(Path(file).read_text())
    return frozenset(node.lineno for node in ast.walk(tree) if isinstance(node, (ast.Try, ast.TryStar)))


@cache
def with_lines(file: str) -> frozenset[int]:
    """The lines of a file on which a `with` statement begins."""
    tree = ast.parse(Path(file).read_text())
    return frozenset(node.lineno for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith)))


def raised_at(function: Callable[[], object], line: int | None, kind: type[BaseException]) -> tuple[int, Any]:
    """Call the function, and raise at line number `line` of vstate. Returns the number of lines, and the
    exception.

    The exception holds all frames that it passed, and so everything in them.
    """
    passed = 0
    entered: set[tuple[int, int]] = set()
    frames: list[FrameType] = []  # kept, so that no two frames have one id

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and frame.f_lineno not in try_lines(frame.f_code.co_filename):
            if frame.f_lineno in with_lines(frame.f_code.co_filename):
                place = id(frame), frame.f_lineno
                if place in entered:
                    return trace
                entered.add(place)
                frames.append(frame)
            passed += 1
            if passed == line:
                sys.settrace(None)
                raise kind("made to fail")
        return trace

    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None  # an exception in a destructor reaches no caller
    try:
        sys.settrace(trace)
        function()
    except (kind, vstate.errors.VStateError) as error:
        return passed, error
    finally:
        sys.settrace(None)
        sys.unraisablehook = before
        frames.clear()
    return passed, None


def called_within(function: Callable[[], object], moment: int, handler: Callable[[], object]) -> bool:
    """Call the function, and the handler in the middle of it, where Python may run a signal handler.

    Returns whether there was such a moment.
    """
    passed = 0

    def profiler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal passed
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            passed += 1
            if passed == moment:
                handler()

    sys.setprofile(profiler)
    try:
        function()
    finally:
        sys.setprofile(None)
    return passed >= moment


def interrupted(function: Callable[[], object], moment: int | None) -> tuple[int, KeyboardInterrupt | None]:
    """Call the function, and raise KeyboardInterrupt at one of the moments at which Python handles signals.

    Such a moment is the start of a function, and the return of a function in C: a profiler is called at these
    two. Returns the number of moments, and the exception, which holds all frames that it passed.
    """
    passed = 0

    def profiler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal passed
        # A profiler's exception ends a resumed generator without its `finally`; a signal's exception does
        # not.
        goes_on = event == "call" and frame.f_code.co_flags & CO_GENERATOR
        if event in ("call", "c_return") and not goes_on:
            passed += 1
            if passed == moment:
                raise KeyboardInterrupt

    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None  # an interrupted destructor reports to no caller
    try:
        sys.setprofile(profiler)
        function()
    except KeyboardInterrupt as interruption:
        return passed, interruption
    finally:
        sys.setprofile(None)
        sys.unraisablehook = before
    return passed, None
