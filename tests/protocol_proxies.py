"""Proxies that understand a protocol: HTTP, Redis or PostgreSQL."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import BinaryIO, Literal

from proxy import Connect, Connections, Proxy, Side, reset

Trouble = Literal["drop", "swallow", "delay", "answer"]

EARLY = 0.05
"""Seconds to wait for a request that came too early, before the answers of the round before."""


# HTTP


@dataclass
class Rule:
    """The trouble of the next matching requests."""

    match: bytes
    trouble: Trouble
    left: int
    answer: bytes
    meanwhile: Callable[[], object]
    met: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)


@dataclass
class Round:
    """The requests of one round trip. None is passed on before all of them have come."""

    size: int
    came: int = 0
    answered: int = 0
    complete: threading.Event = field(default_factory=threading.Event)


class RequestProxy(Connections):
    """Passes on HTTP/1.1.

    `lose` makes trouble for the next requests whose head holds `match`, and calls `meanwhile` before the
    client hears of it:

    - "drop": the request is not passed on, and the connection is cut;
    - "swallow": the request is passed on, and the connection is cut before its answer;
    - "delay": the connection is cut at once, and the request passed on when `release` is called;
    - "answer": the client only gets `answer`, and the connection is closed with notice.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.methods: list[str] = []
        self.left_out = b""  # do not pass on headers that begin so
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._rules: list[Rule] = []
        self._rounds: list[Round] = []
        self._troubles: list[str] = []

    def lose(
        self,
        match: str,
        trouble: Trouble,
        *,
        times: int = 1,
        answer: bytes = b"",
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Rule:
        # Without the notice the client would keep the connection, and lose its next request on it.
        answer = answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        rule = Rule(match.encode(), trouble, times, answer, meanwhile)
        with self.lock:
            self._rules.append(rule)
        return rule

    def release(self, rule: Rule) -> None:
        """Pass on a delayed request, and wait for its answer."""
        rule.go.set()
        assert rule.gone.wait(60), "no request was held back"

    @contextmanager
    def rounds(self, *sizes: int) -> Iterator[None]:
        """Fail unless the client makes exactly these round trips, with this many requests at a time in each.

        The proxy keeps the requests of a round until all have come. So only requests side by side pass, and
        the late threads of a busy machine change nothing.
        """
        self.methods.clear()
        self._troubles.clear()
        self._rounds = rounds = [Round(size) for size in sizes]
        try:
            yield
        finally:
            self._rounds = []
        assert not self._troubles, self._troubles
        assert [round.came for round in rounds] == list(sizes)

    def serve(self, client: socket.socket, connect: Connect) -> None:
        server = connect()
        with client.makefile("rb") as from_client, server.makefile("rb") as from_server:
            while head := _read_head(from_client):
                request = head + from_client.read(_length(head))
                rule = self._rule(head)
                if rule is not None and not self._goes_on(rule, client):
                    return
                method = head.partition(b" ")[0].decode()
                round = self._enter_round(method)
                server.sendall(self._without_some(request))
                answer = _read_answer(from_server, method)
                if rule is not None:
                    rule.gone.set()
                    rule.meanwhile()
                    reset(client, server)
                    return
                if round is not None:
                    round.answered += 1
                client.sendall(answer)

    def _enter_round(self, method: str) -> Round | None:
        """Wait until all requests of this request's round have come.

        Returns None if no rounds are counted.
        """
        with self.lock:
            self.methods.append(method)
            if not self._rounds:
                return None
            number = next((n for n, round in enumerate(self._rounds) if round.came < round.size), None)
            if number is None:
                self._troubles.append(f"{method} came after the last round")
                return None
            round = self._rounds[number]
            if number and not self._rounds[number - 1].answered:
                self._troubles.append(f"{method} of round {number} came before an answer of the round before")
            round.came += 1
            last = round.came == round.size
        if last:
            time.sleep(EARLY)
            round.complete.set()
        elif not round.complete.wait(60):
            self._troubles.append(
                f"{method} of round {number} waited in vain for {round.size - round.came} more"
            )
        return round

    def _rule(self, head: bytes) -> Rule | None:
        with self.lock:
            for rule in self._rules:
                if rule.left and rule.match in head:
                    rule.left -= 1
                    rule.met.set()
                    return rule
        return None

    def _goes_on(self, rule: Rule, client: socket.socket) -> bool:
        """Whether the request is passed on in spite of the rule, at once or later."""
        if rule.trouble == "swallow":
            return True
        if rule.trouble == "delay":
            reset(client)
            while not rule.go.wait(0.05) and not self.ended.is_set():
                pass
            return rule.go.is_set()
        rule.meanwhile()
        if rule.trouble == "drop":
            reset(client)
        else:
            client.sendall(rule.answer)
        return False

    def _without_some(self, request: bytes) -> bytes:
        if not self.left_out:
            return request
        head, end, body = request.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(self.left_out)]
        return b"\r\n".join(lines) + end + body


