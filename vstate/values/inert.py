"""Inert: reads a pickle without running any of it.

Python's own unpickler reads the opcodes, but all that finds or calls something is replaced. Plain data is
built as itself, and anything else becomes an `Instance` or a `Global` with its name. No code here imports or
calls a name of the data. Reading any data ends within `Limits`, with a value or with an `InertError`.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

from vstate.plural import counted
from vstate.values import shapes
from vstate.values.arrays import Array
from vstate.values.budget import Budget, InertError, Limits
from vstate.values.instance import Global, Instance, printable
from vstate.values.opcodes import OPCODES, STOP
from vstate.values.preview import preview
from vstate.values.serialized import KINDS, read_serialized

_OPCODE_BYTES: Final = 48  # an int, its place on the stack, and its place in a container
_BATCH: Final = 256  # opcodes that are paid for together
_FREE: Final = 10  # bytes of an argument, for each opcode of a batch
_LIST_BYTES: Final = 72
_DICT_BYTES: Final = 80
_SET_BYTES: Final = 232
_SHARED_BYTES: Final = 160  # of an id in two sets

_INHERITED: Final = (
    b"N\x88\x89JKM\x8a\x8bGBC\x8e"  # None, bools, numbers and bytes
    b"]}\x8f)t\x85\x87"  # empty containers and tuples
    b"(1jqr\x97\x80"  # marks, the memo, buffers, the protocol
    b"c\x93"  # names, by a method that is replaced
)
"""The opcodes that Python's unpickler handles. Those that only protocols 0 to 2 need are refused."""

_COSTS: Final = {
    "MARK": 180,
    "EMPTY_LIST": _LIST_BYTES,
    "EMPTY_DICT": _DICT_BYTES,
    "EMPTY_SET": _SET_BYTES,
    "TUPLE": _LIST_BYTES,
    "TUPLE1": _LIST_BYTES,
    "TUPLE2": _LIST_BYTES,
    "TUPLE3": _LIST_BYTES,
    "FROZENSET": _SET_BYTES,
    "SHORT_BINUNICODE": 56,
    "BYTEARRAY8": _LIST_BYTES,
    "READONLY_BUFFER": 200,
}
"""The bytes that an opcode takes besides `_OPCODE_BYTES`, and besides the bytes of its argument."""


def read(
    data: bytes, buffers: Sequence[bytes | bytearray | memoryview] = (), *, limits: Limits | None = None
) -> object:
    """The value in the pickle `data`, of protocols 3 to 5. Nothing in it runs.

    None, bool, numbers, str, bytes, bytearray, list, tuple, dict, set, frozenset and the values of datetime
    are themselves; shared and cyclic references are kept. Anything else is an `Instance` or a `Global`.
    `buffers` are the out-of-band buffers in order. Raises InertError, and nothing else, when the data is
    malformed, cut short, or larger than `limits` allow.
    """
    return Machine(data, buffers, limits or Limits()).result()


Handlers = list[Callable[[Any], None]]
"""A function of the machine for each opcode."""

_Unpickler: Any = pickle._Unpickler  # typeshed does not know its methods


