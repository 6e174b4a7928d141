"""Server: the viewer on a port of this machine."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.viewer.asgi import application

LOOPBACK: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 32


def serve(
    store: KVStore,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    write: bool = False,
    token: str | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve the viewer until Ctrl-C. `ready` gets the address with the token once the port is open.

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
        viewer = application(
            store,
            write=write,
            token=token,
            hosts=_hosts(host, port),
            cookie=f"vstate-{port}",
            ending=lambda: server.should_exit,
        )
        config = uvicorn.Config(
            viewer,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        server = uvicorn.Server(config)
        listener.listen(100)
        ready(f"http://{name}:{port}/?token={token}")
        server.run(sockets=[listener])


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
