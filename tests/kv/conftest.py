"""Fixtures of the tests of Redis and Valkey: a server of the test's own, and a proxy before it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from proxy import Proxy
from servers import valkey

if TYPE_CHECKING:
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
