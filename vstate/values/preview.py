"""Preview: a value in a few lines, for people."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from vstate.plural import counted
from vstate.values.instance import Global, Instance, in_order, printable
from vstate.values.tables import is_table, table_of

_LONGEST_TEXT: Final = 500
_MOST_NODES: Final = 2000
_TABLE_NODES: Final = 100  # the cost of a frame in an unknown form, which was read in vain
_WIDEST_INT: Final = 1000  # bits: the decimal digits of an int take quadratic time, and over 4300 raise


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
    node = _Outline(max_depth, max_items, max_nodes).node(value, 0)
    return _flat(node) if width is None else "\n".join(_laid_out(node, "", "", 0, width, measure))


@dataclass(slots=True)
class _Group:
    """A part of a preview in brackets. Each part inside has a prefix, such as `name=`."""

    opening: str
    closing: str
    parts: list[tuple[str, str | _Group]]


class _Outline:
    """Turns a value into a bounded number of nested groups of text."""

    def __init__(self, max_depth: int, max_items: int, max_nodes: int) -> None:
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
            return _Group("[", "]", self.items(value, len(value), depth))
        if isinstance(value, tuple):
            closing = ",)" if len(value) == 1 else ")"
            return _Group("(", closing, self.items(value, len(value), depth))
        assert isinstance(value, set | frozenset)
        members = in_order(value) if len(value) <= 1000 else value
        parts = self.items(members, len(value), depth)
        if isinstance(value, frozenset):
            return _Group("frozenset({", "})", parts) if parts else _Group("frozenset(", ")", parts)
        return _Group("{", "}", parts) if parts else _Group("set(", ")", parts)

    def _table(self, instance: Instance, depth: int) -> _Group | None:
        """A frame inside a value: its columns, with their dtypes and first cells. None for other objects."""
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
            cells = self.items(column.cells(0, self.max_items), column.rows, depth)
            prefix = "" if name is None else prefix  # a series without a name
            parts.append((prefix, _Group(f"{printable(column.dtype)} [", "]", cells)))
        if len(parts) <= len(table.columns):
            parts.append(("", _more(len(table.columns) + 1 - len(parts))))
        self.left -= len(table.columns)
        return _Group(f"{printable(instance.type)}(", ")", parts)

    def _instance(self, instance: Instance, depth: int) -> _Group:
        parts = self.items(instance.args, len(instance.args), depth)
        if instance.items is not None:
            parts.append(("", _Group("[", "]", self.items(instance.items, len(instance.items), depth))))
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

    def items(self, items: Iterable[object], total: int, depth: int) -> list[tuple[str, str | _Group]]:
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
