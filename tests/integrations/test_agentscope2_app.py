"""The app of AgentScope 2 on VstateStorage, over its HTTP interface, with a model that answers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

pytest.importorskip("agentscope.app", reason="AgentScope 2 is not installed")

import httpx
from agentscope.app import create_app
from agentscope.app.message_bus import InMemoryMessageBus
from agentscope.app.workspace_manager import LocalWorkspaceManager
from agentscope.credential import CredentialBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import TextBlock, UserMsg
from agentscope.model import ChatModelBase, ChatResponse

from vstate.integrations.agentscope2 import VstateStorage

SECONDS = 60
ANSWER = "I bought two bottles."


class Answering(ChatModelBase):
    """A model that streams one answer."""

    type = "answering"

    class Parameters(BaseModel):
        """It has none."""

    def __init__(self, credential: CredentialBase, model: str, parameters: Any = None) -> None:
        super().__init__(
            credential, model, parameters or self.Parameters(), stream=True, context_size=100_000
        )
        self.formatter = OpenAIChatFormatter()

    async def _call_api(self, *args: Any, **options: Any) -> AsyncIterator[ChatResponse]:
        async def stream() -> AsyncIterator[ChatResponse]:
            for word in ("I bought", " two bottles."):
                yield ChatResponse(content=[TextBlock(text=word)], is_last=False)
            yield ChatResponse(content=[TextBlock(text=ANSWER)], is_last=True)

        return stream()


class AnsweringCredential(CredentialBase):
    """The credential of this model."""

    type: Literal["answering_credential"] = "answering_credential"
    key: str = ""

    @classmethod
    def get_chat_model_class(cls) -> type[ChatModelBase]:
        return Answering


Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def app_on(directory: Path) -> AsyncIterator[tuple[VstateStorage, Ask]]:
    """The app on the store in a directory, and a function that sends it a request of the user "ann"."""
    storage = VstateStorage(directory / "store")
    app = create_app(
        storage=storage,
        message_bus=InMemoryMessageBus(),
        workspace_manager=LocalWorkspaceManager(basedir=str(directory / "workspaces")),
        extra_credentials=[AnsweringCredential],
    )
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://app", headers={"X-User-ID": "ann"}
    )

    async def ask(method: str, path: str, **body: Any) -> Any:
        answer = await client.request(method, path, json=body or None)
        assert answer.is_success, answer.text
        return answer.json() if answer.text else None

    async with app.router.lifespan_context(app), client:
        yield storage, ask


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """What a function returns, once that is true."""
    async with asyncio.timeout(SECONDS):
        while not (found := await look()):
            await asyncio.sleep(0.05)
        return found


def test_a_chat_and_a_procedure_of_the_app(tmp_path: Path) -> None:
    """After a restart, an app has its records and messages. What it deletes is not in the store any more."""

    async def begin() -> tuple[str, str, str]:
        async with app_on(tmp_path) as (_, ask):
            data = {"type": "answering_credential", "key": "secret"}
            credential = (await ask("POST", "/credential/", data=data))["credential_id"]
            model = {"type": "answering_credential", "credential_id": credential, "model": "m"}
            model["parameters"] = {}
            agent = (await ask("POST", "/agent/", name="helper"))["agent_id"]
            session = await ask("POST", "/sessions/", agent_id=agent, chat_model_config=model)
            id = session["session_id"]
            said = UserMsg(name="ann", content="Did you buy water?").model_dump(mode="json")
            await ask("POST", "/chat/", agent_id=agent, session_id=id, input=said)

            async def is_over() -> bool:
                status = await ask("GET", f"/sessions/{id}/status?agent_id={agent}")
                return bool(status["status"] != "running")

            await until(is_over)
            ref = {"agent_id": agent, "session_key": "one"}
            step = {"subject": "buy", "description": "Buy water.", "executor": ref, "max_attempts": 1}
            settings = {"one": {"chat_model_config": model}}
            procedure = {"name": "shopping", "steps": [step], "session_settings": settings}
            sop = (await ask("POST", "/sop/", data=procedure))["sop_id"]
            run = (await ask("POST", f"/sop/{sop}/runs", inputs=[said]))["id"]

            async def has_failed() -> bool:  # the model submits nothing
                return bool((await ask("GET", f"/sop/runs/{run}"))["state"]["phase"] == "failed")

            await until(has_failed)
            return agent, id, sop

    async def go_on(agent: str, session: str, sop: str) -> None:
        async with app_on(tmp_path) as (storage, ask):
            found = await ask("GET", f"/sessions/{session}/messages?agent_id={agent}")
            texts = [message["content"][-1]["text"] for message in found["messages"]]
            assert texts == ["Did you buy water?", ANSWER]
            (run,) = (await ask("GET", f"/sop/runs?sop_id={sop}"))["runs"]
            assert [len(step["verifications"]) for step in run["state"]["steps"]] == [1]
            assert len(run["sessions"]) == 1
            await ask("DELETE", f"/sop/{sop}")
            assert [ids[-1] for ids in storage._opening.sessions("sessions")] == [session]
            await ask("DELETE", f"/agent/{agent}")
            assert [kind for kind, *_ in storage._opening.sessions()] == ["credentials"]

    asyncio.run(go_on(*asyncio.run(begin())))