def _read_head(stream: BinaryIO) -> bytes:
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


def _read_answer(stream: BinaryIO, method: str) -> bytes:
    head = _read_head(stream)
    if not head:
        raise EOFError
    if method == "HEAD" or head.split(b" ")[1] in (b"204", b"304"):
        return head
    if b"transfer-encoding: chunked" not in head.lower():
        return head + stream.read(_length(head))
    parts, size = [head], -1
    while size:
        line = stream.readline()
        size = int(line, 16)
        parts += [line, stream.read(size + 2)]
    return b"".join(parts)


# Redis


@dataclass
class Cut:
    """Whether the proxy made the cut."""

    made: bool = False


def at_request(proxy: Proxy, point: str, number: int = 1, match: bytes = b"") -> Cut:
    """Cut the connection of one request: of request `number`, from 1, among those that hold `match`.

    The cut comes "before" the request is passed on, "half" way through it, before its "reply", or half way
    through the reply, "torn". "hold" keeps the request until `proxy.release()`.
    """
    cut, left, replying = Cut(), number, False

    def watch(side: Side, data: bytes) -> str:
        nonlocal left, replying
        if side == "server" and replying:
            replying, cut.made = False, True
            return "half" if point == "torn" else "cut"
        if side == "server" or not left or match not in data:
            return "pass"
        left -= 1
        if left:
            return "pass"
        if point in ("reply", "torn"):
            replying = True
            return "pass"
        cut.made = True
        return "cut" if point == "before" else point

    proxy.watch = watch
    return cut


# PostgreSQL


def at_commit(proxy: Proxy, done: bool, times: int = 1) -> None:
    """Cut the next `times` connections that commit, after the server has committed if `done`, otherwise
    before.
    """
    left = times
    armed = False

    def watch(side: Side, data: bytes) -> str:
        nonlocal left, armed
        if side == "client" and b"COMMIT\0" in data and left:
            left -= 1
            armed = done
            return "pass" if done else "cut"
        if side == "server" and armed:
            armed = False
            return "cut"
        return "pass"

    proxy.watch = watch


class Pooler(Connections):
    """A pooler like PgBouncer in "transaction" mode. Roles must need no password.

    Each transaction of a client takes the next of two connections to the server. As PgBouncer, it tells the
    client another process than the server's.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.transactions = [0, 0]
        self._turns = count()

    def serve(self, client: socket.socket, connect: Connect) -> None:
        startup = _startup(client)
        servers = [connect(), connect()]
        for server in servers:
            server.sendall(startup)
            greeting = list(_messages(server, until=b"Z"))
        key = struct.pack("!ciii", b"K", 12, 1, 1)
        client.sendall(b"".join(key if message[:1] == b"K" else message for message in greeting))
        while True:
            turn = next(self._turns) % 2
            self.transactions[turn] += 1
            state = b""
            while state != b"I":
                for message in _messages(client, until=b"SQ"):
                    servers[turn].sendall(message)
                for message in _messages(servers[turn], until=b"Z"):
                    client.sendall(message)
                    state = message[5:6]


def _startup(client: socket.socket) -> bytes:
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack("!ii", head)
        rest = _exactly(client, length - 8)
        if code in (80877103, 80877104):  # the client asks for TLS or GSS
            client.sendall(b"N")
            continue
        return head + rest


def _messages(end: socket.socket, *, until: bytes) -> Iterator[bytes]:
    """The messages up to one of these kinds: a server's "ready", a client's "sync" or "query"."""
    kind = b""
    while not kind or kind not in until:
        kind = _exactly(end, 1)
        if kind == b"X":  # the client closes the connection
            raise EOFError
        length = _exactly(end, 4)
        yield kind + length + _exactly(end, struct.unpack("!i", length)[0] - 4)


def _exactly(end: socket.socket, wanted: int) -> bytes:
    data = b""
    while len(data) < wanted:
        piece = end.recv(wanted - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
