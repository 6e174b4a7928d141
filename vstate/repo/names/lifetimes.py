"""Lifetimes: when branches expire.

The row of a branch is changed only in a transaction that moves the branch, or by `gc` once nothing depends on it. So
whoever knows where a branch is, and has read its row after that, knows the row: no move has to read it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from blake3 import blake3

from vstate.kv.base import KVStore
from vstate.objects import expiry
from vstate.objects.canonical import decode, encode
from vstate.objects.expiry import Expiry

PREFIX = "expiry/"
_CHECK_BYTES = 4
_KNOWN = 10_000  # branches


class Lifetime(NamedTuple):
    """When a branch expires, None for never. Lines of its reflog from before `since`, in microseconds since
    1970-01-01 UTC, are of a branch of that name that expired: they keep nothing alive.
    """

    expiry: Expiry | None
    since: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the branch counts as absent by now."""
        return self.expiry is not None and self.expiry.is_over

    def encode(self) -> bytes | None:
        """The row; None where none is needed."""
        if self.expiry is None and not self.since:
            return None
        at, ttl = (None, 0) if self.expiry is None else self.expiry
        encoded = encode([at, ttl, self.since])
        return encoded + blake3(encoded).digest(length=_CHECK_BYTES)


FOREVER = Lifetime(None)


def parse_lifetime(row: bytes) -> Lifetime:
    """What a row says; ValueError if it is damaged."""
    encoded, check = row[:-_CHECK_BYTES], row[-_CHECK_BYTES:]
    if blake3(encoded).digest(length=_CHECK_BYTES) != check:
        raise ValueError("it is not what was written")
    fields = decode(encoded)
    if not isinstance(fields, list) or [type(field) for field in fields[1:]] != [int, int]:
        raise ValueError("it is no lifetime")
    at, ttl, since = fields
    if at is not None and type(at) is not int:
        raise ValueError("it is no lifetime")
    return Lifetime(None if at is None else Expiry(at, ttl), since)


def lifetime_key(ref: str) -> str:
    """The key of the row of a branch, which is given as `heads/<branch>`."""
    return PREFIX + ref


def read_lifetime(row: bytes | None) -> Lifetime:
    """What a row says. A branch whose row is damaged does not expire: `fsck` says so, and nothing is lost."""
    try:
        return FOREVER if row is None else parse_lifetime(row)
    except ValueError:
        return FOREVER


class Lifetimes:
    """The lifetimes of the branches of one store, all by their full names, `heads/<branch>`."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._known: dict[str, tuple[bytes | None, bytes | None]] = {}
        self._wanted: dict[str, tuple[int, bool]] = {}

    def want(self, ref: str, ttl: int, *, sliding: bool) -> None:
        """Let the branch, from its next move on, live so many microseconds; with `sliding` from each move on, else
        from the first one, if it does not have an end already.
        """
        self._wanted[ref] = ttl, sliding

    def is_wanted(self, ref: str) -> bool:
        """Whether this program wants the branch to expire."""
        return ref in self._wanted

    def note(self, ref: str, value: bytes | None, row: bytes | None) -> None:
        """Take note of the row that there is while the ref has this value."""
        if len(self._known) > _KNOWN:
            self._known.clear()
        self._known[ref] = value, row

    def row(self, ref: str, value: bytes | None) -> bytes | None:
        """The row of a branch that has this value; what it is if the branch has another does not matter."""
        known = self._known.get(ref)
        if known is None or known[0] != value:
            known = value, self._store.get(lifetime_key(ref))
            self._known[ref] = known
        return known[1]

    def moved(self, ref: str, before: Lifetime) -> Lifetime:
        """The lifetime of a branch that is moved now."""
        ttl, sliding = self._wanted.get(ref, (0, False))
        at = expiry.now()
        if ttl and (sliding or before.expiry is None):
            return before._replace(expiry=Expiry(at + ttl, ttl if sliding else 0))
        return before if before.expiry is None else before._replace(expiry=before.expiry.begun_anew(at))

    def rows_for(self, new: str, like: str) -> dict[str, bytes | None]:
        """What to write to give a new branch the lifetime of another, which moves; nothing if that never expires."""
        life = self.moved(like, read_lifetime(self._store.get(lifetime_key(like))))
        return {} if life.expiry is None else {lifetime_key(new): life.encode()}

    def all(self) -> Mapping[str, bytes]:
        """The rows of all branches that have one."""
        return {key.removeprefix(PREFIX): row for key, row in self._store.items(PREFIX)}

    def over(self) -> Iterator[str]:
        """The branches that have expired by now, though their rows are still there."""
        for ref, row in self.all().items():
            if read_lifetime(row).is_over:
                yield ref
