"""Chats: a list of messages as a conversation, each call of a tool beside its result.

The messages may be dicts, as the APIs of models have them, or objects of an agent framework. They are known
by their fields: `role` and `content`, or `type` and `content`, or `kind` and `parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from vstate.display.cells import cut_text, line_text
from vstate.values.inert import Instance, preview

__all__ = ["CallView", "ChatView", "MessageView", "chat_view"]

_MOST_MESSAGES: Final = 1000
_LONGEST: Final = 500  # characters of a message in its description
_MOST_BLOCKS: Final = 50  # of one message
_LONGEST_NAME: Final = 60
_ROLES: Final = {"human": "user", "ai": "assistant"}


Cut = Callable[[str], str]
"""Makes a text as short as it is shown."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call of a tool; `result` is None as long as no later message answers the call."""

    id: str
    name: str
    arguments: str
    result: str | None = None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message: its place in the list, and the beginning of its text."""

    place: int
    role: str
    name: str
    text: str
    calls: tuple[CallView, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatView:
    """A conversation. Messages that only answer calls are the results of these calls."""

    messages: tuple[MessageView, ...]
    count: int
    """The number of stored messages."""
    more: int
    """The number of messages behind those that are described."""


def chat_view(value: Sequence[object], *, most: int = _LONGEST) -> ChatView | None:
    """The view of a list of messages; None for any other list.

    Texts have at most `most` characters: in one line by default, else with their lines.
    """
    cut: Cut = partial(line_text, most=most) if most == _LONGEST else partial(cut_text, most=most)
    if not value or not all(_is_message(_fields(item)) for item in value[:_MOST_MESSAGES]):
        return None
    messages: list[MessageView] = []
    open_calls: dict[str, tuple[int, int]] = {}
    for place, item in enumerate(value[:_MOST_MESSAGES]):
        fields = _fields(item)
        for role, found in _parts(fields, cut):
            text, calls, results = found
            alone = bool(results)
            for id, result in results:
                at = open_calls.pop(id, None)
                if at is None:
                    text = f"{text} {result}".strip()
                    alone = False
                    continue
                number, call = at
                message = messages[number]
                answered = replace(message.calls[call], result=result)
                before, after = message.calls[:call], message.calls[call + 1 :]
                messages[number] = replace(message, calls=(*before, answered, *after))
            if alone and not text and not calls:
                continue
            for number, call_view in enumerate(calls):
                open_calls[call_view.id] = (len(messages), number)
            name = _text(fields.get("name"))[:_LONGEST_NAME]
            messages.append(MessageView(place, role, name, cut(text), tuple(calls)))
    return ChatView(tuple(messages), len(value), max(len(value) - _MOST_MESSAGES, 0))


def _fields(item: object) -> Mapping[str, object]:
    """The fields of a dict or an object."""
    if isinstance(item, dict):
        return item
    return item.fields if isinstance(item, Instance) and not item.called else {}


def _is_message(fields: Mapping[str, object]) -> bool:
    if isinstance(fields.get("role"), str):
        return "content" in fields or "tool_calls" in fields
    if isinstance(fields.get("parts"), list | tuple):
        return fields.get("kind") in ("request", "response")
    return isinstance(fields.get("type"), str) and "content" in fields and "additional_kwargs" in fields


_Content = tuple[str, list[CallView], list[tuple[str, str]]]
"""The text, the calls, and the results by the ids of their calls."""


def _parts(fields: Mapping[str, object], cut: Cut) -> Iterator[tuple[str, _Content]]:
    """The role and the content of a message; for each part of a message that is stored in parts."""
    parts = fields.get("parts")
    if "role" not in fields and isinstance(parts, list | tuple):
        for part in parts[:_MOST_BLOCKS]:
            inner = _fields(part)
            kind = _text(inner.get("part_kind"))
            text = _brief(inner.get("content"), cut)
            id = _text(inner.get("tool_call_id"))
            if kind == "tool-call":
                yield "assistant", ("", [_call(id, inner.get("tool_name"), inner.get("args"), cut)], [])
            elif kind == "tool-return":
                yield "tool", ("", [], [(id, text)])
            else:
                role = kind.removesuffix("-prompt") if kind.endswith("-prompt") else "assistant"
                yield role, (text, [], [])
        return
    role = _text(fields.get("role") or fields.get("type"))[:_LONGEST_NAME]
    yield _ROLES.get(role, role), _content(fields, cut)


def _content(fields: Mapping[str, object], cut: Cut) -> _Content:
    texts: list[str] = []
    calls: list[CallView] = []
    results: list[tuple[str, str]] = []
    content = fields.get("content")
    if isinstance(content, list | tuple):
        for block in content[:_MOST_BLOCKS]:
            inner = _fields(block)
            kind = inner.get("type")
            if kind == "tool_use":
                calls.append(_call(_text(inner.get("id")), inner.get("name"), inner.get("input"), cut))
            elif kind == "tool_result":
                output = inner.get("content", inner.get("output"))
                results.append((_text(inner.get("tool_use_id", inner.get("id"))), _brief(output, cut)))
            else:
                text = inner.get("text", inner.get("thinking"))
                texts.append(text if isinstance(text, str) else f"[{_text(kind) or 'part'}]")
    elif content is not None:
        texts.append(_brief(content, cut))
    made = fields.get("tool_calls")
    for call in made[:_MOST_BLOCKS] if isinstance(made, list | tuple) else ():
        inner = _fields(call)
        function = _fields(inner.get("function")) or inner
        arguments = function.get("arguments", function.get("args"))
        calls.append(_call(_text(inner.get("id")), function.get("name"), arguments, cut))
    answered = fields.get("tool_call_id")
    text = "\n".join(texts)
    if isinstance(answered, str):
        return "", calls, [(answered, cut(text))]
    return text, calls, results


def _call(id: str, name: object, arguments: object, cut: Cut) -> CallView:
    if isinstance(arguments, dict) and all(isinstance(key, str) for key in arguments):
        inside = ", ".join(f"{key[:_LONGEST_NAME]}={_value(item)}" for key, item in [*arguments.items()][:20])
    else:
        inside = _brief(arguments, cut)
    return CallView(id[:_LONGEST], _text(name)[:_LONGEST_NAME], cut(inside))


def _value(value: object) -> str:
    return preview(value, width=None, max_depth=3, max_items=5, max_nodes=30)


def _brief(value: object, cut: Cut) -> str:
    """The text of a content: a text itself, the texts of blocks, or a preview of anything else."""
    if isinstance(value, str):
        return cut(value)
    if value is None:
        return ""
    if isinstance(value, list | tuple) and value:
        texts = [_fields(block).get("text") for block in value[:_MOST_BLOCKS]]
        known = [text for text in texts if isinstance(text, str)]
        if len(known) == len(texts):
            return cut("\n".join(known))
    return cut(_value(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
