"""RedisStateService: a StateService on a Redis server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.sessions.state_service import StateService

if TYPE_CHECKING:
    import redis
    import redis.asyncio

_PREFIX = "vstate-states"
_PLAIN = ("host", "port", "db", "username", "password", "credential_provider", "path", "client_name")


class RedisStateService(StateService):
    """A StateService on the Redis server at `redis_url`, or on the server of a client, also of redis.asyncio.

    Only the address, the name, the password and the TLS options of a client are used. The client itself is
    never used or closed. A call waits `socket_timeout` seconds for the server; None: 30. `ttl_seconds` is the
    `ttl` of StateService. The store opens as many connections as it needs, and repeats requests where that is
    safe. Needs `pip install '.[redis]'`.
    """

    def __init__(
        self,
        redis_url: str = "redis://localhost:6379/0",
        redis_client: redis.Redis | redis.asyncio.Redis | None = None,
        socket_timeout: float | None = 5.0,
        ttl_seconds: float | None = 3600,
        *,
        branch: str | None = None,
    ) -> None:
        super().__init__(ttl=ttl_seconds, branch=branch)
        self._redis_url = redis_url
        self._redis = redis_client
        self._timeout = socket_timeout or 30.0

    def _make_store(self) -> KVStore:
        from vstate.kv.redis import Redis  # late: the driver is optional

        url = self._redis_url if self._redis is None else None
        client = None if self._redis is None else _like(self._redis)
        return Redis(url, client=client, prefix=_PREFIX, timeout=self._timeout)


def _like(client: Any) -> redis.Redis:
    """A client for threads that would connect like this one. It makes no connection itself."""
    import redis

    pool = getattr(client, "connection_pool", None)
    if pool is None or "SentinelConnectionPool" in [base.__name__ for base in type(pool).__mro__]:
        raise InvalidInput(
            "the redis_client of a cluster or a Sentinel does not name one server: give a redis_url, or give "
            "StateService a store, such as Redis(client=...)"
        )
    names = [base.__name__ for base in pool.connection_class.__mro__]
    kinds = (redis.SSLConnection, redis.UnixDomainSocketConnection)
    kind = next((kind for kind in kinds if kind.__name__ in names), redis.Connection)
    options = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name in _PLAIN or name.startswith("ssl_")
    }
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=kind, **options))
