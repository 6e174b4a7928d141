"""Chats, and fields: the messages and the states that frameworks keep in records of their own."""

from __future__ import annotations

from base64 import b32decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import Any, Final
from urllib.parse import unquote

from vstate.display.chats import messages_in_words
from vstate.readers.stored import Kept, Stored

MESSAGES: Final = "messages"
_ITEMS: Final = "items/"
_ENTRIES: Final = "entries/"
_STEP: Final = "step"
_CHECKPOINTS: Final = "checkpoints/"

Convert = Callable[[Any], Iterable[Any]]
"""The messages in a record of a journal, in a form that `vstate.display.chats` knows."""


# A journal of messages


def journal_state(stored: Stored, prefix: str, convert: Convert) -> dict[str, Any]:
    """The messages of a journal as one list, and the other keys as they are stored."""
    others = {key: Kept(data) for key, data in stored.entries() if not key.startswith(prefix)}
    return {**others, MESSAGES: [each for record in stored.records(prefix) for each in convert(record)]}


def journal_title(stored: Stored, before: Stored | None, prefix: str, convert: Convert) -> str | None:
    """The new messages in words."""
    records = stored.new_records(before, prefix)
    new = [each for record in records or () for each in convert(record)]
    return messages_in_words(new, with_role=True) if new else None


def openai_item(record: Any) -> Iterable[Any]:
    """The item of a record of OpenAI's sessions, which also has records of usage."""
    return [record["item"]] if "item" in record else ()


def openai_state(stored: Stored) -> Mapping[str, Any]:
    """The items of a branch as `messages`, and `usage` by turn. A branch that was cleared has none."""
    usage = {record["turn"]: record["usage"] for record in stored.records(_ITEMS) if "usage" in record}
    return {**journal_state(stored, _ITEMS, openai_item), **({"usage": usage} if usage else {})}


openai_title = partial(journal_title, prefix=_ITEMS, convert=openai_item)


def adk_messages(event: Any) -> Iterator[dict[str, Any]]:
    """The messages of an event of ADK: its texts and calls, and the responses of functions."""
    content = event.get("content") or {}
    author = event.get("author") or "assistant"
    who = {"role": "user"} if author == "user" else {"role": "assistant", "name": author}
    blocks: list[Any] = []
    for part in content.get("parts") or ():
        if call := part.get("function_call"):
            blocks.append(_call(call.get("id"), call.get("name"), call.get("args")))
        elif response := part.get("function_response"):
            blocks.append(_result(response.get("id"), response.get("response")))
        else:
            blocks.append({"type": "text", "text": part["text"]} if "text" in part else _other(part))
    if blocks:
        yield {**who, "content": blocks}


def adk_state(stored: Stored) -> Mapping[str, Any]:
    """The events of a session as they are, and their contents as `messages`; `session` and its `state`."""
    return {**journal_state(stored, "events/", adk_messages), "events": [*stored.records("events/")]}


adk_title = partial(journal_title, prefix="events/", convert=adk_messages)


def llama_message(record: Any) -> Iterable[dict[str, Any]]:
    """A ChatMessage of LlamaIndex."""
    blocks: list[Any] = []
    for block in record.get("blocks") or ():
        kind = block.get("block_type")
        if kind == "tool_call":
            blocks.append(_call(block.get("tool_call_id"), block.get("tool_name"), block.get("tool_kwargs")))
        else:
            blocks.append({"type": kind, **block})
    more = record.get("additional_kwargs") or {}
    return [{"role": record["role"], "content": blocks, **more}]


llama_state = partial(journal_state, prefix="messages/", convert=llama_message)
llama_title = partial(journal_title, prefix="messages/", convert=llama_message)


def agent_framework_message(record: Any) -> Iterable[dict[str, Any]]:
    """A Message of Microsoft's Agent Framework."""
    blocks: list[Any] = []
    for content in record.get("contents") or ():
        if content.get("type") == "function_call":
            blocks.append(_call(content.get("call_id"), content.get("name"), content.get("arguments")))
        elif content.get("type") == "function_result":
            blocks.append(_result(content.get("call_id"), content.get("result")))
        else:
            blocks.append(content)
    author = record.get("author_name")
    return [{"role": record["role"], "content": blocks, **({"name": author} if author else {})}]


