"""VersionedSession: sessions in a versioned store, one commit a save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from os import PathLike
from typing import Any, Self

from vstate import aio
from vstate.arguments import check_count, check_text
from vstate.errors import InvalidRecord, NotFound
from vstate.kv.base import KVStore
from vstate.kv.url import check_store
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path, split_path
from vstate.plural import counted
from vstate.repo.core import Revision
from vstate.repo.history import ROLLED_BACK, rolled_back
from vstate.sessions.rounds import ids_of
from vstate.sessions.state_module import Module, SessionBase, load_found, save_all
from vstate.state.base import ReadableState, State
from vstate.state.versioned import Versioned

_SESSIONS = "sessions"
_MODULES = "modules"


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A saved session: its ids, the number of saves, the time of the last one (UTC), and its modules."""

    user_id: str
    session_id: str
    saves: int
    saved_at: datetime
    modules: tuple[str, ...]


class VersionedSession(SessionBase):
    """Sessions on a branch of a store, path or URL; each save, rollback and deletion is one commit.

    The branch is `branch`, or else the branch that HEAD is on when the first call opens the store.
    Each module has its own key, `modules/<user>/<session>/<module>`, so a growing conversation is stored
    once, and `vstate diff` shows the changes of a save. Processes may share the store. A save raises
    Unpicklable or StoreUnavailable, and then saves nothing.

    The first call opens the store; `close` or the end of `async with` closes it.
    """

    def __init__(
        self, store: KVStore | str | PathLike[str] | None = None, *, branch: str | None = None
    ) -> None:
        self._state = aio.Versioned(check_store(store), branch=branch)

    @property
    def state(self) -> aio.Versioned:
        """The state with the sessions."""
        return self._state

    async def save_session_state(self, session_id: str, user_id: str = "", **modules: Module) -> None:
        """As SessionBase, by one commit, even if nothing changed. Raises TypeError, StorageError."""
        path, states = _path(user_id, session_id), save_all(modules)

        def save(state: Versioned) -> None:
            for name, saved in states.items():
                state[_module_key(path, name)] = saved
            _note_save(state, path)

        await self._commit(save, "save", user_id, session_id)

    async def load_session_state(  # type: ignore[override]  # no module is called "rev"
        self,
        session_id: str,
        user_id: str = "",
        allow_not_exist: bool = True,
        *,
        rev: Revision | None = None,
        **modules: Module,
    ) -> None:
        """As SessionBase; with `rev`, load the session as it was at that revision.

        Raises NotFound for an unknown revision, StorageError.
        """
        path = _path(user_id, session_id)

        saved: list[str] = []

        def read(state: ReadableState) -> dict[str, Any] | None:
            if _session_key(path) not in state:
                return None
            saved[:] = _module_names(state, path)
            return {
                name: state[_module_key(path, name)] for name in modules if _module_key(path, name) in state
            }

        states = await self._state.read(lambda state: read(state if rev is None else state.checkout(rev)))
        where = "" if rev is None else f" at {rev}"
        load_found(
            repr(session_id),
            modules,
            states,
            lambda name, reason: InvalidRecord(_module_key(path, name), reason),
            absent=f"there is no session {_title(session_id, user_id)}{where}; list_sessions() lists all",
            allow_not_exist=allow_not_exist,
            saved=saved,
        )

    async def history(self, session_id: str, user_id: str = "", *, limit: int | None = None) -> list[Commit]:
        """The commits of a session, newest first: saves, rollbacks and deletions."""
        key = _session_key(_path(user_id, session_id))
        return await self._state.read(lambda state: list(state.log(key=key, limit=limit)))

    async def rollback(self, session_id: str, steps: int = 1, user_id: str = "") -> Commit:
        """Take one session back by `steps` of its commits, as a new commit on top: no history is lost.

        Another call goes further back: a rollback counts as the commit that it went back to. Other sessions
        stay as they are. Raises NotFound if the session has fewer commits.
        """
        check_count("steps", steps, 1)
        path = _path(user_id, session_id)
        key = _session_key(path)
        commits: list[Commit] = []
        info: dict[str, str | None] = {}

        def restore(state: Versioned) -> None:
            history = state.repo.history

            def changed(before: Commit | None, after: Commit) -> bool:
                return history.changes_key(after, key, first_parent=True)

            found = () if state.head is None else history.going_back(state.head, key, changed)
            commits[:] = [commit for commit, _ in islice(found, steps + 1)]
            if len(commits) <= steps:
                raise NotFound(
                    f"the session {_title(session_id, user_id)} has "
                    f"{counted(max(len(commits) - 1, 0), 'earlier commit')}, so it cannot go back by {steps}",
                    name=session_id,
                )
            info.update(rolled_back(commits[steps], key))
            target = state.checkout(commits[steps])
            then = dict(target.items(_modules(path)))
            for gone in set(state.keys(_modules(path))) - then.keys():
                del state[gone]
            state.update(then)
            if key in target:
                _note_save(state, path)
            elif key in state:
                del state[key]

        commit = await self._commit(
            restore, f"roll back by {steps}", user_id, session_id, **{ROLLED_BACK: info}
        )
        return commit or commits[0]

    async def list_sessions(self, user_id: str | None = None) -> list[SavedSession]:
        """The saved sessions of one user, or of all."""
        prefix = f"{_SESSIONS}/" if user_id is None else f"{join_path(_SESSIONS, user_id)}/"

        def read(state: ReadableState) -> list[SavedSession]:
            found = []
            for key, saved in state.items(prefix):
                user, session = ids_of(key)
                _require_saved(key, saved)
                modules = tuple(_module_names(state, join_path(user, session)))
                found.append(SavedSession(user, session, saved["saves"], saved["saved_at"], modules))
            return found

        return await self._state.read(read)

    async def delete_session(self, session_id: str, user_id: str = "") -> bool:
        """Delete a session; history keeps it. Returns False if there is none."""
        path = _path(user_id, session_id)

        def delete(state: Versioned) -> None:
            if _session_key(path) in state:
                for key in [_session_key(path), *state.keys(_modules(path))]:
                    del state[key]

        return await self._commit(delete, "delete", user_id, session_id) is not None

    async def _commit(
        self, change: Callable[[Versioned], None], verb: str, user_id: str, session_id: str, **more: Any
    ) -> Commit | None:
        name = f"{user_id}/{session_id}" if user_id else session_id
        info = {"session_id": session_id, "user_id": user_id, **more}
        return await self._state.apply(change, message=f"{verb}: session {name}", **info)

    async def close(self) -> None:
        """Close the store, unless the program passed it."""
        await self._state.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._state.location}>"

    async def __aenter__(self) -> Self:
        await self._state
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


