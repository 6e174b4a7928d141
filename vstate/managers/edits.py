"""Edits: what is to become of keys, from when it is asked for until it is committed."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from vstate.errors import InvalidInput
from vstate.managers.frozen import Frozen


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
