"""The values that all sides store, from seeded generators."""

from __future__ import annotations

import functools
import importlib
import random
import re
from collections.abc import Iterator

KEYS = 10_000

DOCUMENTED = (
    "argparse builtins calendar csv datetime decimal email.message http.client imaplib itertools json "
    "logging os pathlib random re smtplib statistics subprocess textwrap threading typing unittest.mock "
    "zipfile"
)
"""Modules with long docstrings."""


def key(i: int) -> str:
    """The name of key number `i`."""
    return f"key/{i:07}"


def random_values(count: int, seed: int = 1, size: int = 1024) -> list[bytes]:
    """Bytes that no store can compress."""
    generator = random.Random(seed)
    return [generator.randbytes(size) for _ in range(count)]


def small_dict(i: int) -> dict[str, object]:
    """A new dict, as an agent keeps one for each fact."""
    return {"id": i, "name": f"item {i}", "score": i / 7, "tags": ["a", "b"], "done": i % 2 == 0}


@functools.cache
def _words() -> list[str]:
    """Every word of the docstrings, repeated as often as it occurs."""
    modules = [importlib.import_module(name) for name in DOCUMENTED.split()]
    things = modules + [vars(module)[name] for module in modules for name in sorted(vars(module))]
    classes = [thing for thing in things if isinstance(thing, type)]
    things += [vars(cls)[name] for cls in classes for name in sorted(vars(cls))]
    found = [getattr(thing, "__doc__", None) for thing in things]
    # A docstring that several modules or classes share counts once.
    texts = dict.fromkeys(text for text in found if isinstance(text, str))
    return re.findall(r"[A-Za-z][a-z']+[.,;:]?", " ".join(texts))


def messages(seed: int = 1, length: int = 450) -> Iterator[dict[str, str]]:
    """Chat messages without end, each with `length` characters of text.

    The text draws words of the standard library's docstrings at random. It has the vocabulary and the
    frequencies of English without its phrases, and compresses about as well as a chat.
    """
    generator, words = random.Random(seed), _words()
    turn = 0
    while True:
        text = " ".join(generator.choices(words, k=length // 2))
        yield {"role": "assistant" if turn % 2 else "user", "content": text[:length]}
        turn += 1
