"""VstateDb: sessions and memories of agno, each a branch of the store."""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import time
from typing import Any, Final
from uuid import uuid4

from vstate.arguments import check_several
from vstate.errors import NotFound
from vstate.integrations import framework_of
from vstate.integrations.branches import beginnings
from vstate.integrations.opening import Changes, KeepLike, Opened, Opening, StoreLike, summary
from vstate.objects.commit import Commit
from vstate.patterns.paths import join_path
from vstate.state.base import ReadableState
from vstate.state.snapshot import Snapshot

with framework_of("agno"):
    from agno.db import utils
    from agno.db.base import BaseDb
    from agno.db.in_memory import InMemoryDb

_SESSION: Final = "session"
_MEMORY: Final = "memory"
_PARTS: Final = {_SESSION: "sessions", _MEMORY: "memories"}
_RUNS: Final = "runs"
_USER: Final = "user"

_Row = dict[str, Any]


class VstateDb(Opened, BaseDb):
    """Sessions and memories of agno: `Agent(db=VstateDb("./chats"), update_memory_on_run=True)`.

    - A session is the branch `agno/sessions/SESSION`, with the keys `session` and `runs/RUN`. A memory is the
      branch `agno/memories/MEMORY`. Each change is one commit, made out of the newest one.
    - A row of a user is changed and deleted by that user, or by a call without a user.
    - A deletion leaves nothing in the store; with `keep_history`, the reflog keeps it for 30 days. A run
      that goes on after the deletion of its session gets NotFound, which agno writes to its log.
    - Rows are stored as the JSON of agno's own dbs, and reading them loads no class but agno's.
    - `keep` is for sessions; memories stay.

    The other methods of a db, such as those for traces and metrics, raise NotImplementedError.
    """

    def __init__(
        self,
        store: StoreLike = None,
        *,
        keep_history: bool = False,
        keep: KeepLike = None,
        id: str | None = None,
    ) -> None:
        BaseDb.__init__(self, id=id)
        self._keep_history = keep_history
        sessions = beginnings("agno", _PARTS[_SESSION])
        self._opening = Opening(store, keep=keep, prefix=("agno",), branches=sessions)

    # Sessions

    def upsert_session(self, session: Any, deserialize: bool = True) -> Any:
        """Store a session, and its runs if it is new; None, and no change, if it is another user's."""
        session.created_at = session.created_at or int(time())
        return self._change(_SESSION, session.session_id, "upsert_session", session, deserialize)

    def upsert_sessions(self, sessions: Iterable[Any], deserialize: bool = True, **_: Any) -> list[Any]:
        """Store the sessions, one after the other; those that are another user's are left out."""
        return [*filter(None, (self.upsert_session(each, deserialize) for each in sessions))]

    def rename_session(self, session_id: str, *args: Any, **options: Any) -> Any:
        """Give a session a name; None if there is none, or if it is another user's or of another type."""
        return self._change(_SESSION, session_id, "rename_session", session_id, *args, **options)

    def get_session(self, session_id: str, *args: Any, **options: Any) -> Any:
        """A session with its runs; None if there is none, or if it is another user's."""
        return self._one(_SESSION, session_id).get_session(session_id, *args, **options)

    def get_sessions(
        self,
        session_type: Any = None,
        user_id: str | None = None,
        *args: Any,
        deserialize: bool = True,
        include_runs: bool = True,
        **options: Any,
    ) -> Any:
        """The sessions that are asked for, or their rows with a count. Runs are read for these alone."""
        found = self._found(_SESSION, user_id)
        db = _db(_SESSION, {id: row for id, (_, row) in found.items()})
        rows, count = db.get_sessions(session_type, user_id, *args, deserialize=False, **options)
        for row in rows if include_runs else ():
            id = row["session_id"]
            runs = self._opening.read(self._branch(_SESSION, id), _runs, at=found[id][0], follows=False)
            row[_RUNS] = [{**run, "session_id": id} for run in runs or ()]
        return utils.deserialize_sessions(session_type, rows) if deserialize else (rows, count)

    def delete_session(self, session_id: str, user_id: str | None = None) -> bool:
        """Delete a session with its runs; False if there is none, or if it is another user's."""
        mine = self.get_session(session_id, user_id=user_id, deserialize=False)
        return mine is not None and self._delete(_SESSION, session_id)

    def delete_sessions(self, session_ids: Iterable[str], user_id: str | None = None) -> None:
        """Delete these sessions, but for those of other users."""
        for id in check_several(session_ids, "delete_sessions", "ids"):
            self.delete_session(id, user_id)

    def upsert_run(
        self, run: Any, session_id: str, user_id: str | None = None, run_index: int | None = None
    ) -> None:
        """Store a run, which keeps its place, unless its session is another user's. NotFound without one."""
        made = _plain(run if isinstance(run, dict) else run.to_dict())
        key = join_path(_RUNS, made["run_id"])

        def changes(state: ReadableState) -> Changes | None:
            if _SESSION not in state:
                raise NotFound(f"no session {session_id!r}", name=session_id)
            if user_id is not None and state[_SESSION].get("user_id") not in (None, user_id):
                return None
            place = state[key]["run_index"] if key in state else run_index
            index = len([*state.keys(f"{_RUNS}/")]) if place is None else place
            return {key: {**made, "run_index": index}}, ()

        message = summary(f"run {made.get('status')}: {made.get('content')}")
        self._opening.commit(self._branch(_SESSION, session_id), changes, message=message)

    def get_run(self, run_id: str, deserialize: bool = True) -> Any:
        """A run, None if there is none. It looks in all sessions."""
        key = join_path(_RUNS, run_id)

        def look(state: Snapshot) -> tuple[_Row, str | None] | None:
            return (state[key], state[_SESSION].get("user_id")) if key in state else None

        for (_, id), (stored, user_id) in self._opening.read_all(look, _PARTS[_SESSION]):
            run = {**stored, "session_id": id}
            row = utils.build_single_run_row(run, id, user_id)
            return utils.deserialize_run(row["run_type"], run) if deserialize else row
        return None

    # Memories

    def upsert_user_memory(self, memory: Any, deserialize: bool = True) -> Any:
        """Store a memory; None, and no change, if it is another user's. It gets an id if it has none."""
        memory.memory_id = memory.memory_id or str(uuid4())
        return self._change(_MEMORY, memory.memory_id, "upsert_user_memory", memory, deserialize)

    def upsert_memories(self, memories: Iterable[Any], deserialize: bool = True, **_: Any) -> list[Any]:
        """Store the memories, one after the other; those that are another user's are left out."""
        return [*filter(None, (self.upsert_user_memory(each, deserialize) for each in memories))]

    def get_user_memory(self, memory_id: str, *args: Any, **options: Any) -> Any:
        """A memory; None if there is none, or if it is another user's."""
        return self._one(_MEMORY, memory_id).get_user_memory(memory_id, *args, **options)

    def get_user_memories(self, user_id: str | None = None, *args: Any, **options: Any) -> Any:
        """The memories that are asked for, or their rows with a count."""
        return self._memories(user_id).get_user_memories(user_id, *args, **options)

    def get_all_memory_topics(self, user_id: str | None = None) -> list[str]:
        """The topics of a user's memories, or of all."""
        return list(self._memories(user_id).get_all_memory_topics(user_id))

    def get_user_memory_stats(self, *args: Any, **options: Any) -> Any:
        """For each user the count of memories and the time of the newest; and the count of users."""
        return self._memories().get_user_memory_stats(*args, **options)

    def delete_user_memory(self, memory_id: str, user_id: str | None = None) -> None:
        """Delete a memory, unless it is another user's."""
        if self.get_user_memory(memory_id, user_id=user_id) is not None:
            self._delete(_MEMORY, memory_id)

    def delete_user_memories(self, memory_ids: Iterable[str], user_id: str | None = None) -> None:
        """Delete these memories, but for those of other users."""
        for id in check_several(memory_ids, "delete_user_memories", "ids"):
            self.delete_user_memory(id, user_id)

    def clear_memories(self) -> None:
        """Delete the memories of all users."""
        self.delete_user_memories(id for _, id in self._opening.sessions(_PARTS[_MEMORY]))

    # Rows

    def _branch(self, kind: str, id: str) -> str:
        return self._opening.branch(_PARTS[kind], id)

    def _delete(self, kind: str, id: str) -> bool:
        return self._opening.delete(self._branch(kind, id), keep_history=self._keep_history) is not None

    def _one(self, kind: str, id: str) -> Any:
        """A db of agno with this row, and the runs of a session."""
        row = self._opening.read(self._branch(kind, id), partial(_row, kind, with_runs=kind == _SESSION))
        return _db(kind, {id: row})

    def _found(self, kind: str, user_id: str | None) -> dict[str, tuple[Commit, _Row]]:
        """The newest commits and the rows of a user, or of all, but not the runs of sessions."""

        def look(state: Snapshot) -> tuple[Commit, _Row] | None:
            return None if (row := _row(kind, state)) is None else (state.commit, row)

        labels = {} if user_id is None else {_USER: user_id}
        return {id: found for (_, id), found in self._opening.read_all(look, _PARTS[kind], labels=labels)}

    def _memories(self, user_id: str | None = None) -> Any:
        """A db of agno with the memories of a user, or of all."""
        return _db(_MEMORY, {id: row for id, (_, row) in self._found(_MEMORY, user_id).items()})

    def _change(self, kind: str, id: str, method: str, *args: Any, **options: Any) -> Any:
        """The result of a method of agno that changes a row, which is stored then; None if it may not."""
        owner = getattr(args[0], "user_id", None)
        result: Any = None

        def changes(state: ReadableState) -> Changes | None:
            nonlocal result
            old = _row(kind, state, with_runs=method == "rename_session")  # its result has them
            db = _db(kind, {id: old})
            is_foreign = kind == _MEMORY and old is not None and old.get("user_id") not in (None, owner)
            result = None if is_foreign else getattr(db, method)(*args, **options)
            if result is None:
                return None
            row = _plain(db._sessions[id] if kind == _SESSION else db._memories[0])
            runs = row.pop(_RUNS, None) or []
            if old is not None:
                return {kind: {**row, "created_at": old.get("created_at")}}, ()
            own = {join_path(_RUNS, run["run_id"]): {**run, "run_index": n} for n, run in enumerate(runs)}
            return {kind: row, **own}, ()

        labels = {} if owner is None else {_USER: owner}
        branch, message = self._branch(kind, id), summary(f"{kind} {id}")
        self._opening.commit(branch, changes, message=message, labels=labels)
        return result


