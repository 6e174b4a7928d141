"""Who may ask the viewer, and what it never does."""

from __future__ import annotations

import asyncio
import http.client
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from viewers import PICTURE, Viewer, running

from vstate import Disk, Memory, Versioned
from vstate.repo import Repository
from vstate.viewer.asgi import _Endpoints
from vstate.viewer.changing import Changing
from vstate.viewer.health import JOBS

pytestmark = pytest.mark.slow


def test_token(viewer: Viewer) -> None:
    """Without the token there is no answer; the address with it sets a cookie that scripts cannot read."""
    assert viewer.send("/api/v1/store")[0] == 401
    assert viewer.send("/")[0] == 401
    assert viewer.send("/static/main.js")[0] == 401
    assert viewer.send("/?token=wrong")[0] == 401
    assert viewer.send("/api/v1/store?token=" + viewer.token)[0] == 401
    status, headers, answer = viewer.send(f"/?token={viewer.token}")
    cookie = headers["set-cookie"]
    assert (status, headers["location"], answer) == (303, "/", b"")
    status, headers, answer = viewer.send(f"/?token={viewer.token}", Sec_Fetch_Site="cross-site")
    assert (status, headers["set-cookie"], viewer.token.encode() in answer) == (200, cookie, False)
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert viewer.send("/api/v1/store", Cookie=cookie.partition(";")[0])[0] == 200


def test_pictures_are_boxed_in(viewer: Viewer) -> None:
    """Bytes of a picture come as such, and opened by itself it runs nothing; other values never do."""
    bearer = f"Bearer {viewer.token}"
    status, headers, data = viewer.send("/api/v1/bytes?key=picture", Authorization=bearer)
    assert (status, headers["content-type"], data) == (200, "image/png", PICTURE)
    assert headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert viewer.ask("/bytes?key=notes")[0] == 404


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/api/v1/store", "GET", {"Origin": "https://evil.example"}, 403),
        ("/api/v1/store", "GET", {"Origin": "http://["}, 403),
        ("/api/v1/store", "GET", {"Host": "evil.example"}, 421),
        ("/api/v1/store", "GET", {"Origin": "BASE"}, 200),
        ("/api/v1/refs", "HEAD", {}, 200),
        ("/api/v1/refs", "HEAD", {"Authorization": ""}, 401),
        ("/api/v1/commits?limit=x", "GET", {}, 400),
        ("/api/v1/commits?first=-1", "GET", {}, 400),
        ("/api/v1/commits?first=" + "9" * 30, "GET", {}, 400),
        ("/api/v1/commits?rev=" + "a" * 20_000, "GET", {}, 400),
        ("/api/v1/nowhere", "GET", {}, 404),
        *(
            (path, method, {}, 405)
            for path in ("/", "/api/v1/refs", "/static/style.css")
            for method in ("OPTIONS", "PUT", "DELETE", "PATCH")
        ),
        *(
            (f"/static/{name}", "GET", {}, 404)
            for name in ("../openapi.json", "%2e%2e/openapi.json", "..%2fopenapi.json", "/etc/passwd")
        ),
    ],
)
def test_what_is_refused(
    viewer: Viewer, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    """Pages of other sites, other names of this machine, other methods and paths get nothing even with the
    token. Every answer forbids foreign scripts and frames, and none invites another site.
    """
    given = {"Authorization": f"Bearer {viewer.token}"} | headers
    given = {name: value.replace("BASE", viewer.base) for name, value in given.items()}
    connection = http.client.HTTPConnection(viewer.base.removeprefix("http://"), timeout=10)
    connection.request(method, path, headers=given)  # the path as it is
    answer = connection.getresponse()
    connection.close()
    assert answer.status == status
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; img-src")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not any(name.lower().startswith("access-control") for name in answer.headers)


def test_reading_only(viewer: Viewer) -> None:
    """Without --write every address of a change says how to start a viewer that takes it."""
    paths = Changing(Repository(Memory())).changes
    assert {"/branches", "/merge", "/edit", "/undo"} <= set(paths)
    for path in paths:
        status, answer = viewer.ask(path, {"name": "new", "at": "HEAD"})
        assert status == 403
        assert "started read-only" in answer["error"]
        assert "vstate view --write" in answer["error"]
    assert viewer.ask("/refs", {})[0] == 405
    assert viewer.ask("/nowhere", {})[0] == 404
    assert {ref["name"] for ref in viewer.get("/refs")["branches"]} == {"main", "other"}


def test_other_machines(small: Path) -> None:
    """An address that other machines reach is refused unless a server in front encrypts."""
    command = [sys.executable, "-m", "vstate_cli", "view", str(small), "--host", "0.0.0.0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 1
    assert "--behind-tls" in result.stderr


def test_changes_need_the_page(writer: Viewer, tmp_path: Path) -> None:
    """A change needs the token and comes from the page itself, and only onto the commit that the page saw."""
    cookie = writer.send(f"/?token={writer.token}")[1]["set-cookie"].partition(";")[0]
    body = {"name": "new", "at": "HEAD"}
    assert writer.send("/api/v1/branches", body, Cookie=cookie)[0] == 403
    assert writer.send("/api/v1/branches", body, Cookie=cookie, Origin="null")[0] == 403
    given = {"Cookie": cookie, "Origin": writer.base}
    assert writer.send("/api/v1/branches", body, **given, Content_Type="text/plain")[0] == 415
    assert writer.send("/api/v1/branches", body, **given)[0] == 200
    seen = writer.get("/commits/HEAD")["id"]
    with Versioned(Disk(tmp_path / "store")) as state:
        state["new"] = 1
        state.commit("meanwhile")
    status, answer = writer.ask("/rollback", {"branch": "main", "rev": "v1", "seen": seen})
    assert status == 409
    assert "moved" in answer["error"]


def test_ctrl_c(small: Path) -> None:
    """Ctrl-C ends the viewer soon and without an error, also while a page waits for new commits."""
    with running(small) as (viewer, process):
        request = urllib.request.Request(
            f"{viewer.base}/api/v1/events", headers={"Authorization": f"Bearer {viewer.token}"}
        )
        with urllib.request.urlopen(request, timeout=20) as events:
            assert events.readline() == b"event: refs\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""


@pytest.mark.parametrize("name", JOBS)
def test_long_work_ends_with_the_viewer(name: str) -> None:
    """A check or a gc that runs when the viewer ends says so, and goes no further."""
    state = Versioned()
    state["k"] = 1
    state.commit()
    endpoints = _Endpoints(state.repo, write=False, ending=lambda: True)

    async def told() -> list[str]:
        return [event async for event in endpoints._work(JOBS[name])]

    with ThreadPoolExecutor(1) as pool:  # in this thread, a browser may have its own loop
        found = pool.submit(asyncio.run, told()).result()
    assert found == ['event: failed\ndata: {"error": "the viewer has ended"}\n\n']
