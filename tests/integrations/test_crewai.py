"""Flows and checkpoints of CrewAI on vstate: round trips, kills, forks, and parts that are stored once."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from loops import in_a_loop
from pydantic import BaseModel, HttpUrl

from vstate import InvalidInput, Memory, NotFound, Versioned

# Before the import: CrewAI looks then. `OTEL_SDK_DISABLED` would disable the spans of other tests too.
os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"

pytest.importorskip("crewai", reason="crewai is not installed")

from crewai import Agent, Crew, Task
from crewai.events.event_bus import crewai_event_bus
from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.flow import Flow, start
from crewai.flow.persistence import SQLiteFlowPersistence, persist
from crewai.llms.base_llm import BaseLLM
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.state.runtime import RuntimeState

from vstate.integrations.crewai import VstateFlowPersistence, VstateProvider

pytestmark = [
    pytest.mark.slow,
    # Of CrewAI and the packages that it imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


class Payload:
    """An object that JSON does not know."""

    def __str__(self) -> str:
        return "payload"


class Note(BaseModel):
    """A model inside a state."""

    text: str = "é\ud800"
    when: datetime = datetime(2026, 1, 2, tzinfo=UTC)


class Level(Enum):
    LOW = "low"


class Report(BaseModel):
    """A state with fields of many types, and one of any type."""

    id: str = "r"
    notes: list[Note] = [Note(text="a"), Note(text="b")]
    payload: Any = None
    level: Level | None = None
    when: timedelta | None = None
    pdf: bytes = b""
    day: date | None = None
    price: Decimal | None = None
    at: UUID | None = None
    path: Path | None = None
    page: HttpUrl | None = None


STATES: list[dict[str, Any] | BaseModel] = [
    {},
    {"id": "x", "z": [{"role": "user"}, {"n": 2**80}], "a/b %": {"1": [1, 1.0, True, None]}, "": ""},
    {"texts": ["a", "b"], "none": [], "vector": [0.5, 2]},
]

MODELS: list[BaseModel] = [
    Report(),
    Report(payload=[1, (2, {"x"}), b"\xff", Note()]),
    Report(level=Level.LOW, when=timedelta(days=1), pdf=b"%PDF\xff\xfe", day=date(2026, 1, 2)),
    Report(price=Decimal("19.99"), at=UUID(int=1), path=Path("a/b"), page=HttpUrl("https://a.example/x")),
]


def test_a_state_comes_back_as_from_the_persistence_of_the_framework(tmp_path: Path) -> None:
    """Each state equals that of SQLiteFlowPersistence, with the order of its fields, also when reopened."""
    peer = SQLiteFlowPersistence(str(tmp_path / "peer.db"))
    with VstateFlowPersistence(tmp_path / "s") as ours:
        for flow in ("r", "a/b", "é x"):
            for state in STATES:
                for each in (peer, ours):
                    each.init_db()
                    each.save_state(flow, "act", state)
                assert repr(ours.load_state(flow)) == repr(peer.load_state(flow))
        assert ours.load_state("other") is peer.load_state("other") is None


@pytest.mark.parametrize("state", MODELS)
def test_a_model_comes_back_equal(state: BaseModel) -> None:
    """Bytes, an enum and a URL beside each other: the flow loads them by the types of the fields."""
    persistence = VstateFlowPersistence()
    persistence.save_state("f", "act", state)
    found = persistence.load_state("f")
    assert Report.model_validate(found).model_dump() == state.model_dump()


@pytest.mark.parametrize(
    "state",
    [
        {("a", 1): 2},
        {7: "seven"},
        {"x": [Payload()]},
        "text",
        [1],
        Report(payload=Payload()),
    ],
)
def test_a_state_that_would_not_come_back_is_refused(state: Any) -> None:
    """The error is InvalidInput, and the state before it stays."""
    persistence = VstateFlowPersistence()
    persistence.save_state("f", "act", {"x": 1})
    with pytest.raises(InvalidInput, match="state of a flow"):
        persistence.save_state("f", "act", state)
    with pytest.raises(InvalidInput, match="empty"):
        persistence.save_state("", "act", {})
    assert persistence.load_state("f") == {"x": 1}


def test_a_pause_keeps_its_state_and_question_until_it_is_cleared() -> None:
    """A later save does not change the state of the pause; a flow that waits for nobody gives None."""
    persistence = VstateFlowPersistence()
    context = PendingFeedbackContext(
        flow_id="f", flow_class="a.B", method_name="review", method_output=Note(text="draft"), message="Good?"
    )
    assert persistence.load_pending_feedback("f") is None
    persistence.clear_pending_feedback("f")
    persistence.save_pending_feedback("f", context, {"id": "f", "tags": {"a"}})
    persistence.save_state("f", "other", {"id": "f", "x": 1})
    found = persistence.load_pending_feedback("f")
    assert found is not None
    assert found[0] == {"id": "f", "tags": {"a"}}
    assert found[1] == PendingFeedbackContext.from_dict(json.loads(json.dumps(context.to_dict())))
    persistence.clear_pending_feedback("f")
    assert persistence.load_pending_feedback("f") is None
    assert persistence.load_state("f") == {"id": "f", "x": 1}
    assert [commit.message for commit in persistence.repo.log("crewai/flows/f")] == [
        "feedback received",
        "state after other",
        "review waits for feedback",
    ]


def test_a_branch_of_a_flow_is_a_flow() -> None:
    """A copy is one ref and has an id of its own, also in a pause; a rollback takes a flow back."""
    persistence = VstateFlowPersistence(store := Memory())
    for n in range(3):
        persistence.save_state("f", "act", {"id": "f", "n": n})
    context = PendingFeedbackContext("f", "a.B", "review", "draft", "Good?")
    persistence.save_pending_feedback("f", context, {"id": "f", "n": 3})
    with Versioned(store, branch="crewai/flows/f") as head:
        head.create_branch("crewai/flows/g")
        head.rollback("crewai/flows/f~2")
    assert persistence.load_state("f") == {"id": "f", "n": 1}
    assert persistence.load_state("g") == {"id": "g", "n": 3}
    found = persistence.load_pending_feedback("g")
    assert found is not None
    assert (found[0]["id"], found[1].flow_id) == ("g", "g")


@in_a_loop
async def test_an_async_flow_is_persisted_and_forked(tmp_path: Path) -> None:
    """`kickoff_async` saves each state, and `restore_from_state_id` begins another flow with one of them."""
    persistence = VstateFlowPersistence(tmp_path / "s")

    class Count(Flow[dict[str, Any]]):
        @start()
        @persist(persistence)
        async def add(self) -> None:
            self.state["n"] = self.state.get("n", 0) + 1

    await Count(suppress_flow_events=True).kickoff_async(inputs={"id": "a"})
    forked = Count(persistence=persistence, suppress_flow_events=True)
    await forked.kickoff_async(restore_from_state_id="a")
    assert forked.state["n"] == 2
    assert persistence.load_state("a") == {"id": "a", "n": 1}
    assert persistence.load_state(forked.state["id"]) == {"id": forked.state["id"], "n": 2}


def test_the_example_of_the_persistence(example: Any, commands: Any) -> None:
    """A flow goes on with its state when the program starts anew."""
    for visits in (1, 2):
        # The class of a flow needs a module.
        names = example("The persistence: states of flows", __name__="page")
        with VstateFlowPersistence("flows") as persistence:
            assert persistence.load_state("ann") == {"id": "ann", "visits": visits}
        assert names["Visits"].__name__ == "Visits"
    assert "visits" in commands("The persistence: states of flows")[1]


def test_a_flow_in_a_checkpoint_names_its_store_by_a_path_only(tmp_path: Path) -> None:
    """The persistence of a restored flow is the same store; a URL, which may hold a password, is left out."""
    with VstateFlowPersistence(tmp_path / "s") as persistence:
        persistence.save_state("f", "act", {"x": 1})
        dumped = Flow(persistence=persistence).model_dump(mode="json")["persistence"]
    with Flow.model_validate({"persistence": dumped}).persistence as again:
        assert again.load_state("f") == {"x": 1}
    for store in (f"disk:{tmp_path}/s", Memory()):
        with VstateFlowPersistence(store) as persistence:
            dumped = persistence.model_dump(mode="json")
            assert dumped["path"] is None
            with pytest.raises(ValueError, match="PATH"):
                VstateFlowPersistence.model_validate(dumped)


EVENTS = {"nodes": {f"e{n}": {"event": {"type": "t"}, "edges": {"next": [f"e{n + 1}"]}} for n in (2, 10, 1)}}

TEXTS = [
    json.dumps({"z": 1, "a": "é", "entities": [{"x": 1.5}, {}], "event_record": EVENTS, "trigger": "t"}),
    json.dumps({"a": "é", "event_record": EVENTS}, ensure_ascii=False),
    json.dumps({"a": "é", "entities": []}, ensure_ascii=False, separators=(",", ":")),
    json.dumps({"event_record": [{"a": {}}]}),
    json.dumps({"event_record": {"nodes": {}, "more": 1}}),
    json.dumps({"event_record": {"nodes": {"e": 1}}}),
    '{"x": 1e-7, "x": 2}',
    "[" * 100_000,
    "[1, 2]",
    "no json",
    "",
]


@in_a_loop
async def test_each_text_of_a_checkpoint_comes_back_exactly(tmp_path: Path) -> None:
    """JSON in each spelling, and any other text, comes back to the letter, from each checkpoint."""
    with VstateProvider(tmp_path / "s") as provider:
        assert provider.newest("runs") is None
        places = [provider.checkpoint(text, "runs") for text in TEXTS]
        places += [await provider.acheckpoint(text, "runs") for text in TEXTS]
        assert provider.newest("runs") == places[-1]
    with VstateProvider(tmp_path / "s") as provider:
        for place, text in zip(places, TEXTS * 2, strict=True):
            assert provider.from_checkpoint(place) == await provider.afrom_checkpoint(place) == text
            with provider.file(place) as path:
                assert Path(path).read_text(encoding="utf-8") == text
            assert not Path(path).exists()
        assert len({provider.extract_id(place) for place in places}) == len(places)


def test_pruned_and_unknown_checkpoints_are_not_found() -> None:
    """Each branch keeps its newest ones, numbers go on, and the history shows the prune."""
    provider = VstateProvider()
    places = [provider.checkpoint(f'{{"n": {n}}}', "runs") for n in range(5)]
    fork = provider.checkpoint("{}", "runs", parent_id=provider.extract_id(places[0]), branch="fork/a")
    assert (provider.prune("runs", 9), provider.prune("runs", 2), provider.prune("runs", 2)) == (0, 3, 0)
    assert provider.prune("other", 2) == 0
    with pytest.raises(InvalidInput, match="max_keep"):
        provider.prune("runs", -1)
    unknown = [*places[:3], "crewai/checkpoints/x/main#" + "0" * 64, f"{provider.branch('runs')}#x"]
    for place in unknown:
        with pytest.raises(NotFound, match="no checkpoint"):
            provider.from_checkpoint(place)
    assert [provider.from_checkpoint(place) for place in (*places[3:], fork)] == [
        '{"n": 3}',
        '{"n": 4}',
        "{}",
    ]
    newest = provider.newest("runs")
    assert newest is not None
    assert provider.from_checkpoint(newest) == '{"n": 4}'
    assert provider.prune("runs", 0) == 2
    assert provider.newest("runs") is None
    places.append(provider.checkpoint('{"n": 5}', "runs"))
    assert provider.newest("runs") == places[-1]
    messages = [commit.message for commit in provider.repo.log(provider.branch("runs"), limit=3)]
    assert messages == ["checkpoint 6: on request", "keep 0 checkpoints", "keep 2 checkpoints"]


def test_a_fork_begins_at_the_commit_of_its_parent() -> None:
    """A new branch shares the history of the parent; one with an unknown parent has none."""
    provider = VstateProvider()
    first, second = (provider.checkpoint(json.dumps({"n": n, "same": 1}), "runs") for n in range(2))
    fork = provider.checkpoint('{"n": 7}', "runs", parent_id=provider.extract_id(first), branch="fork/a")
    other = provider.checkpoint('{"n": 8}', "runs", parent_id="gone", branch="other")
    log = list(provider.repo.log(provider.branch("runs", "fork/a")))
    assert [str(commit.id) for commit in log] == [provider.extract_id(place) for place in (fork, first)]
    assert len(list(provider.repo.log(provider.branch("runs", "other")))) == 1
    for place, text in [(fork, '{"n": 7}'), (other, '{"n": 8}'), (second, '{"n": 1, "same": 1}')]:
        assert provider.from_checkpoint(place) == text


def test_a_state_of_the_framework_is_restored_and_forked(tmp_path: Path) -> None:
    """RuntimeState chains its checkpoints, comes back from a file, and goes on, also on a fork."""
    provider = VstateProvider()
    config = CheckpointConfig(provider=provider, location="runs")
    assert config.provider is provider
    state = RuntimeState(root=[Flow(initial_state={"id": "x", "n": 1})])
    state._provider = provider
    places = [state.checkpoint("runs") for _ in range(2)]
    with provider.file(places[1]) as path:
        restored = RuntimeState.from_checkpoint(CheckpointConfig(restore_from=path))
    assert restored._checkpoint_id == provider.extract_id(places[1])
    assert restored.root[0].initial_state == {"id": "x", "n": 1}
    restored._provider = provider
    restored.fork("try")
    fork = restored.checkpoint("runs")
    log = list(provider.repo.log(provider.branch("runs", "try")))
    assert [str(commit.id) for commit in log] == [
        provider.extract_id(place) for place in (fork, *places[::-1])
    ]
    assert json.loads(provider.from_checkpoint(fork))["parent_id"] == str(log[1].id)


class Model(BaseLLM):
    """A model that answers at once."""

    def __init__(self) -> None:
        super().__init__(model="stub")

    def call(self, *args: Any, **kwargs: Any) -> str:
        return "Thought: I know.\nFinal Answer: done"

    def supports_function_calling(self) -> bool:
        return False


def test_the_examples_of_the_provider(example: Any, commands: Any) -> None:
    """A crew writes its checkpoints, and another program restores it from the newest one and goes on."""
    agent = Agent(role="r", goal="g", backstory="b", llm=Model())
    tasks = [Task(description="d", expected_output="x", agent=agent)]
    first = example("The provider: checkpoints", Crew=Crew, agents=[agent], tasks=tasks)
    crewai_event_bus.flush()
    provider = first["provider"]
    branch = provider.branch("report")
    assert [commit.message for commit in provider.repo.log(branch)] == ["checkpoint 1: task_completed"]
    again = example("The provider: checkpoints", 1, **{n: v for n, v in first.items() if n != "crew"})
    assert again["crew"].checkpoint.provider is provider
    assert [output.raw for output in again["result"].tasks_output] == ["done"]
    provider.checkpoint(provider.from_checkpoint(provider.newest("report")), "report")
    assert "checkpoint 2" in commands("The provider: checkpoints")[0]
