"""VstateStepStore: the steps of runs of the Pydantic AI harness, each run a branch of the store."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Final

from vstate.aio.workers import awaited, in_thread
from vstate.arguments import check_count
from vstate.errors import InvalidInput
from vstate.integrations import framework_of
from vstate.integrations.opening import AsyncOpened, Changes, KeepLike, Opening, StoreLike, copied, summary
from vstate.readers.chats import HarnessSteps
from vstate.state.base import ReadableState
from vstate.state.snapshot import Snapshot

with framework_of("pydantic-ai-harness"):
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_ai_harness import step_persistence as steps

_RUN: Final = "run"
# As in the JSON of Pydantic AI, bytes are base64.
_JSON: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_FORMS: Final[dict[str, TypeAdapter[Any]]] = {
    _RUN: TypeAdapter(list[steps.RunRecord], config=_JSON),
    "event": TypeAdapter(list[steps.StepEvent], config=_JSON),
    "snapshot": TypeAdapter(list[steps.ContinuableSnapshot], config=_JSON),
    "effect": TypeAdapter(list[steps.ToolEffectRecord], config=_JSON),
}


class VstateStepStore(AsyncOpened, steps.StepStore):
    """Steps of runs: `StepPersistence(store=VstateStepStore("./runs"))`.

    - A run is the branch `pydantic_ai_harness/RUN`. Each event, snapshot and tool effect is one commit,
      durable when the call returns. So a tool begins after its effect was stored as "started".
    - A message is stored once, however many snapshots have it, while the history only grows.
    - An event or a snapshot with an idempotency key that the run had before changes nothing.
    - `max_snapshots_per_run` leaves so many of the newest snapshots, and the newest one that is complete.
    - Records are stored as the JSON of Pydantic AI, and reading them loads no class but its own.
    - A run that goes on after it was deleted gets NotFound, and nothing is stored.
    """

    def __init__(
        self,
        store: StoreLike = None,
        *,
        max_snapshots_per_run: int | None = None,
        keep_history: bool = False,
        keep: KeepLike = None,
    ) -> None:
        check_count("max_snapshots_per_run", max_snapshots_per_run, 1, none="None for all")
        self._most = max_snapshots_per_run
        self._opening = Opening(store, "pydantic_ai_harness", keep=keep, prefix=("pydantic_ai_harness",))
        self._keep_history = keep_history
        self._journals = self._opening.chats(HarnessSteps, "steps")

    async def register_run(self, record: steps.RunRecord) -> None:
        """Store the record of a new run. InvalidInput if there is one, but for the same registration."""
        about, branch = _plain(_RUN, record), self._opening.branch(record.run_id)

        def changes(state: ReadableState) -> Changes | None:
            known = state.get(_RUN)
            if known is None:
                return {_RUN: about}, ()
            if about["registration_id"] is None or known["registration_id"] != about["registration_id"]:
                raise InvalidInput(f"run {about['run_id']!r} is registered already: choose another id")
            return None

        labels = _labels(record.conversation_id, record.parent_run_id)
        message = summary(f"run of {record.agent_name or 'an agent'}")
        await in_thread(lambda: self._opening.commit(branch, changes, message=message, labels=labels))

    @awaited
    def get_run(self, *, run_id: str) -> steps.RunRecord | None:
        """The record of a run, None if none was registered."""
        about = self._opening.read(self._opening.branch(run_id), _run_of)
        return None if about is None else _made(_RUN, run_id, about)[0]

    @awaited
    def list_runs(
        self, *, parent_run_id: str | None = None, conversation_id: str | None = None
    ) -> list[steps.RunRecord]:
        """The records of all runs, or of those of a parent or a conversation; the oldest run is first."""
        abouts = self._opening.read_all(_run_of, labels=_labels(conversation_id, parent_run_id))
        found = [run for (run_id,), about in abouts for run in _made(_RUN, run_id, about)]
        return sorted(found, key=lambda run: run.started_at.timestamp())

    async def append_event(self, event: steps.StepEvent) -> None:
        """Append an event to its run."""
        await self._append("event", event, " ".join(filter(None, [event.kind, event.tool_name])))

    async def list_events(self, *, run_id: str) -> list[steps.StepEvent]:
        """The events of a run, the oldest first."""
        return await self._read("event", run_id, {})

    async def save_snapshot(self, snapshot: steps.ContinuableSnapshot) -> None:
        """Append a snapshot to its run."""
        await self._append("snapshot", snapshot, f"snapshot of step {snapshot.step_index}, {snapshot.state}")

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> steps.ContinuableSnapshot | None:
        """The newest snapshot that is complete, or the newest of all; None if there is none."""
        wanted = {} if include_interrupted else {"state": "complete"}
        return next(iter(await self._read("snapshot", run_id, wanted, 1)), None)

    async def list_snapshots(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> list[steps.ContinuableSnapshot]:
        """The snapshots that are complete, or all; the oldest is first."""
        wanted = {} if include_interrupted else {"state": "complete"}
        return await self._read("snapshot", run_id, wanted)

    async def record_tool_effect(self, record: steps.ToolEffectRecord) -> None:
        """Store how far a tool call has come, in place of what was stored of it before."""
        await self._append("effect", record, f"tool {record.tool_name} {record.status}")

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> steps.ToolEffectRecord | None:
        """How far a tool call has come, None if nothing is stored of it."""
        return next(iter(await self._read("effect", run_id, {"tool_call_id": tool_call_id})), None)

    async def list_unresolved_tool_effects(self, *, run_id: str) -> list[steps.ToolEffectRecord]:
        """The tool calls that have started, and of which no end is stored."""
        return await self._read("effect", run_id, {"status": "started"})

    @awaited
    def delete_run(self, run_id: str) -> bool:
        """Delete a run; whether it was there. With `keep_history`, the reflog keeps it for 30 days."""
        branch = self._opening.branch(run_id)
        return self._journals.delete(branch, keep_history=self._keep_history) is not None

    async def _append(self, kind: str, record: Any, message: str) -> None:
        about, branch = _plain(kind, record), self._opening.branch(record.run_id)

        def plan(known: HarnessSteps) -> list[dict[str, Any]]:
            key = about["idempotency_key"]
            if kind != "effect" and key is not None and (kind, key) in known.keys:
                return []
            if kind != "snapshot":
                return [{kind: about}]
            given = about["messages"]
            # By their texts: 1, 1.0 and True are equal.
            pairs = zip(map(repr, known.messages), map(repr, given), strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            return [{kind: {**about, "messages": given[same:]}, "follows": same, "most": self._most}]

        await in_thread(lambda: self._journals.write(branch, plan, summary(message)))

    async def _read(self, kind: str, run_id: str, wanted: dict[str, str], most: int = 0) -> list[Any]:
        """The records with these fields, or the newest ones of these."""

        def look(known: HarnessSteps) -> list[dict[str, Any]]:
            return [each for each in known.rows[kind] if wanted.items() <= each.items()][-most:]

        branch = self._opening.branch(run_id)
        return await in_thread(lambda: _made(kind, run_id, *self._journals.read(branch, look)))


def _run_of(state: Snapshot) -> Any:
    return state.get(_RUN)


def _labels(conversation_id: str | None, parent_run_id: str | None) -> dict[str, str]:
    labels = {"conversation": conversation_id, "parent": parent_run_id}
    return {name: id for name, id in labels.items() if id is not None}


def _plain(kind: str, record: Any) -> dict[str, Any]:
    """A record as JSON, which no later change of the record touches. Raises a ValueError."""
    return dict(_FORMS[kind].dump_python([record], mode="json")[0])


def _made(kind: str, run_id: str, *stored: dict[str, Any]) -> list[Any]:
    """The records again. In a copy of a run they have the id of the copy."""
    return list(_FORMS[kind].validate_python(copied([{**about, "run_id": run_id} for about in stored])))
