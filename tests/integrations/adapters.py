"""The adapters as a table: how a run begins and goes on in each, how its texts are read, and how they go."""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import cache
from inspect import isabstract
from typing import Any

import pytest

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"  # before the import: CrewAI looks then


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def kept(keep_history: bool) -> dict[str, bool]:
    """The option of a deletion; none where the default is meant."""
    return {"keep_history": True} if keep_history else {}


def through_json(adapter: Adapter, text: str) -> str:
    """A text as JSON gives it back."""
    return str(json.loads(json.dumps(text)))


class Adapter(ABC):
    """One adapter. `handle` is an open one."""

    name: str
    """Its module in `vstate.integrations`, and its class."""
    refuses: tuple[str, ...] = ("NotFound",)
    """The errors with which a late write is refused; none if it begins anew with the late text alone."""
    follows = False
    """Whether a write names the state that it follows."""
    exact = True
    """Whether a text may be any value."""
    replaces = False
    """Whether a write is a value of any key, which knows of no other write."""
    once = True
    """Whether a text is stored once, when a run writes all of its texts at each step."""

    def __init__(self) -> None:
        module, _, kind = self.name.rpartition(".")
        self.make = getattr(pytest.importorskip(f"vstate.integrations.{module}"), kind)
        self.known: dict[Any, Any] = {}

    def open(self, store: Any, **options: Any) -> Any:
        return self.make(store, **options)

    @abstractmethod
    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        """What a run writes at its step with this number, with all its texts; the newest is the last."""

    @abstractmethod
    def read(self, handle: Any, id: str) -> Any:
        """The stored texts of an id, or an object that shows them; nothing if there is no such id."""

    def given_back(self, text: str) -> str:
        """A text as the framework's own serializer gives it back."""
        return text

    def same(self, handle: Any) -> Any:
        """What `open` gives, for a handle of a single id."""
        return lambda id: handle

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        for branch in handle.repo.branch_names():
            handle.repo.delete_branch(branch, forget=not keep_history)

    def ids(self, handle: Any) -> list[str] | None:
        """The ids that the adapter lists; None if it lists none."""
        return None


class Switched(Adapter):
    """An adapter with a switch: whether its deletions keep the history."""

    switch = "_keep_history"

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        if keep_history:
            setattr(handle, self.switch, True)
        self.remove(handle, id)

    @abstractmethod
    def remove(self, handle: Any, id: str) -> None: ...


class Saver(Switched):
    name = "langgraph.VstateSaver"
    switch = "keep_history"
    exact = False
    follows = True

    def given_back(self, text: str) -> str:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

        return str(JsonPlusSerializer().loads_typed(JsonPlusSerializer().dumps_typed(text)))

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        config = {"configurable": {"thread_id": id, "checkpoint_ns": ""}}
        if number:
            config["configurable"]["checkpoint_id"] = f"{texts[0][:50]!a} {number - 1}"
            handle.put_writes(config, [("messages", texts[-1])], "task")
        made = {
            **empty_checkpoint(),
            "id": f"{texts[0][:50]!a} {number}",
            "channel_values": {"messages": list(texts)},
            "channel_versions": {"messages": number + 1},
        }
        handle.put(config, made, {"source": "loop", "step": number}, {"messages": number + 1})

    def read(self, handle: Any, id: str) -> Any:
        found = handle.get_tuple({"configurable": {"thread_id": id}})
        return found and found.checkpoint["channel_values"]["messages"]

    def remove(self, handle: Any, id: str) -> None:
        handle.delete_thread(id)

    def ids(self, handle: Any) -> list[str] | None:
        return [found.config["configurable"]["thread_id"] for found in handle.list(None)]


class Db(Switched):
    name = "agno.VstateDb"
    exact = False

    given_back = through_json

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from agno.run.agent import RunOutput
        from agno.session import AgentSession

        handle.upsert_session(AgentSession(session_id=id, agent_id="a", user_id="ann"))
        handle.upsert_run(RunOutput(run_id=str(number), agent_id="a", content=texts[-1]), id, "ann")

    def read(self, handle: Any, id: str) -> Any:
        found = handle.get_session(id)
        return found and [each.content for each in found.runs]

    def remove(self, handle: Any, id: str) -> None:
        assert handle.delete_session(id)

    def ids(self, handle: Any) -> list[str] | None:
        return [each.session_id for each in handle.get_sessions(include_runs=False)]


class Burr(Adapter):
    name = "burr.VstatePersister"

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from burr.core import State

        handle.save("part", id, number, "act", State({"texts": list(texts)}), "completed")

    def read(self, handle: Any, id: str) -> Any:
        found = handle.load("part", id)
        return found and found["state"]["texts"]

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        handle.delete_app("part", id, **kept(keep_history))

    def ids(self, handle: Any) -> list[str] | None:
        return list(handle.list_app_ids("part"))


class History(Adapter):
    name = "agent_framework.VstateHistoryProvider"
    exact = False

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from agent_framework import Message

        run(handle.save_messages(id, [Message("user", [text], message_id=text) for text in texts]))

    def read(self, handle: Any, id: str) -> Any:
        return [message.text for message in run(handle.get_messages(id))]

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        run(handle.clear(id, **kept(keep_history)))


