"""Chats: a list of messages as a conversation, each call of a tool beside its result.

The messages may be dicts, as the APIs of models have them, or objects of an agent framework. They are known
by their fields: `role` and `content`, or `type` and `content`, or `kind` and `parts`. The items of OpenAI's
Responses API that are no messages, such as `function_call`, are known by their `type`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vstate.display.cells import cut_text, line_text
from vstate.plural import counted
from vstate.values.instance import Instance
from vstate.values.preview import preview

_MOST_MESSAGES: Final = 1000
_AROUND: Final = 1000  # messages before and after a page in which calls and results find each other
_LONGEST: Final = 500  # characters of a message in its description
_MOST_TEXT: Final = 4_000_000  # characters of all messages
_FEWEST: Final = 20  # of each text behind these
_MOST_BLOCKS: Final = 50  # of one message
_LONGEST_NAME: Final = 60
_LONGEST_WORDS: Final = 60  # characters of a text or a value in a line
_ROLES: Final = {"human": "user", "ai": "assistant"}
_PAIRED: Final = frozenset({"user", "human", "assistant", "ai", "system"})
_ARGUMENTS: Final = ("arguments", "input", "action", "queries", "code")
"""The fields of OpenAI's items that hold what a tool is called with."""


@dataclass(slots=True)
class TextBudget:
    """Makes a text as short as it is shown: in one line, or with its lines.

    `left` characters of all texts are shown so, and of each further one its beginning. A forged message may
    hold one long text many times.
    """

    most: int
    left: int

    def __call__(self, text: str) -> str:
        most = self.most if self.left > 0 else min(self.most, _FEWEST)
        found = line_text(text, most) if self.most == _LONGEST else cut_text(text, most)
        self.left -= len(found)
        return found

    def joined(self, texts: Iterable[str]) -> str:
        """The texts as lines; no more of them are joined than are shown."""
        found: list[str] = []
        left = self.most + 1
        for text in texts:
            found.append(text[:left])
            left -= len(text) + 1
            if left <= 0:
                break
        return self("\n".join(found))


@dataclass(frozen=True, slots=True)
class CallView:
    """A call of a tool; `result` is None as long as no later message answers the call."""

    id: str
    name: str
    arguments: str
    result: str | None = None
    result_at: int | None = None
    """The place of the message that has the result."""


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


def chat_view(
    value: Sequence[object],
    *,
    first: int = 0,
    limit: int = _MOST_MESSAGES,
    most: int = _LONGEST,
    total: int = _MOST_TEXT,
) -> ChatView | None:
    """The view of the messages [first, first + limit) of a list; None for a list of other things.

    The first 1,000 items decide whether the list is a conversation. Calls and results find each other within
    1,000 messages. Texts have at most `most` characters: in one line by default, else with their lines.
    Behind `total` characters, each text has its beginning.
    """
    passed, cut = TextBudget(_FEWEST, 0), TextBudget(most, total)
    if not value or not all(_is_message(_fields(item)) for item in value[:_MOST_MESSAGES]):
        return None
    messages: list[MessageView] = []
    open_calls: dict[str, tuple[int, int]] = {}
    start = max(first - _AROUND, 0)
    for place, item in enumerate(value[start : first + limit + _AROUND], start):
        fields = _fields(item)
        for role, (text, calls, results) in _parts(item, passed if place < first else cut):
            alone = bool(results)
            for id, result in results:
                at = open_calls.pop(id, None)
                if at is None:
                    text = f"{text} {result}".strip()
                    alone = False
                    continue
                number, call = at
                message = messages[number]
                answered = replace(message.calls[call], result=result, result_at=place)
                before, after = message.calls[:call], message.calls[call + 1 :]
                messages[number] = replace(message, calls=(*before, answered, *after))
            if alone and not text and not calls:
                continue
            for number, call_view in enumerate(calls):
                open_calls[call_view.id] = (len(messages), number)
            name = _text(fields.get("name"))[:_LONGEST_NAME] if "role" in fields else ""
            if calls or first <= place < first + limit:
                messages.append(MessageView(place, role, name, cut(text), tuple(calls)))
    shown = tuple(message for message in messages if first <= message.place < first + limit)
    return ChatView(shown, len(value), max(len(value) - first - limit, 0))


def message_text(value: object, most: int = _LONGEST) -> str | None:
    """A message as a text: its role with its words, and a line for each call; None for another value."""
    chat = chat_view([value], most=most, total=most)
    if chat is None or not chat.messages:
        return None
    lines = []
    for message in chat.messages:
        calls = (f"{call.name}({call.arguments})" for call in message.calls)
        lines.append(f"{message.role}: " + "\n".join(filter(None, (message.text, *calls))))
    return cut_text("\n".join(lines), most)


def _fields(item: object) -> Mapping[str, object]:
    """The fields of a dict or an object, or of a pair such as `("user", "hello")`."""
    if isinstance(item, dict):
        return item
    match item:
        case (str(role), str(content)) if role in _PAIRED:
            return {"role": role, "content": content}
    return item.fields if isinstance(item, Instance) and not item.called else {}


