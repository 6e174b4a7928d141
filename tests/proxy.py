"""Proxies between a store and a real server. They count, delay and cut.

`Connections` accepts, serves and cuts connections. `Proxy` passes on bytes of any protocol. protocol_proxies
has proxies that understand a protocol.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Literal, Self

_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost)(:|%3A)(\d+)")

Connect = Callable[[], socket.socket]
Side = Literal["client", "server"]
Watch = Callable[[Side, bytes], str]


class Connections:
    """Listens on `port` of 127.0.0.1, in front of the server at another port. Use it with `with`.

    A subclass writes `serve`. `latency` is in seconds, for a request and its reply together. While `refusing`
    is set, new connections are cut at once.
    """

    def __init__(self, port: int, *, latency: float = 0.0) -> None:
        self.latency = latency
        self.refusing = False
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self._server = ("127.0.0.1", port)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    @classmethod
    def before(cls, url: str) -> Self:
        """A proxy in front of the server of this URL or DSN."""
        found = _ADDRESS.search(url)
        assert found is not None, "the server is on another machine"
        return cls(int(found[2]))

    def through(self, url: str) -> str:
        """The URL or DSN that goes through this proxy."""
        return _ADDRESS.sub(rf"127.0.0.1\g<1>{self.port}", url, count=1)

    def serve(self, client: socket.socket, connect: Connect) -> None:
        """Serve a client until it leaves. `connect` opens connections to the server, which are closed at the
        end.

        An OSError or EOFError also ends serving.
        """
        raise NotImplementedError

    def down(self) -> None:
        """Act as a server that is down: cut all connections, and refuse new ones until `up()`."""
        self.refusing = True
        self.cut_all()

    def cut_all(self) -> None:
        """Cut all open connections."""
        with self.lock:
            reset(*self._open)

    def up(self) -> None:
        """Serve again."""
        self.refusing = False

    def close(self) -> None:
        """End the proxy and all its connections."""
        if self.ended.is_set():
            return
        self.ended.set()
        # Closing alone does not wake a thread that waits for connections.
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._threads[0].join()
        self._listener.close()
        self.down()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except ConnectionAbortedError:  # the client gave up while it waited
                continue
            if self.ended.is_set():
                client.close()
                return
            self._run(lambda client=client: self._serve(client))  # type: ignore[misc]

    def _serve(self, client: socket.socket) -> None:
        with ExitStack() as ends:
            try:
                self._keep(ends, client)
                self.serve(
                    client, lambda: self._keep(ends, socket.create_connection(self._server, timeout=60))
                )
            except (OSError, EOFError):
                reset(client)

    def _keep(self, ends: ExitStack, end: socket.socket) -> socket.socket:
        """Cut this connection with all others, and close it in the end."""
        ends.enter_context(end)
        ends.callback(self._open.discard, end)
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.lock:
            self._open.add(end)
            if self.refusing:
                raise OSError("it is down")
        return end


def reset(*ends: socket.socket) -> None:
    """Cut the connections like a pulled cable: closing them now resets them."""
    for end in ends:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RDWR)


FAR = 0.1
"""A latency in seconds that is longer than a client takes to send a request, on a busy machine too."""


class Proxy(Connections):
    """Passes on pieces of bytes. `watch` decides about each piece, given its side:

    - "pass": the piece is passed on;
    - "cut": the connection is cut instead; after "half" or the "whole" of the piece it is cut too;
    - "freeze": the connection stays open, and nothing more is passed on;
    - "hold": the sender is cut off, and the piece is passed on when `release` is called.

    `points` are the pieces so far, by side and time. `round_trips` counts the times that a client sent
    something after an answer had reached it. With a latency of `FAR` it counts the times that the client
    waited.
    """

    def __init__(self, port: int, *, latency: float = 0.0) -> None:
        super().__init__(port, latency=latency)
        self.points: list[tuple[Side, float]] = []
        self.round_trips = 0
        self.watch: Watch = lambda side, data: "pass"
        self._released, self._answered = threading.Event(), threading.Event()

    def cut(self, point: int, *, after: bool = False) -> None:
        """Count from zero, and cut at the piece of this number, from 1: before it is passed
        on, or `after`.
        """
        self.points.clear()
        verdict = "whole" if after else "cut"
        self.watch = lambda side, data: verdict if len(self.points) == point else "pass"

    def heal(self) -> int:
        """Stop cutting. Returns the number of points since the count began, and starts a new count."""
        with self.lock:
            self.watch = lambda side, data: "pass"
            count = len(self.points)
            self.points.clear()
            return count

    def release(self) -> None:
        """Pass on the piece that was held, and wait for its reply, which no client gets."""
        self._released.set()
        assert self._answered.wait(60), "nothing was held back, or it got no reply"
        self._released.clear()
        self._answered.clear()

    def rounds(self) -> int:
        """The latencies that the requests since the count began took in sequence.

        Requests side by side count once.
        """
        found, last = 0, float("-inf")
        for side, moment in list(self.points):
            if side == "client" and moment - last >= 0.8 * self.latency:
                found, last = found + 1, moment
        return found

    def serve(self, client: socket.socket, connect: Connect) -> None:
        server = connect()
        others = {client: server, server: client}
        # Pieces on their way to each end. A piece that waits for its time or for room delays nothing else.
        coming: dict[socket.socket, deque[tuple[float, bytes]]] = {client: deque(), server: deque()}
        sources = [client, server]
        answered = True  # all requests so far were answered, and the answers have arrived
        for end in sources:
            end.setblocking(False)
        while sources or any(coming.values()):
            waits = [pieces[0][0] - time.monotonic() for pieces in coming.values() if pieces]
            ready = [end for end, pieces in coming.items() if pieces and pieces[0][0] <= time.monotonic()]
            later = [wait for wait in waits if wait > 0]
            readable, writable, _ = select.select(sources, ready, [], min(later, default=None))
            for end in writable:
                due, data = coming[end].popleft()
                answered = answered or end is client
                if rest := data[end.send(data) :]:
                    coming[end].appendleft((due, rest))
            for end in readable:
                data = end.recv(1 << 16)
                if not data:
                    sources = []  # pieces on their way still arrive
                    break
                side: Side = "client" if end is client else "server"
                with self.lock:
                    self.points.append((side, time.monotonic()))
                    self.round_trips += end is client and answered
                    verdict = self.watch(side, data)
                answered = answered and end is not client
                coming[others[end]].append((time.monotonic() + self.latency / 2, data))
                if verdict != "pass":
                    self._make_trouble(
                        verdict, end, others[end], [data for _, data in coming[others[end]]], side
                    )
                    reset(client, server)
                    return

    def _make_trouble(
        self, verdict: str, source: socket.socket, target: socket.socket, pieces: list[bytes], side: Side
    ) -> None:
        if verdict == "freeze":
            self.ended.wait()
            return
        if verdict == "hold":
            reset(source)
            while not self._released.wait(0.01):
                if self.ended.is_set():
                    return
            target.settimeout(60)
            target.sendall(b"".join(pieces))
            if target.recv(1):
                self._answered.set()
            return
        *before, last = pieces
        passed = {"cut": b"", "half": last[: len(last) // 2], "whole": last}[verdict]
        target.setblocking(True)
        target.sendall(b"".join([*before, passed]))
        if passed and side == "client":
            time.sleep(0.05)  # gives the server time to act on the piece
