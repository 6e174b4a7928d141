"""Ports for servers that tests start."""

import random
import socket
from contextlib import suppress


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses. They are below those that systems give to outgoing connections, of which one would
    be taken sooner or later while the server is down that a test kills and starts again.
    """
    found: list[int] = []
    for port in random.sample(range(10_000, 32_000), 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} ports between 10,000 and 32,000 are free")
