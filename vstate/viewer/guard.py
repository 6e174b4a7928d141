"""Guard: who may ask the viewer, and the headers that keep a page from running anything of the store's."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from html import escape
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_READING: Final = frozenset({"GET", "HEAD"})


class Guard:
    """Lets a request pass that names one of `hosts`, comes from the viewer's own page, and has the token.

    The address with `?token=` sets a cookie, which holds for later requests; a program sends
    `Authorization: Bearer`. `hosts` are values of the header Host, None for any; without a `token` everybody
    passes: an application in front then has to ask who comes. All answers get the headers.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None = None,
        hosts: Collection[str] | None = None,
        cookie: str = "vstate",
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(scope)
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to a request that does not pass; None for one that does."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and host.lower() not in self._hosts:
            return _refused(421, f"this viewer does not answer for the host {host!r}")
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) != host.lower():
            return _refused(403, "a page of another site may not ask the viewer")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["method"] not in _READING:
            return _refused(403, "a page of another site may not change anything")
        if self._token is None:
            return None
        bearer = headers.get("authorization", "")
        if self._is_token(bearer.removeprefix("Bearer ")):
            return None
        if scope["method"] == "GET" and scope["path"].rstrip("/") == scope.get("root_path", "").rstrip("/"):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
            if self._is_token(given[0]):
                return self._signed_in(scope, headers)
        if self._is_token(cookie_parser(headers.get("cookie", "")).get(self._cookie, "")):
            if scope["method"] in _READING or origin is not None:
                return None
            return _refused(403, "a change needs the header Origin of this page, or the token as Bearer")
        return _refused(
            401, "open the address that was printed, or send its token as Authorization: Bearer TOKEN"
        )

    def _is_token(self, given: str) -> bool:
        assert self._token is not None
        return secrets.compare_digest(given.encode(), self._token.encode())

    def _signed_in(self, scope: Scope, headers: Headers) -> Response:
        assert self._token is not None
        root = scope.get("root_path", "").rstrip("/") + "/"
        response: Response
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            response = RedirectResponse(root, status_code=303)
        else:  # a link of another site: a browser would follow a redirect without the new cookie
            refresh = f'<meta http-equiv="refresh" content="0; url={escape(root)}">'
            response = HTMLResponse(f"<!doctype html><title>vstate</title>{refresh}")
        secure = scope.get("scheme") == "https"
        response.set_cookie(
            self._cookie, self._token, httponly=True, samesite="strict", path=root, secure=secure
        )
        return response


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _refused(status: int, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status_code=status)
