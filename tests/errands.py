"""Errands: programs of steps, made from a seed, and the ledger of the service that they pay at."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vstate import ABSENT, EffectUnknown, KVStore, LeaseLost, StoreUnavailable, Versioned
from vstate.state.run import Intent, Run

KINDS = ("between", "in place", "step", "step", "keyed", "pay", "pay", "checked", "fails", "caught", "race")
MOST = 200  # entries until an errand is done


class Ledger:
    """A file of somebody else's: each payment is a line, and stays."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pay(self, amount: int, key: str) -> dict[str, int]:
        with self.path.open("a") as file:
            file.write(f"{key} {amount}\n")
            file.flush()
            os.fsync(file.fileno())
        return {"paid": amount}

    def find(self, key: str) -> Any:
        """The receipt of a payment, ABSENT if there was none."""
        for line in self.lines():
            if line.startswith(key):
                return {"paid": int(line.split()[1])}
        return ABSENT

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def amounts(self) -> list[int]:
        return sorted(int(line.split()[1]) for line in self.lines() if not line.startswith("tried"))


def _begin(state: Versioned) -> None:
    state.setdefault("log", [])
    state.setdefault("total", 0)


class Errand:
    """A program whose run is entered again and again until it is done."""

    def __init__(self, seed: int, ledger: Ledger, *, ttl: float = 30.0, length: int = 6) -> None:
        chance = random.Random(seed)
        self.works = [(chance.choice(KINDS), number) for number in range(1, length + 1)]
        self.ledger = ledger
        self.ttl = ttl

    def enter(self, store: KVStore, *, resolves: bool) -> dict[str, Any]:
        """Do the errand, or go on with it; what the state holds then."""
        with Versioned(store) as state:
            if state.head is None:
                state.apply(_begin)
            with state.run("errand", ttl=self.ttl) as run:
                for step in run.steps if resolves else []:
                    if step.status == "open":
                        found = self.ledger.find(step.key)
                        run.retry(step.id) if found is ABSENT else run.resolve(step.id, found)
                results = [self._do(kind, number, state, run) for kind, number in self.works]
                state["results"] = results
                state["log"].append("end")
            return {key: state[key] for key in state if key != "beside"}

    def finish(self, open_store: Callable[[], KVStore]) -> dict[str, Any]:
        """Enter until the errand is done. Of a step whose effect is unknown, ask the ledger."""
        resolves = False
        for _ in range(MOST):
            try:
                return self.enter(open_store(), resolves=resolves)
            except EffectUnknown:
                resolves = True
            except (OSError, StoreUnavailable, LeaseLost):
                pass
        raise AssertionError(f"not done after {MOST} entries: {self.works}")

    def _do(self, kind: str, number: int, state: Versioned, run: Run) -> Any:
        def add(number: int) -> int:
            state["total"] += number
            state["log"].append(f"step {number}")
            return number * 10

        def pay(number: int, idempotency_key: str) -> dict[str, int]:
            state["log"].append(f"paid {number}")
            return self.ledger.pay(number, idempotency_key)

        def fail(number: int) -> int:
            """Fails once, whatever happens to the process then."""
            state["total"] += 1000
            mark = f"tried {number}"
            if mark not in self.ledger.lines():
                with self.ledger.path.open("a") as file:
                    file.write(f"{mark}\n")
                raise OSError(mark)
            return number

        def break_down(number: int) -> None:
            state["total"] += 1000
            raise OSError(number)

        def race(number: int) -> int:
            Versioned(state.store, branch="main").apply(lambda other: other.update(beside=number))
            return add(number)

        def ask(intent: Intent) -> Any:
            return self.ledger.find(intent.key)

        if kind == "between":
            state["log"] = [*state["log"], number]
        elif kind == "in place":
            state["log"].append(number)
            state.record("noted", number=number)
        elif kind == "step":
            return run.step(add, number)
        elif kind == "keyed":
            return run.step(add, number, key=str(number))
        elif kind == "pay":
            return run.step(pay, number, once=True)
        elif kind == "checked":
            return run.step(pay, number, once=True, check=ask, name="checked")
        elif kind == "fails":
            return run.step(fail, number)
        elif kind == "race":
            return run.step(race, number)
        else:
            try:
                run.step(break_down, number)
            except OSError:
                state["log"].append(f"caught {number}")
        return None

    def payments(self) -> list[int]:
        """What the errand pays, whatever happens to it."""
        return [number for kind, number in self.works if kind in ("pay", "checked")]
