"""Budget: the cost of reading one untrusted pickle, and its limits."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final

from vstate.errors import VStateError

__all__ = ["Budget", "InertError", "Limits"]

# Hashes of numbers and tuples are no secret. A forger can give n keys one hash, and a dict of them takes n**2
# steps. Honest data has a handful of such keys: -1 and -2 share a hash.
_MOST_KEYS_OF_ONE_HASH: Final = 256
# Hashing and comparing tuples recurses in C, where no recursion limit protects the stack.
_DEEPEST_KEY: Final = 100
_UNHASHABLE: Final = (list, dict, set, bytearray, memoryview)
_PLAIN: Final = (
    int,
    float,
    complex,
    tuple,
    frozenset,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
)


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

    With the defaults, any input takes less than 2 s, and less than 128 MB besides the pickle and its buffers.
    So two values can be compared, or one written as JSON, in 256 MB.
    """

    depth: int = 10_000
    """Containers inside each other."""
    nodes: int = 2_000_000
    """Opcodes, and with them the time. One opcode makes at most one object."""
    bytes: int = 80 * 2**20
    """Estimated bytes of memory, for the value and for reading it."""


class Budget:
    """The rest of some `Limits`. Every method raises InertError when it does not suffice."""

    __slots__ = ("bytes", "names", "nodes")

    def __init__(self, limits: Limits) -> None:
        self.nodes = limits.nodes
        self.bytes = limits.bytes
        self.names: dict[str, bytes] = {}
        """The names in the pickle; for a class stored by value, with the magic number of its Python."""

    def take_bytes(self, count: int) -> None:
        """Pay for `count` bytes of memory before they are used."""
        self.bytes -= count
        if self.bytes < 0:
            raise InertError("it needs more memory than allowed")

    def take_nodes(self, count: int) -> None:
        """Pay for `count` steps of work besides the opcodes."""
        self.nodes -= count
        if self.nodes < 0:
            raise InertError("it has more parts than allowed")

    def take_key(self, key: object, hashes: dict[str, int]) -> None:
        """Pay for hashing `key` and comparing it in a container; `hashes` counts that container's hashes.

        Raises InertError also when `key` cannot be hashed.
        """
        if isinstance(key, str | bytes):
            self.take_nodes(len(key) >> 6)
        elif isinstance(key, int) and key.bit_length() < 61:
            return
        elif isinstance(key, _PLAIN):
            weight = self._weigh(key)
            value = str(hash(key))  # a text, since a forger cannot choose the hash of a text
            hashes[value] = count = hashes.get(value, 0) + 1
            self.take_bytes(160)
            self.take_nodes(1 + weight * (count >> 3))
            if count > _MOST_KEYS_OF_ONE_HASH:
                raise InertError("it has too many keys of the same hash")
        elif isinstance(key, _UNHASHABLE):
            raise InertError(f"a {type(key).__name__} cannot be a key or a member of a set")

    def _weigh(self, key: object) -> int:
        """Pay for every part of `key`, a shared part each time; the number of parts."""
        weight = 0
        waiting = [(key, 0)]
        while waiting:
            part, depth = waiting.pop()
            weight += 1
            self.take_nodes(1)
            if isinstance(part, tuple | frozenset):
                if depth >= _DEEPEST_KEY:
                    raise InertError(f"a key is nested more than {_DEEPEST_KEY} deep")
                if len(part) > self.nodes:
                    raise InertError("it has more parts than allowed")
                waiting.extend([(inner, depth + 1) for inner in part])
            elif isinstance(part, int):
                self.take_nodes(part.bit_length() >> 9)
            elif isinstance(part, str | bytes):
                self.take_nodes(len(part) >> 6)
            elif isinstance(part, _UNHASHABLE):
                raise InertError(f"a {type(part).__name__} cannot be part of a key")
        return weight
