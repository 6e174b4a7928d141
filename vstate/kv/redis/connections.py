"""Connections: how to connect to the server of a store, and when to trust a connection."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from vstate.kv.pool import Pool
from vstate.kv.redis.address import Address
from vstate.kv.redis.failures import TROUBLES


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
            with suppress(Exception):  # a client that cannot be closed is of no more use
                self._client.close()

    def found_primary(self) -> bool:
        """Ask the nodes of the cluster for the primary; whether one of them answered."""
        if self._client is None:
            return False
        try:
            self._client.nodes_manager.initialize()
        except TROUBLES:
            return False
        return True

    def _begin(self) -> None:
        super()._begin()
        if self._own:
            self._client = None