class _Memo(list[object]):
    """The memo of a machine, which learns of the containers that are recalled."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getitem__(self, index: Any) -> object:  # type: ignore[override]  # no slices
        value = super().__getitem__(index)
        self._machine.share(value)
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        if index != len(self):
            raise InertError("it does not number its objects in order")
        self.append(value)


class Machine(_Unpickler):  # type: ignore[misc]
    """Python's unpickler, but what finds or calls something is replaced: no code of the data runs.

    It has only the handlers of `_INHERITED`, and its own. So an opcode of a later Python is refused.
    """

    handlers: ClassVar[Handlers]
    shows_serialized: ClassVar[bool] = True
    """Whether a pair with the data of another serializer is the value in the data."""

    def __init__(
        self, data: bytes, buffers: Sequence[bytes | bytearray | memoryview], limits: Limits
    ) -> None:
        self.data = data
        self.file = io.BytesIO(data)
        super().__init__(self.file, buffers=buffers)
        self.read, self.readline = self.file.read, self._line
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        self.memo = _Memo(self)
        self.shared: set[int] = set()
        """The ids of containers that were recalled from the memo: several parents may hold them."""
        self.limits = limits
        self.budget = Budget(limits)

    @property
    def at(self) -> int:
        """The place in the data."""
        return self.file.tell()

    def result(self) -> object:
        """The value; InertError."""
        try:
            return self._run()
        except InertError as error:
            reason = error.reason
        except (IndexError, struct.error):
            reason = "it ends too early, or takes more from the stack than there is"
        except (MemoryError, RecursionError):
            reason = "it needs more memory than there is"
        except (pickle.UnpicklingError, ValueError, KeyError) as error:
            reason = printable(str(error))
        # Raised outside the handlers: as the context, the first error would keep all values in memory.
        raise InertError(reason, offset=self.at)

    def _run(self) -> object:
        read, handlers, costs, budget = self.file.read, self.handlers, _ALL_COSTS, self.budget
        while budget.nodes > 0:
            began, cost = self.at, 0
            for _ in range(min(budget.nodes, _BATCH)):
                code = read(1)[0]
                if code == STOP:
                    value = self.stack.pop()
                    budget.take_bytes(max(self.at - began - _FREE * _BATCH, 0))
                    self.check_depth(value)
                    return value
                cost += costs[code]
                handlers[code](self)
            budget.nodes -= _BATCH
            # Paid after the batch: a small pickle pays for none.
            budget.take_bytes(cost + max(self.at - began - _FREE * _BATCH, 0))
        raise InertError("it has more parts than allowed")

    # --- the data

    def _line(self) -> bytes:
        line = self.file.readline()
        if not line.endswith(b"\n"):
            raise InertError("a line does not end")
        self.budget.take_bytes(4 * len(line))
        return line

    def length(self, size: int) -> int:
        """A length, itself of `size` bytes, checked against the rest of the data."""
        length = int.from_bytes(self.file.read(size), "little")
        if length > len(self.data) - self.at:
            raise InertError(f"{counted(length, 'byte')} should follow, but it ends before")
        return length

    def load_frame(self) -> None:
        self.length(8)

    def _text(self, length: int) -> None:
        raw = self.file.read(length)
        if not raw.isascii():
            # One wide character makes every character of the text take four bytes.
            self.budget.take_bytes(3 * length)
        self.append(str(raw, "utf-8", "surrogatepass"))

    def load_short_binunicode(self) -> None:
        self._text(self.file.read(1)[0])

    def load_binunicode(self) -> None:
        self._text(self.length(4))

    def load_binunicode8(self) -> None:
        self._text(self.length(8))

    def load_bytearray8(self) -> None:
        made = bytearray(self.length(8))
        self.file.readinto(made)
        self.append(made)

    def load_readonly_buffer(self) -> None:
        buffer = self.stack[-1]
        if isinstance(buffer, bytearray | memoryview):
            self.stack[-1] = memoryview(buffer).toreadonly()
        elif not isinstance(buffer, bytes):
            raise InertError(f"a {type(buffer).__name__} is in the place of a buffer")

    # --- the memo, by fewer calls than in Python's unpickler: half of the opcodes of most pickles are these

    def load_memoize(self) -> None:
        self.memo.append(self.stack[-1])

    def load_binget(self) -> None:
        value = list.__getitem__(self.memo, self.read(1)[0])
        if type(value) in _CONTAINERS:
            self.share(value)
        self.append(value)

    # --- containers

    def share(self, value: object) -> None:
        """Several parents may hold the value."""
        if type(value) in _CONTAINERS and id(value) not in self.shared:
            self.budget.take_bytes(_SHARED_BYTES)
            self.shared.add(id(value))

    def set_items(self, target: object, flat: list[object]) -> None:
        """Put keys and values, by turns, into the target."""
        if len(flat) % 2:
            raise InertError("a key has no value")
        if isinstance(target, Instance):
            if target.entries is None:
                target.entries = {}
                self.budget.take_bytes(_DICT_BYTES)
            target = target.entries
        if not isinstance(target, dict):
            raise InertError(f"it puts entries into a {type(target).__name__}")
        self.budget.put(target, zip(flat[::2], flat[1::2], strict=True))

    def extend(self, target: object, items: list[object]) -> None:
        """Put items at the end of the target."""
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
        if len(self.data) < self.limits.depth and not self.shared:
            return  # each container takes a byte
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

    def load_tuple2(self) -> None:
        second, first = self.stack.pop(), self.stack.pop()
        if type(first) is str and first in KINDS and type(second) is bytes and self.shows_serialized:
            self.append(read_serialized(first, second, self.budget))
        else:
            self.append((first, second))

    def load_frozenset(self) -> None:
        made: set[object] = set()
        self.budget.add(made, self.pop_mark())
        self.append(frozenset(made))

    def load_append(self) -> None:
        item, target = self.stack.pop(), self.stack[-1]
        if type(target) is list:
            target.append(item)
        else:
            self.extend(target, [item])

    def load_appends(self) -> None:
        items = self.pop_mark()
        self.extend(self.stack[-1], items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        flat = self.pop_mark()
        self.set_items(self.stack[-1], flat)

    def load_additems(self) -> None:
        members, target = self.pop_mark(), self.stack[-1]
        if isinstance(target, set):
            self.budget.add(target, members)
        else:
            self.extend(target, members)

    # --- names and calls

    def find_class(self, module: str, name: str) -> object:
        """The stand-in for a class or function."""
        return shapes.make_global(module, name, self.budget)

    def load_pop(self) -> None:
        if not self.stack:
            self.pop_mark()
            return
        value = self.stack.pop()
        if isinstance(value, Instance) and value.called:
            shapes.set_state(value, self.budget)

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        self.append(shapes.call(function, args, self.budget))

    def load_newobj(self) -> None:
        args, cls = self.stack.pop(), self.stack.pop()
        self.append(shapes.new(cls, args, None, self.budget))

    def load_newobj_ex(self) -> None:
        kwargs, args, cls = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.append(shapes.new(cls, args, kwargs, self.budget))

    def load_build(self) -> None:
        state = self.stack.pop()
        shapes.build(self.stack[-1], state, self.budget)


_CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset, Instance, Array, Global})


_ALL_COSTS: Final = [
    _OPCODE_BYTES + (_COSTS.get(OPCODES[code].name, 0) if code in OPCODES else 0) for code in range(256)
]


def handlers_of(machine: type[Machine]) -> Handlers:
    """The function of a kind of machine for each opcode."""

    def unknown(machine: Machine) -> None:
        raise InertError(f"0x{machine.data[machine.at - 1]:02x} is not an opcode")

    own = {name for kind in machine.__mro__ if issubclass(kind, Machine) for name in vars(kind)}
    found: Handlers = [unknown] * 256
    for code in OPCODES:
        name = _Unpickler.dispatch[code].__name__
        if name in own or code in _INHERITED:
            found[code] = getattr(machine, name)
    return found


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


def _repr(instance: Instance) -> str:
    return preview(instance, width=None, max_depth=4, max_items=10)


# Not in its class: a preview shows frames too, and these are read from Instances.
Instance.__repr__ = _repr  # type: ignore[assignment]
