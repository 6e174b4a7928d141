"""Address: the server of a store, from a URL or from a client of redis-py."""

from __future__ import annotations

import inspect
import socket
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import redis

from vstate.backoff import REACH_SECONDS, Timeout
from vstate.errors import InvalidInput
from vstate.kv.servers import check_url

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")

MOST_CONNECTIONS = 2**31

KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds before the first probe and between probes, and the unanswered probes that end a connection."""

_SECRETS = ("username", "password", "ssl_password")


@dataclass(frozen=True)
class Address:
    """A server or a cluster. Messages show its place; never a part of the URL, where a password may stand."""

    place: str
    clustered: bool
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the driver, `url` among them. Empty for a client."""
    secrets: tuple[str, ...] = ()
    connections: int = MOST_CONNECTIONS
    """How many connections a store may have in use."""

    @classmethod
    def of_url(cls, url: str, timeout: Timeout) -> Self:
        """The server at the URL. InvalidInput if the URL is wrong, or the driver refuses its options."""
        scheme, _, rest = check_url(url, *SCHEMES).partition("://")
        base, _, cluster = scheme.partition("+")
        try:
            parts = urlsplit(f"{base}://{rest}")
            given = redis.connection.parse_url(f"{base}://{rest}")  # type: ignore[no-untyped-call]  # the driver
        except ValueError:
            raise InvalidInput(
                "the URL of a Redis store has the form redis://user:password@host:port/database?option=value"
            ) from None
        database = parts.path.strip("/")
        if base != "unix" and database and not database.isdecimal():
            raise InvalidInput(
                "behind the host, the URL of a Redis store has the number of a database, as in /0"
            )
        options: dict[str, Any] = {
            "socket_timeout": timeout.seconds,
            "socket_connect_timeout": min(timeout.to_reach, REACH_SECONDS),
            # Round trips are saved: the older protocol has no greeting, and a nameless driver sends none.
            "protocol": 2,
            **_nameless(),
        }
        if base == "unix":
            place = f"unix://{given.get('path', '')} database {given.get('db', 0)}"
        else:
            host = parts.hostname or "localhost"
            place = f"{scheme}://{f'[{host}]' if ':' in host else host}:{parts.port or 6379}"
            place += "" if cluster else f"/{given.get('db', 0)}"
            options["socket_keepalive"] = True
            options["socket_keepalive_options"] = {
                getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)
            }
        if base == "rediss":
            options["ssl_check_hostname"] = True  # not the default of all versions
        options["max_connections"] = MOST_CONNECTIONS
        options["retry"] = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        try:
            # Otherwise the driver would complain of unknown options at the first command only.
            pool = redis.ConnectionPool.from_url(f"{base}://{rest}", **options)
            pool.connection_class(**pool.connection_kwargs)
        except (TypeError, ValueError, AttributeError, redis.RedisError):
            raise InvalidInput(
                "the URL of the Redis store has options, behind its ?, that redis-py does not know, or with "
                "values that it does not take"
            ) from None
        _check_encoder(pool.get_encoder())
        if cluster:
            if given.get("db"):
                raise InvalidInput("a Redis Cluster has no databases but 0: leave the number out of the URL")
            del options["max_connections"], options["retry"]
            options["require_full_coverage"] = False
        options["url"] = f"{base}://{rest}"
        return cls(place, bool(cluster), options, _secrets_of(given), pool.max_connections)

    @classmethod
    def of_client(cls, client: Any) -> Self:
        """The server of a client. InvalidInput if it is no client, or decodes values."""
        if not isinstance(client, redis.Redis | redis.RedisCluster):
            raise InvalidInput(
                "client= is a redis.Redis or a redis.RedisCluster, not "
                f"{type(client).__module__}.{type(client).__name__}"
            )
        _check_encoder(client.get_encoder())
        if isinstance(client, redis.RedisCluster):
            nodes = sorted(
                node.name
                for node in client.get_primaries()  # type: ignore[no-untyped-call]  # the driver
            )
            options = client.get_connection_kwargs()  # type: ignore[no-untyped-call]  # the driver
            most = options.get("max_connections") or MOST_CONNECTIONS
            return cls(f"redis+cluster://{','.join(nodes)}", True, connections=most)
        pool = client.connection_pool
        known = pool.connection_kwargs
        database = known.get("db") or 0
        if known.get("path"):
            place = f"unix://{known['path']} database {database}"
        else:
            service = getattr(pool, "service_name", None)
            host = service or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
            place = f"redis://{host}/{database}"
        return cls(place, False, {}, _secrets_of(known), pool.max_connections)

    def connect(self) -> Any:
        """A client of the driver for the URL."""
        make = redis.RedisCluster if self.clustered else redis.Redis
        return make.from_url(**self.options)


def _secrets_of(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(value) for name in _SECRETS if (value := options.get(name)))


def _check_encoder(encoder: Any) -> None:
    if encoder.decode_responses:
        raise InvalidInput(
            "this client or URL decodes values, and a store holds bytes: use decode_responses=False"
        )
    # Another encoding of the prefix leads to another store.
    if encoder.encoding.lower().replace("-", "") != "utf8":
        raise InvalidInput(f"this client or URL has encoding={encoder.encoding!r}, and a store needs utf-8")


def _nameless() -> dict[str, Any]:
    """The options, in this version of the driver, that keep it from telling its name to the server."""
    known = inspect.signature(redis.connection.AbstractConnection.__init__).parameters
    if "driver_info" in known:
        return {"driver_info": None}
    return {"lib_name": None, "lib_version": None} if "lib_name" in known else {}
