"""Link: sends commands to the server of a store, and repeats them when a connection breaks."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import redis

from vstate.backoff import Backoff, Timeout
from vstate.errors import InvalidInput
from vstate.forks import ForkLocked
from vstate.kv.redis.address import Address
from vstate.kv.redis.failures import TROUBLES, code_of, is_out_of_reach, is_unsure, may_pass, meaning
from vstate.kv.redis.scripts import ALL, MEMORY, Command, Keys

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 1.0


class Doubt:
    """Whether the server may have carried out, or may yet carry out, an earlier try of a call."""

    unsure = False


class Link(ForkLocked):
    """Connections to the server that holds `keys`: those of `url`, or of a `client` that somebody else made.

    The driver's own retries are not used: they cannot tell whether a write was sent. Commands that may be
    sent twice are sent again, until `timeout` seconds are over. If the store `expires`, the server must not
    evict its keys.
    """

    def __init__(self, url: str | None, client: Any, *, timeout: Timeout, keys: Keys, expires: bool) -> None:
        self.address = Address.of_client(client) if url is None else Address.of_url(url, timeout)
        self._timeout = timeout
        self._keys = keys
        self._expires = expires
        self._own = client is None
        self._client = client
        self._closed = False
        self._reached = False
        self._checked = False
        self._command_name: tuple[str, ...] | None = None
        super().__init__()

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

    def take(self) -> tuple[Any, Any]:
        """A connection of the driver, and the pool that it goes back to."""
        try:
            return self._take()
        except TROUBLES as error:
            raise self.meaning(error) from None

    def meaning(self, error: Exception, *, unsure: bool = False) -> Exception:
        """The error of vstate for an error of the driver."""
        return meaning(error, self.address, timeout=self._timeout.seconds, unsure=unsure)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if self._own and client is not None:
            with suppress(Exception):  # a client that cannot be closed is of no more use
                client.close()

    def after_fork(self, *, child: bool) -> None:
        super().after_fork(child=child)
        if child and self._own:
            # The driver notices a fork, but not in all its versions without one of its locks.
            self._client = None

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
            try:
                pool, connection = self._take()
            except TROUBLES as error:
                trouble, repeat = error, may_pass(error, clustered=clustered, reached=self._reached)
                lost_at = lost_at if is_out_of_reach(error) else None
            else:
                try:
                    return self._replies(pool, connection, commands)
                except TROUBLES as error:
                    trouble, repeat = error, may_pass(error, clustered=clustered, reached=True)
                    doubt.unsure = doubt.unsure or (again is not None and is_unsure(error))
                    is_silent = isinstance(error, redis.TimeoutError | TimeoutError)
                    lost_at = None if is_silent or not is_out_of_reach(error) else time.monotonic()
            if clustered and repeat and self._found_primary():
                lost_at = None  # another node answers, and knows where the primary is or will be
            if not repeat or not backoff.pause(lost_at=lost_at):
                raise self.meaning(trouble, unsure=doubt.unsure) from None
            if again is not None:
                commands = again()

    def _replies(self, pool: Any, connection: Any, commands: Sequence[Command]) -> list[Any]:
        whole = False
        try:
            replies = _send(connection, commands)
            unknown = [
                at for at, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)
            ]
            if unknown:
                load = [("SCRIPT", "LOAD", script.text) for script in ALL]
                again = _send(connection, [*load, *(commands[at] for at in unknown)])
                for at, reply in zip(unknown, again[len(load) :], strict=True):
                    replies[at] = reply
            whole = True
        finally:
            if not whole:
                # The next command would take a late reply for its own.
                connection.disconnect()
            pool.release(connection)
        self._reached = True
        for reply in replies:
            if isinstance(reply, redis.exceptions.ResponseError):
                if code_of(reply) == "READONLY":
                    # Behind a name or a sentinel there may be another primary by now.
                    pool.disconnect(inuse_connections=False)
                raise reply
        return replies

    def _take(self) -> tuple[Any, Any]:
        with self._lock:
            if self._closed:
                raise InvalidInput("the Redis store is closed; open it again")
            if self._client is None:
                self._client = self.address.connect()
            client = self._client
        if self.address.clustered:
            client = client.get_redis_connection(client.get_node_from_key(self._keys.values))
        pool = client.connection_pool
        if self._command_name is None:
            # Before 5.3 the driver requires the name of a command, and later it warns of one.
            name = inspect.signature(pool.get_connection).parameters["command_name"]
            self._command_name = ("EVALSHA",) if name.default is inspect.Parameter.empty else ()
        return pool, pool.get_connection(*self._command_name)

    def _found_primary(self) -> bool:
        """Ask the nodes of the cluster for the primary; whether one of them answered."""
        client = self._client
        if client is None:
            return False
        try:
            client.nodes_manager.initialize()
        except TROUBLES:
            return False
        return True

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