def _plain(row: _Row) -> _Row:
    return dict(json.loads(json.dumps(row, cls=utils.CustomJSONEncoder)))


def _row(kind: str, state: ReadableState, *, with_runs: bool = False) -> _Row | None:
    """The stored row of a branch; None without one."""
    if kind not in state:
        return None
    return {**state[kind], _RUNS: _runs(state)} if with_runs else dict(state[kind])


def _runs(state: ReadableState) -> list[_Row]:
    return sorted(state.values(f"{_RUNS}/"), key=lambda run: (run["run_index"], run.get("created_at") or 0))


def _db(kind: str, rows: Mapping[str, _Row | None]) -> Any:
    """A db of agno with these rows. In a copy of a branch a row has the id of the copy."""
    db = InMemoryDb()
    for id, row in rows.items():
        if row is not None and kind == _MEMORY:
            db._memories.append({**row, "memory_id": id})
        elif row is not None:
            runs = row.get(_RUNS)
            runs = runs and [{**run, "session_id": id} for run in runs]
            db._sessions[id] = {**row, "session_id": id, _RUNS: runs}
    return db


def _not_stored(name: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"VstateDb stores sessions and memories: {name} needs another db of agno")

    return call


for _name in {*BaseDb.__abstractmethods__, "get_runs", "delete_run", "delete_runs"} - vars(VstateDb).keys():
    setattr(VstateDb, _name, _not_stored(_name))
abc.update_abstractmethods(VstateDb)
