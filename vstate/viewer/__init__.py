"""The viewer: a history in a browser, and the same as a JSON API.

- No value is unpickled, and nothing in a store runs: values are read by `vstate.values.inert` alone.
- The store is opened for reading only, unless somebody asks for changes.
- Work and answers are bounded for hostile stores: pages, sizes, depth and time.
- `display` decides what a value looks like; the page only draws the description.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from vstate.kv.base import KVStore
from vstate.repo.repository import Repository

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["app"]


def app(
    store: KVStore | Repository,
    *,
    write: bool = False,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    cookie: str = "vstate",
) -> ASGIApp:
    """The viewer of a store as an ASGI application, with the JSON API under /api/v1.

    Mount it behind an application that decides who may see the store, since without `token` it asks nobody.
    With a token, a request needs it in the address, as a cookie or as a Bearer. `hosts` are the values of the
    header Host that it answers for, None for any. Without `write` it changes nothing. No value is unpickled.
    It needs Starlette: pip install '.[view]'.
    """
    from vstate.viewer.asgi import application  # late, as every package that is optional

    return application(store, write=write, token=token, hosts=hosts, cookie=cookie)
