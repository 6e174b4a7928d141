"""The application: paths and the functions that answer them, as an ASGI app."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from vstate.errors import (
    AlreadyExists,
    Conflict,
    CorruptObject,
    CorruptStore,
    InvalidInput,
    NotFound,
    StorageError,
    StoreFull,
    UnsupportedFormat,
    UntrustedCommit,
    VStateError,
)
from vstate.kv.base import KVStore
from vstate.kv.wrapper import ReadOnly as ReadOnlyStore
from vstate.repo.repository import Repository
from vstate.values.budget import InertError
from vstate.viewer.changing import Body, Changing
from vstate.viewer.guard import Guard
from vstate.viewer.health import JOBS
from vstate.viewer.listing import Gone
from vstate.viewer.page import STATIC, joined_script, read_static
from vstate.viewer.parameters import Parameters
from vstate.viewer.reading import Reading, refs_state

API: Final = "/api/v1"
OPENAPI: Final = Path(__file__).with_name("openapi.json")
_log: Final = logging.getLogger(__name__)
_LOOK_EVERY: Final = 0.4  # seconds
_ALIVE_EVERY: Final = 15.0
_LONGEST_BODY: Final = 2_000_000  # bytes


def application(
    store: KVStore | Repository,
    *,
    write: bool = False,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    cookie: str = "vstate",
    ending: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """As `vstate.viewer.app` promises. Answers that go on for ever end once `ending` gives true."""
    repo = store if isinstance(store, Repository) else Repository(store if write else ReadOnlyStore(store))
    endpoints = _Endpoints(repo, write=write, ending=ending)
    starlette = Starlette(
        routes=endpoints.routes(),
        middleware=[Middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)],
        exception_handlers={
            VStateError: _failed,
            404: lambda *_: _json({"error": "no such address"}, 404),
            405: lambda *_: _json({"error": "this address has no such method"}, 405),
        },
    )
    return Guard(starlette, token=token, hosts=hosts, cookie=cookie)


class _Endpoints:
    """The functions that answer requests, by address. Starlette runs those without async in threads."""

    def __init__(self, repo: Repository, *, write: bool, ending: Callable[[], bool]) -> None:
        self._repo = repo
        self._write = write
        self._ending = ending
        self._reading = Reading(repo, write=write)
        self._changing = Changing(repo)
        self._html = read_static("index.html")

    def routes(self) -> list[BaseRoute]:
        change = self._change if self._write else _refuse_change
        answers = self._reading.answers.items()
        return [
            *(Route(API + path, partial(change, path), methods=["POST"]) for path in self._changing.changes),
            *(Route(API + path, partial(self._answer, function)) for path, function in answers),
            Route(API + "/commits/{rev:path}", self._commit),
            Route(API + "/bytes", self._picture),
            Route(API + "/events", lambda _: _stream(self._events())),
            *(Route(f"{API}/{name}", partial(self._job, function)) for name, function in JOBS.items()),
            Route(API + "/openapi.json", lambda _: FileResponse(OPENAPI, media_type="application/json")),
            Route("/", self._page),
            Route("/static/page.js", lambda _: Response(joined_script("main"), media_type="text/javascript")),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def _answer(self, function: Callable[[Parameters], Any], request: Request) -> Response:
        return _json(function(self._given(request)))

    def _commit(self, request: Request) -> Response:
        return _json(self._reading.commit(request.path_params["rev"]))

    def _picture(self, request: Request) -> Response:
        media, data = self._reading.picture(self._given(request))
        headers = {"Content-Security-Policy": "sandbox; default-src 'none'"}
        return Response(data, media_type=media, headers=headers)

    def _given(self, request: Request) -> Parameters:
        return Parameters(request.query_params, self._reading.shown)

    def _page(self, request: Request) -> Response:
        """The page, with the state of the refs before its requests: at any other state it repeats them."""
        try:
            state = refs_state(self._repo)
        except VStateError:  # the answers tell why
            state = ""
        return HTMLResponse(self._html.replace('content=""', f'content="{state}"'))

    async def _change(self, path: str, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _json({"error": "a change is sent as application/json"}, 415)
        sent = bytearray()
        async for piece in request.stream():
            sent += piece
            if len(sent) > _LONGEST_BODY:
                return _json({"error": f"a change has at most {_LONGEST_BODY:,} bytes"}, 413)
        try:
            members = json.loads(sent)
        except (ValueError, RecursionError):
            return _json({"error": "the body of the request is no JSON"}, 400)
        return _json(await run_in_threadpool(self._changing.carry_out, path, Body(members)))

    async def _events(self) -> AsyncIterator[str]:
        """An event for each change of the refs."""
        seen, told = "", time.monotonic()
        while not self._ending():
            began = time.monotonic()
            try:
                event = _event("refs", {"state": await run_in_threadpool(refs_state, self._repo)})
            except VStateError as error:  # the next look may succeed
                event = _event("lost", {"error": str(error)})
            if event != seen or time.monotonic() - told > _ALIVE_EVERY:
                yield event if event != seen else ": alive\n\n"
                seen, told = event, time.monotonic()
            # A store with many refs is not looked at all the time.
            await asyncio.sleep(max(_LOOK_EVERY, 10 * (time.monotonic() - began)))

    def _job(self, function: Callable[..., Any], request: Request) -> Response:
        return _stream(self._work(function))

    async def _work(self, function: Callable[..., Any]) -> AsyncIterator[str]:
        """Do long work, with events of its progress, and one of its result."""
        loop, told = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()
        is_over = False

        def tell(kind: str, data: Any) -> None:
            loop.call_soon_threadsafe(told.put_nowait, (kind, data))

        def progress(step: str, count: int) -> None:
            if is_over or self._ending():
                raise _Left
            tell("progress", {"step": step, "count": count})

        def run() -> None:
            try:
                tell("result", function(self._repo, progress))
            except _Left:
                tell("failed", {"error": "the viewer has ended"})
            except VStateError as error:
                tell("failed", {"error": str(error)})
            except Exception as error:
                tell("failed", {"error": type(error).__name__})
                raise

        running = asyncio.create_task(run_in_threadpool(run))
        try:
            kind = ""
            while kind not in ("result", "failed"):
                kind, data = await told.get()
                yield _event(kind, data)
            await running
        finally:
            is_over = True


async def _refuse_change(path: str, request: Request) -> Response:
    reason = (
        "this viewer was started read-only; to change the store, start it with `vstate view --write`, or "
    )
    return _json({"error": reason + "in a program with app(store, write=True)"}, 403)


class _Left(Exception):
    """Nobody waits for the result any more."""


def _event(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def _stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


def _json(answer: Any, status: int = 200) -> Response:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Lone surrogates, which a pickle may hold, are no UTF-8.
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")


def _failed(request: Request, error: Exception) -> Response:
    """The error of a request as JSON, with the status that tells a program what to do."""
    if isinstance(error, StorageError):
        _log.warning("%s: %s", request.url.path, error)
    return _json({"error": str(error)}, status_of(error))


_STATUSES: Final = (
    (Gone, 410),
    (NotFound, 404),
    (Conflict, 409),
    (AlreadyExists, 409),
    (UntrustedCommit, 403),
    (InvalidInput, 400),
    (InertError, 422),
    (CorruptObject, 422),
    (CorruptStore, 422),
    (UnsupportedFormat, 422),
    (StoreFull, 507),
    (StorageError, 503),
)


def status_of(error: Exception) -> int:
    """The HTTP status for an error of vstate."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 400)
