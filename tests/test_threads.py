"""Work in two threads: each item once, and errors in the thread of the caller."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

import pytest

from vstate.threads import in_two_threads


def test_each_item_is_worked_on_once_in_two_threads() -> None:
    """Two calls run at the same time, and both see the caller's context variables."""
    variable: ContextVar[int] = ContextVar("variable")
    variable.set(7)
    met = threading.Barrier(2, timeout=30)
    done: list[tuple[int, int]] = []

    def work(item: int) -> None:
        if item < 2:
            met.wait()  # the other thread is in a call too
        done.append((item, variable.get()))

    in_two_threads(work, range(100))
    assert sorted(done) == [(item, 7) for item in range(100)]


@pytest.mark.parametrize("in_helper", [True, False])
def test_an_error_of_either_thread_is_raised(in_helper: bool) -> None:
    """The caller gets the error, and the items that are left are dropped."""
    caller = threading.current_thread()
    met = threading.Barrier(2, timeout=30)
    taken: list[int] = []

    def work(item: int) -> None:
        taken.append(item)
        if item < 2:
            met.wait()
        if (threading.current_thread() is not caller) is in_helper:
            raise LookupError("this one")
        time.sleep(0.001)  # the other thread fails meanwhile

    with pytest.raises(LookupError, match="this one"):
        in_two_threads(work, range(10_000))
    assert len(taken) < 10_000


def test_one_thread_does_all_where_no_other_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that starts no more threads costs time only."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    in_two_threads(done.append, range(5))
    assert done == [0, 1, 2, 3, 4]
