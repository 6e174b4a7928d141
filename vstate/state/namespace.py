"""Namespace: the keys of a state under one prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from vstate.arguments import check_several, check_state_key
from vstate.errors import InvalidInput
from vstate.objects.commit import Commit
from vstate.state.base import ATTEMPTS, Message, State, handle_of, missing


class Namespace(State):
    """The mapping of the keys under `name/` of a state, without that prefix.

    It holds nothing itself: writes go to the state, and a commit commits all of the state.
    """

    def __init__(self, parent: State, name: str) -> None:
        if not check_state_key(name) or "/" in (name[0], name[-1]):
            raise InvalidInput(f"{name!r} is not a namespace: it needs a name without '/' at either end")
        self._root = parent.root
        self._handle = handle_of(parent)
        self.prefix = f"{parent.prefix}{name}/"

    @property
    def root(self) -> State:
        """The state that this namespace belongs to."""
        return self._root

    def __getitem__(self, key: str) -> Any:
        if not isinstance(key, str):
            raise missing(key)
        return self._root[self.prefix + key]

    def _ready(self, key: object, absent: Any) -> Any:
        return self._root._ready(self.prefix + key, absent) if isinstance(key, str) else absent

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        found = self._root.get_many(self.prefix + check_state_key(key) for key in check_several(keys))
        return {key[len(self.prefix) :]: value for key, value in found.items()}

    def __setitem__(self, key: str, value: Any) -> None:
        self._root[self.prefix + check_state_key(key)] = value

    def __delitem__(self, key: str) -> None:
        del self._root[self.prefix + check_state_key(key)]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.prefix + key in self._root

    def _scan(self, prefix: str, *, reverse: bool = False) -> Iterator[str]:
        found = self._root._scan(self.prefix + prefix, reverse=reverse)
        return (key[len(self.prefix) :] for key in found)

    def _count(self, prefix: str) -> int:
        return self._root._count(self.prefix + prefix)

    def _describe(self, key: str) -> str:
        return self._root._describe(self.prefix + key)

    def _title(self) -> str:
        return f"Namespace {self.prefix!r} of {self._root._title()}"

    def expire(self, key: str, ttl: float | timedelta | None) -> None:
        self._root.expire(self.prefix + check_state_key(key), ttl)

    def expires(self, key: str) -> datetime | None:
        return self._root.expires(self.prefix + check_state_key(key))

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, name)

    def commit(self, message: str = "", *, keys: Iterable[str] | None = None, **info: Any) -> Commit | None:
        """Commit the whole state, or these keys of the namespace, as the state's own `commit` does."""
        if keys is not None:
            keys = [self.prefix + check_state_key(key) for key in check_several(keys, "commit")]
        return self._root.commit(message, keys=keys, **info)

    def transaction(self, message: str = "", **info: Any) -> AbstractContextManager[Any]:
        """A transaction of the whole state."""
        return self._root.transaction(message, **info)

    def _update(
        self, function: Callable[[], object], *, attempts: int = ATTEMPTS, message: Message = "", **info: Any
    ) -> Commit | None:
        return self._root._update(function, attempts=attempts, message=message, **info)

    @property
    def has_uncommitted(self) -> bool:
        return self._root.has_uncommitted
