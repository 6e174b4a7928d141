"""Instance and Global, which stand for objects that were not built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

_LONGEST_NAME: Final = 200


@dataclass(eq=False, slots=True, repr=False)
class Global:
    """Something that a pickle refers to by name: a class, a function. It was not imported.

    Shown as `<os.system>`. For a class or function of `__main__`, `fields` holds the definition that
    cloudpickle wrote. Compares and hashes by identity.
    """

    name: str
    fields: dict[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{printable(self.name)}>"


@dataclass(eq=False, slots=True, repr=False)
class Instance:  # `inert` gives it its `__repr__`
    """An object that a pickle describes. It was not built, and none of its code ran.

    Shown as `app.Plan(goal='x')`. If `called`, it is a call that loading would make, with an unknown result;
    then it is shown in angle brackets, `<os.system('echo hi')>`. Compares and hashes by identity, so that an
    Instance can be a key with any content.
    """

    type: str
    """The full name of the class, or of the function of a call."""
    fields: dict[str, object] = field(default_factory=dict)
    """The attributes by name."""
    args: tuple[object, ...] = ()
    """The positional arguments of the constructor."""
    kwargs: dict[str, object] = field(default_factory=dict)
    """The keyword arguments of the constructor."""
    items: list[object] | None = None
    """The elements, if it is a kind of list, deque or set."""
    entries: dict[object, object] | None = None
    """The entries, if it is a kind of dict."""
    state: object = None
    """The argument of its `__setstate__`, unless that is a mapping of attributes."""
    called: bool = False

    def children(self) -> Iterator[object]:
        """Everything directly inside; `args`, `items` and `entries` whole, since others may share them."""
        yield self.args
        yield from self.kwargs.values()
        yield from self.fields.values()
        yield self.items
        yield self.entries
        yield self.state


def printable(text: str) -> str:
    """`text` without quotes, cut to 200 characters, with control characters escaped."""
    if len(text) > _LONGEST_NAME:
        text = text[:_LONGEST_NAME] + "…"
    return text if text.isprintable() else repr(text)[1:-1]


def in_order(members: Iterable[object]) -> list[object]:
    """The members of a set, sorted as far as possible, because the order of a set differs from run to run."""
    texts: list[str] = []
    numbers: list[int | float] = []
    others: list[object] = []
    for member in members:
        if isinstance(member, str):
            texts.append(member)
        elif isinstance(member, int | float) and member == member:  # nan has no place
            numbers.append(member)
        else:
            others.append(member)
    return [*sorted(numbers), *sorted(texts), *others]
