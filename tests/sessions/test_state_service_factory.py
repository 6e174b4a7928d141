"""StateServiceFactory: backends by name, and typed parameters from the environment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports

from vstate.errors import InvalidInput, StoreUnavailable
from vstate.sessions import InMemoryStateService, RedisStateService, StateService, StateServiceFactory


class Own:
    """A service of somebody else's."""

    def __init__(self, dsn: int | str, size: int = 1, strict: bool = True, wait: float | None = 1.0) -> None:
        self.given = (dsn, size, strict, wait)
        self.started = False

    async def start(self) -> None:
        self.started = True


class Everything(Own):
    def __init__(self, **options: Any) -> None:
        self.options = options


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateServiceFactory, "_registry", dict(StateServiceFactory._registry))
    for name in ("STATE_BACKEND", "STATE_REDIS_REDIS_URL", "STATE_STORE_STORE"):
        monkeypatch.delenv(name, raising=False)


def create(*args: Any, **options: Any) -> Any:
    return asyncio.run(StateServiceFactory.create(*args, **options))


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory by default, or by STATE_BACKEND in any case; started, and unknown parameters ignored."""
    assert type(create()) is InMemoryStateService
    service = create("In_Memory", redis_url="redis://nowhere", anything=1)
    assert asyncio.run(service.save_state("u", {})) == 1
    monkeypatch.setenv("STATE_BACKEND", "STORE")
    monkeypatch.setenv("STATE_STORE_STORE", str(tmp_path / "states"))
    monkeypatch.setenv("STATE_STORE_TTL", "60")
    service = create()
    assert type(service) is StateService
    assert not (tmp_path / "states").exists()  # opened at the first use
    asyncio.run(service.save_state("u", {"n": 1}))
    asyncio.run(service.stop())
    assert (tmp_path / "states").is_dir()
    assert service._ttl == 60.0


def test_redis_from_the_environment(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """STATE_REDIS_REDIS_URL and the like; keywords override them."""
    monkeypatch.setenv("STATE_REDIS_REDIS_URL", redis_url)
    monkeypatch.setenv("STATE_REDIS_TTL_SECONDS", "60")
    service = create("redis", ttl_seconds=5)
    assert type(service) is RedisStateService
    assert service._ttl == 5
    assert asyncio.run(service.health())
    asyncio.run(service.stop())


def test_the_first_use_connects() -> None:
    """A server that is down fails no `create`; a service that was stopped is not started again by a call."""
    service = create("redis", redis_url=f"redis://localhost:{free_ports(1)[0]}", socket_timeout=0.2)
    assert not asyncio.run(service.health())
    with pytest.raises(StoreUnavailable):
        asyncio.run(service.export_state("u"))
    service = create()
    assert asyncio.run(service.health())
    asyncio.run(service.stop())
    with pytest.raises(RuntimeError, match="not started"):
        asyncio.run(service.export_state("u"))


def test_values_of_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers, truth values and None are converted; similar names do not mix."""
    StateServiceFactory.register_backend("Own", Own)
    StateServiceFactory.register_backend("own_dsn", Everything)
    for name, text in {"DSN": "d", "SIZE": "7", "STRICT": "false", "WAIT": "none", "BOGUS": "x"}.items():
        monkeypatch.setenv(f"STATE_OWN_{name}", text)
    service = create("own")
    assert service.given == ("d", 7, False, None)
    assert service.started
    assert create("own", size=8, strict=True).given == ("d", 8, True, None)
    monkeypatch.setenv("STATE_OWN_DSN", "7")
    assert create("own").given[0] == 7
    monkeypatch.setenv("STATE_OWN_DSN", "d")
    monkeypatch.setenv("STATE_OWN_DSN_PORT", "1")
    assert create("own").given[0] == "d"
    assert create("own_dsn", more=2).options == {"port": "1", "more": 2}


@pytest.mark.parametrize(("name", "text"), [("STRICT", "maybe"), ("SIZE", "many"), ("WAIT", "soon")])
def test_values_that_are_none(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """The error names the variable, and never shows its value."""
    StateServiceFactory.register_backend("own", Own)
    monkeypatch.setenv("STATE_OWN_DSN", "d")
    monkeypatch.setenv(f"STATE_OWN_{name}", text)
    with pytest.raises(InvalidInput, match=f"STATE_OWN_{name}") as caught:
        create("own")
    assert text not in str(caught.value)


def test_unknown_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused with a list of known ones; a missing parameter is an error of the constructor."""
    with pytest.raises(ValueError, match="in_memory"):
        create("nope")
    monkeypatch.setenv("STATE_BACKEND", "")
    with pytest.raises(ValueError, match="known are"):
        create()
    StateServiceFactory.register_backend("own", Own)
    with pytest.raises(TypeError, match="dsn"):
        create("own")
