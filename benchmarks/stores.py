"""The stores of all sides for one workload, in directories beside each other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import Side
from benchmarks.peers import missing, open_doltlite, open_prollytree
from benchmarks.subjects import Subject, open_kvgit, open_vstate

Start = Callable[[Path], Subject]
Work = Callable[[Start, Path], Mapping[str, float]]
Rounds = dict[Side, Callable[[], Mapping[str, float]]]
T = TypeVar("T")

OPEN: dict[Side, Start] = {"vstate": open_vstate, "kvgit": open_kvgit}
PEERS: dict[Side, Start] = {"doltlite": open_doltlite, "prollytree": open_prollytree}


class Stores:
    """A store of vstate, one of kvgit, and one of each named peer that this machine has.

    doltlite replaces SQLite in its process, so each peer works in a process of its own. A peer's work is a
    function of a module, or a `partial` of one, because it travels to that process.
    """

    def __init__(self, scratch: Path, *peers: Side) -> None:
        present = [peer for peer in peers if missing(peer) is None]
        self._starts = OPEN | {peer: PEERS[peer] for peer in present}
        self._directories = {side: scratch / side for side in self._starts}
        # The first import of a process comes before those of the work, which load SQLite.
        first = {"doltlite": "benchmarks.engine", "prollytree": "prollytree"}
        self._processes = {
            peer: ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), initializer=import_module, initargs=(first[peer],)
            )
            for peer in present
        }

    def on(self, side: Side, work: Callable[[Start, Path], T]) -> T:
        """The result of the work. It gets the function that opens the side's store, and its directory."""
        start, directory = self._starts[side], self._directories[side]
        if side in self._processes:
            return self._processes[side].submit(work, start, directory).result()
        return work(start, directory)

    def each(self, work: Callable[[Start, Path], T]) -> dict[Side, T]:
        """Do the work once on each store."""
        return {side: self.on(side, work) for side in self._starts}

    def rounds(self, work: Work) -> Rounds:
        """A round of the work for each side."""
        return {side: partial(self.on, side, work) for side in self._starts}

    def on_peers(self, work: Callable[[Start, Path], object]) -> None:
        """Do the work once on the store of each peer."""
        for side in self._processes:
            self.on(side, work)

    def rounds_of_peers(self, work: Work) -> Rounds:
        """A round of the work for each peer alone."""
        return {side: partial(self.on, side, work) for side in self._processes}

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.shutdown()
