"""Fixtures of the tests of Redis and Valkey: servers of a test's own and shared ones, a cluster, a proxy."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from proxy import Proxy
from servers import valkey

if TYPE_CHECKING:
    from redis import RedisCluster
    from redis_server import RedisServer


@pytest.fixture(params=["redis", "valkey"])
def start_redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """A function that starts a server with the given options; the fixture stops it."""
    from redis_server import RedisServer  # late: few tests need the driver

    program = valkey() if request.param == "valkey" else None
    with ExitStack() as servers:

        def start(**options: Any) -> RedisServer:
            server = RedisServer(Path(tempfile.mkdtemp(dir=tmp_path)), program=program, **options)
            servers.callback(server.stop)
            return server

        yield start


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis(appendfsync="no")


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy.before(server.url) as proxy:
        yield proxy


@pytest.fixture
def proxied(server: RedisServer, proxy: Proxy) -> str:
    """The URL of the server by way of the proxy."""
    return proxy.through(server.url)


@pytest.fixture(scope="package")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Valkey that tests share."""
    from redis_server import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("valkey"), program=valkey(), appendfsync="no")
    yield server.url
    server.stop()


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """The URL of a cluster of one node."""
    import redis
    from redis_server import RedisServer

    server = RedisServer(directory, appendfsync="no", cluster_enabled="yes", cluster_node_timeout="2000")
    try:
        with redis.Redis.from_url(server.url) as node:
            node.execute_command("CLUSTER ADDSLOTS", *range(16384))
            end = time.monotonic() + 100
            while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
                assert time.monotonic() < end
                time.sleep(0.05)
        yield f"redis+cluster://127.0.0.1:{server.port}"
    finally:
        server.stop()


@pytest.fixture(scope="package")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster of the test's own."""
    with cluster(tmp_path / "cluster") as url:
        yield url


@pytest.fixture
def cluster_client(cluster_url: str) -> Iterator[RedisCluster]:
    """A client of the caller's, in the newer protocol."""
    from redis import RedisCluster

    client = RedisCluster.from_url(cluster_url.replace("+cluster", ""), protocol=3)
    yield client
    for node in client.get_nodes():
        node.redis_connection.connection_pool.close()  # which `close` of the client leaves open
