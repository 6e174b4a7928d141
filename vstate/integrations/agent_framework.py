"""VstateCheckpointStorage and VstateHistoryProvider: workflows and chats of Microsoft's Agent Framework."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, Final

from vstate.aio.workers import awaited, in_thread
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName
from vstate.integrations.opening import AsyncOpened, Changes, KeepLike, Opening, StoreLike, summary
from vstate.patterns.paths import join_path, split_path
from vstate.state.base import ReadableState
from vstate.state.snapshot import Snapshot

with framework_of("agent-framework"):
    from agent_framework import HistoryProvider, Message, WorkflowCheckpoint, WorkflowCheckpointException

    # The framework's other stores import these two modules too: they decide what a checkpoint may load, and
    # which messages of a run are new.
    from agent_framework._sessions import filter_new_messages
    from agent_framework._workflows._checkpoint_encoding import (
        decode_checkpoint_value,
        encode_checkpoint_value,
    )

_log = logging.getLogger("vstate")

_CHECKPOINTS: Final = "checkpoints"
_ABOUT: Final = "about"
_STATE: Final = "state"
_APART: Final = ("messages", "pending_request_info_events")
"""The fields that have keys of their own, beside the state: those that can be long."""


class VstateCheckpointStorage(AsyncOpened):
    """Checkpoints of workflows: `WorkflowBuilder(..., checkpoint_storage=VstateCheckpointStorage("./runs"))`.

    - The checkpoints of a workflow are the keys `checkpoints/ID/…` of the branch
      `agent_framework/workflows/NAME`. Each change of them is one commit. Each part of the state has a key,
      so a long part that did not change takes no room in the next checkpoint.
    - The framework's own rules decide which classes a checkpoint may load: its own, and those of
      `allowed_checkpoint_types` and `register_checkpoint_type`. A checkpoint that could not be loaded is
      refused when it is saved. So is one whose previous checkpoint this storage had, and was deleted since.
    """

    def __init__(
        self,
        store: StoreLike = None,
        *,
        allowed_checkpoint_types: Iterable[str] = (),
        keep: KeepLike = None,
    ) -> None:
        prefix = ("agent_framework", "workflows")
        self._opening = Opening(store, "agent_framework.workflow", keep=keep, prefix=prefix)
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a copy of the checkpoint, in place of one with its id, and return the id.

        Raises WorkflowCheckpointException for a checkpoint that could not be loaded again.
        """
        # Before the first await: the workflow may go on to change the state.
        encoded = self._encoded(checkpoint)
        await in_thread(lambda: self._save(encoded))
        return str(checkpoint.checkpoint_id)

    @awaited
    def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """The checkpoint with that id; WorkflowCheckpointException if there is none."""
        for _, stored in self._opening.read_all(lambda state: _stored(state, checkpoint_id)):
            for parts in stored:
                return self._decoded(parts)
        raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")

    @awaited
    def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """The checkpoints of the workflow, by their time. One that may not be loaded is only logged."""
        stored = self._opening.read(self._opening.branch(workflow_name), _stored)
        checkpoints = []
        for parts in sorted(stored or (), key=lambda parts: _time(parts[_ABOUT])):
            try:
                checkpoints.append(self._decoded(parts))
            except WorkflowCheckpointException as error:
                _log.warning("checkpoint %s is left out: %s", parts[_ABOUT]["checkpoint_id"], error)
        return checkpoints

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """The ids of `list_checkpoints`."""
        return [each.checkpoint_id for each in await self.list_checkpoints(workflow_name=workflow_name)]

    @awaited
    def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest checkpoint of the workflow by its time, None if there is none."""

        def look(state: Snapshot) -> dict[str, Any] | None:
            abouts = (parts[_ABOUT] for parts in _stored(state, field=_ABOUT))
            newest = max(abouts, key=_time, default=None)
            return None if newest is None else _stored(state, newest["checkpoint_id"])[0]

        parts = self._opening.read(self._opening.branch(workflow_name), look)
        return None if parts is None else self._decoded(parts)

    @awaited
    def delete(self, checkpoint_id: str) -> bool:
        """Delete the checkpoint, and return whether there was one. History keeps it until it is squashed."""

        def changes(state: ReadableState) -> Changes | None:
            found = _keys(state, checkpoint_id)
            return ({}, found) if found else None

        message = summary(f"checkpoint {checkpoint_id} deleted")
        found = self._opening.read_all(lambda state: _keys(state, checkpoint_id) or None)
        branches = [self._opening.branch(name) for (name,), _ in found]
        return any(self._opening.commit(branch, changes, message=message) for branch in branches)

    # The keys of a checkpoint

    def _encoded(self, checkpoint: WorkflowCheckpoint) -> dict[str, Any]:
        try:
            encoded = encode_checkpoint_value(checkpoint.to_dict())
            decode_checkpoint_value(encoded, allowed_types=self._allowed)
        except WorkflowCheckpointException:
            raise
        except Exception as error:  # pickling runs the classes' own code, which may raise anything
            raise WorkflowCheckpointException(
                f"Checkpoint {checkpoint.checkpoint_id} cannot be stored: {error}"
            ) from error
        return dict(encoded)

    def _save(self, encoded: dict[str, Any]) -> None:
        id, state = encoded["checkpoint_id"], encoded.pop(_STATE)
        apart = {field: encoded.pop(field) for field in _APART}
        # The order of the state's keys, which the keys of the store do not have.
        keys = {join_path(_CHECKPOINTS, id, _ABOUT): {**encoded, _STATE: list(state)}}
        keys |= {join_path(_CHECKPOINTS, id, field): value for field, value in apart.items()}
        keys |= {join_path(_CHECKPOINTS, id, _STATE, key): value for key, value in state.items()}
        before = encoded.get("previous_checkpoint_id")

        def changes(state: ReadableState) -> Changes:
            if before and self._opening.knows(before) and not _keys(state, before):
                raise WorkflowCheckpointException(
                    f"Checkpoint {id} is not saved: the checkpoint {before} before it was deleted"
                )
            return keys, [key for key in _keys(state, id) if key not in keys]

        message = summary(f"checkpoint {id} of superstep {encoded['iteration_count']}")
        self._opening.commit(self._opening.branch(encoded["workflow_name"]), changes, message=message)
        self._opening.know(id)

    def _decoded(self, parts: Mapping[str, Any]) -> WorkflowCheckpoint:
        about = parts[_ABOUT]
        self._opening.know(about["checkpoint_id"])
        encoded = {**about, **{field: parts[field] for field in _APART}}
        encoded[_STATE] = {key: parts[_STATE][key] for key in about[_STATE]}
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(encoded, allowed_types=self._allowed))


def _keys(state: ReadableState, id: str) -> list[str]:
    return list(state.keys(join_path(_CHECKPOINTS, id) + "/"))


def _stored(state: Snapshot, id: str | None = None, *, field: str | None = None) -> list[dict[str, Any]]:
    """The parts of each checkpoint, or of the one with the id, by their names; or one field alone."""
    prefix = f"{_CHECKPOINTS}/" if id is None else join_path(_CHECKPOINTS, id) + "/"
    found: dict[str, dict[str, Any]] = {}
    for key in state.keys(prefix):
        _, checkpoint, name, *rest = split_path(key)
        parts = found.setdefault(checkpoint, {_STATE: {}})
        if field in (None, name):
            target, part = (parts[_STATE], rest[0]) if rest else (parts, name)
            target[part] = state[key]
    return list(found.values())


class _Messages:
    """The index of a chat's journal: its messages as they are stored, and as objects."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.messages: list[Message] = []

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self.messages.append(_message(record))


