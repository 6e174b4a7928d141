"""The workspaces of nontainer are vstate's: a plugin for pytest."""

from typing import Any

import nontainer.providers
from nontainer.store import core
from places import place

from vstate.integrations.nontainer import VstateProvider, VstateRepo


class _Provider(VstateProvider):
    """With the path that the tests give."""

    @classmethod
    def open(cls, path: Any = None, **options: Any) -> Any:
        return super().open(place(":memory:" if path is None else str(path)), **options)

    @classmethod
    def delete(cls, path: Any, sessions: Any, **options: Any) -> None:
        super().delete(place(str(path)), sessions, **options)


def _repo(self: Any, *, create: bool = False) -> Any:
    if self._kvgit is None:
        self._kvgit = VstateRepo(place(":memory:" if self._memory else str(self._kvgit_path())))
    return self._kvgit


core.Store._kvgit_repo = _repo
nontainer.providers.KvgitProvider = nontainer.providers.kvgit.KvgitProvider = _Provider
