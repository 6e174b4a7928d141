"""Plain: values as data that JSON can hold."""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from vstate.values.arrays import Array
from vstate.values.instance import Global, Instance, in_order
from vstate.values.preview import preview
from vstate.values.tables import Column, Table, is_table, table_of

_ELEMENTS: Final = 1000  # of an array, that are decoded together
_SMALL: Final = frozenset({bool, int, float, str, type(None)})
_DEEPEST: Final = 60  # json recurses too
_MOST_TEXT: Final = 64 * 2**20  # characters of JSON
_BLOCK: Final = 64 * 1024  # characters of a long text that are measured together
_LONGEST_BYTES: Final = 64 * 1024
_WIDEST_INT: Final = 4096  # bits; json.dumps refuses an int of more than 4300 digits
_WIDEST_HEX: Final = 2**22  # bits
_MOST_DIMENSIONS: Final = 8  # that become nested lists
_NAME_NODES: Final = 20  # of a column's name that is no text


def plain(
    value: object, *, max_nodes: int = 100_000, max_items: int = 0, max_text: int = _MOST_TEXT
) -> object:
    """`value`, as `inert.read` returns it, as None, bool, int, float, str, list and dict with str keys only.

    Anything else is a dict with a key that starts with "$"; a "$" at the start of the value's own keys is
    doubled. A tuple is a list. An `Instance` is {"$type": name, field: ...}, with "$args", "$kwargs",
    "$items", "$entries", "$state" and "$called" if it has them; a `Global` is {"$global": name}. The others
    are "$bytes" (base64), "$set", "$frozenset", "$dict" (a list of pairs, if not every key is a str),
    "$float" (nan, inf), "$int" (hexadecimal), "$complex", "$datetime", "$date", "$time", "$timezone", and
    "$timedelta" (seconds).

    A frame is {"$type": name, "$index": labels, column: cells}. "$index" is absent where rows have only
    numbers, and has a list for each of several levels; a second column of a name has its number. The cells
    of a Series are its `data`. The `data` of an array are lists of lists by its shape, or with `order` "F"
    flat in the order of memory.

    The result is bounded. It has at most `max_nodes` parts, and 1 KiB of JSON text for each, `max_text` in
    all, which is at most 64 MiB. Deep parts count more. The first `max_items` numbers and texts in lists and
    arrays do not count. {"$more": count}, {"$cycle": true} and {"$deep": true} stand for parts that are left
    out. Of an array, `omitted` is the number of elements that are left out. "$size", in characters or
    bytes, stands beside the beginning of a string that is cut.
    """
    return _Plain(max_nodes, max_items, max_text).convert(value, 0)


