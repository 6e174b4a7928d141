"""Listener: hears of changes of one key, on a connection of its own."""

from __future__ import annotations

import time
from typing import Any

from vstate.errors import StoreUnavailable
from vstate.forks import renew_in_child
from vstate.kv.base import POLL_SECONDS
from vstate.kv.redis.link import TROUBLES, Link, is_refusal


class Listener:
    """Waits for changes of `key`, which the scripts that write publish on `channel`.

    While it is cut off it hears nothing, so a wait that loses the connection, or gets a new one, returns at
    once. If the user may not subscribe, or a proxy knows no channels, it looks from time to time.
    """

    def __init__(self, link: Link, channel: str, key: bytes) -> None:
        self._link = link
        self._channel = channel
        self._key = key
        self._connection: Any = None
        self._deaf = False
        self._open()
        renew_in_child(self, Listener._forget)

    def wait(self, timeout: float) -> None:
        """Return after a change, or after so many seconds."""
        end = time.monotonic() + timeout
        if self._deaf:
            time.sleep(min(timeout, POLL_SECONDS))
            return
        try:
            if self._connection is None:
                self._open()
                return
            left = timeout
            while self._connection.can_read(timeout=max(left, 0)):
                if self._concerns(self._connection.read_response(push_request=True)):
                    return
                left = end - time.monotonic()
                if left <= 0:
                    return
        except TROUBLES:
            self.close()
        except StoreUnavailable:
            # The caller looks at the key next, and gets the error from the store.
            time.sleep(max(0, min(end - time.monotonic(), POLL_SECONDS)))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._link.connections.discard(connection)

    def _forget(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._connection = None

    def _open(self) -> None:
        self._connection = self._link.connect()
        try:
            self._connection.send_command("SUBSCRIBE", self._channel)
            self._connection.read_response(push_request=True)
        except TROUBLES as error:
            self.close()
            if not is_refusal(error):
                raise self._link.meaning(error) from None
            self._deaf = True

    def _concerns(self, message: Any) -> bool:
        """Whether the message is about the key. The caller looks after any message that is not a change."""
        if not isinstance(message, list) or len(message) != 3 or message[0] != b"message":
            return True
        names = message[2]
        # An empty text stands for too many names for one message.
        return not names or self._key in names.split(b"\0")
