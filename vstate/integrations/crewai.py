"""VstateProvider and VstateFlowPersistence: the checkpoints and the states of flows of CrewAI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pydantic import BaseModel, PrivateAttr, model_serializer
from pydantic_core import PydanticSerializationError, to_jsonable_python

from vstate.aio.workers import awaited
from vstate.arguments import check_count, check_text
from vstate.errors import InvalidInput, NotFound, RefMoved
from vstate.integrations import framework_of
from vstate.integrations.branches import BranchName
from vstate.integrations.opening import (
    Changes,
    KeepLike,
    OpenedModel,
    Opening,
    StoreLike,
    required_path,
    summary,
)
from vstate.objects.commit import Commit
from vstate.objects.ids import ObjectId
from vstate.patterns.fields import STEP, Fields, exact
from vstate.plural import counted
from vstate.state.base import ReadableState
from vstate.state.live import Live
from vstate.state.snapshot import Snapshot

with framework_of("crewai"):
    from crewai.flow.async_feedback.types import PendingFeedbackContext
    from crewai.flow.persistence import FlowPersistence
    from crewai.state.provider.json_provider import JsonProvider

_FLOWS: Final = ("crewai", "flows")
_CHECKPOINTS: Final = ("crewai", "checkpoints")
_PENDING: Final = "pending"
_EVENTS: Final = "event_record"
_FORMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ascii": {},
    "compact": {"ensure_ascii": False, "separators": (",", ":")},
    "unicode": {"ensure_ascii": False},
}
"""How a checkpoint is spelled as JSON: CrewAI's listener and `RuntimeState.checkpoint` do it differently."""


class VstateFlowPersistence(OpenedModel, FlowPersistence):
    """The states of flows: `@persist(VstateFlowPersistence("./flows"))`.

    - A flow is the branch `crewai/flows/ID`, and the state after a method is one commit. A field that did not
      change takes no room in the next commit. Each item of a list of dicts or texts is stored once.
    - A state comes back equal, with bytes, tuples, sets, dates and numbers of any kind. A model in a dict
      becomes a dict. Another object, which CrewAI's own persistence stores as its `str()`, is refused, with
      its path. An enum, a path or a URL in a field of a model is stored as its value or text, as pydantic's
      JSON has it: a field with a type makes it anew, and one of type `Any` keeps the text.
    - A branch that was copied is a flow of its own: its state comes back with the new id.

    Of two saves of one flow the later one wins. A save beside a deletion raises NotFound: load the state
    first. Raises InvalidInput for a state that would not come back.
    """

    persistence_type: str = "VstateFlowPersistence"
    path: str | None = None
    """The directory of the store, by which a flow that comes back from a checkpoint opens it again."""
    _opening: Opening = PrivateAttr()
    _fields: Fields = PrivateAttr()

    def __init__(self, store: StoreLike = None, /, *, keep: KeepLike = None, **fields: Any) -> None:
        if store is None and fields:  # a flow that was in a checkpoint
            store = fields.get("path")
            if store is None:
                raise InvalidInput(
                    "the checkpoint of a flow names its VstateFlowPersistence only by a path, and this one "
                    "had no path; open the store as VstateFlowPersistence(PATH) before the checkpoint"
                )
        opening = Opening(store, "crewai.flow", keep=keep, prefix=_FLOWS)
        super().__init__()
        self.path = opening.path
        self._opening = opening
        self._fields = Fields("state")

    def branch(self, flow_uuid: str) -> BranchName:
        """The name of the branch of a flow. Raises InvalidInput for an empty id."""
        return self._opening.branch(check_text("flow_uuid", flow_uuid, empty=False))

    def init_db(self) -> None:
        """Do nothing: a store of vstate needs no preparation."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Store the state after a method as one commit; none if the method left the same state before."""
        self._save(flow_uuid, method_name, _plain(state_data), f"state after {method_name}", {})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """The newest state of the flow, None if there is none."""

        def look(stored: Snapshot) -> dict[str, Any]:
            return _of_flow(flow_uuid, stored, self._fields.load(stored))

        return self._opening.read(self.branch(flow_uuid), look)

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Store the state of a flow that waits for a person, and the question, as one commit."""
        state = _plain(state_data)
        pending = {"context": _plain(context.to_dict()), "state": state}
        message = f"{context.method_name} waits for feedback"
        self._save(flow_uuid, context.method_name, state, message, {_PENDING: pending})

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """The state and the question of a flow that waits for a person; None if it does not wait."""

        def look(stored: Snapshot) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
            if (pending := stored.get(_PENDING)) is None:
                return None
            context = PendingFeedbackContext.from_dict({**pending["context"], "flow_id": flow_uuid})
            return _of_flow(flow_uuid, stored, dict(pending["state"])), context

        return self._opening.read(self.branch(flow_uuid), look)

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Note that the flow waits no more. Its state stays."""
        self._opening.commit(
            self.branch(flow_uuid),
            lambda stored: ({}, [_PENDING]) if _PENDING in stored else None,
            message="feedback received",
        )

    def _save(
        self, flow_uuid: str, method: str, state: dict[str, Any], message: str, beside: Mapping[str, Any]
    ) -> None:
        branch, fields = self.branch(flow_uuid), self._fields
        packed = fields.pack(state)

        def changes(stored: ReadableState) -> Changes:
            new, gone = fields.changes(branch, stored, packed, {"flow": flow_uuid, "method": method})
            return {**beside, **new}, gone

        fields.landed(branch, self._opening.commit(branch, changes, message=summary(message)), packed)