class Checkpoints(Adapter):
    name = "agent_framework.VstateCheckpointStorage"
    exact = False
    follows = True
    refuses = ("NotFound", "WorkflowCheckpointException")
    once = False

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from agent_framework import WorkflowCheckpoint

        before = f"{texts[0][:50]!a} {number - 1}" if number else None
        made = WorkflowCheckpoint(
            workflow_name=id,
            graph_signature_hash="hash",
            checkpoint_id=f"{texts[0]!a} {number}",
            previous_checkpoint_id=before,
            state={"texts": list(texts)},
        )
        run(handle.save(made))

    def read(self, handle: Any, id: str) -> Any:
        found = run(handle.get_latest(workflow_name=id))
        return found and found.state["texts"]


class Workflows(Checkpoints):
    """The same, with a deletion of each checkpoint."""

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        for each in run(handle.list_checkpoint_ids(workflow_name=id)):
            assert run(handle.delete(each))


class OpenAI(Adapter):
    name = "openai_agents.VstateSession"
    refuses = ()

    def open(self, store: Any, **options: Any) -> Any:
        return cache(lambda id: self.make(id, store, **options))

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        run(handle(id).add_items([{"role": "user", "content": texts[-1]}]))

    def read(self, handle: Any, id: str) -> Any:
        return [item["content"] for item in run(handle(id).get_items())]

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        super().delete(handle(id), id, keep_history)


class Cleared(OpenAI):
    """The same, with the SDK's own deletion."""

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        run(handle(id).clear_session())


class Strands(Adapter):
    name = "strands.VstateSessionRepository"
    refuses = ("SessionException",)

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

        agent = SessionAgent(agent_id="a", state={"texts": list(texts)}, conversation_manager_state={})
        if not number:
            handle.create_session(Session(session_id=id, session_type=SessionType.AGENT))
            handle.create_agent(id, agent)
        message = {"role": "user", "content": [{"text": texts[-1]}]}
        handle.create_message(id, "a", SessionMessage.from_message(message, number))
        handle.update_agent(id, agent)

    def read(self, handle: Any, id: str) -> Any:
        agent = handle.read_agent(id, "a")
        return agent and agent.state["texts"]

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        handle.delete_session(id, **kept(keep_history))


class Conversations(Switched):
    name = "pydantic_ai.VstateConversationStore"
    exact = False
    follows = True
    refuses = ("ConversationConflict",)

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from pydantic_ai.conversation import Conversation
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        if not number:
            self.known[texts[0]] = Conversation(conversation_id=id)
        conversation = self.known[texts[0]]
        conversation.messages.append(ModelRequest(parts=[UserPromptPart(texts[-1])]))
        run(handle.save(conversation))

    def read(self, handle: Any, id: str) -> Any:
        found = run(handle.load(id))
        return found and [message.parts[0].content for message in found.messages]

    def remove(self, handle: Any, id: str) -> None:
        run(handle.delete(id))

    def ids(self, handle: Any) -> list[str] | None:
        return [record.conversation_id for record in run(handle.read_records())]


class Steps(Switched):
    name = "pydantic_ai_harness.VstateStepStore"
    exact = False

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from pydantic_ai.messages import ModelRequest, UserPromptPart
        from pydantic_ai_harness.step_persistence import ContinuableSnapshot, RunRecord

        if not number:
            run(handle.register_run(RunRecord(run_id=id)))
        made = self.known.setdefault(texts[0], [])
        made += [ModelRequest(parts=[UserPromptPart(text)]) for text in texts[len(made) :]]
        run(handle.save_snapshot(ContinuableSnapshot(run_id=id, step_index=number, messages=made)))

    def read(self, handle: Any, id: str) -> Any:
        found = run(handle.latest_snapshot(run_id=id))
        return found and [message.parts[0].content for message in found.messages]

    def remove(self, handle: Any, id: str) -> None:
        run(handle.delete_run(id))

    def ids(self, handle: Any) -> list[str] | None:
        return [record.run_id for record in run(handle.list_runs())]


class Sessions(Switched):
    name = "google_adk.VstateSessionService"
    exact = False
    follows = True
    refuses = ("SessionNotFoundError", "StaleSessionError")
    once = False

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from google.adk.events import Event, EventActions
        from google.genai import types

        if not number:
            work = handle.create_session(app_name="app/" * 20, user_id="ann", session_id=id)
            self.known[texts[0]] = run(work)
        content = types.Content(role="user", parts=[types.Part(text=texts[-1])])
        actions = EventActions(state_delta={"texts": list(texts)})
        event = Event(author="user", content=content, actions=actions)
        run(handle.append_event(self.known[texts[0]], event))

    def read(self, handle: Any, id: str) -> Any:
        found = run(handle.get_session(app_name="app/" * 20, user_id="ann", session_id=id))
        return found and found.state["texts"]

    def remove(self, handle: Any, id: str) -> None:
        run(handle.delete_session(app_name="app/" * 20, user_id="ann", session_id=id))

    def ids(self, handle: Any) -> list[str] | None:
        return [each.id for each in run(handle.list_sessions(app_name="app/" * 20)).sessions]


