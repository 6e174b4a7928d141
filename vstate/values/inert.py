"""Inert: reads a pickle without running any of it.

The opcodes are interpreted here. Plain data is built as itself, and anything else becomes an `Instance` or a
`Global` with its name. No code here imports or calls a name of the data. Reading any data ends within
`Limits`, with a value or with an `InertError`.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

from vstate.plural import counted
from vstate.values import shapes
from vstate.values.arrays import Array
from vstate.values.budget import Budget, InertError, Limits
from vstate.values.hashtable import CROWDED, HashTable, add_members, make_frozenset
from vstate.values.instance import Global, Instance, printable
from vstate.values.opcodes import OPCODES, STOP
from vstate.values.plain import plain
from vstate.values.serialized import KINDS, read_serialized
from vstate.values.tables import preview

__all__ = [
    "Array",
    "Global",
    "InertError",
    "Instance",
    "Limits",
    "names",
    "plain",
    "preview",
    "printable",
    "read",
]

_OPCODE_BYTES: Final = 48  # an int, its place on the stack, and its place in a container
_BATCH: Final = 256  # opcodes that are paid for together
_LIST_BYTES: Final = 72
_DICT_BYTES: Final = 80
_SET_BYTES: Final = 232
_ENTRY_BYTES: Final = 100  # of a dict or the memo, with the slack for growth
_SHARED_BYTES: Final = 160  # of an id in two sets
_MOST_DIGITS: Final = 4300  # Python's own limit; parsing takes quadratic time
_SHORT: Final = 64  # characters; shorter keys cost nothing extra
_LONG: Final = 2**20  # bytes; longer texts are decoded without a copy
_LAST_PROTOCOL: Final = 5
_INT: Final = struct.Struct("<i")
_FLOAT: Final = struct.Struct(">d")
_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|\n|.)", re.DOTALL)
_ESCAPES: Final = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"\n": b"",
}


def read(
    data: bytes, buffers: Sequence[bytes | bytearray | memoryview] = (), *, limits: Limits | None = None
) -> object:
    """The value in the pickle `data`, of protocols 0 to 5. Nothing in it runs.

    None, bool, numbers, str, bytes, bytearray, list, tuple, dict, set, frozenset and the values of datetime
    are themselves; shared and cyclic references are kept. Anything else is an `Instance` or a `Global`.
    `buffers` are the out-of-band buffers in order. Raises InertError, and nothing else, when the data is
    malformed, cut short, or larger than `limits` allow.
    """
    return _run(Machine(data, buffers, limits or Limits()))


def _run(machine: Machine) -> object:
    try:
        return machine.run()
    except InertError as error:
        reason = error.reason
    except (IndexError, struct.error):
        reason = "it ends too early"
    except (MemoryError, RecursionError):
        reason = "it needs more memory than there is"
    # Raised outside the handlers: as the context, the first error would keep all values in memory.
    raise InertError(reason, offset=machine.at)


def names(
    data: bytes, buffers: Sequence[bytes | bytearray | memoryview] = (), *, limits: Limits | None = None
) -> dict[str, bytes]:
    """The full names of the classes and functions in the pickle `data`, as `read` reads it.

    Each has the magic number of the Python that compiled it, if it is a class that is stored by value, else
    no bytes. Raises InertError.
    """
    machine = Machine(data, buffers, limits or Limits())
    _run(machine)
    return machine.budget.names


Handlers = list[Callable[[Any], None] | None]
"""A function of the machine for each opcode; None for the codes that are none, and for STOP."""


class Machine:
    """Pickle's virtual machine: a stack with marks, a memo, and a position in the data."""

    handlers: ClassVar[Handlers]
    shows_serialized: ClassVar[bool] = True
    """Whether a pair with the data of another serializer is the value in the data."""

    def __init__(
        self, data: bytes, buffers: Sequence[bytes | bytearray | memoryview], limits: Limits
    ) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.floor = 0
        """The height of the stack at the last mark; no opcode may take a value below it."""
        self.memo: list[object] = []
        self.scattered: dict[str, object] = {}
        """Memo entries out of order. By text: a forger cannot choose the hash of a text."""
        self.shared: set[int] = set()
        """The ids of containers that were recalled from the memo: several parents may hold them."""
        self.hashes: dict[int, dict[str, int]] = {}
        """How often each hash occurs, by the id of a dict or set whose hashes a forger can choose."""
        self.tables: dict[int, HashTable] = {}
        """The models of the dicts and sets with many such keys, by their ids."""
        self.buffers = iter(buffers)
        self.limits = limits
        self.budget = Budget(limits)

    def run(self) -> object:
        data = self.data
        handlers = self.handlers
        left = self.limits.nodes
        while left > 0:
            for _ in range(min(left, _BATCH)):
                opcode = data[self.at]
                if opcode == STOP:
                    value = self.pop()
                    self.check_depth(value)
                    return value
                handler = handlers[opcode]
                if handler is None:
                    raise InertError(f"0x{opcode:02x} is not an opcode")
                self.at += 1
                handler(self)
            left -= _BATCH
            # Paid after the batch: a small pickle pays for none.
            self.budget.take_bytes(_BATCH * _OPCODE_BYTES)
        raise InertError("it has more parts than allowed")

    # --- the data

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        end = self.at + count
        if end > len(self.data):
            raise InertError(f"{counted(count, 'byte')} should follow, but it ends before")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def length(self, size: int) -> int:
        """A length, itself of `size` bytes, checked against the rest of the data, and paid for."""
        length = self.number(size)
        if length > len(self.data) - self.at:
            raise InertError(f"{counted(length, 'byte')} should follow, but it ends before")
        self.budget.take_bytes(length)
        return length

    def counted(self, size: int) -> bytes:
        """Bytes behind their length."""
        return self.take(self.length(size))

    def text(self, size: int) -> str:
        """UTF-8 behind its length."""
        start = self.at + size
        raw: bytes | memoryview = self.counted(size)
        if not raw.isascii():  # type: ignore[union-attr]  # still bytes
            # One wide character makes every character of the text take four bytes.
            self.budget.take_bytes(3 * len(raw))
        if len(raw) > _LONG:
            raw = memoryview(self.data)[start : self.at]
        try:
            return str(raw, "utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise InertError("a text is not UTF-8") from None

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise InertError("a line does not end")
        line = self.data[self.at : end]
        self.budget.take_bytes(len(line))
        self.at = end + 1
        return line

    def name(self) -> str:
        try:
            return self.line().decode("utf-8")
        except UnicodeDecodeError:
            raise InertError("a name is not UTF-8") from None

    # --- the stack

    def pop(self) -> object:
        if len(self.stack) <= self.floor:
            raise InertError("it takes more from the stack than there is")
        return self.stack.pop()

    def top(self) -> object:
        if len(self.stack) <= self.floor:
            raise InertError("it takes more from the stack than there is")
        return self.stack[-1]

    def pop_to_mark(self) -> list[object]:
        if not self.marks:
            raise InertError("it looks for a mark that is not there")
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        self.floor = self.marks[-1] if self.marks else 0
        return taken

    def push_global(self, module: str, name: str) -> None:
        self.stack.append(shapes.make_global(module, name, self.budget))

    def remember(self, index: int) -> None:
        if len(self.stack) <= self.floor:
            raise InertError("it takes more from the stack than there is")
        value = self.stack[-1]
        if index == len(self.memo):
            self.memo.append(value)
        elif index < len(self.memo):
            self.memo[index] = value
        else:
            self.budget.take_bytes(_ENTRY_BYTES)
            self.scattered[str(index)] = value

    def recall(self, index: int) -> None:
        if index < len(self.memo):
            value = self.memo[index]
        elif (text := str(index)) in self.scattered:
            value = self.scattered[text]
        else:
            raise InertError(f"it recalls {index}, which it never stored")
        if type(value) in _CONTAINERS:
            self.share(value)
        self.stack.append(value)

    def share(self, value: object) -> None:
        if id(value) not in self.shared:
            self.budget.take_bytes(_SHARED_BYTES)
            self.shared.add(id(value))

    # --- containers

    def put(self, container: dict[object, object], pairs: Iterable[tuple[object, object]]) -> None:
        budget = self.budget
        table = self.tables.get(id(container))
        for key, value in pairs:
            if type(key) is not str or len(key) > _SHORT:
                budget.take_key(key, self.hashes.setdefault(id(container), {}))
                if table is None and len(container) >= CROWDED:
                    table = self.tables[id(container)] = HashTable(container, budget)
            budget.take_bytes(_ENTRY_BYTES)
            if table is not None:
                table.expect(key)
            container[key] = value

    def set_items(self, target: object, flat: list[object]) -> None:
        if len(flat) % 2:
            raise InertError("a key has no value")
        if isinstance(target, Instance):
            if target.entries is None:
                target.entries = {}
                self.budget.take_bytes(_DICT_BYTES)
            target = target.entries
        if not isinstance(target, dict):
            raise InertError(f"it puts entries into a {type(target).__name__}")
        self.put(target, zip(flat[::2], flat[1::2], strict=True))

    def extend(self, target: object, items: list[object]) -> None:
        if isinstance(target, Instance):
            if target.items is None:
                target.items = []
                self.budget.take_bytes(_LIST_BYTES)
            target = target.items
        if not isinstance(target, list):
            raise InertError(f"it appends to a {type(target).__name__}")
        target.extend(items)

    def check_depth(self, value: object) -> None:
        """InertError if containers are nested too deep. Visits each container once."""
        seen: set[int] = set()
        # Arguments of a recalled call may be in several instances, and are not marked as shared.
        left = self.limits.nodes
        path: list[Iterator[object]] = [iter((value,))]
        while path:
            for child in path[-1]:
                if type(child) not in _CONTAINERS:
                    continue
                # Only a recalled container can be reached twice; keeping the other ids would cost memory.
                if id(child) in self.shared:
                    if id(child) in seen:
                        continue
                    seen.add(id(child))
                left -= _size(child)
                if left < 0:
                    raise InertError("it shares more parts than allowed")
                path.append(_children(child))
                break
            else:
                path.pop()
                continue
            if len(path) > self.limits.depth + 1:
                raise InertError(f"its containers are nested more than {self.limits.depth} deep")

    # --- one method for each opcode, by its name

    def op_mark(self) -> None:
        self.floor = len(self.stack)
        self.marks.append(self.floor)

    def op_pop(self) -> None:
        if self.marks and self.floor == len(self.stack):
            self.pop_to_mark()
            return
        value = self.pop()
        if isinstance(value, Instance) and value.called:
            shapes.set_state(value, self.budget)

    def op_pop_mark(self) -> None:
        self.pop_to_mark()

    def op_dup(self) -> None:
        value = self.top()
        if type(value) in _CONTAINERS:
            self.share(value)
        self.stack.append(value)

    def op_proto(self) -> None:
        protocol = self.number(1)
        if protocol > _LAST_PROTOCOL:
            raise InertError(f"it has the unknown protocol {protocol}")

    def op_frame(self) -> None:
        length = self.number(8)
        if length > len(self.data) - self.at:
            raise InertError(f"a frame of {counted(length, 'byte')} should follow, but it ends before")

    def op_none(self) -> None:
        self.stack.append(None)

    def op_newtrue(self) -> None:
        self.stack.append(True)

    def op_newfalse(self) -> None:
        self.stack.append(False)

    def op_int(self) -> None:
        line = self.digits()
        # Protocols 0 and 1 write bools like this.
        self.stack.append(line == b"01" if line in (b"00", b"01") else _decimal(line))

    def op_long(self) -> None:
        self.stack.append(_decimal(self.digits().removesuffix(b"L")))

    def digits(self) -> bytes:
        line = self.line()
        self.budget.take_nodes(len(line) >> 4)
        return line

    def op_binint(self) -> None:
        self.stack.append(_INT.unpack_from(self.data, self.at)[0])
        self.at += 4

    def op_binint1(self) -> None:
        self.stack.append(self.data[self.at])
        self.at += 1

    def op_binint2(self) -> None:
        self.stack.append(self.number(2))

    def op_long1(self) -> None:
        self.stack.append(int.from_bytes(self.counted(1), "little", signed=True))

    def op_long4(self) -> None:
        raw = self.counted(4)
        self.budget.take_bytes(len(raw) + len(raw) // 8)
        self.stack.append(int.from_bytes(raw, "little", signed=True))

    def op_float(self) -> None:
        line = self.line()
        try:
            if len(line) > _MOST_DIGITS:
                raise ValueError
            self.stack.append(float(line))
        except ValueError:
            raise InertError("a float is malformed") from None

    def op_binfloat(self) -> None:
        self.stack.append(_FLOAT.unpack_from(self.data, self.at)[0])
        self.at += 8

    def op_string(self) -> None:
        line = self.line().strip()
        self.budget.take_bytes(2 * len(line))
        if len(line) < 2 or line[0] != line[-1] or line[:1] not in (b"'", b'"'):
            raise InertError("a string has no quotes")
        escapes = line.count(b"\\")
        self.budget.take_nodes(escapes)
        self.budget.take_bytes(100 * escapes)
        self.stack.append(self.python2(_ESCAPE.sub(_unescaped, line[1:-1])))

    def op_binstring(self) -> None:
        self.stack.append(self.python2(self.counted(4)))

    def op_short_binstring(self) -> None:
        self.stack.append(self.python2(self.counted(1)))

    def python2(self, raw: bytes) -> str | bytes:
        """A str of Python 2, which held text or bytes: text if it is ASCII."""
        if not raw.isascii():
            return raw
        self.budget.take_bytes(len(raw))
        return raw.decode("ascii")

    def op_unicode(self) -> None:
        line = self.line()
        self.budget.take_bytes(4 * len(line))
        try:
            # Not by the codec's name: the lookup would import a module.
            self.stack.append(codecs.raw_unicode_escape_decode(line, "strict")[0])
        except UnicodeDecodeError:
            raise InertError("a text has a malformed escape") from None

    def op_short_binunicode(self) -> None:
        # text(1), inlined: this is the most frequent opcode by far.
        start = self.at + 1
        end = start + self.data[self.at]
        raw = self.data[start:end]
        if end > len(self.data):
            raise InertError("a text should follow, but it ends before")
        try:
            text = raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise InertError("a text is not UTF-8") from None
        self.budget.take_bytes(text.__sizeof__())
        self.stack.append(text)
        self.at = end

    def op_binunicode(self) -> None:
        self.stack.append(self.text(4))

    def op_binunicode8(self) -> None:
        self.stack.append(self.text(8))

    def op_binbytes(self) -> None:
        self.stack.append(self.counted(4))

    def op_short_binbytes(self) -> None:
        self.stack.append(self.counted(1))

    def op_binbytes8(self) -> None:
        self.stack.append(self.counted(8))

    def op_bytearray8(self) -> None:
        self.budget.take_bytes(_LIST_BYTES)
        length = self.length(8)
        self.stack.append(bytearray(memoryview(self.data)[self.at : self.at + length]))
        self.at += length

    def op_next_buffer(self) -> None:
        buffer = next(self.buffers, None)
        if buffer is None:
            raise InertError("it has more out-of-band buffers than were given")
        self.stack.append(buffer)

    def op_readonly_buffer(self) -> None:
        buffer = self.top()
        if isinstance(buffer, bytearray | memoryview):
            self.budget.take_bytes(200)
            self.stack[-1] = memoryview(buffer).toreadonly()
        elif not isinstance(buffer, bytes):
            raise InertError(f"a {type(buffer).__name__} is in the place of a buffer")

    def op_empty_list(self) -> None:
        self.budget.take_bytes(_LIST_BYTES)
        self.stack.append([])

    def op_empty_dict(self) -> None:
        self.budget.take_bytes(_DICT_BYTES)
        self.stack.append({})

    def op_empty_set(self) -> None:
        self.budget.take_bytes(_SET_BYTES)
        self.stack.append(set())

    def op_empty_tuple(self) -> None:
        self.stack.append(())

    def op_list(self) -> None:
        self.budget.take_bytes(_LIST_BYTES)
        self.stack.append(self.pop_to_mark())

    def op_dict(self) -> None:
        flat = self.pop_to_mark()
        self.op_empty_dict()
        self.set_items(self.stack[-1], flat)

    def op_tuple(self) -> None:
        self.budget.take_bytes(_LIST_BYTES)
        self.stack.append(tuple(self.pop_to_mark()))

    def op_tuple1(self) -> None:
        self.budget.take_bytes(_LIST_BYTES)
        self.stack.append((self.pop(),))

    def op_tuple2(self) -> None:
        self.budget.take_bytes(_LIST_BYTES)
        second, first = self.pop(), self.pop()
        if type(first) is str and first in KINDS and type(second) is bytes and self.shows_serialized:
            self.stack.append(read_serialized(first, second, self.budget))
            return
        self.stack.append((first, second))

    def op_tuple3(self) -> None:
        self.budget.take_bytes(_LIST_BYTES)
        third, second, first = self.pop(), self.pop(), self.pop()
        self.stack.append((first, second, third))

    def op_frozenset(self) -> None:
        self.stack.append(make_frozenset(self.pop_to_mark(), self.budget))

    def op_append(self) -> None:
        item = self.pop()
        target = self.top()
        if type(target) is list:
            target.append(item)
        else:
            self.extend(target, [item])

    def op_appends(self) -> None:
        items = self.pop_to_mark()
        self.extend(self.top(), items)

    def op_setitem(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items(self.top(), [key, value])

    def op_setitems(self) -> None:
        flat = self.pop_to_mark()
        self.set_items(self.top(), flat)

    def op_additems(self) -> None:
        members = self.pop_to_mark()
        target = self.top()
        if not isinstance(target, set):
            self.extend(target, members)
            return
        hashes = self.hashes.setdefault(id(target), {})
        table = add_members(target, members, self.budget, hashes, self.tables.get(id(target)))
        if table is not None:
            self.tables[id(target)] = table

    def op_get(self) -> None:
        self.recall(_index(self.line()))

    def op_binget(self) -> None:
        index = self.data[self.at]
        self.at += 1
        self.recall(index)

    def op_long_binget(self) -> None:
        self.recall(self.number(4))

    def op_put(self) -> None:
        self.remember(_index(self.line()))

    def op_binput(self) -> None:
        self.remember(self.number(1))

    def op_long_binput(self) -> None:
        self.remember(self.number(4))

    def op_memoize(self) -> None:
        self.remember(len(self.memo) + len(self.scattered))

    def op_global(self) -> None:
        module = self.name()
        self.push_global(module, self.name())

    def op_stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise InertError("the name of a global is not a text")
        self.push_global(module, name)

    def op_ext1(self) -> None:
        self.extension(1)

    def op_ext2(self) -> None:
        self.extension(2)

    def op_ext4(self) -> None:
        self.extension(4)

    def extension(self, size: int) -> None:
        code = int.from_bytes(self.take(size), "little", signed=size == 4)
        if code <= 0:
            raise InertError(f"{code} is not an extension code")
        self.push_global("copyreg", f"extension_{code}")

    def op_reduce(self) -> None:
        args, function = self.pop(), self.pop()
        self.stack.append(shapes.call(function, args, self.budget))

    def op_newobj(self) -> None:
        args, cls = self.pop(), self.pop()
        self.stack.append(shapes.new(cls, args, None, self.budget))

    def op_newobj_ex(self) -> None:
        kwargs, args, cls = self.pop(), self.pop(), self.pop()
        self.stack.append(shapes.new(cls, args, kwargs, self.budget))

    def op_inst(self) -> None:
        module = self.name()
        self.push_global(module, self.name())
        function = self.stack.pop()
        self.stack.append(shapes.call(function, tuple(self.pop_to_mark()), self.budget))

    def op_obj(self) -> None:
        parts = self.pop_to_mark()
        if not parts:
            raise InertError("an object has no class")
        self.stack.append(shapes.call(parts[0], tuple(parts[1:]), self.budget))

    def op_build(self) -> None:
        state = self.pop()
        shapes.build(self.top(), state, self.budget)

    def op_persid(self) -> None:
        self.persistent(self.name())

    def op_binpersid(self) -> None:
        self.persistent(self.pop())

    def persistent(self, id: object) -> None:
        self.push_global("pickle", "persistent_load")
        self.stack.append(shapes.call(self.stack.pop(), (id,), self.budget))


_CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset, Instance, Array, Global})


def handlers_of(machine: type[Machine]) -> Handlers:
    """The method of a kind of machine for each opcode."""
    return [
        getattr(machine, f"op_{OPCODES[code].name.lower()}") if code in OPCODES and code != STOP else None
        for code in range(256)
    ]


Machine.handlers = handlers_of(Machine)


def _children(container: object) -> Iterator[object]:
    if isinstance(container, dict):
        return chain(container, container.values())
    if isinstance(container, Instance):
        return container.children()
    if isinstance(container, Global):
        return iter(container.fields.values())
    assert isinstance(container, list | tuple | set | frozenset)
    return iter(container)


def _size(container: object) -> int:
    if isinstance(container, Instance):
        return len(container.fields) + len(container.kwargs) + 4
    if isinstance(container, Global):
        return len(container.fields) + 1
    assert isinstance(container, list | tuple | dict | set | frozenset)
    return len(container) + 1


def _decimal(text: bytes) -> int:
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise InertError("an int is malformed or has too many digits")
    try:
        return int(text)
    except ValueError:
        raise InertError("an int has more digits than this Python allows") from None


def _index(text: bytes) -> int:
    if not text.isdigit() or len(text) > 10:
        raise InertError("a memo index is malformed")
    return int(text)


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1] == b"x" and len(code) == 3:
        return bytes([int(code[1:], 16)])
    if code.isdigit() and code[:1] < b"8":
        return bytes([int(code, 8) & 0xFF])
    return _ESCAPES.get(code, b"\\" + code)
