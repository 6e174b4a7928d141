"""One URL for each kind of server, so that one test is about all of them."""

from collections.abc import Iterable

import pytest


@pytest.fixture(params=["redis", "postgres", "s3"])
def server_url(request: pytest.FixtureRequest) -> str:
    """The URL, its options included, of a place on a server that nobody else uses and that holds nothing yet."""

    def value(name: str) -> str:
        return str(request.getfixturevalue(name))

    if request.param == "redis":
        return with_options(value("redis_url"), [f"prefix={value('redis_prefix')}", "timeout=60"])
    if request.param == "postgres":
        return with_options(value("postgres_dsn"), [f"table={value('postgres_table')}", "timeout=60"])
    return with_options(value("s3_url"), ["timeout=60"])


def with_options(url: str, options: Iterable[str]) -> str:
    """The URL with these options behind those that it has."""
    for option in options:
        url += f"{'&' if '?' in url else '?'}{option}"
    return url
