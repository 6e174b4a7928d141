"""Link: sends commands to the server of a store, repeats them when a connection breaks, hears of changes, and
says what the driver's errors mean.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import redis

from vstate.backoff import Timeout
from vstate.errors import InvalidInput, StoreFull, StoreUnavailable, VStateError
from vstate.kv import servers
from vstate.kv.files import NO_ROOM
from vstate.kv.redis.address import Address
from vstate.kv.redis.scripts import ALL, MEMORY, Command, Keys
from vstate.kv.servers import Attempts, Failed, Failure, Pool

TROUBLES: Final[tuple[type[Exception], ...]] = (
    redis.RedisError,
    OSError,
    # These two come from the driver too, though they are no RedisErrors. UnicodeError: of the name of a host.
    redis.exceptions.RedisClusterException,
    UnicodeError,
)

# The server will soon answer otherwise: it loads its data, moves them, waits for its replicas, or another
# primary is chosen.
_PASSING = ("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK", "BUSY", "NOREPLICAS")
_ELSEWHERE = ("MOVED", "ASK", "READONLY", "MASTERDOWN")
"""Another server has the data, or takes the writes."""
_CODES = re.compile(
    r"(?:^|-|: )(OOM|READONLY|LOADING|TRYAGAIN|CLUSTERDOWN|MOVED|ASK|BUSY|MASTERDOWN|MISCONF|NOREPLICAS|"
    r"NOAUTH|WRONGPASS|NOPERM|WRONGTYPE)\b"
)
# The driver cuts the code off a message where it has a class for it.
_CODES_BY_TYPE: Final[dict[type[Exception], str]] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.AuthorizationError: "NOPERM",
    redis.exceptions.AuthenticationError: "WRONGPASS",
    redis.exceptions.BusyLoadingError: "LOADING",
}


_PASSWORD = "refused the user and password, or wants some and got none; correct the URL"
_REPLICA = "is a replica and takes no writes; connect to the primary, or retry after the failover"
_NO_WRITES = "does not take writes now ({text}); retry later, or look after the server"
_NODE = (
    "is one node of a Redis Cluster; write redis+cluster:// instead of redis://, or give a "
    "redis.RedisCluster as client="
)
_MEANINGS: Final[dict[str, tuple[type[VStateError], str]]] = {
    "OOM": (
        StoreFull,
        "has reached its maxmemory; nothing was written: delete what is not needed, or raise the limit",
    ),
    "WRONGTYPE": (
        InvalidInput,
        "holds data of another program under these keys; choose another prefix= for the store",
    ),
    "NOPERM": (
        StoreUnavailable,
        "does not permit this user a command that a store needs ({text}); change the user's ACL",
    ),
    "MOVED": (InvalidInput, _NODE),
    "ASK": (InvalidInput, _NODE),
    "NOAUTH": (StoreUnavailable, _PASSWORD),
    "WRONGPASS": (StoreUnavailable, _PASSWORD),
    "READONLY": (StoreUnavailable, _REPLICA),
    "MASTERDOWN": (StoreUnavailable, _REPLICA),
    "NOREPLICAS": (StoreUnavailable, _NO_WRITES),
    "MISCONF": (StoreUnavailable, _NO_WRITES),
}


class Connections(Pool[Any]):
    """Connections of the driver to the server at `address`; in a cluster, to the node that has `key`.

    They are made as those of `client` are, if one is given, and the client's own pool has no part in them.
    """

    def __init__(self, address: Address, client: Any, key: str, *, timeout: float) -> None:
        self._address = address
        self._key = key
        self._own = client is None
        self._client = client
        super().__init__(address.place, size=address.connections, timeout=timeout, option="max_connections")

    def make(self) -> Any:
        client = self._client
        if client is None:
            client = self._client = self._address.connect()
        if self._address.clustered:
            client = client.get_redis_connection(client.get_node_from_key(self._key))
        like = client.connection_pool
        connection = like.connection_class(**like.connection_kwargs)
        connection.connect()
        return connection

    def discard(self, connection: Any) -> None:
        with suppress(Exception):
            connection.disconnect()

    def descriptor(self, connection: Any) -> int:
        return int(connection._sock.fileno())

    def close(self) -> None:
        super().close()
        if self._own and self._client is not None:
            for each in (self._client, *self._sentinels(), *self._pools_of_nodes()):
                with suppress(Exception):  # one that cannot be closed is of no more use
                    each.close()

    def found_primary(self) -> bool:
        """Ask the nodes of the cluster, or the sentinels, for the primary; whether one of them knows it.

        A sentinel still knows a primary that is down, until another server takes its place.
        """
        if self._client is None:
            return False
        try:
            if self._address.clustered:
                self._client.nodes_manager.initialize()
                return True
        except TROUBLES:
            return False
        return any(map(self._is_known_to, self._sentinels()))

    def _sentinels(self) -> list[Any]:
        manager = self._client.connection_pool.sentinel_manager if self._address.service else None
        return list(manager.sentinels) if manager else []

    def _pools_of_nodes(self) -> list[Any]:
        """The pools of a client for a cluster, which its `close` leaves open."""
        nodes = self._client.get_nodes() if self._address.clustered else ()
        return [node.redis_connection.connection_pool for node in nodes if node.redis_connection]

    def _is_known_to(self, sentinel: Any) -> bool:
        try:
            return self._address.service in sentinel.sentinel_masters()
        except TROUBLES:
            return False

    def _begin(self) -> None:
        super()._begin()
        if self._own:
            self._client = None


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

    def attempts(self, *, patient: bool = True) -> Attempts:
        """The attempts of a call. If it is not patient, there is only one."""
        return Attempts(self._timeout if patient else Timeout(0, 0))

    def exchange(
        self,
        commands: Sequence[Command] | Callable[[], Sequence[Command]],
        attempts: Attempts | None = None,
    ) -> list[Any]:
        """Send the commands, all at once, and return the replies. If a connection breaks, or the server is
        not ready, all of them are sent again: each may be carried out twice.

        For a write, a function makes the commands of each attempt, and `attempts` goes from one call to the
        next. A refusal of the server is raised as an error of vstate.
        """
        attempts = attempts or self.attempts()
        if not self._checked:
            # Commands that only read go with the check: opening a store far away is a matter of round trips.
            look = MEMORY.call([self._keys.values])
            memory, *replies = self._send([look] if callable(commands) else [look, *commands], attempts)
            self._check_memory(*memory)
            self._checked = True
            if not callable(commands):
                return replies
        return self._send(commands, attempts)

    def _send(
        self, commands: Sequence[Command] | Callable[[], Sequence[Command]], attempts: Attempts
    ) -> list[Any]:
        def attempt() -> list[Any]:
            writing, began = callable(commands), time.monotonic()
            try:
                sent = commands() if callable(commands) else commands
                return self.connections.use(partial(self._replies, sent, attempts))
            except TROUBLES as error:
                raise Failed(self._failure(error, began, attempts.sending, writing=writing)) from None

        replies = attempts.repeat(attempt)
        attempts.got_on()
        return replies

    def _replies(self, commands: Sequence[Command], attempts: Attempts, connection: Any) -> list[Any]:
        attempts.sending = True
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

    # Failures

    def _failure(self, error: Exception, began: float, sending: bool, *, writing: bool) -> Failure:
        code = code_of(error)
        answered = bool(code) or isinstance(error, redis.exceptions.ResponseError)
        if code in _ELSEWHERE or (self.address.moves and not answered):
            # Behind a name, a sentinel or in a cluster there may be another primary by now.
            self.connections.clear()
        if code in _ELSEWHERE:
            passing = self.address.moves
        elif answered:
            passing = code in _PASSING
        else:
            # A server that was never reached has a wrong address.
            passing = sending or self._reached
        lost_at = None
        if not (answered or (sending and isinstance(error, redis.TimeoutError | TimeoutError))):
            lost_at = time.monotonic() if sending else began
        waits = passing or not answered
        if self.address.moves and waits and self.connections.found_primary():
            # Another server answers, and knows where the primary is or will be.
            passing, lost_at = True, None
        return Failure(self.meaning(error), passing, sending and writing and not answered, lost_at)

    def meaning(self, error: Exception) -> VStateError:
        """The error of vstate for an error of the driver."""
        place, code, text = self.address.place, code_of(error), str(error)
        for secret in self.address.secrets:
            text = text.replace(secret, "***")
        if code == "MISCONF" and any(os.strerror(number) in text for number in NO_ROOM):
            return StoreFull(f"the disk of {place} is full; nothing was written: make room and retry")
        if code in _MEANINGS and not (code in ("MOVED", "ASK") and self.address.clustered):
            kind, words = _MEANINGS[code]
            return kind(f"{place} {words.format(text=text)}")
        if isinstance(error, redis.TimeoutError | TimeoutError):
            reason = f"did not answer within {self._timeout.seconds:g} s; retry later"
        elif isinstance(error, redis.sentinel.MasterNotFoundError):
            reason = (
                "has no primary: no sentinel answers, none knows a service of this name, or none was chosen "
                "yet; see that the sentinels run and monitor it, and retry"
            )
            if "Authentication" in text:
                reason = f"has sentinels, one of which {_PASSWORD}: sentinel_password="
        elif is_refusal(error):
            reason = f"refused a command: {text}"
        else:
            reason = f"cannot be reached ({text}); see that it runs, and retry"
        return StoreUnavailable(f"{place} {reason}")


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
        return not names or b"\0%b\0" % self._key in b"\0%b\0" % names


def code_of(error: Exception) -> str:
    """The server's code for an error, also where the error of a script is wrapped around it."""
    code = next((code for kind, code in _CODES_BY_TYPE.items() if isinstance(error, kind)), None)
    if code is None and isinstance(error, redis.exceptions.ResponseError):
        found = _CODES.search(str(error))
        code = found[1] if found else ""
    return code or ""


def is_refusal(error: Exception) -> bool:
    """Whether the server understood the command and will always refuse it."""
    return isinstance(error, redis.exceptions.ResponseError) and code_of(error) not in _PASSING


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