class VstateProvider(OpenedModel, JsonProvider):
    """Checkpoints of crews, flows and agents: `CheckpointConfig(provider=VstateProvider("./runs"))`.

    - The `location` of a `CheckpointConfig` is a name here: the checkpoints are the commits of the branch
      `crewai/checkpoints/LOCATION/BRANCH`, where BRANCH is CrewAI's own, such as `main`. A fork begins at the
      commit of its parent.
    - The id of a checkpoint is that of its commit. Each entity and each event of a run has a key, so those
      that did not change take no room in the next checkpoint.
    - CrewAI restores from files only, so `file` gives a checkpoint as one.

    It is a JsonProvider, because a `CheckpointConfig` takes no provider that is not one of CrewAI's own.
    """

    path: str | None = None
    """The directory of the store, by which a copy of this object opens it again."""
    _opening: Opening = PrivateAttr()
    _fields: Fields = PrivateAttr()

    def __init__(
        self,
        store: StoreLike = None,
        /,
        *,
        path: str | None = None,
        provider_type: str = "json",
        keep: KeepLike = None,
    ) -> None:
        place = path if store is None else store
        opening = Opening(place, "crewai.checkpoint", keep=keep, prefix=_CHECKPOINTS)
        super().__init__()
        self.path = opening.path
        self._opening = opening
        self._fields = Fields("checkpoint")

    @model_serializer(mode="wrap")
    def _dumped(self, handler: Any) -> Any:
        required_path(self)
        return handler(self)

    def branch(self, location: str, branch: str = "main") -> BranchName:
        """The name of the branch with the checkpoints of a location, and of a branch of CrewAI."""
        return self._opening.branch(check_text("location", location, empty=False), branch)

    def checkpoint(
        self, data: str, location: str, *, parent_id: str | None = None, branch: str = "main"
    ) -> str:
        """Store a checkpoint as one commit, and return where it is.

        A new branch begins at the checkpoint `parent_id`, if the store has it.
        """
        name, fields = self.branch(location, branch), self._fields
        record, form = _taken_apart(data)
        packed = fields.pack(record)
        trigger = record.get("trigger") or "on request"
        while True:
            head = self.repo.newest(name)
            self._opening.require_standing(name, head)
            base = self._commit_of(parent_id) if head is None and parent_id else None
            below = head or base
            stored = Live() if below is None else Snapshot(self.repo, below)
            before = {"number": 0, "first": 1} if head is None else stored[STEP]
            number = before["number"] + 1
            facts = {"number": number, "first": before["first"], "form": form}
            new, gone = fields.changes(name, stored, packed, facts)
            message = summary(f"checkpoint {number}: {trigger}")
            try:
                commit = self._opening.commit_on(name, head, new, gone, message=message, base=base)
            except RefMoved:
                continue
            assert commit is not None  # the number is new
            fields.landed(name, commit, packed)
            return f"{name}#{commit.id}"

    acheckpoint = awaited(checkpoint)

    def newest(self, location: str, *, branch: str = "main") -> str | None:
        """Where the newest checkpoint is, for `file` and `from_checkpoint`; None if there is none."""
        name = self.branch(location, branch)

        def look(stored: Snapshot) -> str | None:
            step = stored[STEP]
            return f"{name}#{stored.commit.id}" if step["number"] >= step["first"] else None

        return self._opening.read(name, look)

    def prune(self, location: str, max_keep: int, *, branch: str = "main") -> int:
        """Keep the newest `max_keep` checkpoints, and return how many are gone.

        They cannot be restored any more. History has them until `vstate gc --keep-last` or `repo.squash`.
        """
        check_count("max_keep", max_keep, 0)
        removed = 0

        def changes(stored: ReadableState) -> Changes | None:
            nonlocal removed
            step = stored.get(STEP, {"number": 0, "first": 1})
            removed = max(0, step["number"] - max_keep + 1 - step["first"])
            return ({STEP: {**step, "first": step["first"] + removed}}, ()) if removed else None

        message = f"keep {counted(max_keep, 'checkpoint')}"
        self._opening.commit(self.branch(location, branch), changes, message=message)
        return removed

    def extract_id(self, location: str) -> str:
        """The id of the checkpoint at a location."""
        return location.rpartition("#")[2]

    def from_checkpoint(self, location: str) -> str:
        """The JSON text of a checkpoint; NotFound if there is none, or if it was pruned."""
        branch, _, id = location.rpartition("#")
        commit = self._commit_of(id)

        def look(newest: Snapshot) -> str | None:
            stored = None if commit is None else Snapshot(self.repo, commit)
            if stored is None or stored[STEP]["number"] < newest[STEP]["first"]:
                return None
            return _put_together(self._fields.load(stored), stored[STEP]["form"])

        found = self._opening.read(branch, look, follows=False)
        if found is None:
            raise NotFound(f"there is no checkpoint {location!r}", name=location)
        return found

    afrom_checkpoint = awaited(from_checkpoint)

    @contextmanager
    def file(self, location: str) -> Iterator[str]:
        """A file with the checkpoint, for `CheckpointConfig(restore_from=…)` inside the block: its path."""
        with TemporaryDirectory(prefix="vstate-") as directory:
            # CrewAI takes the id of the checkpoint out of the name.
            path = Path(directory, f"{self.extract_id(location)}_p-none.json")
            path.write_text(self.from_checkpoint(location), encoding="utf-8")
            yield str(path)

    def _commit_of(self, id: str) -> Commit | None:
        try:
            return self.repo.resolve(ObjectId.parse(id))
        except (InvalidInput, NotFound):
            return None