def _title(session_id: str, user_id: str) -> str:
    return f"{session_id!r} of user {user_id!r}" if user_id else repr(session_id)


def _path(user_id: str, session_id: str) -> str:
    check_text("session_id", session_id, empty=False)
    return join_path(check_text("user_id", user_id), session_id)


def _session_key(path: str) -> str:
    return f"{_SESSIONS}/{path}"


def _modules(path: str) -> str:
    return f"{_MODULES}/{path}/"


def _module_key(path: str, name: str) -> str:
    return _modules(path) + join_path(name)


def _module_names(state: ReadableState, path: str) -> list[str]:
    return [split_path(key)[-1] for key in state.keys(_modules(path))]


def _require_saved(session_key: str, saved: Any) -> None:
    """Raise InvalidRecord unless `_note_save` wrote the value."""
    is_dict = isinstance(saved, dict)
    if not (is_dict and isinstance(saved.get("saves"), int) and isinstance(saved.get("saved_at"), datetime)):
        raise InvalidRecord(session_key, "it is no session of a VersionedSession")


def _note_save(state: State, path: str) -> None:
    key, saves = _session_key(path), 0
    if key in state:
        _require_saved(key, state[key])
        saves = state[key]["saves"]
    state[key] = {"saves": saves + 1, "saved_at": datetime.now(UTC)}
