"""Budget: the cost of reading one untrusted pickle, and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from time import thread_time
from typing import Final

from vstate.errors import VStateError
from vstate.plural import counted

# Hashing and comparing tuples recurses in C, where no recursion limit protects the stack.
_DEEPEST_KEY: Final = 100
_SHORT: Final = 64  # characters; shorter texts cost nothing extra, and nobody can choose their hashes
_BATCH: Final = 64  # keys between two looks at the clock
_ENTRY_BYTES: Final = 100  # of a dict, with the slack for growth
_MEMBER_BYTES: Final = 64  # of a set, with its slack
_UNHASHABLE: Final = (list, dict, set, bytearray, memoryview)


class InertError(VStateError):
    """A pickle is malformed, or costs more to read than allowed, for this `reason`; `offset` is in bytes."""

    def __init__(self, reason: str, *, offset: int | None = None) -> None:
        where = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"cannot read this pickle: {reason}{where}")
        self.reason = reason
        self.offset = offset


@dataclass(frozen=True)
class Limits:
    """The most that reading one pickle may cost.

    With the defaults, any input takes less than 4 s, and less than 128 MB besides the pickle and its buffers.
    So two values can be compared, or one written as JSON, in 256 MB.
    """

    depth: int = 10_000
    """Containers inside each other."""
    nodes: int = 2_000_000
    """Opcodes, and with them the time. One opcode makes at most one object."""
    bytes: int = 80 * 2**20
    """Estimated bytes of memory, for the value and for reading it."""
    members: int = 100_000
    """Members of one set, if they are no texts.

    Hashes of numbers and tuples are no secret, and a forger can choose n of them that all look for one place:
    n**2 steps in all. A set that grows adds its members again in another order, and nothing can interrupt
    that. For so many it takes 3 s. A dict keeps the order, so its growth takes no longer than `seconds`.
    """
    seconds: float = 1.0
    """Of the processor, to add keys and members that are no short texts. Honest ones take a microsecond."""


class Budget:
    """The rest of some `Limits`. Every method raises InertError when it does not suffice."""

    __slots__ = ("bytes", "members", "names", "nodes", "seconds")

    def __init__(self, limits: Limits) -> None:
        self.nodes = limits.nodes
        self.bytes = limits.bytes
        self.members = limits.members
        self.seconds = limits.seconds
        self.names: dict[str, bytes] = {}
        """The names in the pickle; for a class stored by value, with the magic number of its Python."""

    def take_bytes(self, count: int) -> None:
        """Pay for `count` bytes of memory before they are used."""
        self.bytes -= count
        if self.bytes < 0:
            raise InertError("it needs more memory than allowed")

    def put(self, target: dict[object, object], pairs: Iterable[tuple[object, object]]) -> None:
        """Put the entries into a dict, and pay for them. InertError also for a key that has no hash."""
        pairs = iter(pairs)
        for key, value in pairs:
            if type(key) is not str or len(key) > _SHORT:
                pairs = chain([(key, value)], pairs)
                break
            self.take_bytes(_ENTRY_BYTES)
            target[key] = value
        for key, value in self._paid(pairs, _ENTRY_BYTES):
            target[key] = value

    def add(self, target: set[object], members: Iterable[object]) -> None:
        """Put the members into a set, and pay for them. InertError also for a member that has no hash."""
        for member, _ in self._paid(((member, None) for member in members), _MEMBER_BYTES):
            if len(target) >= self.members and not isinstance(member, str | bytes):
                raise InertError(
                    f"a set has more than {counted(self.members, 'member')}, not all of them texts: "
                    "only a program that loads it can show it"
                )
            target.add(member)

    def _paid(self, pairs: Iterable[tuple[object, object]], size: int) -> Iterator[tuple[object, object]]:
        """The pairs, with their keys checked. Measures the time until the next one is asked for."""
        odd = 0
        began = 0.0
        for key, value in pairs:
            self.take_bytes(size)
            if type(key) is not str or len(key) > _SHORT:
                if odd % _BATCH == 0:
                    self._take_time(began if odd else thread_time())
                    began = thread_time()
                odd += 1
                if not isinstance(key, str | bytes):
                    for _ in self.parts_of_key(key):
                        pass
            yield key, value
        if odd:
            self._take_time(began)

    def _take_time(self, began: float) -> None:
        self.seconds -= thread_time() - began
        if self.seconds < 0:
            raise InertError("its keys take more time than allowed: they have the same hashes, or are long")

    def parts_of_key(self, key: object) -> Iterator[object]:
        """The key and its parts, a shared part each time. Pays for them: nothing can interrupt a hash."""
        waiting = [(key, 0)]
        while waiting:
            part, depth = waiting.pop()
            yield part
            if isinstance(part, tuple | frozenset):
                if depth >= _DEEPEST_KEY:
                    raise InertError(f"a key is nested more than {_DEEPEST_KEY} deep")
                self._take_nodes(len(part))
                waiting.extend([(inner, depth + 1) for inner in part])
            elif isinstance(part, int):
                self._take_nodes(part.bit_length() >> 9)
            elif isinstance(part, str | bytes):
                self._take_nodes(len(part) >> 6)
            elif isinstance(part, _UNHASHABLE):
                raise InertError(f"a {type(part).__name__} cannot be a key or a member of a set")

    def _take_nodes(self, count: int) -> None:
        self.nodes -= count
        if self.nodes < 0:
            raise InertError("it has more parts than allowed")
