"""Recipes: values that are read and written without running anything, so that a merge can move their parts.

Plain data is itself. Any other object is a Recipe: the opcodes of its pickle, as data. A Recipe is written by
the same opcodes, so it loads as the object did. Two Recipes are the same to a merge if their opcodes are.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, ClassVar, Final

from vstate.values import shapes
from vstate.values.budget import InertError, Limits
from vstate.values.inert import Machine, handlers_of
from vstate.values.instance import Global, Instance
from vstate.values.pickling import dumps_unproven

_RECIPE_BYTES: Final = 400
_FRACTION: Final = re.compile(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?")
_DATES: Final = frozenset(
    f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")
)

_MOST_LIST: Final = 16 * 1024  # bytes: the pickles of all first items together grow with the square
_LIST: Final = b"\x80\x05]\x94("  # up to the items of a list of several
_END: Final = b"e."
_END_OF_ONE: Final = b"a."

_NEWOBJ, _NEWOBJ_EX, _REDUCE = pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.REDUCE
_BUILD, _APPENDS, _SETITEMS, _ADDITEMS = pickle.BUILD, pickle.APPENDS, pickle.SETITEMS, pickle.ADDITEMS


class Name:
    """A class or function that a pickle refers to. It was not imported."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name


class Recipe:
    """An object as the opcodes that make it, each with its operands. The first one creates it.

    The opcode POP stands for a call with the object as an argument, whose result is dropped. `label` is the
    type that the value's entry names. A merge compares Recipes by their pickles, and looks into none.
    """

    __slots__ = ("label", "steps")

    def __init__(self, opcode: bytes, operands: tuple[object, ...]) -> None:
        self.steps: list[tuple[bytes, tuple[object, ...]]] = [(opcode, operands)]
        self.label = ""

    def add(self, opcode: bytes, *operands: object) -> None:
        """Add a step."""
        self.steps.append((opcode, operands))

    def __reduce__(self) -> tuple[Any, ...]:
        return Recipe, (b"", ()), (self.label, self.steps)  # as a state, which may lead back to the object


def read(
    data: bytes, buffers: Sequence[bytes | bytearray | memoryview], limits: Limits
) -> tuple[object, bool]:
    """The value in the pickle `data`, as plain data and Recipes, and whether it is all plain data.

    A value that is not must be written by `dumps`: any other pickler would import its classes.
    Raises InertError as `inert.read` does, and for a pickle that cannot be written again from its Recipes.
    """
    machine = _Reader(data, buffers, limits)
    value = machine.result()
    # A long bytearray is its buffer alone.
    return bytearray(value) if isinstance(value, pickle.PickleBuffer) else value, machine.is_plain


def read_list(
    data: bytes, buffers: Sequence[bytes | bytearray | memoryview], limits: Limits
) -> tuple[object, bool, list[tuple[list[object], bytes]]]:
    """As `read`, and of a short list of tuples the lists of its first items, each with its pickle.

    The pickle of a list to which items were appended begins with that of the list before.
    """
    machine = _Reader(data, buffers, limits)
    value = machine.result()
    # A container that was recalled may have been changed by the items after it.
    if not isinstance(value, list) or {*map(type, value)} != {tuple} or machine.shared:
        return value, machine.is_plain, []
    ends = [machine.ends.get(count, 0) for count in range(1, len(value))]
    if len(data) > _MOST_LIST or not data.startswith(_LIST) or 0 in ends or ends != sorted(ends):
        return value, machine.is_plain, []
    firsts = [(value[:count], data[:end] + _END) for count, end in enumerate(ends, 1)]
    if ends:  # a list of one has no mark
        firsts[0] = value[:1], _LIST[:-1] + data[len(_LIST) : ends[0]] + _END_OF_ONE
    return value, machine.is_plain, firsts