agent_framework_state = partial(journal_state, prefix="messages/", convert=agent_framework_message)
agent_framework_title = partial(journal_title, prefix="messages/", convert=agent_framework_message)


def claude_messages(entry: Any) -> Iterable[Any]:
    """The message of a line of a transcript of Claude; other lines are titles, tags and the like."""
    message = entry.get("message")
    return [message] if isinstance(message, dict) and "role" in message else ()


def claude_state(stored: Stored) -> Mapping[str, Any]:
    """The messages of a session and of each of its subagents, and the summary."""
    found: dict[str, list[Any]] = {}
    for subpath, entry in stored.records(_ENTRIES):
        found.setdefault(f"{subpath}/{MESSAGES}" if subpath else MESSAGES, []).extend(claude_messages(entry))
    others = {key: Kept(data) for key, data in stored.entries() if not key.startswith(_ENTRIES)}
    return {**others, **found}


def claude_title(stored: Stored, before: Stored | None) -> str | None:
    """The new messages in words, after the name of the subagent, if it is one's."""
    records = stored.new_records(before, _ENTRIES) or []
    new = [each for _, entry in records for each in claude_messages(entry)]
    words = messages_in_words(new, with_role=True)
    return f"{records[0][0]}: {words}" if words and records[0][0] else words


class HarnessSteps:
    """The index of a run of the Pydantic AI harness: events, snapshots, the newest effect of each call."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {"event": [], "snapshot": [], "effect": []}
        self.keys: set[tuple[str, str | None]] = {*()}
        self.messages: list[Any] = []  # of the newest snapshot

    def add(self, record: Any) -> None:
        """A snapshot `follows` so many messages of the one before it. If it leaves `most`, older ones go."""
        kind, about = next(iter(record.items()))
        rows = self.rows[kind]
        self.keys.add((kind, about["idempotency_key"]))
        if kind == "effect":
            rows[:] = [row for row in rows if row["tool_call_id"] != about["tool_call_id"]]
        elif kind == "snapshot":
            self.messages = [*self.messages[: record["follows"]], *about["messages"]]
            about = {**about, "messages": self.messages}
        rows.append(about)
        if most := record.get("most"):
            complete = [row for row in rows if row["state"] == "complete"]
            rows[:-most] = [row for row in rows[:-most] if row is complete[-1]] if complete else []


def harness_state(stored: Stored) -> Mapping[str, Any]:
    """The messages of the newest snapshot of a run, its events and tool effects, and its record."""
    steps, others = HarnessSteps(), journal_state(stored, "steps/", lambda record: ())
    for record in stored.records("steps/"):
        steps.add(record)
    return {
        **others,
        MESSAGES: steps.messages,
        "events": steps.rows["event"],
        "effects": steps.rows["effect"],
    }


harness_title = partial(
    journal_title, prefix="steps/", convert=lambda record: record.get("snapshot", {}).get(MESSAGES, ())
)


# A key for each message


def pydantic_ai_state(stored: Stored) -> Mapping[str, Any]:
    """The messages of a conversation of Pydantic AI, from the first to that of its head, and its record."""
    entries = {entry["id"]: entry for entry in stored.values("messages/")}
    record = stored.get("record")
    line: list[Any] = []
    at = record["head_id"]
    while at is not None and len(line) < len(entries):
        line.append(entries[at]["message"])
        at = entries[at]["parent_id"]
    return {"record": record, MESSAGES: line[::-1]}


def keyed_title(stored: Stored, before: Stored | None, convert: Callable[[Any], Any]) -> str | None:
    """The new messages in words, where each message has a key."""
    keys = [key for key in stored.changed(before) if "messages/" in key]
    new = [
        convert(value) for value in map(stored.get, keys) if value is not None
    ]  # in the order of their ids
    return messages_in_words(new, with_role=True) if new else None


pydantic_ai_title = partial(keyed_title, convert=itemgetter("message"))


def strands_state(stored: Stored) -> Mapping[str, Any]:
    """The messages of each agent of a session of Strands as one list."""
    values: dict[str, Any] = {}
    for key, data in stored.entries():
        agent, found, _ = key.partition("/messages/")
        if not (found and key.startswith("agents/")):
            values[key] = Kept(data)
        elif (name := f"{agent}/messages") not in values:
            values[name] = [*map(strands_message, stored.values(f"{name}/"))]
    return values


def strands_message(stored: Any) -> dict[str, Any]:
    """A message of Strands; the redacted form, if it was redacted."""
    message = stored.get("redact_message") or stored["message"]
    blocks: list[Any] = []
    for block in message.get("content") or ():
        if use := block.get("toolUse"):
            blocks.append(_call(use.get("toolUseId"), use.get("name"), use.get("input")))
        elif result := block.get("toolResult"):
            blocks.append(_result(result.get("toolUseId"), result.get("content")))
        else:
            blocks.append({"type": "text", "text": block["text"]} if "text" in block else _other(block))
    return {"role": message["role"], "content": blocks}


strands_title = partial(keyed_title, convert=strands_message)


def _call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def _result(id: Any, output: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": output}


def _other(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of another kind, by its name: `{"inline_data": …}`."""
    return {"type": next(iter(part), "part"), **part}


