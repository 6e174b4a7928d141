"""What may stand between a store and PostgreSQL: a proxy that counts, delays and cuts, and a small pooler."""

import re
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Self


class Proxy:
    """Passes bytes between clients and the server at `port`, as a thread that ends with `with`.

    `round_trips` counts how often a client spoke after the server had. `watch` decides about each piece: "cut" closes
    the connection instead of passing it on, "freeze" keeps it open and passes nothing more. With `delay`, each piece
    waits so many seconds.
    """

    def __init__(self, port: int) -> None:
        self.server = ("127.0.0.1", port)
        self.round_trips = 0
        self.passed = 0
        self.delay = 0.0
        self.refusing = False
        self.watch: Callable[[str, bytes], str] = lambda side, data: "pass"
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._ending = False
        self._threads: list[threading.Thread] = []

    def dsn(self, dsn: str) -> str:
        """That address, by way of the proxy."""
        return re.sub(r"@[^/]*/", f"@127.0.0.1:{self.port}/", dsn)

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        # Closing alone does not wake a thread that waits for connections.
        with suppress(OSError):
            socket.create_connection(self._listening.getsockname()).close()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            if self._ending or self.refusing:
                client.close()
                if self._ending:
                    return
                continue
            self._run(lambda client=client: self._serve(client))  # type: ignore[misc]

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self.server) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        spoke_last = "server"
        while not self._ending:
            for end in select.select([client, server], [], [], 0.05)[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                side, other = ("client", server) if end is client else ("server", client)
                if side == "client" and spoke_last == "server":
                    self.round_trips += 1
                spoke_last = side
                verdict = self.watch(side, data)
                if verdict == "cut":
                    # A reset, as from a machine that does not know the connection any more.
                    for socket_ in (client, server):
                        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                if verdict == "freeze":
                    while not self._ending:
                        time.sleep(0.02)
                    return
                time.sleep(self.delay)
                self.passed += len(data)
                other.sendall(data)


def at_commit(proxy: Proxy, done: bool, times: int = 1) -> None:
    """Have the proxy cut the next `times` connections that commit: once the server has, or before it hears of it."""
    left = times
    armed = False

    def watch(side: str, data: bytes) -> str:
        nonlocal left, armed
        if side == "client" and b"COMMIT\0" in data and left:
            armed = True
            left -= 1
            if not done:
                armed = False
                return "cut"
        elif side == "server" and armed:
            armed = False
            return "cut"
        return "pass"

    proxy.watch = watch


class Pooler(Proxy):
    """A pooler like PgBouncer's "transaction" mode: each transaction of a client goes to the next of two connections
    to the server. Roles have to be let in without a password.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.transactions = [0, 0]
        self._turns = count()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            startup = _startup(client)
            with (
                socket.create_connection(self.server) as first,
                socket.create_connection(self.server) as second,
            ):
                servers = [first, second]
                for end in (client, *servers):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for server in servers:
                    server.sendall(startup)
                    greeting = b"".join(_messages_until_ready(server))
                client.sendall(greeting)
                self._take_turns(client, servers)

    def _take_turns(self, client: socket.socket, servers: list[socket.socket]) -> None:
        while True:
            turn = next(self._turns) % 2
            self.transactions[turn] += 1
            state = b""
            while state != b"I":
                # A terminate is passed on as well, and both ends are closed then.
                for message in _messages_until_sync(client, lambda: self._ending):
                    servers[turn].sendall(message)
                for message in _messages_until_ready(servers[turn]):
                    client.sendall(message)
                    state = message[5:6] if message[:1] == b"Z" else state


def _startup(client: socket.socket) -> bytes:
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack("!ii", head)
        rest = _exactly(client, length - 8)
        if code in (80877103, 80877104):  # may we speak TLS, or GSS?
            client.sendall(b"N")
            continue
        return head + rest


def _messages_until_ready(server: socket.socket) -> Iterator[bytes]:
    kind = b""
    while kind != b"Z":
        kind = _exactly(server, 1)
        yield _rest_of(kind, server)


def _messages_until_sync(client: socket.socket, ending: Callable[[], bool]) -> Iterator[bytes]:
    kind = b""
    while kind not in (b"S", b"Q"):
        while not select.select([client], [], [], 0.05)[0]:
            if ending():
                raise EOFError
        kind = _exactly(client, 1)
        if kind == b"X":
            raise EOFError
        yield _rest_of(kind, client)


def _rest_of(kind: bytes, end: socket.socket) -> bytes:
    length = _exactly(end, 4)
    return kind + length + _exactly(end, struct.unpack("!i", length)[0] - 4)


def _exactly(end: socket.socket, wanted: int) -> bytes:
    data = b""
    while len(data) < wanted:
        piece = end.recv(wanted - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
