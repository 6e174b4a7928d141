"""Conversation: windows that fit, and no loss by pruning. Its list is a Sequence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vstate import Live, Memory, Versioned
from vstate.errors import InvalidInput
from vstate.sessions import Conversation, len_of_tokens


def say(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def talk(*texts: str) -> Conversation:
    conversation = Conversation(Live(), "chat")
    conversation.extend(map(say, texts))
    return conversation


def words(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


def one_each(message: object) -> int:
    return 1


def test_windows() -> None:
    """By number, by tokens, by both; a summary of the rest comes first and counts."""
    conversation = talk("one", "two", "three", "four")
    assert words(conversation.window()) == ["one", "two", "three", "four"]
    assert words(conversation.window(last=2)) == ["three", "four"]
    assert conversation.window(last=0) == []
    assert words(conversation.window(max_tokens=3, count=one_each)) == ["two", "three", "four"]
    assert words(conversation.window(max_tokens=3, last=2, count=one_each)) == ["three", "four"]

    def summarise(messages: list[dict[str, str]]) -> dict[str, str]:
        return say("+".join(words(messages)))

    assert words(conversation.window(last=1, summarise=summarise)) == ["one+two+three", "four"]
    assert words(conversation.window(max_tokens=3, count=one_each, summarise=summarise)) == [
        "one+two",
        "three",
        "four",
    ]
    assert words(conversation.window(last=4, summarise=summarise)) == ["one", "two", "three", "four"]
    assert len(conversation) == 4
    assert talk().window(max_tokens=5) == []


def test_a_message_that_cannot_fit_raises() -> None:
    """A newest message, or a summary, that leaves no room raises; the window is not just empty."""
    conversation = talk("short", "x" * 100)
    with pytest.raises(InvalidInput, match="26 tokens"):
        conversation.window(max_tokens=24)
    for last in (None, 1, 0):
        with pytest.raises(InvalidInput, match="the summary has 26 of 10 tokens"):
            talk("a" * 100, "b" * 20).window(
                max_tokens=10, last=last, summarise=lambda messages: say("s" * 100)
            )
    # NaN tokens would mean no limit.
    for name, wrong in (("last", (-1, "1", 1.5)), ("max_tokens", (-1, "9", math.nan))):
        for value in wrong:
            with pytest.raises(InvalidInput, match=f"{name} is a .*number from 0 on, or None for no limit"):
                conversation.window(**{name: value})


def test_tokens() -> None:
    """Four characters a token, however deep the text is nested."""
    assert len_of_tokens("") == 0
    assert len_of_tokens("12345") == 2
    assert len_of_tokens({"role": "user", "content": [{"text": "1234"}, None]}) == 2
    assert len_of_tokens(12345) == 2


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(9, 40), st.none() | st.integers(1, 12))
def test_a_window_is_the_longest_that_fits(sizes: list[int], room: int, last: int | None) -> None:
    """The window fits, and with one message more it would not."""
    conversation = Conversation(Live(), "chat")
    conversation.extend(sizes)
    window = conversation.window(max_tokens=room, last=last, count=lambda size: size)
    assert window == sizes[len(sizes) - len(window) :]
    assert sum(window) <= room
    if len(window) < len(sizes) and len(window) != last:
        assert sum(window) + sizes[-len(window) - 1] > room


def test_pruning_loses_nothing() -> None:
    """History has the pruned messages; the summary is in front, and the conversation goes on."""
    state = Versioned(Memory())
    conversation = Conversation(state, "chat")
    conversation.extend(map(say, "abcdef"))
    state.commit("talk")
    assert conversation.prune(last=2, summarise=lambda messages: say(f"{len(messages)} before")) == 4
    conversation.append(say("g"))
    state.commit("pruned")
    assert words(list(conversation)) == ["4 before", "e", "f", "g"]
    assert conversation.prune(last=3) == 1
    assert conversation.prune(last=3) == 0
    assert words(list(conversation)) == ["e", "f", "g"]
    assert words(list(Conversation(state.checkout("HEAD~1"), "chat"))) == list("abcdef")
