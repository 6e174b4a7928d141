"""Address: the server of a store, from a URL or from a client of redis-py."""

from __future__ import annotations

import inspect
import socket
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import redis

from vstate.backoff import REACH_SECONDS, Timeout
from vstate.errors import InvalidInput
from vstate.kv.servers import check_url

SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)

MOST_CONNECTIONS = 2**31

KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds before the first probe and between probes, and the unanswered probes that end a connection."""

_SECRETS = ("username", "password", "ssl_password", "sentinel_username", "sentinel_password")

_FORM = "the URL of a Redis store has the form redis://user:password@host:port/database?option=value"
_SENTINEL_FORM = (
    "the URL of a Redis store behind sentinels has the form "
    "redis+sentinel://user:password@host:port,host:port/service/database?option=value"
)


@dataclass(frozen=True)
class Address:
    """A server, a cluster, or the primary that sentinels name. Messages show its place; never a part of the
    URL, where a password may stand.
    """

    place: str
    clustered: bool
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the driver, `url` or `sentinels` among them. Empty for a client."""
    secrets: tuple[str, ...] = ()
    connections: int = MOST_CONNECTIONS
    """How many connections a store may have in use."""
    service: str = ""
    """The name by which sentinels know the primary, if they tell where it is."""

    @property
    def moves(self) -> bool:
        """Whether another server may become the primary, and the driver finds it."""
        return self.clustered or bool(self.service)

    @classmethod
    def of_url(cls, url: str, timeout: Timeout) -> Self:
        """The server at the URL. InvalidInput if the URL is wrong, or the driver refuses its options."""
        scheme, _, rest = check_url(url, *SCHEMES).partition("://")
        base, _, kind = scheme.partition("+")
        sentinels: list[tuple[str, int]] = []
        service = ""
        if kind == "sentinel":
            sentinels, service, rest = _sentinels_of(rest)
        try:
            parts = urlsplit(f"{base}://{rest}")
            given = redis.connection.parse_url(f"{base}://{rest}")  # type: ignore[no-untyped-call]  # the driver
        except ValueError:
            raise InvalidInput(_SENTINEL_FORM if service else _FORM) from None
        secrets = _secrets_of(given)
        own = {name: given.pop(f"sentinel_{name}", None) for name in ("username", "password") if service}
        database = parts.path.strip("/")
        if base != "unix" and database and not database.isdecimal():
            raise InvalidInput(
                "behind the host, the URL of a Redis store has the number of a database, as in /0"
            )
        options = _options(base, timeout)
        most = _most_connections({**options, **given})
        if base == "unix":
            place = f"unix://{given.get('path', '')} database {given.get('db', 0)}"
        else:
            hosts = sentinels or [(parts.hostname or "localhost", parts.port or 6379)]
            shown = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in hosts)
            place = f"{scheme}://{shown}{service and f'/{service}'}"
            place += "" if kind == "cluster" else f"/{given.get('db', 0)}"
        if kind == "cluster":
            if given.get("db"):
                raise InvalidInput("a Redis Cluster has no databases but 0: leave the number out of the URL")
            del options["max_connections"], options["retry"]
            options["require_full_coverage"] = False
        if service:
            options = _sentinel_options(sentinels, {**options, **given}, own)
        else:
            options["url"] = f"{base}://{rest}"
        return cls(place, kind == "cluster", options, secrets, most, service)

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
        service = getattr(pool, "service_name", "")
        database = known.get("db") or 0
        if known.get("path"):
            place = f"unix://{known['path']} database {database}"
        else:
            host = service or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
            place = f"redis{'+sentinel' if service else ''}://{host}/{database}"
        return cls(place, False, {}, _secrets_of(known), pool.max_connections, service)

    def connect(self) -> Any:
        """A client of the driver for the URL."""
        if self.service:
            manager: Any = redis.sentinel.Sentinel(**self.options)  # type: ignore[no-untyped-call]  # the driver
            return manager.master_for(self.service)
        make = redis.RedisCluster if self.clustered else redis.Redis
        return make.from_url(**self.options)


def _sentinels_of(rest: str) -> tuple[list[tuple[str, int]], str, str]:
    """The sentinels of a URL, the name of the service, and the rest as the URL of one server has it."""
    place, mark, query = rest.partition("?")
    authority, _, path = place.partition("/")
    user, at, hosts = authority.rpartition("@")
    service, _, database = path.partition("/")
    if not (service and all(hosts.split(","))):
        raise InvalidInput(_SENTINEL_FORM)
    parts = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinels = [(part.hostname or "localhost", part.port or 26379) for part in parts]
    return sentinels, unquote(service), f"{user}{at}localhost/{database}{mark}{query}"


def _options(base: str, timeout: Timeout) -> dict[str, Any]:
    """The options of the driver with another default here."""
    options: dict[str, Any] = {
        "socket_timeout": timeout.seconds,
        "socket_connect_timeout": min(timeout.to_reach, REACH_SECONDS),
        # Round trips are saved: the older protocol has no greeting, and a nameless driver sends none.
        "protocol": 2,
        **_nameless(),
        "max_connections": MOST_CONNECTIONS,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    }
    if base != "unix":
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = {
            getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)
        }
    if base == "rediss":
        options["ssl_check_hostname"] = True  # not the default of all versions
    return options


def _sentinel_options(
    sentinels: list[tuple[str, int]], options: dict[str, Any], own: dict[str, Any]
) -> dict[str, Any]:
    """The options of a Sentinel of the driver: those of its servers, and of the sentinels `own`."""
    servers = {name: value for name, value in options.items() if name not in ("host", "port")}
    servers["ssl"] = servers.pop("connection_class", None) is not None
    shared = ("ssl", "protocol", "retry", "driver_info", "lib_name", "lib_version")
    asking = {
        name: value
        for name, value in servers.items()
        if name in shared or name.startswith(("ssl_", "socket_"))
    }
    # A sentinel answers at once, or the next one is asked.
    asking["socket_timeout"] = asking["socket_connect_timeout"]
    return {"sentinels": sentinels, "sentinel_kwargs": {**asking, **own}, **servers}


def _most_connections(options: dict[str, Any]) -> int:
    """How many connections a pool with these options may have; InvalidInput if the driver refuses them."""
    try:
        # Otherwise the driver would complain of unknown options at the first command only.
        pool = redis.ConnectionPool(**options)
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, AttributeError, redis.RedisError):
        raise InvalidInput(
            "the URL of the Redis store has options, behind its ?, that redis-py does not know, or with "
            "values that it does not take"
        ) from None
    _check_encoder(pool.get_encoder())
    return pool.max_connections


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
