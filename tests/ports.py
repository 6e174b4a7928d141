"""Ports for servers that tests start."""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

SERVERS = range(10_000, 21_000)
"""Below the ports that systems give to outgoing connections (32,768 and up on Linux), together with `BUS`."""

BUS = 10_000
"""How far above its own port a server takes a second one: a Redis in a cluster, and SeaweedFS."""

_taken: list[int] = []


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, nor the ones `BUS` above them, and that no other run of tests is given while this
    process lives. No outgoing connection gets one while the server is down that a test kills and starts again.
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
    """Lock the file that stands for this port until the process ends; OSError if another has done so."""
    directory = Path(tempfile.gettempdir()) / f"vstate-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    _taken.append(descriptor)
