"""Ports for servers that tests start."""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

SERVERS = range(10_000, 21_000)
"""Together with `BUS` below the ports of outgoing connections, which begin at 32,768 on Linux."""

BUS = 10_000
"""The distance to a server's second port, which a Redis in a cluster and SeaweedFS open."""

_taken: list[int] = []


def free_ports(count: int) -> list[int]:
    """Free ports, each with the port `BUS` above it. No other test run gets them while this process lives.

    No outgoing connection takes such a port while a test restarts its server.
    """
    found: list[int] = []
    for port in random.sample(SERVERS, 1000):
        with suppress(OSError):
            _take(port)
            for each in (port, port + BUS):
                socket.create_server(("127.0.0.1", each)).close()
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} ports of {SERVERS.start} to {SERVERS.stop - 1} are free")


def _take(port: int) -> None:
    """Lock this port's file until the process ends. Raises OSError if another process has the lock."""
    directory = Path(tempfile.gettempdir()) / f"vstate-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    _taken.append(descriptor)
