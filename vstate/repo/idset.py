"""IdSet: a set of object ids that takes little memory."""

from __future__ import annotations

from collections.abc import Iterator

from vstate.objects.ids import ID_BYTES, ObjectId

_REST = 14  # bytes kept of an id, besides the two that are the number of its bucket


class IdSet:
    """A set of ids in some 15 bytes each: 10 million take 140 MB, where a Python set takes 1.3 GB.

    The set keeps the first 8 bytes of an id and Python's hash of the whole id. Two of n ids agree in both
    with a probability of n**2 / 2**129. The hash is keyed with a secret of this process, so nobody can make
    up an id that passes for another one.
    """

    def __init__(self) -> None:
        # Bytes, one id behind the other, and not bytearrays, whose slack costs more than copying them.
        self._buckets: dict[int, bytes] = {}
        self._count = 0

    def add(self, oid: bytes) -> bool:
        """Add the id; False if the set has it already."""
        number = oid[0] << 8 | oid[1]
        bucket, rest = self._buckets.get(number, b""), oid[2:8] + hash(oid).to_bytes(8, "big", signed=True)
        if bucket and _holds(bucket, rest):
            return False
        self._buckets[number] = bucket + rest
        self._count += 1
        return True

    def __contains__(self, oid: bytes) -> bool:
        bucket = self._buckets.get(oid[0] << 8 | oid[1])
        return bucket is not None and _holds(bucket, oid[2:8] + hash(oid).to_bytes(8, "big", signed=True))

    def __len__(self) -> int:
        return self._count


class IdList(IdSet):
    """A set of ids that can be iterated, in the order in which they were added; some 47 bytes each."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = bytearray()

    def add(self, oid: bytes) -> bool:
        added = super().add(oid)
        if added:
            self._ids += oid
        return added

    def __iter__(self) -> Iterator[ObjectId]:
        for start in range(0, len(self._ids), ID_BYTES):
            yield ObjectId(self._ids[start : start + ID_BYTES])


def _holds(bucket: bytes, rest: bytes) -> bool:
    at = bucket.find(rest)
    while at % _REST:  # across two ids, or -1: nowhere
        if at < 0:
            return False
        at = bucket.find(rest, at + 1)
    return True
