"""Conversation: messages in order, one key each, and the window of them that a model sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from vstate.arguments import called, check_amount, check_count
from vstate.errors import InvalidInput
from vstate.patterns.sequence import Sequence

Message = Any
"""A message of any type; often a dict with `role` and `content`."""

Summarise = Callable[[list[Message]], Message]

_CHARACTERS = 4  # of English text a token, the rule of thumb of model vendors


def len_of_tokens(message: Message) -> int:
    """An estimate of the tokens of a message: one for four characters of its text, rounded up.

    The text of a dict is the text of its values, nested ones too. It is exact for no model: pass the
    tokenizer of the model to `window` if that matters.
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
    """The messages of a conversation in a state or a namespace: a Sequence under `name/`.

    A turn, and a window, cost the same at message 10 and at message 100,000. History keeps the messages that
    are pruned or summarised.
    """

    def window(
        self,
        *,
        max_tokens: int | None = None,
        last: int | None = None,
        count: Callable[[Message], int] = len_of_tokens,
        summarise: Summarise | None = None,
    ) -> list[Message]:
        """The newest messages, oldest first: at most `last`, and at most `max_tokens` in all by `count`.

        If messages are left out, `summarise` is called with them. Its result comes first, and its tokens
        count too. Without `summarise`, only the messages of the window are read. The conversation does not
        change; `prune` stores a summary. Raises InvalidInput if the newest message alone does not fit.
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
        """Reduce the conversation to its `window`, summary first. Returns the number of removed messages.

        History keeps them: `state.checkout(rev)` has the conversation as it was.
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
        """The summary, if any, and the messages of the window."""
        check_amount("max_tokens", max_tokens, none="None for no limit")
        check_count("last", last, 0, none="None for no limit")
        shown = self._newest(max_tokens, last, count)
        while summarise is not None and len(shown) < len(self):
            summary = called("summarise", summarise, self[: len(self) - len(shown)])
            if max_tokens is None:
                return [summary], shown
            size = count(summary)
            fitting = _fitting(shown[::-1], max_tokens - size, count)
            if size > max_tokens or (shown and not fitting):
                raise InvalidInput(
                    f"the summary has {size} of {max_tokens} tokens, which leaves too few for the "
                    "newest message: shorten the summary, or raise max_tokens"
                )
            if len(fitting) == len(shown):
                return [summary], shown
            shown = fitting
        return [], shown

    def _newest(
        self, max_tokens: int | None, last: int | None, count: Callable[[Message], int]
    ) -> list[Message]:
        if max_tokens is None:
            return self.last(len(self) if last is None else last)
        newest = _fitting(islice(reversed(self), last), max_tokens, count)
        if not newest and len(self) and last != 0:
            size = count(self[-1])
            raise InvalidInput(
                f"the newest message alone has {size} tokens, and max_tokens is {max_tokens}: raise it"
            )
        return newest


def _fitting(newest_first: Iterable[Message], room: int, count: Callable[[Message], int]) -> list[Message]:
    """The newest messages that fit into `room`, oldest first."""
    found: list[Message] = []
    for message in newest_first:
        room -= count(message)
        if room < 0:
            break
        found.append(message)
    return found[::-1]
