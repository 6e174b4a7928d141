"""VstateBackend: the files of a deep agent in a Workspace, with a commit for each change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import UnsupportedOperation
from pathlib import Path

from vstate.integrations import framework_of
from vstate.integrations.opening import summary
from vstate.workspace import Workspace
from vstate.workspace.paths import CONTROL, fold

with framework_of("deepagents"):
    from deepagents.backends.filesystem import FilesystemBackend
    from deepagents.backends.protocol import DeleteResult, EditResult, FileUploadResponse, WriteResult


class VstateBackend(FilesystemBackend):
    """The files of a deep agent: `create_deep_agent(backend=VstateBackend(Workspace(state, "project")))`.

    "/" is the directory, which the agent reads and searches as in a FilesystemBackend. Each write, edit,
    deletion and upload that changes a file is one transaction of the state, with all that is uncommitted in
    it. So changes of threads follow one another. A commit that fails raises, and the files stay edited. "/"
    itself and the Workspace's own directory are not changed: the result has an error. Once the Workspace is
    closed, a change raises InvalidInput.
    """

    def __init__(self, workspace: Workspace, *, max_file_size_mb: int = 10) -> None:
        super().__init__(workspace.directory, virtual_mode=True, max_file_size_mb=max_file_size_mb)
        self.workspace = workspace

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or overwrite a file, and commit."""
        with self._commit(f"write {file_path}"):
            return super().write(file_path, content)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace a text in a file, and commit."""
        with self._commit(f"edit {file_path}"):
            return super().edit(file_path, old_string, new_string, replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file or a directory, and commit."""
        with self._commit(f"delete {file_path}"):
            if os.path.realpath(f"{self.cwd}/{file_path}") == str(self.cwd):
                return DeleteResult(error=f"Error deleting '{file_path}': all files are below it")
            return super().delete(file_path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write these files, and commit them together."""
        with self._commit(f"upload {', '.join(path for path, _ in files)}"):
            done: list[FileUploadResponse] = super().upload_files(files)
        return done

    @contextmanager
    def _commit(self, message: str) -> Iterator[None]:
        with self.workspace.state.transaction(summary(message)):
            self.workspace._require_open()
            yield

    def _resolve_path(self, key: str) -> Path:
        """The path of a file, or an error that the framework tells the agent."""
        found: Path = super()._resolve_path(key)
        self._to_virtual_path(found)
        return found

    def _to_virtual_path(self, path: Path) -> str:
        """The framework's name of a file, but of none of the Workspace's own.

        By a ValueError the framework's lists leave a file out. An OSError is told to the agent. This is both.
        """
        shown: str = super()._to_virtual_path(path)
        if fold(shown.split("/")[1]) == CONTROL:
            raise UnsupportedOperation(f"{shown} belongs to the Workspace")
        return shown
