"""The storages and the session repositories of Strands are vstate's: a plugin for pytest."""

from typing import Any

import strands.session
import strands.session.file_session_manager
import strands.storage
import strands.storage.in_memory_storage
import strands.storage.local_file_storage
import tests.fixtures.mock_session_repository
from places import place
from strands.session import RepositorySessionManager
from strands.storage.storage import _EPHEMERAL

from vstate.integrations.strands import VstateSessionRepository, VstateStorage


class _Memory(VstateStorage):
    _ephemeral = _EPHEMERAL  # on each store, as the tests expect of this name

    def __init__(self, **options: Any) -> None:
        super().__init__(place(":memory:"), **options)


class _File(VstateStorage):
    def __init__(self, base_dir: str = "./.strands/", **options: Any) -> None:
        super().__init__(place(base_dir), **options)


class _Repository(VstateSessionRepository):
    def __init__(self) -> None:
        super().__init__(place(":memory:"))


class _Manager(RepositorySessionManager, VstateSessionRepository):
    def __init__(self, session_id: str, storage_dir: str = ":memory:") -> None:
        VstateSessionRepository.__init__(self, place(storage_dir))
        RepositorySessionManager.__init__(self, session_id, self)


for package, module, name, made in [
    (strands.storage, strands.storage.in_memory_storage, "InMemoryStorage", _Memory),
    (strands.storage, strands.storage.local_file_storage, "LocalFileStorage", _File),
    (strands.session, strands.session.file_session_manager, "FileSessionManager", _Manager),
]:
    setattr(package, name, made)
    setattr(module, name, made)
tests.fixtures.mock_session_repository.MockedSessionRepository = _Repository
