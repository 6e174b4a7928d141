"""Link: sends commands to the server of a store, and repeats them when a connection breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from vstate.backoff import Backoff, Timeout
from vstate.errors import InvalidInput
from vstate.kv.redis.address import Address
from vstate.kv.redis.connections import Connections
from vstate.kv.redis.failures import TROUBLES, code_of, is_out_of_reach, is_unsure, may_pass, meaning
from vstate.kv.redis.scripts import ALL, MEMORY, Command, Keys

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 1.0


class Doubt:
    """Whether the server may have carried out, or may yet carry out, an earlier try of a call."""

    unsure = False


class Link:
    """Talks with the server that holds `keys`: that of `url`, or of a `client` that somebody else made.

    The driver's own retries are not used: they cannot tell whether a write was sent. Commands that may be
    sent twice are sent again, until `timeout` seconds are over. If the store `expires`, the server must not
    evict its keys.
    """

    def __init__(self, url: str | None, client: Any, *, timeout: Timeout, keys: Keys, expires: bool) -> None:
        self.address = Address.of_client(client) if url is None else Address.of_url(url, timeout)
        self.connections = Connections(self.address, client, keys.values, timeout=timeout.seconds)
        self._timeout = timeout
        self._keys = keys
        self._expires = expires
        self._reached = False
        self._checked = False

    def exchange(
        self,
        commands: Sequence[Command],
        *,
        again: Callable[[], Sequence[Command]] | None = None,
        doubt: Doubt | None = None,
        patient: bool = True,
    ) -> list[Any]:
        """Send the commands, all at once, and return the replies. If a connection breaks, or the server is
        not ready, all of them are sent again: each may be carried out twice.

        For commands that write, `again` gives the commands to repeat, and `doubt` goes from one call to the
        next. If not `patient`, it tries once. A refusal of the server is raised as an error of vstate.
        """
        if not self._checked:
            # Commands that only read go with the check: opening a store far away is a matter of round trips.
            look = MEMORY.call([self._keys.values])
            memory, *replies = self._send([look] if again else [look, *commands], None, doubt, patient)
            self._check_memory(*memory)
            self._checked = True
            if not again:
                return replies
        return self._send(commands, again, doubt, patient)

    def connect(self) -> Any:
        """A connection of the driver, for the caller to discard."""
        try:
            return self.connections.connect()
        except TROUBLES as error:
            raise self.meaning(error) from None

    def meaning(self, error: Exception, *, unsure: bool = False) -> Exception:
        """The error of vstate for an error of the driver."""
        return meaning(error, self.address, timeout=self._timeout.seconds, unsure=unsure)

    # Sending

    def _send(
        self,
        commands: Sequence[Command],
        again: Callable[[], Sequence[Command]] | None,
        doubt: Doubt | None,
        patient: bool,
    ) -> list[Any]:
        seconds, to_reach = self._timeout
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, seconds=seconds if patient else 0, to_reach=to_reach)
        doubt = doubt or Doubt()
        clustered = self.address.clustered
        while True:
            lost_at: float | None = time.monotonic()
            sending = False

            def once(connection: Any, commands: Sequence[Command] = commands) -> list[Any]:
                nonlocal sending
                sending = True
                return self._replies(connection, commands)

            try:
                return self.connections.use(once)
            except TROUBLES as error:
                trouble, repeat = (
                    error,
                    may_pass(error, clustered=clustered, reached=sending or self._reached),
                )
                if not is_out_of_reach(error):
                    lost_at = None
                elif sending:
                    is_silent = isinstance(error, redis.TimeoutError | TimeoutError)
                    lost_at = None if is_silent else time.monotonic()
                if sending and again is not None and is_unsure(error):
                    doubt.unsure = True
                if code_of(error) in ("READONLY", "MASTERDOWN", "MOVED", "ASK"):
                    # Behind a name, a sentinel or in a cluster there may be another primary by now.
                    self.connections.clear()
            if clustered and repeat and self.connections.found_primary():
                lost_at = None  # another node answers, and knows where the primary is or will be
            if not repeat or not backoff.pause(lost_at=lost_at):
                raise self.meaning(trouble, unsure=doubt.unsure) from None
            if again is not None:
                commands = again()

    def _replies(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        replies = _send(connection, commands)
        unknown = [
            at for at, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)
        ]
        if unknown:
            load = [("SCRIPT", "LOAD", script.text) for script in ALL]
            again = _send(connection, [*load, *(commands[at] for at in unknown)])
            for at, reply in zip(unknown, again[len(load) :], strict=True):
                replies[at] = reply
        self._reached = True
        for reply in replies:
            if isinstance(reply, redis.exceptions.ResponseError):
                raise reply
        return replies

    def _check_memory(self, limit: bytes, policy: bytes) -> None:
        """Refuse a server that evicts keys of the store when its memory is full."""
        evicts = policy.startswith(b"allkeys-") or (policy.startswith(b"volatile-") and self._expires)
        if limit not in (b"", b"0") and evicts:
            raise InvalidInput(
                f"{self.address.place} ({self._keys.prefix}) throws values away when its memory is full "
                f"(maxmemory-policy {policy.decode()}): set noeviction, by CONFIG SET maxmemory-policy "
                "noeviction"
            )


def _send(connection: Any, commands: Sequence[Command]) -> list[Any]:
    """The replies to the commands; an exception for a command that was refused."""
    connection.send_packed_command(connection.pack_commands(commands))
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except redis.exceptions.ResponseError as error:
            replies.append(error)
    return replies
