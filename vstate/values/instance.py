"""Instance and Global, which stand for objects that were not built; `preview` shows values to people."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from vstate.plural import counted

__all__ = ["Global", "Instance", "in_order", "is_float_nan", "preview", "printable"]

_LONGEST_NAME: Final = 200
_LONGEST_TEXT: Final = 500
_MOST_NODES: Final = 2000
_TABLE_NODES: Final = 100  # the cost of a frame in an unknown form, which was read in vain
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
        return preview(self, width=None, max_depth=4, max_items=10)

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


def preview(
    value: object,
    *,
    width: int | None = 80,
    max_depth: int = 6,
    max_items: int = 20,
    max_nodes: int = _MOST_NODES,
    measure: Callable[[str], int] = len,
) -> str:
    """`value`, as `inert.read` returns it, for people: one line if it fits `width` columns, else several.

    The text of any value is bounded. "…" with a number stands for deeper containers, later items, the rest
    of long strings, and everything after `max_nodes` parts. A container inside itself is `<cycle>`. Control
    characters are escaped, so a stored string cannot drive a terminal. `width=None` makes one line of any
    length. `measure` gives the columns of a text; wide characters take two on a terminal.
    """
    node = _Outline(max_depth=max_depth, max_items=max_items, max_nodes=max_nodes).node(value, 0)
    if width is None:
        return _flat(node)
    return "\n".join(_laid_out(node, "", "", 0, width, measure))


@dataclass(slots=True)
class _Group:
    """A part of a preview in brackets. Each part inside has a prefix, such as `name=`."""

    opening: str
    closing: str
    parts: list[tuple[str, str | _Group]]


class _Outline:
    """Turns a value into a bounded number of nested groups of text."""

    def __init__(self, *, max_depth: int, max_items: int, max_nodes: int) -> None:
        self.max_depth = min(max_depth, 50)
        self.max_items = max_items
        self.left = max_nodes
        self.inside: set[int] = set()

    def node(self, value: object, depth: int) -> str | _Group:
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

    def _container(self, value: object, depth: int) -> _Group:
        if isinstance(value, Instance):
            return self._table(value, depth) or self._instance(value, depth)
        if isinstance(value, dict):
            return _Group("{", "}", self._entries(value, depth))
        if isinstance(value, list):
            return _Group("[", "]", self._items(value, len(value), depth))
        if isinstance(value, tuple):
            closing = ",)" if len(value) == 1 else ")"
            return _Group("(", closing, self._items(value, len(value), depth))
        assert isinstance(value, set | frozenset)
        members = in_order(value) if len(value) <= 1000 else value
        parts = self._items(members, len(value), depth)
        if isinstance(value, frozenset):
            return _Group("frozenset({", "})", parts) if parts else _Group("frozenset(", ")", parts)
        return _Group("{", "}", parts) if parts else _Group("set(", ")", parts)

    def _table(self, instance: Instance, depth: int) -> _Group | None:
        """A frame inside a value: its columns, with their dtypes and first cells. None for other objects."""
        from vstate.values.tables import is_table, table_of  # late: tables are read from instances

        if not is_table(instance):
            return None
        table = table_of(instance)
        if table is None:
            self.left -= _TABLE_NODES
            return None
        parts: list[tuple[str, str | _Group]] = [("", counted(table.rows, "row"))]
        for column in islice(table.columns, self.max_items):
            if self.left < 0:
                break
            name = column.name
            prefix = f"{printable(name) if isinstance(name, str) else _flat(self.node(name, depth))}: "
            cells = self._items(column.cells(0, self.max_items), column.rows, depth)
            prefix = "" if name is None else prefix  # a series without a name
            parts.append((prefix, _Group(f"{printable(column.dtype)} [", "]", cells)))
        if len(parts) <= len(table.columns):
            parts.append(("", _more(len(table.columns) + 1 - len(parts))))
        self.left -= len(table.columns)
        return _Group(f"{printable(instance.type)}(", ")", parts)

    def _instance(self, instance: Instance, depth: int) -> _Group:
        parts = self._items(instance.args, len(instance.args), depth)
        if instance.items is not None:
            parts.append(("", _Group("[", "]", self._items(instance.items, len(instance.items), depth))))
        if instance.entries is not None:
            parts.append(("", _Group("{", "}", self._entries(instance.entries, depth))))
        for named in (instance.kwargs, instance.fields):
            for name, value in islice(named.items(), self.max_items):
                if self.left < 0:
                    break
                parts.append((f"{printable(name)}=", self.node(value, depth)))
            if len(named) > self.max_items:
                parts.append(("", _more(len(named) - self.max_items)))
        if instance.state is not None:
            parts.append(("state=", self.node(instance.state, depth)))
        name = printable(instance.type)
        return _Group(f"<{name}(", ")>", parts) if instance.called else _Group(f"{name}(", ")", parts)

    def _items(self, items: Iterable[object], total: int, depth: int) -> list[tuple[str, str | _Group]]:
        parts: list[tuple[str, str | _Group]] = []
        for item in islice(items, self.max_items):
            if self.left < 0:
                break
            parts.append(("", self.node(item, depth)))
        if len(parts) < total:
            parts.append(("", _more(total - len(parts))))
        return parts

    def _entries(self, entries: dict[object, object], depth: int) -> list[tuple[str, str | _Group]]:
        parts: list[tuple[str, str | _Group]] = []
        for key, value in islice(entries.items(), self.max_items):
            if self.left < 0:
                break
            parts.append((f"{_flat(self.node(key, depth))}: ", self.node(value, depth)))
        if len(parts) < len(entries):
            parts.append(("", _more(len(entries) - len(parts))))
        return parts


def _more(count: int) -> str:
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


def _flat(node: str | _Group) -> str:
    if isinstance(node, str):
        return node
    inside = ", ".join(prefix + _flat(part) for prefix, part in node.parts)
    return f"{node.opening}{inside}{node.closing}"


def _laid_out(
    node: str | _Group, prefix: str, suffix: str, indent: int, width: int, measure: Callable[[str], int]
) -> Iterator[str]:
    line = f"{' ' * indent}{prefix}{_flat(node)}{suffix}"
    if isinstance(node, str) or (len(line) <= 2 * width and measure(line) <= width):
        yield line
        return
    yield f"{' ' * indent}{prefix}{node.opening}"
    for name, part in node.parts:
        yield from _laid_out(part, name, ",", indent + 2, width, measure)
    yield f"{' ' * indent}{node.closing.lstrip(',')}{suffix}"
