"""Facts: the texts in the metadata of a thread's checkpoints, as labels by which a filtered list finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vstate.repo.rules.labels import Label

NO_FACTS: Final[Mapping[str, Label]] = {"": False}
"""The labels of a thread whose checkpoints have no texts."""

_MOST_TEXTS: Final = 8  # of one name; then the label is True, which stands for any text
_MOST_BYTES: Final = 2048  # of all names and texts; then True under the empty name stands for any of any name
_NEVER_A_TEXT: Final = (type(None), bool, int, float, bytes, dict, list, tuple)


def with_metadata(known: Mapping[str, Label], metadata: Mapping[str, Any]) -> Mapping[str, Label]:
    """The labels of a thread that has these, and gets a checkpoint with this metadata."""
    labels: dict[str, Label] = {}
    for name, value in metadata.items():
        label = known.get(name, [])
        if type(value) in _NEVER_A_TEXT or not name or label is True:
            continue
        texts = label if isinstance(label, list) else []
        if type(value) is not str or (value not in texts and len(texts) == _MOST_TEXTS):
            labels[name] = True
        elif value not in texts:
            labels[name] = [*texts, value]
    if not labels:
        return known
    labels = {**known, **labels}
    return labels if _fits(labels) else {"": True}


def texts_of(filter: Mapping[str, Any]) -> dict[str, str]:
    """The part of a filter that the labels of a thread may rule out. A dot in a name leads into a dict."""
    wanted = {
        name: value for name, value in filter.items() if type(value) is str and name and "." not in name
    }
    return wanted if _fits(wanted) else {}


def _fits(labels: Mapping[str, Label]) -> bool:
    """Whether a store takes the labels."""
    size = 0
    for name, label in labels.items():
        for text in (name, *(label if isinstance(label, list) else [label])):
            try:
                size += len(text.encode()) + 5 if isinstance(text, str) else 1
            except UnicodeEncodeError:
                return False
    return size <= _MOST_BYTES
