"""The application: paths and the functions that answer them, as an ASGI app."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
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
from vstate.kv.readonly import ReadOnly as ReadOnlyStore
from vstate.repo.repository import Repository
from vstate.values.inert import InertError
from vstate.viewer.changing import Body, Changing
from vstate.viewer.guard import Guard
from vstate.viewer.health import JOBS
from vstate.viewer.listing import Gone
from vstate.viewer.page import STATIC, joined_script, read_static
from vstate.viewer.parameters import Parameters
from vstate.viewer.reading import Reading, refs_state

__all__ = ["API", "application"]

API: Final = "/api/v1"
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
    reading = Reading(repo, write=write)
    shown = reading.shown
    changing = Changing(repo)
    changes = changing.changes if write else ()
    routes = [
        *(Route(API + path, _changing(changing, path), methods=["POST"]) for path in changes),
        *(Route(API + path, _answering(function, shown)) for path, function in reading.answers.items()),
        Route(API + "/commits/{rev:path}", _answering(lambda rev: reading.commit(rev), shown, "rev")),
        Route(API + "/bytes", _picture(reading)),
        Route(API + "/events", _events(repo, ending)),
        *(Route(f"{API}/{name}", _job(function, repo, ending)) for name, function in JOBS.items()),
        Route(API + "/openapi.json", _openapi),
        Route("/", _page(repo)),
        Route("/static/page.js", _script),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    starlette = Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, minimum_size=2000, compresslevel=3)],
        exception_handlers={
            VStateError: _failed,
            404: lambda *_: _json({"error": "no such address"}, 404),
            405: lambda *_: _json({"error": "this address has no such method"}, 405),
        },
    )
    return Guard(starlette, token=token, hosts=hosts, cookie=cookie)


def _answering(function: Callable[..., Any], repo: Repository, name: str = "") -> Callable[[Request], Any]:
    """The endpoint that answers with the result of `function`: of the query, or of a part of the path."""

    def endpoint(request: Request) -> Response:
        given = request.path_params[name] if name else Parameters(request.query_params, repo)
        return _json(function(given))

    return endpoint


def _picture(reading: Reading) -> Callable[[Request], Any]:
    def endpoint(request: Request) -> Response:
        media, data = reading.picture(Parameters(request.query_params, reading.shown))
        return Response(
            data, media_type=media, headers={"Content-Security-Policy": "sandbox; default-src 'none'"}
        )

    return endpoint


def _page(repo: Repository) -> Callable[[Request], Any]:
    """The page, with the state of the refs from before its requests. It repeats them at any other state."""
    html = read_static("index.html")

    def endpoint(_: Request) -> Response:
        try:
            state = refs_state(repo)
        except VStateError:  # the answers tell why
            state = ""
        return HTMLResponse(html.replace('content=""', f'content="{state}"'))

    return endpoint


def _script(request: Request) -> Response:
    return Response(joined_script("main"), media_type="text/javascript")


def _openapi(request: Request) -> Response:
    return FileResponse(Path(__file__).with_name("openapi.json"), media_type="application/json")


def _events(repo: Repository, ending: Callable[[], bool]) -> Callable[[Request], Any]:
    """Tells of each change of the refs as a server-sent event."""

    async def changes() -> AsyncIterator[str]:
        seen, told = "", time.monotonic()
        while not ending():
            began = time.monotonic()
            try:
                event, data = "refs", json.dumps({"state": await run_in_threadpool(refs_state, repo)})
            except VStateError as error:  # the next look may succeed
                event, data = "lost", json.dumps({"error": str(error)})
            if data != seen:
                seen, told = data, time.monotonic()
                yield f"event: {event}\ndata: {data}\n\n"
            elif time.monotonic() - told > _ALIVE_EVERY:
                told = time.monotonic()
                yield ": alive\n\n"
            # A store with many refs is not looked at all the time.
            await asyncio.sleep(max(_LOOK_EVERY, 10 * (time.monotonic() - began)))

    async def endpoint(_: Request) -> Response:
        return StreamingResponse(changes(), media_type="text/event-stream")

    return endpoint


def _job(
    function: Callable[..., Any], repo: Repository, ending: Callable[[], bool]
) -> Callable[[Request], Any]:
    """Does long work, and tells of its progress and of its result as server-sent events."""

    async def work() -> AsyncIterator[str]:
        loop, told = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()
        is_over = False

        def progress(step: str, count: int) -> None:
            if is_over or ending():
                raise _Left
            loop.call_soon_threadsafe(told.put_nowait, ("progress", {"step": step, "count": count}))

        def run() -> None:
            try:
                found = ("result", function(repo, progress))
            except _Left:
                found = ("failed", {"error": "the viewer has ended"})
            except VStateError as error:
                found = ("failed", {"error": str(error)})
            except Exception as error:
                loop.call_soon_threadsafe(told.put_nowait, ("failed", {"error": type(error).__name__}))
                raise
            loop.call_soon_threadsafe(told.put_nowait, found)

        running = asyncio.create_task(run_in_threadpool(run))
        try:
            kind = ""
            while kind not in ("result", "failed"):
                kind, data = await told.get()
                yield f"event: {kind}\ndata: {json.dumps(data)}\n\n"
            await running
        finally:
            is_over = True

    async def endpoint(_: Request) -> Response:
        return StreamingResponse(work(), media_type="text/event-stream")

    return endpoint


class _Left(Exception):
    """Nobody waits for the result any more."""


def _changing(changing: Changing, path: str) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
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
        return _json(await run_in_threadpool(changing.carry_out, path, Body(members)))

    return endpoint


def _json(answer: Any, status: int = 200) -> Response:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Lone surrogates, which a pickle may hold, are no UTF-8.
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")


def _failed(request: Request, error: Exception) -> Response:
    """The error of a request as JSON, with the status that tells a program what to do."""
    if isinstance(error, StorageError):
        _log.warning("%s: %s", request.url.path, error)
    return _json({"error": str(error)}, status_of(error))


def status_of(error: Exception) -> int:
    """The HTTP status for an error of vstate."""
    for kind, status in (
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
    ):
        if isinstance(error, kind):
            return status
    return 400
