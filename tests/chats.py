"""One conversation, as each API of models and each agent framework stores it."""

from __future__ import annotations

from collections.abc import Callable

OPENAI: list[object] = [
    {"role": "user", "content": "Weather in Rome?\nAnd Paris?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"in": "Rome"}'}},
            {"id": "2", "type": "function", "function": {"name": "weather", "arguments": '{"in": "Paris"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "2", "content": "rain"},
    {"role": "tool", "tool_call_id": "1", "content": "sun"},
    {"role": "assistant", "content": "Sun in Rome."},
]
ANTHROPIC: list[object] = [
    {"role": "user", "content": [{"type": "text", "text": "Weather in Rome?\nAnd Paris?"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "1", "name": "weather", "input": {"in": "Rome"}},
            {"type": "tool_use", "id": "2", "name": "weather", "input": {"in": "Paris"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sun"}]},
            {"type": "tool_result", "tool_use_id": "2", "content": "rain"},
        ],
    },
    {"role": "assistant", "content": "Sun in Rome."},
]
RESPONSES: list[object] = [  # items of OpenAI's Responses API
    {"role": "user", "content": [{"type": "input_text", "text": "Weather in Rome?\nAnd Paris?"}]},
    {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"in": "Rome"}'},
    {"type": "function_call", "call_id": "2", "name": "weather", "arguments": '{"in": "Paris"}'},
    {"type": "function_call_output", "call_id": "2", "output": "rain"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "sun"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sun in Rome."}]},
]
AGENTSCOPE: list[object] = [
    {"name": "Ann", "role": "user", "content": "Weather in Rome?\nAnd Paris?"},
    {
        "name": "Bot",
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "1", "name": "weather", "input": {"in": "Rome"}},
            {"type": "tool_use", "id": "2", "name": "weather", "input": {"in": "Paris"}},
        ],
    },
    {
        "name": "system",
        "role": "system",
        "content": [
            {"type": "tool_result", "id": "1", "name": "weather", "output": "sun"},
            {"type": "tool_result", "id": "2", "name": "weather", "output": "rain"},
        ],
    },
    {"name": "Bot", "role": "assistant", "content": [{"type": "text", "text": "Sun in Rome."}]},
]


def langchain() -> list[object]:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    places = (("Rome", "1"), ("Paris", "2"))
    calls = [{"name": "weather", "args": {"in": place}, "id": id} for place, id in places]
    return [
        HumanMessage("Weather in Rome?\nAnd Paris?"),
        AIMessage("", tool_calls=calls),
        ToolMessage("sun", tool_call_id="1"),
        ToolMessage("rain", tool_call_id="2"),
        AIMessage("Sun in Rome."),
    ]


def pydantic_ai() -> list[object]:
    from pydantic_ai import messages as made

    places = (("Rome", "1"), ("Paris", "2"))
    return [
        made.ModelRequest([made.UserPromptPart("Weather in Rome?\nAnd Paris?")]),
        made.ModelResponse([made.ToolCallPart("weather", {"in": place}, id) for place, id in places]),
        made.ModelRequest(
            [made.ToolReturnPart("weather", "sun", "1"), made.ToolReturnPart("weather", "rain", "2")]
        ),
        made.ModelResponse([made.TextPart("Sun in Rome.")]),
    ]


CHATS: dict[str, Callable[[], list[object]]] = {
    "openai": lambda: OPENAI,
    "responses": lambda: RESPONSES,
    "anthropic": lambda: ANTHROPIC,
    "agentscope": lambda: AGENTSCOPE,
    "langchain": langchain,
    "pydantic-ai": pydantic_ai,
}
