"""Edits: what is to become of keys, and the values for that as they were when it was asked for."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from vstate.errors import InvalidInput, Unpicklable
from vstate.values.pickling import culprit, dumps, loads

_ATOMS: Final = frozenset((str, int, float, bool, bytes, type(None)))


class Frozen:
    """A value by its pickle, which `thaw` makes an object of that is nobody else's, a new one each time.

    Raises Unpicklable, which says where in the value of `key` the trouble is.
    """

    __slots__ = ("_buffers", "_data")

    def __init__(self, value: Any, key: str) -> None:
        self._data: Any = value
        self._buffers: list[bytes] | None = None
        if type(value) in _ATOMS:
            return
        try:
            data, buffers = dumps(value)
        except Exception as error:
            raise Unpicklable({key: culprit(value, f'state["{key}"]', error)}, staged=False) from error
        self._data, self._buffers = data, [bytes(buffer) for buffer in buffers]

    def thaw(self) -> Any:
        """The value, in an object of its own."""
        if self._buffers is None:
            return self._data
        # Arrays are made on these buffers, and may be written to.
        return loads(self._data, [bytearray(buffer) for buffer in self._buffers])


def copied(value: Any, key: str) -> Any:
    """A copy of the value of `key`, which shares nothing with it."""
    return value if type(value) in _ATOMS else Frozen(value, key).thaw()


@dataclass(frozen=True)
class Edit:
    """What is to become of one key: with `replaces`, `value`, or nothing if that is None; then top-level keys."""

    replaces: bool = False
    value: Frozen | None = None
    merged: dict[str, Frozen] = field(default_factory=dict)

    def then(self, later: Edit) -> Edit:
        """Both, one after the other."""
        if later.replaces:
            return later
        return Edit(self.replaces, self.value, {**self.merged, **later.merged})

    @property
    def deletes(self) -> bool:
        return self.replaces and self.value is None and not self.merged

    def carry_out(self, values: MutableMapping[str, Any], key: str) -> None:
        """Change the key in this mapping, whose values are its own. InvalidInput for top-level keys of no dict."""
        if self.deletes:
            values.pop(key, None)
            return
        if self.replaces:
            values[key] = {} if self.value is None else self.value.thaw()
        if self.merged:
            require_dict(key, values.setdefault(key, {})).update(
                {name: frozen.thaw() for name, frozen in self.merged.items()}
            )


def require_dict(key: str, value: Any) -> dict[Any, Any]:
    """The value, if its top-level keys can be updated; InvalidInput."""
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{key!r} holds a {type(value).__name__}, and update() merges into a dict: save() it as a whole"
        )
    return value
