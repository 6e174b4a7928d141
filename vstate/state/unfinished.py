"""Unfinished: what an interruption cut short, for the next call to finish.

A signal handler may raise KeyboardInterrupt almost anywhere: Python looks for signals where a function written in
Python begins, where a loop jumps back, and after a call of a function written in C. Three things follow, for all of
`vstate.state` and `vstate.kv`:

- No function written in Python is certain to run: not the `__exit__` of a context manager, not what a `finally`
  calls. A `with` block on a lock, written in C, is certain to let go of it. So a span is a bare lock, which nobody
  waits for and which only says whether the `with` block around it is still under way.
- Assignments, `del`, `in` and operators between two calls happen together.
- Everything else is written down first, and so can be done again.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

Step = tuple[Lock, Callable[[], None]]
"""A span, and what is to be done once it has ended in whatever way; it may be done again."""


class Unfinished:
    """The steps of one state that have to be done, by this call or by the next. Its owner holds a lock around it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __bool__(self) -> bool:
        """Whether there is something to do now."""
        return bool(self.steps) and not self.steps[-1][0].locked()

    def in_a_span(self) -> bool:
        """Whether a span is under way."""
        return any(span.locked() for span, _ in self.steps[-1:])

    def begin(self, span: Lock, step: Callable[[], None]) -> None:
        """Have `finish` do the step once the span, which is under way, has ended in whatever way."""
        self.steps.append((span, step))

    def finish(self) -> bool:
        """Do what is left to do, the newest first; False if this is a call from inside a span.

        A step that is interrupted is done again, from its beginning; one that raises an Exception is not.
        """
        while self.steps:
            last = self.steps[-1]
            span, step = last
            if span.locked():
                return False
            with span:
                try:
                    step()
                except Exception:
                    self.steps.remove(last)
                    raise
                self.steps.remove(last)
        return True

    def surely(self, step: Callable[[], None]) -> None:
        """Do the step: now, or in the next call if an interruption keeps this one from it."""
        self.begin(Lock(), step)
        self.finish()

    def forget_spans(self) -> None:
        """Take none for under way any more: those of other threads are not, in a child process."""
        self.steps = [(Lock(), step) for _, step in self.steps]
