"""Server: an application on a port of this machine, for who has its token."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable, Collection
from typing import Final, Protocol

import uvicorn
from starlette.types import ASGIApp

from vstate.errors import InvalidInput

LOOPBACK: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 32


class MakeApplication(Protocol):
    """Makes an application behind a `Guard`. Answers that go on for ever end once `ending` gives true."""

    def __call__(
        self, *, token: str, hosts: Collection[str] | None, cookie: str, ending: Callable[[], bool]
    ) -> ASGIApp: ...


def serve(
    make: MakeApplication,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    token: str | None = None,
    ready: Callable[[str, str], None],
) -> None:
    """Serve an application until Ctrl-C. `ready` gets the address and the token once the port is open.

    Port 0 is any free one. Raises InvalidInput if the port is taken.
    """
    token = token or secrets.token_urlsafe(_TOKEN_BYTES)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named: asyncio sends small answers at once (TCP_NODELAY) only where it sees that this is TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InvalidInput(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another --port"
            ) from error
        port = listener.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        application = make(
            token=token,
            hosts=_hosts(host, port),
            cookie=f"vstate-{port}",
            ending=lambda: server.should_exit,
        )
        config = uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        server = uvicorn.Server(config)
        listener.listen(100)
        ready(f"http://{name}:{port}", token)
        server.run(sockets=[listener])


def require_private(host: str, behind_tls: bool) -> None:
    """Raise InvalidInput if other machines reach the host, and no server with TLS is in front."""
    if not is_loopback(host) and not behind_tls:
        raise InvalidInput(
            f"other machines reach {host}, and would get the token and the values unencrypted: put a server "
            "with TLS in front, and say so with --behind-tls"
        )


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach the host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(host: str, port: int) -> frozenset[str] | None:
    """The values of the header Host to answer for: against pages that give this machine another name."""
    if not is_loopback(host):
        return None
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", f"[{host}]", host))
