"""Sweeps: objects that are missing because `gc`, or a branch that was forgotten, removed them meanwhile.

An operation reads a ref, and then the objects behind it. If the ref moves or goes in between, a sweep may
remove these objects. Nothing is damaged then: the operation begins anew, with the refs as they are now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from vstate.errors import CorruptObject
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.names.refs import Refs

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Swept(Protocol):
    """A repository whose objects a sweep may remove."""

    refs: Refs

    def require_stored(self, oid: ObjectId) -> None:
        """Raise NotFound if the store has no such commit."""


_Core = TypeVar("_Core", bound=Swept)


def anew(core: Swept, call: Callable[[], _T], given: Iterable[Any] = ()) -> _T:
    """The result of a call, which is made again if an object is missing and a sweep came meanwhile.

    NotFound if a commit among the `given` things is gone. Otherwise an object that is missing twice is
    damage: CorruptObject. A call that meets no missing object costs nothing more.
    """
    try:
        return call()
    except CorruptObject as error:
        missing = error.id
    while True:
        before = core.refs.sweep()
        try:
            return call()
        except CorruptObject as error:
            for each in given:
                if isinstance(each, Commit):
                    core.require_stored(each.oid)
            # A sweep may also have begun before the call.
            if error.id == missing and core.refs.sweep() == before:
                raise
            missing = error.id


def begins_anew(method: Callable[Concatenate[_Core, _P], _T]) -> Callable[Concatenate[_Core, _P], _T]:
    """Make each call of a method of a repository as `anew` does."""

    @wraps(method)
    def call(self: _Core, /, *args: _P.args, **options: _P.kwargs) -> _T:
        try:
            return method(self, *args, **options)
        except CorruptObject:
            pass
        return anew(self, partial(method, self, *args, **options), (*args, *options.values()))

    return call
