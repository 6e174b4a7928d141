"""Applications of Burr on vstate: their states come back, also after a kill, and runs do not mix."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from loops import in_a_loop

from vstate import AlreadyExists, Memory, Versioned
from vstate.repo import Repository

pytest.importorskip("burr.core", reason="apache-burr is not installed")

from burr.core import ApplicationBuilder, State, action
from burr.core.state import register_field_serde

from vstate.integrations.burr import AsyncVstatePersister, VstatePersister


class Mood(str, Enum):  # noqa: UP042  as in programs for Python 3.10
    """A text of the program's own class."""

    GOOD = "good"


def state(**fields: Any) -> State[Any]:
    return State(fields)


def loaded(persister: VstatePersister, *ids: Any) -> Any:
    """The state, which is there."""
    found = persister.load(*ids)
    assert found is not None
    return found


def test_a_state_comes_back_as_burr_serializes_it(tmp_path: Path) -> None:
    """In the order of the fields, whose names may hold any character, by Burr's own serializers."""
    register_field_serde("raw", lambda value, **_: {"value": value}, lambda value, **_: value["value"])
    fields = {"z": ["a\ud800", 2**80], "a/b %": {"1": [1, 1.0]}, "none": [], "raw": b"\0", "": ""}
    with VstatePersister(tmp_path / "s") as persister:
        persister.save(None, "app/1", 3, "answer", State({**fields, "mood": Mood.GOOD}), "failed")
    with VstatePersister(tmp_path / "s") as persister:
        assert persister.is_initialized()
        found: Any = loaded(persister, None, "app/1")
    assert repr(found.pop("state").get_all()) == repr({**fields, "mood": "good"})
    assert found.pop("created_at")[:2] == "20"
    expected = {"partition_key": "", "app_id": "app/1", "sequence_id": 3, "position": "answer"}
    assert found == {**expected, "status": "failed"}


def test_each_step_can_be_loaded_and_the_newest_application_is_found() -> None:
    """Steps and applications are found by id, or the last one is taken; partitions are apart."""
    persister = VstatePersister()
    for n in range(1, 4):
        persister.save("ann", "a", n, f"act {n}", state(chat=[{"n": i} for i in range(n)]), "completed")
    persister.save("ann", "b", 0, "start", state(x=1), "completed")
    persister.save("anna", "c", 0, "start", state(), "completed")
    assert [loaded(persister, "ann", "a", n)["state"]["chat"] for n in (1, 3)] == [
        [{"n": 0}],
        [{"n": 0}, {"n": 1}, {"n": 2}],
    ]
    assert persister.load("ann", "a", 4) is persister.load("ann", "x") is persister.load(None, "a") is None
    assert persister.load("bob", None) is None
    assert persister.list_app_ids("ann") == ["b", "a"]
    persister.save("ann", "a", 4, "act 4", state(chat=[]), "completed")
    assert persister.list_app_ids("ann") == ["a", "b"]
    newest = loaded(persister, "ann", None)
    assert (newest["app_id"], newest["sequence_id"], newest["state"]["chat"]) == ("a", 4, [])
    assert persister.list_app_ids("anna") == ["c"]
    assert persister.list_app_ids(None) == []
    assert persister.delete_app("anna", "c") is True
    assert persister.delete_app("anna", "c") is False


def test_a_run_that_was_overtaken_changes_nothing() -> None:
    """The same step, saved again, is there once; another state under its id or an older one is refused."""
    store = Memory()
    first, second = VstatePersister(store), VstatePersister(store)
    for _ in range(2):
        first.save("p", "a", 5, "act", state(x=1), "completed")
    second.save("p", "a", 5, "act", state(x=1), "completed")
    assert len(list(Repository(store).log("burr/p/a"))) == 1
    for n, name, fields, status in [
        (5, "act", state(x=1.0), "completed"),
        (5, "act", state(x=1), "failed"),
        (5, "other", state(x=1), "completed"),
        (4, "act", state(x=1), "completed"),
    ]:
        with pytest.raises(AlreadyExists, match="step 5"):
            second.save("p", "a", n, name, fields, status)
    assert second.load("p", "a") == first.load("p", "a")
    second.save("p", "a", 6, "act", state(x=2), "completed")
    first.save("p", "a", 7, "act", state(x=1), "completed")
    assert loaded(second, "p", "a")["state"]["x"] == 1


def test_a_branch_of_an_application_is_an_application() -> None:
    """A copy is one ref, and goes its own way from there; a rollback takes the application to a step."""
    store = Memory()
    persister = VstatePersister(store)
    for n in range(3):
        persister.save("p", "a", n, "act", state(chat=[{"n": i} for i in range(n)]), "completed")
    with Versioned(store, branch="burr/p/a") as head:
        head.create_branch("burr/p/b")
        head.rollback("burr/p/a~2")
    persister.save("p", "a", 1, "other", state(x=1), "completed")
    first, second = loaded(persister, "p", "a"), loaded(persister, "p", "b")
    assert (first["position"], first["state"].get_all()) == ("other", {"x": 1})
    assert (second["app_id"], second["state"]["chat"]) == ("b", [{"n": 0}, {"n": 1}])


@action(reads=["n"], writes=["n"])
async def add(state: State[Any]) -> State[Any]:
    """An action that fails at its third run."""
    if state["n"] == 2:
        raise RuntimeError("broken")
    return state.update(n=state["n"] + 1)


@in_a_loop
async def test_an_async_application_fails_resumes_and_is_forked() -> None:
    """A failed step is retried by the next run; Burr's fork begins from any step of another application."""
    store = Memory()

    async def build(app_id: str, **options: Any) -> Any:
        persister = AsyncVstatePersister(store)
        return await (
            ApplicationBuilder()
            .with_actions(add)
            .with_transitions(("add", "add"))
            .initialize_from(
                persister,
                resume_at_next_action=True,
                default_state={"n": 0},
                default_entrypoint="add",
                **options,
            )
            .with_state_persister(persister)
            .with_identifiers(app_id=app_id, partition_key="ann")
            .abuild()
        )

    app = await build("a")
    await app.astep()
    await app.astep()
    with pytest.raises(RuntimeError, match="broken"):
        await app.astep()
    async with AsyncVstatePersister(store) as persister:
        failed = await persister.load("ann", "a")
        assert failed is not None
        assert (failed["sequence_id"], failed["status"], failed["state"]["n"]) == (2, "failed", 2)
        resumed = await build("a")
        assert resumed.get_next_action().name == "add"
        forked = await build(
            "b", fork_from_app_id="a", fork_from_partition_key="ann", fork_from_sequence_id=0
        )
        await forked.astep()
        assert forked.state["n"] == 2
        assert await persister.list_app_ids("ann") == ["b", "a"]
        assert await persister.delete_app("ann", "b") is True
        assert await persister.load("ann", "b") is None


def test_the_example_of_the_page(example: Any, commands: Any) -> None:
    """An application goes on at its next action when it is built again."""

    @action(reads=["chat"], writes=["chat"])
    def ask(state: State[Any]) -> State[Any]:
        return state.append(chat="how?")

    @action(reads=["chat"], writes=["chat"])
    def answer(state: State[Any]) -> State[Any]:
        return state.append(chat="so")

    names = example("Burr", ask=ask, answer=answer)
    names["app"].run(halt_after=["ask"])
    names = example("Burr", ask=ask, answer=answer)  # the process starts anew
    _, _, state = names["app"].run(halt_after=["answer"])
    assert state["chat"] == ["how?", "so"]
    commands("Burr")