class Flows(Adapter):
    name = "crewai.VstateFlowPersistence"

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        handle.save_state(id, "go", {"id": id, "texts": list(texts)})

    def read(self, handle: Any, id: str) -> Any:
        found = handle.load_state(id)
        return found and found["texts"]


class Runs(Flows):
    """The checkpoints of CrewAI."""

    name = "crewai.VstateProvider"
    exact = False

    given_back = through_json

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        handle.checkpoint(json.dumps({"texts": texts}), id)

    def read(self, handle: Any, id: str) -> Any:
        found = handle.newest(id)
        return found and json.loads(handle.from_checkpoint(found))["texts"]


class Transcripts(Switched):
    name = "claude_agent.VstateSessionStore"

    def _key(self, id: str) -> Any:
        return {"project_key": "-home-ann-a project", "session_id": id}

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        entries = [
            {"type": "user", "uuid": f"{texts[0]} {n}", "message": {"role": "user", "content": text}}
            for n, text in enumerate(texts)
        ]
        run(handle.append(self._key(id), entries))

    def read(self, handle: Any, id: str) -> Any:
        return [entry["message"]["content"] for entry in run(handle.load(self._key(id))) or ()]

    def remove(self, handle: Any, id: str) -> None:
        run(handle.delete(self._key(id)))

    def ids(self, handle: Any) -> list[str] | None:
        return [each["session_id"] for each in run(handle.list_sessions("-home-ann-a project"))]


class Items(Adapter):
    """Values of items, with the history of each, which the default has not."""

    name = "key_value.VstateKeyValue"
    refuses = ()
    replaces = True
    exact = False

    def open(self, store: Any, **options: Any) -> Any:
        return self.make(store, keep_history=True, **options)

    given_back = through_json

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        run(handle.put(id, {"texts": texts}))

    def read(self, handle: Any, id: str) -> Any:
        found = run(handle.get(id))
        return found and found["texts"]

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        handle._keep_history = keep_history
        run(handle.delete(id))
        handle._keep_history = True

    def ids(self, handle: Any) -> list[str] | None:
        return list(run(handle.keys()))


class Chats(Adapter):
    name = "llama_index.VstateChatStore"
    exact = False

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from llama_index.core.llms import ChatMessage

        handle.set_messages(id, [ChatMessage(content=text) for text in texts])

    def read(self, handle: Any, id: str) -> Any:
        return [message.content for message in handle.get_messages(id)]

    def ids(self, handle: Any) -> list[str] | None:
        return list(handle.get_keys())


class Messages(Chats):
    """The same, message by message, with LlamaIndex's own deletion."""

    refuses = ()

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from llama_index.core.llms import ChatMessage

        handle.add_message(id, ChatMessage(content=texts[-1]))

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        handle.delete_messages(id, **kept(keep_history))


class States(Adapter):
    name = "llama_index.VstateStateStorage"
    exact = False

    given_back = through_json

    def open(self, store: Any, **options: Any) -> Any:
        return cache(lambda id: self.make(id, store, **options))

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from workflows.context.state_store_integration import StateRecord

        run(handle(id).save(StateRecord(data=json.dumps(texts), state_type="list", state_module="builtins")))

    def read(self, handle: Any, id: str) -> Any:
        found = run(handle(id).load())
        return found and json.loads(found.data)

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        super().delete(handle(id), id, keep_history)


class AgentScope(Adapter):
    name = "agentscope.VstateSession"

    def _module(self) -> Any:
        from agentscope.module import StateModule

        module = StateModule()
        module.texts = None
        module.register_state("texts")
        return module

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        module = self._module()
        module.texts = list(texts)
        run(handle.save_session_state(id, "ann", module=module))

    def read(self, handle: Any, id: str) -> Any:
        module = self._module()
        run(handle.load_session_state(id, "ann", module=module))
        return module.texts

    def delete(self, handle: Any, id: str, keep_history: bool) -> None:
        run(handle.delete_session(id, "ann", **kept(keep_history)))


class AgentScope2(Adapter):
    name = "agentscope2.VstateStorage"
    exact = False

    def write(self, handle: Any, id: str, texts: list[Any], number: int) -> None:
        from agentscope.message import UserMsg

        for place, text in enumerate(texts):
            if place >= number or number < 1:
                message = UserMsg(name="ann", content=text, id=f"{texts[0][:50]!a} {place}")
                run(handle.upsert_message("ann", id, message))

    def read(self, handle: Any, id: str) -> Any:
        found, _ = run(handle.list_messages("ann", id, limit=10_000))
        return [message.get_text_content() for message in found]


ADAPTERS: list[Callable[[], Adapter]] = [
    kind
    for kind in globals().values()
    if isinstance(kind, type) and issubclass(kind, Adapter) and not isabstract(kind)
]