def _is_message(fields: Mapping[str, object]) -> bool:
    if isinstance(fields.get("role"), str):
        return "content" in fields or "tool_calls" in fields
    if isinstance(fields.get("parts"), list | tuple):
        return fields.get("kind") in ("request", "response")
    if not isinstance(kind := fields.get("type"), str):
        return False
    return _is_step(kind, fields) or ("content" in fields and "additional_kwargs" in fields)


def _is_step(kind: str, fields: Mapping[str, object]) -> bool:
    """Whether the fields are an item of OpenAI's Responses API that is no message.

    Its types are listed under https://platform.openai.com/docs/api-reference/responses/object.
    """
    if kind == "reasoning":
        return isinstance(fields.get("summary"), list | tuple)
    return kind.endswith(("_call", "_call_output")) and isinstance(
        fields.get("call_id", fields.get("id")), str
    )


_Content = tuple[str, list[CallView], list[tuple[str, str]]]
"""The text, the calls, and the results by the ids of their calls."""


def _parts(item: object, cut: TextBudget) -> Iterator[tuple[str, _Content]]:
    """The role and the content of a message; for each part of a message that is stored in parts."""
    fields = _fields(item)
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
    kind = _text(fields.get("type"))
    if "role" not in fields and _is_step(kind, fields):
        yield _step(kind, fields, cut)
    elif _is_message(fields):
        role = _text(fields.get("role") or kind)[:_LONGEST_NAME]
        yield _ROLES.get(role, role), _content(fields, cut)
    else:  # behind the items that decide
        yield "", (_brief(item, cut), [], [])


def _step(kind: str, fields: Mapping[str, object], cut: TextBudget) -> tuple[str, _Content]:
    id = _text(fields.get("call_id", fields.get("id")))
    if kind == "reasoning":
        return "assistant", (_brief(fields.get("summary"), cut), [], [])
    output = fields.get("output", fields.get("results", fields.get("result")))
    if output is None and "call_id" not in fields:
        output = fields.get("status")  # a tool of the API itself: no other item answers the call
    if kind.endswith("_call_output"):
        return "tool", ("", [], [(id, _brief(output, cut))])
    arguments = next((fields[name] for name in _ARGUMENTS if fields.get(name) is not None), None)
    call = _call(id, fields.get("name") or kind.removesuffix("_call"), arguments, cut)
    return "assistant", ("", [call if output is None else replace(call, result=_brief(output, cut))], [])


def _content(fields: Mapping[str, object], cut: TextBudget) -> _Content:
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
    text = cut.joined(texts)
    return ("", calls, [(answered, text)]) if isinstance(answered, str) else (text, calls, results)


def _call(id: str, name: object, arguments: object, cut: TextBudget) -> CallView:
    if isinstance(arguments, dict) and all(isinstance(key, str) for key in arguments):
        inside = ", ".join(f"{key[:_LONGEST_NAME]}={_value(item)}" for key, item in [*arguments.items()][:20])
    else:
        inside = _brief(arguments, cut)
    return CallView(id[:_LONGEST], _text(name)[:_LONGEST_NAME], cut(inside))


def _value(value: object) -> str:
    return preview(value, width=None, max_depth=3, max_items=5, max_nodes=30)


def _brief(value: object, cut: TextBudget) -> str:
    """The text of a content: a text itself, the texts of blocks, or a preview of anything else."""
    if isinstance(value, str):
        return cut(value)
    if value is None:
        return ""
    if isinstance(value, list | tuple) and value:
        texts = [_fields(block).get("text") for block in value[:_MOST_BLOCKS]]
        known = [text for text in texts if isinstance(text, str)]
        if len(known) == len(texts):
            return cut.joined(known)
    return cut(_value(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


# Values in a line, for the subjects of commits


def messages_in_words(value: object, *, with_role: bool = False) -> str | None:
    """A message, or a list of them: `2 messages · “I found it…”`, or None for another value.

    A single one is `user: “Buy tea”`, if the role is wanted.
    """
    items = value if isinstance(value, list | tuple) else [value]
    chat = chat_view(items, most=_LONGEST_WORDS * 2, total=_LONGEST_WORDS * 200)
    if chat is None:
        return None
    said = next((text for message in reversed(chat.messages) if (text := _said(message))), "")
    if with_role and len(chat.messages) == 1:  # the result of a call is in the call
        return f"{chat.messages[0].name or chat.messages[0].role}: {said}"
    count = counted(len(items), "message")
    return f"{count} · {said}" if said else count


def in_brief(value: object) -> str:
    """A value in a line."""
    text = messages_in_words(value)
    return (
        line_text(preview(value, width=None, max_depth=2, max_items=5), _LONGEST_WORDS)
        if text is None
        else text
    )


def value_in_words(name: str, value: object) -> str:
    """A value beside its name: `budget=7`."""
    text = messages_in_words(value)
    if text is None:
        return f"{name}={in_brief(value)}"
    return text if name == "messages" else f"{name}: {text}"


def _said(message: MessageView) -> str:
    if message.text.strip():
        return f"“{line_text(message.text, _LONGEST_WORDS)}”"
    return ", ".join(f"{call.name}({line_text(call.arguments, _LONGEST_WORDS)})" for call in message.calls)