def _plain(state: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    """A copy of the state as plain data. Raises InvalidInput, with the path, if it would not come back."""
    if isinstance(state, BaseModel):
        return dict(exact(state.model_dump(), "the state of a flow", _value))
    if not isinstance(state, dict):
        raise InvalidInput(f"the state of a flow is a dict or a model, not {type(state).__name__}")
    for name in state:
        if not isinstance(name, str):
            raise InvalidInput(f"a field of the state of a flow has a name that is a str, not {name!r}")
    return dict(exact(state, "the state of a flow", _fields_of))


def _fields_of(value: object) -> Any:
    """The fields of a model. Raises TypeError for any other object."""
    if isinstance(value, BaseModel):
        return exact(value.model_dump(), "", _value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no plain data")


def _value(value: object) -> Any:
    """An object in a model as pydantic writes it. Raises TypeError for one that it does not know."""
    try:
        return value.value if isinstance(value, Enum) else to_jsonable_python(value)
    except PydanticSerializationError:
        return _fields_of(value)


def _of_flow(flow_uuid: str, stored: Snapshot, state: dict[str, Any]) -> dict[str, Any]:
    """The state with the id of the flow, which is another one on a branch that was copied."""
    flow = stored[STEP]["flow"]
    if flow != flow_uuid and state.get("id") == flow:
        state["id"] = flow_uuid
    return state


def _taken_apart(data: str) -> tuple[dict[str, Any], str | None]:
    """The data of a checkpoint and the spelling of its text. Any other text is one field, as it is."""
    try:
        record = json.loads(data)
        if type(record) is dict:
            events = record.get(_EVENTS)
            if type(events) is dict and type(events.get("nodes")) is dict:
                record[_EVENTS] = [{id: node} for id, node in events["nodes"].items()]
            for form in _FORMS:
                if _put_together(record, form) == data:
                    return record, form
    except (ValueError, RecursionError):
        pass
    return {"text": data}, None


def _put_together(record: Mapping[str, Any], form: str | None) -> str:
    """The text of a checkpoint out of its data."""
    if form is None:
        return str(record["text"])
    events = record.get(_EVENTS)
    if type(events) is list:
        nodes = {id: node for each in events for id, node in each.items()}
        record = {**record, _EVENTS: {"nodes": nodes}}
    return json.dumps(record, **_FORMS[form])
