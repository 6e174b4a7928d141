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

from vstate.errors import CorruptStore, InvalidInput
from vstate.kv.files import make_directory, replace_file
from vstate.sessions.session_base import SessionBase
from vstate.sessions.settling import in_a_thread
from vstate.sessions.state_module import StateModule, load_all, save_all

try:
    import fcntl
except ImportError:  # where there is none, processes that save at once may lose each other's modules
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("vstate")

_ESCAPED = re.compile(r"[^a-z0-9.@=+ -]|^[. ]|[. ]$")
_AS_IT_WAS = re.compile(r"[A-Za-z0-9@=+-][A-Za-z0-9.@=+ -]*")
_LONGEST = 80  # characters of a part of a name; file systems take 255 bytes for all of it
_LOCK = ".lock"


class JSONSession(SessionBase):
    """Sessions in the directory `save_dir`, made when it is first written to: `<session>.json`, `<user>_<session>.json`.

    Characters of ids other than small letters, digits and `.@=+ -` are written as `%` and hexadecimal digits, so that no
    ids share a file, also where capitals are the same as small letters, and none leads out of the directory. A file that
    AgentScope wrote, with capitals in its name, is read until a first save puts another in its place; one with a "_" in an
    id could be another session's: a warning says that it is there, and is to be renamed. A file is replaced
    whole, and is on the disk when a save returns: one that fails leaves the old file as it was. Saves by
    several processes follow one another.

    `JSONSession(session_id=..., save_dir=...)`, the older way, is one session, whose methods take modules alone.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        *then_save_dir: str | os.PathLike[str],
        session_id: str | None = None,
    ) -> None:
        """In `save_dir`, by default "./"; given two without their names, as it was once, the session_id comes first."""
        if then_save_dir:
            if session_id is not None or len(then_save_dir) > 1:
                raise TypeError("JSONSession takes save_dir, and session_id for one session alone")
            self.session_id: str | None = _checked("session_id", save_dir)
            save_dir = then_save_dir[0]
        else:
            self.session_id = None if session_id is None else _checked("session_id", session_id)
        self.save_dir = os.fspath("./" if save_dir is None else save_dir)

    def __repr__(self) -> str:
        which = "" if self.session_id is None else f"session_id={self.session_id!r}, "
        return f"{type(self).__name__}({which}save_dir={self.save_dir!r})"

    @property
    def save_path(self) -> str:
        """The file of the session that this one was made for."""
        if self.session_id is None:
            raise InvalidInput(
                "save_path is for a JSONSession that was given a session_id; ask path_of(session_id)"
            )
        return self.path_of(self.session_id)

    def path_of(self, session_id: str, user_id: str = "") -> str:
        """The file of a session, which need not be there."""
        parts = [_escaped(_checked("session_id", session_id))]
        if user_id:
            parts.insert(0, _escaped(_checked("user_id", user_id)))
        return os.path.join(self.save_dir, "_".join(parts) + ".json")

    async def save_session_state(
        self, session_id: str | None = None, user_id: str = "", **modules: StateModule
    ) -> None:
        """As promised by SessionBase. Raises TypeError, with the path, for what JSON cannot hold, and OSError."""
        name = self._session(session_id)
        path, older = Path(self.path_of(name, user_id)), self._older_path(name, user_id)
        states = save_all(modules)
        await in_a_thread(lambda: _save(path, older, states))

    async def load_session_state(
        self,
        session_id: str | None = None,
        user_id: str | bool = "",
        allow_not_exist: bool = True,
        **modules: StateModule,
    ) -> None:
        """As promised by SessionBase. Raises CorruptStore for a file that is no session's, and OSError."""
        if isinstance(user_id, bool):  # as it was before there were users
            allow_not_exist, user_id = user_id, ""
        name = self._session(session_id)
        path, older = Path(self.path_of(name, user_id)), self._older_path(name, user_id)
        states = await in_a_thread(lambda: _found(path, older))
        if states is None:
            self._warn_of_another(name, user_id)
            if not allow_not_exist:
                raise InvalidInput(
                    f"there is no session in {str(path)!r}; allow_not_exist=True goes on without"
                )
            return
        load_all(modules, states, lambda _, reason: CorruptStore(_place(path, older), reason))

    def _session(self, session_id: str | None) -> str:
        if session_id is None:
            session_id = self.session_id
        if session_id is None:
            raise TypeError("which session? give a session_id")
        return session_id

    def _older_path(self, session_id: str, user_id: str) -> Path | None:
        """The file that AgentScope would have written, if its name says of itself whose it is."""
        ids = [user_id, session_id] if user_id else [session_id]
        plain = all(map(_AS_IT_WAS.fullmatch, ids)) and len("".join(ids)) <= _LONGEST
        return Path(self.save_dir, "_".join(ids) + ".json") if plain else None

    def _warn_of_another(self, session_id: str, user_id: str) -> None:
        """Tell the log of a file that AgentScope may have written for this session; its name may be another's, too."""
        path = self.path_of(session_id, user_id)
        other = "_".join([user_id, session_id] if user_id else [session_id]) + ".json"
        try:
            is_there = os.path.basename(other) == other and os.path.isfile(os.path.join(self.save_dir, other))
        except (OSError, ValueError):  # no file has that name
            return
        if is_there:
            _log.warning(
                "there is no session in %r, but there is %r: if AgentScope wrote that for it, rename it",
                path,
                other,
            )


def _save(path: Path, older: Path | None, states: dict[str, Any]) -> None:
    make_directory(path.parent)
    with _locked(path.parent / _LOCK):
        text = json.dumps({**(_found(path, older) or {}), **states}, ensure_ascii=False)
        _parse(text)  # two keys that JSON writes alike, 1 and "1", would come back as one
        replace_file(path, text.encode("utf-8", "surrogatepass"))


def _found(path: Path, older: Path | None) -> dict[str, Any] | None:
    """The states of a session by the modules' names; None if it has no file."""
    found = _read(path)
    if found is None and older is not None and older != path and path.parent.is_dir():
        # By the listing: another's file, of the same letters in small, might answer to that name, too.
        return _read(older) if older.name in os.listdir(older.parent) else None
    return found


def _place(path: Path, older: Path | None) -> str:
    """The file that the states of a session were read from."""
    return str(path if older is None or path.exists() else older)


def _checked(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    if not value:
        raise InvalidInput(f"{name} is empty")
    return value


def _escaped(text: str) -> str:
    short = _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), text)
    if len(short) <= _LONGEST:
        return short
    return f"{short[: _LONGEST - 34]}%%{blake3(_bytes(text)).hexdigest(length=16)}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _read(path: Path) -> dict[str, Any] | None:
    """The states of a file by the modules' names; None if there is no such file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = _parse(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise CorruptStore(str(path), f"it is no session's file: {error}") from None
    if not isinstance(found, dict):
        raise CorruptStore(str(path), f"it is no session's file: it holds a {type(found).__name__}")
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
    """Keep other processes and threads from saving in the same directory."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        try:
            if fcntl is not None:
                # Closing alone would leave it to a process that was forked meanwhile, until that one ends.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)