class VstateHistoryProvider(AsyncOpened, HistoryProvider):
    """The messages of chats: `Agent(..., context_providers=[VstateHistoryProvider("./chats")])`.

    - A session is the branch `agent_framework/history/SOURCE/SESSION`, and the messages of a run are one
      commit. `vstate log` and `diff` show them.
    - The flags are those of `HistoryProvider`. With `skip_excluded`, messages that compaction has excluded
      are not given to the agent.
    - A run that is stored twice, or again with all messages before it, adds each message once, by the
      framework's own comparison.
    - A run that began before its session was deleted raises NotFound when it is stored, and the framework
      reads the session before the next run. With `load_messages=False` it begins the session anew.
    """

    def __init__(
        self,
        store: StoreLike = None,
        source_id: str = "vstate_history",
        *,
        skip_excluded: bool = False,
        keep: KeepLike = None,
        **flags: Any,
    ) -> None:
        prefix = ("agent_framework", "history", source_id)
        self._opening = Opening(store, "agent_framework.history", keep=keep, prefix=prefix)
        super().__init__(source_id, **flags)
        self.skip_excluded = skip_excluded
        self._journals = self._opening.chats(_Messages, "messages")

    @awaited
    def get_messages(
        self, /, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """The messages of the session, oldest first."""
        records = self._journals.read(self._branch(session_id), lambda history: [*history.records])
        messages = [_message(record) for record in records]
        if not self.skip_excluded:
            return messages
        return [each for each in messages if not each.additional_properties.get("_excluded", False)]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add those of the messages that are new, as one commit."""
        # Before the first await: the agent may go on to change them.
        given = [Message.from_dict(deepcopy(message.to_dict())) for message in messages]
        if not given:
            return

        branch = self._branch(session_id)

        def new(history: _Messages) -> list[dict[str, Any]]:
            return [message.to_dict() for message in filter_new_messages(history.messages, given)]

        def save() -> None:
            message = summary(*(f"{message.role}: {message.text.strip()}" for message in given))
            self._journals.write(branch, new, message, follows=self.load_messages)

        await in_thread(save)

    @awaited
    def clear(self, session_id: str | None, *, keep_history: bool = False) -> None:
        """Delete the session's messages. With `keep_history`, the reflog keeps them for 30 days."""
        self._journals.delete(self._branch(session_id), keep_history=keep_history)

    def _branch(self, session_id: str | None) -> BranchName:
        named = () if session_id is None else (session_id,)
        return self._opening.branch(*named)


def _time(about: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(about["timestamp"])


def _message(record: dict[str, Any]) -> Message:
    return Message.from_dict(deepcopy(record))
