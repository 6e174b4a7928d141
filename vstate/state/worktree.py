"""Worktree: the mapping over one commit of a branch, and what a program changed in it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from os import PathLike
from typing import Self

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.kv.url import open_store
from vstate.repo.names.refs import HEADS
from vstate.repo.rules.security import Security
from vstate.repo.rules.signing import KeyToSign, KeyToTrust
from vstate.state.timed import ttl_microseconds
from vstate.state.updates import UpdatableMapping


class Worktree(UpdatableMapping):
    """What a `Versioned` is apart from its history and branches: the mapping, its changes, committing them.

    It is made in four steps, one on the other: `mapping`, `moving`, `transactions`, `updates`.
    """

    def __init__(
        self,
        store: KVStore | str | PathLike[str] | None = None,
        *,
        branch: str | None = None,
        sign: KeyToSign | None = None,
        trust: Iterable[KeyToTrust] | KeyToTrust | None = None,
        allow: Iterable[str] | None = None,
        ttl: float | timedelta | None = None,
        sliding: bool = False,
    ) -> None:
        if (branch is None and ttl is not None) or (sliding and ttl is None):
            raise InvalidInput("ttl is for a branch that is named, and sliding for one with a ttl: give both")
        length = None if ttl is None else ttl_microseconds(ttl)
        security = Security(sign=sign, trust=trust, allow=allow)
        opened = open_store(store)
        try:
            self._open(opened, branch, security)
        except BaseException:
            if opened is not store:
                opened.close()
            raise
        self._owned = opened is not store
        if length is not None:
            self._repo.refs.lifetimes.want(f"{HEADS}{branch}", length, sliding=sliding)

    # Closing

    def close(self) -> None:
        """Close what watches it, and the store, if this handle opened it. What is uncommitted is not committed."""
        watches = list(self._watches)
        for watch in watches:  # all first, since each then waits for its look
            watch.end()
        for watch in watches:
            watch.close()
        if self._owned:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
