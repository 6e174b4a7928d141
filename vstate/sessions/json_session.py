"""JSONSession: each session in a JSON file of its own."""

from __future__ import annotations

import os
from pathlib import Path

from vstate.aio.workers import in_thread
from vstate.arguments import check_text
from vstate.errors import CorruptStore, InvalidInput
from vstate.sessions.session_files import IDS, SessionFiles
from vstate.sessions.state_module import Module, SessionBase, load_found, save_all


class JSONSession(SessionBase):
    """Sessions in a directory: `<session>.json`, `<user>_<session>.json`. The first save makes the directory.

    These are AgentScope's names, and files that AgentScope wrote are read. Several ids can have one such
    name, if it has a "_". So a file with a "_" in its name says whose it is, under the key "$session". If the
    name is taken, or is not safe on every file system, the session gets a name of its own: characters other
    than small letters, digits and `.@=+ -` become `%` and hexadecimal digits. So no two ids share a file,
    even if the file system ignores case, and no file is outside the directory. A file that AgentScope wrote,
    and that may be another session's, is read until the first save writes another file.

    A save replaces the whole file, and the file is on the disk when it returns; a failed save leaves the old
    file. Saves by several processes take turns.

    `JSONSession(session_id=..., save_dir=...)`, the older form, is one session; its methods take modules
    only.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        *then_save_dir: str | os.PathLike[str],
        session_id: str | None = None,
    ) -> None:
        """`save_dir` is "./" by default. Of two positional arguments, the first is the session_id."""
        if then_save_dir:
            if session_id is not None or len(then_save_dir) > 1:
                raise TypeError("JSONSession takes save_dir, and session_id= for a single session")
            self.session_id: str | None = check_text("session_id", save_dir, empty=False)
            save_dir = then_save_dir[0]
        else:
            self.session_id = (
                None if session_id is None else check_text("session_id", session_id, empty=False)
            )
        self.save_dir = os.path.expanduser("./" if save_dir is None else save_dir)

    def __repr__(self) -> str:
        which = "" if self.session_id is None else f"session_id={self.session_id!r}, "
        return f"{type(self).__name__}({which}save_dir={self.save_dir!r})"

    @property
    def save_path(self) -> str:
        """The file of the session in the constructor's session_id."""
        if self.session_id is None:
            raise InvalidInput("this JSONSession has no session_id: call path_of(session_id) instead")
        return self.path_of(self.session_id)

    def path_of(self, session_id: str, user_id: str = "") -> str:
        """The file of a session, existing or not."""
        return str(self._files(session_id, user_id).own())

    def _files(self, session_id: str, user_id: str) -> SessionFiles:
        return SessionFiles(Path(self.save_dir), session_id, user_id)

    async def save_session_state(
        self, session_id: str | None = None, user_id: str = "", **modules: Module
    ) -> None:
        """As SessionBase. Raises TypeError, with the path, if JSON cannot hold a state, and OSError."""
        files = self._files(self._session(session_id), user_id)
        states = save_all(modules)
        if IDS in states:
            raise InvalidInput(f"{IDS!r} cannot be the name of a module: it names the session of a file")
        await in_thread(lambda: files.save(states))

    async def load_session_state(
        self,
        session_id: str | None = None,
        user_id: str | bool = "",
        allow_not_exist: bool = True,
        **modules: Module,
    ) -> None:
        """As SessionBase. Raises CorruptStore for a file that holds no session, and OSError."""
        if isinstance(user_id, bool):  # in older programs allow_not_exist came second
            allow_not_exist, user_id = user_id, ""
        name = self._session(session_id)
        files = self._files(name, user_id)
        path, states = await in_thread(files.load)
        load_found(
            repr(name),
            modules,
            states,
            lambda _, reason: CorruptStore(str(path), reason),
            absent=f"there is no session in {str(path)!r}",
            allow_not_exist=allow_not_exist,
        )

    def _session(self, session_id: str | None) -> str:
        if session_id is None:
            session_id = self.session_id
        if session_id is None:
            raise TypeError("a session_id is missing: give one here, or to JSONSession")
        return session_id
