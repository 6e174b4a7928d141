"""Connection: open the store to exchange commits with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

from vstate.errors import NotFound
from vstate.kv.base import KVStore
from vstate.kv.url import open_store
from vstate.repo.core import Core
from vstate.repo.names.refs import HEADS
from vstate.repo.names.remotes import ORIGIN, Remotes, check_stays, expanded, is_remote_name
from vstate.similar import similar


@contextmanager
def connected(
    repo: Core,
    place: Core | KVStore | str | PathLike[str] | None,
    *,
    create: bool | None = None,
) -> Iterator[tuple[Core, str | None]]:
    """The core of another store, and the name of its remote if it has one here.

    `place` is that core, its store, the name of a remote, a path or URL, or None for the default remote. A
    store that is opened here is closed again. NotFound if there is no store, unless `create` allows a new
    one. If `create` is False, not None, the error suggests it.
    """
    if isinstance(place, Core):
        yield place, None
        return
    if isinstance(place, KVStore):
        yield Core(place), None
        return
    remotes = Remotes(repo.store)
    name = remotes.default() if place is None else os.fspath(place)
    url = remotes.url(name)
    if url is None:
        check_stays(name)
    try:
        store = open_store(expanded(name if url is None else url), create=bool(create))
    except NotFound as error:
        if url is None and is_remote_name(name):
            message = f"{name!r} is no remote and no store"
            if repo.refs.read(HEADS + name) is not None:
                message += f"; a branch is named behind the remote, as in `vstate push {ORIGIN} {name}`"
            else:
                message += f"; add it with `vstate remote add {name} URL`, or write ./{name} for a directory"
            raise NotFound(message, name=name, candidates=similar(name, remotes.list())) from error
        if create is False:
            raise NotFound(f"{error}; push with create=True to make it", name=error.name) from error
        raise
    with store:
        yield Core(store), None if url is None else name
