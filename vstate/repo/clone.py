"""Clone: a copy of a store, with the original as its remote."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING

from vstate.errors import AlreadyExists
from vstate.kv.base import KVStore
from vstate.kv.url import open_store
from vstate.repo.exchange.sync import (
    Sync,
    SyncReport,
    Wanted,
    checked_refs,
    is_ref_name,
    rows_beside,
    tracking_ref,
)
from vstate.repo.names.refs import DEFAULT_BRANCH, HEAD, HEADS, REF, TAGS, Refs
from vstate.repo.names.remotes import ORIGIN, absolute, check_stays, check_url, expanded
from vstate.repo.repository import Repository

if TYPE_CHECKING:
    from vstate.repo.exchange.difference import TransferProgress


ACTION = "clone"


def clone(
    source: KVStore | str | PathLike[str],
    target: KVStore | str | PathLike[str],
    *,
    progress: TransferProgress | None = None,
) -> SyncReport:
    """Copy a store: all branches with their policies and labels, all tags, and HEAD, with their history.

    A source given as a path or URL becomes the remote `origin` of the new store, so that `push`, `pull` and
    `fetch` go there. Its URL must not hold a password, see `Remotes.add`. Call an interrupted clone again,
    and it continues. NotFound if there is no source; AlreadyExists, with nothing changed, if the target is
    in use.
    """
    began = time.monotonic()
    if isinstance(target, str):
        check_stays(target)
    url = absolute(check_url(source)) if isinstance(source, str | os.PathLike) else None
    with _opened(source if url is None else expanded(url), create=False) as original:
        with _opened(target, create=True) as copy:
            _check_unused(copy, original, url)
            if url is not None and copy.remotes.url(ORIGIN) is None:
                copy.remotes.add(ORIGIN, url)
            work = Sync(original, copy, near=copy, action=ACTION, progress=progress)
            work.run(lambda: list(_wanted(original, is_remote=url is not None)))
            copy.stamp()
            branch = _branch_of_head(original)
            # HEAD comes last: it marks a complete clone.
            copy.refs.set_head(branch=branch, action=f"{ACTION}: on {branch}")
    return work.report(began)


@contextmanager
def _opened(place: KVStore | str | PathLike[str], *, create: bool) -> Iterator[Repository]:
    """The repository of a store. A store that is opened here is closed again."""
    if isinstance(place, KVStore):
        yield Repository(place)
    else:
        with open_store(place, create=create) as store:
            yield Repository(store)


def _wanted(original: Repository, *, is_remote: bool) -> Iterator[Wanted]:
    for name, oid in checked_refs(original, HEADS).items():
        rows = rows_beside(original, name)
        yield Wanted(HEADS + name, oid, "force", rows=rows, branch=HEADS + name)
        if is_remote:
            yield Wanted(tracking_ref(ORIGIN, name), oid, "force", branch=HEADS + name)
    for name, oid in checked_refs(original, TAGS).items():
        yield Wanted(TAGS + name, oid, "force")


def _check_unused(copy: Repository, original: Repository, url: str | None) -> None:
    """AlreadyExists if the store holds anything that an interrupted clone did not leave."""
    refs = copy.refs
    heads = refs.list(HEADS)
    names = [HEADS + name for name in heads] + [TAGS + name for name in refs.list(TAGS)]
    if url is None:
        begun = heads.items() <= original.refs.list(HEADS).items()
    else:
        begun = copy.remotes.url(ORIGIN) in ((None, url) if not names else (url,))
    # A store with commits of its own may have a remote of that URL. Then its reflogs name other actions.
    if copy.store.get(REF + HEAD) is not None or not begun or not all(_is_cloned(refs, ref) for ref in names):
        raise AlreadyExists(
            f"{copy.store.location} is in use already: clone into an empty place, or fetch into this one",
            name=copy.store.location,
        )


def _is_cloned(refs: Refs, ref: str) -> bool:
    """Whether only a clone has ever moved the ref."""
    actions = [line.action for line in refs.reflog(ref)]
    return bool(actions) and set(actions) == {ACTION}


def _branch_of_head(repo: Repository) -> str:
    """The branch that HEAD is on; `main`, or else any branch, if HEAD is detached or unreadable."""
    branch = repo.refs.head().branch
    if branch is None or not is_ref_name(branch):
        branches = list(checked_refs(repo, HEADS))
        branch = DEFAULT_BRANCH if DEFAULT_BRANCH in branches or not branches else branches[0]
    return branch
