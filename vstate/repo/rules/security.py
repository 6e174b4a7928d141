"""Security: the key that signs a program's commits, the keys it trusts, and the imports it allows."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from vstate.errors import CannotLoad, ReadOnly
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.repo.history import History
from vstate.repo.names.refs import Refs
from vstate.repo.rules.signing import KeyToSign, KeyToTrust, Trust, as_signing_key
from vstate.values.allow import Allow

_REMEMBERED = 65536


class Security:
    """A program's `sign`, `trust` and `allow`; by default, no commit is signed, and nothing is restricted.

    - `sign`: the key that signs each commit made here, or the path of its file;
    - `trust`: the public keys whose commits, with all commits before them, may be unpickled and built upon;
    - `allow`: the names of the modules and classes that unpickling may import.
    """

    def __init__(
        self,
        *,
        sign: KeyToSign | None = None,
        trust: Iterable[KeyToTrust] | KeyToTrust | None = None,
        allow: Iterable[str] | None = None,
    ) -> None:
        self.key = None if sign is None else as_signing_key(sign)
        self.allow = None if allow is None else Allow(allow)
        self.trust: Trust | None = None
        if trust is not None:
            keys: list[KeyToTrust] = [*trust] if isinstance(trust, Iterable) else [trust]
            if isinstance(trust, str | bytes):  # one key, although it is iterable
                keys = [trust]
            self.trust = Trust([*keys, self.key] if self.key is not None else keys)
        self._trusted: set[ObjectId] = set()

    def signed(self, commit: Commit) -> Commit:
        """The commit, signed if there is a key; ReadOnly if this program would not trust it."""
        if self.key is not None:
            return self.key.sign(commit)
        if self.trust is not None:
            raise ReadOnly(
                "this state trusts signed commits only and has no key to sign its own: open it with "
                "sign=KEY to commit"
            )
        return commit

    def require_trusted(self, commit: Commit, history: History, refs: Refs) -> None:
        """Raise UntrustedCommit unless a trusted key signed it, or a commit after it that a ref names."""
        if self.trust is None or commit.oid in self._trusted:
            return
        if not self.trust.signed(commit) and not self._has_trusted_descendant(commit, history, refs):
            self.trust.require(commit)
        if len(self._trusted) >= _REMEMBERED:
            self._trusted.clear()
        self._trusted.add(commit.oid)

    def _has_trusted_descendant(self, commit: Commit, history: History, refs: Refs) -> bool:
        assert self.trust is not None
        heads = [
            oid
            for oid in {*refs.all().values(), *self._trusted}
            if (head := history.find(oid)) is not None and self.trust.signed(head)
        ]
        for found in history.ancestors(*heads):
            if found.oid == commit.oid:
                return True
            if found.order < commit.order:
                return False
        return False

    def find_policy(self, module: str, name: str) -> Any:
        """The function that a stored merge policy names; CannotLoad if its import is forbidden or fails."""
        if self.trust is not None:  # no signature covers a stored policy
            reason = (
                "a state with trust= imports no policy by itself: call set_policy with the function first"
            )
            raise CannotLoad(f"{module}:{name}", reason)
        if self.allow is not None:
            return self.allow.find(module, name)
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception as error:  # importing runs the module's code
            raise CannotLoad(f"{module}:{name}", f"the merge policy cannot be imported: {error}") from error
        return found
