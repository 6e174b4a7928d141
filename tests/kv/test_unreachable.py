"""Servers that refuse connections, are gone, or answer nothing: how long a call waits for each of them."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from ports import free_ports
from proxy import Proxy

from vstate import StoreUnavailable, Versioned, open_store
from vstate.backoff import REACH_SECONDS, Backoff, Timeout


def test_the_default_is_short_for_a_server_out_of_reach() -> None:
    """A given timeout is for both; without one, a server out of reach gets five seconds."""
    assert REACH_SECONDS == 5
    assert Timeout.of(None, 30.0) == (30, 5)
    assert Timeout.of(20, 30.0) == (20, 20)


def test_the_pauses_for_a_server_out_of_reach() -> None:
    """They end `to_reach` seconds after it was lost, and begin anew once it was reached."""
    backoff = Backoff(0.001, 0.001, seconds=1000, to_reach=10)
    now = time.monotonic()
    assert backoff.pause(lost_at=now - 5)
    assert backoff.pause(lost_at=now)
    assert backoff.pause()
    assert not backoff.pause(lost_at=now - 11)
    assert backoff.pause()
    assert backoff.pause(lost_at=now)


@pytest.fixture
def through(server_url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy in front of a server, and the URL through it, with the default timeout."""
    with Proxy.before(server_url) as proxy:
        yield proxy, re.sub("[?&]timeout=[0-9]+$", "", proxy.through(server_url))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vstate.backoff.REACH_SECONDS", 0.3)


@pytest.mark.parametrize("fault", ["refused", "cut", "unreachable"])
def test_a_commit_does_not_wait_long_for_a_server_that_is_gone(
    fault: str, through: tuple[Proxy, str], quick: None
) -> None:
    """It raises StoreUnavailable long before the 30 or 60 seconds for an answer; the changes stay staged."""
    proxy, url = through
    with Versioned(url) as state, ExitStack() as ends:
        state["x"] = 1
        state.commit()
        if fault == "cut":
            proxy.down()
        else:
            proxy.close()
        if fault == "unreachable":  # a full queue of connections: the kernel answers no other
            server = ends.enter_context(socket.create_server(("127.0.0.1", proxy.port), backlog=0))
            for _ in range(4):
                client = ends.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(server.getsockname())
        state["x"] = 2
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            state.commit()
        assert time.monotonic() - began < 15
        assert state["x"] == 2


@pytest.mark.slow
def test_a_server_that_was_never_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address is one error, without another attempt, and no write can have happened."""
    monkeypatch.setattr("vstate.kv.servers.Backoff.pause", lambda *_, **__: pytest.fail("tried again"))
    (port,) = free_ports(1)
    places = [f"127.0.0.1:{port}", "no..name:1", f"{'a' * 80}:1"]
    urls = [f"{scheme}://{place}" for scheme in ("redis", "redis+cluster") for place in places]
    urls += [f"redis+sentinel://127.0.0.1:{port}/main", f"postgresql://127.0.0.1:{port}/main"]
    for url in (*urls, "redis+unix:///nowhere/socket"):
        with open_store(url) as store:
            for call in (lambda: store.get("a"), lambda: store.set("a", b"1"), lambda: list(store.keys())):
                with pytest.raises(StoreUnavailable) as caught:
                    call()
                assert not caught.value.outcome_unknown
                assert caught.value.__cause__ is None
                assert url.removeprefix("redis+unix://") in str(caught.value)
