"""Instance and Global, which stand for objects that were not built; `Outline` shows values to people."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from vstate.plural import counted

__all__ = [
    "MOST_NODES",
    "Global",
    "Group",
    "Instance",
    "Outline",
    "flat",
    "in_order",
    "is_float_nan",
    "laid_out",
    "more",
    "printable",
]

_LONGEST_NAME: Final = 200
_LONGEST_TEXT: Final = 500
MOST_NODES: Final = 2000
_WIDEST_INT: Final = 1000  # bits: the decimal digits of an int take quadratic time, and over 4300 raise


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
class Instance:
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

    def __repr__(self) -> str:
        return flat(Outline(4, 10, MOST_NODES).node(self, 0))

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


def is_float_nan(value: object) -> bool:
    """Whether `value` is the float that does not equal itself."""
    return isinstance(value, float) and value != value


def in_order(members: Iterable[object]) -> list[object]:
    """The members of a set, sorted as far as possible, because the order of a set differs from run to run."""
    texts: list[str] = []
    numbers: list[int | float] = []
    others: list[object] = []
    for member in members:
        if isinstance(member, str):
            texts.append(member)
        elif isinstance(member, int | float) and not is_float_nan(member):
            numbers.append(member)
        else:
            others.append(member)
    return [*sorted(numbers), *sorted(texts), *others]


@dataclass(slots=True)
class Group:
    """A part of a preview in brackets. Each part inside has a prefix, such as `name=`."""

    opening: str
    closing: str
    parts: list[tuple[str, str | Group]]


class Outline:
    """Turns a value into a bounded number of nested groups of text."""

    def __init__(self, max_depth: int, max_items: int, max_nodes: int) -> None:
        self.max_depth = min(max_depth, 50)
        self.max_items = max_items
        self.left = max_nodes
        self.inside: set[int] = set()

    def node(self, value: object, depth: int) -> str | Group:
        self.left -= 1
        if not isinstance(value, list | tuple | dict | set | frozenset | Instance):
            if isinstance(value, str | bytes | bytearray):
                self.left -= min(len(value), _LONGEST_TEXT) // 25
            return _atom(value)
        if id(value) in self.inside:
            return "<cycle>"
        if self.left < 0:
            return "…"
        if depth >= self.max_depth and (isinstance(value, Instance) or value):
            return _folded(value)
        self.inside.add(id(value))
        try:
            return self._container(value, depth + 1)
        finally:
            self.inside.remove(id(value))

    def _container(self, value: object, depth: int) -> Group:
        if isinstance(value, Instance):
            return self.table(value, depth) or self._instance(value, depth)
        if isinstance(value, dict):
            return Group("{", "}", self._entries(value, depth))
        if isinstance(value, list):
            return Group("[", "]", self.items(value, len(value), depth))
        if isinstance(value, tuple):
            closing = ",)" if len(value) == 1 else ")"
            return Group("(", closing, self.items(value, len(value), depth))
        assert isinstance(value, set | frozenset)
        members = in_order(value) if len(value) <= 1000 else value
        parts = self.items(members, len(value), depth)
        if isinstance(value, frozenset):
            return Group("frozenset({", "})", parts) if parts else Group("frozenset(", ")", parts)
        return Group("{", "}", parts) if parts else Group("set(", ")", parts)

    def table(self, instance: Instance, depth: int) -> Group | None:
        """The outline of a frame; None for other objects."""
        return None

    def _instance(self, instance: Instance, depth: int) -> Group:
        parts = self.items(instance.args, len(instance.args), depth)
        if instance.items is not None:
            parts.append(("", Group("[", "]", self.items(instance.items, len(instance.items), depth))))
        if instance.entries is not None:
            parts.append(("", Group("{", "}", self._entries(instance.entries, depth))))
        for named in (instance.kwargs, instance.fields):
            for name, value in islice(named.items(), self.max_items):
                if self.left < 0:
                    break
                parts.append((f"{printable(name)}=", self.node(value, depth)))
            if len(named) > self.max_items:
                parts.append(("", more(len(named) - self.max_items)))
        if instance.state is not None:
            parts.append(("state=", self.node(instance.state, depth)))
        name = printable(instance.type)
        return Group(f"<{name}(", ")>", parts) if instance.called else Group(f"{name}(", ")", parts)

    def items(self, items: Iterable[object], total: int, depth: int) -> list[tuple[str, str | Group]]:
        parts: list[tuple[str, str | Group]] = []
        for item in islice(items, self.max_items):
            if self.left < 0:
                break
            parts.append(("", self.node(item, depth)))
        if len(parts) < total:
            parts.append(("", more(total - len(parts))))
        return parts

    def _entries(self, entries: dict[object, object], depth: int) -> list[tuple[str, str | Group]]:
        parts: list[tuple[str, str | Group]] = []
        for key, value in islice(entries.items(), self.max_items):
            if self.left < 0:
                break
            parts.append((f"{flat(self.node(key, depth))}: ", self.node(value, depth)))
        if len(parts) < len(entries):
            parts.append(("", more(len(entries) - len(parts))))
        return parts


def more(count: int) -> str:
    return f"… {count} more"


def _folded(value: object) -> str:
    if isinstance(value, Instance):
        return f"<{printable(value.type)}(…)>" if value.called else f"{printable(value.type)}(…)"
    if isinstance(value, dict | set):
        return "{…}"
    if isinstance(value, frozenset):
        return "frozenset({…})"
    return "[…]" if isinstance(value, list) else "(…)"


def _atom(value: object) -> str:
    if isinstance(value, str | bytes | bytearray):
        rest = len(value) - _LONGEST_TEXT
        return repr(value) if rest <= 0 else f"{value[:_LONGEST_TEXT]!r}… {rest} more"
    if isinstance(value, int):
        bits = value.bit_length()
        if bits <= _WIDEST_INT:
            return repr(value)
        sign = "-" if value < 0 else ""
        return f"{sign}0x{abs(value) >> (bits - bits % 4 - 64):x}… {(bits + 3) // 4 - 16} more"
    if value is None or isinstance(value, float | complex | Global | datetime.timedelta | datetime.date):
        return repr(value)
    if isinstance(value, datetime.time | datetime.timezone):
        return repr(value)
    if isinstance(value, memoryview):
        return f"<{counted(value.nbytes, 'byte')}>"
    return f"<{printable(type(value).__name__)}>"


def flat(node: str | Group) -> str:
    if isinstance(node, str):
        return node
    inside = ", ".join(prefix + flat(part) for prefix, part in node.parts)
    return f"{node.opening}{inside}{node.closing}"


def laid_out(
    node: str | Group, prefix: str, suffix: str, indent: int, width: int, measure: Callable[[str], int]
) -> Iterator[str]:
    line = f"{' ' * indent}{prefix}{flat(node)}{suffix}"
    if isinstance(node, str) or (len(line) <= 2 * width and measure(line) <= width):
        yield line
        return
    yield f"{' ' * indent}{prefix}{node.opening}"
    for name, part in node.parts:
        yield from laid_out(part, name, ",", indent + 2, width, measure)
    yield f"{' ' * indent}{node.closing.lstrip(',')}{suffix}"
