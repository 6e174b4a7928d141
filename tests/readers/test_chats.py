"""Chats: the records of each framework are one conversation, with each call beside its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from vstate.display.chats import chat_view
from vstate.readers import chats

ASK, CALL, RESULT, SAY = "Buy tea", {"q": "tea"}, "tea: 3", "I found it"


def _adk(author: str, **part: Any) -> dict[str, Any]:
    return {"author": author, "content": {"role": "user", "parts": [part]}, "id": "1"}


def _llama(role: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "blocks": [*blocks], "additional_kwargs": more}


def _framework(role: str, **content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "contents": [content]}


def _strands(role: str, **block: Any) -> dict[str, Any]:
    return {"message": {"role": role, "content": [block]}, "message_id": 0, "redact_message": None}


RECORDS: dict[str, tuple[Callable[[Any], Iterable[Any]], list[Any]]] = {
    "adk": (
        chats.adk_messages,
        [
            _adk("user", text=ASK),
            _adk("shopper", function_call={"id": "1", "name": "search", "args": CALL}),
            _adk("shopper", function_response={"id": "1", "name": "search", "response": RESULT}),
            {"author": "shopper", "actions": {"state_delta": {"a": 1}}},
            _adk("shopper", text=SAY),
        ],
    ),
    "agent_framework": (
        chats.agent_framework_message,
        [
            _framework("user", type="text", text=ASK),
            _framework("assistant", type="function_call", call_id="1", name="search", arguments=CALL),
            _framework("tool", type="function_result", call_id="1", result=RESULT),
            _framework("assistant", type="text", text=SAY),
        ],
    ),
    "llama_index": (
        chats.llama_message,
        [
            _llama("user", {"block_type": "text", "text": ASK}),
            _llama(
                "assistant",
                {"block_type": "tool_call", "tool_call_id": "1", "tool_name": "search", "tool_kwargs": CALL},
            ),
            _llama("tool", {"block_type": "text", "text": RESULT}, tool_call_id="1"),
            _llama("assistant", {"block_type": "text", "text": SAY}),
        ],
    ),
    "openai_agents": (
        chats.openai_item,
        [
            {"at": "", "item": {"role": "user", "content": ASK}},
            {
                "at": "",
                "item": {"type": "function_call", "call_id": "1", "name": "search", "arguments": CALL},
            },
            {"at": "", "item": {"type": "function_call_output", "call_id": "1", "output": RESULT}},
            {"turn": 1, "usage": {"requests": 1}},
            {"at": "", "item": {"role": "assistant", "content": [{"type": "output_text", "text": SAY}]}},
        ],
    ),
    "strands": (
        lambda record: [chats.strands_message(record)],
        [
            _strands("user", text=ASK),
            _strands("assistant", toolUse={"toolUseId": "1", "name": "search", "input": CALL}),
            _strands(
                "user", toolResult={"toolUseId": "1", "content": [{"text": RESULT}], "status": "success"}
            ),
            _strands("assistant", text=SAY),
        ],
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_records_are_a_conversation(name: str) -> None:
    """The user asks, a tool is called and answers, and the assistant says what it found."""
    convert, records = RECORDS[name]
    view = chat_view([message for record in records for message in convert(record)])
    assert view is not None
    asked, called, said = view.messages
    assert (asked.role, asked.text) == ("user", ASK)
    assert (said.role, said.text) == ("assistant", SAY)
    (call,) = called.calls
    assert (call.name, call.arguments, call.result) == ("search", "q='tea'", RESULT)


def test_pairs_of_a_role_and_a_text_are_messages() -> None:
    """As LangGraph and others take them; pairs of other texts are none."""
    for pairs in ([("user", ASK), ("ai", SAY)], [["user", ASK], ["ai", SAY]]):
        view = chat_view(pairs)
        assert view is not None
        assert [(each.role, each.text) for each in view.messages] == [("user", ASK), ("assistant", SAY)]
    assert chat_view([("name", "Ann"), ("user", "ann")]) is None