# Fields: a key for each item of a list, and checkpoints of which the newest is shown


def fields_state(stored: Stored, name: str) -> Mapping[str, Any]:
    """The fields of a record by their names, and `step` without them. A list is one value again."""
    step = dict(stored.get(_STEP))
    values: dict[str, Any] = {_STEP: {key: value for key, value in step.items() if key != "fields"}}
    fields: dict[str, tuple[str, bytes]] = {}
    for key, data in stored.entries():
        record, slash, rest = key.partition("/")
        if slash and record == name:
            quoted = rest.partition("/")[0]
            fields["" if quoted == "%" else unquote(quoted)] = f"{name}/{quoted}/", data
        elif key != _STEP:
            values[key] = Kept(data)
    for field, has_items in step["fields"]:
        shown = f"{name}/{field}" if field in values or not field else field
        if has_items:  # an empty list has no key
            values[shown] = [*stored.values(fields[field][0])] if field in fields else []
        else:
            values[shown] = Kept(fields[field][1])
    return values


state_fields = partial(fields_state, name="state")
checkpoint_fields = partial(fields_state, name="checkpoint")


def workflow_state(stored: Stored) -> Mapping[str, Any]:
    """The newest checkpoint of a workflow of Agent Framework, by its time, without the values of others."""
    abouts = {
        key: stored.value(key, data)
        for key, data in stored.entries(_CHECKPOINTS)
        if key.endswith("/about") and key.count("/") == 2
    }
    if not abouts:
        return {}
    newest = max(abouts, key=lambda key: datetime.fromisoformat(abouts[key]["timestamp"]))
    prefix = newest.removesuffix("about")
    own = {key.removeprefix(prefix): Kept(data) for key, data in stored.entries(prefix) if key != newest}
    about = {name: value for name, value in abouts[newest].items() if name != "state"}
    return {**own, "checkpoint": about, "checkpoints": sorted(each["timestamp"] for each in abouts.values())}


def llama_run_state(stored: Stored) -> Mapping[str, Any]:
    """The state of a run of a workflow of LlamaIndex, as its serializer gave it."""
    found = stored.get("state")
    if found is None:
        return {}
    return {"state": found["text"] if found["tree"] is None else found["tree"]}


def nontainer_state(stored: Stored) -> Mapping[str, Any]:
    """The files of a workspace by path, and its other keys, without the sizes and times of files."""
    found = {}
    for key, data in stored.entries():
        digits = key.removeprefix("__vfs_")
        if not digits.startswith("meta"):
            with suppress(ValueError):  # it is no path
                key = (
                    f"files/{b32decode(digits + '=' * (-len(digits) % 8)).decode()}" if digits != key else key
                )
            found[key] = Kept(data)
    return found
