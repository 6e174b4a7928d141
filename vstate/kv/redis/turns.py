"""Whose turn it is among the processes that use a Redis store: a token, passed on in the order in which they asked."""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Final

from vstate.errors import VStateError
from vstate.kv.redis.link import Link
from vstate.kv.redis.scripts import BOUND, GIVE, OPEN
from vstate.kv.turns import PATIENCE, Turns

HELD_SECONDS: Final = 2.0
"""After so long the turn of one who does not give it back is over: another token is made for the next who asks."""


class RedisTurns(Turns):
    """Two lists for each name: in the first there is a token if nobody's turn it is, in the second while it is.

    The server wakes those who wait for the first in the order in which they came, so nobody asks again and again. Each
    token is another one: who took longer than a turn lasts gives back none, for there is a new one by then.
    """

    def __init__(self, link: Link, base: str, timeout: float) -> None:
        super().__init__()
        self._link = link
        self._base = base
        # Shorter than the connection waits for any answer.
        self._seconds = min(PATIENCE, timeout / 2)

    def take(self, name: str) -> tuple[bytes | None, bool]:
        free, held = lists = self._lists(name)
        milliseconds = int(HELD_SECONDS * 1000)
        commands = [
            OPEN.spelt_out(lists, secrets.token_hex(8), milliseconds),
            ("BLMOVE", free, held, "LEFT", "RIGHT", f"{self._seconds:.3f}"),
            BOUND.spelt_out([held], milliseconds),
        ]
        is_free, token, _ = self._link.exchange(commands, patient=False)
        return token, not is_free

    def give(self, name: str, taken: bytes) -> None:
        command = GIVE.call(self._lists(name), taken, secrets.token_hex(8), int(HELD_SECONDS * 1000))
        self._link.exchange([command], patient=False)

    def troubles(self) -> tuple[type[Exception], ...]:
        return (VStateError,)

    def held(self, name: str | None) -> str:
        """The list that is there while somebody has the turn of this name; of none, one that is never there."""
        return f"{self._base}:turn" if name is None else self._lists(name)[1]

    def _lists(self, name: str) -> list[str]:
        place = f"{self._base}:turn:{blake2b(name.encode(), digest_size=8).hexdigest()}"
        return [f"{place}:free", f"{place}:held"]
