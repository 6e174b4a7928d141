"""JSONSession: each session in a JSON file of its own."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

from vstate.aio.workers import in_thread
from vstate.arguments import check_text
from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.files import locked, make_directory, open_shared, replace_file
from vstate.sessions.state_module import Module, SessionBase, load_found, save_all

_log = logging.getLogger("vstate")

_ESCAPED = re.compile(r"[^a-z0-9.@=+ -]|^[. ]|[. ]$")
_SAFE = re.compile(r"(?![. ])[a-z0-9.@=+ _-]*[a-z0-9@=+_-]")
_LONGEST = 80  # characters of a part of a name; file systems allow 255 bytes for the whole name
_LOCK = ".lock"
_IDS = "$session"
"""The key in a file that has the ids of its session."""


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
            session_id, save_dir = check_text("session_id", save_dir), then_save_dir[0]
        self.session_id = None if session_id is None else check_text("session_id", session_id, empty=False)
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
        """Raises TypeError, with the path, if JSON cannot hold a state, and OSError."""
        files = self._files(self._session(session_id), user_id)
        states = save_all(modules)
        if _IDS in states:
            raise InvalidInput(f"{_IDS!r} cannot be the name of a module: it names the session of a file")
        await in_thread(lambda: files.save(states))

    async def load_session_state(
        self,
        session_id: str | None = None,
        user_id: str | bool = "",
        allow_not_exist: bool = True,
        **modules: Module,
    ) -> None:
        """Raises CorruptStore for a file that holds no session, and OSError."""
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


class SessionFiles:
    """The files in which one session may be. Two names are possible.

    `_named` is AgentScope's name. Other sessions may have it too, so `_IDS` in the file says whose it is.
    `_unique` has no other session.
    """

    def __init__(self, directory: Path, session_id: str, user_id: str) -> None:
        check_text("session_id", session_id, empty=False)
        check_text("user_id", user_id)
        ids = [user_id, session_id] if user_id else [session_id]
        self._ids = {"user_id": user_id, "session_id": session_id}
        self._directory = directory
        self._named = "_".join(ids) + ".json"
        self._unique = "%_".join(map(_escaped, ids)) + ".json"
        self._is_safe = _SAFE.fullmatch("_".join(ids)) is not None and max(map(len, ids)) <= _LONGEST
        self._has_marks = "_" in self._named

    def own(self) -> Path:
        """The file that is this session's, or will be."""
        try:
            return self._find()[0]
        except CorruptStore as error:
            return Path(error.location)

    def load(self) -> tuple[Path, dict[str, Any] | None]:
        """The file of the session, and the states in it by module; None instead of them without a file."""
        own, path, states = self._find()
        if states is None:
            return own, None
        if path.name == self._named and self._has_marks and _IDS not in states:
            _log.warning("%r is read for %s; the file does not say whose it is", str(path), self)
        return path, {name: state for name, state in states.items() if name != _IDS}

    def save(self, states: dict[str, Any]) -> None:
        """Replace the states of these modules. Raises OSError, CorruptStore."""
        make_directory(self._directory)
        with _locked(self._directory / _LOCK):
            path, _, before = self._find()
            marked = {_IDS: self._ids} if path.name == self._named and self._has_marks else {}
            text = json.dumps({**(before or {}), **states, **marked}, ensure_ascii=False)
            _parse(text)  # JSON writes the keys 1 and "1" alike; refuse such a pair
            replace_file(path, text.encode("utf-8", "surrogatepass"))

    def _find(self) -> tuple[Path, Path, dict[str, Any] | None]:
        """The file to write, the file to read, and its states; the states are None without a file."""
        unique, named = self._directory / self._unique, self._directory / self._named
        states = _read(unique)
        if states is not None:
            return unique, unique, states
        states = _read(named) if self._has_named() else None
        if states is None:
            own = named if self._is_safe else unique
            return own, own, None
        if _IDS in states and states[_IDS] != self._ids:  # another session's
            return unique, unique, None
        return named if _IDS in states else unique, named, states

    def _has_named(self) -> bool:
        # Look in the listing: if case is ignored, the file of another session may have this name.
        if self._is_safe:
            return True
        return self._directory.is_dir() and self._named in os.listdir(self._directory)

    def __str__(self) -> str:
        user = f" of user {self._ids['user_id']!r}" if self._ids["user_id"] else ""
        return f"the session {self._ids['session_id']!r}{user}"


def _escaped(text: str) -> str:
    short = _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), text)
    if len(short) <= _LONGEST:
        return short
    return f"{short[: _LONGEST - 34]}%%{blake3(_bytes(text)).hexdigest(length=16)}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _read(path: Path) -> dict[str, Any] | None:
    """The states in a file by module; None without the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = _parse(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise CorruptStore(str(path), f"it is no file of a session: {error}") from None
    if not isinstance(found, dict):
        raise CorruptStore(str(path), f"it is no file of a session: it holds a {type(found).__name__}")
    return found


def _parse(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(key for key in found if [name for name, _ in pairs].count(key) > 1)
            raise InvalidInput(f"a dict has two keys that JSON writes as {twice!r}")
        return found

    return json.loads(text, object_pairs_hook=unique)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock for saves in a directory."""
    descriptor = open_shared(path, os.O_RDONLY)
    try:
        with locked(descriptor):
            yield
    finally:
        os.close(descriptor)