class _Plain:
    def __init__(self, max_nodes: int, max_items: int, max_text: int) -> None:
        self.left = max_nodes
        self.items_left = max_items
        self.text_left = min(max_nodes << 10, max_text, _MOST_TEXT)
        self.inside: set[int] = set()

    def convert(self, value: object, depth: int) -> object:
        # json writes nested data through as many nested function calls.
        self.left -= 1 + (depth >> 3)
        if not isinstance(value, list | tuple | dict | set | frozenset | Instance | Global):
            return self._atom(value)
        if id(value) in self.inside:
            return {"$cycle": True}
        if depth >= _DEEPEST:
            return {"$deep": True}
        self.inside.add(id(value))
        try:
            return self._container(value, depth + 1)
        finally:
            self.inside.remove(id(value))

    def _container(self, value: object, depth: int) -> object:
        if isinstance(value, Global):
            return {"$global": self._name(value.name), **self._named(value.fields, depth)}
        if isinstance(value, Array) and value.layout is not None and value.fields.get("data"):
            return self._array(value, depth)
        if isinstance(value, Instance):
            table = table_of(value) if is_table(value) else None
            return self._instance(value, depth) if table is None else self._table(value.type, table, depth)
        if isinstance(value, dict):
            return self._entries(value, depth)
        if isinstance(value, list | tuple):
            return self._items(value, len(value), depth)
        assert isinstance(value, set | frozenset)
        members: Iterable[object] = in_order(value) if len(value) <= self.left else value
        return {f"${type(value).__name__}": self._items(members, len(value), depth)}

    def _array(self, array: Array, depth: int) -> dict[str, object]:
        count = array.count
        blocks = (array.elements(at, min(at + _ELEMENTS, count)) for at in range(0, count, _ELEMENTS))
        data = self._items(chain.from_iterable(blocks), count, depth)
        left_out = 0
        if data and isinstance(data[-1], dict) and "$more" in data[-1]:
            data.pop()
            left_out = count - len(data)
        fields = {name: part for name, part in array.fields.items() if name not in ("data", "omitted")}
        if "order" not in fields and 1 < len(array.shape) <= _MOST_DIMENSIONS and data:
            for size in reversed(array.shape[1:]):
                data = [data[at : at + size] for at in range(0, len(data), size)]
        result = {"$type": self._name(array.type), **self._named(fields, depth), "data": data}
        return result | ({"omitted": left_out} if left_out else {})

    def _table(self, kind: str, table: Table, depth: int) -> dict[str, object]:
        result: dict[str, object] = {"$type": self._name(kind)}
        if table.is_labelled:
            levels = [self._cells(level, depth) for level in table.labels]
            result["$index"] = levels[0] if len(levels) == 1 else levels
        for number, column in enumerate(table.columns):
            name = "data" if table.type == "Series" else column.name
            name = name if isinstance(name, str) else preview(name, width=None, max_nodes=_NAME_NODES)
            if self._is_spent() or self._fitting(name) < len(name):
                result["$more"] = len(table.columns) - number
                break
            name = f"${name}" if name.startswith("$") else name
            result[name if name not in result else f"{name} [{number}]"] = self._cells(column, depth)
        return result

    def _cells(self, column: Column, depth: int) -> object:
        if column.read is None:
            return self.convert(column.source, depth)
        starts = range(0, column.rows, _ELEMENTS)
        blocks = (column.cells(start, start + _ELEMENTS) for start in starts)
        return self._items(chain.from_iterable(blocks), column.rows, depth)

    def _instance(self, instance: Instance, depth: int) -> dict[str, object]:
        result: dict[str, object] = {"$type": self._name(instance.type)}
        if instance.called:
            result["$called"] = True
        if instance.args:
            result["$args"] = self._items(instance.args, len(instance.args), depth)
        if instance.kwargs:
            result["$kwargs"] = self._named(instance.kwargs, depth)
        result.update(self._named(instance.fields, depth))
        if instance.items is not None:
            result["$items"] = self._items(instance.items, len(instance.items), depth)
        if instance.entries is not None:
            result["$entries"] = self._entries(instance.entries, depth)
        if instance.state is not None:
            result["$state"] = self.convert(instance.state, depth)
        return result

    def _items(self, items: Iterable[object], total: int, depth: int) -> list[object]:
        result: list[object] = []
        for item in items:
            if self._is_spent():
                result.append({"$more": total - len(result)})
                break
            if self.items_left > 0 and type(item) in _SMALL:
                self.items_left -= 1
                result.append(self._atom(item))
            else:
                result.append(self.convert(item, depth))
        return result

    def _entries(self, entries: Mapping[object, object], depth: int) -> dict[str, object]:
        # Only as many keys as will be shown.
        if all(isinstance(key, str) for key in islice(entries, max(self.left, 0))):
            return self._named(entries, depth)
        pairs: list[object] = []
        for key, value in entries.items():
            if self._is_spent():
                pairs.append({"$more": len(entries) - len(pairs)})
                break
            pairs.append([self.convert(key, depth), self.convert(value, depth)])
        return {"$dict": pairs}

    def _named(self, entries: Mapping[Any, object], depth: int) -> dict[str, object]:
        """The entries of a mapping; as many of its keys as will be shown are str."""
        result: dict[str, object] = {}
        for key, value in entries.items():
            if self._is_spent() or self._fitting(key) < len(key):
                result["$more"] = len(entries) - len(result)
                break
            result[f"${key}" if key.startswith("$") else key] = self.convert(value, depth)
        return result

    def _is_spent(self) -> bool:
        return self.left <= 0 or self.text_left <= 0

    def _name(self, text: str) -> str:
        self.text_left -= _json_length(text)
        return text

    def _fitting(self, text: str) -> int:
        """Pay for as much of `text` as fits; the number of its characters."""
        for start in range(0, len(text), _BLOCK):
            block = text[start : start + _BLOCK]
            length = _json_length(block)
            if length > self.text_left:
                fitting = start + max(self.text_left, 0) * len(block) // length
                self.text_left = 0
                return fitting
            self.text_left -= length
        return len(text)

    def _atom(self, value: object) -> object:
        if isinstance(value, str):
            fitting = self._fitting(value)
            return value if fitting == len(value) else {"$str": value[:fitting], "$size": len(value)}
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            if value.bit_length() <= _WIDEST_INT:
                self.text_left -= value.bit_length()  # more than its digits, which are slow to count
                return value
            if value.bit_length() > min(_WIDEST_HEX, max(self.text_left, 0) << 2):
                return {"$int": None, "$size": value.bit_length() // 8 + 1}
            return {"$int": self._name(hex(value))}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, complex):
            return {"$complex": repr(value)}
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(value)
        if isinstance(value, datetime.timedelta):
            return {"$timedelta": value.total_seconds()}
        if isinstance(value, datetime.date | datetime.time):
            return {f"${type(value).__name__}": value.isoformat()}
        if isinstance(value, datetime.timezone):
            return {"$timezone": repr(value)}
        return {"$type": type(value).__name__}

    def _bytes(self, value: bytes | bytearray | memoryview) -> dict[str, object]:
        view = memoryview(value)
        shown = bytes(view[:_LONGEST_BYTES]) if view.nbytes == len(view) else b""
        result: dict[str, object] = {"$bytes": self._name(base64.b64encode(shown).decode())}
        if len(shown) < view.nbytes:
            result["$size"] = view.nbytes
        return result


def _json_length(text: str) -> int:
    """The length of `text` as JSON in ASCII, without the quotes."""
    return len(encode_basestring_ascii(text)) - 2
