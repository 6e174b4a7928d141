"""A TCP proxy between a test and a real server: it adds latency, counts, and cuts connections at a chosen point."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Literal, Self

Direction = Literal["request", "reply"]


class Proxy:
    """Listens on `port` of 127.0.0.1 and forwards to a server.

    A point is a chunk of bytes on its way, in either direction, numbered from 1; `points` are their directions and
    the times at which they came. `cut(n)` resets the connection at the n-th point from now on: before the
    chunk is forwarded, or after it was. `down()` cuts all connections and takes no new ones until `up()`.
    `latency` is in seconds for a request and its reply together.
    """

    def __init__(self, host: str, port: int, *, latency: float = 0.0) -> None:
        self._server = (host, port)
        self.latency = latency
        self.points: list[tuple[Direction, float]] = []
        self.connections = 0
        self._cut_at: int | None = None
        self._after = False
        self._is_down = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, point: int, *, after: bool = False) -> None:
        """Cut at the point of this number, counted from now."""
        with self._lock:
            self.points.clear()
            self._cut_at, self._after = point, after

    def heal(self) -> int:
        """Cut nothing any more; how many points there were since the count began."""
        with self._lock:
            self._cut_at = None
            count = len(self.points)
            self.points.clear()
            return count

    def round_trips(self) -> int:
        """How many latencies the requests since the count began took one after the other: those that went out side
        by side count as one.
        """
        found, last = 0, float("-inf")
        for direction, moment in self.points:
            if direction == "request" and moment - last >= 0.8 * self.latency:
                found, last = found + 1, moment
        return found

    def down(self) -> None:
        """Be a server that is not there."""
        self._is_down = True
        self._reset_all()

    def up(self) -> None:
        """Forward again."""
        self._is_down = False

    def close(self) -> None:
        """End it, and every connection through it."""
        self._listener.close()
        self._reset_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_down:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._server, timeout=10)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._open |= {client, server}
            for source, target, direction in ((client, server, "request"), (server, client, "reply")):
                chunks: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                for work in (
                    lambda s=source, t=target, d=direction, c=chunks: self._read(s, t, d, c),
                    lambda s=source, t=target, c=chunks: self._write(s, t, c),
                ):
                    threading.Thread(target=work, daemon=True).start()

    def _read(
        self,
        source: socket.socket,
        target: socket.socket,
        direction: Direction,
        chunks: queue.SimpleQueue[tuple[float, bytes]],
    ) -> None:
        while True:
            try:
                chunk = source.recv(1 << 18)
            except OSError:
                chunk = b""
            if chunk:
                with self._lock:
                    self.points.append((direction, time.monotonic()))
                    is_cut = self._cut_at == len(self.points)
                if is_cut:
                    if self._after:
                        try:
                            target.sendall(chunk)
                            if direction == "request":
                                time.sleep(0.05)  # for the server to act on it
                        except OSError:
                            pass
                    self._drop(source, target)
                    return
            chunks.put((time.monotonic() + self.latency / 2, chunk))
            if not chunk:
                return

    def _write(
        self, source: socket.socket, target: socket.socket, chunks: queue.SimpleQueue[tuple[float, bytes]]
    ) -> None:
        while True:
            due, chunk = chunks.get()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            try:
                if not chunk:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(chunk)
            except OSError:
                self._drop(source, target)
                return

    def _drop(self, *ends: socket.socket) -> None:
        for end in ends:
            with self._lock:
                self._open.discard(end)
            _reset(end)

    def _reset_all(self) -> None:
        with self._lock:
            ends = list(self._open)
        self._drop(*ends)


def _reset(end: socket.socket) -> None:
    """Close it as a cable that is pulled would look: with a reset, not an orderly end."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()
