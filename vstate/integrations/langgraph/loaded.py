"""Loaded: values that were loaded before, and copies of them for the next readers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from langchain_core.messages import BaseMessage

from vstate.readers.threads import Value
from vstate.state.tracking import IMMUTABLE

_OWN: Final = "langchain_core.messages."
_SHORTEST: Final = 4096  # bytes of a value that is worth it


class _Known(NamedTuple):
    """A value that a serializer loaded, and how to copy it; None before the second time."""

    value: Value
    serde: object
    copy: Callable[[], Any] | None


class Loaded:
    """Long lists of messages by their channel, so that the same list is loaded twice at most.

    LangGraph's serializer makes each message by its constructor, which takes four times as long as a copy. A
    reader owns the list and the messages that it gets.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    def get(self, ns: str, channel: str, value: Value, serde: object, load: Callable[[], Any]) -> Any:
        """The value of a channel, loaded or copied."""
        if value.grown.length < _SHORTEST:
            return load()
        known = self._known.get((ns, channel))
        again = known is not None and known.value == value and known.serde is serde
        if again and known is not None and known.copy is not None:
            return known.copy()
        found = load()
        self._known[ns, channel] = _Known(value, serde, _copier(found) if again else None)
        return found


def _copier(value: Any) -> Callable[[], Any] | None:
    """A function that makes copies of the value as it is now; None if only its serializer can."""
    if type(value) is not list:
        return None
    if all(type(item) is dict and IMMUTABLE.issuperset(map(type, item.values())) for item in value):
        dicts: list[dict[Any, Any]] = [item.copy() for item in value]
        return lambda: [item.copy() for item in dicts]
    if all(isinstance(item, BaseMessage) and type(item).__module__.startswith(_OWN) for item in value):
        data = pickle.dumps(value, 5)
        return lambda: pickle.loads(data)  # made by this process a moment ago
    return None
