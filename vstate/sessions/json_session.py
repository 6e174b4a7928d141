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

from vstate.arguments import check_text
from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.files import locked, make_directory, replace_file
from vstate.sessions.session_base import SessionBase
from vstate.sessions.shielding import in_thread
from vstate.sessions.state_module import StateModule, load_all, save_all

_log = logging.getLogger("vstate")

_ESCAPED = re.compile(r"[^a-z0-9.@=+ -]|^[. ]|[. ]$")
_UNESCAPED = re.compile(r"[A-Za-z0-9@=+-][A-Za-z0-9.@=+ -]*")
_LONGEST = 80  # characters of a part of a name; file systems allow 255 bytes for the whole name
_LOCK = ".lock"


class JSONSession(SessionBase):
    """Sessions in a directory: `<session>.json`, `<user>_<session>.json`. The first save makes the directory.

    In file names, characters other than small letters, digits and `.@=+ -` become `%` and hexadecimal digits.
    So no two ids share a file, even if the file system ignores case, and no file is outside the directory. A
    file that AgentScope wrote with capitals in its name is read until the first save replaces it. If an id
    has a "_", such a file may belong to another session: it is not read, and a warning asks to rename it. A
    save replaces the whole file, and the file is on the disk when it returns; a failed save leaves the old
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
        self.save_dir = os.fspath("./" if save_dir is None else save_dir)

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
        parts = [_escaped(check_text("session_id", session_id, empty=False))]
        if user_id:
            parts.insert(0, _escaped(check_text("user_id", user_id, empty=False)))
        return os.path.join(self.save_dir, "_".join(parts) + ".json")

    async def save_session_state(
        self, session_id: str | None = None, user_id: str = "", **modules: StateModule
    ) -> None:
        """As SessionBase. Raises TypeError, with the path, if JSON cannot hold a state, and OSError."""
        name = self._session(session_id)
        path, older = Path(self.path_of(name, user_id)), self._older_path(name, user_id)
        states = save_all(modules)
        await in_thread(lambda: _save(path, older, states))

    async def load_session_state(
        self,
        session_id: str | None = None,
        user_id: str | bool = "",
        allow_not_exist: bool = True,
        **modules: StateModule,
    ) -> None:
        """As SessionBase. Raises CorruptStore for a file that holds no session, and OSError."""
        if isinstance(user_id, bool):  # in older programs allow_not_exist came second
            allow_not_exist, user_id = user_id, ""
        name = self._session(session_id)
        path, older = Path(self.path_of(name, user_id)), self._older_path(name, user_id)
        states = await in_thread(lambda: _load(path, older))
        if states is None:
            self._warn_of_another(name, user_id)
            if not allow_not_exist:
                raise InvalidInput(f"there is no session in {str(path)!r}; allow_not_exist=True ignores that")
            return
        load_all(modules, states, lambda _, reason: CorruptStore(_place(path, older), reason))

    def _session(self, session_id: str | None) -> str:
        if session_id is None:
            session_id = self.session_id
        if session_id is None:
            raise TypeError("a session_id is missing: give one here, or to JSONSession")
        return session_id

    def _older_path(self, session_id: str, user_id: str) -> Path | None:
        """The file that AgentScope would have written, if its name can belong to no other session."""
        ids = [user_id, session_id] if user_id else [session_id]
        plain = all(map(_UNESCAPED.fullmatch, ids)) and len("".join(ids)) <= _LONGEST
        return Path(self.save_dir, "_".join(ids) + ".json") if plain else None

    def _warn_of_another(self, session_id: str, user_id: str) -> None:
        """Log a file that AgentScope may have written for this session, or for another one."""
        path = self.path_of(session_id, user_id)
        other = "_".join([user_id, session_id] if user_id else [session_id]) + ".json"
        try:
            is_there = os.path.basename(other) == other and os.path.isfile(os.path.join(self.save_dir, other))
        except (OSError, ValueError):  # no file can have that name
            return
        if is_there:
            _log.warning(
                "there is no session in %r, but there is %r: rename it if AgentScope wrote it for this "
                "session",
                path,
                other,
            )


def _save(path: Path, older: Path | None, states: dict[str, Any]) -> None:
    make_directory(path.parent)
    with _locked(path.parent / _LOCK):
        text = json.dumps({**(_load(path, older) or {}), **states}, ensure_ascii=False)
        _parse(text)  # JSON writes the keys 1 and "1" alike; refuse such a pair
        replace_file(path, text.encode("utf-8", "surrogatepass"))


def _load(path: Path, older: Path | None) -> dict[str, Any] | None:
    """The states of a session by module; None without a file."""
    found = _read(path)
    if found is None and older is not None and older != path and path.parent.is_dir():
        # Look in the listing: if case is ignored, the file of another session may have this name.
        return _read(older) if older.name in os.listdir(older.parent) else None
    return found


def _place(path: Path, older: Path | None) -> str:
    """The file with the states of a session."""
    return str(path if older is None or path.exists() else older)


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
            twice = next(
                key for index, (key, _) in enumerate(pairs) if any(key == k for k, _ in pairs[:index])
            )
            raise InvalidInput(f"a dict has two keys that JSON writes as {twice!r}")
        return found

    return json.loads(text, object_pairs_hook=unique)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock for saves in a directory. On Windows, processes that save at once may lose modules."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        with locked(descriptor):
            yield
    finally:
        os.close(descriptor)
