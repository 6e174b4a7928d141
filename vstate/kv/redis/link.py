"""The way to the Redis server that holds a store: connections, what is sent again when one breaks, and
errors."""

from __future__ import annotations

import inspect
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import uniform
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from vstate.errors import InvalidInput, StoreFull, StoreUnavailable, VStateError
from vstate.forks import ForkAware, survive_forks
from vstate.kv.redis.scripts import ALL, Command

if TYPE_CHECKING:
    import redis

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")

CONNECT_SECONDS = 5.0
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 1.0
MOST_CONNECTIONS = 2**31

KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, between probes, and how many unanswered ones end a
connection."""

_SECRETS = ("username", "password", "ssl_password")

# What a server says that will soon say otherwise: it is loading its data, moving them, choosing another
# primary.
_PASSING = ("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK", "BUSY")
_CODES = re.compile(
    r"(?:^|-|: )(OOM|READONLY|LOADING|TRYAGAIN|CLUSTERDOWN|MOVED|ASK|BUSY|MASTERDOWN|MISCONF|NOREPLICAS|"
    r"NOAUTH|WRONGPASS|NOPERM|WRONGTYPE)\b"
)


class Patience:
    """Pauses that grow, and differ from those of others, until so many seconds are over."""

    def __init__(self, seconds: float, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> None:
        self._end = time.monotonic() + seconds
        self._next = first
        self._longest = longest

    def pause(self) -> bool:
        """Sleep; False, at once, when the time is over."""
        left = self._end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(self._next * uniform(0.5, 1.5), left))
        self._next = min(self._next * 2, self._longest)
        return True


class Doubt:
    """Whether the server may do, or have done, what was sent to it in vain so far."""

    unsure = False


class Link(ForkAware):
    """Connections to the server that holds `key`: those of `url`, or of a `client` that somebody else made.

    The driver's own retries are not used: they cannot tell whether a write was sent. Here whatever may be
    sent twice is sent again, until `timeout` seconds are over.
    """

    def __init__(self, url: str | None, client: Any, timeout: float, key: str) -> None:
        try:
            # A driver like any other: `import vstate` need not wait for it.
            global redis
            import redis
        except ImportError:
            raise InvalidInput("a Redis store needs the package redis: pip install 'vstate[redis]'") from None
        if (url is None) == (client is None):
            raise InvalidInput("a Redis store is given a URL or a client=, one of the two")
        self._lock = threading.RLock()
        self._timeout = timeout
        self._key = key
        self._url = url
        self._own = client is None
        self._client = client
        self._closed = False
        self._reached = False
        self._asking: tuple[str, ...] | None = None
        self._secrets: list[str] = []
        if url is not None:
            self._clustered, self._server, self.place = self._parse(url)
        else:
            self._clustered, self._server, self.place = self._look_at(client)
        self.has_password = bool(self._secrets)
        survive_forks(self)

    def exchange(
        self,
        commands: Sequence[Command],
        *,
        again: Callable[[], Sequence[Command]] | None = None,
        doubt: Doubt | None = None,
        patient: bool = True,
    ) -> list[Any]:
        """Send the commands, all at once, and return the replies. If a connection breaks, or the server is
        not ready, they are sent anew, all of them: each must bear to be carried out twice.

        Where they write, `again` gives what to send then, and `doubt` goes from one call to the next. Not
        `patient`, it tries once. What the server refuses is raised as an error of vstate.
        """
        patience = Patience(self._timeout if patient else 0)
        doubt = doubt or Doubt()
        while True:
            try:
                pool, connection = self._take()
            except self.troubles() as error:
                trouble, may_pass = error, self._may_pass(error, reached=self._reached)
            else:
                try:
                    return self._replies(pool, connection, commands)
                except self.troubles() as error:
                    trouble, may_pass = error, self._may_pass(error, reached=True)
                    doubt.unsure = doubt.unsure or (again is not None and self._is_unsure(error))
            if not may_pass or not patience.pause():
                raise self.translated(trouble, doubt.unsure) from None
            if self._clustered:
                self._find_primary()
            if again is not None:
                commands = again()

    def take(self) -> tuple[Any, Any]:
        """A connection of the driver's, and the pool that it goes back to."""
        try:
            return self._take()
        except self.troubles() as error:
            raise self.translated(error) from None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if self._own and client is not None:
            with suppress(Exception):
                client.close()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if not child:
            self._lock.release()
            return
        self._lock = threading.RLock()
        if self._own:
            # The driver would notice, but not in all the versions of it that its locks may be taken.
            self._client = None

    # Sending

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
                # A reply that is still to come would be taken for that to another command.
                connection.disconnect()
            pool.release(connection)
        self._reached = True
        for reply in replies:
            if isinstance(reply, redis.exceptions.ResponseError):
                if _code(reply) == "READONLY":
                    # Behind a name or a sentinel there may be another primary by now.
                    pool.disconnect(inuse_connections=False)
                raise reply
        return replies

    def _take(self) -> tuple[Any, Any]:
        with self._lock:
            if self._closed:
                raise InvalidInput("the Redis store is closed; open it again")
            if self._client is None:
                self._client = self._connect()
            client = self._client
        if self._clustered:
            client = client.get_redis_connection(client.get_node_from_key(self._key))
        pool = client.connection_pool
        if self._asking is None:
            # Before 5.3 the driver wants to hear the name of a command, and later not to.
            name = inspect.signature(pool.get_connection).parameters["command_name"]
            self._asking = ("EVALSHA",) if name.default is inspect.Parameter.empty else ()
        return pool, pool.get_connection(*self._asking)

    def _find_primary(self) -> None:
        with suppress(*self.troubles()):
            client = self._client
            if client is not None:
                client.nodes_manager.initialize()

    # Connecting

    def _parse(self, url: str) -> tuple[bool, dict[str, Any], str]:
        """Whether it is a cluster, what the driver has to know, and the place in words. Nothing of the URL
        itself is ever shown: a password in the wrong place would be shown too.
        """
        if not isinstance(url, str):
            raise InvalidInput(f"the URL of a Redis store is a str, not {type(url).__name__}")
        scheme, mark, rest = url.partition("://")
        if not mark or scheme not in SCHEMES:
            raise InvalidInput(
                f"the URL of a Redis store begins with {', '.join(f'{s}://' for s in SCHEMES)}"
            )
        base, _, cluster = scheme.partition("+")
        try:
            parts = urlsplit(f"{base}://{rest}")
            host, port = parts.hostname or "localhost", parts.port or 6379
            options = redis.connection.parse_url(f"{base}://{rest}")  # type: ignore[no-untyped-call]
        except ValueError:
            raise InvalidInput(
                "the URL of a Redis store has the form redis://user:password@host:port/database, with the "
                "characters : / ? # @ % in user and password as %3A %2F %3F %23 %40 %25"
            ) from None
        database = unquote(parts.path).strip("/")
        if parts.fragment or "@" in parts.path or "@" in parts.query:
            raise InvalidInput(
                "the user and password in the URL of a Redis store need : / ? # @ % as %3A %2F %3F %23 %40 "
                "%25"
            )
        if base != "unix" and database and not database.isdecimal():
            raise InvalidInput(
                "behind the host, the URL of a Redis store has the number of a database, as in /0"
            )
        self._secrets = [str(value) for name in _SECRETS if (value := options.get(name))]
        driver: dict[str, Any] = {
            "socket_timeout": self._timeout,
            "socket_connect_timeout": min(self._timeout, CONNECT_SECONDS),
            # The older protocol does without a greeting, which takes a round trip; so does the driver's name.
            "protocol": 2,
            **_nameless(),
        }
        if base == "unix":
            place = f"unix://{options.get('path', '')} database {options.get('db', 0)}"
        else:
            if ":" in host:
                host = f"[{host}]"
            place = f"{scheme}://{host}:{port}" + ("" if cluster else f"/{options.get('db', 0)}")
            driver["socket_keepalive"] = True
            driver["socket_keepalive_options"] = {
                getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)
            }
        if base == "rediss":
            driver["ssl_check_hostname"] = True  # not the default of all versions
        driver["max_connections"] = MOST_CONNECTIONS
        driver["retry"] = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        try:
            # Options that the driver does not know would come to light with the first command only.
            pool = redis.ConnectionPool.from_url(f"{base}://{rest}", **driver)
            pool.connection_class(**pool.connection_kwargs)
        except (TypeError, ValueError, AttributeError, redis.RedisError):
            raise InvalidInput(
                "the URL of the Redis store has options, behind its ?, that redis-py does not know or not "
                "like this"
            ) from None
        _check_encoder(pool.get_encoder())
        if cluster:
            if options.get("db"):
                raise InvalidInput("a Redis Cluster has no databases but 0: leave the number out of the URL")
            del driver["max_connections"], driver["retry"]
            driver["require_full_coverage"] = False
        driver["url"] = f"{base}://{rest}"
        return bool(cluster), driver, place

    def _look_at(self, client: Any) -> tuple[bool, dict[str, Any], str]:
        if not isinstance(client, redis.Redis | redis.RedisCluster):
            raise InvalidInput(
                "client= is a redis.Redis or a redis.RedisCluster, not "
                f"{type(client).__module__}.{type(client).__name__}"
            )
        _check_encoder(client.get_encoder())
        if isinstance(client, redis.RedisCluster):
            nodes = sorted(node.name for node in client.get_primaries())  # type: ignore[no-untyped-call]
            return True, {}, f"redis+cluster://{','.join(nodes)}"
        known = client.connection_pool.connection_kwargs
        self._secrets = [str(value) for name in _SECRETS if (value := known.get(name))]
        database = known.get("db") or 0
        if known.get("path"):
            return False, {}, f"unix://{known['path']} database {database}"
        service = getattr(client.connection_pool, "service_name", None)
        host = service or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
        return False, {}, f"redis://{host}/{database}"

    def _connect(self) -> Any:
        if self._clustered:
            return redis.RedisCluster.from_url(**self._server)
        return redis.Redis.from_url(**self._server)

    # Errors

    @staticmethod
    def troubles() -> tuple[type[Exception], ...]:
        # The last two are no RedisErrors, though they come of the driver too; UnicodeError of a host's name.
        return redis.RedisError, OSError, redis.exceptions.RedisClusterException, UnicodeError

    def _may_pass(self, error: Exception, *, reached: bool) -> bool:
        """Whether it makes sense to try again; for a server that was never there only if it was busy."""
        if isinstance(error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError):
            return False
        if isinstance(error, redis.exceptions.ResponseError):
            code = _code(error)
            if code in ("MOVED", "ASK", "READONLY", "MASTERDOWN"):
                return self._clustered
            return code in _PASSING
        if isinstance(error, redis.BusyLoadingError) or "Too many connections" in str(error):
            return True
        return reached

    @staticmethod
    def is_refusal(error: Exception) -> bool:
        """Whether the server understood, and said no for good."""
        return isinstance(error, redis.exceptions.ResponseError) and _code(error) not in _PASSING

    @staticmethod
    def _is_unsure(error: Exception) -> bool:
        """Whether the server may have done what it was asked to before this came of it."""
        answered = (redis.exceptions.ResponseError, redis.BusyLoadingError, redis.AuthenticationError)
        return not isinstance(error, answered)

    def translated(self, error: Exception, unsure: bool = False) -> VStateError:
        """What `error`, which came of the driver, means to a caller."""
        place, code, text = self.place, _code(error), str(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        if code == "OOM":
            return StoreFull(
                f"{place} has reached its maxmemory; nothing was written: delete what is not needed, or "
                "raise the limit"
            )
        if code == "MISCONF" and "No space left" in text:
            return StoreFull(f"the disk of {place} is full; nothing was written: make room and retry")
        if code == "WRONGTYPE":
            return InvalidInput(
                f"{place} holds data of another program under these keys; choose another prefix= for the "
                "store"
            )
        if code in ("MOVED", "ASK") and not self._clustered:
            return InvalidInput(
                f"{place} is one node of a Redis Cluster; write redis+cluster:// instead of redis://, or "
                "give a redis.RedisCluster as client="
            )
        if code in ("NOAUTH", "WRONGPASS") or isinstance(error, redis.AuthenticationError):
            reason = "refused the user and password, or wants some and was given none; correct the URL"
        elif code == "NOPERM" or isinstance(error, redis.exceptions.AuthorizationError):
            reason = f"does not permit this user what a store needs ({text}); change the user's ACL"
        elif code in ("READONLY", "MASTERDOWN"):
            reason = "is a replica, which cannot be written to; connect to the primary, or retry after the failover"
        elif code in ("NOREPLICAS", "MISCONF"):
            reason = f"does not take writes now ({text})"
        elif isinstance(error, redis.TimeoutError | TimeoutError):
            reason = f"did not answer within {self._timeout:g} s; retry later"
        elif isinstance(error, redis.exceptions.ResponseError) and code not in _PASSING:
            reason = f"refused a command: {text}"
        else:
            reason = f"cannot be reached ({text}); see that it runs, and retry"
        if unsure:
            reason += "; what was being written may or may not have happened: read it again before you retry"
        return StoreUnavailable(f"{place} {reason}", outcome_unknown=unsure)


def _check_encoder(encoder: Any) -> None:
    if encoder.decode_responses:
        raise InvalidInput(
            "this client or URL decodes what is read, and a store holds bytes: use decode_responses=False"
        )
    # Whoever encodes the prefix otherwise is in another store.
    if encoder.encoding.lower().replace("-", "") != "utf8":
        raise InvalidInput(f"this client or URL has encoding={encoder.encoding!r}, and a store needs utf-8")


def _send(connection: Any, commands: Sequence[Command]) -> list[Any]:
    """The replies to the commands, in which those that were refused have an exception."""
    connection.send_packed_command(connection.pack_commands(commands))
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except redis.exceptions.ResponseError as error:
            replies.append(error)
    return replies


def _nameless() -> dict[str, Any]:
    """Options that keep the driver from telling its name, in words that its version knows."""
    known = inspect.signature(redis.connection.AbstractConnection.__init__).parameters
    if "driver_info" in known:
        return {"driver_info": None}
    return {"lib_name": None, "lib_version": None} if "lib_name" in known else {}


def _code(error: Exception) -> str:
    """The word by which a server says what is wrong, also where a script's error is wrapped around it."""
    if not isinstance(error, redis.RedisError):
        return ""
    by_type = {
        redis.exceptions.OutOfMemoryError: "OOM",
        redis.exceptions.ReadOnlyError: "READONLY",
        redis.exceptions.MasterDownError: "MASTERDOWN",
        redis.exceptions.MovedError: "MOVED",
        redis.exceptions.AskError: "ASK",
        redis.exceptions.TryAgainError: "TRYAGAIN",
        redis.exceptions.ClusterDownError: "CLUSTERDOWN",
        redis.exceptions.NoPermissionError: "NOPERM",
        redis.BusyLoadingError: "LOADING",
    }
    # The driver cuts the word off where it has a class for it.
    code = by_type.get(type(error))
    if code is None and isinstance(error, redis.exceptions.ResponseError):
        found = _CODES.search(str(error))
        code = found[1] if found else ""
    return code or ""
