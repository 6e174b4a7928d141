"""Listener: hears of changes of one key."""

from __future__ import annotations

import time
from typing import Any

from vstate.kv import servers
from vstate.kv.redis.link import TROUBLES, Link, is_refusal


class Listener(servers.Listener[Any]):
    """Hears of changes of `key`, which the scripts that write publish on `channel`. It is deaf where the user
    may not subscribe, or a proxy knows no channels.
    """

    troubles = TROUBLES

    def __init__(self, link: Link, channel: str, key: bytes) -> None:
        self._channel = channel
        self._key = key
        super().__init__(link.connections)

    def begin(self, connection: Any) -> None:
        connection.send_command("SUBSCRIBE", self._channel)
        try:
            connection.read_response(push_request=True)
        except TROUBLES as error:
            self.deaf = is_refusal(error)
            raise

    def listen(self, connection: Any, end: float) -> None:
        while (left := end - time.monotonic()) > 0 and connection.can_read(timeout=left):
            if self._concerns(connection.read_response(push_request=True)):
                return

    def _concerns(self, message: Any) -> bool:
        """Whether the message is about the key. The caller looks after any message that is not a change."""
        if not isinstance(message, list) or len(message) != 3 or message[0] != b"message":
            return True
        names = message[2]
        # An empty text stands for too many names for one message.
        return not names or self._key in names.split(b"\0")
