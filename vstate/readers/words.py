"""Words: values in a line, for the subjects of commits."""

from __future__ import annotations

from typing import Final

from vstate.display.cells import line_text
from vstate.display.chats import MessageView, chat_view
from vstate.plural import counted
from vstate.values.inert import preview

_LONGEST: Final = 60  # characters of a text or a value


def messages_in_words(value: object, *, with_role: bool = False) -> str | None:
    """A message, or a list of them: `2 messages · “I found it…”`, or None for another value.

    A single one is `user: “Buy tea”`, if the role is wanted.
    """
    items = value if isinstance(value, list | tuple) else [value]
    chat = chat_view(items, most=_LONGEST * 2, total=_LONGEST * 200)
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
    return line_text(preview(value, width=None, max_depth=2, max_items=5), _LONGEST) if text is None else text


def value_in_words(name: str, value: object) -> str:
    """A value beside its name: `budget=7`."""
    text = messages_in_words(value)
    if text is None:
        return f"{name}={in_brief(value)}"
    return text if name == "messages" else f"{name}: {text}"


def _said(message: MessageView) -> str:
    if message.text.strip():
        return f"“{line_text(message.text, _LONGEST)}”"
    return ", ".join(f"{call.name}({line_text(call.arguments, _LONGEST)})" for call in message.calls)
