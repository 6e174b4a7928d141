"""Kill a run at every call of its store: `python errand_kills.py SEED DIRECTORY`.

A child does an errand on a Disk, and SIGKILL ends it at one call of the store: before the call, or when the
call is done. That is before and after each step's commit, each intent, and each payment. Other children then
finish the errand. Its state, and what it paid, are those of an errand that nobody killed. Prints the figures
as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from errands import Errand, Ledger

from vstate import Disk
from vstate.testing import Faulty

TTL = 0.3
TOGETHER = 4
"""Numbers of calls at a time. Who finishes a killed run waits until its lease ends."""


def die(text: str) -> BaseException:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def codes_of(works: Iterable[Callable[[], None]]) -> list[int]:
    """Do each work in a child, all at once: the exit code of each, or minus the signal that ended it."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in [*map(started, works)]]


def started(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def main(seed: int, directory: Path) -> None:
    killed = unknown = 0
    (wanted,) = finished(seed, [directory / "calm"], ttl=30)
    for first in count(1, TOGETHER):
        kills = [(number, after) for number in range(first, first + TOGETHER) for after in (False, True)]
        places = [directory / f"{number}-{after}" for number, after in kills]
        begins = zip(places, kills, strict=True)
        codes = codes_of(partial(begun, seed, place, *kill) for place, kill in begins)
        assert {*codes} <= {0, -signal.SIGKILL}, codes
        for kill, found in zip(kills, finished(seed, places), strict=True):
            # The edits of a step that a person resolves are those of a call that ended without a commit.
            lost = [entry for entry in wanted["log"] if entry not in found["log"]]
            assert all(str(entry).startswith("paid ") for entry in lost), (seed, kill, lost)
            kept = [entry for entry in wanted["log"] if entry not in lost]
            assert found == {**wanted, "log": kept}, (seed, kill)
            unknown += len(lost)
        killed += len(codes) - codes.count(0)
        if codes[-2:] == [0, 0]:
            break
    print(json.dumps({"kills": killed, "unknown": unknown}))


def errand_at(seed: int, place: Path, ttl: float = TTL) -> Errand:
    return Errand(seed, Ledger(place / "ledger"), ttl=ttl)


def begun(seed: int, place: Path, number: int, after: bool) -> None:
    """Do the errand, and be killed at this call of the store."""
    place.mkdir()
    store = Faulty(Disk(place / "store"), number, die, after)
    errand_at(seed, place).finish(lambda: store)


def finished(seed: int, places: Sequence[Path], ttl: float = TTL) -> list[dict[str, Any]]:
    """What each state holds once another process has finished its errand."""

    def finish(place: Path) -> None:
        place.mkdir(exist_ok=True)
        answer = errand_at(seed, place, ttl).finish(lambda: Disk(place / "store"))
        (place / "state.json").write_text(json.dumps(answer))

    assert not any(codes_of(partial(finish, place) for place in places)), (seed, places)
    for place in places:
        errand = errand_at(seed, place)
        assert errand.ledger.amounts() == errand.payments(), (seed, place)
    return [json.loads((place / "state.json").read_text()) for place in places]


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
