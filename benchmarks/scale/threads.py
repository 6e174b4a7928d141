"""The threads of a store of any size: some that are measured, each once, and others between them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from langgraph.checkpoint.base import empty_checkpoint

from benchmarks.scale.copies import Copy, Original, original_of, write
from benchmarks.values import messages
from vstate.integrations.langgraph import VstateSaver
from vstate.kv import KVStore, Memory
from vstate.repo.repository import Repository

CHECKPOINTS = 5
THREADS_OF_A_USER = 10
FILLERS = 48
"""Threads of different lengths, of which all threads are copies that are not measured."""
DAYS = 20
"""The age of the first thread: the reflog still keeps all moves."""

_DAY = 86_400_000_000


def config_of(name: str, checkpoint: int | None = None) -> Any:
    """The config of a thread, whose id is that of a real one: random digits."""
    named = {"thread_id": str(uuid5(NAMESPACE_OID, name)), "checkpoint_ns": ""}
    return {"configurable": named if checkpoint is None else named | {"checkpoint_id": f"{checkpoint:036}"}}


def put(saver: VstateSaver, name: str, number: int, chat: list[Any], user: str) -> None:
    """Save a checkpoint of a thread, as a graph does after each step."""
    checkpoint = empty_checkpoint()
    checkpoint["id"] = f"{number:036}"
    checkpoint["channel_values"] = {"messages": chat}
    checkpoint["channel_versions"] = {"messages": number + 1}
    metadata: Any = {"source": "loop", "step": number, "parents": {}, "user": user}
    saver.put(config_of(name, number - 1 if number else None), checkpoint, metadata, {"messages": number + 1})


def talk(saver: VstateSaver, name: str, user: str, seed: int) -> None:
    """Save the checkpoints of a thread. Each seed has texts and lengths of its own."""
    chat: list[Any] = []
    for number, message in enumerate(islice(messages(seed, length=100 + seed * 37 % 400), CHECKPOINTS)):
        chat = [*chat, message]
        put(saver, name, number, chat, user)


class Threads:
    """The threads of a store: by name those that are measured, and others between them."""

    def __init__(self, kinds: Sequence[str], samples: int) -> None:
        """So many threads of each of these kinds, and so many users, each with some threads."""
        self.of = {kind: [f"{kind} {number}" for number in range(samples)] for kind in kinds}
        self.users = [f"user {number}" for number in range(samples)]
        self._user_of = {
            f"thread {number} of {user}": user for user in self.users for number in range(THREADS_OF_A_USER)
        }
        self.measured = [*chain.from_iterable(self.of.values()), *self._user_of]

    def some(self, turn: slice) -> Threads:
        """Some of the threads of each kind, and some of the users."""
        made = Threads((), 0)
        made.of = {kind: names[turn] for kind, names in self.of.items()}
        made.users = self.users[turn]
        return made

    def copies(self, size: int, now: int) -> Iterator[Copy]:
        """So many threads, begun one after the other in the days before `now`, in microseconds."""
        measured, fillers = self._originals()
        generator = random.Random(size)
        places = dict(zip(generator.sample(range(size), len(measured)), measured.items(), strict=True))
        first = now - DAYS * _DAY
        for number in range(size):
            name, original = places.get(number) or (f"other {number}", fillers[number % FILLERS])
            begun = first + number * (DAYS - 1) * _DAY // size
            room = begun // 1000 << 20 | generator.getrandbits(20)
            yield Copy(original, branch_of(name), room, begun - original.commits[0].order)

    def _originals(self) -> tuple[Mapping[str, Original], list[Original]]:
        """The threads that are measured, by name, and those that the others are copies of."""
        with VstateSaver(Memory()) as saver:
            others = [f"other {number}" for number in range(FILLERS)]
            names = [*self.measured, *others]
            for seed, name in enumerate(names):
                talk(saver, name, self._user_of.get(name, f"the user of {name}"), seed)
            found = {name: original_of(saver.repo, branch_of(name)) for name in names}
            return {name: found[name] for name in self.measured}, [found[name] for name in others]


def branch_of(name: str) -> str:
    """The branch of a thread."""
    return f"threads/{config_of(name)['configurable']['thread_id']}"


def fill(store: KVStore, threads: Threads, size: int) -> Iterator[int]:
    """Write so many threads into a new store, and give the number of those that are there so far."""
    Repository(store).stamp()
    yield from write(store, threads.copies(size, time.time_ns() // 1000))
