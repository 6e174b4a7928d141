"""An agent on the OpenAI Agents SDK whose conversation vstate keeps: killed, resumed, forked, and looked at.

    pip install '.[openai-agents]'
    python docs/examples/openai_agent.py ./chats tea --crash-at 2              # killed in its second tool
    python docs/examples/openai_agent.py ./chats tea                           # goes on with that tool
    python docs/examples/openai_agent.py ./chats coffee                        # the second turn
    python docs/examples/openai_agent.py ./chats water --branch other --fork 2    # another second turn
    vstate -s ./chats log openai/ann/main --oneline
    vstate -s ./chats diff openai/ann/main openai/ann/other
    vstate -s ./chats blame messages --rev openai/ann/main

The model follows a script, so the example needs no network and no key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from vstate.integrations.openai_agents import VstateSession

FACTS = {"tea": "Tea comes from one plant.", "coffee": "Coffee comes from two plants."}
TOOLS = ("search", "check")


class Script(Model):
    """A model that calls each tool once, and then answers with the text of the first one."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> Any:
        """The next call, or the answer."""
        asked = max(place for place, item in enumerate(input) if item.get("role") == "user")
        outputs = [item["output"] for item in input[asked:] if "output" in item]
        if len(outputs) < len(TOOLS):
            topic = input[asked]["content"]
            name, call_id = TOOLS[len(outputs)], f"call-{len(input)}"
            output: Any = ResponseFunctionToolCall(
                type="function_call", name=name, arguments=f'{{"topic": "{topic}"}}', call_id=call_id
            )
        else:
            text = ResponseOutputText(type="output_text", text=outputs[0], annotations=[])
            output = ResponseOutputMessage(
                id=f"message-{len(input)}",
                type="message",
                role="assistant",
                status="completed",
                content=[text],
            )
        usage = Usage(requests=1, input_tokens=len(input), output_tokens=1, total_tokens=len(input) + 1)
        return ModelResponse(output=[output], usage=usage, response_id=None)

    def stream_response(self, *given: Any, **more: Any) -> Any:
        """This script gives whole answers only."""
        raise NotImplementedError


def build(crash_at: int | None) -> Agent[Any]:
    """The agent with its two tools. The process is killed in the tool with this number."""

    def begin(name: str, topic: str) -> None:
        print(f"{name}: {topic}", flush=True)
        if crash_at == TOOLS.index(name) + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @function_tool
    def search(topic: str) -> str:
        """Look for a fact."""
        begin("search", topic)
        return FACTS.get(topic, "Nobody knows.")

    @function_tool
    def check(topic: str) -> str:
        """Look at the fact again."""
        begin("check", topic)
        return "checked"

    return Agent(name="ann", model=Script(), tools=[search, check])


async def talk(session: VstateSession, given: argparse.Namespace) -> str:
    """Ask for the topic, or go on where the last run was killed; the answer."""
    if given.fork:
        await session.create_branch_from_turn(given.fork, given.branch)
    elif given.branch:
        await session.switch_to_branch(given.branch)
    items = await session.get_items()
    is_unfinished = bool(items) and items[-1].get("role") != "assistant"
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(
        build(given.crash_at), [] if is_unfinished else given.topic, session=session, run_config=config
    )
    await session.store_run_usage(result)
    return str(result.final_output)


def main() -> None:
    """Run one turn of the agent."""
    parser = argparse.ArgumentParser(description="A small agent on the OpenAI Agents SDK.")
    parser.add_argument("store", help="a directory or a URL")
    parser.add_argument("topic", help="the question")
    parser.add_argument("--branch", help="a branch of the conversation, in place of main")
    parser.add_argument("--fork", type=int, metavar="TURN", help="begin the branch right before this turn")
    parser.add_argument("--crash-at", type=int, metavar="N", help="be killed in tool N of the turn")
    given = parser.parse_args()
    with VstateSession("ann", given.store) as session:
        print(asyncio.run(talk(session, given)))


if __name__ == "__main__":
    main()
