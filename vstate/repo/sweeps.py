"""Sweeps: objects that are missing because `gc`, or a branch that was forgotten, removed them meanwhile.

An operation reads a ref, and then the objects behind it. If the ref moves or goes in between, a sweep may
remove these objects. Nothing is damaged then: the operation begins anew, with the refs as they are now.

Commits that arrive before their ref are noted in a row. The next sweep removes those that no ref leads to,
before it removes anything that they hold. So no commit that arrives beside gc is left without its objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from vstate.errors import CorruptObject
from vstate.kv.base import KVStore
from vstate.objects.commit import Commit
from vstate.objects.ids import COMMIT, ID_BYTES, NewObjects, ObjectId
from vstate.repo.history import History
from vstate.repo.names.refs import Refs
from vstate.repo.rooms import Room

ARRIVED = "arrived/"
"""The prefix of the rows that name commits which no ref led to when they were written."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Swept(Protocol):
    """A repository whose objects a sweep may remove."""

    refs: Refs

    @property
    def history(self) -> History:
        """Its commits as a graph."""

    def require_stored(self, oid: ObjectId) -> None:
        """Raise NotFound if the store has no such commit."""


_Core = TypeVar("_Core", bound=Swept)


class Overtaken(CorruptObject):
    """A transaction was not made: a sweep may have removed objects that it relies on. This is no damage."""

    def __init__(self, oid: ObjectId) -> None:
        super().__init__(str(oid), "gc has removed what it holds")


def retry_after_sweep(core: Swept, call: Callable[[], _T], given: Iterable[Any] = ()) -> _T:
    """The result of a call, which is made again if an object is missing and a sweep came meanwhile.

    NotFound if a commit among the `given` things is gone. Otherwise an object that is missing twice is
    damage: CorruptObject. `Overtaken` is none, however often. A call that meets no missing object costs
    nothing more.
    """
    try:
        return call()
    except CorruptObject as error:
        missing = _missing(error)
    while True:
        before = core.refs.sweep()
        core.history.reload()  # commits in memory may lie before the end of a history by now
        try:
            return call()
        except CorruptObject as error:
            for each in given:
                if isinstance(each, Commit):
                    core.require_stored(each.oid)
            last, missing = missing, _missing(error)
            # A sweep may also have begun before the call.
            if missing is not None and missing == last and core.refs.sweep() == before:
                raise


def _missing(error: CorruptObject) -> str | None:
    """The id of the object that a call missed; None if no object was missing."""
    return None if isinstance(error, Overtaken) else error.id


def retries_after_sweep(method: Callable[Concatenate[_Core, _P], _T]) -> Callable[Concatenate[_Core, _P], _T]:
    """Make each call of a method of a repository as `retry_after_sweep` does."""

    @wraps(method)
    def call(self: _Core, /, *args: _P.args, **options: _P.kwargs) -> _T:
        try:
            return method(self, *args, **options)
        except CorruptObject:
            pass
        return retry_after_sweep(self, partial(method, self, *args, **options), (*args, *options.values()))

    return call


def arrival(store: KVStore, objects: NewObjects) -> dict[str, bytes]:
    """The row to write in one transaction with objects, if commits are among them that no ref leads to yet.

    None in a store without transactions: there gc moves garbage to the trash, where it is found.
    """
    commits = [oid for oid, new in objects.items() if new.kind is COMMIT]
    return {ARRIVED + os.urandom(8).hex(): b"".join(commits)} if commits and store.transactional else {}


def unfinished(store: KVStore) -> dict[str, bytes]:
    """The row to write in a room as objects lose what leads to them. It goes once these objects are gone.

    Without such a row, `gc` takes a room for quiet, and would leave what a killed process did not remove.
    """
    return {ARRIVED + os.urandom(8).hex(): b""} if isinstance(store, Room) else {}


def arrivals(store: KVStore, but: Collection[str] = ()) -> tuple[list[str], list[ObjectId]]:
    """The keys of these rows, without those in `but`, and the commits that they name.

    Of a damaged row as many as are whole.
    """
    rows = {key: row for key, row in store.items(ARRIVED) if key not in but}
    ids = [row[at : at + ID_BYTES] for row in rows.values() for at in range(0, len(row), ID_BYTES)]
    return [*rows], [ObjectId(oid) for oid in ids if len(oid) == ID_BYTES]


def check_arrival(row: bytes) -> None:
    """ValueError unless this is a whole row of arrivals."""
    if len(row) % ID_BYTES:
        raise ValueError("it is no list of ids")