class _Reader(Machine):
    """Pickle's virtual machine, with Recipes in the place of objects."""

    shows_serialized = False
    is_plain = True
    """Whether the pickle refers to no class or function."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ends: dict[int, int] = {}
        """Where the tuples in a list end, by their number; some numbers more."""

    def load_memoize(self) -> None:
        super().load_memoize()
        if len(self.metastack) == 1:
            self.ends[len(self.stack)] = self.at

    def make(self, opcode: bytes, *operands: object) -> None:
        self.budget.take_bytes(_RECIPE_BYTES)
        self.append(Recipe(opcode, operands))

    def find_class(self, module: str, name: str) -> object:
        """The name alone."""
        self.budget.take_bytes(_RECIPE_BYTES)
        self.is_plain = False
        return Name(module, name)

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        plain = self.plain(function, args)
        if plain is None:
            self.make(_REDUCE, function, args)
        else:
            self.append(plain)

    def plain(self, function: object, args: object) -> object:
        """The number or time that a call makes; None for any other call."""
        if not isinstance(function, Name) or not isinstance(args, tuple):
            return None
        name = f"{function.module}.{function.name}"
        if name in _DATES or name == "builtins.complex":
            made = shapes.call(Global(name), args, self.budget)
            return None if isinstance(made, Instance) else made
        if len(args) == 1 and isinstance(args[0], str) and len(args[0]) < 4000:
            if name == "decimal.Decimal":
                try:
                    return Decimal(args[0])
                except InvalidOperation:
                    return None
            if name == "fractions.Fraction" and _FRACTION.fullmatch(args[0]):
                return None if args[0].endswith("/0") else Fraction(args[0])
        return None

    def load_newobj(self) -> None:
        args, cls = self.stack.pop(), self.stack.pop()
        self.make(_NEWOBJ, cls, args)

    def load_newobj_ex(self) -> None:
        kwargs, args, cls = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.make(_NEWOBJ_EX, cls, args, kwargs)

    def load_build(self) -> None:
        state = self.stack.pop()
        self.recipe(self.stack[-1]).add(_BUILD, state)

    def load_pop(self) -> None:
        value = self.stack[-1] if self.stack else None
        if isinstance(value, Recipe):
            opcode, operands = value.steps[0]
            args = operands[1]
            if opcode != _REDUCE or not isinstance(args, tuple) or not args:
                raise InertError("it drops an object that it made")
            self.recipe(args[0]).add(pickle.POP, *operands)
        super().load_pop()

    def extend(self, target: object, items: list[object]) -> None:
        """Put items at the end of the target."""
        if isinstance(target, Recipe):
            target.add(_APPENDS, *items)
        else:
            super().extend(target, items)

    def set_items(self, target: object, flat: list[object]) -> None:
        """Put keys and values, by turns, into the target."""
        if isinstance(target, Recipe):
            target.add(_SETITEMS, *flat)
        else:
            self.require_plain_keys(flat[::2])
            super().set_items(target, flat)

    def load_additems(self) -> None:
        target = self.metastack[-1][-1]
        if isinstance(target, Recipe):
            target.add(_ADDITEMS, *self.pop_mark())
        else:
            self.require_plain_keys(self.stack)
            super().load_additems()

    def load_frozenset(self) -> None:
        self.require_plain_keys(self.stack)
        super().load_frozenset()

    def load_next_buffer(self) -> None:
        super().load_next_buffer()
        raw = self.stack[-1]
        self.budget.take_bytes(len(raw))
        self.stack[-1] = pickle.PickleBuffer(bytearray(raw))

    def load_readonly_buffer(self) -> None:
        buffer = self.stack[-1]
        if not isinstance(buffer, pickle.PickleBuffer):
            raise InertError("something else is in the place of a buffer")
        self.stack[-1] = pickle.PickleBuffer(bytes(buffer))

    def recipe(self, value: object) -> Recipe:
        if not isinstance(value, Recipe):
            raise InertError(f"it changes a {type(value).__name__}, which is no object")
        return value

    def require_plain_keys(self, keys: Sequence[object]) -> None:
        """Refuse objects in a set or as keys of a dict: only their own code knows which others they equal."""
        for key in keys:
            for part in () if type(key) is str else self.budget.parts_of_key(key):
                if isinstance(part, Recipe | Name):
                    raise InertError("a set or the keys of a dict hold objects")


_Reader.handlers = handlers_of(_Reader)


_PurePickler: Any = pickle._Pickler


class _Writer(_PurePickler):  # type: ignore[misc]  # typeshed does not know its methods
    """Writes Recipes by their opcodes. In Python, because C's pickler imports each name that it writes."""

    dispatch: ClassVar[dict[type, Any]] = _PurePickler.dispatch.copy()

    def save_name(self, name: Name) -> None:
        self.save(name.module)
        self.save(name.name)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(name)

    def save_recipe(self, recipe: Recipe) -> None:
        opcode, operands = recipe.steps[0]
        for operand in operands:
            self.save(operand)
        self.write(opcode)
        self.memoize(recipe)
        for opcode, operands in recipe.steps[1:]:
            if opcode in (_APPENDS, _SETITEMS, _ADDITEMS):
                self.write(pickle.MARK)
            for operand in operands:
                self.save(operand)
            self.write(pickle.REDUCE + pickle.POP if opcode == pickle.POP else opcode)

    dispatch[Name] = save_name
    dispatch[Recipe] = save_recipe


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """A value with Recipes as a frameless pickle and its out-of-band buffers."""
    return dumps_unproven(value, _Writer)
