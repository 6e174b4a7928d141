"""Conversation: messages in order, each under a key of its own, and the part of them that a model is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from vstate.arguments import called, check_amount, check_count
from vstate.errors import InvalidInput
from vstate.patterns.sequence import Sequence

Message = Any
"""Whatever a program takes for a message: often a dict with `role` and `content`."""

Summarise = Callable[[list[Message]], Message]

_CHARACTERS = 4  # of English text in a token, by the rule of thumb of those who make the models


def len_of_tokens(message: Message) -> int:
    """About how many tokens a message has: one for each four characters of its text, rounded up; exact for no model.

    The text of a dict is that of its values, whatever they are nested in. Give `window` the model's own tokenizer
    where it matters.
    """
    return -(-_characters(message) // _CHARACTERS)


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_characters, value))
    if value is None:
        return 0
    content = getattr(value, "content", None)
    if content is not None:
        return _characters(content)
    return len(json.dumps(value, default=str))


class Conversation(Sequence[Message]):
    """The messages of a conversation in a state or a namespace, under `name/`: a Sequence.

    A turn costs the same at message 10 and at message 100,000, and so does a window of it. Nothing that is pruned or
    summarised is lost: the state's history has the messages as they were.
    """

    def window(
        self,
        *,
        max_tokens: int | None = None,
        last: int | None = None,
        count: Callable[[Message], int] = len_of_tokens,
        summarise: Summarise | None = None,
    ) -> list[Message]:
        """The newest messages, oldest first: at most `last` of them, and of `max_tokens` in all by `count`.

        `summarise` is called with the messages that are left out, if there are any, and what it returns comes first,
        and counts. It reads all messages; without it only those of the window are read. Nothing changes: `prune`
        keeps a summary. Raises InvalidInput if not even the newest message fits.
        """
        summary, shown = self._shown(max_tokens, last, count, summarise)
        return summary + shown

    def prune(
        self,
        *,
        max_tokens: int | None = None,
        last: int | None = None,
        count: Callable[[Message], int] = len_of_tokens,
        summarise: Summarise | None = None,
    ) -> int:
        """Keep of the conversation what `window` would show, the summary in front; how many messages went away.

        They are in the history: `state.checkout(rev)` has the conversation of then.
        """
        summary, shown = self._shown(max_tokens, last, count, summarise)
        gone = len(self) - len(shown)
        if summary:
            self[gone - 1] = summary[0]
        del self[: gone - len(summary)]
        return gone

    def _shown(
        self,
        max_tokens: int | None,
        last: int | None,
        count: Callable[[Message], int],
        summarise: Summarise | None,
    ) -> tuple[list[Message], list[Message]]:
        """The summary, if there is one, and the messages that are shown as they are."""
        check_amount("max_tokens", max_tokens, none="None for no limit")
        check_count("last", last, 0, none="None for no limit")
        shown = self._newest(max_tokens, last, count)
        while summarise is not None and len(shown) < len(self):
            summary = called("summarise", summarise, self[: len(self) - len(shown)])
            if max_tokens is None:
                return [summary], shown
            fitting = _fitting(shown, max_tokens - count(summary), count)
            if len(fitting) == len(shown):
                return [summary], shown
            if not fitting:
                raise InvalidInput(
                    f"the summary has {count(summary)} of {max_tokens} tokens, which leaves too few for the newest message"
                )
            shown = fitting
        return [], shown

    def _newest(
        self, max_tokens: int | None, last: int | None, count: Callable[[Message], int]
    ) -> list[Message]:
        if max_tokens is None:
            return self.last(len(self) if last is None else last)
        newest: list[Message] = []
        room = max_tokens
        for message in reversed(self):
            room -= count(message)
            if room < 0 or len(newest) == last:
                break
            newest.append(message)
        if not newest and len(self) and last != 0:
            size = count(self[-1])
            raise InvalidInput(f"the newest message alone has {size} tokens, and max_tokens is {max_tokens}")
        return newest[::-1]


def _fitting(messages: list[Message], room: int, count: Callable[[Message], int]) -> list[Message]:
    """The newest of the messages, as many as there is room for."""
    for index in range(len(messages) - 1, -1, -1):
        room -= count(messages[index])
        if room < 0:
            return messages[index + 1 :]
    return messages
