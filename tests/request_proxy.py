"""A proxy for HTTP that counts requests and round trips, takes its time, and loses what it is told to lose."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Trouble = Literal["drop", "swallow", "delay", "answer"]


class Request(NamedTuple):
    """A request that went through, with when it came and when its answer was there, in seconds."""

    method: str
    target: str
    begin: float
    end: float


@dataclass
class _Rule:
    match: bytes
    trouble: Trouble
    left: int
    answer: bytes
    meanwhile: Callable[[], object] | None
    met: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)


class RequestProxy:
    """Passes HTTP/1.1 on to 127.0.0.1:`port`, each request `latency` seconds late. Use it with `with`.

    `lose` makes trouble for the next requests whose head holds `match`:

    - "drop": it is not passed on, and the connection is cut;
    - "swallow": it is passed on, and once it has been answered, the connection is cut; `meanwhile` is called before;
    - "delay": the connection is cut at once, and the request passed on when `release` is called;
    - "answer": `answer` is all that comes back.
    """

    def __init__(self, port: int, *, latency: float = 0.0) -> None:
        self.latency = latency
        self.requests: list[Request] = []
        self.left_out = b""  # headers that begin so are not passed on
        self._to = port
        self._rules: list[_Rule] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> RequestProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def lose(
        self,
        match: str,
        trouble: Trouble,
        *,
        times: int = 1,
        answer: bytes = b"",
        meanwhile: Callable[[], object] | None = None,
    ) -> _Rule:
        rule = _Rule(match.encode(), trouble, times, answer, meanwhile)
        with self._lock:
            self._rules.append(rule)
        return rule

    def release(self, rule: _Rule) -> None:
        """Have a delayed request passed on, and wait for its answer."""
        rule.go.set()
        assert rule.gone.wait(20), "no request was held back"

    def forget(self) -> None:
        """Count from nothing."""
        with self._lock:
            self.requests.clear()

    def seen(self) -> list[str]:
        """The methods of the requests so far, in order of their coming."""
        with self._lock:
            return [request.method for request in sorted(self.requests, key=lambda request: request.begin)]

    def rounds(self) -> int:
        """How many requests there were that one had to wait for another: the longest chain of them in time."""
        last, count = 0.0, 0
        with self._lock:
            for request in sorted(self.requests, key=lambda request: request.end):
                if request.begin >= last:
                    last, count = request.end, count + 1
        return count

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            with self._lock:
                self._open |= {client, server}
            try:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                from_client, from_server = client.makefile("rb"), server.makefile("rb")
                with from_client, from_server:
                    while self._pass_on(client, from_client, server, from_server):
                        pass
            except OSError:
                pass
            finally:
                with self._lock:
                    self._open -= {client, server}

    def _pass_on(self, client: socket.socket, from_client, server: socket.socket, from_server) -> bool:  # type: ignore[no-untyped-def]
        head = _read_head(from_client)
        if not head:
            return False
        begin = time.monotonic()
        body = from_client.read(_length(head))
        rule = self._rule(head)
        if rule is not None:
            rule.met.set()
        if rule is not None and rule.trouble == "drop":
            return False
        if rule is not None and rule.trouble == "answer":
            client.sendall(rule.answer)
            return False
        if rule is not None and rule.trouble == "delay":
            # The client sees its connection go; makefile would keep the socket open.
            client.shutdown(socket.SHUT_RDWR)
            rule.go.wait()
        time.sleep(self.latency)
        if self.left_out:
            lines = head.split(b"\r\n")
            head = b"\r\n".join(line for line in lines if not line.lower().startswith(self.left_out))
        server.sendall(head + body)
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        answer = _read_head(from_server)
        if rule is not None:
            _read_body(from_server, answer, method)
            rule.gone.set()
            if rule.meanwhile is not None:
                rule.meanwhile()
            return False
        if not answer:
            return False
        answer += _read_body(from_server, answer, method)
        # Before the client hears of it, and may ask for what was seen.
        with self._lock:
            self.requests.append(Request(method, target, begin, time.monotonic()))
        client.sendall(answer)
        return True

    def _rule(self, head: bytes) -> _Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.left and rule.match in head:
                    rule.left -= 1
                    return rule
        return None


def _read_head(stream) -> bytes:  # type: ignore[no-untyped-def]
    lines = []
    while line := stream.readline():
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _read_body(stream, head: bytes, method: str) -> bytes:  # type: ignore[no-untyped-def]
    if method == "HEAD" or head.split(b" ")[1] in (b"204", b"304"):
        return b""
    if b"transfer-encoding: chunked" not in head.lower():
        return stream.read(_length(head))
    parts = []
    while True:
        size = stream.readline()
        data = stream.read(int(size, 16) + 2)
        parts += [size, data]
        if int(size, 16) == 0:
            return b"".join(parts)
