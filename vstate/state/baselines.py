"""Baselines: the committed forms that values in hand are compared with."""

from __future__ import annotations

from typing import Any, NamedTuple

from vstate.errors import CorruptObject
from vstate.objects.expiry import Expiry, split_expiry
from vstate.objects.stream import BLOB_BYTES, Chunks
from vstate.repo.repository import Repository
from vstate.values.entry import ATOM, BYTES, TEXT, Encoded, Entry, encode_value, entry_chunks


class Baseline(NamedTuple):
    """The committed form of a value in hand: its entry and chunks, and other entries that mean the same.

    The entries are without `expiry`, which is when the key expires.
    `loaded` says that the value was unpickled from the entry and not compared with a second copy yet.
    Pickling it again may give other bytes (shared strings, the order of a set), so a difference is compared
    with what a second, untouched copy gives before it counts as a change; `alternates` remembers that.
    """

    entry: bytes
    chunks: tuple[Chunks | None, ...]
    size: int
    loaded: bool
    alternates: frozenset[bytes] = frozenset()
    expiry: Expiry | None = None


class Baselines:
    """The baselines of one state, by key, as far as they are `known`.

    `WorkingValues` changes `known` together with what it has itself: a call in between could be interrupted.
    """

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self.known: dict[str, Baseline] = {}

    def read(self, key: str, data: bytes, value: Any, *, keep: bool) -> Baseline:
        """The baseline of a key that was set without being read; known from now on with `keep`."""
        data, expiry = split_expiry(data)
        if not keep and not (type(value) in (bytes, str) and len(value) > BLOB_BYTES):
            # A short value gains nothing from the old chunks.
            return Baseline(data, (), 0, loaded=False, expiry=expiry)
        try:
            entry = self._repo.parse_entry(key, data)
            chunks = entry_chunks(entry, self._repo.objects)
            baseline = Baseline(data, chunks, entry.size, loaded=False, expiry=expiry)
        except CorruptObject:  # the old chunks only save time, and what is damaged may be replaced
            return Baseline(data, (), 0, loaded=False, expiry=expiry)
        if keep:
            self.known[key] = baseline
        return baseline

    def is_same(self, key: str, value: Any, baseline: Baseline, encoded: Encoded) -> bool:
        """Whether a value, encoded so, is what its baseline says."""
        if encoded.entry == baseline.entry or encoded.entry in baseline.alternates:
            return True
        if not baseline.loaded:
            return False
        if Entry.decode(encoded.entry).codec in (ATOM, BYTES, TEXT):
            return False
        try:
            again = encode_value(self._repo.load(key, baseline.entry).value, baseline.chunks)
        except Exception:  # the stored value loads no more: what is in hand is new then
            return False
        self.known[key] = baseline._replace(loaded=False, alternates=baseline.alternates | {again.entry})
        if again.entry == encoded.entry:
            return True
        # The first pickling of a class may leave something in it, which then is pickled with it.
        return encode_value(value, baseline.chunks).entry == again.entry
