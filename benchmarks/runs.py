"""Runs: what a step costs beside a commit, and to go on with a run of many steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, Sides, Target, median_seconds, seconds, workload
from vstate import Versioned

STEPS, SAMPLE = 1_000, 200

COMMIT = "commit 1 changed key, disk, beside the next row"
STEP = "a step of a run that changes 1 key, disk"
RESUME = "resume a run of 1,000 steps on a store just opened, without the time to load 1,000 keys"


def answer(number: int) -> dict[str, Any]:
    """The result of a step, as a tool gives it."""
    return {"number": number, "text": f"the answer to question {number}", "sources": [number, number + 1]}


@workload(Row(COMMIT, "seconds"), Row(STEP, "seconds", (Target(1.5, row=COMMIT),)))
def steps_beside_commits(scratch: Path) -> Iterator[Sides]:
    with Versioned(scratch / "store") as state:
        turns = count()

        def commit(number: int) -> None:
            state["answer"] = answer(number)
            state.commit()

        def once() -> dict[str, float]:
            found = {COMMIT: median_seconds(commit, SAMPLE)}
            with state.run(f"run-{next(turns)}") as run:

                def step(number: int) -> None:
                    state["answer"] = answer(-number)
                    run.step(answer, number)

                found[STEP] = median_seconds(step, SAMPLE)
            return found

        yield {"vstate": once}


@workload(Row(RESUME, "seconds", (Target(0.05),)))
def resume_of_many_steps(scratch: Path) -> Iterator[Sides]:
    def all_steps(state: Versioned) -> None:
        with state.run("long") as run:
            for number in range(STEPS):
                run.step(answer, number)

    def loads(state: Versioned) -> None:
        assert len(dict(state.items())) == STEPS

    def on_a_store_just_opened(work: Callable[[Versioned], None]) -> float:
        with Versioned(scratch / "store") as state:
            return seconds(work, state)

    with Versioned(scratch / "store") as state:
        all_steps(state)
        state.update({f"answer/{number:04}": answer(number) for number in range(STEPS)})
        state.commit()
    yield {"vstate": lambda: {RESUME: on_a_store_just_opened(all_steps) - on_a_store_just_opened(loads)}}
