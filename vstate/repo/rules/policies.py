"""Policies: how a branch merges keys that both sides changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from vstate.arguments import require_plain
from vstate.errors import CannotLoad, CorruptStore, InvalidInput
from vstate.kv.base import KVStore
from vstate.objects.canonical import decode_checked, encode_checked
from vstate.repo.names.refs import HEADS

POLICY = "policy/"

OURS, THEIRS, NEWEST, APPEND = "ours", "theirs", "newest", "append"
NAMES = (OURS, THEIRS, NEWEST, APPEND, "counter", "union", "deep", "text")

Function = Callable[[Any, Any, Any], Any]
Policy = str | Function
"""One of `NAMES`, or a function of (base, ours, theirs) that returns the merged value.

A function is called if the two sides differ. It gets ABSENT for a side without the key, and returns ABSENT to
delete the key. It raises if it cannot decide.
"""


def check_policy(policy: Policy) -> Policy:
    """The policy; InvalidInput for an unknown name, TypeError for anything else or an async function."""
    if not isinstance(policy, str) and not callable(policy):
        raise TypeError(f"a merge policy is a name or a function, not {type(policy).__name__}")
    if not isinstance(policy, str):
        require_plain("a merge policy", policy)
    elif policy not in NAMES:
        raise InvalidInput(
            f"no merge policy {policy!r}; there are {', '.join(NAMES)}, or give a function of "
            "(base, ours, theirs)"
        )
    return policy


def policy_name(policy: Policy) -> str:
    """The stored form of a policy: its name, or `module:function`.

    Raises InvalidInput for an unknown name, and for a function that other programs cannot import.
    """
    if isinstance(check_policy(policy), str):
        return str(policy)
    module, name = getattr(policy, "__module__", None), getattr(policy, "__qualname__", None)
    if module in _OF_ONE_PROGRAM or not _is_found_as(policy, module, name):
        where = ": it belongs to __main__, the program itself" if module in _OF_ONE_PROGRAM else ""
        raise InvalidInput(
            f"{policy!r} cannot be a stored merge policy, since other programs cannot import it by its name"
            f"{where}. Define it with def at the top of a module that all of them import, or give it to one "
            "merge as policy="
        )
    return f"{module}:{name}"


_OF_ONE_PROGRAM = ("__main__", "__mp_main__")
"""The names of the module that a process began with: every program has another one."""


def _is_found_as(function: object, module: object, name: object) -> bool:
    """Whether the module has this very function under its name: no closure, method of an object or copy."""
    found: object = sys.modules.get(module) if isinstance(module, str) else None
    for part in str(name).split("."):
        found = getattr(found, part, None)
    return found is function or (isinstance(found, MethodType) and found == function)


class Policies:
    """The policies of the branches of one store, by key prefix: the longest matching prefix decides.

    A function is stored by name only. The name stands for the function that this program set, or else for
    the one that `find(module, name)` imports.
    """

    def __init__(self, store: KVStore, find: Callable[[str, str], Any]) -> None:
        self._store = store
        self._find = find
        self._registered: dict[str, Function] = {}

    def read(self, branch: str) -> dict[str, str]:
        """The names of the branch's policies by prefix, sorted."""
        return self._parse(branch, self._store.get(_key(branch)))

    def set(self, branch: str, prefix: str, policy: Policy | None) -> None:
        """Set the policy of the keys that begin with `prefix`; None removes it."""
        if not isinstance(prefix, str):
            raise TypeError(f"a prefix of keys is a str, not {type(prefix).__name__}")
        try:
            prefix.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"prefix {prefix!r} contains a lone surrogate, which no key can contain"
            ) from None
        name = None if policy is None else policy_name(policy)
        if callable(policy) and name is not None:
            self._registered[name] = policy
        while True:
            before = self._store.get(_key(branch))
            policies = self._parse(branch, before)
            policies.pop(prefix, None)
            if name is not None:
                policies[prefix] = name
            if self._store.compare_and_swap(_key(branch), before, encode_policies(policies)):
                return

    def rows_for(self, new: str, like: str) -> dict[str, bytes | None]:
        """The rows that give the branch `new` the policies of the branch `like`, in place of its own."""
        return {_key(new): self._store.get(_key(like))}

    def rows_without(self, branch: str) -> dict[str, bytes | None]:
        """The rows that remove the branch's policies."""
        return {_key(branch): None}

    def find(self, policies: Mapping[str, Policy], key: str) -> Policy | None:
        """The policy of a key among those of a branch; a stored name of a function gives the function.

        Raises CannotLoad if the function cannot be imported.
        """
        policy = _longest_match(policies, key)
        return self._function(policy) if isinstance(policy, str) and ":" in policy else policy

    def adds_up(self, policies: Mapping[str, Policy], key: str) -> bool:
        """Whether two equal changes of the key count twice, as two steps of a counter do."""
        policy = _longest_match(policies, key)
        return policy in ("counter", APPEND)

    def _function(self, name: str) -> Function:
        if name in self._registered:
            return self._registered[name]
        module, _, path = name.partition(":")
        found = self._find(module, path)
        if not callable(found):
            raise CannotLoad(name, "the merge policy is no function")
        self._registered[name] = found
        return found  # type: ignore[no-any-return]

    def _parse(self, branch: str, row: bytes | None) -> dict[str, str]:
        if row is None:
            return {}
        try:
            return parse_policies(row)
        except ValueError as error:
            reason = f"the policies of branch {branch!r}: {error}"
            raise CorruptStore(self._store.location, reason, repairable=True) from error


def _longest_match(policies: Mapping[str, Policy], key: str) -> Policy | None:
    for end in range(len(key), -1, -1):
        if key[:end] in policies:
            return policies[key[:end]]
    return None


def parse_policies(row: bytes) -> dict[str, str]:
    """The policies in a row, sorted; ValueError if the row is damaged."""
    policies = decode_checked(row)
    if not isinstance(policies, dict) or not all(isinstance(name, str) for name in policies.values()):
        raise ValueError("it holds no policies")
    return dict(sorted(policies.items()))


def encode_policies(policies: Mapping[str, str]) -> bytes | None:
    """The row of these policies; None, no row, if there are none."""
    return encode_checked(dict(policies)) if policies else None


def _key(branch: str) -> str:
    return POLICY + HEADS + branch
