"""A real PgBouncer for the tests, which Debian and others package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from ports import free_ports

START_SECONDS = 60

POOL_SIZE = 2
"""Connections to the server, which all clients share."""


class PgBouncer:
    """PgBouncer in "transaction" mode before the server at `port`, for the role `pooled`, which needs no
    password. Skips the test if it is not installed.
    """

    def __init__(self, port: int) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            pytest.skip("needs PgBouncer: apt install pgbouncer")
        (self.port,) = free_ports(1)
        self._directory = directory = Path(tempfile.mkdtemp(prefix="vstate-pgbouncer-"))
        self._log = directory / "log"
        (directory / "users").write_text('"pooled" ""\n')
        (directory / "pgbouncer.ini").write_text(f"""
[databases]
postgres = host=127.0.0.1 port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {directory / "users"}
admin_users = pooled
pool_mode = transaction
default_pool_size = {POOL_SIZE}
server_login_retry = 1
""")
        options: dict[str, Any] = {}
        if os.geteuid() == 0:  # which PgBouncer refuses
            directory.chmod(0o755)
            options = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, "pgbouncer.ini"], cwd=directory, stdout=log, stderr=log, **options
            )

    def through(self, dsn: str) -> str:
        """The DSN by way of PgBouncer."""
        return re.sub(r":\d+/", f":{self.port}/", dsn)

    def kill_servers(self) -> None:
        """End the connections to the server, and let clients go on."""
        with self._console() as console:
            console.execute("KILL postgres")
            console.execute("RESUME postgres")

    def __enter__(self) -> Self:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self._console().close()
                return self
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self.__exit__()
                    raise RuntimeError(f"PgBouncer does not start: {self._log.read_text()[-2000:]}") from None
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory)

    def _console(self) -> psycopg.Connection[Any]:
        # The console knows plain queries only.
        return psycopg.connect(
            f"postgresql://pooled@127.0.0.1:{self.port}/pgbouncer",
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
        )
