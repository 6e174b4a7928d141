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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from errands import Errand, Ledger

from vstate import Disk
from vstate.testing import Faulty

TTL = 0.3


def die(text: str) -> BaseException:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def in_child(work: Callable[[], None]) -> int:
    """The work in a child; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(seed: int, directory: Path) -> None:
    killed = unknown = 0
    wanted = finished(seed, directory / "calm")
    number = 1
    while True:
        codes = []
        for after in (False, True):
            place = directory / f"{number}-{after}"
            codes.append(in_child(partial(begun, seed, place, number, after)))
            assert codes[-1] in (0, -signal.SIGKILL), codes
            found = finished(seed, place)
            # The edits of a step that a person resolves are those of a call that ended without a commit.
            lost = [entry for entry in wanted["log"] if entry not in found["log"]]
            assert all(str(entry).startswith("paid ") for entry in lost), (seed, number, after, lost)
            kept = [entry for entry in wanted["log"] if entry not in lost]
            assert found == {**wanted, "log": kept}, (seed, number, after)
            unknown += len(lost)
        if codes == [0, 0]:
            break
        killed += len(codes) - codes.count(0)
        number += 1
    print(json.dumps({"kills": killed, "unknown": unknown}))


def errand_at(seed: int, place: Path) -> Errand:
    return Errand(seed, Ledger(place / "ledger"), ttl=TTL)


def begun(seed: int, place: Path, number: int, after: bool) -> None:
    """Do the errand, and be killed at this call of the store."""
    place.mkdir()
    store = Faulty(Disk(place / "store"), number, die, after)
    errand_at(seed, place).finish(lambda: store)


def finished(seed: int, place: Path) -> dict[str, Any]:
    """What the state holds once another process has finished the errand."""
    place.mkdir(exist_ok=True)
    errand, answer = errand_at(seed, place), place / "state.json"

    def finish() -> None:
        answer.write_text(json.dumps(errand.finish(lambda: Disk(place / "store"))))

    assert in_child(finish) == 0, (seed, place)
    assert errand.ledger.amounts() == errand.payments(), (seed, place)
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
