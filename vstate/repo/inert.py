"""Merges by policies that never load a value, for programs that must not run stored code."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vstate.errors import InvalidInput
from vstate.kv.base import KVStore
from vstate.repo.repository import Repository
from vstate.repo.rules.policies import Policies, Policy
from vstate.values.absent import Unmergeable
from vstate.values.budget import InertError, Limits
from vstate.values.entry import PICKLE, Decoded, Encoded, Reader, encode_value, read_parts
from vstate.values.inspection import INSPECT_BYTES, inspect_value

_SHORT = 10  # keys in a message


class InertRepository(Repository):
    """A repository that merges values without loading them: their parts are moved as they are stored.

    `decided` are the keys for which the user chose a side.
    """

    def __init__(self, store: KVStore, decided: Mapping[str, str] | None = None) -> None:
        super().__init__(store)
        self.decisions = _Decisions(store, decided or {})
        self.policies = self.decisions
        self._has_recipes = False

    def load(self, key: str, data: bytes, reader: Reader | None = None) -> Decoded:
        """The value of an entry for a merge policy; Unmergeable if the policy would need an object of it."""
        # Late: few programs merge values so.
        from vstate.values import recipes

        entry = self.parse_entry(key, data)
        if entry.codec != PICKLE:
            return Decoded(inspect_value(entry, reader or self.objects), (), entry.size)
        if entry.size > INSPECT_BYTES:
            raise Unmergeable(f"a value of {entry.size} bytes is too long for this command; merge in Python")
        (pickled, *buffers), _ = read_parts(entry, reader or self.objects)
        try:
            value, is_plain = recipes.read(bytes(pickled), buffers, Limits())
        except InertError as error:
            raise Unmergeable(f"this command cannot take the value apart ({error.reason})") from None
        if isinstance(value, recipes.Recipe):
            value.label = entry.type
        self._has_recipes = self._has_recipes or not is_plain
        return Decoded(value, (), entry.size)

    def encode(self, value: Any) -> Encoded:
        """The merged value as an entry. Its objects are written as they were stored."""
        if not self._has_recipes:
            return encode_value(value)
        from vstate.values import recipes  # late, as above

        return encode_value(value, dump=recipes.dumps)


class _Decisions(Policies):
    """The policies of a branch, and in front of them the side that the user chose for a key."""

    def __init__(self, store: KVStore, decided: Mapping[str, str]) -> None:
        super().__init__(store, self._refuse)
        self._decided = decided
        self.used: set[str] = set()

    def find(self, policies: Mapping[str, Policy], key: str) -> Policy | None:
        if key in self._decided:
            self.used.add(key)
            return self._decided[key]
        return super().find(policies, key)

    def adds_up(self, policies: Mapping[str, Policy], key: str) -> bool:
        return key not in self._decided and super().adds_up(policies, key)

    def check(self, merged: Collection[str]) -> None:
        """Raise InvalidInput for a decision on a key that only one side changed: it decides nothing."""
        unused = [key for key in self._decided if key not in self.used]
        if unused:
            raise InvalidInput(
                f"{', '.join(map(repr, unused[:_SHORT]))}: not changed by both sides, so there is nothing to "
                "decide; nothing was merged"
            )

    @staticmethod
    def _refuse(module: str, name: str) -> Any:
        raise Unmergeable(f"its policy is the Python function {module}:{name}, which this command never runs")
