"""Values: those of one part of a branch, by key, as they are read and changed inside of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vstate.managers.edits import Edit, copied
from vstate.repo.repository import Revision
from vstate.state.namespace import Namespace
from vstate.state.versioned import Versioned


class Values:
    """The values in this part of a state. What comes out is a copy."""

    def __init__(self, part: Namespace) -> None:
        self._part = part

    def get(self, key: str, default: Any, edit: Edit | None) -> Any:
        """The value of a key as it would be after the edit, `default` if there is none."""
        here: dict[str, Any] = {}
        if (edit is None or not edit.replaces) and key in self._part:
            here[key] = copied(self._part[key], key)
        if edit is not None:
            edit.carry_out(here, key)
        return here.get(key, default)

    def get_at(self, rev: Revision, key: str, default: Any) -> Any:
        """What the value was at a commit."""
        state = self._part.root
        assert isinstance(state, Versioned)
        return state.checkout(rev).get(self._part.prefix + key, default)

    def delete(self, key: str) -> bool:
        """Delete a key; False if there is none."""
        if key not in self._part:
            return False
        del self._part[key]
        return True

    def carry_out(self, edits: Mapping[str, Edit], ttl: float | None) -> None:
        """Make these edits; what they set expires in `ttl` seconds."""
        for key, edit in edits.items():
            edit.carry_out(self._part, key)
            if ttl is not None and not edit.deletes:
                self._part.expire(key, ttl)
