"""Hearing of changes of a Redis store: the scripts that write publish the keys, and this listens."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from vstate.errors import StoreUnavailable
from vstate.kv.base import POLL_SECONDS
from vstate.kv.redis.link import Link


class Listener:
    """Waits for changes of `key`, which are published on `channel`, on a connection of its own.

    While it is cut off it hears nothing, and so a wait that loses the connection, or gets a new one, returns
    at once. A user who may not subscribe, or a proxy that knows no channels, leaves it to look from time to
    time.
    """

    def __init__(self, link: Link, channel: str, key: bytes) -> None:
        self._link = link
        self._channel = channel
        self._key = key
        self._pool: Any = None
        self._connection: Any = None
        self._process = 0
        self._deaf = False
        self._open()

    def wait(self, timeout: float) -> None:
        """Return after a change, or after so many seconds."""
        end = time.monotonic() + timeout
        if self._deaf:
            time.sleep(min(timeout, POLL_SECONDS))
            return
        try:
            if self._connection is None or self._process != os.getpid():
                # Half a connection is the other process's, and closing it here would close it there.
                self._connection = None
                self._open()
                return
            left = timeout
            while self._connection.can_read(timeout=max(left, 0)):
                if self._concerns(self._connection.read_response(push_request=True)):
                    return
                left = end - time.monotonic()
                if left <= 0:
                    return
        except self._link.troubles():
            self.close()
        except StoreUnavailable:
            # Whoever waits looks at the key next, and is told by that.
            time.sleep(max(0, min(end - time.monotonic(), POLL_SECONDS)))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            with suppress(*self._link.troubles()):
                connection.disconnect()
            self._pool.release(connection)

    def _open(self) -> None:
        self._pool, self._connection = self._link.take()
        self._process = os.getpid()
        try:
            self._connection.send_command("SUBSCRIBE", self._channel)
            self._connection.read_response(push_request=True)
        except self._link.troubles() as error:
            self.close()
            if not self._link.is_refusal(error):
                raise self._link.translated(error) from None
            self._deaf = True

    def _concerns(self, message: Any) -> bool:
        """Whether it is about our key. Anything else than a message is the server's, and best looked into."""
        if not isinstance(message, list) or len(message) != 3 or message[0] != b"message":
            return True
        names = message[2]
        # An empty text stands for more names than are worth telling.
        return not names or self._key in names.split(b"\0")
