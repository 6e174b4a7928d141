"""A viewer that serves, in a thread or as a command, and requests to it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import jmespath
import uvicorn

from vstate import open_store
from vstate.viewer.asgi import application
from vstate.viewer.server import serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763f8cfc000000301010018dd8db00000000049454e44ae426082"
)
"""A PNG of one red pixel."""


@dataclass
class Viewer:
    """A viewer, and requests to it. `end` ends it."""

    url: str
    end: Callable[[], None]

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    @property
    def base(self) -> str:
        return self.url.partition("/?")[0]

    def send(
        self, path: str, body: object = None, *, method: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of an answer."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(self.base + path, data=data, headers=given, method=method)
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the JSON of an answer below /api/v1."""
        status, _, data = self.send(f"/api/v1{path}", body, Authorization=f"Bearer {self.token}")
        return status, json.loads(data)

    def get(self, path: str) -> Any:
        """The JSON of a good answer below /api/v1."""
        status, answer = self.ask(path)
        assert status == 200, answer
        return answer

    def rows(self, rows: str) -> None:
        """Ask each row `PATH ? QUERY -> JSON`, and compare what the JMESPath query finds in the answer.

        `PATH -> STATUS` is a request that fails. A row that begins with `->` or `...` goes on with the last.
        """
        for row in re.sub(r"\n\s*(->|\.\.\.)", r" \1", rows).replace(" ...", " ").splitlines():
            if not (row := row.strip()):
                continue
            asked, _, expected = row.partition(" -> ")
            path, _, query = asked.partition(" ? ")
            status, answer = self.ask(path)
            found = jmespath.search(query, answer) if query else status
            assert found == json.loads(expected), f"{row}\n{json.dumps(found)}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@contextmanager
def viewing(store: Path, *, write: bool = False) -> Iterator[Viewer]:
    """The viewer that `vstate view` runs, in a thread."""
    servers: list[uvicorn.Server] = []
    urls: Queue[str] = Queue()

    class Server(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    def end() -> None:
        servers[0].should_exit = True
        thread.join(20)

    with open_store(store, create=False) as opened:
        make = partial(application, opened, write=write)
        options = {"ready": lambda address, token: urls.put(f"{address}/?token={token}")}
        thread = threading.Thread(target=serve, args=(make,), kwargs=options)
        with patch.object(uvicorn, "Server", Server):
            thread.start()
            url = urls.get(timeout=20)
        try:
            yield Viewer(url, end)
        finally:
            end()


@contextmanager
def running(store: Path) -> Iterator[tuple[Viewer, subprocess.Popen[str]]]:
    """`vstate view` on a store, in a process of its own."""
    command = [sys.executable, "-m", "vstate_cli", "view", str(store), "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout is not None
            yield Viewer(json.loads(process.stdout.readline())["url"], process.terminate), process
        finally:
            process.terminate()


Serve = Callable[..., Viewer]
"""The fixture that starts a viewer of the test's own store."""

Look = Callable[..., "Page"]
"""The fixture that opens a page of a viewer."""
